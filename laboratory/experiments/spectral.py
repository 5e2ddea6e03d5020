"""The spectral filter, Cronus' own robust mean of predictions, in the clear as a yardstick.

It is that of Diakonikolas, Kamath, Kane, Li, Moitra and Stewart, "Being Robust (in High Dimensions)
Can Be Practical" (ICML 2017), with which Chang et al., "Cronus" (2019), combine the predictions of
each sample: points far from the mean show as a large eigenvalue of the covariance, and stick out
along its eigenvector.
"""

from math import ceil

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.errors import InputError

# Cronus' practical variant drops points twice, half of the faulty fraction each time
PASSES = 2


def filtered_mean(
    predictions: NDArray[np.float32], f: int, classes: int, bound: float | None = None
) -> NDArray[np.float64]:
    """Return the robust mean (d,) of n clients' predictions (n, d), of which f may be faulty.

    For each sample, a point in `classes` dimensions per client: up to twice, while the largest
    eigenvalue of the covariance is above `bound` (by default f / n, as in the paper), the
    ceil(f / 2) points farthest from the mean along its eigenvector are dropped. Raises InputError
    if no point would be left.
    """
    n, drop = len(predictions), ceil(f / 2)
    if n <= PASSES * drop:
        raise InputError(
            f"the spectral filter drops up to {PASSES * drop} points for f = {f} faulty "
            f"clients: {n} points; give more"
        )
    limit = f / n if bound is None else bound
    # (samples, clients, classes)
    points = predictions.reshape(n, -1, classes).transpose(1, 0, 2).astype(np.float64)
    kept = np.ones(points.shape[:2], np.bool_)
    for _ in range(PASSES if drop else 0):
        weights = kept / kept.sum(axis=1, keepdims=True)
        centred = points - np.einsum("sn,snc->sc", weights, points)[:, None]
        covariances = np.einsum("sn,sni,snj->sij", weights, centred, centred)
        values, vectors = np.linalg.eigh(covariances)
        # eigenvalues ascend
        along = np.abs(np.einsum("snc,sc->sn", centred, vectors[:, :, -1]))
        farthest = np.argsort(np.where(kept, -along, np.inf), axis=1, kind="stable")[:, :drop]
        dropped = np.zeros_like(kept)
        np.put_along_axis(dropped, farthest, True, axis=1)
        kept &= ~(dropped & (values[:, -1] > limit)[:, None])
    means = np.einsum("sn,snc->sc", kept / kept.sum(axis=1, keepdims=True), points)
    return np.asarray(means.reshape(-1))
