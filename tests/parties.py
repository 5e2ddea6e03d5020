"""Both parties in one process, each on a thread of its own, joined by in-process channels."""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian.mpc.arrays import Ring, RingShare, Words
from securemedian.mpc.protocols import dealing, ring, share
from securemedian.mpc.protocols.channel import Channel, local_pair
from securemedian.mpc.protocols.dealing import Dealing, DealtUpload, Note, deal, nothing
from securemedian.mpc.protocols.kernels import vectors
from securemedian.mpc.protocols.ot import ferret
from securemedian.mpc.protocols.party import Party, Session
from securemedian.mpc.protocols.prg import Entropy, Stream, os_entropy
from securemedian.mpc.protocols.protocol import OT_EXTENSIONS, ProtocolParams
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.cost import Cost
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.path import Path
from securemedian.mpc.rounds.pipeline import Outcome, check_dealings, run_round

# A silent OT that runs through many iterations in no time, also where nothing is compiled; far too
# small to be secure, and nothing but a test can choose it.
SMALL_SETUP = ferret.Code(secrets=200, bins=20, depth=6)
SMALL = ferret.Code(secrets=300, bins=24, depth=6)

# for a computation on a machine that does others, too; setup.cfg's `timeout` is longer
PATIENCE_S = 250

# of both parties
Lanes = tuple[list[Party], list[Party]]

_sessions = itertools.count(1)
_lanes = itertools.count()


def widths(first: int, last: int) -> list[tuple[str, int]]:
    """Return OT extensions with ring widths: all, and six of them with the other extension.

    Values computed on OTs do not depend on where the OTs come from.
    """
    every, other = OT_EXTENSIONS
    few = (first, 8, 31, 32, 33, last)
    return [(every, bits) for bits in range(first, last + 1)] + [(other, bits) for bits in few]


def use_small_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let silent OT run SMALL_SETUP and SMALL."""
    monkeypatch.setattr(ferret, "SETUP", SMALL_SETUP)
    monkeypatch.setattr(ferret, "CODE", SMALL)


def run_both(function: Callable[[int], Any]) -> tuple[Any, Any]:
    """Run function(0) and function(1) at the same time, and return what each returned.

    The two parties may return values of different types. Raises the first error of either.
    """
    results: dict[int, Any] = {}
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            results[number] = function(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        # the first run of a kernel compiles it
        thread.join(PATIENCE_S)
    if errors:
        raise errors[0]
    assert len(results) == 2, f"a party did not finish within {PATIENCE_S} s"
    return results[0], results[1]


def make_parties(
    lanes: int = 1,
    field_bits: int = 4,
    entropy: Sequence[Entropy] = (os_entropy, os_entropy),
    pairs: Sequence[tuple[Channel, Channel]] | None = None,
    session_id: bytes = b"",
    extension: str = "softspoken",
    audit: bool = False,
) -> Lanes:
    """Return the lanes of both parties: new ones of a session that is there already.

    A session is made for the caller alone, base OTs included, if it has a say in `entropy`, `pairs`
    of channels or `session_id`. With `audit` it is the session of an audit.
    """
    protocol = ProtocolParams(ot_field_bits=field_bits, lanes=lanes, ot_extension=extension)
    if not pairs and not session_id and tuple(entropy) == (os_entropy, os_entropy):
        sessions = _shared_sessions(protocol, audit)
        channels = [local_pair(20) for _ in range(lanes)]
        numbers = [next(_lanes) for _ in range(lanes)]
        return run_both(
            lambda j: [
                sessions[j].party(number, pair[j])
                for number, pair in zip(numbers, channels, strict=True)
            ]
        )
    own = pairs or [local_pair(20) for _ in range(lanes)]
    ends = _establish(protocol, own[0], session_id or _next_session_id(), entropy, audit)
    return run_both(lambda j: [ends[j].party(lane, own[lane][j]) for lane in range(lanes)])


@cache
def _shared_sessions(protocol: ProtocolParams, audit: bool) -> tuple[Session, Session]:
    """Return one session for all tests of these parameters: base OTs are slow, tests small."""
    drawn = (os_entropy, os_entropy)
    return _establish(protocol, local_pair(20), _next_session_id(), drawn, audit)


def _establish(
    protocol: ProtocolParams,
    pair: tuple[Channel, Channel],
    session_id: bytes,
    entropy: Sequence[Entropy],
    audit: bool,
) -> tuple[Session, Session]:
    given = session_id, protocol
    return run_both(lambda j: Session.establish(j, pair[j], *given, entropy[j], audit))


def _next_session_id() -> bytes:
    return next(_sessions).to_bytes(16, "little")


def deterministic_entropy(seed: int) -> Entropy:
    """Return a source of bytes that a test can repeat. No configuration reaches it."""
    stream = Stream(seed.to_bytes(16, "little"))
    return lambda count: stream.words(-(-count // 8)).tobytes()[:count]


def shared(
    params: RoundParams, values: np.ndarray, entropy: Entropy = os_entropy
) -> tuple[share.Upload, share.Upload]:
    """Return both servers' halves of an upload of what `Method.encode` gives.

    If clients deal, their dealing is not checked.
    """
    shape = params.form.dealing
    if shape is None:
        return share.split(values, params.form.layout.bits, entropy, params.form.xor)
    dealt = deal(shape, entropy)
    rotations = share.WordsUpload(shape.rotations_layout, dealt.rotations(values[0]))
    return (
        DealtUpload(shape, dealt.seeded, rotations),
        DealtUpload(shape, dealt.words, rotations),
    )


class Ballot:
    """A client's words and dealing, in a round of several votes."""

    def __init__(self, params: RoundParams, words: Ring, entropy: Entropy = os_entropy) -> None:
        shape = params.form.dealing
        assert shape is not None
        self.shape, self.words, self.dealt = shape, words, deal(shape, entropy)

    def vote(self, path: Path) -> tuple[DealtUpload, DealtUpload]:
        """Return both servers' halves of the vote after a path."""
        return self.cast(path.slots(self.words), path.votes)

    def cast(self, slots: NDArray[Any], vote: int) -> tuple[DealtUpload, DealtUpload]:
        """Return both servers' halves of a vote for these slots."""
        packed = self.dealt.rotations(slots, vote)
        rotations = share.WordsUpload(self.shape.rotations_layout, packed)
        return (
            DealtUpload(self.shape, self.dealt.seeded, rotations, vote),
            DealtUpload(self.shape, self.dealt.words, rotations, vote),
        )


