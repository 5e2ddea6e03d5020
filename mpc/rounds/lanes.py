"""The lanes of a party: threads that work side by side, and what they agree on with the peer."""

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import PeerDeviated, PeerProtocolError
from securemedian.mpc.protocols import share
from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.protocol import ProtocolParams

# the words that `exchange_sizes` exchanges
SIZE_WORDS = 7
# Takes the coordinates done, and the coordinates in all.
Progress = Callable[[int, int], None]


def exchange_verdicts(party: Party, passed: Sequence[bool]) -> tuple[Words, Words]:
    """Exchange digests of the verdicts with the peer, and return ours and the peer's."""
    mine = np.frombuffer(hashlib.sha256(bytes(passed)).digest(), np.uint64)
    return mine, party.channel.exchange("verdicts", mine)


def agree_on_sizes(
    parties: Sequence[Party], protocol: ProtocolParams, limit_bytes: int = 0
) -> tuple[ProtocolParams, int]:
    """Return the parameters for these lanes, and the limit of a filled pool, that both parties use.

    They take the smaller of their LOCAL settings of `chunk`, `batch` and the limit. Raises
    PeerProtocolError if the parties' pools are not the two halves of the same correlations, or for
    a chunk that is too small.
    """
    mine, theirs = exchange_sizes(parties, protocol, limit_bytes)
    if (theirs[:2] < share.SLICE_ALIGN).any():
        raise PeerProtocolError(
            f"the peer asks for chunks of {theirs[:2].tolist()}, "
            f"fewer than {share.SLICE_ALIGN} coordinates"
        )
    if (mine[3:] != theirs[3:]).any():
        raise PeerProtocolError(
            "the two servers' pools of correlations do not belong together: both are dropped"
        )
    chunk, batch, limit = (int(size) for size in np.minimum(mine, theirs)[:3])
    return replace(protocol, lanes=len(parties), chunk=chunk, batch=batch), limit


def exchange_sizes(
    parties: Sequence[Party], protocol: ProtocolParams, limit_bytes: int = 0
) -> tuple[Words, Words]:
    """Exchange settings with the peer, and return ours and the peer's.

    They are SIZE_WORDS words: `chunk`, `batch`, the limit of the pool, and a digest of the pools of
    all lanes.
    """
    pools = hashlib.sha256(b"".join(party.pool.fingerprint for party in parties)).digest()
    mine = np.concatenate(
        (
            np.array([protocol.chunk, protocol.batch, limit_bytes], np.uint64),
            np.frombuffer(pools, np.uint64),
        )
    )
    return mine, parties[0].channel.exchange("sizes", mine)


def run_lanes(channels: Sequence[Channel], lane: Callable[[int], None]) -> None:
    """Call lane(0), lane(1), .. each on a thread of its own with a channel, and wait for them.

    The first error closes all channels, so that no lane waits any longer, and is raised. If any
    lane has found that the peer deviated, that is raised: the channels of others are closed by it.
    """
    errors: list[BaseException] = []
    lock = threading.Lock()

    def guarded(number: int) -> None:
        try:
            lane(number)
        except BaseException as error:
            with lock:
                errors.append(error)
            for channel in channels:
                channel.close()

    threads = [
        threading.Thread(target=guarded, args=(number,), name=f"lane-{number}", daemon=True)
        for number in range(len(channels))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        # Every wait inside a lane is a channel's, which has a limit. A limit here would have to
        # leave a thread behind whose sockets the caller then frees. A caller that cannot wait for a
        # lane that hangs leaves our thread behind, with all of them.
        thread.join()
    if errors:
        raise next((each for each in errors if isinstance(each, PeerDeviated)), errors[0])


class Report:
    """The progress of all lanes together."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress
        self._lock = threading.Lock()

    def add(self, coordinates: int) -> None:
        with self._lock:
            self._done += coordinates
            if self._progress is not None:
                self._progress(self._done, self._total)


def go_on(party: Party, hurry: Callable[[], bool]) -> bool:
    """Return whether to go on, as party 0 decides, which waits for no answer."""
    if party.number == 0:
        go_on = not hurry()
        party.channel.send("fill", np.array([go_on], np.uint8))
        return go_on
    return bool(party.channel.recv("fill", np.uint8, (1,))[0])
