"""The flags of methods, range policies and optimisers, and the parameters that flags describe.

Nothing here knows a method or a policy by its name: everything comes from their registries.
"""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_origin

from securemedian.clients.public import PublicSet
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import Option, options_of, refuse_foreign
from securemedian.mpc.rounds.exchange import EXCHANGES, Parameters, Predictions
from securemedian.mpc.rounds.methods.base import Method
from securemedian.mpc.rounds.methods.registry import DEFAULT_METHOD, METHODS
from securemedian.mpc.rounds.optimiser import OPTIMISERS, Optimiser, optimiser_from
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.base import RangePolicy
from securemedian.mpc.rounds.ranges.registry import DEFAULT_POLICY, POLICIES, policy_from


def add_cohort(parser: argparse.ArgumentParser) -> None:
    """Add --cohort."""
    parser.add_argument(
        "--cohort",
        default="",
        metavar="NAME",
        help="the cohort (default: that of the configuration, and otherwise the default one)",
    )


def add_public(parser: argparse._ActionsContainer) -> None:
    """Add --public."""
    parser.add_argument(
        "--public",
        type=Path,
        metavar="DIR",
        help="the folder of the public set, for rounds that exchange predictions",
    )


def add_exchange_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags of what clients exchange: --exchange, --public and --classes."""
    group = parser.add_argument_group("what clients exchange")
    group.add_argument(
        "--exchange",
        choices=EXCHANGES,
        default=Parameters.name,
        help="trained parameters, or predictions on a public set (default: %(default)s)",
    )
    add_public(group)
    group.add_argument("--classes", type=int, metavar="C", help="classes of a prediction")


def exchange_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters of a round that the flags of `add_exchange_options` describe.

    For predictions these are the digest of the public set, its classes and `dim`. Raises
    ConfigError if one of the flags is missing or does not fit the others.
    """
    flags = {"--public": options.public, "--classes": options.classes}
    if options.exchange == Parameters.name:
        given = [flag for flag, value in flags.items() if value is not None]
        if given:
            raise ConfigError(f"{' and '.join(given)} are for --exchange {Predictions.name}")
        return {}
    missing = [flag for flag, value in flags.items() if value is None]
    if missing:
        raise ConfigError(f"--exchange {options.exchange} needs {' and '.join(missing)}")
    return PublicSet.load(options.public).round(options.classes)


def add_method(parser: argparse.ArgumentParser) -> None:
    """Add --method."""
    parser.add_argument(
        "--method",
        choices=METHODS,
        default=DEFAULT_METHOD,
        help=f"{_summaries(METHODS)} (default: %(default)s)",
    )


def _summaries(registry: Mapping[str, type[Method] | type[RangePolicy]]) -> str:
    return "; ".join(f"{name}: {cls.summary}" for name, cls in registry.items())


def add_method_options(
    parser: argparse.ArgumentParser,
    only: Collection[str] | None = None,
    leave_out: Collection[str] = (),
    parser_of: Callable[[Option], Any] | None = None,
) -> None:
    """Add a flag for every option of any method, grouped by the methods that have it.

    `only` and `leave_out` name the options that the verb uses, or does not use. `parser_of` returns
    another parser than the option's own, for verbs that take several values.
    """

    def taken(option: Option) -> bool:
        return option.name not in leave_out and (only is None or option.name in only)

    for methods, options in _by_owners(METHODS, taken).items():
        group = parser.add_argument_group(f"options of {_listed(methods)}")
        for option in options:
            name = option.name
            _add_flag(group, f"--{name.replace('_', '-')}", name, option, parser_of or _parser)


def _by_owners(
    registry: Mapping[str, type], taken: Callable[[Option], bool] = lambda _: True
) -> dict[tuple[str, ...], list[Option]]:
    """Return the options that are taken, by the names of the classes that have them."""
    known: dict[str, dict[str, Option]] = {}
    for owner, cls in registry.items():
        for name, option in options_of(cls).items():
            if taken(option):
                known.setdefault(name, {})[owner] = option
    groups: dict[tuple[str, ...], list[Option]] = {}
    for having in known.values():
        option = next(iter(having.values()))
        groups.setdefault(tuple(having), []).append(replace(option, text=_help(having)))
    return groups


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _help(having: Mapping[str, Option]) -> str:
    """Return the help text of an option of several methods, whose texts may differ."""
    saying: dict[str, list[str]] = {}
    for method, option in having.items():
        saying.setdefault(option.text, []).append(method)
    if len(saying) == 1:
        return next(iter(saying))
    return "; ".join(f"{', '.join(methods)}: {text}" for text, methods in saying.items())


