"""Clients between real servers, in surroundings that others have met: forks, few descriptors."""

import asyncio
import errno
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian import cli
from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.common.durable import is_locked, lock_folder
from securemedian.coordinator.coordinator import Coordinator
from securemedian.mpc.errors import ChannelTimeout, ConfigError, LocalProtocolError, NotFinite
from securemedian.plugins import rounds
from tests.daemons import ROOT, WAIT_S, Pair, in_background, wait_until

pytestmark = pytest.mark.slow

MODEL = np.array([1.0, -2.0], np.float32)
RADIX: dict[str, Any] = {"method": "radix", "dim": 2, "max_clients": 3, "min_clients": 2}


def config(pair: Pair, name: str = "client-1", **changed: Any) -> ClientConfig:
    return pair.config(name, wait_timeout_s=WAIT_S, **changed)


def waits_for_one(pair: Pair) -> str:
    """Open a round for which only client-1 has still to upload, and return its id."""
    round_id = pair.open(model=MODEL, reset=True, **RADIX)
    for name in ("client-2", "client-3"):
        pair.submit(name, MODEL)
    return round_id


def said_in_a_fork(act: Callable[[], object]) -> str:
    """Return which error `act` raises in a fork of this process, or "nothing"."""

    def run() -> None:
        try:
            act()
            said = "nothing"
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        out.send(said)

    context = multiprocessing.get_context("fork")
    back, out = context.Pipe(duplex=False)
    child = context.Process(target=run)
    child.start()
    try:
        assert back.poll(WAIT_S), "the fork hangs"
        said: str = back.recv()
        return said
    finally:
        child.join(WAIT_S)
        child.kill()
        child.join()


def test_a_client_made_before_a_fork_says_so_and_stays_usable(pair: Pair) -> None:
    with Client(config(pair)) as client, Coordinator(config(pair, "coordinator")) as coordinator:
        for member in (client, coordinator):
            # before and after it has connected
            for _ in range(2):
                said = said_in_a_fork(member.status)
                assert said.startswith("LocalProtocolError: the connection to S0 at tcp://")
                assert f"was made by process {os.getpid()}, and this is process" in said
                member.status()
            assert said_in_a_fork(member.close) == "nothing"
            member.status()
        # the fork makes its own
        other = config(pair, "client-2", state_dir="")
        assert said_in_a_fork(lambda: Client(other).status()) == "nothing"


def test_a_fork_changes_nothing_of_what_is_kept(pair: Pair) -> None:
    with Client(config(pair, state_dir=str(pair.folder / "forked"))) as client:
        client.store({"n": 1}, {})
        assert "LocalProtocolError: the journal" in said_in_a_fork(
            lambda: client.store({"n": 2}, {})
        )
    with Client(config(pair, state_dir=str(pair.folder / "forked"))) as client:
        assert client.stored[0] == {"n": 1}


def test_a_client_is_not_sent_to_workers_of_torch(pair: Pair) -> None:
    torch = pytest.importorskip("torch")

    class Rows(torch.utils.data.Dataset):  # type: ignore[name-defined]
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            return client.status().round

    with Client(config(pair)) as client:
        loader = torch.utils.data.DataLoader(
            Rows(), num_workers=1, multiprocessing_context="fork", timeout=WAIT_S
        )
        with pytest.raises(LocalProtocolError, match="a fork of it"):
            list(loader)
        # another way than a fork needs it pickled
        with pytest.raises(TypeError, match="make one in the process that uses it"):
            pickle.dumps(client)
        client.status()


