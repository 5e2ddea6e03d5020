"""The engine, which runs the protocol in jobs and keeps the session between rounds.

A backend opens a session together with the other server's: base OTs, lanes and pools. A stream of
its own serves checks of dealings while the lanes are busy. Each job
has a thread, on which it computes or waits for what the backend computes elsewhere.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from securemedian.common.status import COMPILING
from securemedian.mpc.errors import LocalProtocolError, PeerDeviated, SecureMedianError
from securemedian.mpc.protocols.dealing import Dealing, Note, nothing
from securemedian.mpc.protocols.share import Upload
from securemedian.mpc.rounds.cost import Cost
from securemedian.mpc.rounds.lanes import Progress
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Checked, Outcome
from securemedian.servers import logs
from securemedian.servers.computing.base import Backend, Computation, RoundInput
from securemedian.servers.computing.folds import Folds

# how long a dropped job may take to stop before it is abandoned. Once its lane is closed, a thread
# stops at its next message, and may first have to finish the computation of a chunk.
STOP_S = 5.0
# the phase of `Engine.prepare`
PREPARING = "preparing"
# the number of abandoned jobs at which the server ends itself: each keeps its threads, sockets and
# pools
MOST_ABANDONED = 3


@dataclass
class _Session:
    """A session, and what it has cost since the last round."""

    computation: Computation
    # to fill the pools
    ahead: Cost = Cost()
    # to check what the clients of this round have sent
    checks: Cost = Cost()
    # the folds that an audited round's clients are asked for
    folds: Folds | None = None


@dataclass(frozen=True)
class Coin:
    """The servers' toss for a check of dealings."""

    seed: bytes = field(repr=False)
    # with which the other one vouches for it: `ServerRound.token` of each client that is checked
    tokens: bytes = field(default=b"", repr=False)


Result = Outcome | Checked | Coin
Examine = Callable[[], None]
Work = Callable[[_Session], Result | None]


