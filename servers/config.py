"""A server's configuration: one TOML file, which is checked completely before anything starts."""

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from securemedian.mpc.canonical import build
from securemedian.mpc.errors import ConfigError, quoted
from securemedian.mpc.protocol import ProtocolParams
from securemedian.servers.policy import Policy
from securemedian.settings.addresses import check_endpoint, host_and_port
from securemedian.settings.keys import check_key_places, check_public_key, check_signing_key
from securemedian.settings.toml import read_toml

# The list of a round's clients travels in the header of one frame (mpc.wire.MAX_HEADER_BYTES),
# which has room for this many names.
MAX_CLIENTS = 4096
MAX_NAME = 40
WEEK_S = 7 * 86400


@dataclass(frozen=True)
class Caller:
    """A client or coordinator on the allow-list: the key identifies it, the name is for people."""

    name: str
    public_key: str

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= MAX_NAME:
            raise ConfigError(
                f"a name has 1 to {MAX_NAME} characters, not {len(self.name)}: {quoted(self.name)}"
            )
        check_public_key(self.public_key)


@dataclass(frozen=True)
class Peer:
    """The other server: S1 listens, S0 connects."""

    public_key: str
    # the line `signing-key` of its .key file, with which it signs what it vouches for
    signing_key: str
    # at S0: where S1 listens
    address: str = ""
    # at S1: where S0 connects
    listen: str = ""

    def __post_init__(self) -> None:
        check_public_key(self.public_key)
        check_signing_key(self.signing_key)
        if bool(self.address) == bool(self.listen):
            raise ConfigError("[peer] needs `address` at S0 or `listen` at S1, and not both")
        check_endpoint(self.endpoint)

    @property
    def endpoint(self) -> str:
        return self.address or self.listen


@dataclass(frozen=True)
class MetricsConfig:
    """Where metrics and health are shown over HTTP, to everybody who can connect."""

    # HOST:PORT; "" for nowhere
    listen: str = ""

    def __post_init__(self) -> None:
        if self.listen:
            host_and_port(self.listen)


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
    peer: Peer
    clients: tuple[Caller, ...]
    coordinators: tuple[Caller, ...] = ()
    # the fewest clients that this server ever computes with, whatever a round's own min_clients
    min_clients: int = 2
    # how long this server waits after its start for the other one to appear, before it gives up
    peer_wait_s: float = 300.0
    # how long the other server may give no sign of life, or no answer
    peer_timeout_s: float = 10.0
    # the limit for one message of the protocol
    channel_timeout_s: float = 60.0
    # the limit for one run of the protocol
    round_limit_s: float = 3600.0
    # how often a round's computation may break off before the round fails
    max_attempts: int = 5
    # the wait before a computation that broke off is tried again; it doubles each time, up to 60 s
    retry_wait_s: float = 1.0
    # how long the other server may be away from a round before the round fails
    resume_limit_s: float = 86400.0
    # how long a running protocol may go on after SIGTERM
    stop_limit_s: float = 60.0
    # the most bytes of a client's request, all parts together; a longer part ends its connection
    max_message_bytes: int = 1 << 28
    # the most bytes of correlations made while clients train; the smaller of both servers' counts
    pool_limit_bytes: int = 1 << 28
    protocol: ProtocolParams = field(default_factory=ProtocolParams)
    # which rounds this server takes part in, whatever the coordinator asks for
    policy: Policy = field(default_factory=Policy)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)

    def __post_init__(self) -> None:
        if self.party not in (0, 1):
            raise ConfigError(f"party must be 0 or 1, not {self.party}")
        if (self.party == 0) != bool(self.peer.address):
            raise ConfigError("[peer] needs `address` where party = 0 and `listen` where party = 1")
        check_endpoint(self.listen)
        if self.min_clients < 2:
            raise ConfigError(
                f"min_clients must be 2 or more, not {self.min_clients}: "
                "a single client's median is its own update"
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
            if not 0 < getattr(self, name) <= WEEK_S:
                raise ConfigError(
                    f"{name} must be more than 0 and at most a week, not {getattr(self, name)}"
                )
        if not 1 <= self.max_attempts <= 1000:
            raise ConfigError(f"max_attempts must be 1 to 1000, not {self.max_attempts}")
        if self.max_message_bytes <= 0:
            raise ConfigError(
                f"max_message_bytes must be more than 0, not {self.max_message_bytes}"
            )
        if not 0 <= self.pool_limit_bytes < 1 << 63:
            raise ConfigError(
                "pool_limit_bytes must be 0 (make nothing ahead) or more, "
                f"not {self.pool_limit_bytes}"
            )
        if not 2 <= len(self.clients) <= MAX_CLIENTS:
            raise ConfigError(
                f"[[clients]] needs 2 to {MAX_CLIENTS} entries, not {len(self.clients)}"
            )
        callers = self.clients + self.coordinators
        for what, values in (
            ("name", [caller.name for caller in callers]),
            ("public_key", [caller.public_key for caller in callers] + [self.peer.public_key]),
        ):
            value, times = Counter(values).most_common(1)[0]
            if times > 1:
                raise ConfigError(
                    f"the {what} {quoted(value)} appears {times} times: "
                    "everybody has one key, one name and one role"
                )

    @property
    def name(self) -> str:
        return f"s{self.party}"


def _callers(values: dict[str, Any], table: str, where: str) -> tuple[Caller, ...]:
    entries = values.get(table, [])
    if not isinstance(entries, list):
        raise ConfigError(f"{where}: write [[{table}]] once for each of them, not [{table}]")
    return tuple(
        build(Caller, entry, f"{where}: [[{table}]] {i}") for i, entry in enumerate(entries, 1)
    )


def check_own_key(config: ServerConfig, public_key: str, signing_key: str) -> None:
    """Raise ConfigError if this server's own public keys are listed as somebody else's."""
    if public_key == config.peer.public_key or signing_key == config.peer.signing_key:
        raise ConfigError(
            f"[peer] has {config.name}'s own public key: paste the key of the other server, "
            "which another organisation runs"
        )
    for caller in config.clients + config.coordinators:
        if public_key == caller.public_key:
            raise ConfigError(
                f"{config.name}'s own public key is in the list as that of {caller.name!r}: "
                "everybody has one key, one name and one role"
            )


def load(path: Path) -> ServerConfig:
    """Read and check a configuration.

    Raises ConfigError, which says what is wrong and where.
    """
    values = read_toml(path)
    where = str(path)
    check_key_places(values, where)
    nested: dict[str, Any] = {
        table: _callers(values, table, where) for table in ("clients", "coordinators")
    }
    nested["peer"] = build(Peer, values.get("peer", {}), f"{where}: [peer]")
    nested["protocol"] = build(ProtocolParams, values.get("protocol", {}), f"{where}: [protocol]")
    nested["policy"] = build(Policy, values.get("policy", {}), f"{where}: [policy]")
    nested["metrics"] = build(MetricsConfig, values.get("metrics", {}), f"{where}: [metrics]")
    config = build(ServerConfig, values | nested, where)
    folder = path.parent
    return replace(
        config, key_file=str(folder / config.key_file), state_dir=str(folder / config.state_dir)
    )
