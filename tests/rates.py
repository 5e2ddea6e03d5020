"""Rates that something passes with, against those that are predicted."""

import math

# how seldom a right prediction is refused
FALSE_ALARM = 1e-6


def check_rate(hits: int, runs: int, predicted: float) -> None:
    """Check that a chance of `predicted` gives so many hits, or more, or so many, or fewer."""
    chances = [
        math.exp(
            math.lgamma(runs + 1)
            - math.lgamma(k + 1)
            - math.lgamma(runs - k + 1)
            + k * math.log(predicted)
            + (runs - k) * math.log1p(-predicted)
        )
        for k in range(runs + 1)
    ]
    rarer = min(sum(chances[: hits + 1]), sum(chances[hits:]))
    assert rarer > FALSE_ALARM / 2, f"{hits} of {runs}, and {predicted * runs:.1f} are predicted"
