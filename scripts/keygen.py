"""The verb `keygen`, which makes keys and configurations.

It makes them for everybody at once, or for one party, which then exchanges nothing but public keys.
"""

import argparse
import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from securemedian.mpc.errors import ConfigError
from securemedian.servers.config import MAX_CLIENTS

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

ROLES = ("s0", "s1", "coordinator", "client")
# for a party made alone: the others, who are elsewhere, must use the same ports
DEFAULT_BASE_PORT = 7000
LOOPBACK = "127.0.0.1"
# a party's name becomes a file name, and is written into TOML
NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,39}"


@dataclass(frozen=True)
class Network:
    """The hosts and ports of the servers."""

    host0: str
    host1: str
    # the ports for clients and the coordinator
    s0: int
    s1: int
    # S1's port for S0
    s1_peer: int


def network(host0: str, host1: str, base_port: int | None) -> Network:
    """Return the network with three ports from `base_port` on, or, if that is None, free ones.

    Free ports are those of this machine. Raises ConfigError if `base_port` is out of range.
    """
    if base_port is not None:
        if not 1 <= base_port <= 65533:
            raise ConfigError(
                f"--base-port must be from 1 to 65533, not {base_port}: "
                "the three ports from it on are used"
            )
        return Network(host0, host1, base_port, base_port + 1, base_port + 2)
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(3)]
        # all are held at once, so that they differ
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return Network(host0, host1, *(probe.getsockname()[1] for probe in probes))


def make_all(directory: Path, clients: int, net: Network) -> None:
    """Make the keys and configurations of S0, S1, the coordinator and `clients` clients."""
    names = client_names(clients)
    everybody = ["s0", "s1", "coordinator", *names]
    _prepare(directory, everybody)
    keys = {name: _make_keys(directory, name) for name in everybody}
    for name in everybody:
        role = "client" if name in names else name
        (directory / f"{name}.toml").write_text(_configuration(role, name, keys, net, names))


def make_one(directory: Path, role: str, name: str, clients: int, net: Network) -> str:
    """Make one party's keys, and a configuration into which it pastes the others' public keys.

    Returns the party's own public key, to hand out.
    """
    _prepare(directory, [name])
    key = _make_keys(directory, name)
    (directory / f"{name}.toml").write_text(
        _configuration(role, name, {name: key}, net, client_names(clients))
    )
    return key


def client_names(count: int) -> list[str]:
    """Return the names of `count` clients."""
    return [f"client-{number}" for number in range(1, count + 1)]


def _prepare(directory: Path, names: Sequence[str]) -> None:
    """Make the directory, for its owner alone.

    Raises ConfigError if it cannot be made, or if one of the parties has a file there already.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the directory {directory}: {error.strerror}") from error
    for name in names:
        for ending in ("toml", "key", "key_secret"):
            if (path := directory / f"{name}.{ending}").exists():
                raise ConfigError(
                    f"{path} is there already, and a key once overwritten is lost: "
                    "choose another directory or move it away"
                )


def _make_keys(directory: Path, name: str) -> str:
    """Write NAME.key and NAME.key_secret, and return the public key."""
    import zmq.auth

    # others can never read the secret, not even while it is written
    mask = os.umask(0o077)
    try:
        public_file, _ = zmq.auth.create_certificates(directory, name)
    finally:
        os.umask(mask)
    os.chmod(public_file, 0o644)
    return zmq.auth.load_certificate(public_file)[0].decode()


def _configuration(
    role: str, name: str, keys: Mapping[str, str], net: Network, clients: Sequence[str]
) -> str:
    """Return the TOML of one party.

    A public key that is not in `keys` becomes a marked place, which every loader refuses.
    """

    def public_key(of: str) -> str:
        return f'public_key = "{keys.get(of, f"PASTE HERE the public key of {of}")}"'

    if role not in ("s0", "s1"):
        return CALLER.format(
            name=name,
            role=role,
            s0=f"tcp://{net.host0}:{net.s0}",
            s0_key=public_key("s0"),
            s1=f"tcp://{net.host1}:{net.s1}",
            s1_key=public_key("s1"),
        )
    party = int(role[1])
    host, port = (net.host0, net.s0) if party == 0 else (net.host1, net.s1)
    peer = (
        f'address = "tcp://{net.host1}:{net.s1_peer}"'
        if party == 0
        else f'listen = "{_listen(host, net.s1_peer)}"'
    )
    callers = [("coordinators", "coordinator"), *(("clients", client) for client in clients)]
    return SERVER.format(
        role=role.upper(),
        party=party,
        listen=_listen(host, port),
        name=name,
        peer_key=public_key(f"s{1 - party}"),
        peer=peer,
        callers="\n".join(
            f'[[{table}]]\nname = "{caller}"\n{public_key(caller)}\n' for table, caller in callers
        ),
    )


def _listen(host: str, port: int) -> str:
    """Return the address to listen at: the loopback if `host` is, and otherwise every address.

    The name under which others reach a host need not be one of its own addresses.
    """
    return f"tcp://{host if host == LOOPBACK else '0.0.0.0'}:{port}"


SERVER = """\
# {role}. docs/samples shows all settings. Start it with: securemedian serve FILE
party = {party}
# the address for clients and the coordinator
listen = "{listen}"
key_file = "{name}.key_secret"
state_dir = "{name}-state"
# This server refuses rounds with fewer clients. For real data set it higher: docs/threat-model.md.
min_clients = 2

