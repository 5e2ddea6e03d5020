"""How a round is cut: shards for workers, chunks of coordinates for lanes, pieces for checks."""

from dataclasses import dataclass, field
from enum import StrEnum

from securemedian.mpc.arrays import XorBits
from securemedian.mpc.protocols import share
from securemedian.mpc.protocols.dealing import Dealing
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.params import RoundParams


@dataclass(frozen=True)
class Shard:
    """Coordinates [begin, end) of a round, which one worker of either server computes.

    `number` is that of the shard, out of `count`. A round is the same whether its shards are
    computed by one pair of parties, one after the other, or each by a pair with a session of its
    own.
    """

    number: int
    count: int
    begin: int
    end: int
    # the common input of all shards: the coin that was tossed for the round, for methods that toss,
    # and shares of the result of `judge_surveys`, for methods that survey
    coin: bytes = field(default=b"", repr=False)
    verdicts: XorBits | None = field(default=None, repr=False)

    @property
    def dim(self) -> int:
        """Return the number of coordinates."""
        return self.end - self.begin

    def parts(self, shape: Dealing) -> range:
        """Return which parts of a dealing this shard checks.

        Parts and shards have different boundaries. `Dealing.partners` grows as parts shrink, so
        parts are as large as without shards, and some shards may have none.
        """
        each = len(shape.parts)
        return range(self.number * each // self.count, (self.number + 1) * each // self.count)


def shards(dim: int, count: int) -> list[Shard]:
    """Cut `dim` coordinates into `count` shards or, if they are few, into fewer.

    All but the last have the same number of coordinates, in whole slices (`share.SLICE_ALIGN`).
    """
    size = -(-dim // (count * share.SLICE_ALIGN)) * share.SLICE_ALIGN
    begins = range(0, dim, size)
    return [
        Shard(number, len(begins), begin, min(begin + size, dim))
        for number, begin in enumerate(begins)
    ]


class Does(StrEnum):
    """The kinds of steps, in the order of a round."""

    AGREE = "agree on sizes"
    TOSS = "toss"
    SURVEY = "survey"
    JUDGE = "judge"
    OPEN = "open who passes"
    CHECK = "check values"
    CONFIRM = "confirm the verdicts"
    COMPUTE = "compute"


@dataclass(frozen=True)
class Step:
    """One thing that a lane does in a round. Steps that are equal cost the same."""

    does: Does
    # of a survey, a check or a computation, which lanes do in turns: its coordinates
    dim: int = 0
    # of a check of values: how many clients it checks
    clients: int = 0
    # of a survey and its verdicts: whether they are for the check of whole uploads
    checking: bool = False
    # among those of its kind
    number: int = field(default=0, compare=False)
    # the first coordinate, and the place of the first client
    begin: int = field(default=0, compare=False)
    first: int = field(default=0, compare=False)

    @property
    def end(self) -> int:
        return self.begin + self.dim


def steps(
    params: RoundParams, clients: int, protocol: ProtocolParams, shard: Shard | None = None
) -> tuple[list[Step], list[Step]]:
    """Return the steps of the check of the clients' uploads, and those of the round after it.

    With a `shard` they are its own: it has the coin, and only the first one judges.
    """
    agreed, opened = [Step(Does.AGREE)], [Step(Does.OPEN), Step(Does.CONFIRM)]
    tossed = [] if shard else [Step(Does.TOSS)]
    leads = shard is None or shard.number == 0
    before: list[Step] = []
    if params.form.check:
        # one comparison takes the memory of more than one value
        surveys = _in_turns(Does.SURVEY, _cut(params.dim, clients, protocol, shard), True)
        judged = [Step(Does.JUDGE, checking=True)] if leads else []
        before = [*agreed, *tossed, *surveys, *judged, *([] if shard else opened)]
    elif params.form.values:
        per_value = params.form.values.comparisons
        pieces = _pieces(params.dim, clients, per_value, protocol, shard)
        before = [*agreed, *pieces, Step(Does.CONFIRM)]
    chunks = cut(params, clients, protocol, shard)
    during = [*agreed, *(tossed if params.form.tosses else [])]
    if params.form.survey:
        during += _in_turns(Does.SURVEY, chunks)
        during += [Step(Does.JUDGE)] if leads else []
        # a shard is computed once all are judged
        during += agreed if shard else []
    return before, during + _in_turns(Does.COMPUTE, chunks)


def cut(
    params: RoundParams, clients: int, protocol: ProtocolParams, shard: Shard | None = None
) -> list[tuple[int, int]]:
    """Return the chunks [begin, end) of a round, or of a shard, which lanes compute in turns."""
    return _cut(params.dim, params.method.at_once(clients), protocol, shard)


def _in_turns(does: Does, chunks: list[tuple[int, int]], checking: bool = False) -> list[Step]:
    return [
        Step(does, end - begin, checking=checking, number=number, begin=begin)
        for number, (begin, end) in enumerate(chunks)
    ]


def _pieces(
    dim: int, clients: int, per_value: int, protocol: ProtocolParams, shard: Shard | None
) -> list[Step]:
    """Return the steps of a check of values, each of some coordinates of some clients."""
    # as many as leave room for the smallest chunk
    together = min(clients, max(1, protocol.batch // (per_value * share.SLICE_ALIGN)))
    pieces = [
        (first, begin, end)
        for first in range(0, clients, together)
        for begin, end in _cut(dim, together * per_value, protocol, shard)
    ]
    return [
        Step(Does.CHECK, end - begin, min(together, clients - first), False, number, begin, first)
        for number, (first, begin, end) in enumerate(pieces)
    ]


def cut_evenly(dim: int, protocol: ProtocolParams) -> list[tuple[int, int]]:
    """Return chunks [begin, end) of about the same size, as many for each lane where there is room.

    The proofs of a small chunk would take more than its share. So chunks are as large as the
    session's, and less than twice as large, where there are as many coordinates.
    """
    count = protocol.lanes * max(1, dim // (protocol.lanes * protocol.chunk))
    size = -(-dim // (count * share.SLICE_ALIGN)) * share.SLICE_ALIGN
    return [(begin, min(begin + size, dim)) for begin in range(0, dim, size)]


def _cut(
    dim: int, at_once: int, protocol: ProtocolParams, shard: Shard | None
) -> list[tuple[int, int]]:
    first, last = (shard.begin, shard.end) if shard else (0, dim)
    # no larger than an even part per lane, in whole slices, and never less than one slice
    even = -(-(last - first) // protocol.lanes)
    size = min(protocol.chunk, protocol.batch // max(1, at_once), even)
    size = max(1, -(-size // share.SLICE_ALIGN)) * share.SLICE_ALIGN
    return [(begin, min(begin + size, last)) for begin in range(first, last, size)]
