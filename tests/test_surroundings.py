"""Clients between real servers, in surroundings that others have met: forks, few descriptors."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.common.durable import is_locked, lock_folder
from securemedian.coordinator.coordinator import Coordinator
from securemedian.mpc.errors import ConfigError, LocalProtocolError
from tests.daemons import ROOT, WAIT_S, Pair, running, wait_until

pytestmark = pytest.mark.slow

MODEL = np.array([1.0, -2.0], np.float32)
RADIX: dict[str, Any] = {"method": "radix", "dim": 2, "max_clients": 3, "min_clients": 2}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("surroundings"), clients=3)
    with running(made):
        yield made


def config(pair: Pair, name: str = "client-1", **changed: Any) -> ClientConfig:
    loaded = ClientConfig.load(pair.folder / f"{name}.toml")
    return replace(loaded, poll_interval_s=0.02, wait_timeout_s=WAIT_S, **changed)


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
        assert "LocalProtocolError: what keeps" in said_in_a_fork(
            lambda: client.store({"n": 2}, {})
        )
    with Client(config(pair, state_dir=str(pair.folder / "forked"))) as client:
        assert client.stored[0] == {"n": 1}


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_client_is_not_sent_to_workers_of_torch(pair: Pair, method: str) -> None:
    torch = pytest.importorskip("torch")

    class Rows(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            return client.status().round

    with Client(config(pair)) as client:
        if method == "fork":
            loader = torch.utils.data.DataLoader(
                Rows(), num_workers=1, multiprocessing_context=method, timeout=WAIT_S
            )
            with pytest.raises(LocalProtocolError, match="a fork of it"):
                list(loader)
        else:
            # another way than a fork needs it pickled
            with pytest.raises(TypeError, match="make one in the process that uses it"):
                pickle.dumps(client)
        client.status()


def test_a_loader_with_workers_in_the_training_is_no_obstacle(pair: Pair) -> None:
    torch = pytest.importorskip("torch")
    round_id = pair.open(model=MODEL, reset=True, **RADIX)
    rows = torch.utils.data.TensorDataset(torch.ones(4, 2))

    def train(model: Any) -> None:
        loader = torch.utils.data.DataLoader(rows, num_workers=2, multiprocessing_context="fork")
        model += np.float32(sum(len(batch) for (batch,) in loader))

    pair.submit("client-2", MODEL)
    pair.submit("client-3", MODEL)
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
        with pytest.raises(ConfigError, match="another process runs on the state folder"):
            Client(given)
        client.close()
        Client(given).close()
        assert worker.is_alive()
    finally:
        worker.kill()
        worker.join()


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
