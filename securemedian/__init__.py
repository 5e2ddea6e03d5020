"""Robust, private federated learning: two servers compute what neither can see.

    from securemedian import Client, Coordinator, RoundParams

This package is all that an installation puts beside other packages. Its parts are the folders of the
repository, `mpc` the lowest; in a checkout they stand here as links.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from securemedian.clients.client import Client, Coordinator
    from securemedian.clients.config import ClientConfig
    from securemedian.clients.upload import Round
    from securemedian.mpc.errors import SecureMedianError
    from securemedian.mpc.params import RangePolicy, RoundParams

__version__ = "0.2.0"
__all__ = [
    "Client",
    "ClientConfig",
    "Coordinator",
    "RangePolicy",
    "Round",
    "RoundParams",
    "SecureMedianError",
]

_HOMES = {
    "Client": "clients.client",
    "ClientConfig": "clients.config",
    "Coordinator": "clients.client",
    "RangePolicy": "mpc.params",
    "Round": "clients.upload",
    "RoundParams": "mpc.params",
    "SecureMedianError": "mpc.errors",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for, so that `mpc` needs no sockets."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
