"""Rounds of real daemons whose shards are computed by workers on Ray: the extra `ray`."""

import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Ray reads this when it is imported: everything here listens at the loopback alone
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
pytest.importorskip("ray", reason="the extra ray is not installed: scripts/test --ray")

from securemedian.mpc.errors import ParametersDiffer
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import RoundParams
from tests.daemons import SETTINGS, Pair, wait_until
from tests.processes import workers_below
from tests.test_methods import GIVEN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DIM = 1000
# limits for workers that start beside others on two cores
LIMITS = SETTINGS | {"peer_wait_s": 300, "channel_timeout_s": 60, "peer_timeout_s": 20}
START_S = 240.0
# a server that waits for a cluster for 5 s instead of 90
HASTY = (
    "-c",
    "from securemedian.cli import main; from securemedian.servers.computing import ray; "
    "ray.INIT_S = 5; main()",
)
# the options with which each method is opened here
VALIDATOR = "client-1"
MADE_WITH = GIVEN | {"zeno": {"validator": VALIDATOR, "clusters": 1}}
# servers refuse zoom on workers (tests/test_policy.py)
ROUNDS = [{"method": name, **MADE_WITH.get(name, {})} for name in METHODS if name != "zoom"]
ROUNDS.append({"method": "bucketed", "uploads": "unverified"})


def engine(**settings: Any) -> str:
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    return "\n\n[engine]\n" + "\n".join(lines) + "\n"


@contextmanager
def on_ray(folder: Path, made: Pair | None = None, **settings: dict[str, Any]) -> Iterator[Pair]:
    """Start two servers with these settings of their engines, and stop them with all workers."""
    pair = made or Pair(folder, settings=LIMITS)
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
def pair() -> Iterator[Pair]:
    """Start two servers on local clusters of different sizes, with three shards a round."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as made:
        # of servers that were killed
        left = [Path(made) / f"{server}-state" / "ray" / "session_left" for server in ("s0", "s1")]
        for folder in left:
            folder.mkdir(parents=True)
        with on_ray(
            Path(made),
            s0={"workers": 2, "shards": 3},
            s1={"workers": 3, "ports": "20000-20200"},
        ) as started:
            assert not any(folder.exists() for folder in left)
            yield started
        # the files of a cluster end with it
        assert not any(folder.parent.exists() for folder in left)


def updates(dim: int = DIM) -> list[np.ndarray]:
    return [
        np.random.default_rng((dim, i)).normal(0, 0.1, dim).astype(np.float32) for i in range(3)
    ]


def run(pair: Pair, values: Sequence[np.ndarray], **params: Any) -> str:
    dim = len(values[0])
    start: dict[str, Any] = {"model": np.zeros(dim, np.float32), "reset": True}
    if RoundParams.from_dict({"dim": dim, "max_clients": 3, **params}).form.buckets:
        start["bucket_range"] = {"policy": "coordinate"}
    return pair.play(values, **start, **params)


def workers_of(pair: Pair, server: str) -> list[int]:
    """Return the processes of a server's workers on its own cluster."""
    return workers_below(pair.pid(server) or 0)


def logged(pair: Pair, server: str, name: str) -> list[dict[str, Any]]:
    return [event for event in pair.events(server) if event["event"] == name]


@pytest.mark.parametrize("given", ROUNDS, ids=lambda given: " ".join(map(str, given.values())))
def test_a_round_of_every_method_follows_the_plaintext(pair: Pair, given: dict[str, Any]) -> None:
    values = updates()
    status, _ = pair.published_as(run(pair, values, **given), values)
    assert status["cost"]["bytes_sent"] > 0 and status["attempt"] == 1
    assert status["progress"] == [0, 0]


def test_workers_are_processes_of_their_own(pair: Pair) -> None:
    for server, count in (("s0", 2), ("s1", 3)):
        assert len(workers_of(pair, server)) == count
        (there,) = logged(pair, server, "workers-there")
        assert (there["workers"], there["shards"]) == (count, 3)
        # ray writes beside what the server stores, and no node may be asked without a token
        assert list((pair.folder / f"{server}-state" / "ray").glob("session_*/logs"))


def test_a_folder_too_long_for_rays_sockets_is_refused(short: Path) -> None:
    folder = short / ("long" * 6)
    with (
        pytest.raises(AssertionError, match="too long for the names of Ray's sockets"),
        on_ray(folder, s0={"workers": 1}, s1={"workers": 1}),
    ):
        pass


