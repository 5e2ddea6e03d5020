"""A server's rounds, from opening to result.

What the coordinator, clients, the engine, the peer and the time bring becomes an event of a round.
The parts: `register` (which rounds there are), `keeper` (the training run), `peer_control` (the
other server) and `runner`, which feeds a round and does what its table in `round_state` says.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from securemedian.mpc import wire
from securemedian.mpc.errors import RoundBusy, RoundFailed, SecureMedianError
from securemedian.mpc.params import RoundParams
from securemedian.mpc.party import SESSION_BYTES
from securemedian.servers import logs
from securemedian.servers.config import ServerConfig
from securemedian.servers.control import Message, Open, new_round_id
from securemedian.servers.engine import Engine
from securemedian.servers.keeper import TrainingKeeper
from securemedian.servers.peer import PeerWatch
from securemedian.servers.peer_control import PeerControl
from securemedian.servers.register import Entry, Register, WhenOpened
from securemedian.servers.round_state import (
    CloseAsked,
    Computed,
    Failure,
    OpenAsked,
    Overdue,
    State,
    Stored,
)
from securemedian.servers.runner import RoundRunner
from securemedian.servers.store import Store
from securemedian.servers.training import Float32s


class Rounds:
    """Run the rounds of one server, of which the latest may be live.

    `send` gives a message to the peer. Used by one thread.
    """

    def __init__(
        self,
        config: ServerConfig,
        store: Store,
        engine: Engine,
        send: Callable[[Message], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._engine, self._clock = config, engine, clock
        self.register = Register(config, store)
        self._keeper = TrainingKeeper(config.party, store)
        self._runner = RoundRunner(self.register, self._keeper, engine, send, clock)
        self._peer_control = PeerControl(config, self.register, self._runner, engine, send, clock)

    @property
    def live(self) -> Entry | None:
        """The round in hand."""
        return self.register.live

    @property
    def peer(self) -> PeerWatch:
        return self._peer_control.watch

    def left_s(self, entry: Entry) -> float:
        """Return the seconds in which the round still takes uploads."""
        return entry.round.deadline - self._clock() if entry.round.state is State.OPEN else 0.0

    # What the coordinator and clients ask

    def open(
        self,
        params: RoundParams,
        range_: dict[str, Any],
        reset: bool,
        model: Float32s | None,
        when_opened: WhenOpened,
    ) -> None:
        """S0: start a round. `when_opened` is called with S1's answer."""
        self.peer.require()
        if entry := self.live:
            raise RoundBusy(
                f"round {entry.round.id} is {entry.round.state}: "
                "close or abort it, or wait for its end"
            )
        before = self._keeper.begin(params, range_, reset, model)
        kept = self._engine.session_id
        asked = Open(
            new_round_id(before.number),
            before.number,
            params.to_dict(),
            kept or os.urandom(SESSION_BYTES),
            new_session=kept is None,
            start_over=reset or model is not None,
        )
        entry = self.register.admit(asked, params, before)
        entry.when_opened = when_opened
        self._runner.feed(entry, OpenAsked())

    def upload(self, entry: Entry, client: str, form: str, share: NDArray[Any]) -> None:
        """Store a client's share, once and in time."""
        entry.round.check_upload(client)
        entry.spool.put(client, form, share)
        logs.event("upload-stored", round=entry.round.id, client=self.register.names[client])
        self._runner.feed(entry, Stored(client))

    def close(self, entry: Entry) -> None:
        """S0: take no more uploads, and run."""
        entry.round.check_close()
        self._runner.feed(entry, CloseAsked())

    def abort(self, entry: Entry, why: str) -> None:
        """S0: fail a round on purpose, before it may have opened values."""
        entry.round.check_abort()
        self._runner.feed(entry, Failure(RoundFailed.code, why))

    # What happens

    def control(self, parts: Sequence[wire.Part]) -> None:
        """Take a message of the peer."""
        self._peer_control.receive(parts)

    def engine_ended(self) -> None:
        """Take what the engine has, if it has ended."""
        result, entry = self._engine.poll(), self.live
        if result is None or entry is None:
            return
        try:
            if isinstance(result, SecureMedianError):
                raise result
            self._keeper.finish(entry, result)
        except SecureMedianError as error:
            self._runner.feed(entry, Failure(error.code, str(error)))
            return
        self._runner.feed(entry, Computed())

    def tick(self) -> None:
        """Let time pass. Raises PeerUnavailable if the peer has not appeared within its limit."""
        self._peer_control.tick()
        if (entry := self.live) and self._clock() >= entry.round.deadline:
            self._runner.feed(entry, Overdue())

    def stop(self) -> None:
        """Take no more rounds. A run in hand may finish, any earlier state fails."""
        self.register.close()
        runs = (State.STARTING, State.RUNNING)
        if (entry := self.live) and entry.round.state not in runs:
            self.fail("was stopped")

    def fail(self, why: str) -> None:
        """Fail the round in hand, if there is one, for a reason of this server."""
        if entry := self.live:
            self._runner.feed(entry, Failure(RoundFailed.code, f"{self._config.name} {why}"))