def _add_flag(
    group: Any, flag: str, dest: str, option: Option, parser_of: Callable[[Option], Any]
) -> None:
    """Add one flag. A flag that is not given is None, so that the option keeps its default."""
    text = option.text.replace("%", "%%")
    if option.kind is bool:
        group.add_argument(flag, dest=dest, action="store_true", default=None, help=text)
        return
    parse = parser_of(option)
    choices = option.choices or None if parse is str else None
    group.add_argument(
        flag, dest=dest, type=parse, choices=choices, metavar=option.metavar, help=text
    )


def _parser(option: Option) -> Any:
    """Return the function that turns the text of a flag into a value of the option."""
    if option.kind in (int, float, str):
        return option.kind
    if get_origin(option.kind) is list:
        (kind,) = get_args(option.kind)
        return _list_of(kind)
    return _weights


def _list_of(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def parse(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",")]

    # argparse names it in its message about a text that cannot be parsed
    parse.__name__ = f"list of {getattr(kind, '__name__', 'values')}"
    return parse


def _weights(text: str) -> dict[str, int]:
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and weight.isdecimal() for name, _, weight in pairs):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not like hospital-a=600,hospital-b=450,hospital-c=500"
        )
    return {name: int(weight) for name, _, weight in pairs}


def given_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of all methods that were given as flags."""
    names = dict.fromkeys(name for method in METHODS.values() for name in options_of(method))
    found = {name: getattr(options, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def round_params(options: argparse.Namespace, **others: Any) -> RoundParams:
    """Return the parameters of the round that the flags and `others` describe.

    What is not given keeps its default. Raises ConfigError for an option of another method.
    """
    numbers = {
        name: getattr(options, name, None) for name in ("min_clients", "max_clients", "deadline_s")
    } | others
    known = {name: value for name, value in numbers.items() if value is not None}
    return RoundParams.from_dict({"method": options.method, **known, **given_options(options)})


def add_range_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the bucket range: --range, and one for every option of any policy."""
    group = parser.add_argument_group("range of the buckets, for rounds on buckets")
    group.add_argument(
        "--range",
        choices=POLICIES,
        help=f"how the buckets lie around the model. {_summaries(POLICIES)} (default: as in the "
        f"round before, and {DEFAULT_POLICY} in the first)",
    )
    for policies, options in _by_owners(POLICIES).items():
        group = parser.add_argument_group(f"options of the range {_listed(policies)}")
        for option in options:
            _add_flag(group, f"--range-{option.name}", f"range_{option.name}", option, _parser)


def range_policy(options: argparse.Namespace) -> RangePolicy | None:
    """Return the range policy that the flags name; None if they name nothing."""
    given = _given(options, "range", "policy", POLICIES)
    return policy_from(given) if given else None


def add_optimiser_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the optimiser: --optimiser, and one for every option of any optimiser."""
    group = parser.add_argument_group("optimiser, which makes the next model of a result")
    group.add_argument(
        "--optimiser",
        choices=OPTIMISERS,
        help="how the model follows the results (default: none, it is the result)",
    )
    for optimisers, options in _by_owners(OPTIMISERS).items():
        group = parser.add_argument_group(f"options of the optimiser {_listed(optimisers)}")
        for option in options:
            flag = f"--optimiser-{option.name.replace('_', '-')}"
            _add_flag(group, flag, f"optimiser_{option.name}", option, _parser)


def optimiser(options: argparse.Namespace) -> Optimiser | None:
    """Return the optimiser that the flags name; None if they name nothing."""
    given = _given(options, "optimiser", "optimiser", OPTIMISERS)
    return optimiser_from(given) if given else None


def _given(
    options: argparse.Namespace, flag: str, key: str, registry: Mapping[str, type]
) -> dict[str, Any]:
    """Return what was given of a class in a registry, its name under `key`, and its options."""
    names = dict.fromkeys(name for cls in registry.values() for name in options_of(cls))
    chosen = {name: getattr(options, f"{flag}_{name}") for name in names}
    named = {key: getattr(options, flag)} | chosen
    return {name: value for name, value in named.items() if value is not None}


def check_belong(method: str, given: Mapping[str, Any]) -> None:
    """Raise ConfigError if `given` has an option that other methods have and `method` has not."""
    refuse_foreign(method, given, METHODS)
