"""The deviations of rogue servers, by name.

Each replaces public functions of the protocol, or changes messages, as a server with other code
could. The victim is the first of the clients in the order of their public keys, which is that of
uploads; the second one may collude. S1 is the rogue unless only S0 can deviate so.

Other ways gain nothing beyond these, and are left out:

- A biased base OT: its sender knows both keys anyway, and the receiver's point is uniform for
  either choice.
- Another choice in `leaf.request`, a wrong `and` or `b2a`: that is another share of the same number
  or bit, as in `rank` and `mux`.
- Beside an opening another nonce, the other's commitment, that of another lane, an old one, a
  message cut short: all are deviations, and are signed.
- `open.bits` of `radix`: after a bit that was opened falsely every later one is the same for all
  updates.
- A guess of `e_(r+s) - e_r` in the own digest: right once in 16 times, as `echo` always is, and
  noticed as that is.
- A coin that the other server has not tossed: it is refused. A wrong digest of an upload leaves its
  client out, as `digests` does.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace as changed
from typing import Any

import numpy as np

from securemedian.mpc.arrays import RingShare
from securemedian.mpc.errors import ChannelClosed
from securemedian.mpc.protocols import dealing, lengths, order, ring
from securemedian.mpc.protocols.audit.opening import DIGEST_WORDS
from securemedian.mpc.protocols.boolean import unpack_bits
from securemedian.mpc.protocols.kernels import planes, tables
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds import chunks, pipeline
from securemedian.mpc.rounds.bisecting import Bisection
from securemedian.mpc.rounds.methods import bucketed
from securemedian.mpc.rounds.methods.base import Chunk
from securemedian.mpc.rounds.methods.krum import Krum
from securemedian.mpc.rounds.methods.norms import NormCheck, RangeCheck
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.methods.zoom import Zoom
from securemedian.mpc.rounds.optimiser import optimiser_from
from securemedian.mpc.rounds.ranges.registry import policy_from
from securemedian.mpc.rounds.run_state import RunState
from securemedian.servers.config import ServerConfig
from securemedian.servers.machine.events import CheckEnded
from securemedian.servers.rounds import requests
from securemedian.servers.rounds.requests import Answer, Call, Requests
from securemedian.servers.storage.spool import Spool
from tests.rogue import bisecting
from tests.rogue.hooks import (
    Array,
    Spoils,
    on_recv,
    on_send,
    replace,
    rushing,
)
from tests.rogue.turns import read_positions

# of all clients, the one that is spied on, and the one that helps
VICTIM, HELPER = 0, 1
# added to the counts of five clients, this makes the median the minimum
ADDED = 2
# the start model, near which the victim's value may lie: so many of its last bits are unknown
MODEL, STEERED_BITS = 1.5, 12
# the deviations in which S0 is the rogue
OF_S0 = ("models", "result")


def keys_of(config: ServerConfig) -> list[str]:
    """Return the clients' public keys in the order of uploads."""
    return sorted(caller.public_key for caller in config.clients)


# bucketed


def _bits(words: Array) -> Array:
    return unpack_bits(words, 64 * words.size)


def _shifted(counts: RingShare, by: int, bits: int) -> RingShare:
    return RingShare(ring.reduce(counts + counts.dtype.type(by % (1 << bits)), bits))


def _rank(config: ServerConfig, spoils: Spoils) -> None:
    """Add k-1 to the own share of H: both servers open the minimum."""

    def median(
        true: Any, party: Party, counts: RingShare, clients: int, bits: int, *rest: Any
    ) -> Any:
        by = ring.median_rank(clients) - 1
        return true(party, _shifted(counts, by, bits), clients, bits, *rest)

    replace(bucketed, "median", median)
    bisecting.ROWS["rank"][0](replace, 1)
    _keep_found(spoils)


def _keep_found(spoils: Spoils) -> None:
    """Keep what is opened."""

    def median(true: Any, *given: Any) -> Any:
        found = true(*given)
        spoils.keep(found=found)
        return found

    replace(bucketed, "median", median)