def zoomed(
    lanes: Lanes, params: RoundParams, words: Sequence[Ring], protocol: ProtocolParams | None = None
) -> Path:
    """Run all votes of a round on clients' words, and return what both servers have opened."""
    ballots, path = [Ballot(params, row) for row in words], Path.begin(params)
    while not path.done:
        votes = [ballot.vote(path) for ballot in ballots]
        one, other = run_rounds(lanes, params, votes, protocol)
        assert (one.values == other.values).all()
        path = path.after(params.method.public(one.values))
    return path


def vectors_of(shape: Dealing, words: Words, count: int, number: int) -> Ring:
    """Return party `number`'s shares of `count` packed vectors, their last entries included."""
    out = shape.vectors(count)
    given = words, shape.bits, shape.per_word, int(number == 0), out, 0, count
    vectors.unpack(*given, np.empty(count, np.uint8))
    return out


def check(
    channel: Channel,
    number: int,
    shape: Dealing,
    halves: Sequence[share.Upload],
    entropy: Entropy = os_entropy,
    coin: bytes = b"",
    note: Note = nothing,
) -> list[bool]:
    """Return whose dealings pass, as the other party does. Toss first, unless there is a coin."""
    tossed = coin or dealing.toss(channel, number, entropy)
    return check_dealings(channel, number, shape, halves, tossed, note).passed


def shared_buckets(
    params: RoundParams, index: np.ndarray, entropy: Entropy = os_entropy
) -> tuple[share.Upload, share.Upload]:
    """Return both servers' halves of a bucketed upload of these bucket indices, dealt or not."""
    assert isinstance(params.method, Bucketed)
    dealt, buckets = index[None], params.method.buckets
    values = dealt if params.form.dealing else encode.cumulative(index.astype(np.uint16), buckets)
    return shared(params, values, entropy)


def run_rounds(
    parties: tuple[list[Party], list[Party]],
    params: RoundParams,
    shares: Sequence[tuple[share.Upload, share.Upload]],
    protocol: ProtocolParams | None = None,
    entropy: Sequence[Entropy] = (os_entropy, os_entropy),
) -> tuple[Outcome, Outcome]:
    """Run one round at both parties; `shares` is one pair per client.

    `entropy` is what they toss with, where the method tosses.
    """
    # the first message says how large a chunk each party wishes for, and is pinned with the rest
    used = protocol or ProtocolParams(lanes=len(parties[0]), chunk=1 << 16)
    return run_both(
        lambda j: run_round(
            parties[j], params, used, [pair[j] for pair in shares], entropy=entropy[j]
        )
    )


def played(
    lanes: Lanes,
    params: RoundParams,
    updates: NDArray[Any],
    published: Published | None = None,
    protocol: ProtocolParams | None = None,
    entropies: tuple[Entropy, Entropy] = (os_entropy, os_entropy),
) -> Outcome:
    """Run a round on updates (n, d) as clients encode them; return what both servers have of it.

    The clients are called client-0 and so on, or by the names that have weights.
    """
    method, around = params.method, published or Published()
    names = list(params.weights) or [f"client-{index}" for index in range(len(updates))]
    weights, uploads = method.weights_of(names), []
    for name, row in zip(names, updates, strict=True):
        own = replace(around, part=params.part_of(name))
        uploads.append(shared(params, method.encode(row, params.max_clients, own)))
    used = protocol or ProtocolParams(lanes=2, chunk=128)

    def run(j: int) -> Outcome:
        mine = [pair[j] for pair in uploads]
        return run_round(lanes[j], params, used, mine, weights=weights, entropy=entropies[j])

    one, other = run_both(run)
    assert (one.values == other.values).all() and one.coin == other.coin
    return one


def additive(
    values: np.ndarray, bits: int, rng: np.random.Generator
) -> tuple[RingShare, RingShare]:
    """Return additive shares of ring elements, for tests of single protocols."""
    mask = ring.reduce(rng.integers(0, 2**64, values.shape, np.uint64), bits)
    return RingShare(mask), RingShare(ring.reduce(values.astype(np.uint64) - mask, bits))


def check_planned(planned: Sequence[Cost], counted: Sequence[Cost]) -> None:
    """Check that the OTs, bytes, messages and rounds of both parties are those of a plan."""
    for plan, cost in zip(planned, counted, strict=True):
        assert (plan.ots, plan.bytes_sent, plan.messages, plan.rounds) == (
            cost.ots,
            cost.bytes_sent,
            cost.messages,
            cost.rounds,
        )