class _Job:
    """A piece of work on a thread of its own, which begins when the job before it has ended.

    If the job before it has failed, this one fails with the same error.
    """

    def __init__(
        self, session: _Session, work: Work, before: "_Job | None", wake: Callable[[], None]
    ) -> None:
        self.result: Result | SecureMedianError | None = None
        self.ended = False
        self.session, self._work, self._before, self._wake = session, work, before, wake
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def join(self, limit_s: float | None = None) -> bool:
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
            self.result = self._work(self.session)
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
    """Computes the rounds of a cohort for the daemon's loop. Used by that one thread.

    A round is `prepare` while its clients train, and then `start`; `poll` returns how it went.
    `check_dealings`, `check_values` and `bind` come between these two. A job calls `wake` when it
    ends. Pools take up to `pool_limit` bytes, and are not filled while `others_compute`. Any thread
    may call these two.
    """

    def __init__(
        self,
        backend: Backend,
        pool_limit: Callable[[], int],
        wake: Callable[[], None],
        others_compute: Callable[[], bool] = lambda: False,
    ) -> None:
        self._backend, self._pool_limit = backend, pool_limit
        self._wake, self._others_compute = wake, others_compute
        self._session: _Session | None = None
        # the last job of the session, and the one that checks dealings beside it
        self._job: _Job | None = None
        self._check_job: _Job | None = None
        # a session that is closed while jobs still use it
        self._dropped: _Session | None = None
        # the time at which dropped jobs are abandoned
        self._stop_by = 0.0
        # abandoned jobs that still run, by session
        self._abandoned: list[list[_Job]] = []
        # set once the uploads have arrived: filling the pools must end
        self._hurry = threading.Event()
        # whether the last job of the session computes, and is not `prepare`
        self._computing = False
        self._phase = ""
        self.progress = (0, 0)

    @property
    def phase(self) -> str:
        """The current phases; `progress` refers to the first."""
        checking = "checking dealings" if self._check_job else ""
        doing = "waiting for folds" if self.folds and self.folds.binding else self._phase
        return " and ".join(phase for phase in (doing, checking) if phase)

    @property
    def folds(self) -> Folds | None:
        """The folds that clients are asked for where the servers are bound, or were last."""
        return self._session.folds if self._session else None

    @property
    def session_id(self) -> bytes | None:
        """The id of the session, if there is one whose base OTs the next round can use."""
        opened = self._session and self._session.computation
        return opened.session_id if opened and opened.established else None

    @property
    def computes(self) -> bool:
        """Whether the protocol runs, or values are checked."""
        return self._computing and self._job is not None

    @property
    def prepares(self) -> bool:
        """Whether `prepare` is under way, for which later jobs wait."""
        return self._job is not None and self._phase == PREPARING

    @property
    def stopping(self) -> bool:
        """Whether dropped jobs have yet to stop, for which `prepare` would wait."""
        return self._dropped is not None

    @property
    def opened_session(self) -> bytes | None:
        """The id of the session that is open, whether its base OTs are made or not yet."""
        return self._session.computation.session_id if self._session else None

    def prepare(self, session_id: bytes, params: RoundParams) -> None:
        """Fill the pools for a round that takes uploads, together with the other server.

        If it is audited, make all that it needs before its uploads instead. If the session is new,
        this opens our end of it and makes the base OTs first.
        """
        self._settle()
        self.check()
        if session_id != self.session_id:
            self.drop()
            self._session = _Session(self._backend.open(session_id))
        hurry = self._hurry = threading.Event()
        self._computing = False
        self._begin(PREPARING, lambda session: self._fill(session, params, hurry))

    def toss(self, vouch: Callable[[bytes], bytes]) -> None:
        """Toss for a check of dealings together with the other server (`pipeline`)."""

        def toss(session: _Session) -> Coin:
            coin, tokens, cost = session.computation.toss(vouch)
            session.checks = cost.as_checking().after(session.checks)
            return Coin(coin, tokens)

        self._check_job = _Job(self._opened(), toss, None, self._wake)

    def check_dealings(
        self,
        shape: Dealing,
        halves: Sequence[Upload],
        coin: bytes,
        examine: Examine = lambda: None,
        note: Note = nothing,
    ) -> None:
        """Check clients' dealings with the other server, while other jobs go on.

        `coin` is what `toss` gave, and `note` a `dealing.Note`. `examine`, here and below,
        is called first and raises DamagedUpload if the shares are not what the clients have sent.
        """

        def check(computation: Computation, _: Progress) -> Checked:
            return computation.check_dealings(shape, halves, coin, note)

        work = self._checking(examine, check)
        self._check_job = _Job(self._opened(), work, None, self._wake)

    def check_values(self, given: RoundInput, examine: Examine = lambda: None) -> None:
        """Check with the other server that the clients' uploads are in range."""

        def check(computation: Computation, progress: Progress) -> Checked:
            return computation.check_values(given, progress)

        self._compute_now()
        self._begin("checking values", self._checking(examine, check))

    def bind(
        self,
        given: RoundInput,
        folds: Folds,
        limit_s: float,
        examine: Examine = lambda: None,
    ) -> None:
        """Bind both servers for an audited round, and compare what its clients put into `folds`.

        They are waited for up to `limit_s`.
        """

        def check(computation: Computation, progress: Progress) -> Checked:
            return computation.bind(given, folds, limit_s, progress)

        self._compute_now()
        self._opened().folds, folds.wake = folds, self._wake
        self._begin("binding", self._checking(examine, check))

    def _checking(
        self, examine: Examine, check: Callable[[Computation, Progress], Checked]
    ) -> Work:
        """Return the work of a check, which counts its cost."""

        def work(session: _Session) -> Checked:
            examine()
            verdicts = check(session.computation, partial(self._note, session))
            session.checks = verdicts.cost.after(session.checks)
            return verdicts

        return work

    def start(self, given: RoundInput, examine: Examine = lambda: None) -> None:
        """Compute the round that was prepared, together with the other server."""

        def compute(session: _Session) -> Outcome:
            examine()
            ahead, session.ahead = session.ahead, Cost()
            checks, session.checks = session.checks, Cost()
            outcome = session.computation.run_round(given, partial(self._note, session))
            return replace(outcome, cost=outcome.cost.after(ahead).after(checks))

        self._compute_now()
        self._begin("protocol", compute)

    def poll(self) -> Result | SecureMedianError | None:
        """Return the result of a run or a check that has ended, or the error that ended a job.

        It is returned once. It is None while nothing has ended, after a successful preparation, and
        for dropped jobs, unless these have found that the peer deviated.
        """
        for job in self._jobs():
            if not job.ended:
                continue
            job.join()
            if job is self._check_job:
                self._check_job = None
            else:
                self._job, self._phase = None, ""
            wanted = not self._dropped or isinstance(job.result, PeerDeviated)
            if wanted and job.result is not None:
                return job.result
        if self._dropped and not self._jobs():
            self._release()
        return None

    def drop(self) -> None:
        """Forget the session with its pools, and end its jobs if there are any."""
        if self._session is None:
            return
        self._session.computation.close()
        self._dropped, self._session = self._session, None
        self._stop_by = time.monotonic() + STOP_S
        if not self._jobs():
            self._release()

    def check(self) -> None:
        """Abandon dropped jobs that are past their limit, and free what ended jobs have left.

        Raises LocalProtocolError if so many abandoned jobs still run that the process must be
        restarted.
        """
        if self._dropped and time.monotonic() > self._stop_by:
            self._settle()
        self._reap()
        if len(self._abandoned) >= MOST_ABANDONED:
            raise LocalProtocolError(
                f"{len(self._abandoned)} abandoned computations of this server do not stop: "
                "it ends itself, to be restarted"
            )

    def close(self) -> bool:
        """Drop everything, and return whether nothing runs any more and no socket is open."""
        self.drop()
        self._settle()
        self._reap()
        return not self._abandoned

    def _compute_now(self) -> None:
        """End the filling of the pools, this cohort's and those of the others."""
        self._hurry.set()
        self._computing = True

    def _opened(self) -> _Session:
        if self._session is None:
            raise LocalProtocolError("nothing can be computed before the round is prepared")
        return self._session

    def _jobs(self) -> list[_Job]:
        return [job for job in (self._job, self._check_job) if job]

    def _begin(self, phase: str, work: Work) -> None:
        def named(session: _Session) -> Result | None:
            if session is self._session:
                self._phase, self.progress = phase, (0, 0)
            return work(session)

        self._job = _Job(self._opened(), named, self._job, self._wake)

    def _release(self) -> None:
        if self._dropped:
            self._dropped.computation.release()
            self._dropped = None

    def _settle(self) -> None:
        """Wait for the current jobs to end, or abandon them at their limit.

        Abandoned jobs keep their threads and sessions. Nothing else uses these ever again.
        """
        jobs = self._jobs()
        if not jobs:
            return
        stop_by = self._stop_by if self._dropped else time.monotonic() + STOP_S
        # a list, so that every job is waited for
        ended = [job.join(max(0.0, stop_by - time.monotonic())) for job in jobs]
        if all(ended):
            while self._jobs():
                self.poll()
            return
        phase = self.phase
        self.drop()
        self._abandoned.append(jobs)
        logs.event(
            "computation-abandoned",
            logging.ERROR,
            phase=phase,
            reason=f"it has not stopped within {STOP_S:g} s",
            abandoned=len(self._abandoned),
        )
        self._job = self._check_job = self._dropped = None
        self._phase = ""

    def _reap(self) -> None:
        """Free the sockets of abandoned jobs that have ended after all."""
        for jobs in list(self._abandoned):
            if all(job.join(0) for job in jobs):
                jobs[0].session.computation.release()
                self._abandoned.remove(jobs)
                logs.event("abandoned-computation-ended", abandoned=len(self._abandoned))

    def _fill(self, session: _Session, params: RoundParams, hurry: threading.Event) -> None:
        note = partial(self._note, session)
        if params.form.audited:
            # nothing of it is for any other round, and the round needs all of it
            session.ahead = session.computation.prepare(params, note)
        else:
            session.ahead = session.computation.fill(
                params,
                self._pool_limit(),
                lambda: hurry.is_set() or self._others_compute(),
                note,
            )
        logs.event(
            "pool-filled", ots=session.ahead.ots, seconds=round(session.ahead.ahead_seconds, 3)
        )

    def _note(self, session: _Session, done: int, total: int) -> None:
        # an abandoned job may still report
        if session is self._session:
            self.progress = (done, total)


