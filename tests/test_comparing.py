"""Proofs of signs: honest ones pass, and each lie is found as often as it must."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.arrays import RingShare
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import PeerDeviated
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.audit import comparing
from securemedian.mpc.protocols.audit.ands import AndMaker
from securemedian.mpc.protocols.audit.bits import MAC_MASK, AuthenticatedBits
from securemedian.mpc.protocols.audit.comparing import (
    SignProver,
    around,
    carries,
    centring,
    partners_of,
)
from securemedian.mpc.protocols.audit.equality import Compared, Equality
from securemedian.mpc.protocols.audit.macs import Prover, Verifier, packed, unpacked
from securemedian.mpc.protocols.channel import Channel, local_pair
from securemedian.mpc.protocols.group import to_group
from securemedian.mpc.protocols.party import Party, Session
from securemedian.mpc.protocols.protocol import ProtocolParams
from tests.parties import deterministic_entropy, run_both
from tests.rates import check_rate
from tests.test_ands import shared_bits
from tests.test_ot import Lying
from tests.test_privacy import recorders
from tests.uniformity import check_uniform

RNG = np.random.default_rng(23)


@cache
def sessions() -> tuple[Session, Session]:
    """Return an audit's session, for all tests: each takes lanes of its own.

    Its Delta is the same each time, and not 0 in its first four bits.
    """
    pair, given = local_pair(20), (bytes(16), ProtocolParams())
    both = run_both(
        lambda j: Session.establish(j, pair[j], *given, deterministic_entropy(j), audit=True)
    )
    assert both[1].delta[:4].any()
    return both


@dataclass
class End:
    party: Party
    prover: Prover
    verifier: Verifier
    ands: AndMaker

    def __init__(self, session: Session, channel: Channel, mac_bits: int = 48) -> None:
        lane = len(session.lanes)
        self.party = session.party(lane, channel)
        self.prover = Prover(session, lane, channel, mac_bits)
        self.verifier = Verifier(session, lane, channel, mac_bits)
        self.ands = AndMaker(self.party)

    @property
    def signs(self) -> SignProver:
        return SignProver(self.party, self.prover, self.verifier, self.ands)


def ends(channels: Sequence[Channel], mac_bits: int = 48) -> list[End]:
    return [End(*each, mac_bits) for each in zip(sessions(), channels, strict=True)]


def split(values: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    one = ring.reduce(RNG.integers(0, 1 << bits, values.shape), bits)
    return one, ring.reduce(values - one.astype(np.int64), bits)


def prove(
    values: np.ndarray,
    bits: int,
    negative: np.ndarray,
    public: np.ndarray | None = None,
) -> None:
    """Prove signs of shared values of `bits` bits plus public ones, with all that is real."""
    both, shares = ends(local_pair(20)), split(values, bits)
    added = np.zeros_like(shares[0]) if public is None else public

    def run(j: int) -> None:
        end = both[j]
        triples = end.ands.triples(carries(bits) * values.size, 2)
        _, tags = end.prover.commit(shares[j], bits)
        keys = end.verifier.accept(values.size, bits)
        end.signs.prove(RingShare(shares[j]), tags, keys, added, bits, negative, triples)
        assert not len(triples)

    run_both(run)


@pytest.mark.parametrize("bits", range(2, 17))
def test_signs_are_proved(bits: int) -> None:
    """Prove those of all numbers, or of some and the extremes, plus public ones."""
    values = np.arange(1 << bits) if bits < 8 else RNG.integers(0, 1 << bits, 300)
    values[:4] = 0, 1, (1 << bits - 1) - 1, 1 << bits - 1
    public = ring.reduce(RNG.integers(0, 1 << bits, values.size), bits)
    negative = (ring.reduce(values + public, bits) >> (bits - 1)).astype(np.uint8)
    prove(values, bits, negative, public)
    wrong = negative.copy()
    wrong[RNG.integers(values.size)] ^= 1
    with pytest.raises(PeerDeviated, match="published"):
        prove(values, bits, wrong, public)


def claims_received() -> None:
    """Raise Leak unless what is opened of partners says nothing of the other party's bits."""
    pair, shares = recorders(), split(np.zeros(4096, np.int64), 2)
    both, none = ends(pair), np.zeros(4096, np.uint8)

    def run(j: int) -> None:
        end = both[j]
        _, tags = end.prover.commit(shares[j], 2)
        keys = end.verifier.accept(4096, 2)
        triples = end.ands.triples(4096, 2)
        end.signs.prove(RingShare(shares[j]), tags, keys, none, 2, none, triples)

    run_both(run)
    each, length = partners_of(4096)
    received = ring.unpack(pair[0].of("audit.claims"), 1, each * length)
    opened = received.reshape(each, length)[:, length - 4096 :]
    check_uniform({f"h{p}": row for p, row in enumerate(opened)}, {"bit": shares[1] & 1})


