"""A party's own policy: the rounds that it takes part in, whatever a coordinator asks for.

`Security` has the words of `security`: how much one server that deviates may learn of a round.
Servers' files, a client's `[policy]`, `keygen`, `plan` and every refusal have them from here.

`RISKS` is the one table of choices that open more than the result, or trust more than it needs.
The default policy, its refusals, keygen's files and the pages have it from here.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, isinf
from typing import Any, ClassVar, Self

from securemedian.mpc.canonical import flat
from securemedian.mpc.errors import ConfigError, PolicyRefused, quoted
from securemedian.mpc.options import Option, check_one_of, options_of
from securemedian.mpc.rounds.exchange import EXCHANGES
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import MAX_CLIENTS, ROUND_FIELDS, RoundParams
from securemedian.mpc.rounds.privacy import DELTA


class Security(StrEnum):
    """The words, and the rounds that each allows."""

    # only those in which a deviating server learns nothing beyond the result
    MALICIOUS = "malicious"
    # only those in which it learns no more than a bounded leak
    BOUNDED = "bounded"
    # all, because both servers are trusted to follow the protocol
    SEMI_HONEST = "semi-honest"

    @property
    def line(self) -> str:
        """The line of a file that says it."""
        return f'security = "{self}"'


# the cost of leaving `BOUNDED`, and the lines and the flag that do so
COST = "a deviating server could then read one client's value"
WAY_OUT = (
    f"write {Security.SEMI_HONEST.line} into s0.toml and s1.toml and into [policy] of the clients' "
    f"files (keygen --security {Security.SEMI_HONEST} writes all of them): {COST}"
)
OR_WAY_OUT = f", or {WAY_OUT}"
# the name of `BOUNDED` in files of release 1.0, which release 1.1 still reads, and on the wire,
# where it is true of `MALICIOUS`, too
SWITCH = "one_malicious_server"
# whether both servers have `MALICIOUS`, on the wire
STRICT = "malicious"


def of_switch(bounded: object) -> Security:
    """Return the word for what the wire, and files of release 1.0, say of `SWITCH`."""
    return Security.BOUNDED if bounded is True else Security.SEMI_HONEST


def check_security(word: str) -> Security:
    """Return the word of a setting. Raises ConfigError if it is unknown."""
    check_one_of("security", word, list(Security))
    return Security(word)


def in_words(agreement: dict[str, Any]) -> dict[str, Any]:
    """Return what a server says that both must have, with `security` instead of `SWITCH`."""
    if SWITCH not in agreement:
        return agreement
    others = {name: value for name, value in agreement.items() if name not in (SWITCH, STRICT)}
    strict = agreement.get(STRICT) is True
    word = Security.MALICIOUS if strict else of_switch(agreement[SWITCH])
    return others | {"security": str(word)}


def without_switch(values: Any, where: str) -> Any:
    """Return a table of settings in which `security` stands instead of `SWITCH`.

    Raises ConfigError if `SWITCH` is neither true nor false, or contradicts `security`.
    """
    if not isinstance(values, dict) or SWITCH not in values:
        return values
    others = {name: value for name, value in values.items() if name != SWITCH}
    if type(values[SWITCH]) is not bool:
        raise ConfigError(
            f"{where}, {SWITCH} is neither true nor false: {quoted(values[SWITCH])}; write "
            f"{' or '.join(word.line for word in Security)} instead"
        )
    word = of_switch(values[SWITCH])
    if others.setdefault("security", str(word)) != word:
        raise ConfigError(
            f"{where}, {SWITCH} contradicts security: {quoted(others['security'])}; remove the "
            f"line {SWITCH}"
        )
    return others


def add_switch(parser: argparse.ArgumentParser) -> None:
    """Add the flags of release 1.0 for `--security`, which release 1.1 still takes."""
    flag = SWITCH.replace("_", "-")
    for name, word in ((f"--{flag}", Security.BOUNDED), (f"--no-{flag}", Security.SEMI_HONEST)):
        parser.add_argument(
            name, dest="security", action="store_const", const=str(word), help=argparse.SUPPRESS
        )


# A limit besides the parameters of a round and the rate of rounds: the most values that are opened
# per coordinate.
RESULTS = "results"
# Likewise a switch: whether a result may be one client's (`Method.single_clients`).
SINGLE_CLIENTS = "single_clients"
# Likewise whether other clients may take part than in an earlier zoom that may have opened values
# (`round open --release`).
RELEASE = "release"

# By parameter of a round, what comes of its risky values.
RISKS: dict[str, dict[Any, str]] = {
    "method": {
        "zeno": "one client, its validator, decides whose updates the result is of",
    },
    "uploads": {"unverified": "one client that lies in its upload puts the result where it likes"},
    "selection": {"opened": "both servers see who is selected: clients, or whose each median is"},
    "membership": {"visible": "everybody sees which group each client chose"},
    "clustering": {
        "opened": "both servers see the sum of each cluster, from which updates may follow"
    },
    "accept_leak": {True: "both servers can compute updates from the sums of clusters"},
    "norm_bound": {"off": "one faulty client moves the result at will"},
    "aggregator": {"mean": "one faulty client moves the result at will"},
    "single_clients": {
        True: "the result may be one client's: an extreme value of each coordinate, or an update "
        "alone or with one other (krum --chosen 2, --neighbours 1 of three, zeno --clusters 1)"
    },
    "release": {
        True: "a client that another attempt leaves out, after a zoom that may have opened values, "
        "shows on which side of the result its update lies"
    },
}
# By parameter, the number above which it is a risk, and what comes of that.
RISKY_ABOVE: dict[str, tuple[float, str]] = {
    "weights": (0, "a client counts for up to a third of all, and a result may be near its update"),
}
# The methods, and the values of their options, that one deviating server can turn into no more than
# a bounded leak (docs/threat-model.md). All else keeps values of single clients on shares,
# or takes shares that nobody has checked.
BOUNDED: dict[str, dict[str, Any]] = {
    "bucketed": {"schedule": "bisect", "uploads": "dealt", "groups": 1, "weights": {}},
    "mean": {"weights": {}},
}
# By word, what it permits. A mean opens more than its result if a server deviates.
PERMITTED: dict[Security, dict[str, dict[str, Any]]] = {
    Security.BOUNDED: BOUNDED,
    Security.MALICIOUS: {
        "bucketed": BOUNDED["bucketed"] | {"security": str(Security.MALICIOUS)},
        "zoom": {"security": str(Security.MALICIOUS)},
    },
}
# the text of [policy] zoom, which allows a semi-honest zoom beside `Security.BOUNDED`
STANDS_OUT = "one malicious server may read a client that stands out"


def forbidden(security: str, params: RoundParams, zoom: str = "") -> list[str]:
    """Return every reason why `security` forbids a round: one server could learn too much of it.

    `zoom` is the line of [policy].
    """
    word, method = Security(security), params.method
    if word not in PERMITTED:
        return []
    permitted = PERMITTED[word]
    if method.name == "zoom" and word is Security.BOUNDED:
        if params.form.audited or zoom:
            return []
        return [
            f"method zoom: {word.line} permits only --security malicious of it. Take that, or "
            f'write zoom = "{STANDS_OUT}" into [policy] of s0.toml, s1.toml and the clients\' '
            f"files{OR_WAY_OUT}"
        ]
    if method.name not in permitted:
        return [
            f"method {method.name}: {word.line} permits only {' and '.join(permitted)}. "
            f"Take {' or '.join(permitted)}{OR_WAY_OUT}"
        ]
    return [
        f"{name} {_size(value)}: {word.line} permits only {name} {_size(wanted)} of "
        f"{method.name}. Take that (--{name} {_size(wanted)}){OR_WAY_OUT}"
        for name, wanted in permitted[method.name].items()
        if (value := getattr(method, name)) != wanted
    ]


def risks_of(name: str) -> dict[str, str]:
    """Return what comes of each risky value of a parameter, by the value as a file has it."""
    risks = {json.dumps(value): why for value, why in RISKS.get(name, {}).items()}
    if name in RISKY_ABOVE:
        above, why = RISKY_ABOVE[name]
        risks[f"above {above}"] = why
    return risks


def _size(value: Any) -> Any:
    """Return what is limited of a parameter: of a list or table the number of its entries."""
    return len(value) if isinstance(value, list | dict) else value


def _choices() -> dict[str, list[Any]]:
    """Return by name the values that the options of words and switches can have."""
    found: dict[str, list[Any]] = {"exchange": list(EXCHANGES)}
    found |= {name: [False, True] for name in (SINGLE_CLIENTS, RELEASE)}
    for about in _options():
        values = (False, True) if about.kind is bool else about.choices
        if values:
            found[about.name] = list(dict.fromkeys([*found.get(about.name, []), *values]))
    return found


def _options() -> list[Option]:
    owners = (*METHODS.values(), *EXCHANGES.values())
    return [about for owner in owners for about in options_of(owner).values()]


def _safe(name: str, values: Iterable[Any]) -> list[Any]:
    """Return those of a parameter's values that are not a risk."""
    return [value for value in values if value not in RISKS[name]]


