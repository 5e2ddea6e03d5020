"""The engine, which runs the protocol in a worker thread and keeps the session between rounds.

A session is base OTs, lanes and pools.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from securemedian.mpc import pipeline
from securemedian.mpc.channel import Channel
from securemedian.mpc.errors import LocalProtocolError, SecureMedianError
from securemedian.mpc.params import RoundParams
from securemedian.mpc.party import Party, Session
from securemedian.mpc.pipeline import Cost, Outcome
from securemedian.mpc.protocol import ProtocolParams
from securemedian.mpc.share import Upload
from securemedian.servers import logs
from securemedian.servers.transport import ZmqLink

# for sys.setswitchinterval: a lane may wait this long for the interpreter, not Python's 5 ms
SWITCH_S = 1e-4
# how long a dropped job may take to stop before it is abandoned. Once its lane is closed, a thread
# stops at its next message, and may first have to finish the computation of a chunk.
STOP_S = 5.0
# the number of abandoned jobs at which the server ends itself: each keeps its threads, sockets and
# pools
MOST_ABANDONED = 3


@dataclass
class _Lanes:
    """The lanes of one session."""

    session_id: bytes
    links: list[ZmqLink]
    # one per lane, once the base OTs are made
    parties: list[Party] = field(default_factory=list)
    # what it has cost to fill the pools since the last round
    ahead: Cost = Cost()

    def release(self) -> None:
        for link in self.links:
            link.release()


Work = Callable[[_Lanes], Outcome | None]


class _Job:
    """A piece of work on a thread of its own, which begins when the job before it has ended.

    If the job before it has failed, this one fails with the same error.
    """

    def __init__(
        self, lanes: _Lanes, work: Work, before: "_Job | None", wake: Callable[[], None]
    ) -> None:
        self.result: Outcome | SecureMedianError | None = None
        self.ended = False
        self.lanes, self._work, self._before, self._wake = lanes, work, before, wake
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def join(self, limit_s: float | None = None) -> bool:
        """Wait for the job to end, for `limit_s` at most, and return whether it has ended."""
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            if self._before:
                # All waits of that job are a channel's, and so have a limit. If it does not stop
                # all the same, both jobs are abandoned.
                self._before.join()
                if isinstance(self._before.result, SecureMedianError):
                    raise self._before.result
            self.result = self._work(self.lanes)
        except SecureMedianError as error:
            self.result = error
        except Exception as error:
            # a defect must fail the round, and not leave it hanging
            logs.event("engine-error", logging.ERROR, error)
            self.result = LocalProtocolError(
                f"a defect in this server, see its log: {type(error).__name__}"
            )
        self.ended = True
        self._wake()


class Engine:
    """Computes rounds for the daemon's loop. Used by that one thread.

    A round is `prepare` while its clients train, and then `start`; `poll` returns how it went.
    A job calls `wake` when it has ended.
    """

    def __init__(
        self,
        party: int,
        protocol: ProtocolParams,
        pool_limit_bytes: int,
        open_lane: Callable[[bytes, int], ZmqLink],
        wake: Callable[[], None],
    ) -> None:
        self._party, self._protocol, self._pool_limit_bytes = party, protocol, pool_limit_bytes
        self._open_lane, self._wake = open_lane, wake
        self._lanes: _Lanes | None = None
        self._job: _Job | None = None
        # lanes that are closed while the job still uses them
        self._dropped: _Lanes | None = None
        # the time at which a dropped job is abandoned
        self._stop_by = 0.0
        # abandoned jobs that still run
        self._abandoned: list[_Job] = []
        # set once the uploads have arrived: filling the pools must end
        self._hurry = threading.Event()
        self.phase = ""
        self.progress = (0, 0)

    @property
    def session_id(self) -> bytes | None:
        """The id of the session, if there is one whose base OTs the next round can use."""
        return self._lanes.session_id if self._lanes and self._lanes.parties else None

    def prepare(self, session_id: bytes, params: RoundParams) -> None:
        """Fill the pools for a round that takes uploads, together with the other server.

        If the session is new, this opens our end of its lanes and makes the base OTs first.
        """
        self._settle()
        self.check()
        if session_id != self.session_id:
            self.drop()
            self._lanes = _Lanes(
                session_id,
                [self._open_lane(session_id, lane) for lane in range(self._protocol.lanes)],
            )
        hurry = self._hurry = threading.Event()
        self._begin("preparing", lambda lanes: self._fill(lanes, params, hurry))

    def start(self, params: RoundParams, uploads: Sequence[Upload], weights: Sequence[int]) -> None:
        """Compute the round that was prepared, together with the other server."""
        self._hurry.set()
        self._begin("protocol", lambda lanes: self._compute(lanes, params, uploads, weights))

    def poll(self) -> Outcome | SecureMedianError | None:
        """Return the result of a run that has ended, or the error that ended a job.

        Returns it once. It is None while the job runs, after a preparation that went well, and
        for a job that was dropped.
        """
        if self._job is None or not self._job.ended:
            return None
        self._job.join()
        result, self._job, self.phase = self._job.result, None, ""
        if self._dropped:
            self._release()
            return None
        return result

    def drop(self) -> None:
        """Forget the session with its pools, and end the current job if there is one."""
        if self._lanes is None:
            return
        for link in self._lanes.links:
            link.close()
        self._dropped, self._lanes = self._lanes, None
        self._stop_by = time.monotonic() + STOP_S
        if self._job is None:
            self._release()

    def check(self) -> None:
        """Abandon a dropped job that is past its limit, and free what ended jobs have left.

        Raises LocalProtocolError if so many abandoned jobs still run that the process has to be
        started anew.
        """
        if self._dropped and time.monotonic() > self._stop_by:
            self._settle()
        self._reap()
        if len(self._abandoned) >= MOST_ABANDONED:
            raise LocalProtocolError(
                f"{len(self._abandoned)} abandoned computations of this server do not stop: "
                "it ends itself, to be started anew"
            )

    def close(self) -> bool:
        """Drop everything, and return whether every job has ended and left no socket open."""
        self.drop()
        self._settle()
        self._reap()
        return not self._abandoned

    def _begin(self, phase: str, work: Work) -> None:
        if self._lanes is None:
            raise LocalProtocolError("a round cannot be started before it is prepared")

        def named(lanes: _Lanes) -> Outcome | None:
            if lanes is self._lanes:
                self.phase, self.progress = phase, (0, 0)
            return work(lanes)

        self._job = _Job(self._lanes, named, self._job, self._wake)

    def _release(self) -> None:
        if self._dropped:
            self._dropped.release()
            self._dropped = None

    def _settle(self) -> None:
        """Wait for the current job to end, or abandon it at its limit.

        An abandoned job keeps its threads, lanes and pools. Nothing else uses these ever again.
        """
        if self._job is None:
            return
        limit_s = max(0.0, self._stop_by - time.monotonic()) if self._dropped else STOP_S
        if self._job.join(limit_s):
            self.poll()
        else:
            self.drop()
            self._abandoned.append(self._job)
            logs.event(
                "computation-abandoned",
                logging.ERROR,
                phase=self.phase,
                reason=f"it has not stopped within {STOP_S:g} s",
                abandoned=len(self._abandoned),
            )
            self._job, self._dropped, self.phase = None, None, ""

    def _reap(self) -> None:
        """Free the sockets of abandoned jobs that have ended after all."""
        for job in [job for job in self._abandoned if job.join(0)]:
            job.lanes.release()
            self._abandoned.remove(job)
            logs.event("abandoned-computation-ended", abandoned=len(self._abandoned))

    def _fill(self, lanes: _Lanes, params: RoundParams, hurry: threading.Event) -> None:
        if not lanes.parties:
            start = time.monotonic()
            session, channels = establish(
                self._party, lanes.links, lanes.session_id, self._protocol
            )
            lanes.parties = [session.party(lane, channel) for lane, channel in enumerate(channels)]
            logs.event(
                "session-established",
                lanes=len(lanes.parties),
                seconds=round(time.monotonic() - start, 3),
            )
        lanes.ahead = pipeline.fill(
            lanes.parties,
            params,
            self._protocol,
            self._pool_limit_bytes,
            hurry.is_set,
            partial(self._note, lanes),
        )
        logs.event("pool-filled", ots=lanes.ahead.ots, seconds=round(lanes.ahead.ahead_seconds, 3))

    def _compute(
        self, lanes: _Lanes, params: RoundParams, uploads: Sequence[Upload], weights: Sequence[int]
    ) -> Outcome:
        ahead, lanes.ahead = lanes.ahead, Cost()
        outcome = pipeline.run_round(
            lanes.parties, params, self._protocol, uploads, partial(self._note, lanes), weights
        )
        return replace(outcome, cost=outcome.cost.after(ahead))

    def _note(self, lanes: _Lanes, done: int, total: int) -> None:
        # an abandoned job may still report
        if lanes is self._lanes:
            self.progress = (done, total)


def establish(
    party: int, links: Sequence[ZmqLink], session_id: bytes, protocol: ProtocolParams
) -> tuple[Session, list[Channel]]:
    """Meet the other server on every lane, and make the base OTs on the first one."""
    for link in links:
        link.meet(party)
    channels = [Channel(link) for link in links]
    return Session.establish(party, channels[0], session_id, protocol), channels
