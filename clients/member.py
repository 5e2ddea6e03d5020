"""The base of a client and the coordinator: what both ask about rounds and their results."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from securemedian.clients import outcomes, upload
from securemedian.clients.config import ClientConfig
from securemedian.clients.connection import Limit, connect
from securemedian.common.keys import load_keys
from securemedian.common.receipts import Receipt, for_those_left
from securemedian.common.status import RoundStatus, check_public_metrics
from securemedian.common.terminal import Report, Wait
from securemedian.common.versions import agree
from securemedian.mpc.errors import (
    ChannelTimeout,
    ConfigError,
    PeerProtocolError,
    ReceiptInvalid,
    RoundFailed,
    ServerUnreachable,
    UnknownRound,
)
from securemedian.mpc.protocols import wire
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.run_state import RunState, finish

T = TypeVar("T")
_log = logging.getLogger("securemedian")


class Member:
    """The requests about a round that a client and the coordinator have in common.

    `report` gets a line when a server is away and waited for, and one when it is back.

    Every call has a limit, `timeout_s`: how long a server that is away is asked again (default:
    `retry_limit_s` of the configuration). In calls that wait for a round it is how long they wait
    (default: `wait_timeout_s`). A server that has never been reached is not asked again.
    """

    def __init__(self, config: ClientConfig, report: Report = _log.warning) -> None:
        self.config, self.keys, self.report = config, load_keys(config.key_file), report
        # is called between two looks of a wait
        self.meanwhile: Callable[[], object] = lambda: None
        self.closed = False
        # the connections to S0 and S1
        self.servers = connect(config, self.keys, report=lambda text: self.report(text))
        self._recent = outcomes.RecentRuns()
        # the server that is asked for values, chosen by the key, so that both servers' links carry
        # the same load
        self.source = self.keys.public[-1] % 2
        # of the round whose results were fetched last, the groups without one
        self._unchanged_groups: tuple[str, list[int]] = "", []

    @classmethod
    def from_config(cls, path: str | Path, cohort: str = "", **options: Any) -> Self:
        """Return a member that connects as a TOML configuration says.

        A `cohort` replaces the one that the configuration names. `options` are those of the
        constructor. Raises ConfigError if there is a mistake in the configuration or the key file.
        """
        return cls(ClientConfig.load(path, cohort), **options)

    def __reduce__(self) -> Any:
        """Refuse to be sent to another process, which could not use the connections."""
        raise TypeError(
            f"a {type(self).__name__} has connections, which stay in their process: make one in "
            "the process that uses it, with from_config()"
        )

    def close(self) -> None:
        """Close both connections."""
        if not self.closed:
            self.closed = True
            for server in self.servers:
                server.cancel()
                server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def name(self, timeout_s: float | None = None) -> str:
        """Return the name that this side's key has at S0."""
        return str(self.ask("info", timeout_s=timeout_s).fields["name"])

    def status(
        self, round_id: str = "", timeout_s: float | None = None, party: int = 0
    ) -> RoundStatus:
        """Return what S0, or the server `party`, says about a round, by default the latest."""
        answer = self.ask("status", {"round": round_id}, timeout_s=timeout_s, party=party)
        return RoundStatus.from_answer(answer.fields)

    def model(self, round_id: str, timeout_s: float | None = None) -> Published:
        """Return what S0 published for a round: the global model, and how the buckets lie.

        Only rounds on buckets have a scale and a policy; other rounds may have no model either.
        """
        status = self.status(round_id, timeout_s)
        state = self.run_before(round_id, bytes.fromhex(status.start), timeout_s)
        return state.published_for(RoundParams.from_dict(status.params))

    def run_before(self, round_id: str, digest: bytes, timeout_s: float | None = None) -> RunState:
        """Return the run with this digest, from which a round starts. Raises ReceiptInvalid."""
        state = self._recent.find(digest)
        if state is None:
            answer = self.ask("model", {"round": round_id}, timeout_s=timeout_s)
            state = outcomes.run_of(answer, round_id, digest)
        self._recent.keep(state)
        return state

    def receipt(self, round_id: str, timeout_s: float | None = None) -> Receipt:
        """Wait for a round's result and return its receipt, which both servers have signed."""
        limit = self.limit(timeout_s)
        answers = self._answers(round_id, limit, values=False)
        return self._checked(round_id, answers, self.params(round_id, limit.left_s))

    def public_metrics(
        self, round_id: str, timeout_s: float | None = None
    ) -> dict[str, dict[str, float]]:
        """Return by client its public metrics of a round, for which nobody vouches."""
        answer = self.ask("metrics", {"round": round_id}, timeout_s=timeout_s)
        try:
            said = json.loads(answer.arrays["metrics"].tobytes())
            return {name: check_public_metrics(metrics) for name, metrics in said.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PeerProtocolError(
                f"S0 sent no public metrics of round {round_id}: {error!r:.200}"
            ) from error

    def unchanged_groups(self, round_id: str, timeout_s: float | None = None) -> list[int]:
        """Wait for a round, and return the groups, 0-based, whose model stays: too few chose it."""
        if self._unchanged_groups[0] != round_id:
            self.fetch(round_id, self.limit(timeout_s))
        return list(self._unchanged_groups[1])

    def left_out(self, round_id: str, timeout_s: float | None = None) -> dict[str, str]:
        """Return by name who is left out of a round, or has failed a check so far, and why."""
        return dict(self.status(round_id, timeout_s).left_out)

    def check_open(self) -> None:
        """Raise ConfigError if it is closed."""
        if self.closed:
            raise ConfigError(
                f"closed here, by close() or at the end of a `with`: {self.config.name}; make "
                "another one, as in Client.from_config"
            )

    @contextmanager
    def reporting(self, report: Report) -> Iterator[None]:
        """Report to `report` within the context."""
        before, self.report = self.report, report
        try:
            yield
        finally:
            self.report = before

    def ask(
        self,
        op: str,
        fields: Mapping[str, Any] | None = None,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        *,
        timeout_s: float | None = None,
        party: int = 0,
    ) -> wire.Message:
        """Return a server's answer; one that is away is asked for `timeout_s` (`retry_limit_s`)."""
        self.check_open()
        patience_s = self.config.retry_limit_s if timeout_s is None else timeout_s
        return self.servers[party].ask(op, fields, arrays, patience_s)

    def latest(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Return what S0 says about the latest round.

        Raises UnknownRound if there is none, and VersionsDiffer if it takes another release.
        """
        found = self.ask("round", timeout_s=timeout_s).fields
        agree("S0", found)
        return found

    def params(self, round_id: str, timeout_s: float | None = None) -> RoundParams:
        """Return the parameters that a server gives for a round, to be compared with its record."""
        try:
            status = self.status(round_id, 0.0)
        except ServerUnreachable:
            status = self.status(round_id, timeout_s, party=1)
        return RoundParams.from_dict(status.params)

    def limit(self, timeout_s: float | None) -> Limit:
        return Limit(self.config.wait_timeout_s if timeout_s is None else timeout_s)

    def wait(
        self,
        party: int,
        look: Callable[[], T | None],
        limit: Limit,
        what: str,
        waiting: str | Callable[[], str],
    ) -> T:
        """Call `look`, which asks the server `party`, until it returns something other than None.

        Before each look `meanwhile` is called.
        If that takes a while, it is reported (`waits`) with `waiting`, which says what is waited
        for and from whom. A server that has been reached before may be away until the limit.
        Raises ChannelTimeout with `what`, which names the missing thing, at the limit.
        """
        self.check_open()
        named = waiting if callable(waiting) else partial(str, waiting)
        wait = Wait(self.report, named, limit.deadline)
        try:
            while True:
                self.meanwhile()
                try:
                    if (seen := look()) is not None:
                        return seen
                except ServerUnreachable as error:
                    self.servers[party].outlast(error, limit.deadline)
                if limit.left_s <= 0:
                    raise ChannelTimeout(f"{what} within {limit.seconds:g} s")
                wait.turn()
                time.sleep(self.config.poll_interval_s)
        finally:
            wait.end()

    def fetch(
        self, round_id: str, limit: Limit, params: RoundParams | None = None
    ) -> NDArray[np.float32] | NDArray[np.float64]:
        """Wait for all results of a round and return them, checked, shape (results, d)."""
        params = params or self.params(round_id, limit.left_s)
        if params.method.result_to != "clients":
            # the new model may be a part of them
            return self.finish(round_id, limit, params)[1].copy()
        answers = self._answers(round_id, limit, both=True)
        record = self._checked(round_id, answers, params).record
        if start := self._recent.find(record.start):
            self._recent.keep(start.counted())
        one, other = (answers[party].arrays.get("share", np.empty(0)) for party in (0, 1))
        return upload.combine(one, other, params)[None]

    def finish(
        self, round_id: str, limit: Limit, params: RoundParams | None = None
    ) -> tuple[RunState, NDArray[np.float32]]:
        """Wait for a round, and return the run after it and its results, shape (results, d)."""
        params = params or self.params(round_id, limit.left_s)
        answers = self._answers(round_id, limit)
        record = self._checked(round_id, answers, params).record
        start = self.run_before(round_id, record.start, limit.left_s)
        party = next((party for party in answers if answers[party].arrays), 0)
        total = sum(params.method.weights_of(record.included))
        opened = outcomes.opened_of(answers[party], party, record, params, total)
        computed = for_those_left(params, record.reasons)
        after, published = finish(start, computed, opened, total, record.groups)
        with_result = params.published_groups(opened, record.groups)
        every = range(params.method.groups)
        self._unchanged_groups = round_id, [group for group in every if group not in with_result]
        self._recent.keep(after)
        return after, published

    def _trained(self, round_id: str) -> tuple[bytes | None, str]:
        """Return what the receipt of a round must fit, as far as this side has taken part.

        This is the digest of the run that it trained from, and its public key if both servers have
        confirmed its upload. Each is empty otherwise.
        """
        return None, ""

    def _checked(
        self, round_id: str, answers: Mapping[int, wire.Message], params: RoundParams
    ) -> Receipt:
        """Return the receipt in the answers, which fits the round as this side knows it."""
        for party, answer in answers.items():
            outcomes.check_form(answer, party, round_id, params)
        keys = self.config.s0.signing_key, self.config.s1.signing_key
        receipt, known = outcomes.agreed(answers, keys), self._trained(round_id)
        outcomes.check_record(receipt.record, self.config.cohort, round_id, params, *known)
        return receipt

    def _answers(
        self, round_id: str, limit: Limit, values: bool = True, both: bool = False
    ) -> dict[int, wire.Message]:
        """Return the answers by party once a round is published, of both servers if they are there.

        With `values` one of them has the values, with `both` each: then both servers must answer.
        Otherwise one is enough, because it has the signatures of both. Waits for S0, which leads,
        or for S1 if S0 is away. Raises RoundFailed, with the reason, if the round has failed.
        """
        what = f"round {round_id} was not published"

        def ask(party: int, wanted: bool) -> dict[int, wire.Message] | None:
            fields = {"round": round_id, "values": wanted}
            try:
                message = self.servers[party].ask("result", fields)
            except RoundFailed as error:
                raise RoundFailed(f"round {round_id} has no result: {error}") from None
            return None if message.fields.get("form") == "pending" else {party: message}

        def disagreement(party: int) -> ReceiptInvalid:
            return ReceiptInvalid(
                f"S{party} has a result of round {round_id}, of which the other server says "
                f"otherwise: S{1 - party} says that it has failed; take nothing over, and ask "
                "both operators"
            )

        def first() -> dict[int, wire.Message] | None:
            try:
                return ask(0, both or (values and self.source == 0))
            except RoundFailed:
                with suppress(ServerUnreachable, UnknownRound, RoundFailed):
                    if ask(1, False):
                        raise disagreement(1) from None
                raise
            except (ServerUnreachable, UnknownRound) as error:
                try:
                    return ask(1, values)
                except (ServerUnreachable, UnknownRound):
                    raise error from None

        waiting = f"the result of round {round_id} from S0 and S1"
        answers = self.wait(0, first, limit, what, waiting)
        (party,) = answers

        def second() -> dict[int, wire.Message] | None:
            try:
                return ask(1 - party, both or (values and not answers[party].arrays))
            except RoundFailed:
                raise disagreement(party) from None
            except (ServerUnreachable, UnknownRound):
                if both:
                    raise
                return {}

        answers |= self.wait(1 - party, second, limit, what, waiting)
        if values and not any(answer.arrays for answer in answers.values()):
            answers |= ask(party, values) or {}
        return answers
