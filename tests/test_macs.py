"""MACs over Z_2^m from the leaves of GGM trees."""

import numpy as np
import pytest

from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.audit.macs import (
    MAC_BITS,
    NONCE,
    Prover,
    Verifier,
    blocks_of,
    packed,
    per_block,
    slot_of,
    unpacked,
)
from securemedian.mpc.protocols.channel import local_pair
from securemedian.mpc.protocols.party import Session
from securemedian.mpc.protocols.prg import Stream
from securemedian.mpc.protocols.protocol import ProtocolParams
from tests.rates import check_rate
from tests.uniformity import bits_of, check_uniform, looks_uniform

RNG = np.random.default_rng(31)
COUNTS = [1, 16, 33, 4096, 20_001]


def sessions(native_aes: bool = True, bits: int = 128) -> tuple[Session, Session]:
    """Return what base OTs would give a prover, and a verifier, of so many bits of Delta."""
    params = ProtocolParams(native_aes=native_aes)
    delta = RNG.integers(0, 2, bits).astype(np.uint8)
    trees = [[RNG.bytes(16) for _ in range(16)] for _ in range(bits // 4)]
    missing = delta.reshape(-1, 4) @ (1 << np.arange(4))
    holes = [
        [b"" if z == hole else leaf for z, leaf in enumerate(tree)]
        for tree, hole in zip(trees, missing, strict=True)
    ]
    none = np.zeros(0, np.uint8)
    return (
        Session(1, b"", trees, none, [], RNG.bytes, params),
        Session(0, b"", [], delta, holes, RNG.bytes, params),
    )


def ends(
    pair: tuple[Session, Session] | None = None, lane: int = 0
) -> tuple[Prover, Verifier, np.ndarray]:
    """Return both ends, and Delta."""
    one, other = pair or sessions()
    here, there = local_pair(20)
    prover, verifier = Prover(one, lane, here), Verifier(other, lane, there)
    return prover, verifier, other.delta[:MAC_BITS]


def random_values(count: int, bits: int) -> np.ndarray:
    return ring.reduce(RNG.integers(0, 1 << 16, count), bits)


def commit(
    prover: Prover, values: np.ndarray, bits: int, slot: int | None = None
) -> tuple[int, np.ndarray]:
    """Return the position of values, and their tags as rows."""
    at, tags = prover.commit(values, bits, slot)
    return at, in_rows(tags, slot or slot_of(bits), bits, prover.mac_bits)


def accept(verifier: Verifier, count: int, bits: int, slot: int | None = None) -> np.ndarray:
    """Return the keys as rows."""
    at, f = verifier.receive(count, bits)
    keys = verifier.empty(count, slot or slot_of(bits))
    verifier.expand(at, verifier.opened(f, count, bits), 0, bits, keys, slot)
    return in_rows(keys, slot or slot_of(bits), bits, verifier.mac_bits)


def in_rows(words: np.ndarray, slot: int, bits: int, mac_bits: int = MAC_BITS) -> np.ndarray:
    """Return rows of packed tags or keys, from the definition."""
    found = np.empty((mac_bits, words.shape[1]), ring.dtype(bits))
    for c, row in enumerate(found):
        row[:] = ring.reduce(words[c * slot // 64] >> np.uint64(c * slot % 64), bits)
    return found


def tags_again(prover: Prover, at: int, count: int, bits: int) -> np.ndarray:
    out = prover.empty(count, slot_of(bits))
    prover.expand(at, None, 0, bits, out)
    return in_rows(out, slot_of(bits), bits)


def holds(
    tags: np.ndarray, keys: np.ndarray, delta: np.ndarray, values: np.ndarray, bits: int
) -> bool:
    """Tell whether w_c = v_c + Delta_c x."""
    want = tags.astype(np.int64) + delta[:, None].astype(np.int64) * values.astype(np.int64)
    return bool((ring.reduce(keys, bits) == ring.reduce(want, bits)).all())


@pytest.mark.parametrize("native_aes", [True, False])
@pytest.mark.parametrize("bits", [1, 2, 4, 5, 8, 9, 16])
def test_keys_are_tags_plus_delta_times_values(bits: int, native_aes: bool) -> None:
    """Make calls one after another, in slots of any size, and again from their positions."""
    prover, verifier, delta = ends(sessions(native_aes))
    for slot in (slot for slot in (4, 8, 16) if slot >= ring.dtype(bits).itemsize * 8 or bits <= 4):
        values = random_values(333, bits)
        _, tags = commit(prover, values, bits, slot)
        assert holds(tags, accept(verifier, 333, bits, slot), delta, values, bits)
    seen = []
    for count in COUNTS:
        values = random_values(count, bits)
        at, tags = commit(prover, values, bits)
        position, f = verifier.receive(count, bits)
        f, keys = verifier.opened(f, count, bits), verifier.empty(count, slot_of(bits))
        verifier.expand(position, f, 0, bits, keys)
        rows = in_rows(keys, slot_of(bits), bits)
        assert at == position and tags.shape == rows.shape == (MAC_BITS, count)
        assert holds(tags, rows, delta, values, bits)
        # of no other values
        assert not holds(tags, rows, delta, values ^ values.dtype.type(1), bits)
        seen.append((at, f, count, tags, rows))
    for at, f, count, tags, rows in reversed(seen):
        assert (tags_again(prover, at, count, bits) == tags).all()
        # from the middle of f on
        first = count // 2 // per_block(bits) * per_block(bits)
        out = verifier.empty(count - first, slot_of(bits))
        verifier.expand(at + first // per_block(bits), f, first, bits, out)
        assert (in_rows(out, slot_of(bits), bits) == rows[:, first:]).all()


@pytest.mark.parametrize("bits", [4, 5, 16])
@pytest.mark.parametrize("mac_bits", [4, 48])
def test_rows_are_packed_and_unpacked(bits: int, mac_bits: int) -> None:
    rows = ring.reduce(RNG.integers(0, 1 << 16, (mac_bits, 1500)), bits)
    words = packed(rows, slot_of(bits))
    assert (in_rows(words, slot_of(bits), bits, mac_bits) == rows).all()
    assert (unpacked(words, bits, mac_bits) == rows).all()


def test_elements_are_those_of_the_definition() -> None:
    """Tags are minus sums of leaves, made here from their streams under the nonce."""
    for bits, lane in ((4, 0), (3, 5), (7, 1), (12, 2)):
        pair = sessions()
        prover, _, _ = ends(pair, lane)
        prover.commit(random_values(100, bits), bits)
        at, tags = commit(prover, random_values(50, bits), bits)
        assert at == blocks_of(100, bits)
        numbers = np.array(
            [
                [elements(Stream(leaf, NONCE + lane, at), 50, bits) for leaf in tree]
                for tree in pair[0].receiver_leaves[:12]
            ]
        ).astype(np.int64)
        chosen = np.arange(16) >> np.arange(4)[:, None] & 1
        want = -np.einsum("tz,bzi->bti", chosen, numbers).reshape(48, 50)
        assert (ring.reduce(tags, bits) == ring.reduce(want, bits)).all()


def elements(stream: Stream, count: int, bits: int) -> np.ndarray:
    found = stream.words(2 * blocks_of(count, bits)).view(ring.dtype(bits))
    if bits <= 4:
        blocks = found.reshape(-1, 16)
        found = np.stack((blocks & 15, blocks >> 4), axis=1).reshape(-1)
    return found[:count]


def test_streams_are_none_of_those_of_ots() -> None:
    """Their nonces are the numbers of lanes."""
    assert not set(range(1 << 16)) & {NONCE, NONCE + 1, NONCE + (1 << 16) - 1}
    pair = sessions()
    prover, verifier, _ = ends(pair)
    prover.commit(np.zeros(100, np.uint8), 8)
    f = verifier.opened(verifier.receive(100, 8)[1], 100, 8)
    for nonce in (0, 1, NONCE + 1):
        leaves = [elements(Stream(leaf, nonce), 100, 8) for leaf in pair[0].receiver_leaves[0]]
        assert (np.sum(leaves, axis=0, dtype=np.uint8) + f[0]).any()
    leaves = [elements(Stream(leaf, NONCE), 100, 8) for leaf in pair[0].receiver_leaves[0]]
    assert not (np.sum(leaves, axis=0, dtype=np.uint8) + f[0]).any()


def what_is_sent_hides_values() -> None:
    """Send the same values in two calls and two lanes; look at all together and beside them."""
    pair, values = sessions(bits=4), random_values(1 << 14, 4)
    seen: dict[str, np.ndarray] = {}
    for lane in (0, 1):
        prover, verifier, _ = ends(pair, lane)
        for call in range(2):
            prover.commit(values, 4)
            f = ring.unpack(verifier.receive(values.size, 4)[1], 4, values.size)
            seen |= bits_of(f"f of lane {lane}, call {call}", f, 0, 4)
    check_uniform(seen, bits_of("x", values, 0, 4))


def test_what_is_sent_hides_values() -> None:
    what_is_sent_hides_values()


def test_what_is_sent_is_uniform_and_never_the_same() -> None:
    """Commit to values that are all 0: then u, which hides them, is uniform, too."""
    prover, verifier, _ = ends()
    zeros, sent = np.zeros(1 << 15, np.uint8), []
    for bits in (1, 4, 4, 7, 8, 16):
        prover.commit(zeros, bits)
        sent.append(verifier.receive(zeros.size, bits)[1])
    assert looks_uniform(np.concatenate(sent))


def test_a_lane_has_one_prover() -> None:
    """Or f of two values would tell how they differ."""
    pair = sessions()
    ends(pair, 3)
    with pytest.raises(LocalProtocolError, match="lane 3 has had a prover"):
        ends(pair, 3)
    ends(pair, 4)


def test_lanes_are_expanded_apart() -> None:
    pair = sessions()
    zeros = np.zeros(1000, np.uint8)
    tags = [commit(ends(pair, lane)[0], zeros, 8)[1] for lane in (0, 1)]
    assert (tags[0] != tags[1]).mean() > 0.9


def test_more_bits_than_an_element_has_are_refused() -> None:
    prover, verifier, _ = ends()
    for bits in (0, 17):
        with pytest.raises(LocalProtocolError, match=f"1 to 16 bits, not of {bits}"):
            prover.commit(np.zeros(3, np.uint8), bits)


@pytest.mark.parametrize("wrong", [1, 8])
def test_a_wrong_value_passes_with_the_chance_to_guess_delta(wrong: int) -> None:
    """E = 4: who says x + wrong adds what it guesses, and is right in 1 of 16 runs."""
    runs, hits = 600, 0
    zeros = np.zeros(1, np.uint8)
    for lane in range(runs):
        prover, verifier, _ = ends(sessions(bits=4), lane)
        (_, tags), keys = commit(prover, zeros, 4), accept(verifier, 1, 4)
        guess = RNG.integers(0, 2, (4, 1)).astype(np.uint8)
        # the verifier's comparison, if it is told `wrong`
        expected = ring.reduce(keys - verifier.constant(np.array([wrong], np.uint8)), 4)
        hits += bool((ring.reduce(tags - guess * np.uint8(wrong), 4) == expected).all())
    check_rate(hits, runs, 2.0**-4)
