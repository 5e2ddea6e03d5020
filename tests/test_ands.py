"""ANDs of authenticated bits: values, MACs, and what is found of a party that deviates."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols.audit.ands import (
    AndMaker,
    AuthenticatedTriples,
    _permutation,
)
from securemedian.mpc.protocols.audit.bits import AuthenticatedBits, masks_of
from securemedian.mpc.protocols.audit.equality import Equality
from securemedian.mpc.protocols.channel import local_pair
from securemedian.mpc.protocols.kernels import packing
from tests.parties import make_parties, run_both
from tests.test_ot import Lying
from tests.test_privacy import recorders
from tests.uniformity import bits_of, check_uniform

RNG = np.random.default_rng(17)
COUNT = 4096
Halves = tuple[AuthenticatedBits, AuthenticatedBits]


def makers(pair: Any = None, **given: Any) -> list[AndMaker]:
    """Return both parties' makers, of a lane of an audit's session."""
    pairs = [pair] if pair else None
    return [AndMaker(lanes[0]) for lanes in make_parties(pairs=pairs, audit=True, **given)]


def honest(label: str, array: np.ndarray) -> None:
    """Send a message as it is."""


def lying(change: Callable[[str, np.ndarray], None]) -> tuple[Lying, Lying]:
    """Return channels of which party 1's changes its messages."""
    one, two = local_pair(20)
    return Lying(one, honest), Lying(two, change)


def value(halves: Halves) -> np.ndarray:
    return halves[0].bits ^ halves[1].bits


def check_macs(both: list[AndMaker], halves: Halves) -> None:
    for own, peers, maker in zip(halves, halves[::-1], both[::-1], strict=True):
        assert (own.macs == peers.keys ^ masks_of(own.bits) & maker.delta).all()
        assert own.bits.max(initial=0) <= 1


def shared_bits(both: list[AndMaker], bits: np.ndarray) -> Halves:
    """Return authenticated bits of these values, from a dealer whom nobody has but a test."""
    shares = [RNG.integers(0, 2, bits.size).astype(np.uint8)]
    shares.append(shares[0] ^ bits)
    keys = RNG.integers(0, 2**64, (2, bits.size), np.uint64)
    one, two = (
        AuthenticatedBits(shares[j], keys[1 - j] ^ masks_of(shares[j]) & both[1 - j].delta, keys[j])
        for j in (0, 1)
    )
    return one, two


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000, 70_000])
def test_triples_are_products_with_valid_macs(count: int) -> None:
    both = makers()
    triples = run_both(lambda j: both[j].triples(count))
    assert [len(each) for each in triples] == [count] * 2
    x, y, z = zip(*(each.take(count) for each in triples), strict=True)
    for factor in (x, y, z):
        check_macs(both, factor)
    assert (value(z) == value(x) & value(y)).all()


def test_triples_are_uniform_and_hidden() -> None:
    """Shares of both parties and MACs beside each other, for x and y; and of z given both."""
    both = makers()
    triples = run_both(lambda j: both[j].triples(COUNT))
    x, y, z = zip(*(each.take(COUNT) for each in triples), strict=True)
    seen = {f"{name}{j}": half[j].bits for name, half in (("x", x), ("y", y)) for j in (0, 1)}
    for half in (x, y, z):
        check_uniform(
            seen | bits_of("mac", half[0].macs, 0, 6) | bits_of("key", half[0].keys, 60, 64)
        )
    check_uniform({"z0": z[0].bits}, seen)


@pytest.mark.parametrize("count", [0, 1, 64, 1000])
def test_multiply(count: int) -> None:
    both = makers()
    values = RNG.integers(0, 2, (2, count)).astype(np.uint8)
    a, b = (shared_bits(both, each) for each in values)

    def run(j: int) -> tuple[AuthenticatedBits, AuthenticatedBits]:
        triples, channel = both[j].triples(2 * count + 3), both[j]._channel
        equality = Equality(channel, j)
        product = both[j].multiply(a[j], b[j], triples, equality)
        # and of what comes of it, with the next triples
        again = both[j].multiply(product ^ a[j], b[j], triples, equality)
        equality.settle("openings")
        assert len(triples) == 3
        return product, again

    product, again = (each for each in zip(*run_both(run), strict=True))
    for halves in (product, again):
        check_macs(both, halves)
    assert (value(product) == values[0] & values[1]).all()
    assert (value(again) == (values[0] & values[1] ^ values[0]) & values[1]).all()


