"""A session whose shards are computed by workers, and how the two daemons lead them.

Shard i of a round is computed by one worker of each server, which meet directly. The daemons hand
out what that takes on a stream between them, and lead each step of a round (`_Crew.run`) so:

    Anew(i, attempt, key)            S0: let another pair of workers take shard i, from nothing.
    At(i, attempt, key, endpoint)    S1: its worker listens there. S0's worker connects.
    Finished(i, attempt)             Either daemon has the result of its own worker.
    Lost(i, attempt, reason)         S1: its worker is gone, or cannot reach S0's.

The keys are a CURVE pair per server, shard and attempt. A shard that is lost at either server is
taken up by S0 with `Anew`, in a new session: new base OTs, nothing of the old pools. A daemon
counts a shard as done when both have finished the same attempt, so that two shares of a result
always belong together. Steps follow each other: no daemon begins one before the last is done at
both. So the dealings are known to be sound over all shards before a result is opened.
"""

import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import numpy as np
import zmq

from securemedian.common.addresses import check_endpoint
from securemedian.common.keys import KeyPair, check_public_key
from securemedian.mpc.arrays import Result, RingShare
from securemedian.mpc.errors import (
    ChannelClosed,
    ChannelTimeout,
    LocalProtocolError,
    NoSocket,
    NoWorker,
    PeerProtocolError,
    cut,
    from_code,
)
from securemedian.mpc.protocols import dealing, wire
from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.dealing import Dealing, Note, Opened
from securemedian.mpc.protocols.prg import SESSION_BYTES
from securemedian.mpc.protocols.share import Upload
from securemedian.mpc.rounds import cutting, pipeline
from securemedian.mpc.rounds.cost import Cost, counted, joined
from securemedian.mpc.rounds.cutting import Shard
from securemedian.mpc.rounds.lanes import Progress
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Checked, Found, Outcome
from securemedian.servers import logs
from securemedian.servers.computing.base import RoundInput
from securemedian.servers.computing.folds import Folds
from securemedian.servers.computing.slices import Keep, Parcels, for_check, for_shard
from securemedian.servers.computing.worker import Broken, Meeting
from securemedian.servers.network import control
from securemedian.servers.network.transport import ZmqLink

# how often a shard may be taken up in one step; then the round is tried again as a whole
MOST_ATTEMPTS = 4
# how long a daemon waits for a worker to be there, and for the other daemon while no worker of its
# own is busy
WORKER_WAIT_S = 120.0
DAEMON_WAIT_S = 2 * WORKER_WAIT_S
# how often a daemon that leads a step looks whether a worker that is wanted is there; what workers
# and the other daemon answer it takes at once
TURN_S = 0.02
# how often workers are asked for their progress, and told to hurry
ASK_S = 0.5
# errors that another pair of workers may not have; all others are final
ANEW = frozenset({ChannelClosed.code, ChannelTimeout.code, NoSocket.code})


class WorkerLost(Exception):
    """A worker has ended, or cannot be reached."""


class Workers(Protocol):
    """The workers of one server. `submit` and `parcels` are called by several threads."""

    def submit(self, worker: int, function: str, *arguments: Any) -> "Future[Any]":
        """Call a function of a worker (`worker.ShardWorker`); the future may raise WorkerLost."""

    def there(self) -> list[int]:
        """Return the numbers of the workers that are there now."""

    def parcels(self) -> Parcels:
        """Return what takes words to where workers can fetch them."""


@dataclass(frozen=True)
class _OfShard:
    """A message about one attempt at a shard in a step."""

    # the step of the round, from 1 on
    step: int
    # the shard, and the attempt at it
    shard: int
    attempt: int


@dataclass(frozen=True)
class Anew(_OfShard):
    """S0 lets another pair of workers take a shard."""

    # the public key of S0's worker
    key: str

    def __post_init__(self) -> None:
        check_public_key(self.key)


@dataclass(frozen=True)
class At(_OfShard):
    """S1's worker waits for S0's."""

    # the public key of S1's worker, and where it listens
    key: str
    endpoint: str

    def __post_init__(self) -> None:
        check_public_key(self.key)
        check_endpoint(self.endpoint)