def test_what_is_opened_is_uniform() -> None:
    claims_received()


def test_counts_about_a_bucket() -> None:
    """H(M) and H(M-1) of a plain histogram, less the rank, have the signs of a median."""
    for buckets, slots in ((3, 4), (5, 8), (16, 16), (32, 32)):
        clients, dim = 9, 3000
        chosen = RNG.integers(0, buckets, (clients, dim))
        # all at one end, or at the other
        chosen[:, 0], chosen[:, 1] = 0, buckets - 1
        entries = (chosen[None] == np.arange(slots - 1)[:, None, None]).sum(axis=1)
        found = np.sort(chosen, axis=0)[4].astype(np.uint16)
        for dtype in (np.uint8, np.uint16):
            public = centring(found, buckets, clients, 5, 5)
            upper_and_lower = around(entries.astype(dtype), found, buckets)
            counts = ring.signed(upper_and_lower + public, 5)
            below = (chosen < found).sum(axis=0)
            upto = (chosen <= found).sum(axis=0)
            assert (counts == np.concatenate((upto, below)) - 5).all()
            assert (counts[:dim] >= 0).all() and (counts[dim:] < 0).all()


# Lies

# Changes party 0's claims of its partners of d_0, in place: it returns what party 0 commits to
# instead, and a function that changes the tags of that.
Lie = Callable[[np.ndarray], tuple[np.ndarray, Callable[[np.ndarray], None]]]


class Cheat:
    """A prover that lies about its partners of d_0, which come after q_1 of Z_4."""

    def __init__(self, prover: Prover, lie: Lie) -> None:
        self._prover, self._lie, self._calls = prover, lie, 0

    def commit(self, claims: np.ndarray, bits: int, slot: int) -> tuple[int, np.ndarray]:
        self._calls += 1
        if self._calls != 2:
            return self._prover.commit(claims, bits, slot)
        values, change = self._lie(claims)
        at, tags = self._prover.commit(values, bits, slot)
        rows = unpacked(tags, bits, self._prover.mac_bits)
        change(rows)
        return at, packed(rows, slot)


def honestly(claims: np.ndarray) -> Any:
    return claims, lambda rows: None


def few(monkeypatch: pytest.MonkeyPatch, partners: int) -> None:
    """Let numbers have few partners, and one guard or more."""
    monkeypatch.setattr(comparing, "GUARDS", 1)
    found = comparing.partners_of
    monkeypatch.setattr(comparing, "partners_of", lambda count: (partners, found(count)[1]))


def rate(
    monkeypatch: pytest.MonkeyPatch,
    claimed: np.ndarray,
    lie: Lie,
    trials: int = 1000,
    partners: int = 1,
    mac_bits: int = 4,
) -> int:
    """Return how often party 0 passes with bits of other numbers than its own, which are 2 in Z_4.

    The steps after the proof of bits are left out.
    """
    few(monkeypatch, partners)
    monkeypatch.setattr(SignProver, "_signs", lambda *_: None)
    monkeypatch.setattr(SignProver, "_prove_sign", lambda *_: None)
    both, held = ends(local_pair(20), mac_bits), np.full(claimed.size, 2, np.uint8)

    def run(j: int) -> int:
        passed, end = 0, both[j]
        none: Any = np.zeros(claimed.size, np.uint8)
        for _ in range(trials):
            _, tags = end.prover.commit(held, 2)
            keys = end.verifier.accept(held.size, 2)
            signs, shares = end.signs, claimed if j == 0 else held
            if j == 0:
                signs._prover = Cheat(end.prover, lie)  # type: ignore[assignment]
            try:
                signs.prove(RingShare(shares), tags, keys, none, 2, none, none)
                passed += 1
            except PeerDeviated as error:
                assert "the bits of shares" in str(error)
        return passed

    one, two = run_both(run)
    assert one == two
    return int(one)


def twos(count: int, partners: int = 1) -> Lie:
    """Return the lie that the first `count` partners of each row are 2, and claimed to be 0."""

    def lie(claims: np.ndarray) -> Any:
        claims.reshape(partners, -1)[:, :count] = 0
        values = claims.copy()
        values.reshape(partners, -1)[:, :count] = 2
        return values, lambda rows: None

    return lie