[peer]
{peer_key}
{peer}

{callers}"""

CALLER = """\
# The {role}'s configuration. docs/samples shows all settings.
name = "{name}"
key_file = "{name}.key_secret"

[s0]
address = "{s0}"
{s0_key}

[s1]
address = "{s1}"
{s1_key}
"""


def add_verbs(verbs: "Verbs") -> None:
    """Add `keygen` to the `securemedian` command."""
    verb = verbs.add_parser(
        "keygen",
        help="make keys and configurations",
        description=(
            "Make keys and ready-to-use configurations for both servers, the coordinator and N "
            "clients; or, with --role, for one party alone, which then pastes in the others' "
            "public keys and hands out its own. Nothing is ever overwritten."
        ),
    )
    verb.add_argument(
        "directory", type=Path, metavar="DIR", help="the folder to write to; made with mode 0700"
    )
    verb.add_argument(
        "--clients",
        type=int,
        metavar="N",
        help="how many clients the servers allow, 2 or more (with --role s0 or s1: default 2)",
    )
    verb.add_argument("--role", choices=ROLES, help="make this party alone")
    verb.add_argument(
        "--name",
        help=(
            "with --role: the name of the files, by which the servers call this party "
            "(default: the role; a client needs a name)"
        ),
    )
    verb.add_argument(
        "--host0",
        default=LOOPBACK,
        metavar="HOST",
        help="the host at which S0 is reached (default: %(default)s)",
    )
    verb.add_argument(
        "--host1",
        default=LOOPBACK,
        metavar="HOST",
        help="the host at which S1 is reached (default: %(default)s)",
    )
    verb.add_argument(
        "--base-port",
        type=int,
        metavar="P",
        help=(
            "S0 listens at P; S1 listens at P+1, and for S0 at P+2 "
            f"(default: three free ports of this machine; with --role {DEFAULT_BASE_PORT})"
        ),
    )
    verb.set_defaults(run=_keygen)


def _keygen(options: argparse.Namespace) -> None:
    directory: Path = options.directory
    if options.role is None:
        if options.clients is None or options.name is not None:
            raise ConfigError(
                "say for how many clients: --clients N; "
                "or make one party alone: --role, with --name for a client"
            )
        make_all(
            directory,
            _check_clients(options.clients),
            network(options.host0, options.host1, options.base_port),
        )
        print(
            f"{directory} has the keys and configurations of s0, s1, the coordinator and "
            f"{options.clients} clients"
        )
        print("give every party its own .toml and .key_secret, and nobody those of another")
        return
    if options.role == "client" and not options.name:
        raise ConfigError("a client needs a name, by which the servers call it: --name hospital-a")
    name = _check_name(options.name or options.role)
    net = network(
        options.host0,
        options.host1,
        DEFAULT_BASE_PORT if options.base_port is None else options.base_port,
    )
    key = make_one(directory, options.role, name, _check_clients(options.clients or 2), net)
    print(f"{directory / name}.toml: paste in the others' public keys where it says PASTE HERE")
    print(f"hand out this public key of {name}, so that nobody can swap it on the way: {key}")


def _check_clients(count: int) -> int:
    if not 2 <= count <= MAX_CLIENTS:
        raise ConfigError(
            f"--clients must be from 2 to {MAX_CLIENTS}, not {count}: "
            "the median of a single client is that client's update"
        )
    return count


def _check_name(name: str) -> str:
    if not re.fullmatch(NAME, name):
        raise ConfigError(
            f"--name must be 1 to 40 letters, digits, dots, dashes or underscores, not {name!r}"
        )
    return name