@dataclass(frozen=True)
class Finished(_OfShard):
    """Either daemon has the result of its worker."""


@dataclass(frozen=True)
class Lost(_OfShard):
    """S1's worker is gone, or has not reached S0's."""

    # why, in words
    reason: str


Message = Anew | At | Finished | Lost
KINDS: dict[str, type] = {kind.__name__.lower(): kind for kind in (Anew, At, Finished, Lost)}


def decode(parts: Sequence[wire.Part]) -> Message:
    """Return the message in a frame. Raises FrameError if it is not exactly one of the messages."""
    return cast(Message, control.decode_as(KINDS, parts, "between daemons about shards"))


@dataclass
class _Seat:
    """One shard at this server: the attempt at it, and how far a step is."""

    shard: int
    attempt: int = 0
    # how often it was taken up in this step
    tries: int = 0
    # since when a worker is wanted
    wanted_since: float | None = None
    # of this attempt: our keys, and those of the other server's worker with where it listens
    keys: KeyPair | None = field(default=None, repr=False)
    peer_key: str = ""
    endpoint: str = ""
    worker: int | None = None
    # whether the session is open at our worker, which opens it before it runs a step
    opened: bool = False
    asked: "Future[Any] | None" = field(default=None, repr=False)
    # of the step
    result: Any = field(default=None, repr=False)
    peer_finished: bool = False
    asking: "Future[Any] | None" = field(default=None, repr=False)
    progress: tuple[int, int] = (0, 0)

    @property
    def done(self) -> bool:
        """Return whether the step is done, at both servers."""
        return self.result is not None and self.peer_finished

    @property
    def busy(self) -> bool:
        return bool(self.asked or self.wanted_since)

    def begin(self) -> None:
        self.result, self.peer_finished, self.progress = None, False, (0, 0)

    def leave(self) -> None:
        self.begin()
        self.keys = self.worker = self.wanted_since = None
        self.asked = self.asking = None
        self.opened = False


# the step's request to the worker of a seat
_Given = Callable[[_Seat], Sequence[Any]]


class _Bell:
    """A bell that any thread may ring, for a thread that waits for it and for messages at once."""

    def __init__(self) -> None:
        """Hang the bell. Raises NoSocket if no descriptor is left."""
        try:
            self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError as error:
            raise NoSocket(
                f"this server cannot open an eventfd: {error.strerror}; raise the limit on open "
                "files"
            ) from error
        self._lock, self._closed = threading.Lock(), False

    def fileno(self) -> int:
        """Return what can be read once it was rung."""
        return self._file

    def ring(self, answered: object = None) -> None:
        """Ring it, for instance because this future is done. After `close` nobody hears it."""
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._file, 1)

    def hush(self) -> None:
        """Wait for the next ring only."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._file)

    def close(self) -> None:
        """Take it down; nobody waits for it any more."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._file)


class _Slices:
    """The slices of uploads for workers, cut when they are wanted, and the seconds that took."""

    def __init__(
        self,
        workers: Workers,
        uploads: Sequence[Upload],
        cut: Callable[[Upload, Shard, Keep], Upload],
    ) -> None:
        self._workers, self._uploads, self._cut = workers, uploads, cut
        self.seconds = 0.0

    def of(self, shard: Shard) -> list[Upload]:
        """Return the slice of every upload, put again where workers can fetch it."""
        start, parcels = time.perf_counter(), self._workers.parcels()
        slices = [self._cut(upload, shard, parcels.add) for upload in self._uploads]
        parcels.send()
        self.seconds += time.perf_counter() - start
        return slices