@pytest.mark.parametrize(("items", "partners", "wrong"), [(6, 1, 2), (4, 2, 1)])
def test_what_is_no_bit_passes_as_often_as_predicted(
    monkeypatch: pytest.MonkeyPatch,
    items: int,
    partners: int,
    wrong: int,
) -> None:
    """Party 0 claims the bits of 0 for 2: d_0 = 2 - 0 is 2, as its wrong partners are."""
    claimed = np.full(items, 2, np.uint8)
    claimed[:wrong] = 0
    passed = rate(monkeypatch, claimed, twos(wrong, partners), 1000, partners)
    check_rate(passed, 1000, (items + 1.0) ** -partners)


def test_wrong_partners_are_at_the_right_places_by_one_turn_at_most() -> None:
    """Try a row as long as a prime; in one of six, every second place is right by three turns."""

    def most(length: int) -> int:
        """Return how many turns take one set of places, without the first, to another at most."""
        sets = [
            frozenset(chosen)
            for size in range(1, length)
            for chosen in combinations(range(1, length), size)
        ]
        turned = Counter(
            (places, frozenset((place + turn) % length for place in places))
            for places in sets
            for turn in range(length)
        )
        return max(turned.values())

    assert [most(length) for length in (2, 3, 5, 7, 11)] == [1] * 5
    assert most(6) == 3
    for count in (1, 2, 3, 64, 4096, 65536, 1 << 20):
        each, length = partners_of(count)
        assert length >= count + 64 and all(length % d for d in range(2, math.isqrt(length) + 1))
        assert length**each >= 1 << 40 > length ** (each - 1)


