"""The flags of rounds, from their registries: a sub-command per method, range, optimiser."""

import argparse
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from securemedian.mpc.errors import ConfigError, quoted
from securemedian.mpc.options import Option, options_of
from securemedian.mpc.rounds.methods.registry import DEFAULT_METHOD, METHODS
from securemedian.mpc.rounds.optimiser import OPTIMISERS
from securemedian.mpc.rounds.ranges.registry import DEFAULT_POLICY, POLICIES

# the longest list of choices that fits before the text of a flag
MAX_CHOICES = 50


def add_cohort(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cohort",
        default="",
        metavar="NAME",
        help="the cohort (default: that of the configuration)",
    )


def add_keep_local(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--keep-local",
        type=list_of(str),
        default=[],
        metavar="PATTERN,..",
        help="leave out the layers whose names fit a pattern like bn.* or head.*: each client "
        "keeps its own",
    )


def add_public(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--public",
        type=Path,
        metavar="DIR",
        help="the folder of the public set, for rounds that exchange predictions",
    )


class _Hidden(argparse.ArgumentParser):
    """A parser of options that --help does not show and that have no defaults."""

    def add_argument(self, *flags: str, **about: Any) -> argparse.Action:
        hidden = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
        return super().add_argument(*flags, **about | hidden)

    def add_argument_group(self, *given: Any, **named: Any) -> Any:
        group = super().add_argument_group(*given, **named)
        group.add_argument = self.add_argument  # type: ignore[method-assign]
        return group


def add_methods(
    parser: argparse.ArgumentParser,
    add_shared: Callable[[argparse.ArgumentParser], None],
    only: Collection[str] | None = None,
    leave_out: Collection[str] = (),
    default: str = f"{DEFAULT_METHOD} with its defaults",
    several: bool = False,
) -> None:
    """Add METHOD: a sub-command per method, whose help shows the options of that method alone.

    `add_shared` adds the options that all methods share, which may stand before METHOD or after
    it. Without METHOD, `method` is None, and `default` says what the verb does then. `only` and
    `leave_out` name the options of methods that the verb uses, or does not use. With `several`,
    further methods with their options may follow, which `given_methods` reads.
    """
    add_shared(parser)
    # without defaults, which would undo what stands before METHOD
    hidden = _Hidden(add_help=False)
    add_shared(hidden)
    methods = parser.add_subparsers(
        title="method",
        dest="method",
        metavar="METHOD",
        prog=parser.prog,
        description=f"`{parser.prog} .. METHOD --help` lists its options (default: {default}).",
    )
    for name, method in METHODS.items():
        page = methods.add_parser(
            name,
            parents=[hidden],
            help=method.summary,
            description=f"{name}: {method.summary}. `{parser.prog} --help` lists the options that "
            "all methods share.",
            usage=f"{parser.prog} .. {name} [OPTION ..]",
        )
        for option in options_of(method).values():
            if option.name not in leave_out and (only is None or option.name in only):
                flag = f"--{option.name.replace('_', '-')}"
                _add_flag(page, flag, option)
        if several:
            # argparse stops here at the first word that belongs to no option of the page
            rest = page.add_argument("further", nargs=argparse.PARSER, help=argparse.SUPPRESS)
            rest.required = False


def _add_flag(page: argparse.ArgumentParser, flag: str, option: Option) -> None:
    """Add one flag. A flag that is not given is None, so that the option keeps its default."""
    text = option.text.replace("%", "%%")
    if option.kind is bool:
        page.add_argument(flag, action="store_true", default=None, help=text)
        return
    parse = _parser(option)
    choices = option.choices if parse is str and option.choices else None
    metavar = option.metavar
    # argparse shows choices before the text, as one word
    if choices and len(",".join(choices)) > MAX_CHOICES:
        metavar, text = "NAME", f"{', '.join(choices)}: {text}"
    page.add_argument(flag, type=parse, choices=choices, metavar=metavar, help=text)


