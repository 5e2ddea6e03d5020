"""A server's configuration: one TOML file, which is checked completely before anything starts."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from securemedian.common.addresses import check_endpoint, host_and_port, ports_of
from securemedian.common.keys import check_key_places, check_public_key
from securemedian.common.policy import (
    STRICT,
    SWITCH,
    WAY_OUT,
    Policy,
    Security,
    check_security,
    without_switch,
)
from securemedian.common.status import DEFAULT_COHORT, check_cohort
from securemedian.common.toml import read_toml
from securemedian.mpc.canonical import build
from securemedian.mpc.errors import MAX_QUOTE, ConfigError, cut, quoted
from securemedian.mpc.options import check_number, check_one_of, check_whole
from securemedian.mpc.protocols.protocol import ProtocolParams

# The list of a round's clients travels in the header of one frame (mpc.wire.MAX_HEADER_BYTES),
# which has room for this many names, and for this many bytes of names in UTF-8.
MAX_CLIENTS = 4096
# the default floor: the median of two clients is the smaller value, which tells much about both
MIN_CLIENTS = 3
MAX_NAME = 40
MAX_NAMES_BYTES = MAX_CLIENTS * MAX_NAME
# Each cohort may have lanes and pools of its own.
MAX_COHORTS = 256
WEEK_S = 7 * 86400
# the most runs of the protocol for one round
MOST_RUNS = 1000
# the kinds of engines, and the most shards into which a server cuts a round
KINDS = ("threads", "ray")
MAX_SHARDS = 1024
# the lanes of a shard, where `[protocol] lanes` does not say: a worker has one CPU
WORKER_LANES = 1


@dataclass(frozen=True)
class Caller:
    """A client or coordinator on the allow-list: the key identifies it, the name is for people."""

    name: str
    public_key: str

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= MAX_NAME:
            raise ConfigError(
                f"a name of {len(self.name)} characters: {quoted(self.name)}; use 1 to {MAX_NAME}"
            )
        if not self.name.isprintable():
            raise ConfigError(
                f"a name has characters that do not print: {quoted(self.name)}; use printable ones"
            )
        check_public_key(self.public_key)


@dataclass(frozen=True)
class CohortTable:
    """A table [[cohorts]]: who on the lists takes part in a cohort, by name."""

    name: str
    clients: list[str]
    # by default all
    coordinators: list[str] | None = None

    def __post_init__(self) -> None:
        check_cohort(self.name)
        for what, names in (("clients", self.clients), ("coordinators", self.coordinators or [])):
            if twice := [name for name, times in Counter(names).items() if times > 1]:
                raise ConfigError(
                    f"{what} of cohort {self.name} names somebody more than once: "
                    f"{_listed(twice)}; name each once"
                )
        if len(self.clients) < 2:
            raise ConfigError(
                f"cohort {self.name} has too few clients: {len(self.clients)}; name 2 or more"
            )


@dataclass(frozen=True)
class Members:
    """The clients and coordinators of a cohort."""

    # the clients' names by public key
    clients: Mapping[str, str]
    # public keys
    coordinators: frozenset[str]

    def __contains__(self, key: object) -> bool:
        return key in self.clients or key in self.coordinators


@dataclass(frozen=True)
class PeerTable:
    """The other server: S1 listens, S0 connects."""

    public_key: str
    # the line `signing-key` of its .key file, with which it signs what it vouches for
    signing_key: str
    # at S0: where S1 listens
    address: str = ""
    # at S1: where S0 connects
    listen: str = ""
    # at S1: the port, beside that of `listen`, of lanes that AES-GCM encrypts; 0 for CURVE alone
    aes_port: int = 0

    def __post_init__(self) -> None:
        check_public_key(self.public_key)
        check_public_key(self.signing_key, "signing")
        if bool(self.address) == bool(self.listen):
            raise ConfigError(
                "[peer] has both or neither of its addresses: address and listen; give "
                "`address` at S0 and `listen` at S1"
            )
        check_endpoint(self.endpoint)
        check_whole("aes_port", self.aes_port, 0, (1 << 16) - 1)
        if self.aes_port and self.address:
            raise ConfigError(
                "[peer] aes_port is S1's, because S0 connects: party = 0; leave it out"
            )

    @property
    def endpoint(self) -> str:
        return self.address or self.listen


@dataclass(frozen=True)
class MetricsConfig:
    """The address at which everybody who connects sees metrics and health over HTTP."""

    # HOST:PORT; "" for nowhere
    listen: str = ""

    def __post_init__(self) -> None:
        if self.listen:
            host_and_port(self.listen)


NEEDS_RAY = "[engine] kind = \"ray\" needs Ray: pip install '.[ray]' in a clone"


@dataclass(frozen=True)
class EngineConfig:
    """The place where a server computes: threads of its process, or workers of a Ray cluster."""

    # "threads" or "ray", the same at both servers
    kind: str = "threads"
    # HOST:PORT of the cluster's head; "" for a local cluster that the server starts and ends
    address: str = ""
    # whether a cluster at an address may do without token and TLS
    insecure: bool = False
    # how many workers this server asks the cluster for, of one CPU each
    workers: int = 2
    # how many shards a round is cut into, the same at both servers; 0 for as many as workers
    shards: int = 0
    # at S1: FIRST-LAST, the ports at which its workers listen; "" for any
    ports: str = ""

    def __post_init__(self) -> None:
        check_one_of("kind", self.kind, KINDS)
        check_whole("workers", self.workers, 1, MAX_SHARDS)
        check_whole("shards", self.shards, 0, MAX_SHARDS)
        own = ("address", "insecure", "workers", "shards", "ports")
        changed = [name for name in own if getattr(self, name) != getattr(EngineConfig, name)]
        if self.kind == "threads" and changed:
            raise ConfigError(
                f'these settings are for kind = "ray" alone: {", ".join(own)}; leave them out'
            )
        if self.shard_count < self.workers:
            raise ConfigError(
                f"more workers than the {self.shards} shards, so that some would have nothing "
                f"to do: {self.workers}; lower workers"
            )
        if self.address:
            host_and_port(self.address)
        if self.ports:
            ports_of(self.ports)

    @property
    def shard_count(self) -> int:
        return self.shards or self.workers

    def agreement(self) -> dict[str, Any]:
        """Return the fields that must be the same at both servers."""
        shards = {"shards": self.shard_count} if self.kind == "ray" else {}
        return {"engine": self.kind} | shards


@dataclass(frozen=True)
class ServerConfig:
    """All settings of one server. File names are relative to the folder of the TOML file."""

    # 0 leads, keeps the model and takes the coordinator's requests; 1 follows
    party: int
    # the address for clients and coordinators
    listen: str
    # NAME.key_secret, which only its owner may read
    key_file: str
    # the folder of uploads, while a round lasts; at S0 also of the model
    state_dir: str
    peer: PeerTable
    clients: tuple[Caller, ...]
    coordinators: tuple[Caller, ...] = ()
    # the members of cohorts; everybody takes part in "default", unless it is one of them
    cohorts: tuple[CohortTable, ...] = ()
    # the fewest clients that this server ever computes with, whatever a round's own min_clients
    min_clients: int = MIN_CLIENTS
    # a word of `Security`: "bounded" refuses rounds of which one server that deviates could
    # learn more than a bounded leak (`policy.PERMITTED`), "malicious" those of which it could learn
    # anything beyond the result. The same at both servers
    security: str = Security.SEMI_HONEST
    # how long this server waits after its start for the other one to appear, before it gives up
    peer_wait_s: float = 300.0
    # how long the other server may give no sign of life, or no answer
    peer_timeout_s: float = 10.0
    # the limit for one message of the protocol
    channel_timeout_s: float = 60.0
    # the limit for one run of the protocol
    round_limit_s: float = 3600.0
    # how often a round's computation may break off before the round fails. It limits the runs of
    # the protocol, too; the smaller of both servers' limits counts
    max_attempts: int = 5
    # the wait before a computation that broke off is tried again; it doubles each time, up to 60 s
    retry_wait_s: float = 1.0
    # how long the other server may be away from a round before the round fails
    resume_limit_s: float = 86400.0
    # how long a running protocol may go on after SIGTERM
    stop_limit_s: float = 60.0
    # the most bytes of a client's request, all parts together, each of at most 4 MiB
    max_message_bytes: int = 1 << 28
    # the most bytes of correlations that are made while clients train, with an even share for each
    # cohort; the smaller of both servers' shares counts
    pool_limit_bytes: int = 1 << 28
    protocol: ProtocolParams = field(default_factory=ProtocolParams)
    # the place where it computes
    engine: EngineConfig = field(default_factory=EngineConfig)
    # the rounds in which this server takes part, whatever the coordinator asks for
    policy: Policy = field(default_factory=Policy)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)

    def __post_init__(self) -> None:
        if self.party not in (0, 1):
            raise ConfigError(f"invalid party: {self.party}; write 0 or 1")
        if (self.party == 0) != bool(self.peer.address):
            raise ConfigError(
                f"[peer] has the other party's address: party = {self.party}; give `address` "
                "where party = 0 and `listen` where party = 1"
            )
        check_endpoint(self.listen)
        if self.party == 0 and self.engine.ports:
            raise ConfigError(
                "[engine] ports are S1's, because the workers of S0 connect: party = 0; leave "
                "them out"
            )
        line = check_security(self.security).line
        if self.bounded and self.protocol.silent:
            raise ConfigError(
                f"silent OT cannot detect a server that deviates, and {line} "
                'excludes it: ot_extension = "silent"; set ot_extension = "softspoken" in '
                f"[protocol] of s0.toml and s1.toml, or {WAY_OUT}"
            )
        if self.bounded and self.engine.kind == "ray":
            raise ConfigError(
                "workers on Ray compute a lost shard, and open it, again without limit, and "
                f'{line} excludes them: kind = "ray"; set kind = "threads" in '
                f"[engine] of s0.toml and s1.toml, or {WAY_OUT}"
            )
        for name in (
            "peer_wait_s",
            "peer_timeout_s",
            "channel_timeout_s",
            "round_limit_s",
            "retry_wait_s",
            "resume_limit_s",
            "stop_limit_s",
        ):
            check_number(name, getattr(self, name), 0, WEEK_S, "more than 0 and at most a week")
        check_whole("max_attempts", self.max_attempts, 1, MOST_RUNS)
        for name, more_than, what in (
            ("min_clients", 1, "2 or more, for a single client's median is its own update"),
            ("max_message_bytes", 0, "more than 0"),
            ("pool_limit_bytes", -1, "0 (make nothing ahead) or more"),
        ):
            check_number(name, getattr(self, name), more_than, (1 << 63) - 1, what)
        if not 2 <= len(self.clients) <= MAX_CLIENTS:
            raise ConfigError(
                f"the wrong number of [[clients]]: {len(self.clients)}; list 2 to {MAX_CLIENTS}"
            )
        if (size := sum(len(client.name.encode()) for client in self.clients)) > MAX_NAMES_BYTES:
            raise ConfigError(
                f"the names of the {len(self.clients):,} [[clients]] are longer than the "
                f"{MAX_NAMES_BYTES:,} bytes of a status: {size:,} bytes in UTF-8; give them "
                "shorter names"
            )
        callers = self.clients + self.coordinators
        for what, values in (
            ("name", [caller.name for caller in callers]),
            ("public_key", [caller.public_key for caller in callers] + [self.peer.public_key]),
        ):
            value, times = Counter(values).most_common(1)[0]
            if times > 1:
                raise ConfigError(
                    f"the {what} appears {times} times: {quoted(value)}; give everybody one "
                    "key, one name and one role"
                )
        if len(self.cohorts) > MAX_COHORTS:
            raise ConfigError(
                f"more than {MAX_COHORTS} [[cohorts]]: {len(self.cohorts)}; remove some"
            )
        name, times = Counter([table.name for table in self.cohorts] or [""]).most_common(1)[0]
        if times > 1:
            raise ConfigError(f"[[cohorts]] has {times} tables of one name: {name!r}; make it one")
        # finds names that are on no list
        assert self.members

    @property
    def name(self) -> str:
        return f"s{self.party}"

    @property
    def bounded(self) -> bool:
        """Whether it limits what a server that deviates learns: "bounded" or "malicious"."""
        return self.security != Security.SEMI_HONEST

    def agreement(self) -> dict[str, Any]:
        """Return the fields that must be the same at both servers."""
        own = {SWITCH: self.bounded}
        if self.security == Security.MALICIOUS:
            own[STRICT] = True
        return own | self.protocol.agreement() | self.engine.agreement()

    def check_malicious(self) -> None:
        """Raise ConfigError unless this server can take part in rounds with security malicious."""
        for given, what, remedy in (
            (self.protocol.silent, "silent OT", 'ot_extension = "softspoken" in [protocol]'),
            (self.engine.kind == "ray", "workers on Ray", 'kind = "threads" in [engine]'),
        ):
            if given:
                raise ConfigError(
                    f"no round with security malicious has {what}: {self.name}; set {remedy} at "
                    "both servers, or leave security malicious out"
                )

    @property
    def pool_share_bytes(self) -> int:
        """The most bytes of correlations that one cohort makes while its clients train."""
        return self.pool_limit_bytes // len(self.members)

    @cached_property
    def members(self) -> dict[str, Members]:
        """The clients and coordinators of each cohort, by its name."""
        everybody = CohortTable(DEFAULT_COHORT, [client.name for client in self.clients])
        tables = {table.name: table for table in (everybody, *self.cohorts)}
        return {
            name: Members(
                _chosen(self.clients, table.clients, f"clients of cohort {name}"),
                frozenset(
                    _chosen(self.coordinators, table.coordinators, f"coordinators of cohort {name}")
                ),
            )
            for name, table in tables.items()
        }


def _listed(names: Iterable[str]) -> str:
    return cut(", ".join(map(repr, names)), MAX_QUOTE)


def _chosen(callers: tuple[Caller, ...], names: list[str] | None, where: str) -> dict[str, str]:
    """Return by key the names of those callers who are named, or of all."""
    if unknown := set(names or ()) - {caller.name for caller in callers}:
        raise ConfigError(
            f"{where} names clients that are not on the list: {_listed(sorted(unknown))}; add "
            "them to [[clients]]"
        )
    return {one.public_key: one.name for one in callers if names is None or one.name in names}


def check_own_key(config: ServerConfig, public_key: str, signing_key: str) -> None:
    """Raise ConfigError if this server's own public keys are listed as somebody else's."""
    if public_key == config.peer.public_key or signing_key == config.peer.signing_key:
        raise ConfigError(
            f"[peer] has this server's own public key: {config.name}; paste the key of the "
            "other server, which another organisation runs"
        )
    for caller in config.clients + config.coordinators:
        if public_key == caller.public_key:
            raise ConfigError(
                f"{config.name}'s own public key is in the list as that of another: "
                f"{caller.name!r}; give everybody one key, one name and one role"
            )


def _without_doors(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a file's values without the settings of doors, which release 1.0 alone has.

    Its `keygen` wrote `doors = 0`, and so a server takes that. Raises ConfigError for any other
    number.
    """
    if values.get("doors", 0) != 0:
        raise ConfigError(
            f"{where}, this server takes all uploads by itself: doors = "
            f"{quoted(values['doors'])}; remove `doors` and `door_ports`"
        )
    return {name: value for name, value in values.items() if name not in ("doors", "door_ports")}


