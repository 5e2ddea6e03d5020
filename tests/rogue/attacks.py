"""The gain of a server that does not follow the protocol, and whether anybody notices.

Every deviation of `tests.rogue` runs in a real daemon, against every method it applies to, in
a round of clients with uniform values that this process plays. Its spoils are compared with
the truth. Of M equally likely values a guess that is right with the chance p tells
log2 M - h(p) - (1 - p) log2(M - 1) bits (Fano).
"""

import math
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.client import Client
from securemedian.clients.upload import RangeWarning, Round
from securemedian.common.policy import BOUNDED, Security
from securemedian.common.status import RoundStatus
from securemedian.coordinator.coordinator import Coordinator
from securemedian.coordinator.rounds import Hooks, Rounds
from securemedian.laboratory.servers import SERVERS, client_config
from securemedian.mpc.errors import RoundClosed, RoundFailed, SecureMedianError
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.audit import binding
from securemedian.mpc.protocols.dealing import Dealing, OwnDealing
from securemedian.mpc.protocols.prg import Entropy
from securemedian.mpc.protocols.wire import Message
from securemedian.mpc.rounds.methods.base import Method, Published
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.krum import Krum
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.methods.zoom import Zoom
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.uniform import ConstantRange
from tests.daemons import Pair, in_background
from tests.parties import vectors_of
from tests.rogue.deviations import (
    ADDED,
    HELPER,
    MODEL,
    OF_BISECTIONS,
    OF_S0,
    STEERED_BITS,
    VICTIM,
    about,
)
from tests.rogue.serve import serving

Array = NDArray[Any]

# coordinates of a round
DIM = 1024
# a median of buckets takes log2 BUCKETS answers; other values are 1 + j / 2^VALUE_BITS
BUCKETS, VALUE_BITS = 16, 10
RANGE = 0.5
# the buckets of a client that stands out, and in zoom the bits of its words, from 1/2 on
LOW, LOW_BITS = 4, 22
# of a value from 1 on, which zoom reads as float32
FLOAT_BITS = 23
# that are compared where every comparison goes up
THRESHOLDS = [7, 11, 13, 14]
# for a round, whose servers wait for each other no longer than these settings say
LIMIT_S, POLL_S = 180.0, 0.1
RUNS = 3
SETTINGS = {
    "retry_wait_s": 0.2,
    "channel_timeout_s": 30,
    "round_limit_s": 120,
    "max_attempts": RUNS,
}
# for servers that are protected: the one that helps, and three among whom the victim is hidden
GUARDED = {"min_clients": 4}
MALICIOUS, ZOOM = Bucketed(security="malicious"), Zoom(security="malicious")


@dataclass(frozen=True)
class Seen:
    """A round, as seen by those who know everything."""

    # per client in the order of uploads: values and, of buckets, their numbers (n, d)
    values: Array
    buckets: Array
    params: RoundParams
    status: RoundStatus
    # the result as values, NaN if there is none, and of buckets their numbers, or -1
    result: Array
    result_buckets: Array
    # positions of kept vectors (n, d), where clients deal
    kept: Array
    spoils: dict[str, Array]
    # the bits of the victim's value
    there: float

    @property
    def counts(self) -> Array:
        """Return H(y) (b-1, d)."""
        return np.asarray((self.buckets[None] <= np.arange(BUCKETS - 1)[:, None, None]).sum(axis=1))

    @property
    def uploaded(self) -> int:
        """Return how many clients have sent more than a dealing, to either server."""
        return sum(where != "none" for where in self.status.clients.values())

    @property
    def rank(self) -> int:
        return ring.median_rank(len(self.values))

    def value(self, right: Array) -> float:
        """Return the bits that a guess of a value tells, which is right in these coordinates."""
        return told(float(np.mean(right)), self.there)

    @property
    def found(self) -> Array:
        """Return the buckets that were opened, also if they were not published, or -1."""
        return self.spoils.get("found", self.result_buckets)


