"""The verb `keygen`, which makes keys and configurations.

It makes them for everybody at once, or for one party, which then exchanges nothing but public keys
(`exchange`).
"""

import argparse
import json
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from securemedian.common.addresses import bracketed
from securemedian.common.keys import MARK, SIGNING_MARK, SigningKey
from securemedian.common.policy import (
    BOUNDED,
    COST,
    PERMITTED,
    STANDS_OUT,
    WAY_OUT,
    Policy,
    Security,
    add_switch,
    check_security,
    risks_of,
)
from securemedian.common.terminal import Teller
from securemedian.mpc.errors import ConfigError, quoted
from securemedian.mpc.options import check_whole
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.operating.public_keys import (
    ROLES,
    SERVERS,
    STDIN,
    PublicKey,
    check,
    check_name,
    join,
    read_public_keys,
    replace_text,
)
from securemedian.servers.config import MAX_CLIENTS, MIN_CLIENTS

# for a party made alone: the others, who are elsewhere, must use the same ports
DEFAULT_BASE_PORT = 7000
LOOPBACK = "127.0.0.1"
DEFAULT_SECURITY = Security.BOUNDED


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
    host0, host1 = bracketed(host0), bracketed(host1)
    if base_port is not None:
        if not 1 <= base_port <= 65533:
            raise ConfigError(
                f"invalid --base-port: {base_port}; give 1 to 65533, for the three ports from "
                "it on are used"
            )
        return Network(host0, host1, base_port, base_port + 1, base_port + 2)
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(3)]
        # all are held at once, so that they differ
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return Network(host0, host1, *(probe.getsockname()[1] for probe in probes))


@dataclass(frozen=True)
class _Service:
    """The facts of a service that configurations have in common."""

    clients: Sequence[str]
    net: Network
    policy: Policy
    min_clients: int
    security: str
    # by name; those of others become marked places, which every loader refuses
    keys: Mapping[str, PublicKey]

    def configuration(self, role: str, name: str) -> str:
        """Return the TOML of one party."""

        def public_key(of: str) -> str:
            key = self.keys.get(of)
            lines = [f'public_key = "{key.key if key else f"{MARK}{of}"}"']
            if of in SERVERS:
                lines.append(f'signing_key = "{key.signing_key if key else f"{SIGNING_MARK}{of}"}"')
            return "\n".join(lines)

        net, client = self.net, role == "client"
        if role not in SERVERS:
            return CALLER.format(
                name=name,
                role=role,
                state=STATE.format(name=name) if client else "",
                s0=f"tcp://{net.host0}:{net.s0}",
                s0_key=public_key("s0"),
                s1=f"tcp://{net.host1}:{net.s1}",
                s1_key=public_key("s1"),
                policy=f"\n{policy_table(self.policy, self.security)}\n" if client else "",
            )
        first = role == "s0"
        host, port = (net.host0, net.s0) if first else (net.host1, net.s1)
        to_s1 = f'address = "tcp://{net.host1}:{net.s1_peer}"'
        callers = [("coordinators", "coordinator"), *(("clients", one) for one in self.clients)]
        return SERVER.format(
            role=role.upper(),
            party=0 if first else 1,
            listen=_listen(host, port),
            name=name,
            peer_key=public_key("s1" if first else "s0"),
            peer=to_s1 if first else f'listen = "{_listen(host, net.s1_peer)}"',
            min_clients=self.min_clients,
            security=check_security(self.security).line,
            attempts=ATTEMPTS if self.security != Security.SEMI_HONEST else "",
            policy=policy_table(self.policy),
            callers="\n".join(
                f'[[{table}]]\nname = "{one}"\n{public_key(one)}\n' for table, one in callers
            ),
        )


def make(
    directory: Path,
    clients: Sequence[str],
    net: Network,
    policy: Policy | None = None,
    min_clients: int = MIN_CLIENTS,
    security: str = Security.SEMI_HONEST,
    roles: Mapping[str, str] | None = None,
) -> list[PublicKey]:
    """Make the keys and configurations of S0, S1, the coordinator and these clients.

    With `roles`, the role by name, make them for those parties alone: the others' public keys are
    to be filled in. Both servers and the clients have the `policy` and `security`, and both servers
    `min_clients`. Returns the public keys that were made.
    """
    if roles is None:
        roles = {one: one for one in (*SERVERS, "coordinator")} | dict.fromkeys(clients, "client")
    _prepare(directory, list(roles))
    made = [_make_keys(directory, role, name) for name, role in roles.items()]
    keys = {one.name: one for one in made}
    service = _Service(clients, net, policy or Policy(), min_clients, security, keys)
    for name, role in roles.items():
        (directory / f"{name}.toml").write_text(service.configuration(role, name))
    return made


