"""The list of methods: a new one is a module next to this one and a line here.

A method's module is loaded when the method is first looked up, with the protocols that it runs.
"""

from collections import UserDict
from collections.abc import MutableMapping
from importlib import import_module
from typing import Any

from securemedian.mpc.rounds.methods.base import Method


class _Lazy(UserDict[str, Any]):
    """Classes by name, or where each is: its module here and its own name."""

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        if isinstance(found, str):
            module, cls = found.split(".")
            found = getattr(import_module(f"securemedian.mpc.rounds.methods.{module}"), cls)
            self.data[name] = found
        return found


# By the names used in flags, messages and files. The first is the default of flags.
METHODS: MutableMapping[str, type[Method]] = _Lazy(
    {
        "bucketed": "bucketed.Bucketed",
        "pairwise": "pairwise.Pairwise",
        "radix": "radix.Radix",
        "zoom": "zoom.Zoom",
        "trimmed-mean": "trimmed_mean.TrimmedMean",
        "mean": "mean.Mean",
        "reclustered": "reclustered.Reclustered",
        "zeno": "zeno.Zeno",
        "krum": "krum.Krum",
    }
)
DEFAULT_METHOD = next(iter(METHODS))
