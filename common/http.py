"""A listening socket and a web server, for the dashboard and for a server's metrics."""

import socket
from typing import TYPE_CHECKING, Any

from securemedian.common.addresses import host_and_port
from securemedian.mpc.errors import ConfigError

if TYPE_CHECKING:
    from uvicorn import Server

# the seconds that the last answers may take at the end
END_S = 2


def listening(listen: str) -> socket.socket:
    """Return a socket that listens at HOST:PORT. Raises ConfigError if it cannot."""
    host, port = host_and_port(listen)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on this address: {listen} ({error.strerror or error}); choose another"
        ) from error


def server_of(app: Any, **settings: Any) -> "Server":
    """Return a server of an application. It needs uvicorn, which is an extra."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=END_S,
            **settings,
        )
    )
