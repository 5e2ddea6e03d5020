"""The addresses of servers, as zmq writes them, and of pages that they show over HTTP."""

import socket
from ipaddress import ip_address
from typing import Any

from securemedian.mpc.errors import ConfigError, quoted

# how long an address of a name that has several may take to answer
PROBE_S = 2.0


def check_endpoint(endpoint: str) -> None:
    """Raise ConfigError unless `endpoint` is an address that zmq can use over a network."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    bare = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if endpoint.startswith("tcp://") and bare:
        raise ConfigError(
            f"an IPv6 address without brackets: {quoted(endpoint)}; write tcp://[ADDRESS]:PORT"
        )
    if not (
        endpoint.startswith("tcp://") and host and port.isdecimal() and 0 < int(port) < 1 << 16
    ):
        raise ConfigError(
            f"invalid address: {quoted(endpoint)}; write tcp://HOST:PORT with a port from 1 to "
            "65535"
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
            f"invalid address to listen on: {quoted(listen)}; write HOST:PORT, such as "
            "127.0.0.1:9464"
        )
    return host, int(port)


def host_of(endpoint: str) -> str:
    """Return the host of tcp://HOST:PORT as other libraries than zmq take it; "" is any address."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    return "" if host == "*" else host.strip("[]")


def bracketed(host: str) -> str:
    """Return a host as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def listens_ipv6(endpoint: str) -> bool:
    """Return whether zmq is to listen with IPv6 at tcp://HOST:PORT; it then takes IPv4, too."""
    host = host_of(endpoint)
    # libzmq uses IPv4 alone where the system has no IPv6
    return not host or ":" in host or _families(host, 0) == {socket.AF_INET6}


def connects_ipv6(endpoint: str) -> bool:
    """Return whether zmq is to connect with IPv6 to tcp://HOST:PORT.

    zmq tries one address of a name. So of a name with addresses of both kinds the first one is
    taken that answers, in the order of the system.
    """
    host, port = host_of(endpoint), int(endpoint.rpartition(":")[2])
    families = _families(host, port)
    if len(families) < 2:
        # a name that cannot be resolved now may have either later, which zmq maps into IPv6
        return families != {socket.AF_INET}
    for family, kind, protocol, _, address in _resolved(host, port):
        with socket.socket(family, kind, protocol) as probe:
            probe.settimeout(PROBE_S)
            try:
                probe.connect(address)
            except OSError:
                continue
            return family == socket.AF_INET6
    return False


def _families(host: str, port: int) -> set[int]:
    return {family for family, *_ in _resolved(host, port)}


def _resolved(host: str, port: int) -> list[Any]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [each for each in found if each[0] in (socket.AF_INET, socket.AF_INET6)]


def ports_of(text: str) -> range:
    """Return the ports of FIRST-LAST. Raises ConfigError for anything else."""
    first, _, last = text.partition("-")
    if not all(port.isascii() and port.isdecimal() for port in (first, last)) or not (
        0 < int(first) <= int(last) < 1 << 16
    ):
        raise ConfigError(
            f"invalid range of ports: {quoted(text)}; write FIRST-LAST, such as 50000-50100"
        )
    return range(int(first), int(last) + 1)


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine reach a server that listens at `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
