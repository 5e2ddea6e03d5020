"""The processor's own AES against the standards' vectors, and against OpenSSL and portable kernels.

`test_other_processors` runs these tests again with code for processors with fewer instructions.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.protocols.audit import macs
from securemedian.mpc.protocols.dealing import Dealing
from securemedian.mpc.protocols.kernels import extension, lpn
from securemedian.mpc.protocols.kernels.native import aes, hashing, processor
from securemedian.mpc.protocols.kernels.native import leaves as native_leaves
from securemedian.mpc.protocols.kernels.native import trees as native_trees
from securemedian.mpc.protocols.ot import ferret
from securemedian.mpc.protocols.ot.consistency import reduced
from securemedian.mpc.protocols.ot.extension import ALIGN, Scratch, bit_planes
from securemedian.mpc.protocols.ot.hash import Hash
from securemedian.mpc.protocols.ot.leaves import (
    Corrected,
    NativeLeaves,
    PortableLeaves,
    Rows,
    Tweaked,
    Wanted,
    expander,
)
from securemedian.mpc.protocols.party import Session
from securemedian.mpc.protocols.prg import Stream, expand
from securemedian.mpc.protocols.protocol import OT_EXTENSIONS, ProtocolParams
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Outcome, run_round
from securemedian.servers.storage.spool import DEALING, UPLOAD, Piece
from securemedian.servers.storage.store import Store
from tests import reference
from tests.parties import deterministic_entropy, run_both, use_small_codes
from tests.test_macs import in_rows
from tests.test_privacy import recorders

RNG = np.random.default_rng(21)
# vectors of all lanes, several of them, and blocks that fill none
COUNTS = [ALIGN, 3 * ALIGN, 5 * ALIGN, 20 * ALIGN, 61 * ALIGN]
# enough for kernels that are compiled in each run
KERNELS = "vectors or columns or leaves or hash or planes or streams or trees or rows"

pytestmark = pytest.mark.skipif(
    not processor.use_native(True),
    reason="no AES instructions here, or nothing is compiled",
)


def words(*shape: int) -> np.ndarray:
    return RNG.integers(0, 2**64, shape, np.uint64)


def test_vectors_of_the_key_schedule() -> None:
    """FIPS 197, A.1: the first and the last two round keys."""
    keys = aes.round_keys(bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c") * 2)
    assert (keys[0] == keys[1]).all()
    found = [keys[0, i].tobytes().hex() for i in (0, 1, 9, 10)]
    assert found == [
        "2b7e151628aed2a6abf7158809cf4f3c",
        "a0fafe1788542cb123a339392a6c7605",
        "ac7766f319fadc2128d12941575c006e",
        "d014f9a8c9ee2589e13f0cc8b6630ca6",
    ]


# key, plaintext, ciphertext: FIPS 197, B and C.1; SP 800-38A, F.1.1
BLOCKS = [
    (
        "2b7e151628aed2a6abf7158809cf4f3c",
        "3243f6a8885a308d313198a2e0370734",
        "3925841d02dc09fbdc118597196a0b32",
    ),
    (
        "000102030405060708090a0b0c0d0e0f",
        "00112233445566778899aabbccddeeff",
        "69c4e0d86a7b0430d8cdb78070b4c55a",
    ),
    *(
        ("2b7e151628aed2a6abf7158809cf4f3c", plain, cipher)
        for plain, cipher in (
            ("6bc1bee22e409f96e93d7e117393172a", "3ad77bb40d7a3660a89ecaf32466ef97"),
            ("ae2d8a571e03ac9c9eb76fac45af8e51", "f5d3d58503b9699de785895a96fdbaaf"),
            ("30c81c46a35ce411e5fbc1191a0a52ef", "43b1cd7f598ece23881b00e3ed030688"),
            ("f69f2445df4f9b17ad2b417be66c3710", "7b0c785e27e8ad3f8223207104725dd4"),
        )
    ),
]


@pytest.mark.parametrize(("key", "plain", "cipher"), BLOCKS)
@pytest.mark.parametrize("count", [1, 16, 17])
def test_vectors_of_blocks(key: str, plain: str, cipher: str, count: int) -> None:
    """With y = sigma(x) the plaintext and no tweak, H(x) ^ y is the ciphertext."""
    high, low = np.frombuffer(bytes.fromhex(plain), np.uint64)[::-1]
    # sigma(L || R) = (L ^ R) || L, whose first word is the low one
    blocks = np.tile(np.array([high, low ^ high]), (count, 1))
    out, zero = np.empty_like(blocks), np.uint64(0)
    # the kernel counts the tweak up
    blocks[:, 1] ^= np.arange(count, dtype=np.uint64)
    round_keys = aes.round_keys(bytes.fromhex(key))[0]
    hashing.hash_blocks(blocks, zero, zero, round_keys, None, out, None)
    got = out ^ np.frombuffer(bytes.fromhex(plain), np.uint64)
    assert {row.tobytes().hex() for row in got} == {cipher}


def test_vectors_of_counter_mode() -> None:
    """SP 800-38A, F.5.1: the output blocks, alone and as the row of the second leaf of a tree."""
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    keys = aes.round_keys((bytes(16) + key) * 128).reshape(128, 2, 11, 2)
    nonce, counter = 0xF0F1F2F3F4F5F6F7, 0xF8F9FAFBFCFDFEFF
    alone = np.empty(8, np.uint64)
    seed = np.frombuffer(key, np.uint64)
    aes.stream(seed, np.uint64(nonce), np.uint64(counter), alone)
    rows, choices, corrections = (
        np.empty((128, 8), np.uint64),
        np.empty(8, np.uint64),
        np.empty((127, 8), np.uint64),
    )
    given = np.uint64(nonce), np.uint64(counter), choices, None, corrections, rows[None]
    weights, sums, tweak = np.zeros(8, np.uint64), np.zeros((128, 2), np.uint64), np.uint64(0)
    hashed: Any = tweak, tweak, *(None,) * 7, 0, None, None
    native_leaves.expand(keys, *given, weights, sums, *hashed)
    assert (rows[0] == alone).all()
    assert alone.tobytes().hex() == (
        "ec8cdf7398607cb0f2d21675ea9ea1e4"
        "362b7c3c6773516318a077d7fc5073ae"
        "6a2cc3787889374fbeb4c81b17ba6c44"
        "e89c399ff0f198c6d40a31db156cabfe"
    )


def of_openssl(seed: bytes, block: int, count: int) -> bytes:
    """Return words of a stream as `cryptography` makes them, called on its own."""
    start = block.to_bytes(16, "big")
    return Cipher(algorithms.AES(seed), modes.CTR(start)).encryptor().update(bytes(8 * count))


@pytest.mark.parametrize("block", [0, 5, 2**32 - 3, 2**63 + 1])
def test_streams_of_both_paths_are_the_same(block: int) -> None:
    """Compare tiles, blocks and half blocks, with carries between the counter's bytes."""
    for count in [0, 1, 2, 3, 39, 40, 41, 42, 80, 83, 1000, 30_721]:
        seed = RNG.bytes(16)
        native_, portable = (expand(seed, block, count, choice) for choice in (True, False))
        assert (native_ == portable).all()
        assert native_.tobytes() == of_openssl(seed, block, count)