def _tables(config: ServerConfig, spoils: Spoils) -> None:
    """Answer with another table, in which H - k = 1 (modulo 2^(l-1)) counts as the opposite.

    Without tables, open what belongs to another AND.
    """

    def reply_leaves(true: Any, leaves: Array, *given: Any) -> None:
        true(leaves, *given)
        out, levels = given[-1], len(leaves)
        for leaf in range(1 << levels):
            at = out[(leaf - 2) % (1 << levels)]
            at ^= np.bitwise_and.reduce(
                [plane if leaf >> j & 1 else ~plane for j, plane in enumerate(leaves)]
            )

    replace(tables, "reply_leaves", reply_leaves)
    bisecting.ROWS["and"][0](replace, 1)
    _keep_found(spoils)


def _open_bits(config: ServerConfig, spoils: Spoils) -> None:
    """Open "not reached" at every threshold, and keep what was opened in truth.

    The peer finds at the first one that this is not what was committed to.
    """
    steps: list[Array] = []

    def rush(label: str, mine: Array, theirs: Array) -> tuple[Array, Array]:
        if label == "bisect.sign":
            return theirs, theirs
        steps.append(mine ^ theirs)
        spoils.keep(reached=np.stack([_bits(step) for step in steps]))
        return theirs, mine

    rushing(("open.bits", "bisect.sign"), rush)


def _rerun(config: ServerConfig, spoils: Spoils) -> None:
    """Break off twice before the last bit is sent: with the minimum, and with the maximum."""
    steps: list[Array] = []
    now = threading.local()
    attempts = iter(("least", "most"))

    def rush_sign(mine: Array, theirs: Array) -> tuple[Array, Array]:
        # without their digests
        steps.append(_bits((mine ^ theirs)[:-DIGEST_WORDS]))
        spoils.keep(rushed=np.stack(steps))
        if len(steps) in (4, 8):
            raise ChannelClosed("the rogue server has seen enough")
        return mine, theirs

    def rush(label: str, mine: Array, theirs: Array) -> tuple[Array, Array]:
        if label == "bisect.sign":
            return rush_sign(mine, theirs)
        steps.append(_bits(mine ^ theirs))
        if now.name and len(steps) == now.steps:
            found = sum((1 - bit.astype(np.int64)) << i for i, bit in enumerate(reversed(steps)))
            spoils.keep(**{now.name: np.asarray(found)})
            raise ChannelClosed("the rogue server has seen enough")
        return mine, theirs

    def median(
        true: Any, party: Party, counts: RingShare, clients: int, bits: int, *rest: Any
    ) -> Any:
        steps.clear()
        now.name, now.steps = next(attempts, ""), bucketed.steps(len(counts) + 1)
        by = {"least": ring.median_rank(clients) - 1, "": 0}.get(
            now.name, ring.median_rank(clients) - clients
        )
        return true(party, _shifted(counts, by, bits), clients, bits, *rest)

    rushing(("open.bits", "bisect.sign"), rush)
    replace(bucketed, "median", median)


# radix


