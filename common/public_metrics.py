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
        raise InputError(f"{len(metrics)} public metrics, and a round takes {MOST_METRICS} of each")
    return {_name(name): _number(name, value) for name, value in metrics.items()}


def _name(name: object) -> str:
    if not (isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()):
        raise InputError(
            f"the name of a public metric has 1 to {LONGEST_NAME} printable characters, "
            f"not {quoted(name)}"
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
        f"the public metric {quoted(name)} must be a finite number, not {quoted(value)}"
    )