def load(path: Path) -> ServerConfig:
    """Read and check a configuration.

    Raises ConfigError, which says what is wrong and where.
    """
    where = str(path)
    values = without_switch(_without_doors(read_toml(path), where), where)
    check_key_places(values, where)
    config = build(ServerConfig, values, where)
    if config.engine.kind == "ray" and "lanes" not in values.get("protocol", {}):
        config = replace(config, protocol=replace(config.protocol, lanes=WORKER_LANES))
    folder = path.parent
    return replace(
        config, key_file=str(folder / config.key_file), state_dir=str(folder / config.state_dir)
    )


# The lists and limits that are read for every request, round, lane or stop. Everything else is part
# of sockets, files, the session with the other server or what both have agreed on.
CHANGEABLE = frozenset(
    {
        "clients",
        "coordinators",
        "cohorts",
        "min_clients",
        "policy",
        "channel_timeout_s",
        "round_limit_s",
        "max_attempts",
        "retry_wait_s",
        "resume_limit_s",
        "stop_limit_s",
    }
)


def reloaded(
    current: ServerConfig, wanted: ServerConfig
) -> tuple[ServerConfig, dict[str, list[str]]]:
    """Return the next configuration of a running server, and the changes for its log.

    The changes are the settings that are `changed` and that need a restart (`needs_restart`), and
    the names of callers whose keys are `added` to the lists or `removed`. Raises ConfigError if the
    parts that can be changed do not fit those that cannot.
    """
    names = [each.name for each in fields(ServerConfig)]
    differing = [name for name in names if getattr(current, name) != getattr(wanted, name)]
    changed = [name for name in differing if name in CHANGEABLE]
    config = replace(current, **{name: getattr(wanted, name) for name in changed})
    before, after = (
        {caller.public_key: caller.name for caller in one.clients + one.coordinators}
        for one in (current, config)
    )
    return config, {
        "changed": changed,
        "added": [name for key, name in after.items() if key not in before],
        "removed": [name for key, name in before.items() if key not in after],
        "needs_restart": [name for name in differing if name not in CHANGEABLE],
    }