def _parser(option: Option) -> Any:
    if option.kind in (int, float, str):
        return option.kind
    if isinstance(option.kind, UnionType):
        return _number_or_word
    if get_origin(option.kind) is list:
        (kind,) = get_args(option.kind)
        return list_of(kind)
    return _weights


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def list_of(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return a parser of lists like a,b of values of one kind."""

    def parse(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",")]

    # argparse names it in its message about a text that cannot be parsed
    parse.__name__ = f"list of {getattr(kind, '__name__', 'values')}"
    return parse


def _weights(text: str) -> dict[str, int]:
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and weight.isdecimal() for name, _, weight in pairs):
        raise argparse.ArgumentTypeError(
            f"invalid weights: {text!r}; write them like "
            "hospital-a=600,hospital-b=450,hospital-c=500"
        )
    return {name: int(weight) for name, _, weight in pairs}


def given_options(options: argparse.Namespace) -> dict[str, Any]:
    names = dict.fromkeys(name for method in METHODS.values() for name in options_of(method))
    found = {name: getattr(options, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def given_methods(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> tuple[list[tuple[str, dict[str, Any]]], argparse.Namespace]:
    """Return each METHOD of a parser with `several`, with its options, and the shared options.

    The list is empty without a METHOD. Shared options may stand behind any of them.
    """
    found = []
    while options.method:
        given = given_options(options)
        found.append((options.method, given))
        if not options.further:
            break
        # an option of one method is not the next one's
        kept = {name: value for name, value in vars(options).items() if name not in given}
        options = parser.parse_args(options.further, argparse.Namespace(**kept | {"further": None}))
    return found, options


def round_table(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the flags say of a round, by the keys of [round] in RUN.toml."""
    names = ("method", "dim", "min_clients", "max_clients", "deadline_s", "classes")
    said = {name: getattr(options, name, None) for name in names}
    return {key: value for key, value in said.items() if value is not None} | given_options(options)


def add_range(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--range",
        metavar="NAME:OPTION=X,..",
        help=f"how buckets lie around the model: {_spelt(POLICIES)} (default: as in the round "
        f"before, {DEFAULT_POLICY} in the first)",
    )


def range_table(options: argparse.Namespace) -> dict[str, Any]:
    """Return what --range says, by the keys of [range] in RUN.toml; {} if it is not given."""
    return _table("--range", options.range, "policy", POLICIES)


def add_optimiser(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--optimiser",
        metavar="NAME:OPTION=X,..",
        help=f"how the model follows the results: {_spelt(OPTIMISERS)} (default: "
        f"{next(iter(OPTIMISERS))}, it is the result)",
    )


def optimiser_table(options: argparse.Namespace) -> dict[str, Any]:
    """Return what --optimiser says, by the keys of [optimiser] in RUN.toml; {} if not given."""
    return _table("--optimiser", options.optimiser, "optimiser", OPTIMISERS)


def _spelt(registry: Mapping[str, type]) -> str:
    """Return the names in a registry, each with its options."""
    options = {name: ",".join(options_of(cls)) for name, cls in registry.items()}
    return ", ".join(f"{name}[:{own}]" if own else name for name, own in options.items())


def _table(flag: str, text: str | None, key: str, registry: Mapping[str, type]) -> dict[str, Any]:
    """Return `{key: NAME, OPTION: X, ..}` for the text NAME:OPTION=X,.. of a flag; {} for None."""
    if text is None:
        return {}
    name, _, rest = text.partition(":")
    known = options_of(registry[name]) if name in registry else {}
    values: dict[str, Any] = {key: name}
    for part in rest.split(",") if rest else ():
        option, _, value = part.partition("=")
        option = option.replace("-", "_")
        try:
            values[option] = _parser(known[option])(value) if option in known else value
        except ValueError as error:
            raise ConfigError(
                f"{flag}, {option} is not a number: {quoted(value)}; give a number"
            ) from error
    return values