def test_a_loader_with_workers_in_the_training_is_no_obstacle(pair: Pair) -> None:
    torch = pytest.importorskip("torch")
    round_id = waits_for_one(pair)
    rows = torch.utils.data.TensorDataset(torch.ones(4, 2))

    def train(model: Any) -> None:
        loader = torch.utils.data.DataLoader(rows, num_workers=2, multiprocessing_context="fork")
        model += np.float32(sum(len(batch) for (batch,) in loader))

    model = MODEL.copy()
    folder = str(pair.folder / "loader")
    with Client(config(pair, state_dir=folder)) as client:
        assert client.fit(model, train, rounds=1, report=lambda text: None) == 1
    assert client.sent[-1].round_id == round_id and model.tolist() == MODEL.tolist()


def test_a_forked_worker_that_lives_on_does_not_hold_the_state_folder(pair: Pair) -> None:
    given = config(pair, state_dir=str(pair.folder / "held"))
    context = multiprocessing.get_context("fork")
    client = Client(given)
    worker = context.Process(target=time.sleep, args=(WAIT_S,), daemon=True)
    worker.start()
    try:
        # a worker that ends takes nothing from who is left
        assert said_in_a_fork(client.close) == "nothing"
        with pytest.raises(ConfigError, match="another Client of this process has the state"):
            Client(given)
        client.close()
        Client(given).close()
        assert worker.is_alive()
    finally:
        worker.kill()
        worker.join()


def test_a_lock_ends_with_close_though_its_descriptor_lives_on(tmp_path: Path) -> None:
    """Close it as in a fork that Python does not know of."""
    lock = lock_folder(tmp_path, "locked")
    other = os.dup(lock.fileno())
    try:
        assert is_locked(tmp_path)
        lock.close()
        assert not is_locked(tmp_path)
    finally:
        os.close(other)


