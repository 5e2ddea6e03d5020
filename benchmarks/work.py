"""The work of one party for one point of a benchmark, the same in both processes.

Inputs are uniform shares: the cost of a round does not depend on them (tests/test_privacy.py), and
its result on them means nothing. For the same reason checks that find every client cheating take as
long as checks that find none.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from securemedian.mpc.arrays import RingShare
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import options_of
from securemedian.mpc.protocols import compare, ring, share
from securemedian.mpc.protocols.audit import binding
from securemedian.mpc.protocols.correlations.base import Demand, Ends, Half, Kind
from securemedian.mpc.protocols.dealing import DealtUpload, nothing
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.prg import SEED_BYTES, Stream, os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds import run_state
from securemedian.mpc.rounds.bisecting import Bisection
from securemedian.mpc.rounds.chunks import evenly, round_demand
from securemedian.mpc.rounds.cost import Cost, Meter
from securemedian.mpc.rounds.lanes import run_lanes
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.methods.reveal import stacked
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import (
    Outcome,
    check_dealings,
    check_values,
    fill,
    run_round,
    toss,
)
from securemedian.mpc.rounds.ranges.base import RangePolicy
from securemedian.mpc.rounds.ranges.uneven import FollowRange
from securemedian.mpc.rounds.ranges.uniform import CoordinateRange

# comparisons that a lane computes at once
COMPARE_BATCH = 1 << 18
# so large that all correlations can be made ahead, and none are made during the round
POOL_BYTES = 1 << 30

# the options of methods that `bench median` and `plan` have: those that change what a round costs,
# or how many clients it needs
SWEPT = (
    "buckets",
    "ring_bits",
    "schedule",
    "encoding",
    "word_bits",
    "aggregator",
    "median_by",
    "clusters",
    "reclusterings",
    "groups",
    "membership",
    "trim",
    "norm_bound",
    "faulty",
    "chosen",
    "neighbours",
    "selection",
    "slots",
    "security",
    "audit",
)


@dataclass(frozen=True)
class Point:
    """One set of parameters to time."""

    # "ot", "compare" or "median"
    bench: str
    method: str
    # of OTs or comparisons
    count: int | None = None
    # of medians
    clients: int | None = None
    dim: int | None = None
    # of the method; of comparisons, the bits of their ring
    options: Mapping[str, Any] = field(default_factory=dict)
    # whether all correlations are made before the round starts, as servers do while clients train
    ahead: bool = False
    # whether the servers check what clients upload, where it could be malformed
    verified: bool = True

    @property
    def name(self) -> str:
        """The point's name in tables and on the progress bar."""
        bits = self.options.get("ring_bits")
        if self.bench == "ot":
            return "random OTs"
        if self.bench == "compare":
            return f"compare l={bits}"
        detail = round_params(self).method.detail
        ring_bits = f" l={bits}" if bits else ""
        unverified = "" if self.verified else " unverified"
        name = f"{self.method} n={self.clients} d={self.dim} {detail}".rstrip()
        return name + ring_bits + unverified

    def to_dict(self) -> dict[str, Any]:
        """Return the point as results have it, with its options among the fields."""
        fields = asdict(self) | {"name": self.name}
        return fields | fields.pop("options")


@dataclass(frozen=True)
class Repetition:
    """The cost of one repetition at one party.

    `publish_seconds` are those that S0 takes alone, for the new model and range after a round.
    `early_seconds` are those of what a round does before its last upload, in the lane that takes
    longest: making correlations, and checking dealings.
    """

    cost: Cost
    publish_seconds: float = 0.0
    early_seconds: float = 0.0


