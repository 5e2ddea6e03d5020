"""Robust, private federated learning: two servers compute what neither can see.

    from securemedian import Client, Coordinator, Radix, RoundParams, flatten, unflatten

Methods (`Bucketed`, `Radix`, ..) and range policies (`MeanRange`, ..) are found by the names of
their classes.

This package is the only name that an installation adds to those of other packages. Its parts are
the folders of the repository, of which `mpc` is the lowest; in a checkout they are links.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from securemedian.clients.client import Client
    from securemedian.clients.config import ClientConfig
    from securemedian.clients.public import PublicSet
    from securemedian.clients.update import flatten, unflatten
    from securemedian.clients.upload import RangeWarning, Round
    from securemedian.coordinator.coordinator import Coordinator
    from securemedian.mpc.errors import SecureMedianError
    from securemedian.mpc.rounds.exchange import Predictions
    from securemedian.mpc.rounds.params import RoundParams
    from securemedian.mpc.rounds.ranges.base import RangePolicy

__version__ = "0.8.0"
__all__ = [
    "Client",
    "ClientConfig",
    "Coordinator",
    "Predictions",
    "PublicSet",
    "RangePolicy",
    "RangeWarning",
    "Round",
    "RoundParams",
    "SecureMedianError",
    "flatten",
    "unflatten",
]

_HOMES = {
    "Client": "clients.client",
    "ClientConfig": "clients.config",
    "Coordinator": "coordinator.coordinator",
    "Predictions": "mpc.rounds.exchange",
    "PublicSet": "clients.public",
    "RangePolicy": "mpc.rounds.ranges.base",
    "RangeWarning": "clients.upload",
    "Round": "clients.upload",
    "RoundParams": "mpc.rounds.params",
    "SecureMedianError": "mpc.errors",
    "flatten": "clients.update",
    "unflatten": "clients.update",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `mpc` needs no sockets."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    if not name.startswith("_"):
        from securemedian.mpc.rounds.methods.registry import METHODS
        from securemedian.mpc.rounds.ranges.registry import POLICIES

        for cls in (*METHODS.values(), *POLICIES.values()):
            if cls.__name__ == name:
                return cls
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
