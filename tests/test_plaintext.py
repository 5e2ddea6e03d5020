"""The demo's plaintext functionality, against the definitions written out one coordinate at a time."""

import math

import numpy as np
import pytest

from mpc import encode
from mpc.params import RoundParams
from scripts import plaintext


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_against_sorting_one_coordinate_at_a_time(n: int) -> None:
    rng = np.random.default_rng(n)
    d, k = 50, math.ceil(n / 2)
    model, width = rng.normal(size=d).astype(np.float32), rng.uniform(0.1, 2, d).astype(np.float32)
    updates = np.round(rng.normal(size=(n, d)), 1)  # ties
    bucketed = plaintext.published(updates, RoundParams("bucketed", d, n, buckets=5), model, width)
    pairwise = plaintext.published(updates, RoundParams("pairwise", d, n, ring_bits=32, fraction_bits=10), model, width)
    for i in range(d):
        bucket = sorted(int(encode.bucketize(update, model[i], width[i], 5)) for update in updates[:, i])[k - 1]
        assert bucketed[i] == np.float32(encode.quantize(np.array(bucket), model[i], width[i], 5))
        assert pairwise[i] == np.float32(math.floor(sorted(updates[:, i])[k - 1] * 1024) / 1024)
        assert plaintext.median(updates)[i] == np.float32(sorted(updates[:, i])[k - 1])
        assert plaintext.mean(updates)[i] == pytest.approx(sum(updates[:, i]) / n)
    assert {bucketed.dtype, pairwise.dtype} == {np.dtype(np.float32)}