def told(right: float, bits: float) -> float:
    """Return the bits that a guess of one of 2^bits tells, which is right with this chance.

    One that is right more seldom than a blind one counts as nothing.
    """
    if not right > 2**-bits:
        return 0.0
    wrong = 1 - right
    doubt = -sum(p * math.log2(p) for p in (right, wrong) if p > 0)
    return max(0.0, bits - doubt - (wrong * math.log2(2**bits - 1) if wrong else 0.0))


def entropy(columns: Array) -> float:
    """Return the entropy of columns (k, d), in bits."""
    counts = Counter(map(bytes, np.ascontiguousarray(columns.T.astype(np.int16))))
    return -sum(
        count / columns.shape[1] * math.log2(count / columns.shape[1]) for count in counts.values()
    )


# The bits per coordinate that the rogue has learnt about one client, and about the sum

Learnt = Callable[[Seen], tuple[float, float]]


def _bucket_of(seen: Seen, reached: Callable[[Array], Array]) -> Array:
    """Return what `bisect` finds where a threshold is reached as a function of its count says."""
    found = np.zeros(seen.params.dim, np.int64)
    for step in reversed(range(int(math.log2(BUCKETS)))):
        at = found + (1 << step) - 1
        found += (~reached(seen.counts[at, np.arange(found.size)])) << step
    return found


def _minimum(seen: Seen) -> tuple[float, float]:
    return 0.0, seen.value(seen.found == seen.buckets.min(axis=0))


def _lowest(seen: Seen) -> tuple[float, float]:
    """Tell the victim's bucket, of the LOW ones, with which it stands out."""
    return told(float(np.mean(seen.found == seen.buckets[VICTIM])), math.log2(LOW)), 0.0


def _unchanged(seen: Seen) -> tuple[float, float]:
    """Tell of each client whether its update changes nothing: one bit."""
    truth = (seen.values == MODEL).all(axis=1)
    read = seen.spoils.get("unchanged", truth[:0])
    return float(np.array_equal(read, truth)) / seen.params.dim, 0.0


def _other_table(seen: Seen) -> tuple[float, float]:
    bits = seen.params.form.ring_bits
    honest = _bucket_of(seen, lambda count: count >= seen.rank)
    other = _bucket_of(
        seen,
        lambda count: (count >= seen.rank) ^ ((count - seen.rank) % (1 << bits - 1) == 1),
    )
    # S1 sends the tables of the second half
    half = (seen.params.dim + 127) // 128 * 64
    expected = np.concatenate([honest[:half], other[half:]])
    return 0.0, seen.value(seen.found == expected)


def _true_bits(seen: Seen) -> tuple[float, float]:
    truth = (seen.counts[THRESHOLDS] >= seen.rank).astype(np.uint8)
    read = seen.spoils.get("reached", truth[:0])[:, : seen.params.dim]
    # of those steps that it has come to
    return 0.0, entropy(truth[: len(read)]) * float((read == truth[: len(read)]).all())


def _three_ranks(seen: Seen) -> tuple[float, float]:
    dim, found = seen.params.dim, 0.0
    for name, expected in (
        ("least", seen.buckets.min(axis=0)),
        ("most", seen.buckets.max(axis=0)),
    ):
        if name in seen.spoils:
            found += seen.value(seen.spoils[name][:dim] == expected)
    median = np.sort(seen.buckets, axis=0)[seen.rank - 1]
    return 0.0, found + seen.value(seen.result_buckets == median)


def _median(seen: Seen) -> Array:
    return np.asarray(np.sort(seen.buckets, axis=0)[seen.rank - 1])


def _half_right(seen: Seen) -> tuple[float, float]:
    return 0.0, seen.value(seen.result_buckets == _median(seen))


def _value(seen: Seen) -> tuple[float, float]:
    return seen.value(np.isclose(seen.result, seen.values[VICTIM], atol=2.0**-VALUE_BITS / 4)), 0.0


def _word(seen: Seen) -> tuple[float, float]:
    return seen.value(seen.result == seen.values[VICTIM]), 0.0


def _inside(seen: Seen) -> tuple[float, float]:
    """Tell the victim's word where the result is not at an end of the interval steered to."""
    most = MODEL + (2**STEERED_BITS - 1) / 2.0**FLOAT_BITS
    inside = (seen.result > MODEL) & (seen.result < most)
    right = float((seen.result == seen.values[VICTIM])[inside].mean()) if inside.any() else 0.0
    return float(inside.mean()) * told(right, seen.there), 0.0