@dataclass(frozen=True)
class Policy:
    """The rounds that a party takes part in. By default they are those without any of the `RISKS`.

    A parameter without a risk that is not named has no limit. A limit on an option holds for the
    methods that have it, and looks at the option in the round, whether it was given or is the
    default.
    Raises ConfigError for a name or a value that no round can have.
    """

    # the name of the limit on rounds of its cohort within the last hour, this round included
    RATE: ClassVar[str] = "rounds_per_hour"
    # the files that must allow a risk, in the words of a refusal
    FILES: ClassVar[str] = "s0.toml, s1.toml and the clients' files allow"

    methods: list[str] = field(default_factory=lambda: _safe("method", METHODS))
    # by option: the values that it may have; an option with a risk that is not named keeps its
    # default. A number instead of a word is limited by the tables below alone.
    allowed: dict[str, list[Any]] = field(default_factory=dict)
    # by parameter: the largest number, or the most entries of a list or table; likewise
    at_most: dict[str, float] = field(default_factory=dict)
    # by parameter: the smallest number, or the fewest entries of a list or table
    at_least: dict[str, float] = field(default_factory=dict)
    # how large epsilon may become (`mpc.rounds.privacy`), of all results of the cohort together
    max_epsilon: float | None = None
    # release 1.0's name for `security = "malicious"` of a client, which release 1.2 does not read
    audit: bool = field(default=False, metadata={"since": 2})
    # `STANDS_OUT`, which allows zoom without security malicious beside `Security.BOUNDED`
    zoom: str = field(default="", metadata={"since": 3})

    def __post_init__(self) -> None:
        choices = _choices()
        # parameters that are numbers, or have a number of entries, and the two limits besides
        numbers = [name for name in ROUND_FIELDS if name != "method"]
        numbers += [about.name for about in _options() if about.kind not in (str, bool)]
        numbers = list(dict.fromkeys([*numbers, RESULTS, self.RATE]))
        safe = {name: _safe(name, choices[name]) for name in RISKS if name in choices}
        object.__setattr__(self, "allowed", safe | self.allowed)
        limits = {name: above for name, (above, _) in RISKY_ABOVE.items()}
        object.__setattr__(self, "at_most", limits | self.at_most)
        for method in self.methods:
            check_one_of("method", method, list(METHODS))
        if self.zoom:
            check_one_of("zoom", self.zoom, [STANDS_OUT])
        if not self.methods:
            raise ConfigError(
                "methods allows none: []; name one or more, or leave it out for the default"
            )
        for name, values in self.allowed.items():
            check_one_of("name in `allowed`", name, list(choices))
            if not values:
                raise ConfigError(
                    f"invalid list in allowed: {name} = {quoted(values)}; list one or more values"
                )
            for value in values:
                # type() because 1 == True
                if not any(type(value) is type(one) and value == one for one in choices[name]):
                    known = ", ".join(str(one) for one in choices[name])
                    raise ConfigError(
                        f"invalid value in allowed: {name} = {quoted(value)}; take one of {known}"
                    )
        for table, bounds in (("at_most", self.at_most), ("at_least", self.at_least)):
            for name, limit in bounds.items():
                check_one_of(f"name in `{table}`", name, numbers)
                if not 0 <= limit < 1 << 63:
                    raise ConfigError(
                        f"invalid limit in {table}: {name} = {quoted(limit)}; give a number of "
                        "0 or more"
                    )
        if self.max_epsilon is not None and not 0 < self.max_epsilon < inf:
            raise ConfigError(f"invalid max_epsilon: {self.max_epsilon}; give a number above 0")
        for name in self.at_most.keys() & self.at_least.keys():
            if self.at_least[name] > self.at_most[name]:
                raise ConfigError(
                    f"at_least is more than at_most, so that no round fits: {name}; raise "
                    "at_most or lower at_least"
                )

    @classmethod
    def unlimited(cls) -> Self:
        """Return the policy that refuses nothing, for trials with data that need no protection."""
        return cls(
            methods=list(METHODS),
            allowed={name: values for name, values in _choices().items() if name in RISKS},
            at_most=dict.fromkeys(RISKY_ABOVE, MAX_CLIENTS),
        )

    def check(
        self, params: RoundParams, begun: int, who: str, epsilon: float = inf, release: bool = False
    ) -> None:
        """Raise PolicyRefused, with every reason, if `who` takes no part in such a round.

        `begun` counts the earlier rounds of its cohort, as `RATE` does, and `epsilon` is that of
        the cohort's results with this round's. `release` says that the round lifts what a zoom
        binds it to.
        """
        refuse(who, self.refusals(params, begun, epsilon, release))

    def refusals(
        self, params: RoundParams, begun: int, epsilon: float = inf, release: bool = False
    ) -> list[str]:
        """Return every reason against such a round (`check`)."""
        # a round of parameters does not say so
        values = {"exchange": params.exchange.name} | params.to_dict()
        values[SINGLE_CLIENTS] = params.method.single_clients(params.min_clients)
        values[RELEASE] = release
        sizes = {name: _size(value) for name, value in values.items()}
        sizes |= {RESULTS: params.form.most_results, self.RATE: begun + 1}
        refusals = []
        for name, choices in ({"method": self.methods} | self.allowed).items():
            value = values.get(name, choices[0])
            if value not in choices and type(value) is not float:
                text = f"{name} {value}: its [policy] allows only {' and '.join(map(str, choices))}"
                table, key = ("policy", "methods") if name == "method" else ("policy.allowed", name)
                if why := RISKS.get(name, {}).get(value):
                    text += self._remedy(why, table, key, [*choices, value])
                else:
                    text += f" (the line {key} in [{table}])"
                refusals.append(text)
        for name, limit in self.at_most.items():
            # a word instead of a number has no size
            size = sizes.get(name, limit)
            if isinstance(size, str) or size > limit:
                text = f"{name} {size}: its [policy] allows at most {limit}"
                above, why = RISKY_ABOVE.get(name, (inf, ""))
                if not isinstance(size, str) and size > above:
                    text += self._remedy(why, "policy.at_most", name, size)
                else:
                    text += f" (the line {name} in [policy.at_most])"
                refusals.append(text)
        refusals += [
            f"{name} {sizes[name]}: its [policy] asks for at least {limit} (the line {name} in "
            "[policy.at_least])"
            for name, limit in self.at_least.items()
            if name in sizes and (isinstance(sizes[name], str) or sizes[name] < limit)
        ]
        # NaN, which a server could say, is beyond
        if self.max_epsilon is not None and not epsilon <= self.max_epsilon:
            what = (
                "a result without noise (mean --norm-bound B --noise-multiplier Z)"
                if isinf(params.method.noise.rho)
                else "noise in a cohort with an earlier result without: begin a new cohort"
                if isinf(epsilon)
                else f"epsilon {epsilon:.4g} at delta {DELTA:g}, of all results of the cohort"
            )
            refusals.append(f"{what}: its [policy] has max_epsilon {self.max_epsilon:g}")
        if self.audit and not params.form.audited:
            refusals.append(
                "a round without security malicious: its [policy] has audit = true, and "
                "bucketed --security malicious has it"
            )
        return refusals

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as the table that a configuration has."""
        return {name: value for name, value in flat(self).items() if value is not None}

    def _remedy(self, why: str, table: str, key: str, value: Any) -> str:
        """Return why a risk is refused, and the line that allows it."""
        line = f"{key} = {json.dumps(value)} in [{table}]"
        return f", because otherwise {why}. {self.FILES} it by {line}"


def refuse(who: str, refusals: Sequence[str]) -> None:
    """Raise PolicyRefused, with every reason, if there are any."""
    if refusals:
        raise PolicyRefused(". ".join(f"{who} refuses {text}" for text in refusals))
