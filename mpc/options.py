"""Describe the options of a method or a range policy: fields of a frozen dataclass that say what
they are.

What reads options from outside (flags, TOML, messages, `plan`, benchmarks) asks `options_of` and
knows no method by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, get_type_hints

from securemedian.mpc.errors import ConfigError, quoted


@dataclass(frozen=True)
class Option:
    """Hold what is known of one option. `kind` is its annotated type.

    `compared`: the values that `plan` compares if none is given. `swept`: whether the flags of
    `plan` and `bench` set it, which are shared by all methods; the help of those flags says what
    for.
    """

    name: str
    kind: Any
    default: Any
    help: str
    choices: tuple[str, ...]
    metavar: str | None
    compared: tuple[Any, ...]
    swept: bool


def option(
    default: Any,
    *,
    help: str,
    choices: tuple[str, ...] = (),
    metavar: str | None = None,
    compared: tuple[Any, ...] = (),
    swept: bool = True,
) -> Any:
    """Return the dataclass field of an option; a list or dictionary is copied per instance."""
    about = {
        "help": help,
        "choices": choices,
        "metavar": metavar,
        "compared": compared,
        "swept": swept,
    }
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=about)
    return field(default=default, metadata=about)


def options_of(cls: type) -> dict[str, Option]:
    """Return the options of a method or policy by name."""
    hints = get_type_hints(cls)
    return {
        f.name: Option(
            f.name,
            hints[f.name],
            f.default_factory() if callable(f.default_factory) else f.default,
            **f.metadata,
        )
        for f in fields(cls)
    }


def refuse_foreign(
    name: str, given: Mapping[str, Any], registry: Mapping[str, type], where: str = ""
) -> None:
    """Raise ConfigError for an option that others in the registry have and `name` does not."""
    own = options_of(registry[name])
    for key in given:
        others = [other for other, cls in registry.items() if key in options_of(cls)]
        if key not in own and others:
            raise ConfigError(
                f"{where}{key} is an option of {' and '.join(others)}: leave it out for {name}"
            )


def check_choices(instance: Any) -> None:
    """Raise ConfigError if an option with choices has another value."""
    for name, about in options_of(type(instance)).items():
        if about.choices:
            check_one_of(name, getattr(instance, name), about.choices)


def check_one_of(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise ConfigError unless `value` is one of the choices."""
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {quoted(value)}")


def check_whole(name: str, value: object, low: int, high: int) -> None:
    """Raise ConfigError unless `value` is a whole number in [low, high]; True is no number."""
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(
            f"{name} must be a whole number from {low} to {high}, not {quoted(value)}"
        )


def check_number(name: str, value: object, low: float, high: float, what: str) -> None:
    """Raise ConfigError unless `value` is a number in (low, high]; `what` says what it must be."""
    if type(value) not in (int, float) or not low < value <= high:  # type: ignore[operator]
        raise ConfigError(f"{name} must be {what}, not {quoted(value)}")


def as_written(share: float) -> Fraction:
    """Return a share as the decimal that it is written as: 0.07 of 100 is 7, not
    7.0000000000000009.

    Ranks of quantiles and what a trimmed mean drops are counted with it, so that no rounding of
    floating point moves them.
    """
    return Fraction(str(share))
