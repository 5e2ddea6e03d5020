"""Two-party computation of coordinate-wise medians and means on shares.

`protocols` are the protocols on shares, from oblivious transfer to comparison. `rounds` is what a
round computes with them: methods, ranges, parameters, the pipeline. Nothing here opens a socket,
reads a configuration or knows of servers and clients.
"""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType


def submodules(package: str) -> Callable[[str], ModuleType]:
    """Return a `__getattr__` for a package that loads its modules when they are first used."""

    def load(name: str) -> ModuleType:
        if name.startswith("_"):
            raise AttributeError(f"{package} has no {name}")
        try:
            return import_module(f"{package}.{name}")
        except ModuleNotFoundError as error:
            raise AttributeError(f"{package} has no {name}") from error

    return load
