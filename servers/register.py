"""The register of a server's rounds, and of the clients whom an earlier attempt binds."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from securemedian.mpc.errors import (
    ConfigError,
    RoundBusy,
    SecureMedianError,
    UnknownRound,
    quoted,
)
from securemedian.mpc.params import RoundParams
from securemedian.servers.config import ServerConfig
from securemedian.servers.control import Open
from securemedian.servers.results import Result
from securemedian.servers.round_state import ServerRound
from securemedian.servers.store import Spool, Store
from securemedian.servers.training import Training

# the number of rounds whose status and result can still be asked for
KEPT_ROUNDS = 4
HOUR_S = 3600.0
# What an upload needs besides its words. zmq compares each part of a message, encrypted, with
# max_message_bytes, and CURVE adds 33 bytes to a part. The header, with a round id and a digest, is
# short.
ENVELOPE_BYTES = 1024

WhenOpened = Callable[[ServerRound, SecureMedianError | None], None]


@dataclass
class Entry:
    """A round, and what this server keeps for it."""

    server_round: ServerRound
    spool: Spool
    # S0's training run as the round finds it
    before: Training
    # called once S1 has answered, with the error if there is one
    when_opened: WhenOpened | None = None
    # S0's training run as the round leaves it
    after: Training | None = None
    # what the protocol has given
    result: Result | None = None


class Register:
    """Admits rounds and finds them again. At most one is live, and then it is the latest."""

    def __init__(self, config: ServerConfig, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self.reload(config)
        self._entries: dict[str, Entry] = {}
        self._closed = False
        # the number of the latest round that ran, and its clients, whose values may have been
        # opened
        self._bound: tuple[int, frozenset[str]] = (0, frozenset())
        # when the rounds of the last hour began
        self._begun: deque[float] = deque()

    def reload(self, config: ServerConfig) -> None:
        """Take over a configuration for the rounds to come; those that there are keep theirs."""
        self._config = config
        # the clients of new rounds: names by key
        self.names = {client.public_key: client.name for client in config.clients}

    @property
    def latest(self) -> Entry | None:
        return next(reversed(self._entries.values()), None)

    @property
    def live(self) -> Entry | None:
        """The round that has begun and not ended, if there is one."""
        entry = self.latest
        return entry if entry and entry.server_round.live else None

    def __contains__(self, round_id: str) -> bool:
        return round_id in self._entries

    def find(self, round_id: str) -> Entry:
        """Return a round by its id.

        Raises UnknownRound if this server does not know it, or no longer.
        """
        if round_id in self._entries:
            return self._entries[round_id]
        latest = self.latest
        known = (
            f"the latest is {latest.server_round.round_id}" if latest else "there has been none yet"
        )
        raise UnknownRound(f"{self._config.name} knows no round {quoted(round_id)}; {known}")

    def close(self) -> None:
        """Admit no more rounds."""
        self._closed = True

    def admit(self, asked: Open, params: RoundParams, before: Training) -> Entry:
        """Admit a new round, unless this server's own limits forbid it.

        Raises RoundBusy if this server stops, PolicyRefused if its policy is against the round,
        ConfigError if the uploads are too long or `max_clients` is below this server's own
        `min_clients`, and ClientsDiffer if it is below the number of clients that an earlier
        attempt binds.
        """
        config = self._config
        if self._closed:
            raise RoundBusy(f"{config.name} is being stopped")
        config.policy.check(params, self._rounds_of_the_hour(), config.name)
        upload_bytes = 8 * params.layout.words + ENVELOPE_BYTES
        if upload_bytes > config.max_message_bytes:
            raise ConfigError(
                f"an upload has {upload_bytes} bytes, and {config.name} takes at most "
                f"{config.max_message_bytes} (max_message_bytes)"
            )
        number, clients = self._bound
        server_round = ServerRound(
            config.party,
            asked,
            params,
            self.names,
            floor=config.min_clients,
            answer_s=config.peer_timeout_s,
            run_s=config.round_limit_s,
            repeats=clients if number == asked.number and not asked.start_over else frozenset(),
        )
        spool = self._store.spool(asked.round, params.layout, params.dealing)
        entry = Entry(server_round, spool, before)
        self._entries[asked.round] = entry
        while len(self._entries) > KEPT_ROUNDS:
            del self._entries[next(iter(self._entries))]
        return entry

    def begin(self) -> None:
        """Count a round that both servers take part in, for the policy's rounds per hour."""
        self._begun.append(self._clock())

    def _rounds_of_the_hour(self) -> int:
        """Return how many rounds have begun within the last hour, and forget earlier ones."""
        while self._begun and self._begun[0] <= self._clock() - HOUR_S:
            self._begun.popleft()
        return len(self._begun)

    def bind(self, number: int, clients: Iterable[str]) -> None:
        """Remember that values of these clients may have been opened at this number.

        Another attempt at the number takes these clients and nobody else, because two medians of
        the same updates, with and without a client, tell something about that client.
        """
        self._bound = number, frozenset(clients)

    def release(self) -> bool:
        """Forget whom an earlier attempt binds, because the coordinator starts over.

        Returns whether it bound anybody.
        """
        bound, self._bound = self._bound, (0, frozenset())
        return bool(bound[1])
