"""Runs the protocol in a worker thread, and keeps the session (base OTs, lanes) from round to round."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mpc import pipeline
from mpc.channel import Channel
from mpc.errors import LocalProtocolError, RoundBusy, SecureMedianError
from mpc.params import ProtocolParams, RoundParams
from mpc.party import Party, Session
from mpc.pipeline import Outcome
from mpc.share import Upload
from servers import logs
from servers.transport import ZmqLink

SWITCH_S = 1e-4  # for sys.setswitchinterval: lanes hand over to each other within this, not within Python's 5 ms
STOP_S = 5.0  # a closed lane stops its thread at the next message; a chunk's computation may come first


@dataclass
class _Lanes:
    """One session's lanes; `parties` once the base OTs are done."""

    session_id: bytes
    links: list[ZmqLink]
    parties: list[Party] = field(default_factory=list)

    def release(self) -> None:
        for link in self.links:
            link.release()


class Engine:
    """Used by the daemon's loop alone; `wake` is called by the worker when it has ended."""

    def __init__(
        self, party: int, protocol: ProtocolParams, open_lane: Callable[[bytes, int], ZmqLink], wake: Callable[[], None]
    ) -> None:
        self._party, self._protocol, self._open_lane, self._wake = party, protocol, open_lane, wake
        self._lanes: _Lanes | None = None
        self._thread: threading.Thread | None = None
        self._result: Outcome | SecureMedianError | None = None
        self._dropped: _Lanes | None = None  # closed, and still in use by the worker
        self.phase = ""
        self.progress = (0, 0)

    @property
    def session_id(self) -> bytes | None:
        """The session that can be kept."""
        return self._lanes.session_id if self._lanes and self._lanes.parties else None

    def start(self, session_id: bytes, params: RoundParams, uploads: Sequence[Upload], weights: Sequence[int]) -> None:
        """Open our end of the lanes, if the session is new, and compute. The other server does the same."""
        if not self._settle():
            raise RoundBusy(f"the last round's computation has not stopped within {STOP_S:g} s: try again")
        if session_id != self.session_id:
            self.drop()
            self._lanes = _Lanes(
                session_id, [self._open_lane(session_id, lane) for lane in range(self._protocol.lanes)]
            )
        self.progress = (0, 0)
        self._thread = threading.Thread(
            target=self._work, args=(self._lanes, params, uploads, weights), name="engine", daemon=True
        )
        self._thread.start()

    def poll(self) -> Outcome | SecureMedianError | None:
        """The result of a run that has ended, once. A dropped run has none."""
        if self._thread is None or self._result is None:
            return None
        self._thread.join()
        result, self._result, self._thread, self.phase = self._result, None, None, ""
        if self._dropped:
            self._release()
            return None
        return result

    def drop(self) -> None:
        """Forget the session, and end the run in hand if there is one."""
        if self._lanes is None:
            return
        for link in self._lanes.links:
            link.close()
        self._dropped, self._lanes = self._lanes, None
        if self._thread is None:
            self._release()

    def _release(self) -> None:
        if self._dropped:
            self._dropped.release()
            self._dropped = None

    def close(self) -> bool:
        """Drop everything. Whether the worker has ended in time, and so every socket is closed."""
        self.drop()
        return self._settle()

    def _settle(self) -> bool:
        if self._thread:
            self._thread.join(STOP_S)
            self.poll()
        return self._thread is None

    def _work(self, lanes: _Lanes, params: RoundParams, uploads: Sequence[Upload], weights: Sequence[int]) -> None:
        try:
            if not lanes.parties:
                self.phase = "base OTs"
                start = time.monotonic()
                lanes.parties = self._establish(lanes)
                logs.event("session-established", lanes=len(lanes.parties), seconds=round(time.monotonic() - start, 3))
            self.phase = "protocol"
            self._result = pipeline.run_round(lanes.parties, params, self._protocol, uploads, self._note, weights)
        except SecureMedianError as error:
            self._result = error
        except Exception as error:  # a defect must fail the round, not leave it hanging
            logs.event("engine-error", logging.ERROR, error)
            self._result = LocalProtocolError(f"a defect in this server, see its log: {type(error).__name__}")
        self._wake()

    def _establish(self, lanes: _Lanes) -> list[Party]:
        session, channels = establish(self._party, lanes.links, lanes.session_id, self._protocol)
        return [session.party(lane, channel) for lane, channel in enumerate(channels)]

    def _note(self, done: int, total: int) -> None:
        self.progress = (done, total)


def establish(
    party: int, links: Sequence[ZmqLink], session_id: bytes, protocol: ProtocolParams
) -> tuple[Session, list[Channel]]:
    """Meet the other server on every lane, and make the base OTs on the first."""
    for link in links:
        link.meet(party)
    channels = [Channel(link) for link in links]
    return Session.establish(party, channels[0], session_id, protocol), channels