def test_a_lock_ends_with_its_process_though_a_fork_lives_on(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; from pathlib import Path\n"
        "from securemedian.common.durable import lock_folder\n"
        f"lock = lock_folder(Path({str(tmp_path)!r}), 'locked')\n"
        f"child = os.fork() or time.sleep({WAIT_S})\n"
        "print(child, flush=True)\n"
        f"time.sleep({WAIT_S})\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT)
    assert owner.stdout
    child = int(owner.stdout.readline())
    try:
        assert is_locked(tmp_path)
        owner.kill()
        owner.wait(WAIT_S)
        os.kill(child, 0)
        wait_until(lambda: not is_locked(tmp_path))
        lock_folder(tmp_path, "locked").close()
    finally:
        owner.kill()
        os.kill(child, signal.SIGKILL)


def run_with(descriptors: int, script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python code in a process that may open so many descriptors."""
    limited = (
        "import resource; from pathlib import Path; import sys\n"
        "from securemedian.clients.client import Client\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, {descriptors}))\n{script}"
    )
    command = [sys.executable, "-c", limited, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)


def test_many_clients_of_one_process_share_a_context_and_take_few_descriptors(pair: Pair) -> None:
    given = config(pair, state_dir="")
    before = len(os.listdir("/proc/self/fd"))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    count = 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    clients: list[Client] = []
    try:
        for _ in range(count):
            clients.append(Client(given))
        # 171 were too many for one context of zmq
        assert clients[-1].status() is not None
        for client in clients[:10]:
            client.status()
        assert len(os.listdir("/proc/self/fd")) - before <= 8 * count + 12
    finally:
        for client in clients:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_with_few_descriptors_is_told_how_many_a_client_needs(pair: Pair) -> None:
    path = pair.folder / "few.toml"
    lines = (pair.folder / "client-1.toml").read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith("state_dir")))
    made = run_with(
        20,
        "made = []\nfor _ in range(9): made.append(Client.from_config(sys.argv[1]))",
        str(path),
    )
    assert made.returncode == 1, made.stderr
    error = made.stderr.splitlines()[-1]
    assert (
        "NoSocket: a connection to a server needs 9 descriptors, more than this process can"
        in error
    )
    assert "ulimit -n" in error


def test_a_server_with_too_few_descriptors_says_so_and_does_not_start(pair: Pair) -> None:
    for verb in ("serve", "doctor"):
        ended = run_with(
            63,
            "from securemedian.cli import main\nsys.exit(main(sys.argv[1:]))",
            verb,
            str(pair.folder / "s0.toml"),
        )
        said = ended.stdout + ended.stderr
        assert ended.returncode == 2, said
        assert "fewer than the 64 descriptors that it needs: 63;" in said


def fit(pair: Pair, train: Callable[[Any], object], told: list[str], **options: Any) -> int:
    """Take part in one round as client-1, with a new model."""
    with Client(config(pair, state_dir="")) as client:
        return client.fit(np.zeros(2), train, 1, report=told.append, **options)


def left_out(pair: Pair, round_id: str) -> list[str]:
    return [pair.status(server, round_id)["left_out"]["client-1"] for server in ("s0", "s1")]


@pytest.mark.parametrize(
    ("method", "bad"), [("radix", np.nan), ("mean", -np.inf), ("bucketed", np.inf)]
)
def test_a_model_that_is_not_finite_costs_its_client_that_round_alone(
    pair: Pair, method: str, bad: float
) -> None:
    rounds: dict[str, Any] = {"max_clients": 3, "min_clients": 2, "dim": 2, "method": method}
    first = pair.open(model=MODEL, **rounds)
    for name in ("client-2", "client-3"):
        pair.submit(name, MODEL)
    seen: list[Any] = []

    def train(model: Any) -> None:
        seen.append(model.copy())
        if len(seen) == 1:
            model[1] = bad
            # the next round, once this one has ended without waiting for its deadline
            join.append(in_background(follow))

    def follow() -> None:
        wait_until(lambda: pair.status(round_id=first)["state"] == "published")
        pair.open(**rounds)
        for name in ("client-2", "client-3"):
            pair.submit(name, MODEL)

    told: list[str] = []
    join: list[Callable[[], None]] = []
    assert fit(pair, train, told) == 1
    join[0]()
    assert left_out(pair, first) == ["its update has NaN or infinite values"] * 2
    assert any(
        "going on to the next round: the update is not finite: 1 NaN" in line for line in told
    )
    # the next round's model, and nothing of the bad one
    assert np.isfinite(seen[1]).all()
    declined = [one for one in pair.events("s0") if one["event"] == "client-declined"]
    assert declined[-1]["reason"] == "not-finite"


def test_a_bridge_to_another_system_declines_a_model_that_is_not_finite(pair: Pair) -> None:
    first = waits_for_one(pair)
    update = {"layer": np.array([1.0, np.nan], np.float32)}
    with pytest.raises(NotFinite):
        rounds.submit(config(pair, state_dir=""), update, first)
    pair.wait("published")
    assert left_out(pair, first) == ["its update has NaN or infinite values"] * 2


def test_radix_has_words_for_infinite_values(pair: Pair) -> None:
    first = waits_for_one(pair)

    def train(model: Any) -> None:
        model[1] = np.inf

    assert fit(pair, train, []) == 1
    assert pair.status(round_id=first)["left_out"] == {}


def test_an_exception_of_the_training_costs_one_round_if_asked(pair: Pair) -> None:
    first = waits_for_one(pair)
    secret = "patient 4711"

    def train(model: Any) -> None:
        raise ZeroDivisionError(secret)

    told: list[str] = []
    with pytest.raises(ZeroDivisionError):
        fit(pair, train, told)
    assert pair.status(round_id=first)["state"] == "open"
    with pytest.raises(ChannelTimeout):
        fit(pair, train, told, on_error="decline", timeout_s=1.0)
    assert left_out(pair, first) == ["its training failed"] * 2
    assert f"going on to the next round: ZeroDivisionError('{secret}')" in told
    # nothing of its text leaves the client
    for server in ("s0", "s1"):
        assert secret not in pair.output(server)
        assert secret not in str(pair.status(server, first))
    pair.wait("published")
    with pytest.raises(ConfigError, match="invalid on_error: .*; take one of raise, decline"):
        fit(pair, train, told, on_error="ignore")


def test_servers_take_a_reason_by_its_code_alone(pair: Pair) -> None:
    first = pair.open(model=MODEL, reset=True, **RADIX)
    with pytest.raises(
        ConfigError, match="invalid reason: .*; take one of policy, not-finite, training-fai"
    ):
        pair.caller("client-1", "s0").ask("decline", round=first, reason="patient 4711")
    pair.caller("client-1", "s0").ask("decline", round=first, reason="training-failed")
    # as release 1.0 asks
    pair.caller("client-2", "s0").ask("decline", round=first)
    assert pair.status(round_id=first)["left_out"] == {
        "client-1": "its training failed",
        "client-2": "its own policy refuses the round",
    }
    # outlasts a restart
    assert pair.stop("s0") == 0
    pair.start("s0")
    pair.link()
    assert pair.status(round_id=first)["left_out"]["client-1"] == "its training failed"
    pair.caller("coordinator", "s0").ask("abort", round=first, reason="done")


def test_a_full_disk_costs_no_result(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    round_id = waits_for_one(pair)
    update, result, receipt = (tmp_path / name for name in ("u.npy", "r.npy", "r.json"))
    np.save(update, MODEL + 1)
    result.write_bytes(b"older")
    submit = ["submit", str(pair.folder / "client-1.toml"), str(update), "--result", str(result)]
    fetch = ["round", "result", str(pair.folder / "coordinator.toml"), str(result)]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        for command in (submit, fetch):
            assert cli.main(command) == 2
            said = capsys.readouterr().err
            assert f"cannot write the file: {result} (No space left on device); make room" in said
            assert f"run this again with --round {round_id}" in said
            assert result.read_bytes() == b"older" and not (tmp_path / "r.npy.new").exists()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert cli.main([*submit, "--round", round_id, "--receipt", str(receipt)]) == 2
        assert result.read_bytes() == b"older" and not receipt.exists()
    for command in (submit, fetch):
        assert cli.main([*command, "--round", round_id, "--receipt", str(receipt)]) == 0
        assert np.array_equal(np.load(result), MODEL)
        assert receipt.read_text().startswith("{")
        result.unlink()
        receipt.unlink()
    assert cli.main([*submit[:3], "--round", round_id]) == 2
    assert "give --result or --receipt" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no such device")
def test_a_full_standard_output_costs_no_result_and_is_told(pair: Pair, tmp_path: Path) -> None:
    round_id = pair.play([MODEL] * 3, model=MODEL, reset=True, **RADIX)
    pair.wait("published")
    result = tmp_path / "r.npy"
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "securemedian", "round", "result"]
            + [str(pair.folder / "coordinator.toml"), str(result), "--round", round_id],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=WAIT_S,
        )
    assert (ended.returncode, ended.stderr) == (
        1,
        "securemedian: cannot write the output: No space left on device; make room, or choose "
        "another place for it\n",
    )
    assert np.array_equal(np.load(result), MODEL)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no such device")
def test_a_training_goes_on_though_its_output_finds_no_room(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_for_one(pair)
    model = np.zeros(2)
    with suppress(OSError), open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        with Client(config(pair, state_dir="")) as client:
            assert client.fit(model, lambda model: None, 1) == 1
    assert model.tolist() == MODEL.tolist()


def test_a_client_works_beside_an_event_loop_and_on_any_thread(pair: Pair) -> None:
    """Run as in a notebook, whose cells run within a loop, and in other frameworks' servers."""
    round_id = waits_for_one(pair)

    async def cell() -> int:
        assert fit(pair, lambda model: None, []) == 1
        with Client(config(pair, state_dir="")) as client:
            # made on one thread and used on another
            status = await asyncio.to_thread(client.status, round_id)
            return len(status.included)

    assert asyncio.run(cell()) == 3