@pytest.mark.parametrize("server", ["s0", "s1"])
def test_a_worker_that_is_killed_costs_its_shards_alone(pair: Pair, server: str) -> None:
    values = updates(100_000)
    lost = len(logged(pair, "s0", "shard-lost"))
    ended = len(logged(pair, server, "worker-lost"))
    round_id = run(pair, values, method="radix")
    wait_until(lambda: pair.status(server)["state"] == "running", START_S)
    victim, *others = workers_of(pair, server)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: pair.status()["state"] == "published", START_S)
    status, _ = pair.published_as(round_id, values)
    # the round did not begin again, but a shard did
    assert status["attempt"] == 1
    assert len(logged(pair, "s0", "shard-lost")) > lost
    # whatever it was computing
    assert len(logged(pair, server, "worker-lost")) == ended + 1
    wait_until(lambda: len(workers_of(pair, server)) == len(others) + 1, START_S)
    # and the session goes on
    values = updates()
    pair.published_as(run(pair, values, method="pairwise"), values)


# Clusters of several nodes


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Start a cluster whose head has no room for workers, and one node with room for one."""
    from ray.cluster_utils import Cluster

    made = Cluster()
    made.add_node(num_cpus=0, include_dashboard=False)
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()


@pytest.fixture
def alone(short: Path) -> Iterator[Pair]:
    made = Pair(short, settings=LIMITS)
    try:
        yield made
    finally:
        made.close()


def test_a_node_that_dies_costs_its_shards_alone(nodes: Any, short: Path) -> None:
    second = nodes.add_node(num_cpus=1)
    with on_ray(
        short,
        s0={"address": nodes.address, "insecure": True, "workers": 2},
        s1={"workers": 1, "shards": 2},
    ) as pair:
        (there,) = logged(pair, "s0", "workers-there")
        assert there["nodes"] == 3
        values = updates(100_000)
        round_id = run(pair, values, method="radix")
        wait_until(lambda: pair.status()["state"] == "running", START_S)
        nodes.remove_node(second, allow_graceful=False)
        wait_until(lambda: pair.status()["state"] == "published", START_S)
        # nothing takes the place of its worker: the other one has all shards
        assert pair.published_as(round_id, values)[0]["attempt"] == 1
        assert logged(pair, "s0", "shard-lost")
        values = updates()
        pair.published_as(run(pair, values, method="pairwise"), values)


# Wrong configurations


def failing(pair: Pair, program: Sequence[str] = (), **settings: Any) -> str:
    """Start S0 with settings of its engine that it cannot have, and return what it says."""
    pair.configure("s0", engine(kind="ray", **settings))
    begun = time.monotonic()
    pair.start("s0", program=program, until="listening")
    assert pair.ended("s0", START_S) == 2
    assert time.monotonic() - begun < START_S / 2
    return pair.output("s0").strip().rpartition("\n")[2]


def test_an_address_where_nothing_is_is_named(alone: Pair) -> None:
    said = failing(alone, address="127.0.0.1:1", insecure=True)
    assert "nothing answers at [engine] address: 127.0.0.1:1 (Connection refused)" in said
    assert "ray start --head" in said


def test_a_cluster_that_everybody_may_use_is_refused(alone: Pair, nodes: Any) -> None:
    # before it listens
    with pytest.raises(AssertionError, match="without RAY_AUTH_MODE=token and RAY_USE_TLS=1"):
        failing(alone, address=nodes.address)


def test_an_address_of_something_else_is_named(alone: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        said = failing(alone, HASTY, address=address, insecure=True)
    assert "has not let this server in within 5 s" in said
    assert f"the Ray cluster at {address}" in said


def test_a_cluster_without_room_is_named(alone: Pair, nodes: Any) -> None:
    said = failing(alone, address=nodes.address, insecure=True, workers=5)
    assert (
        f"the Ray cluster at {nodes.address} has fewer CPUs than [engine] workers = 5 take: 1;"
        in said
    )
    assert "lower workers, or add nodes" in said


def test_a_peer_that_computes_on_threads_is_named(alone: Pair) -> None:
    alone.configure("s0", engine(kind="ray", workers=1, shards=2))
    alone.start("s0", "s1")
    alone.link()
    for server, here, there in (("s0", "ray", "threads"), ("s1", "threads", "ray")):
        problem = alone.caller("coordinator", server).ask("info").fields["peer_problem"]
        assert f"engine: '{here}' here, '{there}' there" in problem
    with pytest.raises(ParametersDiffer, match="shards: 2 here, None there"):
        alone.open(method="pairwise", dim=DIM, max_clients=3)
    for server in ("s0", "s1"):
        assert alone.stop(server) == 0
