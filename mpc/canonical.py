"""Dataclasses from maps that came from outside (TOML, msgpack, JSON), and the digest that both servers compare."""

import hashlib
from dataclasses import MISSING, fields
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgpack

from securemedian.mpc.errors import ConfigError


def digest(*values: Any) -> bytes:
    """SHA-256 of a canonical msgpack encoding: what the servers compare."""
    return hashlib.sha256(msgpack.packb(values)).digest()


T = TypeVar("T")


def build(cls: type[T], values: object, where: str) -> T:
    """A flat dataclass from a map that came from outside (TOML, msgpack). ConfigError names unknown, missing and
    mistyped keys and `where` they stand.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected a table of settings, not {type(values).__name__}")
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(str(key) for key in set(values) - set(known))
    if unknown:
        raise ConfigError(
            f"{where}: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}"
        )
    missing = sorted(
        n
        for n, f in known.items()
        if f.default is MISSING and f.default_factory is MISSING and n not in values
    )
    if missing:
        raise ConfigError(f"{where}: missing {', '.join(missing)}")
    hints = get_type_hints(cls)
    for name, value in values.items():
        hint = hints[name]
        allowed = [
            get_origin(kind) or kind
            for kind in (get_args(hint) if isinstance(hint, UnionType) else (hint,))
        ]
        if float in allowed:
            allowed.append(int)
        if type(value) not in allowed:  # type() and not isinstance(): True is no number
            raise ConfigError(
                f"{where}: {name} must be {' or '.join(kind.__name__ for kind in allowed)}, not {value!r}"
            )
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
