"""The addresses of servers, as zmq writes them."""

from securemedian.mpc.errors import ConfigError, quoted


def check_endpoint(endpoint: str) -> None:
    """Raise ConfigError unless `endpoint` is an address that zmq can use over a network."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not (
        endpoint.startswith("tcp://") and host and port.isdecimal() and 0 < int(port) < 1 << 16
    ):
        raise ConfigError(
            f"an address is tcp://HOST:PORT with a port from 1 to 65535, not {quoted(endpoint)}"
        )