def run_point(
    point: Point, parties: Sequence[Party], protocol: ProtocolParams, meet: Callable[[], None]
) -> Repetition:
    """Do the work of one repetition and return its cost; `meet` waits for the other party."""
    if point.bench == "median":
        return _median(round_params(point), point, parties, protocol, meet)
    meet()
    # OTs are those of one core
    meter = Meter(parties[:1] if point.bench == "ot" else parties)
    if point.bench == "ot":
        # half of them in either direction
        half = -(-(point.count or 0) // 2)
        parties[0].pool.reserve(Demand({_Unkept(): (half, half)}))
    else:
        _comparisons(parties, point.count or 0, point.options["ring_bits"])
    return Repetition(meter.read())


def round_params(point: Point) -> RoundParams:
    """Return the parameters of the round that a point of `bench median` times."""
    options = with_fraction(point.method, point.options)
    if "uploads" in options_of(METHODS[point.method]):
        options["uploads"] = "dealt" if point.verified else "unverified"
    return RoundParams.from_dict(
        {"method": point.method, "dim": point.dim, "max_clients": point.clients, **options}
    )


def weight(point: Point) -> float:
    """Return about how many seconds a repetition takes, for a progress bar."""
    if point.bench != "median":
        return (point.count or 0) * (1e-6 if point.bench == "compare" else 2e-8)
    params = round_params(point)
    return 0.02 + demanded(params).ots * 2e-8 + params.max_clients * params.dim * 1e-7


def demanded(params: RoundParams) -> Demand:
    """Return the correlations that a round of `max_clients` takes, and the check before it."""
    return round_demand(params, [1] * params.max_clients, params.dim)


def can_be_malformed(method: str) -> bool:
    """Return whether there is anything to check in the uploads of a method."""
    return METHODS[method]().form(1, 1 << 10).checks or "uploads" in options_of(METHODS[method])


def with_fraction(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with a fraction that fits into a small value ring or word.

    It changes no cost.
    """
    found = dict(options)
    if found.get("word_bits"):
        found.setdefault("fraction_bits", min(24, found["word_bits"] - 2))
    elif found.get("ring_bits") and "fraction_bits" in options_of(METHODS[method]):
        found.setdefault("fraction_bits", min(24, found["ring_bits"] // 2))
    return found


def _median(
    params: RoundParams,
    point: Point,
    parties: Sequence[Party],
    protocol: ProtocolParams,
    meet: Callable[[], None],
) -> Repetition:
    party, dealt = parties[0], params.form.dealing
    halves: list[share.Upload] = []
    if dealt:
        halves = _uploads(dealt.layout, party.number, params.max_clients, protocol)
        # both servers get all rotations in full
        stream = Stream(os_entropy(16))
        uploads: list[share.Upload] = [_words(params.form.layout, stream) for _ in halves]
    elif params.form.survey or params.form.differences:
        uploads = _of_zeros(params, party.number)
    else:
        uploads = _uploads(params.form.layout, party.number, params.max_clients, protocol)
    meet()
    fills = point.ahead and not params.form.audited
    ahead = fill(parties, params, protocol, POOL_BYTES) if fills else Cost()
    meet()
    checking, votes = Cost(), [uploads]
    if dealt:
        coin, tossing = toss(party.channel, party.number)
        checking = check_dealings(party.channel, party.number, dealt, halves, coin).cost
        checking = checking.after(tossing.as_checking())
        pairs = [*zip(halves, uploads, strict=True)]
        votes = [[DealtUpload(dealt, *pair, vote) for pair in pairs] for vote in range(dealt.votes)]
    elif point.verified:
        checking = check_values(parties, params, protocol, uploads).cost
    early = checking.checking_seconds if dealt else 0.0
    meet()
    groups, cost = evenly(params, len(uploads)) if params.method.visible else [], Cost()
    for uploads in votes:
        if params.form.audited:
            outcome = _bisected(params, parties, protocol, uploads, meet)
            early += outcome.cost.ahead_seconds
        else:
            if fills and cost != Cost():
                # while clients vote
                ahead += fill(parties, params, protocol, POOL_BYTES)
            outcome = run_round(parties, params, protocol, uploads, groups=groups)
        cost += outcome.cost
    early += max(each.pool.spent.seconds for each in parties)
    before, start = run_before(params), time.perf_counter()
    if leads := party.number == 0 and params.form.buckets:
        values = params.method.public(outcome.values)
        run_state.finish(before, params, values, params.max_clients, groups)
    seconds = time.perf_counter() - start if leads else 0.0
    return Repetition(cost.after(checking).after(ahead), seconds, early)


def _bisected(
    params: RoundParams,
    parties: Sequence[Party],
    protocol: ProtocolParams,
    uploads: Sequence[share.Upload],
    meet: Callable[[], None],
) -> Outcome:
    """Return the outcome of an audited round; what clients do for it, the parties do untimed."""
    channels, number = [party.channel for party in parties], parties[0].number
    found = Bisection.establish(number, channels, params, protocol)
    dealt = [upload for upload in uploads if isinstance(upload, DealtUpload)]
    masks = [os_entropy(SEED_BYTES) for _ in dealt]
    meet()
    found.bind(dealt, masks, nothing)
    coin = found.toss()
    own = [
        binding.fold(number, upload, found.session_id, coin, mask)
        for upload, mask in zip(dealt, masks, strict=True)
    ]
    theirs = [channels[0].exchange("fold", each) for each in own]
    meet()
    found.compare(theirs)
    values = stacked([found.run(nothing)])
    return Outcome(values, found.ran.after(found.checked).after(found.ahead))


def run_before(params: RoundParams) -> run_state.RunState:
    """Return the state of a run that a round can start from: a model of zeros, and a range."""
    zeros = np.zeros(params.dim, np.float32)
    scale = zeros + np.float32(0.1)
    policy: RangePolicy = FollowRange()
    try:
        policy.buckets(scale, params.form.buckets)
    except ConfigError:
        # it has no layout of so many buckets, and this one has
        policy = CoordinateRange()
    before = run_state.RunState(policy, zeros, scale)
    if params.method.groups > 1:
        return run_state.RunState.of_groups([before] * params.method.groups)
    return before


def _uploads(
    layout: share.Layout, party_id: int, clients: int, protocol: ProtocolParams
) -> list[share.Upload]:
    """Return one party's uploads; clients alternate in the server that they send the seed to."""
    stream = Stream(os_entropy(16))
    uploads: list[share.Upload] = []
    for client in range(clients):
        if client % 2 == party_id:
            uploads.append(share.SeedUpload(layout, os_entropy(16), protocol.native_aes))
        else:
            uploads.append(_words(layout, stream))
    return uploads


def _of_zeros(params: RoundParams, party_id: int) -> list[share.Upload]:
    """Return one party's uploads of zeros, for methods that refuse some values."""
    zeros = np.zeros((1, params.dim), ring.dtype(params.form.layout.bits))
    uploads: list[share.Upload] = []
    for client in range(params.max_clients):
        # both parties make both halves
        seed = client.to_bytes(16, "little")
        halves = share.split(zeros, params.form.layout.bits, lambda _, seed=seed: seed)  # type: ignore[misc]
        uploads.append(halves[(client + party_id) % 2])
    return uploads


def _words(layout: share.Layout, stream: Stream) -> share.WordsUpload:
    packed = stream.words(layout.words).reshape(layout.rows, layout.row_words)
    return share.WordsUpload(layout, packed)


@dataclass(frozen=True)
class _Unkept(Kind[None]):
    """Random OTs, whose keys are not kept."""

    ots = 1
    memory = (1, 1)

    def send(self, ends: Ends, items: int) -> Half:
        ends.sender.extend(items)
        return (np.empty(items, np.bool_),)

    def receive(self, ends: Ends, items: int) -> Half:
        ends.receiver.extend(items)
        return (np.empty(items, np.bool_),)

    def hand_out(self, party_id: int, sent: Half, received: Half) -> None:
        """Nobody takes any."""


def _comparisons(parties: Sequence[Party], count: int, bits: int) -> None:
    shares = Stream(os_entropy(16)).words(count)

    def lane(number: int) -> None:
        batches = range(0, count, COMPARE_BATCH)
        for start in batches[number :: len(parties)]:
            values = RingShare(ring.reduce(shares[start : start + COMPARE_BATCH], bits))
            parties[number].pool.reserve(compare.msb_demand(values.size, bits))
            compare.msb(parties[number], values, bits)

    run_lanes([party.channel for party in parties], lane)
