"""Build dataclasses from maps that came from outside, and digest what both servers compare.

The maps are read from TOML, msgpack or JSON.
"""

import hashlib
from dataclasses import MISSING, Field, fields
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgpack

from securemedian.mpc.errors import MAX_QUOTE, ConfigError, cut, quoted

T = TypeVar("T")
_hints: dict[type, dict[str, Any]] = {}


def digest(*values: Any) -> bytes:
    """Return the SHA-256 of the values' msgpack encoding, which the servers compare."""
    return hashlib.sha256(msgpack.packb(values)).digest()


def hints_of(cls: type) -> dict[str, Any]:
    """Return the types of a class's fields, which take a millisecond to find out."""
    if cls not in _hints:
        _hints[cls] = get_type_hints(cls)
    return _hints[cls]


def flat(instance: Any) -> dict[str, Any]:
    """Return a dataclass as the map that `build` takes, in one canonical form.

    A whole number given for a float becomes a float, so that both have the same digest. A field
    that is newer than the first version (`since` in its metadata) is left out where it has its
    default, so that the map and its digest are those of releases that do not know it.
    """
    hints, unused = hints_of(type(instance)), _unused(instance)
    values = {f.name: getattr(instance, f.name) for f in fields(instance) if f.name not in unused}
    return {name: float(value) if hints[name] is float else value for name, value in values.items()}


def newer(instance: Any) -> dict[str, int]:
    """Return the fields of a dataclass that are newer than version 1, by name: since which.

    Those that have their defaults are left out, as in `flat`.
    """
    unused = _unused(instance)
    return {
        f.name: f.metadata["since"]
        for f in fields(instance)
        if f.metadata.get("since", 1) > 1 and f.name not in unused
    }


def _unused(instance: Any) -> set[str]:
    """Return the names of the fields that are newer than version 1 and have their defaults."""
    return {
        f.name
        for f in fields(instance)
        if f.metadata.get("since", 1) > 1 and getattr(instance, f.name) == default_of(f)
    }


def default_of(field: Field[Any]) -> Any:
    """Return the default of a field, MISSING if it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def build(cls: type[T], values: object, where: str, **made: Any) -> T:
    """Return a flat dataclass built from a map that came from outside.

    `made` are fields that are already built and that the map must not name. Raises ConfigError if
    keys are unknown, missing or of the wrong type; the message names them and says `where` they
    stand.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected a table of settings, not {type(values).__name__}")
    known = {f.name: f for f in fields(cls) if f.name not in made}  # type: ignore[arg-type]
    unknown = sorted(str(key) for key in set(values) - set(known))
    if unknown:
        raise ConfigError(
            f"{where}: unknown {cut(', '.join(unknown), MAX_QUOTE)}; "
            f"known are {', '.join(sorted(known))}"
        )
    missing = sorted(
        n
        for n, f in known.items()
        if f.default is MISSING and f.default_factory is MISSING and n not in values
    )
    if missing:
        raise ConfigError(f"{where}: missing {', '.join(missing)}")
    hints = hints_of(cls)
    for name, value in values.items():
        hint = hints[name]
        allowed = [
            get_origin(kind) or kind
            for kind in (get_args(hint) if isinstance(hint, UnionType) else (hint,))
        ]
        if float in allowed:
            allowed.append(int)
        # type() instead of isinstance(), because True is not a number here
        if type(value) not in allowed:
            raise ConfigError(
                f"{where}: {name} must be {' or '.join(kind.__name__ for kind in allowed)}, "
                f"not {quoted(value)}"
            )
    try:
        return cls(**values, **made)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
