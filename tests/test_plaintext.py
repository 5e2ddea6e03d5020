"""The demo's plaintext functionality, against the definitions, coordinate by coordinate."""

import math

import numpy as np
import pytest

from securemedian.laboratory import plaintext
from securemedian.mpc.rounds.encode import UniformBuckets
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.uniform import CoordinateRange


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_against_sorting_one_coordinate_at_a_time(n: int) -> None:
    rng = np.random.default_rng(n)
    d, k = 50, math.ceil(n / 2)
    model, width = rng.normal(size=d).astype(np.float32), rng.uniform(0.1, 2, d).astype(np.float32)
    around = Published(model, width, CoordinateRange())
    # ties
    updates = np.round(rng.normal(size=(n, d)), 1)
    (bucketed,) = plaintext.published(
        updates, RoundParams(Bucketed(buckets=5), dim=d, max_clients=n), around
    )
    (pairwise,) = plaintext.published(
        updates, RoundParams(Pairwise(ring_bits=32, fraction_bits=10), dim=d, max_clients=n), around
    )
    radix = RoundParams(Radix(quantiles=[0.01, 1.0]), dim=d, max_clients=n)
    trimmed = RoundParams(TrimmedMean(fraction_bits=10, trim=0.3), dim=d, max_clients=n)
    ranked = plaintext.published(updates, radix, Published())
    (mean_of_kept,) = plaintext.published(updates, trimmed, Published())
    weighted = RoundParams(Radix(), dim=d, max_clients=n)
    heavy = plaintext.published(updates, weighted, Published(), [1] * (n - 1) + [n + 1])[0]
    # more than half of the weight decides alone
    assert np.array_equal(heavy, updates[-1].astype(np.float32))
    for i in range(d):
        assert ranked[:, i].tolist() == [
            np.float32(min(updates[:, i])),
            np.float32(max(updates[:, i])),
        ]
        kept = sorted(math.floor(x * 1024) for x in updates[:, i])[int(0.3 * n) : n - int(0.3 * n)]
        assert mean_of_kept[i] == np.float32(sum(kept) / 1024 / len(kept))
        bucket = sorted(
            int(UniformBuckets(width[i], 5).bucketize(update, model[i])) for update in updates[:, i]
        )[k - 1]
        assert bucketed[i] == np.float32(
            UniformBuckets(width[i], 5).quantize(np.array(bucket), model[i])
        )
        assert pairwise[i] == np.float32(math.floor(sorted(updates[:, i])[k - 1] * 1024) / 1024)
        assert plaintext.median(updates)[i] == np.float32(sorted(updates[:, i])[k - 1])
        assert plaintext.mean(updates)[i] == pytest.approx(sum(updates[:, i]) / n)
    assert {bucketed.dtype, pairwise.dtype} == {np.dtype(np.float32)}
