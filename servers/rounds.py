"""A server's rounds, from opening to result.

What comes from the coordinator, the clients, the engine, the peer and the clock is turned here into
events of a round. The parts are `register` (which rounds there are), `keeper` (the training run),
`peer_control` (the other server) and `runner`, which feeds events to a round and does what its
table in `round_state` says.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from securemedian.mpc import wire
from securemedian.mpc.arrays import Float32s
from securemedian.mpc.errors import RoundBusy, RoundFailed, SecureMedianError
from securemedian.mpc.params import RoundParams
from securemedian.mpc.party import SESSION_BYTES
from securemedian.mpc.pipeline import Checked, Outcome
from securemedian.servers import logs
from securemedian.servers.config import ServerConfig
from securemedian.servers.control import Message, Open, new_round_id
from securemedian.servers.engine import Engine
from securemedian.servers.keeper import TrainingKeeper
from securemedian.servers.peer import PeerWatch
from securemedian.servers.peer_control import PeerControl
from securemedian.servers.register import Entry, Register, WhenOpened
from securemedian.servers.round_state import (
    CheckEnded,
    CloseAsked,
    Computed,
    DealingStored,
    Failure,
    OpenAsked,
    Overdue,
    State,
    Stored,
)
from securemedian.servers.runner import RoundRunner
from securemedian.servers.store import Store


class Rounds:
    """The rounds of one server, of which the latest may be live. Used by one thread.

    `send` sends a message to the peer.
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
        self.register = Register(config, store, clock)
        self._keeper = TrainingKeeper(config.party, store)
        self._runner = RoundRunner(self.register, self._keeper, engine, send, clock)
        self._peer_control = PeerControl(config, self.register, self._runner, engine, send, clock)

    def reload(self, config: ServerConfig) -> None:
        """Take over a configuration for the rounds to come."""
        self.register.reload(config)

    @property
    def live(self) -> Entry | None:
        """The round that has begun and not ended, if there is one."""
        return self.register.live

    @property
    def peer(self) -> PeerWatch:
        """The watch over the other server."""
        return self._peer_control.watch

    @property
    def dim(self) -> int:
        """The values of the model that S0 keeps, or otherwise of the latest round; 0 if neither."""
        if (model := self._keeper.model) is not None:
            return model.size
        latest = self.register.latest
        return latest.server_round.params.dim if latest else 0

    def left_s(self, entry: Entry) -> float:
        """Return for how many seconds the round still takes uploads."""
        server_round = entry.server_round
        return server_round.deadline - self._clock() if server_round.state is State.OPEN else 0.0

    # What the coordinator and clients ask

    def open(
        self,
        params: RoundParams,
        range_options: dict[str, Any],
        reset: bool,
        model: Float32s | None,
        optimiser_options: dict[str, Any],
        when_opened: WhenOpened,
    ) -> None:
        """Open a round, at S0; `when_opened` is called once S1 has answered.

        `range_options` are a range policy and its options, and `optimiser_options` an optimiser and
        its options, or {} for the current one. Raises PeerUnavailable or ParametersDiffer if S1 is
        not ready, RoundBusy if a round is live, and InputError or ConfigError if the round cannot
        be computed.
        """
        self.peer.require()
        if entry := self.live:
            raise RoundBusy(
                f"round {entry.server_round.round_id} is {entry.server_round.state}: "
                "close or abort it, or wait for its end"
            )
        before = self._keeper.begin(params, range_options, reset, model, optimiser_options)
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

    def deal(
        self,
        entry: Entry,
        client: str,
        form: str,
        piece: int,
        pieces: int,
        share: NDArray[Any],
    ) -> bool:
        """Store a piece of a client's dealing, and return whether the dealing is whole.

        Raises what `ServerRound.check_dealing` and `Spool.put_dealing` raise.
        """
        entry.server_round.check_dealing(client)
        if not entry.spool.put_dealing(client, form, piece, pieces, share):
            return False
        name = entry.server_round.names[client]
        logs.event("dealing-stored", round=entry.server_round.round_id, client=name)
        self._runner.feed(entry, DealingStored(client))
        return True

    def upload(self, entry: Entry, client: str, form: str, share: NDArray[Any]) -> None:
        """Store a client's share of its update.

        Raises what `ServerRound.check_upload` and `Spool.put` raise.
        """
        entry.server_round.check_upload(client)
        digest = entry.spool.put(client, form, share)
        name = entry.server_round.names[client]
        logs.event("upload-stored", round=entry.server_round.round_id, client=name)
        self._runner.feed(entry, Stored(client, digest))

    def close(self, entry: Entry) -> None:
        """Take no more uploads and run the protocol, at S0. Raises RoundClosed."""
        entry.server_round.check_close()
        self._runner.feed(entry, CloseAsked())

    def abort(self, entry: Entry, why: str) -> None:
        """Fail a round on purpose, at S0.

        Raises RoundClosed if it has ended, or may have opened values.
        """
        entry.server_round.check_abort()
        self._runner.feed(entry, Failure(RoundFailed.code, why))

    # What happens

    def control(self, parts: Sequence[wire.Part]) -> None:
        """Take a message of the peer."""
        self._peer_control.receive(parts)

    def engine_ended(self) -> None:
        """Take what the engine has: verdicts of a check, the result of a run, or errors."""
        while (result := self._engine.poll()) is not None:
            if entry := self.live:
                self._take(entry, result)

    def _take(self, entry: Entry, result: Outcome | Checked | SecureMedianError) -> None:
        try:
            if isinstance(result, SecureMedianError):
                raise result
            if isinstance(result, Checked):
                self._runner.feed(entry, self._verdicts(entry, result))
                return
            self._keeper.finish(entry, result)
        except SecureMedianError as error:
            self._runner.feed(entry, Failure(error.code, str(error)))
            return
        self._runner.feed(entry, Computed())

    def _verdicts(self, entry: Entry, checked: Checked) -> CheckEnded:
        clients = list(entry.server_round.under_check)
        failed = [key for key, passed in zip(clients, checked.passed, strict=True) if not passed]
        logs.event(
            "clients-checked",
            logging.WARNING if failed else logging.INFO,
            round=entry.server_round.round_id,
            checked=[entry.server_round.names[key] for key in clients],
            failed=[entry.server_round.names[key] for key in failed],
        )
        return CheckEnded(clients, failed)

    def tick(self) -> None:
        """Let time pass.

        Raises PeerUnavailable if the peer has not appeared within its limit.
        """
        self._peer_control.tick()
        if (entry := self.live) and self._clock() >= entry.server_round.deadline:
            self._runner.feed(entry, Overdue())

    def stop(self) -> None:
        """Take no more rounds. A running protocol may finish; a round in another state fails."""
        self.register.close()
        runs = (State.STARTING, State.RUNNING)
        if (entry := self.live) and entry.server_round.state not in runs:
            self.fail("was stopped")

    def fail(self, why: str) -> None:
        """Fail the live round, if there is one, for a reason of this server."""
        if entry := self.live:
            self._runner.feed(entry, Failure(RoundFailed.code, f"{self._config.name} {why}"))
