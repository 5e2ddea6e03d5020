"""The bytes between the servers are uniform until something is opened.

That is so whatever the inputs are, and what is then opened are bits of the result.

Uniform is said of each kind of message alone, byte by byte and beside the next (`tests.uniformity`,
which says what a false alarm costs). It says nothing of what a server can make of a message with
what it holds: tests/test_output_shares.py looks at that. That the test can fail is tested too: with
all correlations and masks zero every kind of message fails it.
"""

import hashlib
from collections.abc import Callable, Set
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike, NDArray

from securemedian.mpc.arrays import PublicBits, PublicWords, XorBits
from securemedian.mpc.protocols import boolean, ring, share
from securemedian.mpc.protocols.channel import NONCE_WORDS, Channel, local_pair
from securemedian.mpc.protocols.correlations.base import Half, Kind
from securemedian.mpc.protocols.correlations.kinds import (
    DaBits,
    PlaneOts,
    RandomOts,
    Tables,
    Triples,
)
from securemedian.mpc.protocols.correlations.pool import Pool
from securemedian.mpc.protocols.dealing import Dealing, deal
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.prg import Entropy, Stream, os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.exchange import Predictions
from securemedian.mpc.rounds.methods import bucketed, pairwise, radix
from securemedian.mpc.rounds.methods.base import Method
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.fixed import FixedPoint
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.reclustered import Reclustered
from securemedian.mpc.rounds.methods.reveal import open_bits, open_rows
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import check_values
from tests import reference
from tests.parties import (
    check,
    deterministic_entropy,
    make_parties,
    run_both,
    run_rounds,
    shared,
    shared_buckets,
)
from tests.uniformity import looks_uniform

# whole words everywhere: padding is zero and not uniform
CLIENTS, DIM = 4, 8192
MASKED = {
    "leaf.request",
    "leaf.reply",
    "and",
    "b2a",
    "mux.request",
    "mux.reply",
    "select.request",
    "select.reply",
}
PUBLIC = {"base.A", "base.B", "ggm.sums", "sizes", "verdicts", "open.bits", "open.ring"}
PUBLIC |= {"ggm.checks", "ggm.coin", "ot.challenge", "ot.proof"}
PUBLIC |= {"toss.commit", "toss.open", "commit.bits", "commit.ring"}


def sized(method: Method, **more: Any) -> RoundParams:
    return RoundParams(method, dim=DIM, max_clients=CLIENTS, **more)


ROUNDS = {
    "scan": sized(Bucketed(buckets=8, schedule="scan")),
    "scan-unverified": sized(Bucketed(buckets=8, schedule="scan", uploads="unverified")),
    "bisect": sized(Bucketed(buckets=8, schedule="bisect")),
    "groups": sized(Bucketed(buckets=4, groups=2)),
    "pairwise": sized(Pairwise(ring_bits=32, fraction_bits=0)),
    "radix": sized(Radix(encoding="fixed", word_bits=8, fraction_bits=0, ring_bits=4)),
    "predictions": sized(
        Radix(encoding="unit", word_bits=8, ring_bits=4), exchange=Predictions("0" * 64, 4)
    ),
    "trimmed-mean": sized(TrimmedMean(ring_bits=32, fraction_bits=0, trim=0.25)),
    "reclustered": sized(
        Reclustered(ring_bits=32, fraction_bits=0, clusters=1, reclusterings=2),
    ),
    "reclustered-radix": sized(
        Reclustered(ring_bits=32, fraction_bits=0, clusters=1, reclusterings=2, median_by="radix")
    ),
    "pairwise-opened": sized(Pairwise(ring_bits=16, fraction_bits=0, selection="opened")),
}
INPUTS = ("zero", "extreme")