def client_names(count: int) -> list[str]:
    return [f"client-{number}" for number in range(1, count + 1)]


def _prepare(directory: Path, names: Sequence[str]) -> None:
    """Make the directory, for its owner alone.

    Raises ConfigError if it cannot be made, or if one of the parties has a file there already.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot make the directory: {directory} ({error.strerror}); choose another"
        ) from error
    for name in names:
        for ending in ("toml", "key", "key_secret"):
            if (path := directory / f"{name}.{ending}").exists():
                raise ConfigError(
                    f"an existing file, and a key once overwritten is lost: {path}; choose "
                    "another directory or move it away"
                )


def _make_keys(directory: Path, role: str, name: str) -> PublicKey:
    """Write NAME.key, which says whose it is, and NAME.key_secret; return the public key."""
    import zmq.auth

    # others can never read the secret, not even while it is written
    mask = os.umask(0o077)
    try:
        public_file, secret_file = map(Path, zmq.auth.create_certificates(directory, name))
        # pyzmq has a place for this, and writes it to the secret file alone
        about = f'metadata\n    role = "{role}"\n    name = "{name}"\n'
        public_file.write_text(public_file.read_text().replace("metadata\n", about, 1))
        os.chmod(public_file, 0o644)
        if role in SERVERS:
            key = SigningKey.new()
            public = f'signing\n    signing-key = "{key.public}"\n'
            secret = f'{public}    signing-secret = "{key.secret}"\n'
            # the secret first: a public key whose secret is nowhere would be handed out in vain
            for file, lines in ((secret_file, secret), (public_file, public)):
                replace_text(file, file.read_text().replace("curve\n", f"{lines}curve\n", 1))
    finally:
        os.umask(mask)
    (made,) = read_public_keys([str(public_file)])
    return made


def policy_table(policy: Policy, security: str = "") -> str:
    """Return a policy in TOML, a client's if it has `security`; comments explain risky values."""
    lines = [check_security(security).line] if security else []
    lines += [*_explained("method"), f"methods = {json.dumps(policy.methods)}"]
    if policy.max_epsilon is not None:
        lines.append(f"max_epsilon = {policy.max_epsilon}")
    for table in ("allowed", "at_most", "at_least"):
        limits = getattr(policy, table)
        lines += ["", f"[policy.{table}]"] if limits else []
        for name, limit in limits.items():
            lines += [*_explained(name), f"{name} = {json.dumps(limit)}"]
    return "\n".join([CLIENT_POLICY if security else SERVER_POLICY, *lines])


def _explained(name: str) -> list[str]:
    return [f"# {value}: {why}" for value, why in risks_of(name).items()]


def _listen(host: str, port: int) -> str:
    """Return the address to listen at: the loopback if `host` is, and otherwise every address.

    The name under which others reach a host need not be one of its own addresses.
    """
    if host not in (LOOPBACK, "[::1]", "localhost"):
        # of IPv6, too, unless the host is an address of IPv4
        host = "0.0.0.0" if host.replace(".", "").isdecimal() else "*"
    return f"tcp://{host}:{port}"


SERVER = """\
# {role}. docs/samples shows all settings. Start it with: securemedian serve FILE
party = {party}
# the address for clients and the coordinator
listen = "{listen}"
key_file = "{name}.key_secret"
state_dir = "{name}-state"
# This server refuses rounds with fewer clients. For real data take 5 or more: docs/threat-model.md.
min_clients = {min_clients}
# "malicious": only rounds in which a deviating server learns nothing beyond the result.
# "bounded": only those in which it learns little. "semi-honest": all rounds; a deviating server
# could then read one client's value. The same at both: docs/servers.md.
{security}
{attempts}
[peer]
{peer_key}
{peer}

{policy}

{callers}"""

ATTEMPTS = """\
# how often a round is computed at most, if it breaks off: one that cheats learns more each time
max_attempts = 2
"""

SERVER_POLICY = """\
# The rounds that this server takes part in, whatever a coordinator asks for: docs/servers.md. What
# a comment explains opens more than the result, or trusts more than it needs: it is allowed where
# the lines of both servers have it, for clients whose own lines do.
[policy]"""

