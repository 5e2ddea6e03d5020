"""The differential privacy of a round with noise, and of many rounds together.

A client adds a vector of length B at most to a sum with noise N_Z(0, (z B)^2) in every coordinate.
For the presence of that client the sum is rho-zCDP with rho = 1 / (2 z^2). The rho of rounds on the
same clients add up (Canonne, Kamath and Steinke, NeurIPS 2020, theorem 14).
"""

import math

# The delta of every (epsilon, delta) that is told.
DELTA = 1e-5


def rho_of(noise_multiplier: float) -> float:
    """Return the rho of one round whose noise is `noise_multiplier` times the bound."""
    return 1 / (2 * noise_multiplier**2)


def signal_to_noise(noise_multiplier: float, clients: int, dim: int) -> float:
    """Return how long a mean can be at most, in lengths of the noise of both servers in it.

    It has the length of the bound where all clients' vectors have, and point the same way.
    """
    return clients / (noise_multiplier * math.sqrt(2 * dim))


def told_epsilon(rho: float) -> float | None:
    """Return the epsilon that people are told, or None where nothing bounds it."""
    return None if math.isinf(rho) else epsilon_of(rho)


def epsilon_of(rho: float, delta: float = DELTA) -> float:
    """Return the least epsilon for which rho-zCDP is known to give (epsilon, delta)-DP.

    That is the minimum over the order a > 1 of the bound of proposition 12 there,

        a rho + log(1 - 1/a) - log(delta a) / (a - 1),

    the range of a - 1 in the search, from 2^-20 to 2^60: any order gives a valid bound.
    """
    if rho == 0 or math.isinf(rho):
        return rho

    def bound(log2: float) -> float:
        above = 2.0**log2
        order = 1 + above
        return order * rho - math.log1p(1 / above) - math.log(delta * order) / above

    low, high = -20.0, 60.0
    # it falls, then rises
    for _ in range(200):
        third = (high - low) / 3
        if bound(low + third) < bound(high - third):
            high -= third
        else:
            low += third
    return max(bound(low), 0.0)
