"""The rounds that a server knows, and the clients whom an earlier attempt binds."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from securemedian.servers.round_state import ServerRound
from securemedian.servers.store import Spool, Store
from securemedian.servers.training import Float32s, Training

# whose status and result can still be asked for
KEPT_ROUNDS = 4
# An upload is a header and its words. zmq holds each of the two parts, encrypted, against
# max_message_bytes: CURVE adds 33 bytes to a part. The header, a round id and a digest, is short.
ENVELOPE_BYTES = 1024

WhenOpened = Callable[[ServerRound, SecureMedianError | None], None]


@dataclass
class Entry:
    """Hold a round and what this server has for it.

    `before` and `after` are S0's training run as the round finds and leaves it; `results`, f4 of
    shape (results, d), is what S0 publishes, and `share` this server's share of a result that is
    for clients alone. `when_opened` is called once S1 has answered.
    """

    round: ServerRound
    spool: Spool
    before: Training
    when_opened: WhenOpened | None = None
    after: Training | None = None
    results: Float32s | None = field(default=None, repr=False)
    share: NDArray[np.uint64] | None = field(default=None, repr=False)
    cost: Mapping[str, Any] = field(default_factory=dict)


class Register:
    """Let rounds in and find them. At most one of them is live, and then it is the latest."""

    def __init__(self, config: ServerConfig, store: Store) -> None:
        self.names = {client.public_key: client.name for client in config.clients}
        self._config, self._store = config, store
        self._entries: dict[str, Entry] = {}
        self._closed = False
        # the number of the latest run, and its clients: their values may have been opened
        self._bound: tuple[int, frozenset[str]] = (0, frozenset())

    @property
    def latest(self) -> Entry | None:
        return next(reversed(self._entries.values()), None)

    @property
    def live(self) -> Entry | None:
        """The round in hand."""
        entry = self.latest
        return entry if entry and entry.round.live else None

    def __contains__(self, round_id: str) -> bool:
        return round_id in self._entries

    def find(self, round_id: str) -> Entry:
        """Return a round that is still known. Raises UnknownRound."""
        if round_id in self._entries:
            return self._entries[round_id]
        latest = self.latest
        known = f"the latest is {latest.round.id}" if latest else "there has been none yet"
        raise UnknownRound(f"{self._config.name} knows no round {quoted(round_id)}; {known}")

    def close(self) -> None:
        """Let no more rounds in."""
        self._closed = True

    def admit(self, asked: Open, params: RoundParams, before: Training) -> Entry:
        """Let a new round in, unless this server's own limits forbid it.

        Raises RoundBusy, ConfigError or ClientsDiffer.
        """
        config = self._config
        if self._closed:
            raise RoundBusy(f"{config.name} is being stopped")
        upload_bytes = 8 * params.layout.words + ENVELOPE_BYTES
        if upload_bytes > config.max_message_bytes:
            raise ConfigError(
                f"uploads of {upload_bytes} bytes; {config.name} takes {config.max_message_bytes} "
                "(max_message_bytes)"
            )
        number, clients = self._bound
        round_ = ServerRound(
            config.party,
            asked,
            params,
            self.names,
            floor=config.min_clients,
            answer_s=config.peer_timeout_s,
            run_s=config.round_limit_s,
            repeats=clients if number == asked.number and not asked.start_over else frozenset(),
        )
        entry = Entry(round_, self._store.spool(asked.round, params.layout), before)
        self._entries[asked.round] = entry
        while len(self._entries) > KEPT_ROUNDS:
            del self._entries[next(iter(self._entries))]
        return entry

    def bind(self, number: int, clients: Iterable[str]) -> None:
        """Remember that values of these clients may have been opened at this number.

        Another attempt at the number takes them and nobody else: of the same updates, the medians
        with and without a client tell about that client.
        """
        self._bound = number, frozenset(clients)

    def release(self) -> bool:
        """Forget whom an earlier attempt binds: the coordinator starts over.

        Return whether it bound anybody.
        """
        bound, self._bound = self._bound, (0, frozenset())
        return bool(bound[1])