# returns a new engine; it is given what says whether another engine computes
Make = Callable[[Callable[[], bool]], Engine]


class Engines:
    """The engines of the cohorts, by name, and their backend. Used by one thread."""

    def __init__(self, backend: Backend, make: Make, wake: Callable[[], None]) -> None:
        self._backend, self._make, self._wake = backend, make, wake
        self._engines: dict[str, Engine] = {}
        self._compiler: threading.Thread | None = None
        # whether `compile` is done, so that the other server never waits for our compiler
        self.ready = False
        # the error with which the backend refused to start
        self._refused: SecureMedianError | None = None

    def of(self, cohort: str) -> Engine:
        if cohort not in self._engines:
            self._engines[cohort] = self._make(partial(self._computes_beside, cohort))
        return self._engines[cohort]

    def compile(self) -> None:
        """Start the backend, which compiles the kernels, on a thread of its own."""
        self._compiler = threading.Thread(target=self._warm_up, name="compiler", daemon=True)
        self._compiler.start()

    @property
    def problem(self) -> str:
        """Return the words for a server that compiles, with the seconds to go if they are known."""
        left = self._backend.ready_in_s
        return COMPILING + ("" if left is None else f", {left:.0f} s to go")

    def poll(self) -> tuple[str, Result | SecureMedianError] | None:
        """Return what an engine has (`Engine.poll`) with the name of its cohort, once."""
        for cohort, engine in self._engines.items():
            if (result := engine.poll()) is not None:
                return cohort, result
        return None

    def drop(self) -> None:
        """Forget all sessions with their pools, and end their jobs."""
        for engine in self._engines.values():
            engine.drop()

    def check(self) -> None:
        """Look after jobs that do not stop. Raises what `Engine.check` raises.

        Also raises the error with which the backend refused to start, and LocalProtocolError if the
        kernels could not be compiled.
        """
        # asked first: a thread that has ended changes nothing of the rest
        ended = self._compiler and not self._compiler.is_alive()
        if self._refused:
            raise self._refused
        if ended and not self.ready:
            raise LocalProtocolError("the kernels could not be compiled: see the log")
        for engine in self._engines.values():
            engine.check()

    def close(self) -> bool:
        """Drop everything, and return whether nothing runs any more and no socket is open."""
        self.drop()
        ended = all([engine.close() for engine in self._engines.values()])
        return ended and not (self._compiler and self._compiler.is_alive())

    def _warm_up(self) -> None:
        start = time.monotonic()
        logs.event("compiling")
        try:
            self._backend.start()
        except SecureMedianError as refused:
            self._refused = refused
        except Exception as error:
            # `check` ends the server
            logs.event("engine-error", logging.ERROR, error)
        else:
            self.ready = True
            logs.event("compiled", seconds=round(time.monotonic() - start, 1))
        self._wake()

    def _computes_beside(self, cohort: str) -> bool:
        """Return whether another cohort computes. Called by the threads of any engine."""
        engines = list(self._engines.items())
        return any(engine.computes for name, engine in engines if name != cohort)
