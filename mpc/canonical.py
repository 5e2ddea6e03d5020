"""Build dataclasses from maps that came from outside, and digest what both servers compare.

The maps are read from TOML, msgpack or JSON.
"""

import hashlib
from dataclasses import MISSING, Field, fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgpack

from securemedian.mpc.errors import MAX_QUOTE, ConfigError, cut, quoted

T = TypeVar("T")
_hints: dict[type, dict[str, Any]] = {}
# the types of values as errors call them, alone and as the elements of a list
_WORDS = {
    bool: "true or false",
    bytes: "bytes",
    dict: "a table",
    float: "a number",
    int: "a whole number",
    list: "a list",
    str: "text",
    tuple: "a list",
    type(None): "nothing",
}
_WORDS_OF = {float: "numbers", int: "whole numbers", list: "lists", str: "texts"}


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
    that is newer than the first version (`since` in its metadata) is left out if it has its
    default. The map and its digest are then those of releases that do not know it.
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
    """Return a dataclass built from a map that came from outside.

    A field whose type is a dataclass, or a tuple of them, is built from a map, or a list of maps.
    `made` are fields that are already built and that the map must not name. Raises ConfigError if
    keys are unknown, missing or of the wrong type, elements of lists and maps included; the message
    names them and says `where` they stand.
    """
    if not isinstance(values, dict):
        raise ConfigError(
            f"{where}: not a table of settings but {type(values).__name__}; write NAME = VALUE"
        )
    known = {f.name: f for f in fields(cls) if f.name not in made}  # type: ignore[arg-type]
    unknown = sorted(str(key) for key in set(values) - set(known))
    if unknown:
        raise ConfigError(
            f"{where}: unknown {cut(', '.join(unknown), MAX_QUOTE)}; known are "
            f"{', '.join(sorted(known))}"
        )
    missing = sorted(
        n
        for n, f in known.items()
        if f.default is MISSING and f.default_factory is MISSING and n not in values
    )
    if missing:
        raise ConfigError(f"{where}: missing {', '.join(missing)}; add them")
    hints = hints_of(cls)
    found = {name: _built(hints[name], value, name, where) for name, value in values.items()}
    try:
        return cls(**found, **made)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _built(hint: Any, value: Any, name: str, where: str) -> Any:
    """Return the value of a field. Raises ConfigError if it does not have the type `hint`."""
    if isinstance(hint, type) and is_dataclass(hint):
        return value if isinstance(value, hint) else build(hint, value, f"{where}: [{name}]")
    if get_origin(hint) is tuple and is_dataclass(kind := get_args(hint)[0]):
        if not isinstance(value, list):
            raise ConfigError(
                f"{where}: one table [{name}]; write [[{name}]] once for each of them"
            )
        return tuple(
            build(kind, entry, f"{where}: [[{name}]] {number}")  # type: ignore[arg-type]
            for number, entry in enumerate(value, 1)
        )
    if get_origin(hint) is dict and type(value) is dict:
        # so that an error names the entry
        for key, one in value.items():
            _built(get_args(hint)[1], one, f"{name}: {quoted(key)}", where)
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if not any(_fits(value, kind) for kind in kinds):
        words = " or ".join(map(_name_of, kinds))
        raise ConfigError(f"{where}: invalid {name}: {quoted(value)}; give {words}")
    return value


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value has a type, and its elements have theirs."""
    outer, inner = get_origin(kind) or kind, get_args(kind)
    if outer is Any:
        return True
    # type() instead of isinstance(), because True is not a number here
    if type(value) is not outer:
        return outer is float and type(value) is int
    if outer is dict and inner:
        return all(_fits(key, inner[0]) and _fits(one, inner[1]) for key, one in value.items())
    return outer is not list or not inner or all(_fits(one, inner[0]) for one in value)


def _name_of(kind: Any) -> str:
    outer, inner = get_origin(kind) or kind, get_args(kind)
    word = _WORDS.get(outer, str(outer.__name__))
    if not inner or inner[-1] is Any:
        return word
    return f"{word} of {_WORDS_OF.get(inner[-1]) or _name_of(inner[-1])}"
