"""The audit of a round: honest servers and clients pass, and whoever deviates is found or named."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.arrays import PublicValues, RingShare
from securemedian.mpc.errors import (
    ChannelClosed,
    ConfigError,
    InputError,
    LocalProtocolError,
    PeerDeviated,
)
from securemedian.mpc.protocols import dealing, ring
from securemedian.mpc.protocols.audit import binding
from securemedian.mpc.protocols.channel import Channel, local_pair
from securemedian.mpc.protocols.dealing import DealtUpload, OwnDealing, deal
from securemedian.mpc.protocols.party import Session
from securemedian.mpc.protocols.prg import os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.protocols.share import Upload, WordsUpload
from securemedian.mpc.rounds import auditing
from securemedian.mpc.rounds.auditing import Auditor
from securemedian.mpc.rounds.lanes import run_lanes
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import run_round
from securemedian.mpc.rounds.plan import predict, predict_audit
from securemedian.servers.computing.base import RoundInput
from securemedian.servers.computing.threads import ThreadComputation
from tests.parties import check_planned, make_parties, run_both
from tests.test_ot import Lying

RNG = np.random.default_rng(29)
SMALL = ProtocolParams(lanes=2, chunk=256)


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the base OTs of audits without public keys, in no time."""
    made: dict[bytes, list[Session]] = {}
    lock, true = threading.Lock(), Session.establish

    def both(session_id: bytes) -> list[Session]:
        deltas = RNG.integers(0, 2, (2, 128)).astype(np.uint8)
        deltas[:, 63] = 1, 0
        trees = [[[RNG.bytes(16) for _ in range(16)] for _ in range(32)] for _ in range(2)]
        holes = [
            [[b"" if z == hole else leaf for z, leaf in enumerate(tree)] for tree, hole in pairs]
            for pairs in (
                list(zip(forest, delta.reshape(-1, 4) @ (1 << np.arange(4)), strict=True))
                for forest, delta in zip(trees[::-1], deltas, strict=True)
            )
        ]
        return [
            Session(j, session_id, trees[j], deltas[j], holes[j], os_entropy, ProtocolParams())
            for j in (0, 1)
        ]

    def establish(number: int, channel: Channel, session_id: bytes, *given: Any) -> Session:
        *rest, audit = given
        if not audit:
            return true(number, channel, session_id, *given)
        with lock:
            if session_id not in made:
                made[session_id] = both(session_id)
        return made[session_id][number]

    monkeypatch.setattr(Session, "establish", establish)


