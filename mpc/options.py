"""The options of a method or a range policy: dataclass fields that describe themselves.

Whatever reads options from outside (flags, TOML, messages, `plan`, benchmarks) asks `options_of`
and knows no method by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from types import UnionType
from typing import Any, TypeVar

from securemedian.mpc.canonical import build, default_of, hints_of
from securemedian.mpc.errors import ConfigError, quoted

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """The description of one option."""

    name: str
    # the annotated type
    kind: Any
    default: Any
    # for --help
    text: str
    choices: tuple[str, ...]
    metavar: str | None
    # the wire version that it is new in
    since: int


def option(
    default: Any,
    *,
    text: str,
    choices: tuple[str, ...] = (),
    metavar: str | None = None,
    since: int = 1,
) -> Any:
    """Return the dataclass field of an option, whose default each instance has a copy of.

    Parties that do not speak the wire version `since` take no part in rounds in which it has
    another value, and need not know it in others (`canonical.flat`).
    """
    about = {"text": text, "choices": choices, "metavar": metavar, "since": since}
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=about)
    return field(default=default, metadata=about)


def options_of(cls: type) -> dict[str, Option]:
    """Return the options of a method or policy by name."""
    hints = hints_of(cls)
    return {
        f.name: Option(
            f.name,
            hints[f.name],
            default_of(f),
            **f.metadata,
        )
        for f in fields(cls)
    }


def refuse_foreign(
    name: str, given: Mapping[str, Any], registry: Mapping[str, type], where: str = ""
) -> None:
    """Raise ConfigError if an option is given that only others than `name` in the registry have."""
    own = options_of(registry[name])
    for key in (key for key in given if key not in own):
        others = [other for other, cls in registry.items() if key in options_of(cls)]
        if others:
            raise ConfigError(
                f"{where}invalid option of {name}: {key}, which belongs to "
                f"{' and '.join(others)}; leave it out"
            )


def named(values: object, key: str, registry: Mapping[str, type[T]], what: str, where: str) -> T:
    """Return what a map from outside names: `{key: name, **options}`.

    Without `key` it is the first in the registry. `what` is named, and `where`, in errors. Raises
    ConfigError, which says what is wrong.
    """
    if not isinstance(values, dict):
        raise ConfigError(
            f"{where}: not a table of settings but {type(values).__name__}; write NAME = VALUE"
        )
    name = values.get(key, next(iter(registry)))
    check_one_of(what, name, list(registry))
    options = {option: value for option, value in values.items() if option != key}
    refuse_foreign(name, options, registry, f"{where}: ")
    return build(registry[name], options, where)


def check_choices(instance: Any) -> None:
    """Raise ConfigError if an option with choices has another value.

    If it may be a number instead, the choices are its words.
    """
    for name, about in options_of(type(instance)).items():
        value = getattr(instance, name)
        if about.choices and (isinstance(value, str) or not isinstance(about.kind, UnionType)):
            check_one_of(name, value, about.choices)


def check_one_of(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise ConfigError unless `value` is one of the choices."""
    if value not in choices:
        raise ConfigError(f"invalid {name}: {quoted(value)}; take one of {', '.join(choices)}")


def check_whole(name: str, value: object, low: int, high: int) -> None:
    """Raise ConfigError unless `value` is a whole number in [low, high], which True is not."""
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(
            f"invalid {name}: {quoted(value)}; give a whole number from {low} to {high}"
        )


def check_number(name: str, value: object, low: float, high: float, what: str) -> None:
    """Raise ConfigError unless `value` is a number in (low, high]; `what` says what it must be."""
    if type(value) not in (int, float) or not low < value <= high:  # type: ignore[operator]
        raise ConfigError(f"invalid {name}: {quoted(value)}; give {what}")


def as_written(share: float) -> Fraction:
    """Return a fraction of a whole as the decimal that is written: 0.07 of 100 is exactly 7.

    Ranks of quantiles and the clients that a trimmed mean drops are counted with it, so that no
    rounding in floating point (0.07 * 100 = 7.000000000000001) moves them.
    """
    return Fraction(str(share))