def _with_median(seen: Seen) -> tuple[float, float]:
    ranked = np.sort(seen.values, axis=0)[seen.rank - 1]
    expected = np.where(ranked == seen.values[VICTIM], 0, ranked + seen.values[VICTIM])
    return 0.0, seen.value(np.isclose(seen.result, expected, atol=2.0**-VALUE_BITS / 4))


def _without_helper(seen: Seen) -> tuple[float, float]:
    """Read the victim's value from the result on it and the one that helps."""
    if seen.params.form.dealing:
        return seen.value(seen.result_buckets == seen.buckets[VICTIM]), 0.0
    found = seen.result
    if seen.params.method.kind == "mean" or seen.params.method.name == "trimmed-mean":
        found = 2 * found - seen.values[HELPER]
    right = np.isclose(found, seen.values[VICTIM], atol=2.0**-VALUE_BITS / 4)
    return seen.value(right), 0.0


def _positions(seen: Seen) -> tuple[float, float]:
    read = seen.spoils.get("positions", seen.kept[:0, :0])
    truth = {tuple(row[: read.shape[1]].tolist()) for row in seen.kept}
    # without rotations they say nothing
    right = min(sum(tuple(row.tolist()) in truth for row in read), seen.uploaded)
    # of one client, on average over those that were checked before somebody noticed
    bits = right / max(1, len(read)) * read.shape[1] * math.log2(BUCKETS) / seen.params.dim
    return bits, 0.0


def _buckets(seen: Seen) -> tuple[float, float]:
    read = seen.spoils.get("buckets", seen.buckets[:, :0])
    share, right = read.shape[1] / seen.params.dim, 0.0
    if share:
        right = float((read == seen.buckets[:, : read.shape[1]]).mean())
    return share * told(right, 4.0), seen.value(seen.result_buckets == _median(seen))


def _beyond(seen: Seen) -> tuple[float, float]:
    """Tell what the authenticated bisect opened beside the digits of the median."""
    none = np.empty((0, seen.params.dim), np.uint8)
    signs = np.concatenate([seen.spoils.get(name, none) for name in ("signs", "rushed")])
    steps = width = math.ceil(math.log2(BUCKETS))
    ranked, beyond, method = seen.buckets, 0.0, seen.params.method
    if isinstance(method, Zoom):
        width, ranked = 32, np.array([method.words(row) for row in seen.values], np.int64)
    median = np.sort(ranked, axis=0)[seen.rank - 1]
    # level by level: no two coordinates have the same digits of all levels
    for at in range(0, width, steps):
        true = np.array([median >> width - 1 - at - step & 1 for step in range(steps)])
        opened = signs[at : at + steps] if width > steps else signs
        beyond += entropy(np.concatenate([true, opened])) - entropy(true)
    return 0.0, beyond


def _nothing(seen: Seen) -> tuple[float, float]:
    return 0.0, 0.0


@dataclass(frozen=True)
class Attack:
    """A deviation against a method, and how to measure what it has told."""

    deviation: str
    method: Method
    learnt: Learnt
    # the values of the client that helps, which are otherwise drawn as those of all
    helper: float | None = None
    clients: int = 5
    # whether the victim stands out: its buckets are below those of all others
    outstanding: bool = False
    # S1 adds this to the counts of its share, and a client that helps answers for it
    added: int = 0
    # in zoom: the least of the victim's values, and their bits
    least: float = 1.0
    bits: int = FLOAT_BITS
    # clients on the servers' lists: with more than take part, counts have a bit to spare
    listed: int = 0