def test_what_is_no_bit_is_found_without_wrong_partners(monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = np.full(6, 2, np.uint8)
    assert rate(monkeypatch, claimed, honestly, 20) == 20
    claimed[3] = 0
    assert rate(monkeypatch, claimed, honestly, 20) == 0


def test_guards_find_that_all_are_no_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    claimed = np.zeros(6, np.uint8)
    check_rate(rate(monkeypatch, claimed, twos(6)), 1000, 1 / 7)
    assert rate(monkeypatch, claimed, twos(7), 20) == 0


def test_a_wrong_opening_passes_if_delta_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Party 0 commits to one partner and claims the other bit, under four bits of Delta."""

    def lie(claims: np.ndarray) -> Any:
        values = claims.copy()
        values[0] ^= 1
        # w = v + Delta x = v + Delta (x - claim) + Delta claim
        guess = RNG.integers(0, 2, 4) * (int(values[0]) - int(claims[0]))

        def change(rows: np.ndarray) -> None:
            rows[:, 0] += guess.astype(np.uint8)

        return values, change

    claimed = np.full(6, 2, np.uint8)
    check_rate(rate(monkeypatch, claimed, lie), 1000, 2**-4)


def test_a_false_sign_passes_if_delta_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is published after another rank, another table or a false opening; E = 4."""
    monkeypatch.setattr(comparing, "MAC_MASK", np.uint64(15))
    both, trials = ends(local_pair(20)), 1000
    dealt = [shared_bits([end.ands for end in both], np.zeros(1, np.uint8)) for _ in range(trials)]

    def run(j: int) -> int:
        passed, signs = 0, both[j].signs
        for halves in dealt:
            sign = halves[j]
            if j == 0:
                # the MAC of its other share, and what it expects of the peer's right one
                macs = sign.macs ^ RNG.integers(0, 16, 1, np.uint64)
                sign = AuthenticatedBits(sign.bits, macs, sign.keys ^ both[0].ands.delta)
            try:
                signs._prove_sign(sign, np.ones(1, np.uint8))
                passed += 1
            except PeerDeviated as error:
                assert "the published buckets" in str(error)
        return passed

    one, two = run_both(run)
    assert one == two
    check_rate(one, trials, 2**-4)


def test_what_is_no_bit_would_change_a_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 + 0 is negative in Z_4. With bits of 0 for 2 that pass, it is proved not to be.

    Rows are turned by one, so that the wrong partner, the first, comes behind the guard.
    """
    few(monkeypatch, 1)
    monkeypatch.setattr(comparing, "rotations", lambda seed, size, count: [1] * size)
    both, none = ends(local_pair(20)), np.zeros(1, np.uint8)

    def run(j: int) -> None:
        end, held = both[j], np.full(1, 2 * (j == 0), np.uint8)
        triples = end.ands.triples(1, 2)
        _, tags = end.prover.commit(held, 2)
        keys = end.verifier.accept(1, 2)
        signs = end.signs
        if j == 0:
            signs._prover = Cheat(end.prover, twos(1))  # type: ignore[assignment]
        signs.prove(RingShare(none), tags, keys, none, 2, none, triples)

    run_both(run)


@pytest.mark.parametrize(
    ("label", "place", "said"),
    [
        ("mac.values", 5, "the bits of shares"),
        # a guard, and h
        ("audit.claims", 0, "the bits of shares"),
        ("audit.claims", 9, "the bits of shares"),
        ("and.openings", 0, "the openings of ANDs"),
    ],
)
def test_a_message_that_is_changed_is_found(label: str, place: int, said: str) -> None:
    """Change one random message of a kind, after the MACs of shares and the triples are made."""
    pair, armed, wanted = local_pair(20), [False], int(RNG.integers(3))
    seen = [0]

    def change(sent: str, array: np.ndarray) -> None:
        if armed[0] and sent == label:
            if seen[0] == wanted:
                array.reshape(-1).view(np.uint8)[place] ^= 1
            seen[0] += 1

    both = ends((Lying(pair[0], change), pair[1]))
    values = np.arange(16)
    shares = split(values, 4)

    def run(j: int) -> str:
        end = both[j]
        triples = end.ands.triples(3 * 16, 2)
        _, tags = end.prover.commit(shares[j], 4)
        keys = end.verifier.accept(16, 4)
        armed[0] = armed[0] or j == 0
        with pytest.raises(PeerDeviated) as error:
            end.signs.prove(
                RingShare(shares[j]),
                tags,
                keys,
                np.zeros(16, np.uint8),
                4,
                (values >> 3).astype(np.uint8),
                triples,
            )
        return str(error.value)

    for told in run_both(run):
        assert said in told
    assert seen[0] > wanted


def test_what_is_said_of_wrong_buckets_tells_no_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1 has claimed signs that it does not know, and tries all of them against what S0 has sent.

    It even knows all of S0's Delta. In 1.0.0 S0 opened a digest, which one of eight guesses made.
    """
    bits, count, unknown = 4, 64, [3, 17, 40]
    values = RNG.integers(0, 1 << bits, count)
    negative = (values >> (bits - 1)).astype(np.uint8)
    claimed = negative.copy()
    claimed[unknown] ^= np.array([1, 0, 1], np.uint8)
    seeds, collected = list[bytes](), list[list[np.ndarray]]()
    true_init, true_settle = Compared.__init__, Equality.settle

    def init(compared: Compared, seed: bytes) -> None:
        seeds.append(seed)
        true_init(compared, seed)

    def settle(equality: Equality, what: str) -> None:
        if what == "the published buckets" and equality._number == 1:
            collected.append([np.array(each) for group in equality._collected for each in group])
        true_settle(equality, what)

    monkeypatch.setattr(Compared, "__init__", init)
    monkeypatch.setattr(Equality, "settle", settle)
    pair = recorders()
    both, shares = ends(pair), split(values, bits)

    def run(number: int) -> bool:
        end = both[number]
        triples = end.ands.triples(carries(bits) * count, 2)
        _, tags = end.prover.commit(shares[number], bits)
        keys, public = end.verifier.accept(count, bits), np.zeros_like(shares[0])
        given = RingShare(shares[number]), tags, keys, public, bits, claimed, triples
        try:
            end.signs.prove(*given)
        except PeerDeviated:
            return True
        return False

    assert run_both(run) == (True, True)
    heard = b"".join(array.tobytes() for _, array in pair[1].received[-20:])
    deltas = [np.uint64(end.ands.delta) & MAC_MASK for end in both]
    ((of_zero, of_one),) = collected
    found = []
    for guess in range(1 << len(unknown)):
        mask = np.zeros(count, np.uint64)
        mask[unknown] = [(1 << 64) - 1 if guess >> i & 1 else 0 for i in range(len(unknown))]
        compared = Compared(seeds[-1])
        for array in (of_zero ^ mask & deltas[1], of_one ^ mask & deltas[0]):
            compared.update(array.view(np.uint8))
        tried = compared.digest()
        found.append(tried)
        assert tried not in heard and to_group(digest("audit digest", tried)) not in heard
    assert len(set(found)) == len(found)
