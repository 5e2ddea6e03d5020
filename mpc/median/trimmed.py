"""The trimmed mean of Yin et al. (ICML 2018, Definition 2): drop the floor(beta n) smallest and the floor(beta n)
largest elements of each coordinate and average the rest.

As for `pairwise`, pos_i is client i's position in the strict order of `order`. It is kept if m <= pos_i < n - m with m
= floor(beta n), two comparisons on the small ring of positions whose XOR is the flag, and sum_i flag_i w_i is computed
obliviously by multiplexers. Positions of values in range (see `order`) are a permutation, so exactly n - 2m clients are
kept, ties or not, and the sum is that of the elements of ranks m+1..n-m whichever of equal elements are kept.

Opened is the sum alone, which is the mean times the public n - 2m: nothing is said of who was dropped. The mean is
exact on fixed-point values up to the final division. Values must leave headroom for the sum (`RoundParams.headroom`).

Cost: that of the pairwise median, with two comparisons on ceil(log2 n) + 1 bits a client instead of one equality.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc import ring
from securemedian.mpc.boolean import multiplex, multiplex_demand
from securemedian.mpc.correlations.base import Demand
from securemedian.mpc.median import order
from securemedian.mpc.party import Party


def dropped(clients: int, trim: float) -> int:
    """m = floor(beta n), at either end. The product is rounded first: 0.29 * 100 is 29, not 28.999..."""
    return int(round(trim * clients, 9))


def kept_sum(party: Party, values: NDArray[Any], bits: int, trim: float) -> NDArray[Any]:
    """Shares of the sum of the n - 2m kept values in each coordinate.

    `values`: shares of the inputs, shape (n, d), ring dtype of `bits`; 0 <= `trim` < 1/2.
    """
    clients, dim = values.shape
    ends = dropped(clients, trim)
    if ends == 0:
        return ring.reduce(values.sum(axis=0, dtype=values.dtype), bits)
    small = order.signed_bits(clients)
    positions = order.positions(party, values, bits, [1] * clients, small)
    low = np.full((clients, 1), ends)
    kept = order.within(party, positions, low, clients - low, small)
    terms = multiplex(party, kept, values.reshape(-1), bits).reshape(clients, dim)
    return ring.reduce(terms.sum(axis=0, dtype=terms.dtype), bits)


def demand(dim: int, clients: int, bits: int, trim: float) -> Demand:
    """Correlations of `kept_sum`."""
    if dropped(clients, trim) == 0:
        return Demand()
    small, count = order.signed_bits(clients), clients * dim
    kept = order.within_demand(count, small) + multiplex_demand(count, bits)
    return order.positions_demand(dim, clients, bits, small) + kept