def attacks() -> list[Attack]:
    """Return all rows of the table."""
    buckets, pairwise, radix, mean = Bucketed(), Pairwise(), Radix(), Mean()
    trimmed, krum = TrimmedMean(trim=0.4), Krum(faulty=1, chosen=1)
    of_buckets: list[tuple[str, Learnt]] = [
        ("rank", _minimum),
        ("tables", _other_table),
        ("open-bits", _true_bits),
        ("rerun", _three_ranks),
        ("corrections", _half_right),
        ("sums", _half_right),
        ("turns", _positions),
        ("echo", _buckets),
    ]
    of_values: list[tuple[str, Method, Learnt]] = [
        ("flags", radix, _value),
        ("top-bits", radix, _value),
        ("shift", pairwise, _value),
        ("shift", trimmed, _value),
        ("mux", pairwise, _with_median),
        ("distances", krum, _value),
    ]
    return [
        # four, with whom the minimum and the maximum do not wrap in the ring of counts
        *(Attack(name, buckets, learnt, clients=4) for name, learnt in of_buckets),
        Attack("outstanding", buckets, _lowest, clients=4, outstanding=True),
        # one that makes no change, of which noise would say nothing
        Attack("lengths", Mean(norm_bound=16.0), _unchanged, MODEL),
        *(Attack(name, method, learnt) for name, method, learnt in of_values),
        *(
            # the larger of two is not their lower median
            Attack(name, method, _without_helper, MODEL + RANGE)
            for name, method in (
                ("digests", buckets),
                ("verdicts", buckets),
                ("verdicts", mean),
                ("range", Mean(norm_bound=16.0)),
                ("range", pairwise),
                ("range", trimmed),
            )
        ),
        *(
            Attack(name, method, _nothing)
            for name in ("models", "result")
            for method in (buckets, mean)
        ),
        *(Attack(name, MALICIOUS, _beyond) for name in OF_BISECTIONS),
        Attack("malicious-helper", MALICIOUS, _beyond, MODEL + RANGE, added=ADDED),
        Attack("outstanding", Zoom(), _word, clients=4, least=0.5, bits=LOW_BITS),
        Attack("steered", Zoom(), _inside, None, 4, least=MODEL, bits=STEERED_BITS, listed=8),
        Attack("malicious-helper", ZOOM, _beyond, MODEL + RANGE, added=ADDED),
    ]


# Rounds


class _Player(Client):
    """An honest client, which remembers where its kept vectors have their 1."""

    kept: Array | None = None
    # one that helps tells S0 the fold of what S1 has `added` to its share of the `shape`, too
    added, shape, coin = 0, Dealing(1, 2, 1), b""

    def ask(
        self, op: str, fields: Any = None, arrays: Any = None, *, party: int = 0, **given: Any
    ) -> Message:
        if op == "folded" and party == 0 and self.added:
            places = binding.places(self.coin, 0, self.shape.dim)
            counts = np.array([np.bincount(row, minlength=binding.BUCKETS) for row in places])
            added = np.tile(counts.reshape(-1) * self.added, self.shape.slots - 1)
            bits = self.shape.bits
            told = ring.unpack(arrays["fold"], bits, added.size) + added.astype(ring.dtype(bits))
            arrays = {"fold": ring.pack(ring.reduce(told, bits), bits)}
        answer = super().ask(op, fields, arrays, party=party, **given)
        self.coin = answer.fields["coin"] if op == "bound" else self.coin
        return answer

    def deal(self, shape: Dealing, current: Round, entropy: Entropy) -> OwnDealing:
        dealt = super().deal(shape, current, entropy)
        part = shape.parts[0]
        first, stop = part.words_of(0, part.kept)
        seeded, words = (
            shape.entries(vectors_of(shape, half.words(0, first, stop), part.kept, number))
            for number, half in ((0, dealt.seeded), (1, dealt.words))
        )
        self.kept = np.asarray(ring.reduce(seeded + words, shape.bits)).argmax(axis=0)
        return dealt


