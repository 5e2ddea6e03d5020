"""The example app of the plug-in, run as Flower runs it: simulated, and with SuperNodes."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")
pytest.importorskip("sklearn")

from tests.daemons import ROOT, Pair, free_ports, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

APP = ROOT / "examples" / "flower"
LIMIT_S = 240.0
NODES = 3


class Flower:
    """A SuperLink and what belongs to it, as processes with a configuration of their own."""

    def __init__(self, folder: Path, pair: Pair) -> None:
        self._folder, self._pair = folder, pair
        self._bin = Path(sys.executable).parent
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = os.environ | {
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "FLWR_HOME": str(folder),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "NO_COLOR": "1",
            # Ray may fork while the example, which sets this, too, is imported
            "OPENBLAS_NUM_THREADS": "1",
        }
        (self.port, *self._node_ports) = free_ports(1 + NODES)
        (folder / "config.toml").write_text(
            '[superlink]\ndefault = "test"\n\n'
            f'[superlink.test]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )

    def start(self, name: str, *command: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(self._bin / command[0]), *command[1:]],
                env=self._environment,
                cwd=self._folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                # ended with the processes that it starts itself
                start_new_session=True,
            )

    def superlink(self, *options: str) -> None:
        self.start(
            "superlink",
            *("flower-superlink", "--insecure", "--host", "127.0.0.1"),
            *("--port", str(self.port), *options),
        )
        wait_until(self._answers, LIMIT_S)

    def supernodes(self) -> None:
        """Start a SuperNode for each client. One that runs is ended first."""
        for number in range(1, NODES + 1):
            client = self._pair.folder / f"client-{number}.toml"
            self.end(name := f"supernode-{number}")
            self.start(
                name,
                *("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}"),
                *("--host", "127.0.0.1", "--port", str(self._node_ports[number - 1])),
                "--node-config",
                f'securemedian-config="{client}" partition-id={number - 1} num-partitions={NODES}',
            )

    def flwr(self, *arguments: str) -> Any:
        done = subprocess.run(
            [str(self._bin / "flwr"), *arguments, "--format", "json"],
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        # the lines before the JSON are for people
        return json.loads(done.stdout[done.stdout.index("{") :])

    def run(self, **config: Any) -> str:
        """Start a run of the example and return its id."""
        keys = self._pair.folder
        settings = {
            "coordinator": str(keys / "coordinator.toml"),
            "securemedian-config": str(keys / "client-{client}.toml"),
        } | config
        started = self.flwr(
            *("run", str(APP), "test", "--run-config"),
            " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items()),
            "--federation-config",
            f"num-supernodes={NODES} client-resources-num-cpus=1",
        )
        return str(started["run-id"])

    def ended(self, run_id: str) -> dict[str, Any]:
        """Wait for the end of a run and return what is known of it."""
        found: dict[str, Any] = wait_until(partial(self._find_ended, run_id), LIMIT_S)
        return found

    def _find_ended(self, run_id: str) -> dict[str, Any] | None:
        for run in self.flwr("list", "test")["runs"]:
            if run["run-id"] == run_id and run["status"].startswith("finished"):
                found: dict[str, Any] = run
                return found
        return None

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*.log")))

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def end(self, name: str) -> None:
        """End a process and those that it has started, if it runs."""
        if (process := self._processes.pop(name, None)) is None:
            return
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        for name in reversed(list(self._processes)):
            self.end(name)


@pytest.fixture
def flower(tmp_path: Path, pair: Pair) -> Iterator[Flower]:
    one = Flower(tmp_path, pair)
    try:
        yield one
    finally:
        one.close()


def two_rounds(flower: Flower, pair: Pair) -> None:
    """Run the example for two rounds, and see that they were rounds of the service."""
    ended = flower.ended(flower.run(**{"num-server-rounds": 2}))
    assert ended["status"] == "finished:completed", (ended, flower.logs())
    status = pair.status()
    assert (status["number"], status["state"]) == (2, "published")
    assert sorted(status["included"]) == [f"client-{number}" for number in range(1, NODES + 1)]


def stop_in_training(flower: Flower, pair: Pair) -> str:
    """Stop a run of the example while its nodes train, and return the id of its round."""
    # hours of training, so that no node submits before Flower has stopped the run
    stopped = flower.run(**{"local-epochs": 1_000_000})
    wait_until(lambda: pair.status()["state"] == "open", LIMIT_S)
    round_id = str(pair.status()["round"])
    flower.flwr("stop", stopped, "test")
    assert flower.ended(stopped)["status"] == "finished:stopped"
    return round_id


def test_the_example_runs_in_the_simulation_and_after_a_run_that_was_stopped(
    flower: Flower, pair: Pair
) -> None:
    flower.superlink("--simulation")
    left_open = stop_in_training(flower, pair)
    two_rounds(flower, pair)
    assert pair.status(round_id=left_open)["state"] == "failed"


def test_the_example_runs_with_a_superlink_and_supernodes(flower: Flower, pair: Pair) -> None:
    flower.superlink()
    flower.supernodes()
    stopped = stop_in_training(flower, pair)
    # here the strategy has the time to end its round itself
    wait_until(lambda: pair.status(round_id=stopped)["state"] == "failed", LIMIT_S)
    assert "the run was stopped" in pair.status(round_id=stopped)["reason"]
    # SuperNodes go on training for a run that was stopped
    flower.supernodes()
    two_rounds(flower, pair)
    # a run without a result says why where people look
    ended = flower.ended(flower.run(**{"coordinator": "/nowhere/coordinator.toml"}))
    assert ended["status"] == "finished:failed"
    assert "/nowhere/coordinator.toml" in ended["status-details"]
