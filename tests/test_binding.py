"""The binding of what the servers sum to what the clients have sent."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.errors import PeerDeviated
from securemedian.mpc.protocols import dealing, ring
from securemedian.mpc.protocols.audit import binding, macs
from securemedian.mpc.protocols.audit.binding import (
    Binder,
    compare,
    fold,
    fold_shape,
    masks,
    places,
    weighted,
)
from securemedian.mpc.protocols.audit.comparing import around
from securemedian.mpc.protocols.audit.equality import Equality
from securemedian.mpc.protocols.audit.macs import Prover, Verifier
from securemedian.mpc.protocols.channel import local_pair
from securemedian.mpc.protocols.dealing import Dealing, DealtUpload, OwnDealing, deal
from securemedian.mpc.protocols.kernels import macs as portable
from securemedian.mpc.protocols.kernels.native import macs as native
from securemedian.mpc.protocols.kernels.native import processor
from securemedian.mpc.protocols.share import SLICE_ALIGN, WordsUpload
from tests.parties import run_both
from tests.rates import check_rate
from tests.test_macs import holds, in_rows, sessions
from tests.uniformity import bits_of, check_uniform, looks_uniform

RNG = np.random.default_rng(32)
COIN, SESSION = bytes(range(16)), bytes(range(100, 116))
# of vectors in one word and in several, of 32 and of 64 bits, with slots beyond the buckets
SHAPES = [(16, 4), (16, 5), (12, 4), (4, 2), (3, 4), (32, 5), (8, 9), (16, 16)]
NATIVE = pytest.mark.skipif(not processor.use_native(True), reason="no AES instructions here")


class Client:
    """A client's upload, its values, and the seeds of its masks."""

    def __init__(self, shape: Dealing) -> None:
        self.index = RNG.integers(0, shape.buckets, shape.dim).astype(np.uint8)
        self.dealing: OwnDealing = deal(shape)
        self.rotations = self.dealing.rotations(self.index)
        self.seeds = RNG.bytes(16), RNG.bytes(16)

    def uploads(self) -> tuple[DealtUpload, DealtUpload]:
        shape = self.dealing.shape
        turns = WordsUpload(shape.rotations_layout, self.rotations)
        return (
            DealtUpload(shape, self.dealing.seeded, turns),
            DealtUpload(shape, self.dealing.words, turns),
        )

    def folds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return what server 0 gets, and server 1."""
        one, other = (
            fold(number, upload, SESSION, COIN, self.seeds[number])
            for number, upload in enumerate(self.uploads())
        )
        return other, one


def plain(number: int, upload: DealtUpload) -> np.ndarray:
    """Return a fold without its mask."""
    seed, shape = bytes(16), upload.shape
    found = unpack(fold(number, upload, SESSION, COIN, seed), shape)
    return ring.reduce(found - unpack(masks(seed, SESSION, shape), shape), shape.bits)


def unpack(words: np.ndarray, shape: Dealing) -> np.ndarray:
    return weighted([words], [1], shape)


def histogram(index: np.ndarray, shape: Dealing) -> np.ndarray:
    """Return the fold of what a client has, from the definition."""
    found = np.zeros(fold_shape(shape), np.int64)
    for table, g in enumerate(places(COIN, 0, shape.dim)):
        for j, y in enumerate(index):
            if y < shape.slots - 1:
                found[y, table * binding.BUCKETS + int(g[j])] += 1
    return found


def test_places_are_uniform_and_those_of_any_slice() -> None:
    found = places(COIN, 0, 1 << 16)
    assert found.shape == (5, 1 << 16) and found.max() == 511
    assert (places(COIN, 1024, 5001) == found[:, 1024:5001]).all()
    assert (places(bytes(16), 0, 1 << 16) != found).mean() > 0.99
    for table in found:
        check_uniform(bits_of("g", table, 0, 9))
    check_uniform({f"g of table {a}": table & 1 for a, table in enumerate(found)})


@pytest.mark.parametrize(("buckets", "bits"), SHAPES)
def test_the_folds_of_both_shares_are_that_of_the_values(buckets: int, bits: int) -> None:
    shape = Dealing(1000, buckets, bits)
    client = Client(shape)
    both = [plain(number, upload) for number, upload in enumerate(client.uploads())]
    assert (ring.reduce(both[0] + both[1] - histogram(client.index, shape), bits) == 0).all()


def test_parts_of_a_dealing_are_folded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("securemedian.mpc.protocols.dealing.PART", 400)
    monkeypatch.setattr(binding, "CHUNK", 2 * SLICE_ALIGN)
    shape = Dealing(1000, 4, 3)
    assert len(shape.parts) == 2
    client = Client(shape)
    both = [plain(number, upload) for number, upload in enumerate(client.uploads())]
    assert (ring.reduce(both[0] + both[1] - histogram(client.index, shape), 3) == 0).all()


def what_a_client_sends_is_uniform() -> None:
    """Beside the fold that it hides, and what it sends in another session."""
    shape = Dealing(3000, 4, 2)
    client = Client(shape)
    folded = plain(1, client.uploads()[1])
    seen: dict[str, np.ndarray] = {}
    for session in (SESSION, bytes(16)):
        sent = fold(1, client.uploads()[1], session, COIN, client.seeds[1])
        seen |= bits_of(f"phi in {session.hex()}", unpack(sent, shape), 0, 2)
    check_uniform(seen, bits_of("the fold", folded, 0, 2))


def test_what_a_client_sends_is_uniform() -> None:
    what_a_client_sends_is_uniform()
    shape = Dealing(3000, 16, 4)
    assert all(map(looks_uniform, Client(shape).folds()))


@pytest.mark.parametrize("kernels", [portable, pytest.param(native, marks=NATIVE)])
@pytest.mark.parametrize("slot", [4, 8, 16])
@pytest.mark.parametrize("count", [1, 64, 65, 5000])
def test_columns_are_added_to_their_places(kernels: Any, slot: int, count: int) -> None:
    rows = RNG.integers(0, 1 << slot, (48, count))
    given, where = macs.packed(rows.astype(np.uint16), slot), RNG.integers(0, 16, (3, count))
    before = RNG.integers(0, 1 << slot, (3, 48, 16))
    totals = np.zeros((3, 16, slot), np.uint64)
    for a in range(3):
        totals[a, :, : len(given)] = macs.packed(before[a].astype(np.uint16), slot).T
    kernels.add_to_places(given, where.astype(np.uint16), totals)
    for a in range(3):
        want = before[a].copy()
        np.add.at(want.T, where[a], rows.T)
        found = np.ascontiguousarray(totals[a, :, : len(given)].T)
        assert (macs.unpacked(found, slot) == want % (1 << slot)).all()
    assert not totals[:, :, len(given) :].any()


# Servers


class Collected(Equality):
    """The values that a party would compare."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []

    def add(self, array: Any) -> None:
        self.arrays.append(array)