class _Crew:
    """The workers that compute the shards of a session, led together with the other daemon.

    Used by one thread, except `close`.
    """

    def __init__(
        self,
        party: int,
        name: str,
        session_id: bytes,
        link: ZmqLink,
        workers: Workers,
        timeout_s: Callable[[], float],
    ) -> None:
        self._party, self._name, self._session_id = party, name, session_id
        self._link, self._workers, self._timeout_s = link, workers, timeout_s
        self._seats: dict[int, _Seat] = {}
        self._step = 0
        self._channel, self._met = Channel(link), False
        # rung when a worker has answered
        self._bell = _Bell()
        # bytes of the daemons' own messages in this step
        self._sent = self._received = self._messages = 0

    @property
    def established(self) -> bool:
        return self._step > 0

    @property
    def channel(self) -> Channel:
        """Return the daemons' own channel, for what one pair computes for all shards."""
        self._meet()
        return self._channel

    def run(
        self,
        step: str,
        shards: Sequence[Shard],
        arguments: Callable[[Shard], Sequence[Any]],
        progress: Progress | None = None,
        hurry: Callable[[], bool] = lambda: False,
    ) -> list[Any]:
        """Let the workers run a step of all these shards, and return the results in their order.

        The other daemon does the same at the same time. `arguments` is called once per attempt at
        a shard, so that no worker looks for what lay at a node that is lost. Raises what a worker's
        step raises, unless another pair of workers may do better; ChannelClosed if a shard was lost
        too often; and NoWorker if no worker is there.
        """
        self._meet()
        self._step += 1
        self._sent = self._received = self._messages = 0
        seats = [self._seats.setdefault(shard.number, _Seat(shard.number)) for shard in shards]
        shard_of = {shard.number: shard for shard in shards}

        def given(seat: _Seat) -> Sequence[Any]:
            return step, *arguments(shard_of[seat.shard])

        for seat in seats:
            seat.begin()
            seat.tries = 0
            if seat.opened:
                self._ask_worker(seat, "run", *given(seat))
            elif self._party == 0:
                self._take_up(seat)
        heard = time.monotonic()
        ask_at = heard if hurry() else heard + ASK_S
        while not all(seat.done for seat in seats):
            if self._link.ready(TURN_S, self._bell):
                parts = self._link.recv()
                self._received += wire.size(parts)
                self._take(decode(parts))
                heard = time.monotonic()
            self._bell.hush()
            for seat in seats:
                self._look(seat, given)
            now = time.monotonic()
            if any(seat.busy for seat in seats):
                heard = now
            if now > heard + DAEMON_WAIT_S:
                raise ChannelTimeout(
                    f"the other server has said nothing of its shards for {DAEMON_WAIT_S:g} s"
                )
            if now >= ask_at:
                ask_at = now + ASK_S
                self._ask(seats, shards, progress, hurry())
        return [seat.result for seat in seats]

    @property
    def own_cost(self) -> Cost:
        """Return what the daemons' own messages of the last step cost."""
        return Cost(bytes_sent=self._sent, bytes_received=self._received, messages=self._messages)

    def close(self) -> None:
        """End every wait, now and in future. Any thread may call it."""
        self._link.close()

    def release(self) -> None:
        """Let the workers forget their sessions, and free the socket."""
        for seat in self._seats.values():
            self._leave(seat)
        self._link.release()
        self._bell.close()

    def _meet(self) -> None:
        if not self._met:
            self._link.meet(self._party)
            self._met = True

    # Messages of workers

    def _take(self, message: Message) -> None:
        """Take a message of the other daemon. One about an earlier attempt changes nothing."""
        seat = self._seats.get(message.shard)
        if message.step != self._step or seat is None:
            raise PeerProtocolError(
                f"the other server leads step {message.step}, shard {message.shard} of a session "
                f"whose step {self._step} is under way: the two do not run the same round"
            )
        match message:
            case Anew() if self._party == 1 and message.attempt == seat.attempt + 1:
                self._leave(seat)
                # no endpoint: this server's worker listens
                seat.attempt, seat.peer_key, seat.endpoint = message.attempt, message.key, ""
                seat.wanted_since = time.monotonic()
            case At() if self._party == 0 and message.attempt == seat.attempt:
                if seat.keys and not (seat.asked or seat.opened):
                    seat.peer_key, seat.endpoint = message.key, message.endpoint
                    self._open(seat)
            case Lost() if self._party == 0:
                if message.attempt == seat.attempt:
                    self._lose(seat, f"s1: {cut(message.reason)}")
            case Finished():
                if message.attempt == seat.attempt:
                    seat.peer_finished = True
            case _ if message.attempt < seat.attempt:
                pass
            case _:
                raise PeerProtocolError(
                    f"the other server says {type(message).__name__} of attempt {message.attempt} "
                    f"at shard {message.shard}, which cannot come now"
                )

    def _say(self, message: Message) -> None:
        parts = control.encode(message)
        self._link.send(parts)
        self._sent += wire.size(parts)
        self._messages += 1

    # Actions on a shard

    def _take_up(self, seat: _Seat) -> None:
        """Take a shard up, at S0, in a session of its own, once a worker is there."""
        self._leave(seat)
        seat.tries += 1
        if seat.tries > MOST_ATTEMPTS:
            raise ChannelClosed(
                f"shard {seat.shard} was lost {MOST_ATTEMPTS} times: see the log for why"
            )
        seat.wanted_since = time.monotonic()

    def _engage(self, seat: _Seat) -> None:
        """Choose the worker that is there and has the fewest shards, and go on with it."""
        assert seat.wanted_since
        there = self._workers.there()
        if not there:
            if time.monotonic() > seat.wanted_since + WORKER_WAIT_S:
                raise NoWorker(
                    f"no worker of s{self._party} has been there for long: {WORKER_WAIT_S:g} s; "
                    "look after the nodes of its Ray cluster"
                )
            return
        busy = Counter(each.worker for each in self._seats.values())
        seat.worker = min(there, key=lambda worker: (busy[worker], worker))
        seat.wanted_since, seat.keys = None, KeyPair(*zmq.curve_keypair())
        if self._party == 1:
            self._open(seat)
        else:
            seat.attempt += 1
            self._say(Anew(self._step, seat.shard, seat.attempt, seat.keys.public.decode()))

    def _open(self, seat: _Seat) -> None:
        """Let our worker open its end of the session of an attempt."""
        assert seat.keys
        both = sorted([seat.keys.public.decode(), seat.peer_key])
        bound = repr((self._name, seat.shard, seat.attempt, both)).encode()
        session_id = hashlib.sha256(self._session_id + bound).digest()[:SESSION_BYTES]
        meeting = Meeting(session_id, seat.keys, seat.peer_key, seat.endpoint, self._timeout_s())
        self._ask_worker(seat, "open", meeting)

    def _look(self, seat: _Seat, given: _Given) -> None:
        """See whether a worker is there, has opened the session, or has ended the step."""
        if seat.wanted_since:
            self._engage(seat)
        if not (seat.asked and seat.asked.done()):
            return
        asked, seat.asked = seat.asked, None
        value = self._value(seat, asked)
        if value is None:
            return
        if seat.opened:
            seat.result = value
            self._say(Finished(self._step, seat.shard, seat.attempt))
            return
        seat.opened = True
        if self._party == 1:
            assert seat.keys
            public = seat.keys.public.decode()
            self._say(At(self._step, seat.shard, seat.attempt, public, value))
        self._ask_worker(seat, "run", *given(seat))

    def _ask_worker(self, seat: _Seat, function: str, *arguments: Any) -> None:
        """Ask the worker of an attempt; its answer rings the bell."""
        assert seat.worker is not None
        seat.asked = self._workers.submit(seat.worker, function, self._key(seat), *arguments)
        seat.asked.add_done_callback(self._bell.ring)

    def _value(self, seat: _Seat, future: "Future[Any]") -> Any:
        """Return what a worker has returned, or None if the shard is lost at this attempt."""
        try:
            value = future.result()
        except WorkerLost as error:
            self._lose(seat, f"s{self._party}: {error}")
            return None
        if not isinstance(value, Broken):
            return value
        if value.code not in ANEW:
            raise from_code(value.code, value.reason)
        self._lose(seat, f"s{self._party}: {value.reason}")
        return None

    def _lose(self, seat: _Seat, reason: str) -> None:
        """Give an attempt at a shard up, at S0 for another one."""
        logs.event(
            "shard-lost",
            shard=seat.shard,
            attempt=seat.attempt,
            worker=seat.worker,
            session=logs.fingerprint("session", self._session_id),
            reason=reason,
        )
        if self._party == 0:
            self._take_up(seat)
        else:
            self._leave(seat)
            self._say(Lost(self._step, seat.shard, seat.attempt, cut(reason)))

    def _leave(self, seat: _Seat) -> None:
        """Let our worker forget the attempt. Nothing of it is ever used again."""
        if seat.worker is not None:
            self._workers.submit(seat.worker, "drop", self._key(seat))
        seat.leave()

    def _key(self, seat: _Seat) -> str:
        return f"{self._session_id.hex()}/{self._name}/{seat.shard}/{seat.attempt}"

    def _ask(
        self,
        seats: Sequence[_Seat],
        shards: Sequence[Shard],
        progress: Progress | None,
        hurry: bool,
    ) -> None:
        """Ask the workers how far they are, tell them to hurry, and report."""
        done = 0.0
        for seat, shard in zip(seats, shards, strict=True):
            if seat.asking and seat.asking.done():
                if not seat.asking.exception():
                    seat.progress = seat.asking.result()
                seat.asking = None
            if seat.opened and seat.asked and seat.worker is not None:
                if progress and not seat.asking:
                    key = self._key(seat)
                    seat.asking = self._workers.submit(seat.worker, "progress", key)
                if hurry:
                    self._workers.submit(seat.worker, "hurry", self._key(seat))
            part, total = seat.progress
            done += shard.dim * (1.0 if seat.result is not None else part / max(1, total))
        if progress:
            progress(int(done), sum(shard.dim for shard in shards))


