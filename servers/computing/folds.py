"""The folds of an audited round: those asked of clients, and their answers."""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from securemedian.mpc.arrays import Words
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import BadUpload, DuplicateUpload, RoundClosed
from securemedian.mpc.protocols.channel import Channel

# how often the servers tell each other whose folds they have, while some are missing
TELL_S = 1.0


class Folds:
    """The folds that one binding of both servers asks of clients, and their answers to this server.

    The daemon's thread puts in what comes, and that of the engine waits for it.
    """

    def __init__(self, clients: Sequence[str], words: int) -> None:
        """Ask these clients for nothing yet; each of their folds has so many words."""
        self.clients = tuple(clients)
        # the digest of their keys, which each is told before it folds
        self.set = digest("set", *clients)
        # the id of the binding and what was tossed for it, while clients are asked
        self.binding = self.coin = b""
        # called when the clients are asked
        self.wake: Callable[[], None] = lambda: None
        self._words = words
        self._of: dict[str, Words] = {}
        self._complete = threading.Event()

    def ask(self, binding: bytes, coin: bytes) -> None:
        """Ask the clients from now on for their folds under a coin."""
        self.coin = coin
        self.binding = binding
        self.wake()

    def put(self, client: str, binding: bytes, fold: Words) -> None:
        """Take the fold of a client; the same one may come again.

        Raises RoundClosed unless this binding asks this client, BadUpload if it is not a fold of
        the round, and DuplicateUpload if another one of the client is here.
        """
        if not self.binding or binding != self.binding or client not in self.clients:
            raise RoundClosed(
                f"this server no longer asks you for this fold: {client}; ask what is `bound`"
            )
        if fold.dtype != np.uint64 or fold.shape != (self._words,):
            raise BadUpload(
                f"a fold of another shape: {fold.dtype} {fold.shape}; send uint64 ({self._words},)"
            )
        if not np.array_equal(self._of.setdefault(client, fold), fold):
            raise DuplicateUpload(
                f"another fold of yours is here already: {client}; leave it, for the first one "
                "counts"
            )
        if len(self._of) == len(self.clients):
            self._complete.set()

    def has(self, client: str) -> bool:
        return client in self._of

    def gather(self, channel: Channel, number: int, limit_s: float) -> list[bool]:
        """Wait for the folds, at S0 for so long at most, and return whose both servers have.

        The other server does the same at the same time. No fold is taken any more afterwards.
        """
        deadline = time.monotonic() + limit_s
        both, over = np.zeros(len(self.clients), np.bool_), False
        while not (both.all() or over):
            self._complete.wait(TELL_S)
            here = [client in self._of for client in self.clients]
            late = number == 0 and time.monotonic() >= deadline
            mine = np.array([late, *here], np.uint8)
            theirs = channel.exchange("audit.folds", mine)
            over, both = bool((mine | theirs)[0]), (mine & theirs)[1:] == 1
        self.binding = b""
        return both.tolist()

    def take(self) -> list[Words]:
        return [self._of[client] for client in self.clients]