def pairs_of_sessions(bits: int = 128) -> tuple[Any, Any]:
    """Return the audit session of each party, with the prover of one direction."""
    (prover0, verifier1), (prover1, verifier0) = sessions(bits=bits), sessions(bits=bits)
    for prover, verifier in ((prover0, verifier0), (prover1, verifier1)):
        prover.delta, prover.sender_leaves = verifier.delta, verifier.sender_leaves
    return prover0, prover1


Change = Callable[[int, int, np.ndarray], None]


def change_nothing(number: int, start: int, values: np.ndarray) -> None:
    pass


def bound(
    shape: Dealing,
    clients: Sequence[Client],
    weights: Sequence[int],
    change: Change = change_nothing,
    lanes: int = 2,
    sent: Any = None,
) -> list[str]:
    """Return what each party says after F2 to F5, "" if all is right.

    `change` changes its shares.
    """
    pair = pairs_of_sessions()
    channels = [local_pair(20) for _ in range(lanes)]
    sent = sent or [client.folds() for client in clients]
    chunk = 3 * SLICE_ALIGN

    def run(number: int) -> str:
        uploads = [client.uploads()[number] for client in clients]
        binders = []
        for lane in range(lanes):
            channel = channels[lane][number]
            ends = Prover(pair[number], lane, channel), Verifier(pair[number], lane, channel)
            binders.append(Binder(*ends, shape))
        for at, start in enumerate(range(0, shape.dim, chunk)):
            given = number, uploads, weights, shape.bits, start, min(start + chunk, shape.dim)
            values = dealing.histogram(*given, cumulative=False)
            change(number, start, values)
            binders[at % lanes].commit(start, values)
        rho = [masks(client.seeds[number], SESSION, shape) for client in clients]
        binders[0].commit_masks(weighted(rho, weights, shape))
        theirs = weighted([each[number] for each in sent], weights, shape)
        equality = Equality(channels[0][number], number)
        folds = [binder.folds(COIN) for binder in binders]
        compare(equality, number, binders[0].verifier, folds, theirs, shape.bits)
        try:
            equality.settle("sums")
        except PeerDeviated as error:
            return str(error)
        return ""

    return list(run_both(run))