class Recorder(Channel):
    """A channel that keeps what it received."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel._link)
        self.received: list[tuple[str, np.ndarray]] = []

    def recv(self, label: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """Receive as a channel does, and keep a copy."""
        array = super().recv(label, dtype, shape)
        self.received.append((label, array.copy()))
        return array

    def of(self, label: str) -> np.ndarray:
        """Return the messages of a label, one after the other."""
        return np.concatenate([array.reshape(-1) for seen, array in self.received if seen == label])


def recorders() -> tuple[Recorder, Recorder]:
    """Return two connected channels that keep what they receive."""
    one, other = local_pair()
    return Recorder(one), Recorder(other)


def inputs(params: RoundParams, kind: str) -> np.ndarray:
    """Return plain values, one row per client."""
    method = params.method
    headroom = method.headroom(CLIENTS) if isinstance(method, FixedPoint) else 0
    top = 2 ** (params.form.ring_bits - 2 - headroom) - 1
    low, high = (0, 2**params.form.layout.bits - 1) if params.form.xor else (-top, top)
    if isinstance(method, Bucketed):
        low, high = 0, method.slots - 1
    if kind == "zero":
        return np.zeros((CLIENTS, DIM), np.int64)
    if kind == "extreme":
        return np.repeat(np.array([low, high] * (CLIENTS // 2))[:, None], DIM, axis=1)
    return np.random.default_rng(4).integers(low, high, (CLIENTS, DIM), endpoint=True)


def shares_of(
    params: RoundParams, values: np.ndarray, entropy: Entropy | None = None
) -> list[tuple[share.Upload, share.Upload]]:
    if isinstance(params.method, Bucketed):
        return [shared_buckets(params, row, entropy or os_entropy) for row in values]
    rows = [ring.reduce(row[None], params.form.layout.bits) for row in values]
    return [shared(params, row, entropy or os_entropy) for row in rows]


View = list[tuple[str, np.ndarray]]


def views(params: RoundParams, values: np.ndarray, extension: str = "softspoken") -> list[View]:
    """Everything each party received in a round."""
    pair = recorders()
    run_rounds(make_parties(pairs=[pair], extension=extension), params, shares_of(params, values))
    return [end.received for end in pair]


def bytes_of(view: View, label: str) -> np.ndarray:
    """Return the messages of a label, one after the other."""
    return np.concatenate(
        [array.reshape(-1).view(np.uint8) for seen, array in view if seen == label]
    )


def check_uniform(both: list[View], wanted: set[str], more: Set[str] = frozenset()) -> None:
    """Check that both views have these labels, no others than known ones, and look uniform."""
    for view in both:
        labels = {label for label, _ in view}
        assert wanted <= labels <= MASKED | PUBLIC | more | {"ot.corrections"}
        for label in sorted(labels - PUBLIC):
            assert looks_uniform(bytes_of(view, label)), label


def shapes_of(both: list[View]) -> list[Any]:
    """Return labels, dtypes and shapes of all messages, in order."""
    return [[(label, array.dtype, array.shape) for label, array in view] for view in both]


def pinned(both: list[View], begun: bytes = b"") -> str:
    """Return the hash of all that was received, and of what was sent before."""
    digest = hashlib.sha256(begun)
    for view in both:
        for label, array in view:
            digest.update(label.encode() + array.tobytes())
    return digest.hexdigest()[:32]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "extension"),
    [*product(ROUNDS, ["softspoken"]), *product(["scan", "pairwise"], ["silent"])],
)
def test_everything_received_before_the_opening_is_uniform(name: str, extension: str) -> None:
    """And of sizes that no input changes."""
    params, silent = ROUNDS[name], {"ferret.sums"} if extension == "silent" else set()
    shapes = []
    for kind in INPUTS:
        both = views(params, inputs(params, kind), extension)
        wanted = {"leaf.request", "leaf.reply", "ot.corrections"} | silent
        check_uniform(both, wanted, {"dabits"} | silent)
        shapes.append(shapes_of(both))
    assert shapes[0] == shapes[1]


def check_views(
    params: RoundParams, shares: list[tuple[share.Upload, share.Upload]], **session: Any
) -> list[View]:
    """Everything each party received in a check of values."""
    pair = recorders()
    lanes = make_parties(pairs=[pair], **session)
    # the first message says how large a chunk each party wishes for, and is pinned with the rest
    protocol = ProtocolParams(lanes=1, chunk=1 << 16)
    run_both(lambda j: check_values(lanes[j], params, protocol, [half[j] for half in shares]))
    return [end.received for end in pair]


@pytest.mark.parametrize("name", ["pairwise", "trimmed-mean"])
def test_a_check_of_values_shows_who_failed_where_and_nothing_else(name: str) -> None:
    """Of honest clients zeros are opened, and all else is uniform and of fixed sizes."""
    params = ROUNDS[name]
    assert isinstance(params.method, FixedPoint)
    assert params.form.values
    sides = params.form.values.comparisons
    top = 1 << (params.form.ring_bits - 2 - params.method.headroom(CLIENTS))
    hostile = inputs(params, "random")
    hostile[1, 5], hostile[3, -1] = top, -top - 1
    shapes = []
    for values in (*(inputs(params, kind) for kind in INPUTS), hostile):
        both = check_views(params, shares_of(params, values))
        check_uniform(both, {"leaf.request", "leaf.reply", "and", "open.bits", "verdicts"})
        shapes.append(shapes_of(both))
        # both parties hold the halves of each opening; alone a half is uniform, like the other's
        one, other = (
            np.concatenate([array[:-NONCE_WORDS] for label, array in view if label == "open.bits"])
            for view in both
        )
        assert looks_uniform(one.view(np.uint8)) and looks_uniform(other.view(np.uint8))
        opened = np.unpackbits((one ^ other).view(np.uint8), bitorder="little")
        below, above = values < -top, values >= top
        want = [below | above] if sides == 1 else [below, above]
        assert (opened.reshape(sides, CLIENTS, DIM) == np.array(want)).all()
    assert shapes[0] == shapes[1] == shapes[2]


def zero_halves(kind: Kind[Any], as_sender: int, as_receiver: int) -> tuple[Half, Half]:
    """Return halves of the kind as `Kind.send` and `Kind.finish` make them, of zeros."""
    match kind:
        case Tables(index_bits, width):
            return (np.zeros((width << index_bits, as_sender), np.uint64),), (
                np.zeros((index_bits, as_receiver), np.uint64),
                np.zeros((width, as_receiver), np.uint64),
            )
        case Triples(width):
            planes = np.zeros((width, as_sender), np.uint64)
            return (planes, planes), (np.zeros(as_receiver, np.uint64), planes)
        case PlaneOts(planes):
            keys = np.zeros((planes, as_sender), np.uint64)
            return (keys, keys), (np.zeros(as_receiver, np.uint64), keys[:, :as_receiver])
        case RandomOts(bits) | DaBits(bits):
            keys, bytes_ = np.zeros(as_sender, ring.dtype(bits)), np.zeros(as_receiver, np.uint8)
            received = (bytes_, np.zeros(as_receiver, keys.dtype))
            sent: dict[type, Half] = {
                RandomOts: (keys, keys),
                DaBits: (np.zeros(as_sender, np.uint8), keys),
            }
            return sent[type(kind)], received
    raise AssertionError(f"no halves of {kind}")


def test_the_uniformity_test_fails_without_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """All-zero correlations and fresh shares compute the same result with every mask removed."""
    monkeypatch.setattr(Pool, "reserve", lambda self, demand: None)
    monkeypatch.setattr(Stream, "words", lambda self, count: np.zeros(count, np.uint64))

    def take(self: Pool, kind: Kind[Any], as_sender: int, as_receiver: int) -> Any:
        sent, received = zero_halves(kind, as_sender, as_receiver)
        return kind.hand_out(0, sent, received)

    monkeypatch.setattr(Pool, "take", take)
    caught = set()
    monkeypatch.setattr(
        share.SeedUpload, "words", lambda self, row, start, stop: np.zeros(stop - start, np.uint64)
    )
    for name in ("pairwise", "radix"):
        params = ROUNDS[name]
        pair = recorders()
        values = inputs(params, "extreme")
        outcomes = run_rounds(make_parties(pairs=[pair]), params, shares_of(params, values))
        want = ring.reduce(reference.lower_median(values), params.form.layout.bits)
        assert (outcomes[0].values == want).all()
        for view in (end.received for end in pair):
            for label in MASKED & {label for label, _ in view}:
                if not looks_uniform(bytes_of(view, label)):
                    caught.add(label)
    assert caught == MASKED


def test_the_share_test_fails_on_plain_values() -> None:
    assert not looks_uniform(ring.pack(np.arange(1 << 14, dtype=np.uint32), 32))


def test_shares_of_the_same_value_are_fresh() -> None:
    plain = np.zeros((1, 1000), np.uint64)
    first, second = share.split(plain, 64), share.split(plain, 64)
    assert first[0].seed != second[0].seed and (first[1].packed != second[1].packed).any()


@pytest.mark.parametrize(("schedule", "buckets"), [("scan", 8), ("bisect", 8), ("bisect", 11)])
def test_bits_opened_by_bucketed_are_functions_of_the_result(
    schedule: str, buckets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[np.ndarray] = []
    original = open_bits

    def record(party: Party, shares: XorBits, count: int) -> PublicBits:
        bits = original(party, shares, count)
        if party.number == 0:
            opened.append(bits)
        return bits

    monkeypatch.setattr(bucketed, "open_bits", record)
    method = Bucketed(buckets=buckets, schedule=schedule)
    params = sized(method)
    values = inputs(params, "random")
    run_rounds(make_parties(), params, shares_of(params, values))
    result = reference.lower_median(values)
    if schedule == "scan":
        assert (
            opened[0].reshape(method.buckets - 1, DIM)
            == (np.arange(method.buckets - 1)[:, None] >= result)
        ).all() and len(opened) == 1
        return
    # replay the bisection on the result alone: it asks for the same thresholds and gets the same
    # bits
    found, half = np.zeros(DIM, int), 1 << bucketed.steps(buckets)
    for bits in opened:
        half //= 2
        asked = np.minimum(found + half - 1, buckets - 2)
        assert (bits == (asked >= result)).all()
        found += half * ((bits == 0) & (found + half < buckets))
    assert (found == result).all()
    assert len(opened) == bucketed.steps(method.buckets)


@pytest.mark.parametrize("selection", ["hidden", "opened"])
@pytest.mark.parametrize("result_to", ["servers", "clients"])
def test_what_pairwise_opens(
    selection: str, result_to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oblivious: the result or nothing at all. Opened: also who holds it, as its docstring says."""
    opened: list[str] = []

    def noting(name: str, original: Callable[..., Any], *rest: Any) -> Any:
        opened.append(name)
        return original(*rest)

    for name in ("open_bits", "open_ring"):
        monkeypatch.setattr(pairwise, name, partial(noting, name, getattr(pairwise, name)))
    method = Pairwise(ring_bits=32, fraction_bits=0, selection=selection, result_to=result_to)
    params = sized(method)
    values = inputs(params, "random")
    outcomes = run_rounds(make_parties(), params, shares_of(params, values))
    assert set(opened) == ({"open_bits"} if selection == "opened" else set()) | (
        {"open_ring"} if result_to == "servers" else set()
    )
    if result_to == "servers":
        assert (ring.signed(outcomes[0].values, 32) == reference.lower_median(values)).all()
    else:
        assert all(looks_uniform(outcome.values) for outcome in outcomes)


