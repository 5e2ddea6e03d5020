"""A run of every method through real daemons, compared with the same in the clear.

tests/test_methods.py computes every variant in process. Here are those that differ in what servers
send, store and sign: weights, dealings, lengths, coins, and who is chosen.
"""

from typing import Any

import numpy as np
import pytest

from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import RoundParams
from tests.daemons import Pair

pytestmark = pytest.mark.slow

DIM = 200
PAIR = {"clients": 7}
# the first one's is lowered to a third
WEIGHTS = {"weights": {f"client-{i}": weight for i, weight in enumerate((30, 1, 2, 3, 4, 5, 6), 1)}}
SHARE = {"method": "reclustered", "clusters": 2, "reclusterings": 3, "trim": 0.34, "eta": 0.5}
RUNS: dict[str, dict[str, Any]] = {
    "bucketed": {"method": "bucketed"},
    "bucketed unverified": {"method": "bucketed", "uploads": "unverified"},
    "krum opened": {"method": "krum", "selection": "opened"},
    "mean weighted": {"method": "mean", "norm_bound": 64.0, **WEIGHTS},
    "pairwise": {"method": "pairwise"},
    "radix ranks": {"method": "radix", "ranks": [1, 7], "quantiles": [0.5]},
    "radix weighted": {"method": "radix", **WEIGHTS},
    "radix neighbours opened": {"method": "radix", "neighbours": 1, "selection": "opened"},
    "reclustered": SHARE,
    "reclustered opened": SHARE
    | {"clustering": "opened", "accept_leak": True, "aggregator": "krum", "clusters": 1},
    "trimmed-mean neighbours": {"method": "trimmed-mean", "neighbours": 1},
    "zeno weighted": {"method": "zeno", "validator": "client-2", "clusters": 1, **WEIGHTS},
}


def test_every_method_has_a_run() -> None:
    """The clients of zoom answer while they wait: tests/test_zoom_clients.py has its rounds."""
    assert {given["method"] for given in RUNS.values()} == {*METHODS} - {"zoom"}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_follows_the_plaintext(pair: Pair, name: str) -> None:
    """Two rounds, the second from the first one's result."""
    given, rng = RUNS[name], np.random.default_rng(3)
    params = RoundParams.from_dict({"dim": DIM, "max_clients": 7, **given})
    start: dict[str, Any] = {"reset": True}
    if params.form.buckets:
        start |= {"model": np.zeros(DIM, np.float32), "bucket_range": {"policy": "coordinate"}}
    model = np.zeros(DIM, np.float32)
    for _ in range(2):
        steps = np.linspace(0, 0.2, DIM) + rng.normal(size=(7, DIM)) * 0.01
        # as long as the others, so that its length does not tell
        steps[6] *= -1
        updates = (model + steps).astype(np.float32)
        round_id = pair.play(updates, **given, **start)
        status, (result, *_) = pair.published_as(round_id, updates)
        assert len(status["included"]) == 7 and pair.status("s1")["coin"] == status["coin"]
        model, start = result, {}
