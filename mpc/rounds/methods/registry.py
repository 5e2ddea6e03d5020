"""The list of methods: a new one is a module next to this one and a line here.

A method's module is loaded when the method is first looked up, with the protocols that it runs.
"""

from collections.abc import Iterator, MutableMapping
from importlib import import_module

from securemedian.mpc.rounds.methods.base import Method

# By the names used in flags, messages and files. The first is the default of flags.
_HOMES = {
    "bucketed": "bucketed.Bucketed",
    "pairwise": "pairwise.Pairwise",
    "radix": "radix.Radix",
    "trimmed-mean": "trimmed_mean.TrimmedMean",
    "mean": "mean.Mean",
    "reclustered": "reclustered.Reclustered",
    "zeno": "zeno.Zeno",
    "krum": "krum.Krum",
}


class _Methods(MutableMapping[str, type[Method]]):
    """The methods by name."""

    def __init__(self) -> None:
        self._found: dict[str, type[Method] | None] = dict.fromkeys(_HOMES)

    def __getitem__(self, name: str) -> type[Method]:
        found = self._found[name]
        if found is None:
            module, cls = _HOMES[name].split(".")
            found = getattr(import_module(f"securemedian.mpc.rounds.methods.{module}"), cls)
            self._found[name] = found
        return found

    def __setitem__(self, name: str, method: type[Method]) -> None:
        self._found[name] = method

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


METHODS = _Methods()
DEFAULT_METHOD = next(iter(METHODS))