CLIENT_POLICY = """\
# The rounds that this client takes part in, whatever a coordinator asks for and the servers allow:
# docs/deploying.md. Options with a comment reveal more than the result, or need extra trust.
[policy]
# with_clients = ["client-2"] # only rounds in which these can take part
# without_clients = ["client-3"] # only rounds in which none of these can
# "malicious": only rounds in which a deviating server learns nothing beyond the result.
# "bounded": only those in which it learns little, with servers that have this line, too.
# "semi-honest": all rounds; a deviating server could then read this client's value."""

STATE = """\
# With it a client goes on after a restart. For one process at a time; never copy it.
state_dir = "{name}-state"
# Its number of records, for rounds with weights. Without it the client takes part in none.
# weight = 1234
"""

CALLER = """\
# The {role}'s configuration. docs/samples shows all settings.
name = "{name}"
key_file = "{name}.key_secret"
{state}
[s0]
address = "{s0}"
{s0_key}

[s1]
address = "{s1}"
{s1_key}
{policy}"""


def add_verbs(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    left_out = [name for name in METHODS if name not in Policy().methods]
    verb = verbs.add_parser(
        "keygen",
        description=(
            "Make keys and ready-to-use configurations for both servers, the coordinator and N "
            "clients. With --role, make them for one party alone, which hands out its public key "
            "and fills in the others' with --join. Nothing is ever overwritten. Each public key is "
            "printed with its fingerprint, to be compared over the telephone."
        ),
    )
    verb.add_argument(
        "directory",
        type=Path,
        nargs="?",
        metavar="DIR",
        help="the folder to write to; made with mode 0700",
    )
    exchange = verb.add_mutually_exclusive_group()
    exchange.add_argument(
        "--join",
        type=Path,
        metavar="CONFIG",
        help=(
            "fill others' public keys into this party's configuration, in the places that it "
            "names, and then check it"
        ),
    )
    exchange.add_argument(
        "--check",
        type=Path,
        metavar="CONFIG",
        help="print the fingerprints of a configuration's keys, and name all that are missing",
    )
    verb.add_argument(
        "--keys",
        nargs="+",
        metavar="FILE",
        help=(
            "with --join: the others' .key files, each called NAME.key after whose key it has; "
            f"{STDIN} for the standard input (default), which takes the lines that keygen printed"
        ),
    )
    verb.add_argument(
        "--clients",
        metavar="NAMES",
        help=(
            "the clients that the servers allow, NAME,NAME,..; or how many, which are then called "
            f"client-1 and so on (with --role s0 or s1: default {MIN_CLIENTS})"
        ),
    )
    verb.add_argument(
        "--min-clients",
        type=int,
        metavar="N",
        help=(
            "the fewest clients that a server computes with, the same at both; for real data 5 or "
            f"more (default: {MIN_CLIENTS})"
        ),
    )
    verb.add_argument(
        "--security",
        choices=list(Security),
        metavar="WORD",
        help=(
            f"`{Security.MALICIOUS}`: servers and clients take part only in rounds in which a "
            "deviating server learns nothing beyond the result ("
            f"{' or '.join(PERMITTED[Security.MALICIOUS])} --security malicious). "
            f"`{Security.BOUNDED}`: only in those in which it learns little "
            f"(methods {' and '.join(BOUNDED)}). "
            f"`{Security.SEMI_HONEST}`: they take part in rounds of all methods but "
            f"{' and '.join(left_out)}; {COST}. Give both servers the same "
            f"(default: {DEFAULT_SECURITY})"
        ),
    )
    add_switch(verb)
    verb.add_argument("--role", choices=ROLES, help="make this party alone")
    verb.add_argument(
        "--name",
        help=(
            "with --role client or coordinator: the name of the files, by which the servers call "
            "this party (default: the role; a client needs a name)"
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
    _check_flags(options)
    if options.join:
        _join(options.join, options.keys or [STDIN])
    elif options.check:
        _check(options.check)
    elif options.role:
        _make_one(options)
    else:
        _make_all(options)


def _check_flags(options: argparse.Namespace) -> None:
    config = options.join or options.check
    made = options.directory, options.role, options.name, options.clients, options.min_clients
    if config and any(each is not None for each in (*made, options.security)):
        raise ConfigError(
            f"--join and --check take an existing file: {options.join or options.check}; leave "
            "out DIR, --role, --name, --clients, --min-clients and --security"
        )
    if options.keys and not options.join:
        raise ConfigError(
            f"--keys goes only with --join: {options.keys}; add --join, or leave it out"
        )
    if not config and not options.directory:
        raise ConfigError(
            "no folder to write to: DIR; name one, or give --join CONFIG or --check CONFIG"
        )


def _make_all(options: argparse.Namespace) -> None:
    if options.clients is None or options.name is not None:
        raise ConfigError(
            "no clients: --clients; give their number or names, or make one party alone: "
            "--role, with --name for a client"
        )
    clients, floor, security = _asked(options)
    net = network(options.host0, options.host1, options.base_port)
    made = make(options.directory, clients, net, None, floor, security)
    print(
        f"{options.directory} has the keys and configurations of s0, s1, the coordinator and "
        f"{len(clients)} clients"
    )
    _say_floor(floor, security)
    print("give every party its own .toml and .key_secret, and nobody those of another")
    print("their public keys, each with its fingerprint:")
    print("\n".join(one.line for one in made))


def _make_one(options: argparse.Namespace) -> None:
    role, directory = options.role, options.directory
    if role == "client" and not options.name:
        raise ConfigError(
            "a client without a name, by which the servers call it: --role client; add --name "
            "hospital-a"
        )
    if role in SERVERS and options.name:
        raise ConfigError(
            f"the name of a server is its role {role}: --name {options.name}; leave it out"
        )
    name = check_name(options.name or role, "--name, ")
    port = DEFAULT_BASE_PORT if options.base_port is None else options.base_port
    net = network(options.host0, options.host1, port)
    clients, floor, security = _asked(options)
    (made,) = make(directory, clients, net, None, floor, security, {name: role})
    if role in SERVERS:
        _say_floor(floor, security)
    print(f"hand out {directory / name}.key, or this line:")
    print(made.line)
    print("and read its last word, the fingerprint, out over the telephone")
    print(f"fill in the others' keys: securemedian keygen --join {directory / name}.toml --keys ..")


def _say_floor(floor: int, security: str) -> None:
    tell = Teller(on_stdout=True)
    tell(
        f"a server refuses rounds with fewer than {floor} clients (min_clients in its .toml): "
        "both decide on it"
    )
    methods = PERMITTED.get(Security(security), Policy().methods)
    strict = f" --security {security}" if security == Security.MALICIOUS else ""
    tell(f"security is {security}: these files allow rounds of {', '.join(methods)}{strict}")
    if security == Security.BOUNDED:
        tell(
            "they allow zoom --security malicious, too; zoom without that takes the line "
            f'zoom = "{STANDS_OUT}" in [policy] of all files'
        )
    if security != Security.SEMI_HONEST:
        tell(f"for other methods {WAY_OUT}")
    else:
        tell(f"with it {COST}; for real data: keygen --security {Security.BOUNDED}")


def _join(path: Path, sources: Sequence[str]) -> None:
    print("\n".join(join(path, read_public_keys(sources))))
    print("compare the fingerprints with their owners, over the telephone")
    try:
        _, faults = check(path)
    except ConfigError as error:
        faults = [str(error)]
    for fault in faults:
        print(f"still to do: {fault}")
    if not faults:
        print(f"{path} is complete")


def _check(path: Path) -> None:
    """Print every key, and raise ConfigError if one is missing or wrong, or anything else is."""
    lines, faults = check(path)
    print("\n".join(lines))
    sys.stdout.flush()
    if faults:
        raise ConfigError(f"{path}: {'; '.join(faults)}")
    print(f"{path} is complete")


def _asked(options: argparse.Namespace) -> tuple[list[str], int, str]:
    """Return the names that `--clients` gives or counts, the servers' floor, and the security."""
    floor = MIN_CLIENTS if options.min_clients is None else options.min_clients
    text = options.clients or str(max(floor, MIN_CLIENTS))
    # a count of so many digits could not be made
    count = int(text) if re.fullmatch(r"-?\d{1,9}", text) else None
    names = text.split(",") if count is None else []
    if not 2 <= (len(names) if count is None else count) <= MAX_CLIENTS:
        raise ConfigError(
            f"invalid --clients: {quoted(text)}; give 2 to {MAX_CLIENTS}, or as many names, for "
            "the median of a single client is that client's update"
        )
    taken = {"coordinator", *SERVERS}
    for name in names:
        if check_name(name, "--clients, ") in taken:
            raise ConfigError(f"--clients names somebody twice: {name}; choose another name")
        taken.add(name)
    names = names or client_names(count or 0)
    check_whole("--min-clients", floor, 2, MAX_CLIENTS)
    if floor > len(names):
        raise ConfigError(
            f"fewer clients than the {floor} that servers ask for: {len(names)}; name more with "
            "--clients, because a median of few tells much of each. For a trial give "
            f"--min-clients {len(names)} at both servers"
        )
    return names, floor, options.security or DEFAULT_SECURITY
