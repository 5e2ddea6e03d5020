"""The watch over the other server: whether it is connected and configured alike.

It does no I/O: hellos and the time go in, changes come out.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from securemedian.common.policy import in_words
from securemedian.common.status import COMPILING
from securemedian.common.versions import agree, check_known
from securemedian.mpc.errors import (
    MAX_QUOTE,
    ParametersDiffer,
    PeerUnavailable,
    SecureMedianError,
    VersionsDiffer,
    cut,
    quoted,
)
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers.network.control import LOAD_BYTES, Hello, Load


class Change(StrEnum):
    """A change that a message or the passing of time has brought.

    All but LINKED end everything that was shared with the peer. RESTARTED and GAP also begin a new
    link.
    """

    LINKED = "peer-linked"
    LOST = "peer-lost"
    RESTARTED = "peer-restarted"
    # messages were lost
    GAP = "peer-messages-lost"


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Return in words which fields differ, with both values; "" if none does."""
    names = [name for name in sorted(ours | theirs) if ours.get(name) != theirs.get(name)]
    described = (
        f"{cut(name, MAX_QUOTE)}: {quoted(ours.get(name))} here, {quoted(theirs.get(name))} there"
        for name in names
    )
    return cut("; ".join(described))


class PeerWatch:
    """Watches the other server, `name`, by its hellos."""

    def __init__(
        self, name: str, agreement: dict[str, Any], wait_s: float, timeout_s: float
    ) -> None:
        self.name = name
        self.linked = False
        # why the peer, while it is linked, cannot work with this server
        self.misfit: SecureMedianError | None = None
        self.begun = False
        # the peer's release and its wire versions
        self._said: Mapping[str, Any] = {}
        self._agreement, self._wait_s, self._timeout_s = agreement, wait_s, timeout_s
        # the peer's instance, and how many messages about rounds have come from it
        self.instance = ""
        self._received = 0
        self._until = float("inf")
        self._lost_why = COMPILING

    def begin(self, now: float) -> None:
        """Begin to wait for the peer; before that this server ignores it."""
        self.begun, self._until = True, now + self._wait_s
        self._lost_why = f"{self.name} has not appeared yet"

    @property
    def problem(self) -> str:
        """The reason why no round can be opened; "" if one can."""
        if not self.linked:
            return self._lost_why
        return str(self.misfit or "")

    def require(self, params: RoundParams | None = None) -> None:
        """Check that the peer is linked, configured alike, and knows all options of a round.

        Raises PeerUnavailable, ParametersDiffer or VersionsDiffer if it is not.
        """
        if not self.linked:
            raise PeerUnavailable(
                f"the other server is not ready: {self.problem}; try again when both are"
            )
        if self.misfit:
            raise type(self.misfit)(self.problem)
        if params:
            check_known(self.name, self._said, params, peer=True)

    def knows(self, version: int) -> bool:
        """Return whether the peer speaks a wire version, too."""
        return agree(self.name, self._said) >= version

    def hello(self, message: Hello, now: float, ours: str) -> Change | None:
        """Take a sign of life, and return what it changes; `ours` is our own instance."""
        known = self.linked and message.instance == self.instance
        missing = known and message.peer == ours and message.sent != self._received
        change = Change.GAP if missing else None if known else Change.LINKED
        if self.linked and not known:
            change = Change.RESTARTED
        self.linked, self.instance, self._until = True, message.instance, now + self._timeout_s
        self._received = message.sent
        self._said = {"release": message.release, "wire": message.wire}
        self.misfit = self._misfit(message)
        return change

    def _misfit(self, message: Hello) -> SecureMedianError | None:
        """Return why the peer cannot work with this server, if so."""
        try:
            agree(self.name, self._said, peer=True)
        except VersionsDiffer as error:
            return error
        if differing := differences(in_words(self._agreement), in_words(message.agreement)):
            return ParametersDiffer(
                f"the other server is configured differently: {self.name} differs in "
                f"{differing}; make the two configurations alike and restart"
            )
        return None

    def received(self, sent: int, now: float) -> bool:
        """Return whether to take a message about a round, before which the peer sent `sent` others.

        That is while the servers are linked and no message is missing. Nothing after a lost message
        is taken, and the next hello shows the gap. A message that is taken is a sign of life.
        """
        taken = self.linked and sent == self._received
        if taken:
            self._received += 1
            self._until = now + self._timeout_s
        return taken

    def heard(self, now: float) -> None:
        """Take a message that says nothing as a sign of life, while the servers are linked."""
        if self.linked:
            self._until = now + self._timeout_s

    def bye(self) -> Change | None:
        """Note that the peer stops, and return what that changes."""
        return self._lose(f"{self.name} was stopped")

    def tick(self, now: float) -> Change | None:
        """Let time pass, and return what that changes.

        Raises PeerUnavailable if the peer has never appeared within its limit.
        """
        if now < self._until:
            return None
        if not self.instance:
            raise PeerUnavailable(
                f"{self._lost_why}: peer_wait_s is over; start it, and check [peer] and the "
                "public keys at both"
            )
        return self._lose(f"{self.name} has given no sign of life for {self._timeout_s:g} s")

    def _lose(self, why: str) -> Change | None:
        # the silence of a peer that was stopped says nothing new
        if not self.linked:
            return None
        self.linked, self._lost_why = False, why
        return Change.LOST


# how many pieces S0 sends at once, 1 MB in all
PIECES = 16
# how long they may take to come back; whoever asks waits longer
LIMIT_S = 3.0

# takes the bytes that were sent, those that came back, and the seconds that this took
Told = Callable[[int, int, float], object]


class LinkProbe:
    """Sends S1 pieces, which S1 sends back, and counts them at S0. Used by one thread."""

    def __init__(self, send: Callable[[Load], None], clock: Callable[[], float]) -> None:
        self._send, self._clock = send, clock
        self._number, self._back, self._begun = 0, 0, 0.0
        # the requests for the measurement under way; empty without one
        self._told: list[Told] = []

    def begin(self, told: Told) -> None:
        """Measure, unless that is under way; `told` is called at its end, in any case."""
        self._told.append(told)
        if len(self._told) > 1:
            return
        self._number, self._back, self._begun = self._number + 1, 0, self._clock()
        for _ in range(PIECES):
            self._send(Load(self._number, bytes(LOAD_BYTES)))

    def take(self, piece: Load) -> None:
        if self._told and piece.number == self._number:
            self._back += 1
            self.tick()

    def tick(self) -> None:
        """End the measurement if all pieces are back, or its time is over."""
        seconds = self._clock() - self._begun
        if self._back == PIECES or seconds > LIMIT_S:
            asked, self._told = self._told, []
            for told in asked:
                told(PIECES * LOAD_BYTES, self._back * LOAD_BYTES, seconds)
