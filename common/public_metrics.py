"""Public metrics: unchecked numbers that a client sends along, in the clear, for all to read."""

import math
from collections.abc import Mapping
from numbers import Real

from securemedian.mpc.errors import InputError, quoted

# per client and round, and characters in the name of one
MOST_METRICS = 16
LONGEST_NAME = 64


def check_public_metrics(metrics: Mapping[str, object]) -> dict[str, float]:
    """Return finite numbers by name, as they are sent. Raises InputError for anything else."""
    if len(metrics) > MOST_METRICS:
        raise InputError(f"too many public metrics: {len(metrics)}; send at most {MOST_METRICS}")
    return {_name(name): _number(name, value) for name, value in metrics.items()}


def _name(name: object) -> str:
    if not (isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()):
        raise InputError(
            f"invalid name of a public metric: {quoted(name)}; use 1 to {LONGEST_NAME} "
            "printable characters"
        )
    return name


def _number(name: str, value: object) -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise InputError(
        f"the public metric {quoted(name)} is not a finite number: {quoted(value)}; leave it "
        "out or correct it"
    )
