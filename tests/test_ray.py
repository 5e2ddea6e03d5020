"""Rounds of real daemons whose shards are computed by workers on Ray: the extra `ray`."""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Ray reads this when it is imported: everything here listens at the loopback alone
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
pytest.importorskip("ray", reason="the extra ray is not installed: scripts/test --ray")

from securemedian.laboratory import plaintext
from securemedian.mpc.methods.registry import METHODS
from securemedian.mpc.params import RoundParams
from tests.daemons import SETTINGS, Pair, wait_until
from tests.test_methods import GIVEN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DIM = 1000
EVEN: dict[str, Any] = {"bucket_range": {"policy": "coordinate"}}
# limits for workers that start beside others on two cores
LIMITS = SETTINGS | {"peer_wait_s": 300, "channel_timeout_s": 60, "peer_timeout_s": 20}
START_S = 240.0
# what each method is opened with here
ROUNDS = [{"method": name, **GIVEN.get(name, {})} for name in METHODS]
ROUNDS.append({"method": "bucketed", "uploads": "unverified"})


def engine(**settings: Any) -> str:
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    return "\n\n[engine]\n" + "\n".join(lines) + "\n"


@contextmanager
def on_ray(folder: Path, **settings: dict[str, Any]) -> Iterator[Pair]:
    """Start two servers with these settings of their engines, and stop them with all workers."""
    pair = Pair(folder / "keys", settings=LIMITS)
    for server, own in settings.items():
        pair.configure(server, engine(kind="ray", **own))
    try:
        pair.start("s0", "s1")
        pair.link()
        yield pair
        for server in ("s0", "s1"):
            assert pair.stop(server) == 0
    finally:
        pair.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two servers on local clusters that are not of the same size, with three shards a round."""
    with on_ray(
        tmp_path_factory.mktemp("ray"),
        s0={"workers": 2, "shards": 3},
        s1={"workers": 3},
    ) as started:
        yield started


def updates(dim: int = DIM) -> list[np.ndarray]:
    return [
        np.random.default_rng((dim, i)).normal(0, 0.1, dim).astype(np.float32) for i in range(3)
    ]


def run(pair: Pair, values: Sequence[np.ndarray], **params: Any) -> str:
    dim = len(values[0])
    on_buckets = RoundParams.from_dict({"dim": dim, "max_clients": 3, **params}).uses_model
    start: dict[str, Any] = {"model": np.zeros(dim, np.float32), **EVEN} if on_buckets else {}
    round_id = pair.open(max_clients=3, dim=dim, **start, **params)
    for name, value in zip(pair.names, values, strict=True):
        pair.submit(name, value)
    return round_id


def check(pair: Pair, round_id: str, values: Sequence[np.ndarray]) -> dict[str, Any]:
    """Check that a round publishes what its method is in the clear, and return its status."""
    status = pair.wait("published")
    params = RoundParams.from_dict(status["params"])
    included = status["included"]
    placed = np.stack([values[pair.names.index(name)] for name in included])
    weights = [int(name != getattr(params.method, "validator", "")) for name in included]
    published = pair.published(included[0], round_id)
    coin = bytes.fromhex(status["coin"])
    want = plaintext.published(placed, params, published, weights, coin=coin)
    assert np.array_equal(pair.results(round_id), want)
    return status


def workers_of(pair: Pair, server: str) -> list[int]:
    """Return the processes of a server's workers on its own cluster."""
    parents, titles = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
                titles[int(entry.name)] = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])

    def below(process: int) -> bool:
        while process in parents:
            if process == pair._processes[server].pid:
                return True
            process = parents[process]
        return False

    return [each for each, title in titles.items() if b"ray::_RayWorker" in title and below(each)]


def logged(pair: Pair, server: str, name: str) -> list[dict[str, Any]]:
    return [event for event in pair.events(server) if event["event"] == name]


@pytest.mark.parametrize("given", ROUNDS, ids=lambda given: " ".join(map(str, given.values())))
def test_a_round_of_every_method_follows_the_plaintext(pair: Pair, given: dict[str, Any]) -> None:
    values = updates()
    status = check(pair, run(pair, values, **given), values)
    assert status["cost"]["bytes_sent"] > 0 and status["attempt"] == 1
    assert status["progress"] == [0, 0]


def test_workers_are_processes_of_their_own(pair: Pair) -> None:
    for server, count in (("s0", 2), ("s1", 3)):
        assert len(workers_of(pair, server)) == count
        (there,) = logged(pair, server, "workers-there")
        assert (there["workers"], there["shards"]) == (count, 3)


@pytest.mark.parametrize("server", ["s0", "s1"])
def test_a_worker_that_is_killed_costs_its_shards_alone(pair: Pair, server: str) -> None:
    values = updates(100_000)
    lost = len(logged(pair, "s0", "shard-lost"))
    round_id = run(pair, values, method="radix")
    wait_until(lambda: pair.status(server)["state"] == "running", START_S)
    victim, *others = workers_of(pair, server)
    os.kill(victim, signal.SIGKILL)
    status = check(pair, round_id, values)
    # the round was not begun anew, but a shard was
    assert status["attempt"] == 1
    assert len(logged(pair, "s0", "shard-lost")) > lost
    wait_until(lambda: len(workers_of(pair, server)) == len(others) + 1)
    # and the session goes on
    values = updates()
    check(pair, run(pair, values, method="pairwise"), values)
