"""Rounds of real daemons whose shards are computed by workers on Ray."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="the extra ray is not installed: scripts/test --ray")

from tests.daemons import SETTINGS, Pair, running, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DIM = 1000
MODEL = np.linspace(-0.2, 0.2, DIM, dtype=np.float32)
EVEN: dict[str, Any] = {"bucket_range": {"policy": "coordinate"}}
# workers that start beside others on two cores
LIMITS = SETTINGS | {"peer_wait_s": 300, "channel_timeout_s": 60, "peer_timeout_s": 20}


def engine(**settings: Any) -> str:
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    return "\n\n[engine]\n" + "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two servers on local clusters, with two workers each and three shards a round."""
    made = Pair(tmp_path_factory.mktemp("ray") / "keys", settings=LIMITS)
    for server in ("s0", "s1"):
        made.configure(server, engine(kind="ray", workers=2, shards=3))
    with running(made):
        yield made


def updates(seed: int) -> list[np.ndarray]:
    return [
        MODEL + np.random.default_rng((seed, i)).normal(0, 0.05, DIM).astype(np.float32)
        for i in range(3)
    ]


def run(pair: Pair, values: list[np.ndarray], **params: Any) -> str:
    round_id = pair.open(max_clients=3, dim=DIM, **params)
    for name, value in zip(pair.names, values, strict=True):
        pair.submit(name, value)
    pair.wait("published")
    return round_id


def test_a_verified_round_follows_the_plaintext(pair: Pair) -> None:
    values = updates(1)
    round_id = run(pair, values, method="pairwise")
    median = np.sort(values, axis=0)[1]
    assert np.abs(pair.result(round_id) - median).max() <= 2**-23
    there = [event for event in pair.events("s0") if event["event"] == "workers-there"]
    assert there and there[0]["workers"] == 2 and there[0]["shards"] == 3
