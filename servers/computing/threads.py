"""The lanes of a session, on threads of this process, with the base OTs and pools they need."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from securemedian.mpc.arrays import RingShare
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols import compiling
from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.dealing import Dealing, DealtUpload, Note, open_pairs
from securemedian.mpc.protocols.party import Party, Session
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.protocols.share import Upload
from securemedian.mpc.rounds import pipeline
from securemedian.mpc.rounds.bisecting import Bisection, accusing
from securemedian.mpc.rounds.cost import Cost, counted
from securemedian.mpc.rounds.cutting import Shard
from securemedian.mpc.rounds.lanes import Progress
from securemedian.mpc.rounds.methods.reveal import stacked
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Checked, Found, Outcome
from securemedian.servers import logs
from securemedian.servers.computing.base import RoundInput
from securemedian.servers.computing.folds import Folds
from securemedian.servers.network.transport import ZmqLink

# for sys.setswitchinterval: a lane may wait this long for the interpreter, not Python's 5 ms
SWITCH_S = 1e-4
# opens this server's ends of so many lanes of a session
OpenLanes = Callable[[bytes, int], list[ZmqLink]]
# between two lines that say how far compiling is
COMPILING_S = 10.0


class ThreadBackend:
    """The threads of this process: a `Backend`."""

    def __init__(self, party: int, protocol: ProtocolParams, open_lanes: OpenLanes) -> None:
        self._party, self._protocol, self._open_lanes = party, protocol, open_lanes
        self.ready_in_s: float | None = None

    def start(self) -> None:
        """Compile the kernels on all cores, unless the cache on disk has them, and load them."""
        often, seldom = compiling.Pace(0.0), compiling.Pace(COMPILING_S)

        def tell(done: int, total: int) -> None:
            self.ready_in_s = often.seconds_to_go(done, total)
            if (left := seldom.seconds_to_go(done, total)) is not None and done < total:
                logs.event("compiling", done=done, total=total, seconds_to_go=round(left))

        compiling.fill_cache(tell, self._protocol)
        compiling.compile_kernels(self._protocol, tell)

    def open(self, session_id: bytes) -> "ThreadComputation":
        *links, checking = self._open_lanes(session_id, self._protocol.lanes + 1)
        return ThreadComputation(self._party, self._protocol, session_id, links, checking)

    def close(self) -> bool:
        """Return True: threads end with what they compute."""
        return True


class ThreadComputation:
    """The lanes of one session, and its stream for checks of dealings: a `Computation`.

    With a `shard`, what a function does is for the coordinates of that shard alone.
    """

    def __init__(
        self,
        party: int,
        protocol: ProtocolParams,
        session_id: bytes,
        links: Sequence[ZmqLink],
        checking: ZmqLink,
    ) -> None:
        self.session_id = session_id
        self._party, self._protocol, self._links, self._checking = party, protocol, links, checking
        # one per lane, once the two servers have met there
        self._channels: list[Channel] = []
        # of an audited round, and once its folds are compared
        self._prepared: Bisection | None = None
        self._bound: Bisection | None = None
        # one per lane, once the base OTs are made
        self._parties: list[Party] = []
        # on `checking`, once the two servers have met there
        self._met: Channel | None = None

    @property
    def established(self) -> bool:
        return bool(self._channels)

    def establish(self) -> None:
        """Make the base OTs, if there are none yet."""
        if self._parties:
            return
        with self._meeting():
            given = self._party, self._channels[0], self.session_id, self._protocol
            session = Session.establish(*given)
            self._parties = [session.party(*lane) for lane in enumerate(self._channels)]

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        """Meet the other server first, and log once how long that and the first base OTs took."""
        start, first = time.monotonic(), not self._channels
        self._channels = self._channels or meet(self._party, self._links)
        yield
        if first:
            logs.event(
                "session-established",
                session=logs.fingerprint("session", self.session_id),
                lanes=len(self._channels),
                aes=sum(link.sealed for link in self._links),
                seconds=round(time.monotonic() - start, 3),
            )

    def fill(
        self,
        params: RoundParams,
        limit_bytes: int,
        hurry: Callable[[], bool],
        progress: Progress,
        shard: Shard | None = None,
    ) -> Cost:
        self.establish()
        more = limit_bytes, hurry, progress, shard
        return pipeline.fill(self._parties, params, self._protocol, *more)

    def _check_channel(self) -> Channel:
        # no cached_property: in Python 3.11 that of one session would wait for that of another
        if self._met is None:
            self._checking.meet(self._party)
            self._met = Channel(self._checking)
        return self._met

    def toss(self, vouch: Callable[[bytes], bytes]) -> tuple[bytes, bytes, Cost]:
        return pipeline.toss_for_check(self._check_channel(), self._party, vouch)

    def check_dealings(
        self,
        shape: Dealing,
        halves: Sequence[Upload],
        coin: bytes,
        note: Note,
    ) -> Checked:
        channel = self._check_channel()
        return pipeline.check_dealings(channel, self._party, shape, halves, coin, note)

    def open_dealings(
        self, shape: Dealing, halves: Sequence[Upload], coin: bytes, shard: Shard
    ) -> Found:
        """Open what the check of a shard's parts opens (`dealing.open_pairs`)."""
        channel = self._check_channel()
        given, parts = (channel, self._party, shape, halves), shard.parts(shape)
        opened, cost = counted(channel, lambda: open_pairs(*given, coin=coin, parts=parts))
        return Found(opened, cost.as_checking())

    def check_values(
        self, given: RoundInput, progress: Progress, shard: Shard | None = None
    ) -> Checked:
        more = progress, shard, given.entropy, given.weights
        return pipeline.check_values(*self._of(given), *more)

    def survey(self, given: RoundInput, shard: Shard, checking: bool) -> Found:
        """Return the sum of the surveys of a shard (`pipeline.survey_shard`)."""
        return pipeline.survey_shard(*self._of(given), given.weights, shard, checking)

    def judge(self, given: RoundInput, surveyed: RingShare, shard: Shard, checking: bool) -> Found:
        """Return shares of the verdicts (`pipeline.judge_surveys`)."""
        parties, params, *_ = self._of(given)
        return pipeline.judge_surveys(parties, params, surveyed, given.weights, shard, checking)

    def bind(self, given: RoundInput, folds: Folds, limit_s: float, progress: Progress) -> Checked:
        ahead = Cost() if self._prepared else self.prepare(given.params, progress)
        # taken: a session is bound once
        bisection, self._prepared = self._prepared, None
        assert bisection is not None
        dealt = [upload for upload in given.uploads if isinstance(upload, DealtUpload)]
        bisection.bind(dealt, given.masks, given.mark)
        folds.ask(bisection.session_id, bisection.toss())
        with accusing("folds"):
            came = folds.gather(self._channels[0], self._party, limit_s)
        if not all(came):
            cost = bisection.checked.after(ahead)
            return Checked(came, cost, [not each for each in came])
        passed = bisection.compare(folds.take())
        if all(passed):
            self._bound = bisection
        return Checked(passed, bisection.checked.after(ahead))

    def prepare(self, params: RoundParams, progress: Progress) -> Cost:
        self._prepared = self._bound = None
        with self._meeting():
            given = self._party, self._channels, params, self._protocol, progress
            self._prepared = Bisection.establish(*given)
        return self._prepared.ahead

    def run_round(
        self, given: RoundInput, progress: Progress, shard: Shard | None = None
    ) -> Outcome:
        if given.params.form.audited:
            # the digits of what `bind` has bound both servers to
            bisection, self._bound = self._bound, None
            if bisection is None:
                raise LocalProtocolError(
                    "an audited round was to run before its folds were compared"
                )
            return Outcome(stacked([bisection.run(given.mark, progress)]), bisection.ran)
        return pipeline.run_round(
            *self._of(given),
            progress,
            given.weights,
            given.groups,
            given.entropy,
            shard,
            given.noise,
        )

    def _of(
        self, given: RoundInput
    ) -> tuple[Sequence[Party], RoundParams, ProtocolParams, Sequence[Upload]]:
        """Return what each part of a round takes first, once the base OTs are made."""
        self.establish()
        return self._parties, given.params, self._protocol, given.uploads

    def close(self) -> None:
        for link in (*self._links, self._checking):
            link.close()

    def release(self) -> None:
        for link in (*self._links, self._checking):
            link.release()


def meet(party: int, links: Sequence[ZmqLink]) -> list[Channel]:
    """Meet the other server on every lane."""
    for link in links:
        link.meet(party)
    return [Channel(link) for link in links]