def test_bits_opened_by_radix_are_exactly_those_of_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[np.ndarray] = []
    original = open_rows

    def record(party: Party, shares: XorBits, count: int) -> PublicWords:
        rows = original(party, shares, count)
        opened.extend(boolean.unpack_bits(row, count) for row in rows)
        return rows

    monkeypatch.setattr(radix, "open_rows", record)
    params = ROUNDS["radix"]
    values = inputs(params, "random")
    pair = recorders()
    run_rounds(make_parties(pairs=[pair]), params, shares_of(params, values))
    result = reference.lower_median(values)
    want = [
        (result >> bit & 1).astype(np.uint8).tolist()
        for bit in range(params.form.layout.bits - 1, -1, -1)
    ]
    # by both parties
    assert sorted(bits.tolist() for bits in opened) == sorted(want * 2)
    labels = [label for label, _ in pair[0].received]
    assert labels.count("open.bits") == params.form.layout.bits and "open.ring" not in labels


def test_trimmed_mean_opens_the_sum_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    params = ROUNDS["trimmed-mean"]
    values = inputs(params, "random")
    pair = recorders()
    outcomes = run_rounds(make_parties(pairs=[pair]), params, shares_of(params, values))
    labels = [label for label, _ in pair[0].received]
    assert [label for label in labels if label.startswith("open")] == ["open.ring"]
    assert ring.signed(outcomes[0].values, 32)[0].tolist() == reference.trimmed_sum(values, 1)


