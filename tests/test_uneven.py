"""The experiment on five sites of different sizes: how records are shared out, and plain rules."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from securemedian import cli
from securemedian.laboratory import data
from securemedian.laboratory.experiments import aggregation, uneven
from securemedian.mpc.rounds.methods.base import Clear, Published
from securemedian.mpc.rounds.params import RoundParams
from tests.conftest import needs

needs("torch")


def test_sites_have_their_parts_and_no_record_is_at_two() -> None:
    digits = data.load(None, "digits")
    shared = uneven.shared_out(digits, 1)
    assert shared.owners is not None and shared.holders == ("40 %", "25 %", "18 %", "12 %", "5 %")
    count = min(len(digits.labels), uneven.MOST)
    sizes = np.bincount(shared.owners)
    assert sizes.sum() == count and np.abs(sizes - np.array(uneven.SITES) * count / 100).max() < 1
    assert len(np.unique(shared.images, axis=0)) == len(np.unique(shared.images.round(4), axis=0))
    other = uneven.shared_out(digits, 2)
    assert not np.array_equal(shared.labels, other.labels)
    assert abs(float(shared.images.mean())) < 0.05


@pytest.mark.parametrize("method", uneven.RULES)
def test_a_method_computes_its_rule_where_nobody_is_left_out(method: str) -> None:
    """Allow for the fixed point and, with buckets, their width."""
    rng = np.random.default_rng(1)
    updates = rng.normal(size=(5, 40)) + rng.normal(size=40)
    updates[2] *= 3
    params = RoundParams.from_dict(
        {"dim": 40, "max_clients": 5} | aggregation.SECURE[method].options_for(1, 5)
    )
    want = uneven.RULES[method](updates, 1)
    if method == "bucketed":
        assert np.array_equal(want, uneven.RULES["radix"](updates, 1))
        return
    clear = Clear(updates, [1] * 5, Published(coin=bytes(32)), 5)
    assert np.allclose(params.method.in_the_clear(clear)[0], want, atol=1e-4)


def test_krum_averages_whom_a_search_finds() -> None:
    updates = np.random.default_rng(2).normal(size=(7, 5))
    f, scores = 2, []
    for at in range(7):
        others = [((updates[at] - updates[j]) ** 2).sum() for j in range(7) if j != at]
        scores.append(min(sum(some) for some in combinations(others, 7 - f - 2)))
    want = updates[np.argsort(scores)[: 7 - f]].mean(axis=0)
    assert np.allclose(uneven.multi_krum(updates, f), want)


@pytest.mark.release
def test_nobody_honest_is_left_out_and_no_round_fails(tmp_path: Path) -> None:
    options = ["--seeds", "1", "--rounds", "3", "--dataset", "digits", "--out", str(tmp_path)]
    options += ["--methods", "multi-krum-service,trimmed-mean-service"]
    assert cli.main(["experiment", "uneven", *options]) == 0
    found = json.loads((tmp_path / "uneven-digits.json").read_text())["results"]
    krum, trimmed, fedavg = found
    for row in (krum, trimmed):
        assert row["failed"] == row["left out"] == 0 and float(row["gap"]) < 2
    assert fedavg["method"] == "FedAvg" and float(fedavg["no fault"]) > float(fedavg["40 %"])
    assert cli.main(["experiment", "uneven", *options[:-2], "--methods", "pairwise"]) != 0
