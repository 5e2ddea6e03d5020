"""The form of a model: the names, shapes and dtypes of the entries that clients send of it.

Two models of one length can differ in the order of their layers. The form lets clients send the
same values at the same places. It tells names of layers, and no values.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

from securemedian.mpc.errors import MAX_QUOTE, InputError, cut, quoted

# of the text of a form: thousands of entries, within what a message between servers may have
MAX_FORM_BYTES = 1 << 18
# the prefixes that torch.compile and DataParallel add to the names of a module's entries
_COMPILED, _PARALLEL = "_orig_mod.", "module."


class FormEntry(NamedTuple):
    """An array of a model."""

    # "" in a list of arrays, where the order alone says which one it is
    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        said = f"{self.name} {self.dtype} {self.shape}".lstrip()
        return cut(said if said.isprintable() else quoted(said), 2 * MAX_QUOTE)


@dataclass(frozen=True)
class ModelForm:
    """The entries that are sent, in the order in which they are sent."""

    entries: tuple[FormEntry, ...]

    @classmethod
    def of(cls, entries: Sequence[FormEntry]) -> Self:
        """Return the form of these entries, by the names that they have without wrappers.

        Raises InputError if two have the same name, or the text is too long.
        """
        names = [entry.name.replace(_COMPILED, "") for entry in entries]
        while names and all(name.startswith(_PARALLEL) for name in names):
            names = [name.removeprefix(_PARALLEL) for name in names]
        renamed = zip(names, entries, strict=True)
        made = cls(tuple(FormEntry(name, each.dtype, each.shape) for name, each in renamed))
        if made.named and len({*names}) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"two entries of the same name: {quoted(twice)}; rename one of them")
        if len(made.text.encode()) > MAX_FORM_BYTES:
            raise InputError(
                f"names and shapes of {len(entries):,} entries take more than "
                f"{MAX_FORM_BYTES:,} bytes: {len(made.text):,}; send the model as one flat "
                "vector"
            )
        return made

    @classmethod
    def parse(cls, text: str, dim: int) -> Self:
        """Return the form with this text, which comes from outside, of a model of `dim` values.

        Raises InputError if it is not such a form.
        """
        if len(text.encode()) > MAX_FORM_BYTES:
            raise InputError(
                f"the form of a model has more than {MAX_FORM_BYTES:,} characters: "
                f"{len(text):,}; send the model as one flat vector"
            )
        try:
            entries = []
            for name, dtype, shape in json.loads(text):
                if not isinstance(name, str) or not isinstance(dtype, str):
                    raise TypeError("a name or dtype is not text")
                if not all(type(size) is int and size >= 0 for size in shape):
                    raise TypeError("a shape is not a list of whole numbers")
                entries.append(FormEntry(name, dtype, tuple(shape)))
        except (RecursionError, TypeError, ValueError) as error:
            raise InputError(
                f"invalid form of a model: {quoted(text)}; write it as docs/wire.md says"
            ) from error
        made = cls(tuple(entries))
        if made.text != text:
            raise InputError(
                f"the form of a model is not canonical: {quoted(text)}; write it as "
                "docs/wire.md says"
            )
        if made.size != dim:
            raise InputError(
                f"the form does not have the round's {dim:,} values: {made.size:,}; give the "
                "form of the same model"
            )
        return made

    @cached_property
    def text(self) -> str:
        """The canonical text: a JSON list of name, dtype and shape per entry."""
        return json.dumps([[*entry] for entry in self.entries], separators=(",", ":"))

    @property
    def digest(self) -> str:
        """The SHA-256 of the text, in hex digits."""
        return digest_of(self.text)

    @property
    def named(self) -> bool:
        """Whether the entries have names. Those of a list of arrays have none."""
        return any(entry.name for entry in self.entries)

    @property
    def size(self) -> int:
        """The number of values."""
        return sum(math.prod(entry.shape) for entry in self.entries)

    def places(self, own: "ModelForm") -> list[int]:
        """Return for each entry the place of its counterpart in `own`.

        Entries are matched by name. If one of the two forms has no names, they are matched by
        their order. Raises InputError, which shows the first entry that differs.
        """
        if self.named and own.named:
            found = {entry.name: place for place, entry in enumerate(own.entries)}
            places = [found.get(entry.name, -1) for entry in self.entries]
        else:
            places = [n if n < len(own.entries) else -1 for n in range(len(self.entries))]
        for number, (entry, place) in enumerate(zip(self.entries, places, strict=True), 1):
            mine = own.entries[place] if place >= 0 else None
            if mine is None or mine[1:] != entry[1:]:
                raise InputError(
                    f"the model has another form, for entry {number} of the round is `{entry}`: "
                    f"here {f'`{mine}`' if mine else 'none'}; send the same model, or keep "
                    "different layers local at every client"
                )
        if more := sorted({*range(len(own.entries))} - {*places}):
            raise InputError(
                "the model has another form, for the round has no such entry: "
                f"`{own.entries[more[0]]}`; send the same model, or keep different layers local "
                "at every client"
            )
        return places


def digest_of(text: str) -> str:
    """Return the SHA-256 of a form's text in hex digits; "" for no text."""
    return hashlib.sha256(text.encode()).hexdigest() if text else ""
