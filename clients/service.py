"""The connections of one key to both servers, and waits for their answers."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from numpy.typing import NDArray

from securemedian.clients.config import ClientConfig
from securemedian.clients.connection import Connection, connect
from securemedian.common.keys import load_keys
from securemedian.common.status import RoundStatus
from securemedian.common.terminal import Report, Wait
from securemedian.common.versions import agree
from securemedian.mpc.errors import ChannelTimeout, ConfigError, ServerUnreachable
from securemedian.mpc.protocols import wire
from securemedian.mpc.rounds.params import RoundParams

T = TypeVar("T")


class Limit:
    """The time that a wait may take."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.deadline = seconds, time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


class Service:
    """A connection to each server; `report` is told when one is away, and when it is back."""

    def __init__(self, config: ClientConfig, report: Report) -> None:
        self.keys = load_keys(config.key_file)
        self.config, self.report = config, report
        # what is done between two looks of a wait
        self.meanwhile: Callable[[], object] = lambda: None
        self._closed = False
        self.servers = self.connect()

    def connect(self) -> tuple[Connection, ...]:
        return connect(self.config, self.keys, report=lambda text: self.report(text))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for server in self.servers:
            server.cancel()
            server.close()

    def check_open(self) -> None:
        """Raise ConfigError if it is closed."""
        if self._closed:
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

    def status(self, round_id: str, timeout_s: float | None = None, party: int = 0) -> RoundStatus:
        """Return what a server says about the state of a round, by default the latest."""
        answer = self.ask("status", {"round": round_id}, timeout_s=timeout_s, party=party)
        return RoundStatus.from_answer(answer.fields)

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
