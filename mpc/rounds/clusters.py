"""Random partitions of clients into clusters, their sums, and what these sums reveal.

A partition of n clients into c clusters is drawn from a seed that was tossed for. In matrix form
the sums over the clusters of R partitions are A X, with the updates X (n, d). The entries of A (R
c, n) are zeros and ones. A party with the sums can compute every linear combination of A's rows: if
the unit vector e_i is one, the sums reveal client i's update.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import factorial

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.protocols.dealing import Permutation
from securemedian.mpc.protocols.prg import Stream

# per cluster of a partition, the places of its clients
Members = list[NDArray[np.intp]]
# eigenvalues, and distances of projections from 1, that are rounding errors
_TOLERANCE = 1e-9
# beyond so many clients there are too many partitions to count
FEW = 32


def draw(seed: bytes, clients: int, clusters: int, partitions: int) -> list[Members]:
    """Return who is in each cluster of each partition, drawn uniformly from a seed of 16 bytes.

    The first `clients` mod `clusters` clusters have one client more than the others.
    """
    orders = [
        Permutation.uniform(Stream(seed, nonce=number), clients).order.astype(np.intp)
        for number in range(partitions)
    ]
    return [[order[cluster::clusters] for cluster in range(clusters)] for order in orders]


def divisions(clients: int, clusters: int) -> int:
    """Return how many partitions there are, or 2^FEW if there are more than anybody draws."""
    if clients > FEW and 1 < clusters < clients:
        return 1 << FEW
    small, larger = divmod(clients, clusters)
    smaller = clusters - larger
    ordered = factorial(clients) // (factorial(small) ** clusters * (small + 1) ** larger)
    return ordered // (factorial(larger) * factorial(smaller))


@dataclass(frozen=True)
class Exposure:
    """The leakage of the sums over all clusters."""

    # of the R c x n matrix
    rank: int
    # the places of the clients whose updates follow
    clients: list[int]


@lru_cache(maxsize=16)
def exposed(seed: bytes, clients: int, clusters: int, partitions: int) -> Exposure:
    """Return which clients' updates the sums over the clusters drawn from `seed` reveal.

    The projection onto the space of the rows of A, A^+ A, leaves e_i as it is exactly if e_i is in
    it. It is made of the eigenvectors of A^T A, which is n x n, with eigenvalues above 0.
    """
    gram = np.zeros((clients, clients))
    for members in draw(seed, clients, clusters, partitions):
        for those in members:
            gram[np.ix_(those, those)] += 1
    values, vectors = np.linalg.eigh(gram)
    known = vectors[:, values > _TOLERANCE * values[-1]]
    projected = (known**2).sum(axis=1)
    return Exposure(known.shape[1], np.flatnonzero(projected > 1 - _TOLERANCE).tolist())
