"""A server's own policy: the rounds that it takes part in, whatever a coordinator asks for."""

from dataclasses import dataclass, field
from operator import gt, lt
from typing import Any

from securemedian.mpc.canonical import flat
from securemedian.mpc.errors import ConfigError, PolicyRefused, quoted
from securemedian.mpc.options import Option, check_one_of, options_of
from securemedian.mpc.rounds.exchange import EXCHANGES
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import ROUND_FIELDS, RoundParams

# What a policy can limit besides the parameters of a round: the most values that are opened per
# coordinate, and the rounds of its cohort that have begun within the last hour, this one
# included.
RESULTS, ROUNDS_PER_HOUR = "results", "rounds_per_hour"


def _choices() -> dict[str, list[Any]]:
    """Return by name the values that the options of words and switches can have."""
    found: dict[str, list[Any]] = {"exchange": list(EXCHANGES)}
    for about in _options():
        values = (False, True) if about.kind is bool else about.choices
        if values:
            found[about.name] = list(dict.fromkeys([*found.get(about.name, []), *values]))
    return found


def _numbers() -> list[str]:
    """Return the names of what is a number, or has a number of entries."""
    options = [about.name for about in _options() if about.kind not in (str, bool)]
    own = [name for name in ROUND_FIELDS if name != "method"]
    return list(dict.fromkeys([*own, *options, RESULTS, ROUNDS_PER_HOUR]))


def _options() -> list[Option]:
    """Return the options of all methods and of all that clients can exchange."""
    owners = (*METHODS.values(), *EXCHANGES.values())
    return [about for owner in owners for about in options_of(owner).values()]


@dataclass(frozen=True)
class Policy:
    """The rounds that a server takes part in. What it does not name has no limit.

    A limit on an option holds for the methods that have it, and looks at the option as the round
    has it, whether it was given or is the default. Raises ConfigError for a name or a value that
    no round can have.
    """

    methods: list[str] = field(default_factory=lambda: list(METHODS))
    # by option: the values that it may have
    allowed: dict[str, list[Any]] = field(default_factory=dict)
    # by parameter: the largest number, or the most entries of a list or table
    at_most: dict[str, float] = field(default_factory=dict)
    # by parameter: the smallest number, or the fewest entries of a list or table
    at_least: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for method in self.methods:
            check_one_of("a method", method, list(METHODS))
        if not self.methods:
            raise ConfigError("methods is empty: name one or more, or leave it out for all")
        choices, numbers = _choices(), _numbers()
        for name, values in self.allowed.items():
            check_one_of("a name in `allowed`", name, list(choices))
            if not isinstance(values, list) or not values:
                raise ConfigError(
                    f"allowed: {name} must be a list of one or more values, not {quoted(values)}"
                )
            for value in values:
                # type() because 1 == True
                if not any(type(value) is type(one) and value == one for one in choices[name]):
                    known = ", ".join(str(one) for one in choices[name])
                    raise ConfigError(
                        f"allowed: {name} has one of the values {known}, not {quoted(value)}"
                    )
        for table, limits in (("at_most", self.at_most), ("at_least", self.at_least)):
            for name, limit in limits.items():
                check_one_of(f"a name in `{table}`", name, numbers)
                if type(limit) not in (int, float) or not 0 <= limit < 1 << 63:
                    raise ConfigError(
                        f"{table}: {name} must be a number of 0 or more, not {quoted(limit)}"
                    )
        for name in self.at_most.keys() & self.at_least.keys():
            if self.at_least[name] > self.at_most[name]:
                raise ConfigError(f"{name}: at_least is more than at_most, so that no round fits")

    def check(self, params: RoundParams, begun: int, server: str) -> None:
        """Raise PolicyRefused, with every reason, if `server` takes no part in such a round.

        `begun` counts the rounds of its cohort that have begun here within the last hour.
        """
        # a round of parameters does not say so
        values = {"exchange": params.exchange.name} | params.to_dict()
        sizes = {
            name: len(value) if isinstance(value, list | dict) else value
            for name, value in values.items()
        } | {RESULTS: params.method.most_results, ROUNDS_PER_HOUR: begun + 1}
        refusals = []
        if values["method"] not in self.methods:
            refusals.append(
                f"method {values['method']}: its [policy] allows only {' and '.join(self.methods)}"
            )
        refusals += [
            f"{name} {values[name]}: its [policy] allows only {' and '.join(map(str, choices))}"
            for name, choices in self.allowed.items()
            if name in values and values[name] not in choices
        ]
        for limits, says, beyond in (
            (self.at_most, "allows at most", gt),
            (self.at_least, "asks for at least", lt),
        ):
            refusals += [
                f"{name} {sizes[name]}: its [policy] {says} {limit}"
                for name, limit in limits.items()
                if name in sizes and beyond(sizes[name], limit)
            ]
        if refusals:
            raise PolicyRefused(". ".join(f"{server} refuses {text}" for text in refusals))

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as the table that a configuration has."""
        return flat(self)