@pytest.mark.parametrize(("buckets", "bits"), SHAPES)
def test_right_sums_pass_with_any_weights(
    buckets: int, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bind chunks of several pieces, and of one."""
    shape = Dealing(1000, buckets, bits)
    clients = [Client(shape) for _ in range(3)]
    assert bound(shape, clients, [1, 1, 1]) == ["", ""]
    monkeypatch.setattr(macs, "PIECE", 64)
    assert bound(shape, clients, [1, 7, 300], lanes=1) == ["", ""]


@pytest.mark.parametrize("cheat", [0, 1])
@pytest.mark.parametrize(("y", "j", "by"), [(0, 0, 1), (14, 999, 8)])
def test_a_sum_that_is_wrong_in_one_place_is_found(cheat: int, y: int, j: int, by: int) -> None:
    shape = Dealing(1000, 16, 4)
    clients = [Client(shape) for _ in range(2)]

    def change(number: int, start: int, values: np.ndarray) -> None:
        if number == cheat and start <= j < start + values.shape[1]:
            values[y, j - start] += np.uint8(by)

    said = bound(shape, clients, [1, 1], change)
    assert said == ["sums do not agree"] * 2


@pytest.mark.parametrize("server", [0, 1])
def test_a_fold_that_is_wrong_is_found(server: int) -> None:
    shape = Dealing(1000, 16, 4)
    clients = [Client(shape) for _ in range(2)]
    sent = [[each.copy() for each in client.folds()] for client in clients]
    sent[1][server][77] ^= np.uint64(1)
    assert all(bound(shape, clients, [1, 1], sent=sent))


def test_weights_that_only_one_side_takes_are_found() -> None:
    shape = Dealing(500, 16, 4)
    clients = [Client(shape) for _ in range(2)]

    def change(number: int, start: int, values: np.ndarray) -> None:
        uploads = [client.uploads()[number] for client in clients]
        stop = start + values.shape[1]
        values[...] = dealing.histogram(number, uploads, [1, 2], shape.bits, start, stop, False)

    assert all(bound(shape, clients, [1, 1], change))
    assert not any(bound(shape, clients, [1, 2], change))


@pytest.mark.parametrize(("buckets", "bits", "proved"), [(16, 4, 4), (12, 5, 4), (5, 9, 5)])
def test_macs_about_a_bucket(
    buckets: int, bits: int, proved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of H(M) and H(M-1), in the slots of a smaller ring, too, in pieces and in one."""
    shape, lane = Dealing(1000, buckets, bits), 0
    pair = pairs_of_sessions()
    channels = local_pair(20)
    size = shape.slots - 1, 1000
    held = [ring.reduce(RNG.integers(0, 1 << bits, size), bits) for _ in range(2)]
    found = RNG.integers(0, buckets, 1000).astype(np.uint16)

    def run(number: int) -> tuple[Any, Any]:
        channel = channels[number]
        ends = Prover(pair[number], lane, channel), Verifier(pair[number], lane, channel)
        binder = Binder(*ends, shape)
        chunk = binder.commit(0, held[number])
        tags, keys = binder.around(chunk, found, buckets - 1, proved)
        slot = macs.slot_of(proved)
        return in_rows(tags, slot, proved), in_rows(keys, slot, proved)

    for piece in (macs.PIECE, 64):
        monkeypatch.setattr(macs, "PIECE", piece)
        (tags0, keys0), (tags1, keys1) = run_both(run)
        lane += 1
        for number, tags, keys in ((0, tags0, keys1), (1, tags1, keys0)):
            counts = around(held[number], found, buckets)
            delta = pair[1 - number].delta[:48]
            assert holds(tags, keys, delta, counts, proved)
            assert not holds(tags, keys, delta, counts[::-1], proved)


# Rates


def passing(errors: np.ndarray, runs: int, mac_bits: int, guessed: bool) -> int:
    """Return how often party 0's sum passes that is wrong by `errors` (W-1, d).

    With `guessed`, it adds Delta, as it guesses it, times what its own error folds to.
    """
    shape = Dealing(errors.shape[1], 4, 4)
    hits = 0
    nothing = np.zeros(fold_shape(shape), np.uint8)
    for run in range(runs):
        one, other = sessions(bits=mac_bits)
        here, there = local_pair(20)
        prover, verifier = Prover(one, run, here, mac_bits), Verifier(other, run, there, mac_bits)
        binder = Binder(prover, verifier, shape)
        binder.commit(0, errors)
        binder.commit_masks(nothing)
        coin = RNG.bytes(16)
        tags, keys = binder.folds(coin)
        if guessed:
            # the fold of the errors
            where = places(coin, 0, errors.shape[1])
            total = np.zeros((3, len(where), binding.BUCKETS), np.uint8)
            for y, table in product(range(len(errors)), range(len(where))):
                np.add.at(total[y, table], where[table], errors[y])
            guess = RNG.integers(0, 2, (mac_bits, 1)).astype(np.uint8)
            told = macs.unpacked(tags, 4, mac_bits) + guess * total.reshape(1, -1)
            tags = macs.packed(told, 4)
        collected = Collected()
        # the keys are those of the only direction there is
        compare(collected, 0, verifier, [(tags, keys)], nothing, 4)
        hits += bool((collected.arrays[0] == collected.arrays[1]).all())
    return hits


@pytest.mark.parametrize(("by", "guessed"), [(1, True), (8, True), (1, False)])
def test_a_wrong_share_passes_if_delta_is_guessed(
    by: int, guessed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E = 4: one in 16, also of who adds nothing, as if Delta were 0."""
    monkeypatch.setattr(binding, "BUCKETS", 64)
    errors = np.zeros((3, 12), np.uint8)
    errors[1, 3] = by
    check_rate(passing(errors, 1000, 4, guessed), 1000, 2.0**-4)


@pytest.mark.parametrize(
    ("tables", "buckets", "mac_bits"), [(1, 4, 16), (2, 4, 16), (2, 2, 16), (1, 4, 4), (2, 4, 4)]
)
def test_errors_that_cancel_out_pass_if_they_meet_in_all_tables(
    tables: int, buckets: int, mac_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M^-t, and where they do not meet 2^-e."""
    monkeypatch.setattr(binding, "TABLES", tables)
    monkeypatch.setattr(binding, "BUCKETS", buckets)
    errors = np.zeros((3, 12), np.uint8)
    errors[1, 3], errors[1, 5] = 1, 15
    meet = float(buckets) ** -tables
    hits = passing(errors, 1000, mac_bits, guessed=True)
    check_rate(hits, 1000, meet + (1 - meet) * 2.0**-mac_bits)
