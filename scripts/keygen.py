"""Keys and configurations: for everybody at once, or for one party that exchanges nothing but public keys."""

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
DEFAULT_BASE_PORT = (
    7000  # of a party made alone: the others, elsewhere, must come to the same ports
)
LOOPBACK = "127.0.0.1"
NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,39}"  # becomes a file name and stands in TOML


@dataclass(frozen=True)
class Network:
    """Where the servers are. Clients and coordinators go to `s0` and `s1`, S0 goes to `s1_peer`."""

    host0: str
    host1: str
    s0: int
    s1: int
    s1_peer: int


def network(host0: str, host1: str, base_port: int | None) -> Network:
    """Three ports from `base_port` on, or three that are free on this machine now."""
    if base_port is not None:
        if not 1 <= base_port <= 65533:
            raise ConfigError(
                f"--base-port must be from 1 to 65533, not {base_port}: three ports are used from it on"
            )
        return Network(host0, host1, base_port, base_port + 1, base_port + 2)
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(3)]
        for probe in probes:  # all held at once, so that they differ
            probe.bind((LOOPBACK, 0))
        return Network(host0, host1, *(probe.getsockname()[1] for probe in probes))


def make_all(directory: Path, clients: int, net: Network) -> None:
    """Keys and configurations of S0, S1, the coordinator and `clients` clients."""
    names = client_names(clients)
    everybody = ["s0", "s1", "coordinator", *names]
    _prepare(directory, everybody)
    keys = {name: _make_keys(directory, name) for name in everybody}
    for name in everybody:
        role = "client" if name in names else name
        (directory / f"{name}.toml").write_text(_configuration(role, name, keys, net, names))


def make_one(directory: Path, role: str, name: str, clients: int, net: Network) -> str:
    """One party's keys, and a configuration to fill the others' public keys in. Returns its own, to hand out."""
    _prepare(directory, [name])
    key = _make_keys(directory, name)
    (directory / f"{name}.toml").write_text(
        _configuration(role, name, {name: key}, net, client_names(clients))
    )
    return key


def client_names(count: int) -> list[str]:
    return [f"client-{number}" for number in range(1, count + 1)]


def _prepare(directory: Path, names: Sequence[str]) -> None:
    """Make the directory, for its owner alone. ConfigError rather than overwrite a file."""
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

    mask = os.umask(0o077)  # the secret is never readable by others, not even while it is written
    try:
        public_file, _ = zmq.auth.create_certificates(directory, name)
    finally:
        os.umask(mask)
    os.chmod(public_file, 0o644)
    return zmq.auth.load_certificate(public_file)[0].decode()


def _configuration(
    role: str, name: str, keys: Mapping[str, str], net: Network, clients: Sequence[str]
) -> str:
    """The TOML of one party. A public key that is not in `keys` becomes a marked place, which no loader takes."""

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
    """The loopback alone if the others come over it, else every address: a public name need not be one of them."""
    return f"tcp://{host if host == LOOPBACK else '0.0.0.0'}:{port}"


SERVER = """\
# {role}. Every setting there is stands in docs/samples. Start with: securemedian serve FILE
party = {party}
listen = "{listen}"  # for clients and the coordinator
key_file = "{name}.key_secret"
state_dir = "{name}-state"
min_clients = 2  # this server refuses any round with fewer: set it higher for real data, see docs/threat-model.md

[peer]
{peer_key}
{peer}

{callers}"""

CALLER = """\
# The {role}'s configuration. Every setting there is stands in docs/samples.
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
            "Make keys and ready-to-use configurations for both servers, the coordinator and N clients; or, with "
            "--role, for one party alone, which then fills the others' public keys in and hands out its own. "
            "Nothing is ever overwritten."
        ),
    )
    verb.add_argument("directory", type=Path, metavar="DIR", help="where to; made with mode 0700")
    verb.add_argument(
        "--clients",
        type=int,
        metavar="N",
        help="how many clients the servers allow, 2 or more (with --role s0 or s1: default 2)",
    )
    verb.add_argument("--role", choices=ROLES, help="make this party alone")
    verb.add_argument(
        "--name",
        help="with --role: of the files, and what the servers call this party (default: the role; a client needs one)",
    )
    verb.add_argument(
        "--host0",
        default=LOOPBACK,
        metavar="HOST",
        help="where S0 is reached (default: %(default)s)",
    )
    verb.add_argument(
        "--host1",
        default=LOOPBACK,
        metavar="HOST",
        help="where S1 is reached (default: %(default)s)",
    )
    verb.add_argument(
        "--base-port",
        type=int,
        metavar="P",
        help=(
            "S0 listens at P, S1 at P+1, and at P+2 for S0 "
            f"(default: three free ports of this machine; with --role {DEFAULT_BASE_PORT})"
        ),
    )
    verb.set_defaults(run=_keygen)


def _keygen(options: argparse.Namespace) -> None:
    directory: Path = options.directory
    if options.role is None:
        if options.clients is None or options.name is not None:
            raise ConfigError(
                "say for how many clients: --clients N; or make one party alone: --role, with --name for a client"
            )
        make_all(
            directory,
            _check_clients(options.clients),
            network(options.host0, options.host1, options.base_port),
        )
        print(
            f"{directory} has the keys and configurations of s0, s1, the coordinator and {options.clients} clients"
        )
        print("hand every party its own .toml and .key_secret, and nobody another's")
        return
    if options.role == "client" and not options.name:
        raise ConfigError("a client needs a name, which the servers know it by: --name hospital-a")
    name = _check_name(options.name or options.role)
    net = network(
        options.host0,
        options.host1,
        DEFAULT_BASE_PORT if options.base_port is None else options.base_port,
    )
    key = make_one(directory, options.role, name, _check_clients(options.clients or 2), net)
    print(f"{directory / name}.toml: fill in the others' public keys where it says PASTE HERE")
    print(f"hand out, by a way that nobody can change it on: the public key of {name} is {key}")


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