def test_what_is_linear() -> None:
    both = makers()
    values = RNG.integers(0, 2, (3, 500)).astype(np.uint8)
    public = values[2]
    a, b = (shared_bits(both, each) for each in values[:2])
    for found, want in (
        ([one ^ other for one, other in zip(a, b, strict=True)], values[0] ^ values[1]),
        ([half.times(public) for half in a], values[0] & public),
        ([a[j].plus(j, public, both[j].delta) for j in (0, 1)], values[0] ^ public),
        ([half[100:300] for half in a], values[0, 100:300]),
        ([half[public == 1] for half in a], values[0, public == 1]),
    ):
        check_macs(both, (found[0], found[1]))
        assert (value((found[0], found[1])) == want).all()
    own = AuthenticatedBits.of_own(values[0], a[0].macs), AuthenticatedBits.of_peer(a[1].keys)
    assert (value(own) == values[0]).all()
    assert not own[0].keys.any() and not own[1].macs.any()
    assert "secrets" in repr(own[0])


def test_triples_are_handed_out_once() -> None:
    numbered = [
        AuthenticatedBits(np.zeros(9, np.uint8), *(np.arange(9, dtype=np.uint64),) * 2)
        for _ in range(3)
    ]
    triples = AuthenticatedTriples(*numbered)
    seen = [triples.take(count)[0].macs.tolist() for count in (2, 0, 4)]
    assert seen == [[0, 1], [], [2, 3, 4, 5]] and len(triples) == 3
    with pytest.raises(LocalProtocolError, match="4 triples are wanted, and 3 are left"):
        triples.take(4)


def test_silent_ots_make_no_authenticated_bits() -> None:
    (lanes, _) = make_parties(extension="silent")
    with pytest.raises(LocalProtocolError, match="SoftSpokenOT alone"):
        AndMaker(lanes[0])


# What a party receives, for tests/test_masks.py


def leaky(both: list[AndMaker], count: int = COUNT) -> list[SimpleNamespace]:
    """Return what each party has of leaky ANDs: records, packed y, T, and the bits x, y and z."""

    def run(j: int) -> SimpleNamespace:
        records, shares = np.empty((count, 8), np.uint64), np.empty(count // 64, np.uint64)
        tests = both[j]._leaky(records, shares)
        x, y, z = (records[:, 7] >> np.uint64(at) & np.uint64(1) for at in range(3))
        return SimpleNamespace(records=records, shares=shares, tests=tests, x=x, y=y, z=z)

    return list(run_both(run))


def tables_received() -> None:
    """Raise Leak unless G says nothing of the other party's y, to whom holds the rest of C."""
    pair = recorders()
    one, two = leaky(makers(pair))
    held = pair[0].of("and.tables") ^ one.records[:, 2] ^ one.records[:, 3]
    check_uniform(bits_of("table", held, 56, 64), {"own y": one.y, "y": two.y})


def tops_opened() -> None:
    """Raise Leak unless what is opened of leaky ANDs says nothing of x and y."""
    pair = recorders()
    one, two = leaky(makers(pair))
    opened = unpacked(pair[0].of("and.tops") ^ pair[1].of("and.tops"), COUNT)
    check_uniform({"d": opened}, {"x0": one.x, "x1": two.x, "y0": one.y, "y1": two.y})


def buckets_received() -> None:
    """Raise Leak unless what is opened of buckets says nothing of the other party's y."""
    pair = recorders()
    both, size = makers(pair), 4
    made = leaky(both, size * COUNT)
    buckets = _permutation(bytes(16), size * COUNT).reshape(size, COUNT)

    def run(j: int) -> list[AuthenticatedBits]:
        return both[j]._combined(made[j].records, made[j].shares, buckets, Equality(pair[j], j))

    found = run_both(run)
    received = pair[0].of("and.buckets").reshape(size - 1, -1)
    seen = {f"difference {i}": unpacked(row, COUNT) for i, row in enumerate(received)}
    check_uniform(seen, {"y": found[1][1].bits})


def openings_received() -> None:
    """Raise Leak unless what is opened in `multiply` says nothing of the other party's bits."""
    pair = recorders()
    both = makers(pair)
    zeros = np.zeros(COUNT, np.uint8)
    a, b = (shared_bits(both, zeros) for _ in range(2))

    def run(j: int) -> None:
        both[j].multiply(a[j], b[j], both[j].triples(COUNT), Equality(pair[j], j))

    run_both(run)
    received = pair[0].of("and.openings").reshape(2, -1)
    seen = {name: unpacked(row, COUNT) for name, row in zip("de", received, strict=True)}
    check_uniform(seen, {"a": a[1].bits, "b": b[1].bits})


def unpacked(words: np.ndarray, count: int) -> np.ndarray:
    bits = np.empty(count, np.uint8)
    packing.unpack_bits(np.ascontiguousarray(words), bits)
    return bits


@pytest.mark.parametrize(
    "check", [tables_received, tops_opened, buckets_received, openings_received]
)
def test_what_is_received_is_uniform(check: Callable[[], None]) -> None:
    check()