def run(
    attack: Attack, dim: int, seed: int, security: Security = Security.SEMI_HONEST
) -> dict[str, Any]:
    """Return the row of one attack, which runs in a round of its own, with this security."""
    if security is Security.MALICIOUS:
        true = attack.learnt
        method = ZOOM if attack.method.name == ZOOM.name else MALICIOUS
        attack = replace(
            attack, method=method, learnt=lambda seen: (true(seen)[0], _beyond(seen)[1])
        )
    if security is Security.MALICIOUS or attack.method.name == ZOOM.name:
        # so that a bit of few coordinates shows
        dim = max(dim, 4 * DIM)
    settings: dict[str, Any] = SETTINGS | {"security": security}
    settings |= {} if security is Security.SEMI_HONEST else GUARDED
    with tempfile.TemporaryDirectory(prefix="securemedian-rogue-") as made:
        pair = Pair(Path(made) / "keys", max(attack.clients, attack.listed), settings)
        for server in SERVERS:
            pair.configure(server, "[protocol]\nlanes = 1\n")
        with serving(pair, "s0" if attack.deviation in OF_S0 else "s1", attack.deviation):
            seen, noticed = _round(attack, pair, dim, seed, security)
    about_one, about_sum = attack.learnt(seen)
    return {
        "attack": attack.deviation,
        "about": about(attack.deviation),
        "method": attack.method.name,
        "security": str(security),
        "noticed": bool(noticed),
        "when": noticed or "never",
        "there_bits": seen.there,
        "client_bits": about_one,
        "sum_bits": about_sum,
        "learnt_bits": about_one + about_sum,
        "bound_bits": _bound(seen),
    }


def _bound(seen: Seen) -> float | None:
    """Return the most that one server that deviates may learn per coordinate, by the claim.

    Of `bucketed` that is q = (1 + R) ceil(log2 b), a bit per opened comparison of R reruns. Of
    `zoom` it is ceil(log2 W) per level, and per rerun of one. Of `mean` it is the sum, and the
    verdict on each client in every check. Of other methods there is none.
    """
    name, clients = seen.params.method.name, len(seen.values)
    if name == "bucketed":
        return RUNS * math.ceil(math.log2(BUCKETS))
    if isinstance(method := seen.params.method, Zoom):
        return method.slot_bits * (method.levels + RUNS - 1)
    if name == "mean":
        return VALUE_BITS + math.log2(clients) + RUNS * clients / seen.params.dim
    return None


def _round(attack: Attack, pair: Pair, dim: int, seed: int, security: Security) -> tuple[Seen, str]:
    """Run one round, and return what it was and who noticed something first, if anybody did."""
    notes, folder, names = list[str](), pair.folder, pair.names[: attack.clients]
    most = len(pair.names)
    params = RoundParams(attack.method, dim=dim, max_clients=most, deadline_s=LIMIT_S)
    with ExitStack() as stack:
        coordinator = stack.enter_context(Coordinator.from_config(pair.toml("coordinator")))
        configs = [client_config(folder, name, POLL_S, security) for name in names]
        if params.form.votes > 1:
            # a place for their votes
            configs = [replace(one, state_dir=str(folder / one.name)) for one in configs]
        players = [stack.enter_context(_Player(config)) for config in configs]
        # the order of uploads
        players.sort(key=lambda player: player.keys.public)
        round_id = coordinator.open_round(
            params,
            np.full(dim, MODEL, np.float32),
            ConstantRange(RANGE),
            participants=names if attack.listed else None,
        )
        if params.form.dealing:
            players[HELPER].added, players[HELPER].shape = attack.added, params.form.dealing
        published = coordinator.model(round_id)
        values = _values(params, published, len(names), seed, attack)
        for number, (player, own) in enumerate(zip(players, values, strict=True)):
            try:
                with warnings.catch_warnings():
                    # the one that helps has nothing but large values
                    warnings.simplefilter("ignore", RangeWarning)
                    player.submit(own, round_id)
            except (RoundClosed, RoundFailed):
                # the servers say below why
                break
            except SecureMedianError as error:
                notes.append(f"{_who(number)} when it submits: {type(error).__name__}")
                if number == VICTIM:
                    # nobody waits for the deadline
                    with suppress(SecureMedianError):
                        coordinator.abort_round(round_id, "the victim has noticed something")
                    break
        attending = [
            in_background(partial(_attend, one, round_id), 2 * LIMIT_S)
            for one in players
            if params.form.audited or params.form.votes > 1
        ]
        status = _ended(pair, coordinator, round_id)
        # a player's connections are for one thread at a time
        for join in attending:
            join()
        result = np.full(dim, np.nan, np.float32)
        for number, player in enumerate(players):
            try:
                result = np.asarray(player.result(round_id))
            except RoundFailed:
                notes.append(f"the servers: {status.reason}")
            except SecureMedianError as error:
                notes.append(f"{_who(number)} from the result: {type(error).__name__}")
        if status.left_out:
            notes.append("those who are left out, unjustly as they know")
        seen = _seen(attack, params, published, values, status, result, players, folder)
        return seen, (*notes, "")[0]


