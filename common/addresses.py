"""The addresses of servers, as zmq writes them, and of pages that they show over HTTP."""

from ipaddress import ip_address

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


def host_and_port(listen: str) -> tuple[str, int]:
    """Return the parts of HOST:PORT or [IPV6]:PORT; 0 is any free port. Raises ConfigError."""
    host, _, port = listen.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not (host and port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise ConfigError(
            f"where to listen is HOST:PORT, such as 127.0.0.1:9464, not {quoted(listen)}"
        )
    return host, int(port)


def ports_of(text: str) -> range:
    """Return the ports of FIRST-LAST. Raises ConfigError for anything else."""
    first, _, last = text.partition("-")
    if not all(port.isascii() and port.isdecimal() for port in (first, last)) or not (
        0 < int(first) <= int(last) < 1 << 16
    ):
        raise ConfigError(f"ports are FIRST-LAST, such as 50000-50100, not {quoted(text)}")
    return range(int(first), int(last) + 1)


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine reach a server that listens at `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
