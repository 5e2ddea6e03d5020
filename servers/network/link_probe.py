"""The measurement of the link between the servers, with messages of full size.

Hellos fit one packet. Where packets of full size are lost on the way (a tunnel's MTU, and a
firewall that drops the ICMP messages about it), the servers are linked, and the first round stalls.
"""

from collections.abc import Callable

from securemedian.servers.network.control import LOAD_BYTES, Load

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
        # who asked for the measurement under way; nobody if there is none
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
