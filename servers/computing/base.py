"""The interface between the engine and the backend that computes for it.

A backend opens a `Computation` per session with the other server. The other server does the same
at the same time, with a backend of the same kind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from securemedian.mpc.protocols.bisect import Mark
from securemedian.mpc.protocols.dealing import Dealing, Note, nothing
from securemedian.mpc.protocols.share import Upload
from securemedian.mpc.rounds.cost import Cost
from securemedian.mpc.rounds.lanes import Progress
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Checked, Outcome
from securemedian.servers.computing.folds import Folds


@dataclass(frozen=True)
class RoundInput:
    """The input from which a server computes a round."""

    params: RoundParams
    # of the clients that take part, with their weights, and their groups where these are visible
    uploads: Sequence[Upload]
    weights: Sequence[int]
    groups: Sequence[int] = ()
    # this server's opening when it tosses, the same in every attempt at a round
    opening: bytes = field(default=b"", repr=False)
    # the seed of this server's noise, the same likewise; empty where the method adds none
    noise: bytes = field(default=b"", repr=False)
    # of each client of an audited round, the seed of the masks of its folds for this server
    masks: Sequence[bytes] = field(default=(), repr=False)
    # called in an audited round before anything is sent that depends on an upload, and again before
    # a share of a sign is: it sees to it that this is stored
    mark: Mark = nothing

    def entropy(self, count: int) -> bytes:
        """Return the opening, as what a toss asks for (`prg.Entropy`)."""
        return self.opening


class Computation(Protocol):
    """The computation of one session with the other server.

    All methods except `close` block until they are done, and their waits have limits. Threads of
    the engine call them one at a time; only checks of dealings come beside the others. They
    raise what `mpc.rounds.pipeline` raises, and ChannelClosed once it is closed.
    """

    session_id: bytes

    @property
    def established(self) -> bool:
        """Return whether the base OTs are made, which the next round can then use."""

    def fill(
        self,
        params: RoundParams,
        limit_bytes: int,
        hurry: Callable[[], bool],
        progress: Progress,
    ) -> Cost:
        """Make the base OTs if there are none yet, and fill the pools (`pipeline.fill`)."""

    def prepare(self, params: RoundParams, progress: Progress) -> Cost:
        """Make all that an audited round needs before its uploads (`Bisection.prepare`).

        Nothing of it is kept from one round to the next, or over a restart.
        """

    def toss(self, vouch: Callable[[bytes], bytes]) -> tuple[bytes, bytes, Cost]:
        """Toss for a check of dealings (`pipeline.toss_for_check`)."""

    def check_dealings(
        self, shape: Dealing, halves: Sequence[Upload], coin: bytes, note: Note
    ) -> Checked:
        """Check clients' dealings under a coin (`pipeline.check_dealings`)."""

    def check_values(self, given: RoundInput, progress: Progress) -> Checked:
        """Check that clients' uploads are in range (`pipeline.check_values`).

        Of the weights in what is `given` these are `Weights.one`.
        """

    def bind(self, given: RoundInput, folds: Folds, limit_s: float, progress: Progress) -> Checked:
        """Bind both servers to what they sum up for an audited round, and ask for `folds`.

        Those that have come after `limit_s` are compared. Returns whose have come and fit. Nothing
        that depends on an update is opened.
        """

    def run_round(self, given: RoundInput, progress: Progress) -> Outcome:
        """Compute the round (`pipeline.run_round`), or open the digits of an audited one.

        An audited round runs after `bind` has passed all its clients, and only once.
        """

    def close(self) -> None:
        """End every wait, now and in future. Any thread may call it."""

    def release(self) -> None:
        """Free what it holds, once no thread uses it."""


class Backend(Protocol):
    """A place where a server computes."""

    # how long `start` takes still; None where that is not known
    ready_in_s: float | None

    def start(self) -> None:
        """Make it ready, which may take minutes, before anything is opened.

        Called on a thread of its own, once. Raises SecureMedianError if it cannot be had.
        """

    def open(self, session_id: bytes) -> Computation:
        """Open this server's end of a session. Raises NoSocket if it has no room for it."""

    def close(self) -> bool:
        """End it, when nothing that it has opened is in use any more.

        Returns whether nothing of it runs any more.
        """