PINNED = {
    "scan": "adcf59f6e111d8d0da2eedc3a4f00e87",
    "scan-unverified": "a2dcece7c48b9c85f0ab3b5ea3f4855f",
    "bisect": "fc35c34d3f566f8784478ed6f413046b",
    "groups": "a939baf07c19d8409a93ddf1b3d372e9",
    "radix": "d5b392cd4212e17bfd5bbaebad9bd2ba",
    # the meaning of words is nothing to the servers
    "predictions": "d5b392cd4212e17bfd5bbaebad9bd2ba",
    "trimmed-mean": "cbf6c803c98f3cbaa09ee2d50d6756a5",
    "pairwise": "22b064dcac5ae4e4b430fdee78604c6a",
    "reclustered": "201c0fcb6178819e4b6346c5a79414d4",
    "reclustered-radix": "9c8e0d8e25bd6def06ce0d3f982bce76",
}
PINNED_DEALING = "d414ff0b7ee8353522a9028a7ab8f621"
PINNED_CHECKS = {
    "trimmed-mean": "4dbf9d93430c2a91a8fc30ad92f48d0e",
    "pairwise": "342de75a8f34d41da2fe9b8ffe769056",
}


@pytest.mark.parametrize("name", PINNED)
def test_wire_bytes_are_pinned(name: str) -> None:
    """Under repeatable randomness a round sends exactly these bytes.

    A change here is a change of the protocol, and needs a new release number on the wire.
    """
    params = ROUNDS[name]
    pair = recorders()
    entropy = [deterministic_entropy(seed) for seed in (1, 2)]
    both = make_parties(pairs=[pair], entropy=entropy, session_id=b"pinned by a test")
    halves = shares_of(params, inputs(params, "random"), deterministic_entropy(3))
    run_rounds(both, params, halves, entropy=[deterministic_entropy(seed) for seed in (4, 5)])
    assert pinned([end.received for end in pair]) == PINNED[name]


@pytest.mark.parametrize("name", PINNED_CHECKS)
def test_wire_bytes_of_a_check_are_pinned(name: str) -> None:
    params = ROUNDS[name]
    entropy = [deterministic_entropy(seed) for seed in (1, 2)]
    halves = shares_of(params, inputs(params, "random"), deterministic_entropy(3))
    both = check_views(params, halves, entropy=entropy, session_id=b"pinned by a test")
    assert pinned(both) == PINNED_CHECKS[name]


def test_wire_bytes_of_a_dealing_are_pinned() -> None:
    """Pin a client's half of words, its rotations, and the messages of their check."""
    shape = Dealing(DIM, 8, 4)
    dealt = deal(shape, deterministic_entropy(3))
    halves, pair = (dealt.seeded, dealt.words), recorders()
    run_both(lambda j: check(pair[j], j, shape, [halves[j]], entropy=deterministic_entropy(1 + j)))
    sent = dealt.words.packed.tobytes() + dealt.rotations(np.arange(DIM) % 8).tobytes()
    assert pinned([end.received for end in pair], sent) == PINNED_DEALING