def test_halves_are_expanded_as_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a half that says so is expanded by the processor's own AES, and a client's does not."""
    (seeded, _) = share.split(RNG.integers(0, 99, (3, 1000)).astype(np.uint16), 12)
    own, stream = replace(seeded, native_aes=True), aes.stream
    calls: list[int] = []

    def counted(key: np.ndarray, nonce: np.uint64, counter: np.uint64, out: np.ndarray) -> None:
        calls.append(out.size)
        stream(key, nonce, counter, out)

    monkeypatch.setattr(aes, "stream", counted)
    for row, start, stop in ((0, 0, 188), (2, 24, 141)):
        want = seeded.words(row, start, stop)
        assert not calls
        assert (own.words(row, start, stop) == want).all() and calls
        calls.clear()
    monkeypatch.setattr(processor, "FEATURES", frozenset({"sse2"}))
    assert (own.words(1, 0, 188) == seeded.words(1, 0, 188)).all() and not calls


@pytest.mark.parametrize("native_aes", [True, False])
def test_a_server_expands_halves_as_it_is_configured(native_aes: bool, tmp_path: Path) -> None:
    store, shape = Store(tmp_path, native_aes=native_aes), Dealing(200, 4, 3)
    seed = np.frombuffer(bytes(16), np.uint8)
    plain = store.spool("1-0000000a", ROUND.form.layout)
    row = plain.put("a", Piece(UPLOAD, "seed", seed))
    assert row is not None
    plain.add(row)
    checked = store.spool("1-0000000b", shape.rotations_layout, shape)
    whole = checked.put("a", Piece(DEALING, "seed", seed))
    assert whole is not None
    checked.add(whole)
    for half in (plain.get("a"), checked.dealing("a")):
        assert isinstance(half, share.SeedUpload) and half.native_aes == native_aes
    store.close()


def trees(field_bits: int) -> list[list[bytes]]:
    return [[RNG.bytes(16) for _ in range(1 << field_bits)] for _ in range(128 // field_bits)]


@pytest.mark.parametrize("bits", [1, 4, 5, 8, 9, 16])
def test_leaves_under_macs_of_both_paths_are_the_same(bits: int) -> None:
    """Compare both ends, full and partial tiles, any position and slots of any size."""
    made = trees(4)[:12]
    slots = [slot for slot in (4, 8, 16) if bits <= slot and (bits <= 8 or slot == 16)]
    for slot, (at, count) in product(slots, ((0, 1), (7, 100), (2**32 - 1, 1024), (5, 5000))):
        values = ring.reduce(words(count), bits)
        masks = np.zeros(48, values.dtype) - RNG.integers(0, 2, 48).astype(values.dtype)
        found = []
        for expander_ in (macs.PortableExpander(made, 5), macs.NativeExpander(made, 5)):
            f, alone = (np.zeros((12, count + 40), values.dtype) for _ in range(2))
            mine, other = f[:, :count].copy(), alone[:, :count].copy()
            out = [words(slot * 3 // 4, count) for _ in range(3)]
            expander_.commit(at, bits, values, mine, slot, out[0])
            expander_.commit(at, bits, values, other, slot, None)
            assert (mine == other).all()
            f[:, 40:] = mine
            expander_.keys(at, bits, masks, f, 40, slot, out[1])
            expander_.keys(at, bits, 0 * masks, None, 0, slot, out[2])
            rows = [in_rows(each, slot, bits) for each in out]
            assert (rows[0] == rows[2]).all()
            found.append([ring.reduce(mine, bits), *rows])
        assert all((a == b).all() for a, b in zip(*found, strict=True))


def test_leaves_fold_as_they_are_defined() -> None:
    """The plain twin, on the streams of `mpc.protocols.prg`."""
    made = trees(4)
    rows, choices, corrections = words(128, 26), words(26), words(31, 26)
    NativeLeaves(made, 7).rows(Corrected(corrections, choices), rows)
    for block, tree in enumerate(made):
        streams = np.array([Stream(leaf, nonce=7).words(26) for leaf in tree])
        want, total = reference.fold(streams)
        assert (rows[4 * block : 4 * block + 4] == want).all()
        assert (total == (choices if block == 0 else corrections[block - 1] ^ choices)).all()


@pytest.mark.parametrize(
    ("strips", "count", "width", "size"),
    [(1, 128, 168, 168), (3, 128, 24, 52), (1, 1, 2, 2), (2, 3, 14, 26), (1, 9, 42, 40)],
)
def test_weighed_sums_of_both_paths_are_those_of_the_definition(
    strips: int, count: int, width: int, size: int
) -> None:
    rows, weights, sums = words(strips, count, width), words(size), words(count, 2)
    own, portable = sums.copy(), sums.copy()
    weights.flags.writeable = False
    extension.weigh(rows, weights, own)
    whole = np.concatenate(rows, axis=1)[:, :size]
    for row, its in zip(whole, portable, strict=True):
        extension.weigh_row_by_table(row, weights, its)
    want = reference.weighed(whole, weights) ^ sums
    assert (own == want).all() and (portable == want).all()
    elements = [reference.in_field(low, high) for low, high in want.tolist()]
    assert reduced(own).tolist() == elements


def hashed(native_aes: bool, call: Callable[[Hash], Any]) -> Any:
    return call(Hash(Scratch(), b"a label", b"parts", native_aes=native_aes))


@pytest.mark.parametrize("count", COUNTS)
def test_hashes_of_both_paths_are_the_same(count: int) -> None:
    rows, blocks = words(128, count // 64), words(count - 3, 2)
    columns = reference.columns(rows)
    # a carry into the upper half of the index, and every bit of the stream
    index, stream, difference = 2**32 - 5, np.uint64(2**64 - 2), np.array([5, 2**63], np.uint64)

    def everything(hash_: Hash) -> list[np.ndarray]:
        out = [np.zeros((count, 2), np.uint64) for _ in range(3)]
        short = [np.zeros((count - 3, 2), np.uint64) for _ in range(3)]
        hash_.blocks(columns, index, stream, out[0])
        hash_.blocks(columns, index, stream, out[1], difference, out[2])
        hash_.blocks(blocks, index, stream, short[0])
        hash_.blocks(blocks, index, stream, short[1], difference, short[2])
        return [*out, *short]

    portable, own = hashed(False, everything), hashed(True, everything)
    assert all((a == b).all() for a, b in zip(portable, own, strict=True))
    assert (own[0] == own[1]).all() and (own[0] != own[2]).any(axis=1).all()
    of_rows = [np.zeros((count, 2), np.uint64) for _ in range(2)]
    hashed(
        False, lambda hash_: hash_.columns(rows, index, stream, of_rows[0], difference, of_rows[1])
    )
    assert (of_rows[0] == own[0]).all() and (of_rows[1] == own[2]).all()


@pytest.mark.parametrize(
    ("field_bits", "rows"), [(1, 128), (2, 128), (4, 128), (8, 128), (1, 64), (4, 64), (8, 64)]
)
def test_leaves_become_what_is_wanted(
    field_bits: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ends' rows, corrections and sums are those of leaves alone; columns and hashes follow.

    Strips are of tiles and blocks, the last is shorter, and a call goes on where the last ended.
    """
    monkeypatch.setattr(native_leaves, "STRIP", 86)
    made = trees(field_bits)[: rows // field_bits]
    holes = [[b"", *tree[1:]] for tree in made]
    index, stream, difference = 2**32 - 5, np.uint64(2**64 - 2), np.array([5, 2**63], np.uint64)
    masks = np.uint64(0) - RNG.integers(0, 2, rows).astype(np.uint64)
    plain = Hash(Scratch(), b"a label", native_aes=False)
    ends_of = ((made, None), (holes, masks))
    for native_aes, (known, masked) in product((False, True), ends_of):
        tweaked = Tweaked(Hash(Scratch(), b"a label", native_aes=native_aes), index, stream)
        leaves, alone = expander(known, 3, native_aes), expander(known, 3, False)
        apart, ends = (None, 1) if masked is None else (difference, 2)
        for count in (ALIGN, 43 * ALIGN, 100 * ALIGN):
            width = count // 64
            keys, hashes, columns = words(2, count, 2), words(2, count), words(count)
            wide, narrow = (np.full((2, each, width + 4), 7, np.uint64) for each in (11, 8))
            every = [Wanted(), Wanted(columns=columns)]
            if rows == 128:
                every += [
                    Wanted(apart, keys=[*keys[:ends]]),
                    Wanted(apart, columns=columns, hashes=[*hashes[:ends]]),
                    *(Wanted(apart, at=3, planes=[*each[:ends]]) for each in (wide, narrow)),
                ]
            for wanted in every:
                spoken, weights = words(len(made) - 1, width), words(width)
                heard, made_rows = spoken.copy(), words(rows, width)
                choices, others = (words(width) if masked is None else None for _ in range(2))
                strips, sums = words(*leaves.strips(width)), np.zeros((2, rows, 2), np.uint64)
                weighed, by_itself = (Rows(strips, weights, each) for each in sums)
                # the content that a receiver overwrites, and that a sender writes
                if masked is None:
                    by_itself.weigh()
                leaves.make(tweaked, Corrected(spoken, choices, masked), weighed, wanted)
                if masked is not None:
                    by_itself.weigh()
                assert (sums[0] == sums[1]).all()
                alone.rows(Corrected(heard, others, masked), made_rows)
                assert (spoken == heard).all()
                assert choices is None or others is None or (choices == others).all()
                found = np.concatenate(strips, axis=1)[:, :width]
                assert (found == made_rows).all()
                if wanted.columns is not None:
                    low = reference.columns(np.resize(made_rows, (128, width)))[:, 0]
                    assert (columns == low).all()
                if rows == 64:
                    continue
                want = words(2, count, 2)
                plain.columns(made_rows, index, stream, want[0], difference, want[1])
                for mine, key in zip(wanted.keys, want, strict=False):
                    assert (mine == key).all()
                for mine, key in zip(wanted.hashes, want, strict=False):
                    assert (mine == key[:, 0]).all()
                for mine, key in zip(wanted.planes, want, strict=False):
                    assert (mine[:, 3:-1] == bit_planes(key, len(mine))).all()
                    # nothing is written before or behind them
                    assert (mine[:, [0, 1, 2, -1]] == 7).all()


@pytest.mark.parametrize("receiver", [False, True])
@pytest.mark.parametrize(
    ("trees", "depth", "secrets"), [(1, 3, 1), (3, 4, 5), (2, 6, 300), (5, 9, 70_000), (1, 11, 999)]
)
def test_trees_and_code(trees: int, depth: int, secrets: int, receiver: bool) -> None:
    """Check that `grow_and_encode` writes the bytes of the portable kernels and OpenSSL."""
    nodes, given, blocks = (
        words(trees, 1 << depth, 2),
        words(trees, depth - 1, 2),
        words(secrets, 2),
    )
    paths = RNG.integers(0, 1 << depth, trees if receiver else 0)
    if receiver:
        nodes[:, 1] = nodes[:, 0]
    stream, iteration, first = np.uint64(5) | ferret.TREE_TWEAKS, 3, 2**63 + 7
    matrix, keys = os.urandom(16), Hash(Scratch(), b"trees")
    assert keys.round_keys is not None
    sums, want_sums = words(trees, depth - 1, 2), words(trees, depth - 1, 2)
    level, tweak = nodes[:, :2], 0
    for at in range(depth - 1):
        parents, lefts = np.ascontiguousarray(level), words(trees, 2 << at, 2)
        Hash(Scratch(), b"trees", native_aes=False).blocks(
            parents.reshape(-1, 2), tweak, stream, lefts.reshape(-1, 2)
        )
        level, want_sums[:, at] = reference.half_tree_level(parents, lefts)
        tweak += trees * (2 << at)
        if receiver:
            lpn.mend(level, at, want_sums, given, paths)
    draws = Stream(matrix, iteration, first).words(level.size * lpn.LOCALITY // 4)
    want = reference.local_code(
        level.reshape(-1, 2), blocks, draws.view(np.uint32).reshape(-1, lpn.LOCALITY)
    )
    native_trees.grow_and_encode(
        nodes,
        given,
        paths,
        sums,
        stream,
        keys.round_keys,
        blocks,
        np.uint64(iteration),
        np.uint64(first),
        aes.round_keys(matrix)[0],
    )
    assert (sums == want_sums).all() and (nodes.reshape(-1, 2) == want).all()


def test_hashes_in_place() -> None:
    blocks = words(50, 2)
    want = np.empty_like(blocks)
    hashed(True, lambda hash_: hash_.blocks(blocks, 1, np.uint64(2), want))
    hashed(True, lambda hash_: hash_.blocks(blocks, 1, np.uint64(2), blocks))
    assert (blocks == want).all()


def test_arrays_with_gaps_are_refused() -> None:
    """The instructions would read what lies between."""
    key, zero = aes.round_keys(bytes(16))[0], np.uint64(0)
    with pytest.raises(TypeError, match="No matching definition"):
        hashing.hash_blocks(words(8, 4)[:, :2], zero, zero, key, None, words(8, 2), None)


def test_what_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trees(4)
    assert isinstance(expander(made, 0, True), NativeLeaves)
    assert isinstance(expander(made, 0, False), PortableLeaves)
    monkeypatch.setattr(processor, "FEATURES", frozenset({"sse2"}))
    assert isinstance(expander(made, 0, True), PortableLeaves)
    with pytest.raises(ConfigError, match="invalid native_aes"):
        ProtocolParams(native_aes=1)  # type: ignore[arg-type]
    assert ProtocolParams().agreement() == ProtocolParams(native_aes=False).agreement()
    assert ProtocolParams().agreement() != ProtocolParams(ot_extension="silent").agreement()


ROUND = RoundParams(Pairwise(ring_bits=9, fraction_bits=0), dim=200, max_clients=3)


def messages(extension: str, native_aes: bool) -> list[list[tuple[str, bytes]]]:
    """Return what each party receives in a round, on the same randomness each time."""
    pair, values = recorders(), np.random.default_rng(3).integers(0, 40, (3, ROUND.dim))
    entropy = deterministic_entropy(2)
    uploads = [share.split(ring.reduce(row[None], 9), 9, entropy) for row in values]

    def run(j: int) -> Outcome:
        protocol = ProtocolParams(lanes=1, ot_extension=extension, native_aes=native_aes)
        session = Session.establish(j, pair[j], bytes(16), protocol, deterministic_entropy(40 + j))
        mine = [upload[j] for upload in uploads]
        return run_round([session.party(0, pair[j])], ROUND, protocol, mine)

    for outcome in run_both(run):
        assert (outcome.values[0] == reference.lower_median(values)).all()
    return [[(label, array.tobytes()) for label, array in end.received] for end in pair]


@pytest.mark.parametrize("extension", OT_EXTENSIONS)
def test_parties_of_both_paths_meet(extension: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are right and all messages the same, whichever path a party takes."""
    use_small_codes(monkeypatch)
    want = messages(extension, False)
    assert sum(len(end) for end in want) > 20
    assert messages(extension, True) == want


def under(cpu: str, features: str, cache: Path, program: str) -> str:
    """Return what a program prints where numba compiles for another processor than this one."""
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ
        | {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


SSE2 = "+64bit,+cx8,+fxsr,+sse,+sse2,+aes,+pclmul"
# features, and then the lanes and whether GFNI is taken
ZEN3 = f"{SSE2},+sse3,+ssse3,+sse4.1,+sse4.2,+avx,+avx2,+vaes,+vpclmulqdq"
PROCESSORS = {
    "AES-NI": (SSE2, 1, False),
    "VAES and AVX2": (ZEN3, 2, False),
    "VAES, AVX2 and GFNI": (f"{ZEN3},+gfni", 2, True),
}


@pytest.mark.release
@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", PROCESSORS)
def test_other_processors(name: str, tmp_path: Path) -> None:
    """Check code compiled for processors with fewer instructions, in their registers."""
    features, lanes, gfni = PROCESSORS[name]
    if not {name[1:] for name in features.split(",")} <= processor.FEATURES:
        pytest.skip("this processor lacks these instructions")
    program = f"""
import re, pytest
from securemedian.mpc.protocols.kernels import packing
from securemedian.mpc.protocols.kernels.native import leaves, processor
assert (processor.LANES, processor.GFNI) == ({lanes}, {gfni}), (processor.LANES, processor.GFNI)
assert pytest.main(["-q", "-p", "no:cacheprovider", "-k", {KERNELS!r}, {__file__!r}]) == 0
assembly = "".join(leaves.expand.inspect_asm().values())
assert set(re.findall("aesenc .*%(.)mm", assembly.replace("\\t", " "))) == set("xy"[:{lanes}])
assert ("gf2p8affineqb" in assembly) == {gfni}
"""
    under("x86-64", features, tmp_path, program)


@pytest.mark.release
def test_the_cache_tells_processors_apart(tmp_path: Path) -> None:
    """Code for one processor is loaded on it again, and never on another."""
    program = """
from securemedian.mpc.protocols.kernels import packing
from securemedian.mpc.protocols.kernels.native import aes
aes.round_keys(bytes(16))
found = aes.schedule.stats
print(sum(found.cache_hits.values()), sum(found.cache_misses.values()))
"""
    one, other = SSE2, f"{SSE2},+sse3"
    found = [
        under(cpu, features, tmp_path, program).split()
        for cpu, features in (
            ("x86-64", one),
            ("x86-64", one),
            ("x86-64", other),
            ("core2", one),
            ("x86-64", one),
        )
    ]
    assert found == [["0", "1"], ["1", "0"], ["0", "1"], ["0", "1"], ["1", "0"]]