def _flags(config: ServerConfig, spoils: Spoils) -> None:
    """Lower the own flags of all others by 1, and L by k-1: the victim's word is opened."""

    def reply(true: Any, *given: Any) -> None:
        flags, _, opened, zeros, _, keys0, _, at = given[:8]
        # the highest bit comes first
        if at + zeros.size == keys0.shape[1]:
            flags[:, (VICTIM + 1) * opened.shape[1] :] = planes.FULL
        true(*given)

    def finish(true: Any, *given: Any) -> None:
        flags, opened, zeros, keys0, at = given[0], given[1], given[2], given[4], given[7]
        below, reached = given[-2], given[-1]
        if at + zeros.size == keys0.shape[1]:
            by = ring.median_rank(flags.shape[1] // opened.shape[1]) - 1
            for plane, (low, high) in enumerate(zip(below, reached, strict=True)):
                low[:] = high[:] = planes.FULL * np.uint64(by >> plane & 1)
        true(*given)

    replace(planes, "reply", reply)
    replace(planes, "finish", finish)


class _Changed(Chunk):
    """A chunk of which the rogue reads other shares than the clients have sent."""

    move: Callable[[Array], None]

    @classmethod
    def of(cls, chunk: Chunk, move: Callable[[Array], None]) -> "_Changed":
        made = cls(**vars(chunk))
        object.__setattr__(made, "move", move)
        return made

    def rows(self, party: Party) -> Any:
        rows = super().rows(party)
        self.move(rows)
        return rows

    def xor_rows(self, party: Party) -> Any:
        rows = super().xor_rows(party)
        self.move(rows)
        return rows


def _moving(move: Callable[[Any, Array], None], function: str, *methods: type[Any]) -> None:
    """Let a function of methods read shares that `move(method, rows)` has changed."""

    def compute(true: Any, method: Any, party: Party, chunk: Chunk) -> Any:
        return true(method, party, _Changed.of(chunk, lambda rows: move(method, rows)))

    for method in methods:
        replace(method, function, compute)


def _sides(rows: Array) -> tuple[Array, Array]:
    """Return the rows of the others, in two parts with the median of all between them."""
    lower = ring.median_rank(len(rows)) - 1
    return rows[VICTIM + 1 : VICTIM + 1 + lower], rows[VICTIM + 1 + lower :]


def _top_bits(config: ServerConfig, spoils: Spoils) -> None:
    """Flip the top bits of the others' words, whose signs are known, so that the victim is between.

    Numbers from 1 to 2 begin with 10: with 00 they are the smallest, and with 11 the largest.
    """

    def move(method: Any, rows: Array) -> None:
        low, high = _sides(rows)
        low ^= rows.dtype.type(1 << 31)
        high ^= rows.dtype.type(1 << 30)

    _moving(move, "compute", Radix)


# methods on values


def _shift(config: ServerConfig, spoils: Spoils) -> None:
    """Add 2^(l-3) to the others' shares, or subtract it, after these have passed the check."""

    def move(method: Any, rows: Array) -> None:
        low, high = _sides(rows)
        by = rows.dtype.type(1 << 61)
        low -= by
        high += by

    _moving(move, "compute", Pairwise, TrimmedMean)


def _distances(config: ServerConfig, spoils: Spoils) -> None:
    """Move the others apart before distances are compared: Krum chooses the victim."""

    def move(method: Any, rows: Array) -> None:
        for place, row in enumerate(rows[VICTIM + 1 :]):
            by = (1 - 2 * (place % 2)) * (1 << 2 * (place // 2 + 1)) << method.fraction_bits
            row += np.array(by).astype(row.dtype)

    _moving(move, "survey", Krum)


def _mux(config: ServerConfig, spoils: Spoils) -> None:
    """Flip whether the victim holds the median: its value is added to what is opened."""

    def multiplex(true: Any, party: Party, shares: Array, *given: Any) -> Any:
        flipped, words = shares.copy(), shares.size // now.clients
        flipped[VICTIM * words : (VICTIM + 1) * words] ^= planes.FULL
        return true(party, flipped, *given)

    def note(method: Any, rows: Array) -> None:
        now.clients = len(rows)

    now = threading.local()
    _moving(note, "compute", Pairwise)
    replace(order, "multiplex", multiplex)


# verdicts, dealings, OTs


def _verdicts(config: ServerConfig, spoils: Spoils) -> None:
    """Say that all clients except the victim and a helper have failed the check."""
    spared = keys_of(config)[: HELPER + 1]

    def init(true: Any, event: CheckEnded, clients: Sequence[str], *_: Any) -> None:
        true(event, clients, [key for key in clients if key not in spared])

    replace(CheckEnded, "__init__", init)


def _digests(config: ServerConfig, spoils: Spoils) -> None:
    """Send wrong digests for all dealings except those of the victim and a helper."""
    spared = keys_of(config)[: HELPER + 1]
    # the key of a share that was read, which is kept so that its id stays its own
    shares: dict[int, tuple[str, Any]] = {}
    checked: list[str] = []

    def read(true: Any, spool: Spool, key: str) -> Any:
        half = true(spool, key)
        shares[id(half)] = key, half
        return half

    def check(true: Any, channel: Any, number: int, shape: Any, halves: Any, *rest: Any) -> Any:
        checked[:] = [shares[id(half)][0] for half in halves]
        return true(channel, number, shape, halves, *rest)

    def spoil(digests: Array) -> Array:
        rows = digests.reshape(-1, dealing.DIGEST_WORDS)
        rows[[key not in spared for key in checked]] ^= np.uint64(1)
        return digests

    replace(Spool, "dealing", read)
    replace(pipeline, "check_dealings", check)
    # both servers find the same
    for message in (on_send, on_recv):
        message("dealing.digests", spoil)


def _range(config: ServerConfig, spoils: Spoils) -> None:
    """Move the shares of all except the victim and a helper out of range in the check."""

    def move(check: Any, rows: Array) -> None:
        rows[HELPER + 1 :] += rows.dtype.type(1 << 61)

    _moving(move, "survey", RangeCheck)


def _lengths(config: ServerConfig, spoils: Spoils) -> None:
    """Ask in the check of lengths which updates change nothing, which needs no guess.

    The other server sees the answers as the verdicts. No noise covers them.
    """

    tau: list[int] = []

    def note(true: Any, check: NormCheck, *given: Any) -> Any:
        tau[:] = [check.most]
        return true(check, *given)

    def shift(true: Any, party: Party, squared: RingShare, limit: RingShare) -> Any:
        return true(party, RingShare(squared + squared.dtype.type(tau[0])), limit)

    def keep(true: Any, *given: Any) -> Any:
        bits = true(*given)
        spoils.keep(unchanged=bits)
        return bits

    replace(NormCheck, "judge", note)
    replace(lengths, "at_most", shift)
    replace(chunks, "open_bits", keep)


def _corrections(config: ServerConfig, spoils: Spoils) -> None:
    """Flip a correction bit in every block: S0's keys there would be off by a part of Delta.

    Release 0.9 gave all of Delta to who did that in 93 OTs, and with it both keys of all OTs.
    """

    def flip(corrections: Array) -> Array:
        corrections[:, 0] ^= np.uint64(1)
        return corrections

    on_send("ot.corrections", flip)


def _sums(config: ServerConfig, spoils: Spoils) -> None:
    """Spoil a sum of a GGM tree: half the result is wrong if the top bit of Delta_0 is 1."""

    def spoil(sums: Array) -> Array:
        sums[0] ^= 1
        return sums

    on_send("ggm.sums", spoil)


# messages of S0 to clients


def _answering(
    op: str, change: Callable[[Any, Requests, Call, Answer], Answer], victim: str = ""
) -> None:
    """Change what the victim, or everybody, is answered.

    `change` gets the true handler of models, too.
    """
    true, model = requests.OPS[op].handler, requests.OPS["model"].handler

    def handler(server: Requests, call: Call) -> Answer | None:
        answer = true(server, call)
        if answer is None or victim not in ("", call.key):
            return answer
        return change(model, server, call, answer)

    requests.OPS[op] = changed(requests.OPS[op], handler=handler)


def _models(config: ServerConfig, spoils: Spoils) -> None:
    """Give the victim another model than the others, with the digest that fits it."""

    def other(answer: Answer) -> Answer:
        return changed(answer, arrays=dict(answer.arrays, model=answer.arrays["model"] + 1))

    def start(model: Any, server: Requests, call: Call, answer: Answer) -> Answer:
        asked = changed(call, fields=requests.OneRound(str(answer.fields["round"])))
        told = other(model(server, asked))
        state = RunState.of_arrays(
            policy_from(told.fields["policy"]),
            int(told.fields["number"]) - 1,
            optimiser_from(told.fields["optimiser"]),
            told.arrays,
        )
        return changed(answer, fields=dict(answer.fields, start=state.digest.hex()))

    victim = keys_of(config)[VICTIM]
    _answering("round", start, victim)
    _answering("model", lambda model, server, call, answer: other(answer), victim)


def _result(config: ServerConfig, spoils: Spoils) -> None:
    """Give everybody another result than the one that both servers have signed."""

    def other(model: Any, server: Requests, call: Call, answer: Answer) -> Answer:
        arrays = {name: array ^ array.dtype.type(1) for name, array in answer.arrays.items()}
        return changed(answer, arrays=arrays)

    _answering("result", other)


def _outstanding(config: ServerConfig, spoils: Spoils) -> None:
    """Add k-1 to the own share of H, of clients of whom one is known to stand out."""
    _rank(config, spoils)


def _steered(config: ServerConfig, spoils: Spoils) -> None:
    """Steer the path to the start model for five levels, and go on as agreed."""
    (guess,) = Zoom().words(np.array([MODEL])).tolist()
    votes, steps = itertools.count(), itertools.count()

    def steer(shares: Array, rows: Array, rank: int, bits: int, vote: int) -> RingShare:
        """Make H - k at these rows negative below the guess's digit, and nowhere else."""
        below = max(0, 28 - 4 * vote)
        by = rank + (rows < (guess >> below & 15)) * (1 << bits - 1)
        lie = ring.reduce(shares + by.astype(shares.dtype), bits)
        return RingShare(lie if below >= STEERED_BITS else shares)

    def median(
        true: Any, party: Party, counts: RingShare, clients: int, bits: int, how: str, rank: int
    ) -> Any:
        rows = np.arange(len(counts))[:, None]
        return true(party, steer(counts, rows, rank, bits, next(votes)), clients, bits, how, rank)

    def ask(z: Array, rows: Array, rank: int, bits: int) -> Array:
        return steer(z, rows, rank, bits, next(steps) // 4)

    replace(bucketed, "median", median)
    bisecting.asking(ask)(replace, 1)


def _turns(config: ServerConfig, spoils: Spoils) -> None:
    """Lie in dealing.turns, and keep the peer's digest."""
    read_positions(config, spoils)


def _echo(config: ServerConfig, spoils: Spoils) -> None:
    """Lie in dealing.turns, and send the peer's digest back."""
    read_positions(config, spoils, echo=True)


DEVIATIONS: dict[str, Callable[[ServerConfig, Spoils], None]] = {
    "rank": _rank,
    "outstanding": _outstanding,
    "steered": _steered,
    "tables": _tables,
    "open-bits": _open_bits,
    "rerun": _rerun,
    "flags": _flags,
    "top-bits": _top_bits,
    "shift": _shift,
    "mux": _mux,
    "distances": _distances,
    "corrections": _corrections,
    "sums": _sums,
    "turns": _turns,
    "echo": _echo,
    "verdicts": _verdicts,
    "digests": _digests,
    "range": _range,
    "lengths": _lengths,
    "models": _models,
    "result": _result,
}


def spy(deviation: str, spoils: Spoils) -> None:
    """Keep the signs that a rogue of the authenticated bisect is told, on its one lane."""
    rogue = int(deviation not in OF_S0)
    bisecting.spy(replace, rogue, lambda signs: spoils.keep(signs=np.array(signs.of(0))))


def _helped(config: ServerConfig, spoils: Spoils) -> None:
    """Be bound to a sum that asks for the minimum, and have a client answer for that."""

    def sums(true: Any, *given: Any) -> RingShare:
        return _shifted(true(*given), ADDED, 8)

    replace(Bisection, "_sums", sums)


def _bisecting(name: str) -> Callable[[ServerConfig, Spoils], None]:
    """Return a deviation of `tests.rogue.bisecting`."""
    deviation, _ = bisecting.ROWS[name]

    def deviate(config: ServerConfig, spoils: Spoils) -> None:
        deviation(replace, 1)

    deviate.__doc__ = deviation.__doc__
    return deviate


# those of rounds with security malicious, where servers have one lane
OF_BISECTIONS = [f"malicious-{name}" for name in bisecting.ROWS if name != "and-of-lane-1"]
DEVIATIONS |= {name: _bisecting(name.removeprefix("malicious-")) for name in OF_BISECTIONS}
DEVIATIONS["malicious-helper"] = _helped


def about(deviation: str) -> str:
    """Return what a deviation does: the first sentence of its docstring."""
    text = " ".join((DEVIATIONS[deviation].__doc__ or "").split())
    return text.partition(". ")[0].removesuffix(".")
