"""The binding of what the servers sum to what the clients have sent."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.audit import binding, macs
from securemedian.mpc.protocols.audit.binding import (
    Binder,
    Bound,
    fold,
    fold_shape,
    masks,
    places,
    total,
)
from securemedian.mpc.protocols.audit.macs import Prover, Verifier
from securemedian.mpc.protocols.channel import local_pair
from securemedian.mpc.protocols.dealing import Dealing, DealtUpload, OwnDealing, deal
from securemedian.mpc.protocols.kernels import macs as portable
from securemedian.mpc.protocols.kernels.native import macs as native
from securemedian.mpc.protocols.kernels.native import processor
from securemedian.mpc.protocols.share import SLICE_ALIGN, WordsUpload
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
    return total([words], shape)


def histogram(index: np.ndarray, shape: Dealing) -> np.ndarray:
    """Return the fold of what a client has, from the definition."""
    found = np.zeros(fold_shape(shape), np.int64)
    for table, g in enumerate(places(COIN, 0, shape.dim)):
        for j, y in enumerate(index):
            if y < shape.slots - 1:
                found[y:, table * binding.BUCKETS + int(g[j])] += 1
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
    monkeypatch.setattr("securemedian.mpc.protocols.dealing.CHUNK", 2 * SLICE_ALIGN)
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
@pytest.mark.parametrize("count", [1, 65, 5000])
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


def one_way(
    shape: Dealing, values: np.ndarray, run: int = 0, mac_bits: int = macs.MAC_BITS
) -> tuple[Binder, np.ndarray, np.ndarray]:
    """Return what holds tags of these values (W-1, d), and keys of them; R; and Delta."""
    one, other = sessions(bits=mac_bits)
    here, there = local_pair(20)
    prover, verifier = Prover(one, run, here), Verifier(other, run, there)
    binder = Binder(prover, verifier, shape)

    def drawn(values: np.ndarray | None, *rows_and_dim: int) -> Bound:
        bound = binder.draw(0, *rows_and_dim)
        change = np.zeros(rows_and_dim, np.uint8) if values is None else values - bound.values
        wide = np.zeros((len(change), bound.padded), bound.values.dtype)
        wide[:, : bound.dim] = change
        bound.change = ring.pack(ring.reduce(wide, shape.bits), shape.bits)
        return bound

    binder.chunks.append(drawn(values, *values.shape))
    binder.masks = drawn(None, *fold_shape(shape))
    return binder, binder.masks.values, other.delta[:mac_bits]


@pytest.mark.parametrize(("buckets", "bits"), SHAPES)
def test_tags_and_keys_are_folded(buckets: int, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one piece, and of several."""
    shape = Dealing(1000, buckets, bits)
    values = ring.reduce(RNG.integers(0, 1 << bits, (shape.slots - 1, 1000)), bits)
    for piece in (macs.PIECE, 64):
        monkeypatch.setattr(macs, "PIECE", piece)
        binder, rho, delta = one_way(shape, values)
        tags, keys = (in_rows(each, macs.slot_of(bits), bits) for each in binder.folds(COIN))
        want = rho.astype(np.int64).reshape(len(values), binding.TABLES, -1)
        for table, where in enumerate(places(COIN, 0, 1000)):
            for y, row in enumerate(values):
                np.add.at(want[y, table], where, row)
        folded = ring.reduce(want.reshape(-1), bits)
        assert holds(tags, keys, delta, folded, bits)
        assert not holds(tags, keys, delta, folded[::-1], bits)


# Rates


def passing(errors: np.ndarray, runs: int, mac_bits: int, guessed: bool) -> int:
    """Return how often party 0's sum passes that is wrong by `errors` (W-1, d).

    With `guessed`, it adds Delta, as it guesses it, times what its own error folds to.
    """
    shape = Dealing(errors.shape[1], 4, 4)
    hits = 0
    for run in range(runs):
        binder, rho, _ = one_way(shape, errors, run, mac_bits)
        coin = RNG.bytes(16)
        tags, keys = (macs.unpacked(each, 4, mac_bits) for each in binder.folds(coin))
        if guessed:
            # the fold of the errors
            where = places(coin, 0, errors.shape[1])
            total = np.zeros((3, len(where), binding.BUCKETS), np.uint8)
            for y, table in product(range(len(errors)), range(len(where))):
                np.add.at(total[y, table], where[table], errors[y])
            guess = RNG.integers(0, 2, (mac_bits, 1)).astype(np.uint8)
            tags = tags + guess * total.reshape(1, -1)
        wanted = keys - binder.verifier.constant(rho.reshape(-1))
        hits += bool((ring.reduce(tags, 4) == ring.reduce(wanted, 4)).all())
    return hits


@pytest.mark.parametrize(("by", "guessed"), [(1, True), (8, True), (1, False)])
def test_a_wrong_share_passes_if_delta_is_guessed(
    by: int, guessed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E = 4: one in 16, also of who adds nothing, as if Delta were 0."""
    monkeypatch.setattr(binding, "BUCKETS", 64)
    errors = np.zeros((3, 12), np.uint8)
    errors[1, 3] = by
    check_rate(passing(errors, 400, 4, guessed), 400, 2.0**-4)


@pytest.mark.parametrize(("tables", "buckets", "mac_bits"), [(1, 4, 16), (2, 2, 16), (2, 4, 4)])
def test_errors_that_cancel_out_pass_if_they_meet_in_all_tables(
    tables: int, buckets: int, mac_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M^-t, and where they do not meet 2^-e."""
    monkeypatch.setattr(binding, "TABLES", tables)
    monkeypatch.setattr(binding, "BUCKETS", buckets)
    errors = np.zeros((3, 12), np.uint8)
    errors[1, 3], errors[1, 5] = 1, 15
    meet = float(buckets) ** -tables
    hits = passing(errors, 400, mac_bits, guessed=True)
    check_rate(hits, 400, meet + (1 - meet) * 2.0**-mac_bits)