class ShardedComputation:
    """A session whose shards are computed by workers: a `base.Computation`."""

    def __init__(
        self,
        party: int,
        session_id: bytes,
        links: Sequence[ZmqLink],
        workers: Workers,
        shards: int,
        timeout_s: Callable[[], float],
    ) -> None:
        """Take two streams between the daemons: for rounds, and for checks of dealings."""
        self.session_id = session_id
        self._party, self._workers, self._shards = party, workers, shards
        self._rounds, self._checks = (
            _Crew(party, name, session_id, link, workers, timeout_s)
            for name, link in zip(("rounds", "checks"), links, strict=True)
        )

    @property
    def established(self) -> bool:
        return self._rounds.established

    def fill(
        self,
        params: RoundParams,
        limit_bytes: int,
        hurry: Callable[[], bool],
        progress: Progress,
    ) -> Cost:
        start, shards = time.perf_counter(), self._cut(params.dim)
        each = limit_bytes // len(shards)
        costs = self._rounds.run(
            "fill", shards, lambda shard: (params, each, shard), progress, hurry
        )
        own = self._rounds.own_cost
        ahead = replace(
            own,
            preprocessing_bytes_sent=own.bytes_sent,
            preprocessing_bytes_received=own.bytes_received,
        )
        return replace(joined(costs) + ahead, ahead_seconds=time.perf_counter() - start)

    def toss(self, vouch: Callable[[bytes], bytes]) -> tuple[bytes, bytes, Cost]:
        return pipeline.toss_for_check(self._checks.channel, self._party, vouch)

    def check_dealings(
        self, shape: Dealing, halves: Sequence[Upload], coin: bytes, note: Note
    ) -> Checked:
        start, crew = time.perf_counter(), self._checks
        shards = [shard for shard in self._cut(shape.dim) if shard.parts(shape)]
        slices = _Slices(
            self._workers, halves, lambda half, shard, keep: for_check(half, shape, shard, keep)
        )
        opened: list[Found] = crew.run(
            "open_dealings", shards, lambda shard: (shape, slices.of(shard), coin, shard)
        )
        whole = [
            Opened(
                b"".join(part.hashes for part in parts),
                b"".join(part.digest for part in parts),
                all(part.guarded for part in parts),
            )
            for parts in zip(*(one.value for one in opened), strict=True)
        ]
        cost = joined([one.cost for one in opened]) + crew.own_cost.as_checking()

        def compare() -> list[bool]:
            note([each.hashes for each in whole])
            return dealing.compare(crew.channel, whole)

        # the two daemons alone, so that no worker sends a digest before all is noted
        passed, compared = counted(crew.channel, compare)
        return _checked(passed, cost + compared.as_checking(), start)

    def check_values(self, given: RoundInput, progress: Progress) -> Checked:
        start, params, crew = time.perf_counter(), given.params, self._rounds
        if not params.form.checks:
            return Checked([True] * len(given.uploads), Cost())
        shards, slices = self._cut(params.dim), self._slices(given)
        if params.form.check:
            coin, tossed = pipeline.toss(crew.channel, self._party, given.entropy)
            verdicts, judged = self._judged(given, shards, slices, coin, progress, checking=True)
            # the two daemons alone open who passes
            own = crew.channel, self._party, verdicts, len(given.uploads)
            opened = pipeline.open_passed(*own)
            cost = (tossed + judged + opened.cost).as_checking()
            return _checked(opened.value, cost, start)
        checked: list[Checked] = crew.run(
            "check_values",
            shards,
            lambda shard: (replace(given, uploads=slices.of(shard), opening=b""), shard),
            progress,
        )
        passed = [all(client) for client in zip(*(one.passed for one in checked), strict=True)]
        cost = joined([one.cost for one in checked]) + crew.own_cost.as_checking()
        return _checked(passed, cost, start)

    def prepare(self, params: RoundParams, progress: Progress) -> Cost:
        raise LocalProtocolError("a server with workers was to run a round with security malicious")

    def bind(self, given: RoundInput, folds: Folds, limit_s: float, progress: Progress) -> Checked:
        raise LocalProtocolError("a server with workers was to run a round with security malicious")

    def run_round(self, given: RoundInput, progress: Progress) -> Outcome:
        start, params, crew = time.perf_counter(), given.params, self._rounds
        shards, slices = self._cut(params.dim), self._slices(given)
        coin, verdicts, total = b"", None, Cost()
        if params.form.tosses:
            # the two daemons alone
            coin, total = pipeline.toss(crew.channel, self._party, given.entropy)
        if params.form.survey:
            verdicts, cost = self._judged(given, shards, slices, coin)
            total += cost

        def arguments(shard: Shard) -> Sequence[Any]:
            agreed = replace(shard, coin=coin, verdicts=verdicts)
            return replace(given, uploads=slices.of(shard), opening=b""), agreed

        outcomes: list[Outcome] = crew.run("run_round", shards, arguments, progress)
        values = np.concatenate([outcome.values for outcome in outcomes], axis=1)
        total += joined([outcome.cost for outcome in outcomes]) + crew.own_cost
        seconds = time.perf_counter() - start
        total = replace(
            total,
            seconds=seconds,
            online_seconds=seconds - total.preprocessing_seconds,
            uploads_seconds=total.uploads_seconds + slices.seconds,
        )
        return Outcome(cast(Result, values), total, coin)

    def close(self) -> None:
        for crew in (self._rounds, self._checks):
            crew.close()

    def release(self) -> None:
        for crew in (self._rounds, self._checks):
            crew.release()

    def _cut(self, dim: int) -> list[Shard]:
        return cutting.shards(dim, self._shards)

    def _slices(self, given: RoundInput) -> _Slices:
        """Return what the workers of a round are given of the uploads."""
        layout = given.params.form.layout
        return _Slices(
            self._workers,
            given.uploads,
            lambda upload, shard, keep: for_shard(upload, layout, shard, keep),
        )

    def _judged(
        self,
        given: RoundInput,
        shards: Sequence[Shard],
        slices: _Slices,
        coin: bytes,
        progress: Progress | None = None,
        checking: bool = False,
    ) -> Found:
        """Survey all shards, and let the first of them judge the sum."""
        crew, public = self._rounds, RoundInput(given.params, [], given.weights)

        def arguments(shard: Shard) -> Sequence[Any]:
            own = replace(public, uploads=slices.of(shard))
            return own, replace(shard, coin=coin), checking

        surveys: list[Found] = crew.run("survey", shards, arguments, progress)
        cost = joined([one.cost for one in surveys]) + crew.own_cost
        total = np.stack([one.value for one in surveys]).sum(axis=0, dtype=np.uint64)
        (judged,) = crew.run(
            "judge",
            shards[:1],
            lambda first: (public, RingShare(total), replace(first, coin=coin), checking),
        )
        return Found(judged.value, cost + judged.cost + crew.own_cost)


def _checked(passed: list[bool], cost: Cost, start: float) -> Checked:
    return Checked(passed, replace(cost, checking_seconds=time.perf_counter() - start))
