"""A client's dealing for one round, made and sent in the background while the client trains.

docs/protocols.md, section 2.
"""

import threading
from collections.abc import Callable, Sequence

from securemedian.clients import upload
from securemedian.clients.connection import Connection, ask_parties
from securemedian.clients.upload import Round, ShareHalf
from securemedian.mpc.dealing import Dealing, Dealt
from securemedian.mpc.errors import LocalProtocolError, SecureMedianError

# the most bytes of a piece, each of which is answered before the next one is sent
PIECE_BYTES = 4 << 20
# how long `close` waits for the thread, which looks more often than that
STOP_S = 5.0


class Dealer:
    """Deals for one round, on a thread and with connections of its own, and closes these.

    `deal` makes the dealing. What it makes is for this round alone, and for one update.
    """

    def __init__(
        self,
        current: Round,
        shape: Dealing,
        servers: Sequence[Connection],
        deal: Callable[[Dealing, Round], Dealt],
    ) -> None:
        self.round_id = current.round_id
        self._current, self._shape, self._servers, self._deal = current, shape, servers, deal
        self._outcome: Dealt | SecureMedianError = LocalProtocolError(
            "a defect here: the dealing ended without a result"
        )
        self._thread = threading.Thread(target=self._run, name="dealing", daemon=True)
        self._thread.start()

    def join(self) -> Dealt:
        """Wait until both servers have the dealing, and return it.

        Every answer that it waits for has a time limit. Raises what went wrong.
        """
        self._thread.join()
        if isinstance(self._outcome, SecureMedianError):
            raise self._outcome
        return self._outcome

    def close(self) -> None:
        """Stop dealing, if that is still going on."""
        for server in self._servers:
            server.cancel()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            limits = [info["max_message_bytes"] for info in ask_parties(self._servers)]
            dealt = self._deal(self._shape, self._current)
            halves = upload.halves(dealt.seeded, dealt.words, self._current)
            whole = zip(self._servers, halves, limits, strict=True)
            # the seed last: a dealing that is cut short before it can be sent anew
            for server, half, limit in sorted(whole, key=lambda one: one[1].form == "seed"):
                self._send(server, half, limit)
            self._outcome = dealt
        except SecureMedianError as error:
            self._outcome = error
        finally:
            for server in self._servers:
                server.close()

    def _send(self, server: Connection, half: ShareHalf, limit: int) -> None:
        # half of the limit leaves room for what comes with a piece
        most = min(PIECE_BYTES, limit // 2)
        share = half.share.reshape(-1)
        pieces = max(1, -(-share.nbytes // most))
        size = -(-share.size // pieces)
        # in pieces of that size there may be fewer
        pieces = -(-share.size // size)
        for piece in range(pieces):
            fields = {
                "round": self.round_id,
                "params": self._current.params.digest,
                "form": half.form,
                "piece": piece,
                "pieces": pieces,
            }
            server.ask("deal", fields, {"share": share[piece * size : (piece + 1) * size]})