@dataclass
class Round:
    """A round of clients with these buckets, (n, dim), and all that they and the servers have."""

    index: np.ndarray
    buckets: int = 16
    weights: list[int] | None = None
    ring_bits: int = 0
    max_clients: int = 0
    session_id: bytes = field(default_factory=lambda: os_entropy(16))

    def __post_init__(self) -> None:
        clients, dim = self.index.shape
        names = {f"c{i}": weight for i, weight in enumerate(self.weights or [])}
        method = Bucketed(buckets=self.buckets, ring_bits=self.ring_bits, weights=names)
        most = max(2, clients, self.max_clients)
        self.params = RoundParams(method, dim=dim, max_clients=most)
        assert self.params.form.dealing is not None
        self.shape = self.params.form.dealing
        self.uploads: list[list[DealtUpload]] = [[], []]
        for row in self.index:
            own = deal(self.shape)
            turns = WordsUpload(self.shape.rotations_layout, own.rotations(row))
            halves: list[Upload] = [own.seeded, own.words]
            for j, half in enumerate(halves):
                self.uploads[j].append(DealtUpload(self.shape, half, turns))
        self.masks = [[os_entropy(16) for _ in self.index] for _ in range(2)]
        self.lanes = make_parties(2)

    @property
    def medians(self) -> np.ndarray:
        ranked = np.sort(
            np.repeat(self.index, self.weights or [1] * len(self.index), axis=0), axis=0
        )
        return np.asarray(ranked[(len(ranked) - 1) // 2])

    def bind(self, number: int, who: Sequence[int] | None = None, id_: bytes = b"") -> Auditor:
        who = range(len(self.index)) if who is None else who
        return Auditor.bind(
            self.lanes[number],
            self.params,
            SMALL,
            [self.uploads[number][i] for i in who],
            None if self.weights is None else [self.weights[i] for i in who],
            [self.masks[number][i] for i in who],
            id_ or self.session_id,
        )

    def folds(self, number: int, auditor: Auditor, coin: bytes) -> list[np.ndarray]:
        """Return what the clients send to a server: of what the other one holds."""
        other = 1 - number
        return [
            binding.fold(other, upload, auditor.binding, coin, mask)
            for upload, mask in zip(self.uploads[other], self.masks[other], strict=True)
        ]

    def computed(self, number: int) -> PublicValues:
        parties, uploads = self.lanes[number], self.uploads[number]
        outcome = run_round(parties, self.params, SMALL, uploads, weights=self.weights)
        return self.params.method.public(outcome.values)

    def audited(self, number: int, published: np.ndarray | None = None) -> Auditor:
        """Do all steps, with what the servers compute unless something else was published."""
        auditor = self.bind(number)
        coin = auditor.toss()
        assert auditor.compare(self.folds(number, auditor, coin)) == [True] * len(self.index)
        found = self.computed(number)[0] if published is None else published
        assert published is not None or (found == self.medians).all()
        auditor.prove(PublicValues(found))
        return auditor


def chosen(buckets: int, clients: int, dim: int) -> np.ndarray:
    """Return buckets of clients: random, and the extremes and a tie where there is room."""
    index = RNG.integers(0, buckets, (clients, dim))
    index[:, : dim // 8] = 0
    index[:, dim // 8 : dim // 4] = buckets - 1
    index[:, dim // 4 : dim // 3] = index[:1, dim // 4 : dim // 3]
    # half at one end, half at the other
    index[: clients // 2, dim // 3 : dim // 2] = 0
    index[clients // 2 :, dim // 3 : dim // 2] = buckets - 1
    return index


@pytest.mark.parametrize(
    ("buckets", "clients", "dim", "weights", "ring_bits"),
    [
        (16, 8, 1000, None, 0),
        (16, 1, 64, None, 0),
        (16, 2, 1, None, 0),
        (3, 7, 64, None, 0),
        (5, 4, 64, None, 0),
        (32, 5, 1000, None, 0),
        (16, 4, 64, [3, 1, 2, 3], 0),
        (16, 4, 64, [300, 1, 299, 300], 0),
        # more than one byte per element
        (16, 4, 200, None, 12),
        (4, 200, 64, None, 0),
    ],
)
def test_honest_rounds_pass(
    buckets: int, clients: int, dim: int, weights: list[int] | None, ring_bits: int
) -> None:
    """Use base OTs of their own, several chunks per lane at dim 1000, and real rounds.

    They cost what is planned.
    """
    index = chosen(buckets, clients, dim)
    audited = Round(index, buckets, weights, ring_bits)
    planned = predict_audit(audited.params, weights or [1] * clients, SMALL)
    assert planned.ots > 0
    for auditor in run_both(audited.audited):
        check_planned([planned], [auditor.cost])


@pytest.mark.usefixtures("trusted")
@pytest.mark.timeout(0)
@pytest.mark.parametrize("buckets", range(3, 33))
def test_small_honest_rounds_pass(buckets: int, honest_audits: int) -> None:
    """Run 60 in all, or as many as `--honest-audits` asks for."""
    each = -(-honest_audits // 30)
    for clients in islice(cycle((1, 2, 3, 4, 5, 6, 7, 8, 9, 17)), each):
        audited = Round(chosen(buckets, clients, int(RNG.integers(1, 40))), buckets)
        run_both(partial(audited.audited, published=audited.medians))


def turned(own: OwnDealing, index: np.ndarray) -> np.ndarray:
    """Return rotations as `OwnDealing.rotations` does, also to slots beyond the last bucket."""
    shape = own.shape
    # those to slot 0 say where the vectors have their ones
    packed = rotations(own, np.zeros(shape.dim, np.uint8))
    turns = ring.unpack(packed[0], shape.slot_bits, shape.dim).astype(np.uint8)
    turns = (turns + index.astype(np.uint8)) & np.uint8(shape.slots - 1)
    words = ring.pack(turns, shape.slot_bits)
    packed[0, : words.size] = words
    return packed


rotations = OwnDealing.rotations


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize(("buckets", "lying"), [(10, 3), (17, 5), (3, 1)])
def test_clients_beyond_the_last_bucket_set_no_server_against_the_other(
    buckets: int, lying: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots beyond it, which a client may turn to all the same, count as the last."""
    index = RNG.integers(0, buckets, (5, 64))
    index[:lying] = RNG.integers(buckets, 1 << (buckets - 1).bit_length(), (lying, 64))
    monkeypatch.setattr(OwnDealing, "rotations", turned)
    audited = Round(index, buckets)
    run_both(partial(audited.audited, published=np.minimum(audited.medians, buckets - 1)))


# Deviations


def deviating(
    audited: Round, monkeypatch: pytest.MonkeyPatch, computing: bool, k: int = 1
) -> Callable[[int], Auditor]:
    """Let server 1 add k to its share of a coordinate's counts, as it computes or as it binds."""
    true: Any = dealing.histogram

    def shifted(number: int, *given: Any, cumulative: bool) -> Any:
        shares = true(number, *given, cumulative=cumulative)
        if cumulative != computing:
            return shares
        if number == 1 and given[-2] == 0:
            shares[: 2 if computing else 1, 3] += k
        mask = shares.dtype.type((1 << audited.shape.bits) - 1)
        return RingShare(shares & mask)

    monkeypatch.setattr(dealing, "histogram", shifted)
    return audited.audited


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("place", [0, 255, 256, 999])
@pytest.mark.parametrize("by", [1, -1])
def test_a_published_bucket_that_is_another_is_found(place: int, by: int) -> None:
    """Change the first and the last place of a chunk; both servers find it."""
    index = RNG.integers(2, 14, (5, 1000))
    # so that another bucket than the median's is not the median's too
    audited = Round(index)
    published = audited.medians.copy()
    published[place] += by

    def run(j: int) -> None:
        with pytest.raises(PeerDeviated, match="the published buckets"):
            audited.audited(j, published)

    run_both(run)


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("extreme", [0, 15])
def test_an_extreme_bucket_that_is_another_is_found(extreme: int) -> None:
    """Check rounds in which one of the two comparisons is of public numbers alone."""
    audited = Round(np.full((4, 64), 7))
    published = audited.medians.copy()
    published[5] = extreme

    def run(j: int) -> None:
        with pytest.raises(PeerDeviated, match="the published buckets"):
            audited.audited(j, published)

    run_both(run)


@pytest.mark.usefixtures("trusted")
def test_servers_that_see_different_results_find_it() -> None:
    audited = Round(np.full((4, 64), 7))

    def run(j: int) -> None:
        published = audited.medians.copy()
        published[5] += j
        with pytest.raises(PeerDeviated):
            audited.audited(j, published)

    run_both(run)


@pytest.mark.usefixtures("trusted")
def test_a_server_that_is_bound_to_another_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients agree with both servers, and the sums are not theirs."""
    audited = Round(RNG.integers(0, 16, (5, 64)))
    run = deviating(audited, monkeypatch, computing=False)

    def both(j: int) -> None:
        # a fold that it tells of a client is the client's own
        with pytest.raises(PeerDeviated, match="the sums of the clients' shares"):
            run(j)

    run_both(both)


@pytest.mark.usefixtures("trusted")
def test_a_server_that_computes_with_another_sum_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Server 1 moves the rank of one coordinate, so that both open its minimum."""
    audited = Round(np.arange(5)[:, None] + np.zeros(64, int))
    deviating(audited, monkeypatch, computing=True, k=2)

    def run(j: int) -> None:
        auditor = audited.bind(j)
        coin = auditor.toss()
        auditor.compare(audited.folds(j, auditor, coin))
        values = audited.computed(j)[0]
        assert values[3] == 0 and values[4] == 2
        with pytest.raises(PeerDeviated, match="the published buckets"):
            auditor.prove(PublicValues(values))

    run_both(run)


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("told", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("weights", [None, [1, 2, 1, 2]])
def test_a_client_whose_fold_is_wrong_is_named(
    told: tuple[int, ...], weights: list[int] | None
) -> None:
    """Both servers name it, whichever server it told; the others are bound again, and pass."""
    audited = Round(RNG.integers(0, 16, (4, 300)), weights=weights)
    again = os_entropy(16)
    rest = [0, 1, 3]

    def run(j: int) -> None:
        auditor = audited.bind(j)
        folds = audited.folds(j, auditor, auditor.toss())
        if j in told:
            folds[2] = folds[2] ^ np.uint64(1)
        assert auditor.compare(folds) == [True, True, False, True]
        with pytest.raises(LocalProtocolError, match="next step"):
            auditor.prove(PublicValues(audited.medians))
        auditor = audited.bind(j, rest, again)
        folds = audited.folds(j, auditor, auditor.toss())
        assert auditor.compare([folds[i] for i in rest]) == [True] * 3
        weighed = np.repeat(audited.index[rest], [(weights or [1] * 4)[i] for i in rest], axis=0)
        auditor.prove(PublicValues(np.sort(weighed, axis=0)[(len(weighed) - 1) // 2]))

    run_both(run)


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("mac.values", "the sums of the clients' shares"),
        ("audit.claims", "the bits of shares"),
        ("and.tables", "leaky ANDs"),
        ("and.openings", "the openings of ANDs"),
    ],
)
def test_a_message_that_is_changed_is_found(label: str, said: str) -> None:
    """Server 1 flips a bit of each word of the first of its messages of a kind."""
    audited = Round(RNG.integers(0, 16, (3, 64)))
    flipped: list[str] = []

    def change(sent: str, array: np.ndarray) -> None:
        if sent == label and not flipped:
            # all words: half of the wrong hashes of leaky ANDs are not used
            array ^= np.uint64(2)
            flipped.append(sent)

    for party in audited.lanes[1]:
        party.channel = Lying(party.channel, change)

    def run(j: int) -> None:
        with pytest.raises(PeerDeviated, match=said):
            audited.audited(j, audited.medians)

    run_both(run)
    assert flipped


def test_that_the_peer_deviated_is_said_before_that_a_channel_is_closed() -> None:
    """The lanes that see it first are a matter of chance."""

    def lane(number: int) -> None:
        if number == 0:
            raise ChannelClosed("closed by another lane")
        time.sleep(0.1)
        raise PeerDeviated("found here")

    with pytest.raises(PeerDeviated):
        run_lanes([local_pair(20)[0] for _ in range(2)], lane)


def test_a_plan_has_the_audit_of_a_round() -> None:
    """Beside what the round costs without one."""
    for clients, dim in ((3, 64), (9, 1000)):
        plain, audited = (
            RoundParams(Bucketed(audit=audit), dim=dim, max_clients=clients)
            for audit in (False, True)
        )
        weights = [1] * clients
        audit = predict_audit(audited, weights, SMALL)
        without, with_it = (predict(each, weights, SMALL) for each in (plain, audited))
        check_planned([cost.after(audit) for cost in without.costs], with_it.costs)
        for cost, other in zip(with_it.costs, without.costs, strict=True):
            assert cost.checking_bytes_sent - other.checking_bytes_sent == audit.bytes_sent
        assert with_it.memory > without.memory + 13 * 15 * dim * 4 // 8


# The steps


def test_an_audited_round_is_bound_before_it_runs() -> None:
    nothing: Any = None
    params = RoundParams(Bucketed(audit=True), dim=64, max_clients=3)
    computation = ThreadComputation(0, SMALL, bytes(16), [], nothing)
    with pytest.raises(LocalProtocolError, match="before its folds were compared"):
        computation.run_round(RoundInput(params, [], []), nothing)


@pytest.mark.usefixtures("trusted")
def test_steps_are_taken_in_their_order() -> None:
    audited = Round(RNG.integers(0, 16, (3, 64)))
    medians = PublicValues(audited.medians)

    def run(j: int) -> None:
        auditor = audited.bind(j)
        with pytest.raises(LocalProtocolError, match="before toss"):
            auditor.compare(audited.folds(j, auditor, bytes(16)))
        with pytest.raises(LocalProtocolError, match="before toss"):
            auditor.prove(medians)
        folds = audited.folds(j, auditor, auditor.toss())
        with pytest.raises(LocalProtocolError, match="before compare"):
            auditor.toss()
        for wrong in (folds[1:], [fold[1:] for fold in folds]):
            with pytest.raises(InputError, match="one fold per client"):
                auditor.compare(wrong)
        auditor.compare(folds)
        for values in (medians[1:], medians + 16):
            with pytest.raises(InputError, match="64 buckets below 16"):
                auditor.prove(PublicValues(values))
        auditor.prove(medians)
        with pytest.raises(LocalProtocolError, match="before nothing"):
            auditor.prove(medians)
        assert "secret" not in repr(auditor) and auditor.binding.hex() in repr(auditor)

    run_both(run)


@pytest.mark.parametrize(
    "method",
    [Mean(), Bucketed(uploads="unverified"), Bucketed(groups=2), Bucketed(ring_bits=17)],
)
def test_other_rounds_cannot_be_audited(method: Any) -> None:
    params = RoundParams(method, dim=64, max_clients=4)
    with pytest.raises(ConfigError, match="audit takes bucketed"):
        auditing.check_audited(params)


def test_ands_are_made_in_large_pools() -> None:
    """Put all chunks of a lane into pools of the fewest ANDs that are many."""
    sizes = [1 << 15] * 11 + [77]
    for total in (3, 8, 100):
        found = auditing.pools(sizes, total)
        places = sorted(place for pool in found for place in range(len(sizes))[pool])
        assert places == list(range(len(sizes)))
        for pool in found:
            ands = auditing.ands_of(sum(sizes[pool]), total)
            assert auditing.POOL - auditing.ands_of(1 << 15, total) <= ands
            assert ands < 2.5 * auditing.POOL
    assert auditing.pools([64], 8) == [slice(0, None, 1)]
    assert auditing.pools([], 8) == []
