"""Hostile clients of real daemons, which speak the wire by themselves.

If a client shares something invalid, the servers leave it out with its reason. The result is that
of the others, bit by bit.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian.laboratory import plaintext
from securemedian.mpc.errors import (
    BadUpload,
    NotAllowed,
    RoundClosed,
    UnknownRound,
)
from securemedian.mpc.protocols import dealing, ring, share
from securemedian.mpc.protocols.dealing import OwnDealing
from securemedian.mpc.protocols.share import WordsUpload
from securemedian.mpc.rounds.params import RoundParams
from tests.daemons import Pair, wait_until

pytestmark = pytest.mark.slow

DIM = 300
FAILED = "its dealing failed the check"
DEALT: dict[str, Any] = {"method": "bucketed", "uploads": "dealt"}
MODEL = np.zeros(DIM, np.float32)
HONEST = ("client-1", "client-2", "client-3")
HOSTILE = "client-4"
PAIR = {"clients": 4}


def update(name: str) -> NDArray[np.float32]:
    rng = np.random.default_rng(int(name[-1]))
    return rng.normal(0, 0.01, DIM).astype(np.float32)


def opened(pair: Pair, **params: Any) -> str:
    kind = {} if "method" in params else DEALT
    return pair.open(model=MODEL, **{"max_clients": 4, "dim": DIM, **kind, **params})


def ends_without_it(pair: Pair, round_id: str, why: str) -> None:
    """Check that the round is published without the hostile client, and as if it were not there."""
    status = pair.wait("published")
    assert status["left_out"] == pair.wait("published", "s1")["left_out"] == {HOSTILE: why}
    assert sorted(status["included"]) == list(HONEST)
    params = RoundParams.from_dict(status["params"])
    published = pair.published("client-1", round_id)
    expected = plaintext.published(np.stack([update(name) for name in HONEST]), params, published)
    assert np.array_equal(pair.result(round_id), expected[0])


# Dealings that are wrong


def one_kept_vector(shape: dealing.Dealing, dealt: OwnDealing) -> OwnDealing:
    (part,) = shape.parts
    packed = dealt.words.packed.copy()
    kept = packed[0, part.first : part.middle]
    values = ring.unpack(kept, shape.bits, part.kept * (shape.slots - 1))
    # by 2: by 1, a vector whose last entry is 1 would become another one-hot vector
    values[0] += 2
    words = ring.pack(ring.reduce(values, shape.bits), shape.bits)
    kept[: words.size] = words
    dealt.words = WordsUpload(shape.layout, packed)
    return dealt


def anything(shape: dealing.Dealing, dealt: OwnDealing) -> OwnDealing:
    rng = np.random.default_rng(1)
    words = rng.integers(0, 1 << 63, dealt.words.packed.shape, np.uint64)
    dealt.words = WordsUpload(shape.layout, words)
    return dealt


Wrong = Callable[[dealing.Dealing, OwnDealing], OwnDealing]


@pytest.mark.parametrize(("wrong", "when"), [(one_kept_vector, "first"), (anything, "last")])
def test_a_wrong_dealing_is_left_out_and_moves_nothing(pair: Pair, wrong: Wrong, when: str) -> None:
    round_id = opened(pair)
    shape = pair.round(HOSTILE)[1].form.dealing
    assert shape
    dealt = wrong(shape, dealing.deal(shape))

    def attack() -> None:
        pair.deal(HOSTILE, dealt)

    if when == "first":
        attack()
        failed = {HOSTILE: FAILED}
        # the verdict is there while the others train, and the client is told
        wait_until(lambda: pair.status("s0")["left_out"] == failed)
        wait_until(lambda: pair.status("s1")["left_out"] == failed)
        assert pair.round(HOSTILE)[0]["left_out"] == FAILED
        with pytest.raises(NotAllowed, match="failed the check"):
            pair.deal(HOSTILE, dealing.deal(shape))
        with pytest.raises(NotAllowed, match="failed the check"):
            pair.rotate(HOSTILE, dealt, update(HOSTILE))
    for name in HONEST:
        pair.submit(name, update(name))
    if when == "last":
        attack()
    ends_without_it(pair, round_id, FAILED)


def test_dealing_and_upload_at_once_are_judged_when_the_servers_get_to_it(pair: Pair) -> None:
    """They need not wait for the verdict: the upload is refused later, or left out."""
    round_id = opened(pair)
    for name in HONEST[:2]:
        pair.submit(name, update(name))
    shape = pair.round(HOSTILE)[1].form.dealing
    assert shape
    dealt = one_kept_vector(shape, dealing.deal(shape))
    rotations = dealt.rotations(pair.encoded(HOSTILE, update(HOSTILE))[0])
    pair.deal(HOSTILE, dealt)
    for server in ("s0", "s1"):
        try:
            pair.send(HOSTILE, "upload", "rotations", rotations, server)
        except NotAllowed as error:
            assert "failed the check" in str(error)
    pair.submit(HONEST[2], update(HONEST[2]))
    ends_without_it(pair, round_id, FAILED)


def test_a_dealing_that_is_withheld_or_cut_short_is_left_out(pair: Pair) -> None:
    round_id = opened(pair)
    current, params = pair.round(HOSTILE)
    shape = params.form.dealing
    assert shape
    words = dealing.deal(shape).words.packed.reshape(-1)
    server = f"s{1 - current['index'] % 2}"
    size = -(-words.size // 3)
    for piece in (0, 1):
        part = words[piece * size : (piece + 1) * size]
        answer = pair.send(HOSTILE, "deal", "words", part, server, piece=piece, pieces=3)
        assert not answer.fields["whole"]
    assert pair.status(server)["dealt"][HOSTILE] == "none"
    rotations = np.zeros((1, shape.rotations_layout.row_words), np.uint64)
    with pytest.raises(BadUpload, match="deal before you upload"):
        pair.send(HOSTILE, "upload", "rotations", rotations, server)
    for name in HONEST:
        pair.submit(name, update(name))
    assert pair.status()["state"] == "open"
    pair.caller("coordinator", "s0").ask("close", round=round_id)
    ends_without_it(pair, round_id, "its dealing reached neither server")
    with pytest.raises(RoundClosed):
        pair.send(HOSTILE, "deal", "words", words[2 * size :], server, piece=2, pieces=3)


def test_a_replayed_dealing_is_worth_nothing(pair: Pair) -> None:
    first = opened(pair)
    shape = pair.round(HOSTILE)[1].form.dealing
    assert shape
    theirs = pair.deal("client-1", dealing.deal(shape))
    # another client's words, with a seed of its own: it does not know the other one's
    theirs.seeded = replace(theirs.seeded, seed=bytes(16))
    pair.deal(HOSTILE, theirs)
    wait_until(lambda: pair.status()["left_out"] == {HOSTILE: FAILED})
    pair.caller("coordinator", "s0").ask("abort", round=first, reason="enough seen")
    round_id = opened(pair)
    # for the round that has ended
    with pytest.raises((RoundClosed, UnknownRound)):
        pair.send(
            HOSTILE, "deal", "seed", np.zeros(16, np.uint8), "s0", piece=0, pieces=1, round=first
        )
    # the servers drop an honest client's dealing for the failed round, and it deals again
    assert not pair.round("client-1")[0]["dealt"]
    for name in HONEST:
        pair.submit(name, update(name))
    pair.caller("coordinator", "s0").ask("close", round=round_id)
    ends_without_it(pair, round_id, "its dealing reached neither server")


# Values out of range


@pytest.mark.parametrize(
    ("method", "value"), [("pairwise", 1 << 62), ("trimmed-mean", -(1 << 62) - 1)]
)
def test_a_value_out_of_range_is_left_out(pair: Pair, method: str, value: int) -> None:
    round_id = opened(pair, method=method)
    params = pair.round(HOSTILE)[1]
    values = pair.encoded(HOSTILE, update(HOSTILE))
    values[0, DIM - 1] = np.uint64(value % (1 << 64))
    seeded, words = share.split(values, params.form.layout.bits)
    pair.halves(HOSTILE, "upload", seeded.seed, words.packed)
    for name in HONEST:
        pair.submit(name, update(name))
    ends_without_it(pair, round_id, "a value of its update is out of range")


@pytest.mark.parametrize(("bound", "kind"), [("auto", "wraps"), (0.5, "long")])
def test_a_long_update_is_left_out_of_a_mean(pair: Pair, bound: float | str, kind: str) -> None:
    """Share one above the proved gap, or whose sums wrap; the coin is kept for the comparison."""
    round_id = opened(pair, method="mean", norm_bound=bound)
    params = pair.round(HOSTILE)[1]
    values = pair.encoded(HOSTILE, update(HOSTILE))
    if kind == "wraps":
        values[0, DIM - 1] = np.uint64(1 << 63)
    else:
        given = params.to_dict()
        values[0] = 0
        values[0, 7] = np.uint64(int(1.8 * given["norm_bound"] * 2.0 ** given["fraction_bits"]))
    seeded, words = share.split(values, params.form.layout.bits)
    pair.halves(HOSTILE, "upload", seeded.seed, words.packed)
    for name in HONEST:
        pair.submit(name, update(name))
    ends_without_it(pair, round_id, params.form.fault)