def _seen(
    attack: Attack,
    params: RoundParams,
    published: Published,
    values: Array,
    status: RoundStatus,
    result: Array,
    players: Sequence["_Player"],
    folder: Path,
) -> Seen:
    spoils, dim = folder / "spoils.npz", params.dim
    there = math.log2(BUCKETS) if params.form.dealing else VALUE_BITS
    there = attack.bits if params.form.votes > 1 else there
    buckets, found = np.empty((0, dim), np.int64), np.full(dim, -1)
    if params.form.buckets:
        buckets = published.bucketize(values, BUCKETS).astype(np.int64)
        centres = published.quantize(np.tile(np.arange(BUCKETS)[:, None], dim), BUCKETS)
        if np.isfinite(result).all():
            found = np.abs(centres - result).argmin(axis=0)
    return Seen(
        values,
        buckets,
        params,
        status,
        result,
        found,
        np.array([player.kept for player in players if player.kept is not None]),
        dict(np.load(spoils, allow_pickle=False)) if spoils.exists() else {},
        there,
    )


def _values(
    params: RoundParams, published: Published, clients: int, seed: int, attack: Attack
) -> Array:
    """Return the clients' values (n, d), all equally likely."""
    rng = np.random.default_rng(seed)
    if params.form.buckets:
        drawn = rng.integers(LOW if attack.outstanding else 0, BUCKETS, (clients, params.dim))
        if attack.outstanding:
            drawn[VICTIM] = rng.integers(0, LOW, params.dim)
        values = published.quantize(drawn, BUCKETS)
    elif params.form.votes > 1:
        values = 1 + rng.integers(0, 1 << FLOAT_BITS, (clients, params.dim)) / 2.0**FLOAT_BITS
        secret = rng.integers(0, 1 << attack.bits, params.dim)
        values[VICTIM] = attack.least + secret / 2.0**FLOAT_BITS
    else:
        values = 1 + rng.integers(0, 1 << VALUE_BITS, (clients, params.dim)) / 2.0**VALUE_BITS
    if attack.helper is not None:
        values[HELPER] = attack.helper
    return np.asarray(values, np.float32)


def _attend(player: Client, round_id: str) -> None:
    """Answer until a round has ended, whose end is asked for later."""
    with suppress(SecureMedianError):
        player.attend(round_id, LIMIT_S)


def _ended(pair: Pair, coordinator: Coordinator, round_id: str) -> RoundStatus:
    """Wait until a round has ended, and return its last status.

    Raises RoundFailed if that takes too long.
    """
    deadline = time.monotonic() + LIMIT_S

    def alive() -> None:
        assert all(map(pair.pid, SERVERS)), "a server has ended"
        if time.monotonic() > deadline:
            raise RoundFailed(f"round {round_id} has not ended within {LIMIT_S:g} s")

    return Rounds(coordinator, Hooks(alive=alive), poll_s=POLL_S).end(round_id)


def _who(number: int) -> str:
    return "the victim" if number == VICTIM else "a client"


def by_attack(dim: int = DIM, seed: int = 1) -> list[dict[str, Any]]:
    """Return a row per deviation, method and security that permits the round."""
    every = attacks()
    others = [attack for attack in every if attack.method not in (MALICIOUS, ZOOM)]
    bounded = [attack for attack in others if attack.method.name in BOUNDED]
    malicious = [attack for attack in every if attack.method.name in (Bucketed.name, Zoom.name)]
    return [
        *(run(attack, dim, seed) for attack in others),
        *(run(attack, dim, seed, Security.BOUNDED) for attack in bounded),
        *(run(attack, dim, seed, Security.MALICIOUS) for attack in malicious),
    ]
