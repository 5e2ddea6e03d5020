"""The backend that a server's configuration asks for."""

from collections.abc import Callable
from pathlib import Path

from securemedian.servers.computing.backends.base import Backend
from securemedian.servers.computing.backends.ray import RayBackend
from securemedian.servers.computing.backends.threads import OpenLane, ThreadBackend
from securemedian.servers.config import ServerConfig


def backend_of(
    config: ServerConfig, open_lane: OpenLane, timeout_s: Callable[[], float]
) -> Backend:
    """Return the backend of `[engine] kind`; `timeout_s` gives today's `channel_timeout_s`.

    Raises ConfigError if what it needs is not installed, or if it is not guarded.
    """
    if config.engine.kind == "threads":
        return ThreadBackend(config.party, config.protocol, open_lane)
    folder = Path(config.state_dir)
    return RayBackend(config.party, config.protocol, config.engine, folder, open_lane, timeout_s)
