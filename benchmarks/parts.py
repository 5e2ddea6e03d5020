"""`securemedian bench parts`: where the time of an OT, a comparison and each method goes.

One party runs alone on one core (`rehearsal.lone_party`). Each run is timed as a whole, and once
more with clocks around the kernels and streams that it calls. Clocks count the processor time of
this thread, less the time that they take themselves. "other" is the whole without its parts: Python
between the kernels, and memory that is used for the first time.
"""

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from statistics import median_low
from typing import Any
from unittest.mock import patch

import numpy as np
from cryptography.hazmat.primitives.ciphers import modes

from securemedian.benchmarks import settings, yardstick
from securemedian.benchmarks.work import COMPARE_BATCH, Point, random_ots
from securemedian.benchmarks.yardstick import BUFFER, SMALL
from securemedian.laboratory import report
from securemedian.mpc.arrays import RingShare
from securemedian.mpc.protocols import (
    compare,
    dealing,
    lengths,
    millionaire,
    order,
    ring,
    share,
    sketch,
    wide,
)
from securemedian.mpc.protocols.audit import ands
from securemedian.mpc.protocols.audit.ands import AndMaker, rotations
from securemedian.mpc.protocols.audit.bits import AuthenticatedBits
from securemedian.mpc.protocols.audit.equality import Compared, Equality
from securemedian.mpc.protocols.compiling import compile_kernels
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.dealing import Differences
from securemedian.mpc.protocols.kernels import ands as garbling
from securemedian.mpc.protocols.kernels import extension, lpn, packing, planes, tables
from securemedian.mpc.protocols.kernels.native import (
    hashing,
    processor,
    slicing,
    trees,
    weighing,
)
from securemedian.mpc.protocols.kernels.native import leaves as native_leaves
from securemedian.mpc.protocols.ot import ferret, leaves
from securemedian.mpc.protocols.ot.extension import BLOCK
from securemedian.mpc.protocols.ot.ferret import FerretReceiver, FerretSender
from securemedian.mpc.protocols.ot.hash import Hash
from securemedian.mpc.protocols.ot.softspoken import SoftSpokenReceiver, SoftSpokenSender
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.prg import SEED_BYTES, Stream
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds import chunks, rehearsal
from securemedian.mpc.rounds.methods import (
    bucketed,
    clustered,
    krum,
    mean,
    nearest,
    norms,
    pairwise,
    radix,
    reclustered,
    trimmed_mean,
    zeno,
)
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import RoundParams

# column -> row -> figure
Table = dict[str, dict[str, float]]
# returns the number of bytes of a call from its arguments
Size = Callable[..., int]

# per second
NS = 1e9
# bytes, far more than any cache holds
LARGE = 1 << 27
# bytes sent over loopback
TRAFFIC = 1 << 28
# widths of the rings whose comparisons are timed; the last is that of the counts of 8 clients
BITS = (32, 64, 4)
OTS = 16 * BLOCK
# of a round of each method, with its default options: the fewest of whom a trimmed mean drops any
CLIENTS, COORDINATES = 10, 1 << 13
# authenticated ANDs that are made at once, and how many leaky ones each takes
ANDS = 1 << 18
AUTHENTICATED = {"leaky": 1, "in buckets of 3": 3}
# of a sketch: the clients that a kernel adds side by side, and the rows of a norm check
SKETCHED, ROWS = 8, 512
AES_CTR, AES_ECB = (f"AES-128 {mode}, {BUFFER:,} B at a time" for mode in ("CTR", "ECB"))
AES_NATIVE = f"AES-128 hash by the processor's own instructions, {SMALL:,} B at a time"
SUM, OTHER, WHOLE = "sum of the parts", "other", "measured as a whole"
AES_BYTES, AES_LIMIT = "bytes of AES", "the AES alone, at full speed"
LINK, TOGETHER, TWO = "link, at full speed", "ahead, online and link", "two processes over loopback"
IN_AES = "AES of one core in as long, B"
ROLES = ("sender", "receiver")
PHASES = ("ahead", "online")
LAST = (SUM, OTHER, WHOLE, AES_BYTES, AES_LIMIT, LINK, TOGETHER, TWO, IN_AES)


class Clocks:
    """Clocks that count seconds and bytes by part.

    Time in a clock that runs within another one is not counted twice: it has a name of its own,
    "outer: inner".
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.byte_counts: defaultdict[str, int] = defaultdict(int)
        self._names: list[str] = []
        # seconds of the clocks that ran within the innermost open one
        self._inside = 0.0
        self._cost = self._calibrate()

    def _calibrate(self) -> float:
        """Return the seconds that a clock adds to the part it times."""
        self._cost = 0.0
        timed = self.around("", lambda: None)
        for _ in range(20_000):
            timed()
        return self.seconds.pop("") / 20_000

    def around(
        self, part: str, function: Callable[..., Any], size: Size | None = None
    ) -> Callable[..., Any]:
        """Return `function` with a clock around it.

        `size` returns the number of bytes of a call from its arguments.
        """

        def timed(*arguments: Any, **named: Any) -> Any:
            self._names.append(part)
            name, outside, self._inside = ": ".join(self._names), self._inside, 0.0
            start = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                spent = time.thread_time() - start
                self.seconds[name] += spent - self._inside - self._cost
                if size is not None:
                    self.byte_counts[name] += size(*arguments, **named)
                self._inside = outside + spent
                self._names.pop()

        return timed

    def streams(self, part: str) -> Callable[..., Stream]:
        """Return a maker of `Stream`s whose key streams are timed."""

        def made(*arguments: Any, **named: Any) -> Stream:
            stream = Stream(*arguments, **named)
            stream.xor = self.around(part, stream.xor, lambda data, out: len(out))
            return stream

        return made

    @contextmanager
    def on(self, places: Sequence["Place"]) -> Iterator[None]:
        """Put clocks at `places` while the context is open."""
        with ExitStack() as stack:
            for part, owner, name, size in places:
                original = getattr(owner, name)
                clock = (
                    self.streams(part) if original is Stream else self.around(part, original, size)
                )
                # not setattr back, which would leave a class a copy of what it inherits
                stack.enter_context(patch.object(owner, name, clock))
            yield


# part, module or class, the function's name there, number of bytes of a call
Place = tuple[str, Any, str, Size | None]


def _expanded(trees: Any, *given: Any) -> int:
    """Return the bytes of AES that make keys of the streams of trees, and of hashes."""
    # a sender misses a leaf of each
    leaves = trees.shape[1] - (given[-1] is not None)
    size: int = trees.shape[0] * leaves * len(given[-2]) // 8
    return size + _hashed(*given)


def _hashed(*given: Any) -> int:
    """Return the bytes of AES that hash to keys (n, 2), and to those of the other choice if any."""
    return sum(keys.nbytes for keys in given[-2:] if keys is not None)


def _grown(nodes: Any, *_: Any) -> int:
    """Return the bytes of AES that grow half-trees and draw the code's indices for their leaves."""
    size: int = nodes.nbytes + 4 * lpn.LOCALITY * nodes.shape[0] * nodes.shape[1]
    return size


EXTENDING: tuple[Place, ...] = (
    ("PRG", leaves, "Stream", None),
    ("fold", extension, "fold", None),
    ("corrections", extension, "correct", None),
    ("transpose", extension, "transpose_and_tweak", None),
    ("hash", Hash, "finish", lambda _, blocks: blocks.nbytes),
    ("hash", extension, "sigma_and_tweak", None),
    ("hash", extension, "xor_constant", None),
    ("all in one pass", native_leaves, "expand_to_keys", _expanded),
    ("check", weighing, "weigh", None),
    ("check", extension, "weigh", None),
    ("hash", hashing, "hash_blocks", _hashed),
    ("trees", FerretSender, "grow_trees", None),
    ("trees", FerretReceiver, "grow_trees", None),
    ("trees and code in one pass", trees, "grow_and_encode", _grown),
    ("sums", lpn, "grow", None),
    ("sums", lpn, "mend", None),
    ("code: indices", ferret, "Stream", None),
    ("code: gather", lpn, "encode", None),
)
AHEAD: tuple[Place, ...] = (
    ("OT extension", SoftSpokenSender, "extend", None),
    ("OT extension", SoftSpokenReceiver, "extend", None),
    ("OT extension", SoftSpokenReceiver, "extend_planes", None),
    ("OT extension", SoftSpokenSender, "extend_planes", None),
    ("tables", tables, "combine_keys", None),
    ("tables", tables, "choose_chunks", None),
    ("bit planes", packing, "bit_planes", None),
    ("bit planes", slicing, "bit_planes", None),
)
ONLINE: tuple[Place, ...] = (
    ("bit planes", planes, "split", None),
    ("leaves: replies", tables, "reply_leaves", None),
    ("leaves: shares", tables, "finish_leaves", None),
    ("masks", Stream, "words", None),
    ("ANDs", millionaire, "conjunctions", None),
)
SKETCHING: tuple[Place, ...] = (
    ("random signs", sketch, "expand", None),
    ("sums", sketch, "add_rows", None),
)
MULTIPLYING: tuple[Place, ...] = (
    ("OT extension", SoftSpokenSender, "extend_correlated", None),
    ("OT extension", SoftSpokenReceiver, "extend_correlated", None),
    ("check", weighing, "weigh", None),
    ("tables", garbling, "garble", None),
    ("tables", garbling, "mask_tops", None),
    ("tables", garbling, "unmask", None),
    ("buckets", garbling, "combine", None),
    ("digests", Differences, "update", None),
)
# What a method does online. Functions stand where methods look them up.
STEPS: tuple[Place, ...] = (
    ("uploads", share, "read", None),
    ("uploads", share, "weighted_sum", None),
    ("uploads", dealing, "counts", None),
    ("uploads", clustered, "sums_over", None),
    ("sketches", nearest, "sketch", None),
    ("sketches", norms, "sketch", None),
    ("comparisons", compare, "msb_of_planes", None),
    ("equality", compare, "is_zero", None),
    ("bits to numbers", order, "to_ring", None),
    ("bits to numbers", wide, "to_ring", None),
    ("multiplexers", order, "multiplex", None),
    ("multiplexers", trimmed_mean, "multiplex", None),
    ("multiplexers", zeno, "multiplex_rows", None),
    ("multiplexers", nearest, "multiplex", None),
    ("multiplexers", krum, "multiplex_rows", None),
    ("squares", lengths, "square", None),
    ("products", planes, "reply", None),
    ("products", planes, "finish", None),
    ("bit planes", planes, "split", None),
    ("bit planes", planes, "join", None),
    ("opening", bucketed, "open_bits", None),
    ("opening", radix, "open_rows", None),
    ("opening", pairwise, "open_ring", None),
    ("opening", trimmed_mean, "open_ring", None),
    ("opening", mean, "open_ring", None),
    ("opening", reclustered, "open_ring", None),
    ("opening", zeno, "open_ring", None),
    ("opening", krum, "open_ring", None),
)


def add_kinds(kinds: Any) -> None:
    parts = kinds.add_parser(
        "parts",
        help="where the time goes, next to what the hardware could do",
        description="What one core does at its best (AES, memory, the encrypted link over "
        "loopback), and where the time of a random OT, of a comparison and of a coordinate of each "
        "method goes, in ns of one party: every part, the sum of the parts, and the whole, "
        "measured separately.",
    )
    settings.add_extensions(parts)
    settings.add_counts(
        parts,
        ("--ots", OTS, "random OTs per repetition"),
        ("--comparisons", COMPARE_BATCH, "comparisons per repetition"),
        ("--coordinates", COORDINATES, f"coordinates of a method's round of {CLIENTS} clients"),
    )
    settings.add_options(parts, chooses=False)
    settings.add_out(parts)
    parts.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure everything, print the tables, save the JSON."""
    chosen = settings.read(options)
    file = report.check_writable(options.out / "parts.json")
    console = report.console()
    with console.status("hardware"), _one_core():
        rates = hardware(options.repeat)
    protocols = settings.protocols(options)
    ots: dict[str, Table] = {role: {} for role in ROLES}
    for name, protocol in protocols.items():
        with console.status(name), _one_core():
            compile_kernels(protocol)
            for role in ROLES:
                ots[role][name] = _ot_parts(protocol, role == "sender", options, rates)
    comparisons: Table = {}
    for bits in BITS:
        with console.status(f"comparisons, l = {bits}"), _one_core():
            comparisons[f"l = {bits}"] = _comparison_parts(chosen.protocol, bits, options)
    with console.status("sketches"), _one_core():
        sketches = {f"{SKETCHED} clients": _sketch_parts(chosen.protocol, options)}
    with console.status("authenticated ANDs"), _one_core():
        multiplied = {
            name: _and_parts(chosen.protocol, size, options) for name, size in AUTHENTICATED.items()
        }
    rounds: Table = {}
    for name, method in METHODS.items():
        with console.status(name), _one_core():
            params = RoundParams(method(), dim=options.coordinates, max_clients=CLIENTS)
            rounds[name] = _round_parts(chosen.protocol, params, options)
    _measure_processes(chosen, protocols, options, rates, ots, comparisons)
    found = {
        "GB/s of one core": {"GB/s": rates},
        **{f"ns per random OT, at the {role}": table for role, table in ots.items()},
        "ns per comparison, at either party": comparisons,
        f"ns per coordinate of a sketch of {ROWS} rows, at either party": sketches,
        "ns per authenticated AND, at either party": multiplied,
        f"ns per coordinate of {CLIENTS} clients, at either party": rounds,
    }
    own = processor.taken(options.native)
    stick = yardstick.of(options.native, 1e9 * rates[AES_NATIVE if own else AES_CTR])
    for name in list(found)[1:]:
        for rows in found[name].values():
            wholes = [each for row, each in rows.items() if row.rpartition(": ")[2] == WHOLE]
            rows[IN_AES] = stick.bytes_in(sum(wholes) / NS)
    points = [
        {"table": name, "column": column, "row": row, "figure": figure}
        for name, columns in found.items()
        for column, rows in columns.items()
        for row, figure in rows.items()
    ]
    report.save(file, asdict(chosen), points, aes=asdict(stick))
    for name, columns in found.items():
        console.print(_table(name, columns))
    console.print(str(stick))
    console.print(f"saved to {file}")


def hardware(repeat: int) -> dict[str, float]:
    """Return what one core does at its best, in GB/s."""

    counter, row, keys = modes.CTR(bytes(16)), BLOCK // 8, 16 * BLOCK
    rates = {
        name: yardstick.openssl_rate(mode, size, repeat)
        for name, mode, size in (
            (AES_CTR, counter, BUFFER),
            (f"AES-128 CTR, {row:,} B: a row of a block", counter, row),
            (AES_ECB, modes.ECB(), BUFFER),
            (f"AES-128 ECB, {keys:,} B: the keys of a block", modes.ECB(), keys),
        )
    }
    large, small = (np.ones((2, size // 8), np.uint64) for size in (LARGE, SMALL))
    copy = partial(np.copyto, large[0], large[1])
    rates[f"copy of {LARGE >> 20} MiB"] = yardstick.rate(LARGE, copy, repeat)
    if processor.taken(True):
        rates[AES_NATIVE] = yardstick.native_rate(repeat)
    xor = partial(np.bitwise_xor, small[0], small[1], small[0])
    rates[f"XOR of two arrays of {SMALL >> 10} KiB"] = yardstick.rate(SMALL, xor, repeat)
    return {name: speed / 1e9 for name, speed in rates.items()}


def _ot_parts(
    protocol: ProtocolParams, sending: bool, options: argparse.Namespace, rates: dict[str, float]
) -> dict[str, float]:
    # silent OT makes OTs by the iteration: whole ones, so that every OT has its share
    block = ferret.CODE.yields if protocol.silent else BLOCK
    count = -(-options.ots // block) * block

    def work(party: Party) -> None:
        random_ots([party.pool.ends.sender if sending else party.pool.ends.receiver], count)

    parts, clocks = _measure(protocol, lambda party: None, work, EXTENDING, options.repeat, count)
    aes: defaultdict[str, float] = defaultdict(float)
    own = processor.taken(protocol.native_aes)
    for name, size in clocks.byte_counts.items():
        mode = AES_NATIVE if own else AES_ECB if name.endswith("hash") else AES_CTR
        aes[mode] += size / count
    limit = sum(size / rates[name] for name, size in aes.items())
    return parts | {AES_BYTES: sum(aes.values()), AES_LIMIT: limit}


def _comparison_parts(
    protocol: ProtocolParams, bits: int, options: argparse.Namespace
) -> dict[str, float]:
    count = options.comparisons
    shares = RingShare(ring.reduce(Stream(os.urandom(16)).words(count), bits))
    demand = compare.msb_demand(count, bits)
    return _phases(
        protocol, demand, lambda party: compare.msb(party, shares, bits), ONLINE, options, count
    )


def _sketch_parts(protocol: ProtocolParams, options: argparse.Namespace) -> dict[str, float]:
    dim, coin = options.coordinates, bytes(SEED_BYTES)
    words = Stream(os.urandom(SEED_BYTES)).words(SKETCHED * dim)
    shares = RingShare(words.reshape(SKETCHED, dim))

    def work(party: Party) -> None:
        sketch.sketch(coin, shares, 0, ROWS, protocol.native_aes)

    return _measure(protocol, lambda party: None, work, SKETCHING, options.repeat, dim)[0]


def _and_parts(
    protocol: ProtocolParams, size: int, options: argparse.Namespace
) -> dict[str, float]:
    """Return the parts of ANDs in buckets of `size`, of 1 without buckets: with SoftSpokenOT."""
    leaky = size * ANDS
    factors = [
        AuthenticatedBits(np.empty(leaky, np.uint8), *np.empty((2, leaky), np.uint64))
        for _ in range(3)
    ]
    tests, turns = np.empty(leaky, np.uint64), rotations(bytes(SEED_BYTES), size, ANDS)

    def work(party: Party) -> None:
        maker = AndMaker(party)
        for start in range(0, leaky, ands.PORTION):
            some = slice(start, start + ands.PORTION)
            maker.leaky([factor[some] for factor in factors], tests[some])
        Compared(bytes(SEED_BYTES)).update(tests)
        if size > 1:
            maker.combined(factors, turns, Equality(party.channel, party.number))

    used = replace(protocol, ot_extension="softspoken")
    return _measure(used, lambda party: None, work, MULTIPLYING, options.repeat, ANDS)[0]


def _round_parts(
    protocol: ProtocolParams, params: RoundParams, options: argparse.Namespace
) -> dict[str, float]:
    """Return the parts of a round in one chunk, whose uploads are there and were checked."""
    weights, dim = [1] * params.max_clients, params.dim

    def work(party: Party) -> None:
        rehearsal.rehearse_round(party, params, weights, protocol.batch, dim)

    demand = chunks.round_demand(params, weights, dim)
    return _phases(protocol, demand, work, STEPS, options, dim)


def _phases(
    protocol: ProtocolParams,
    demand: Demand,
    work: Callable[[Party], object],
    places: Sequence[Place],
    options: argparse.Namespace,
    count: int,
) -> dict[str, float]:
    """Return the parts of making what `work` takes, and then of `work`, which has these places."""
    rows: dict[str, float] = {}
    for phase, prepare, timed, clocked in (
        (
            "ahead",
            lambda party: party.pool.keep_only(Demand()),
            lambda party: party.pool.reserve(demand),
            AHEAD,
        ),
        ("online", lambda party: party.pool.reserve(demand), work, places),
    ):
        parts, _ = _measure(protocol, prepare, timed, clocked, options.repeat, count)
        rows |= {f"{phase}: {part}": figure for part, figure in parts.items()}
    return rows


def _measure(
    protocol: ProtocolParams,
    prepare: Callable[[Party], object],
    work: Callable[[Party], object],
    places: Sequence[Place],
    repeat: int,
    count: int,
) -> tuple[dict[str, float], Clocks]:
    """Return the nanoseconds of each part, of their sum, of the rest and of the whole.

    They are per item, of which `work` does `count`: medians of `repeat` runs, after one that is not
    counted. `prepare` is not timed.
    """
    clocks, wholes, runs = Clocks(), [], []
    plain = rehearsal.lone_party(protocol)
    with clocks.on(places):
        clocked = rehearsal.lone_party(protocol)
    # both take turns, so that they find the machine in the same state
    for _ in range(1 + repeat):
        prepare(plain)
        start = time.thread_time()
        work(plain)
        wholes.append(time.thread_time() - start)
        with clocks.on(places):
            prepare(clocked)
            clocks.seconds.clear()
            clocks.byte_counts.clear()
            work(clocked)
        runs.append(dict(clocks.seconds))
    whole = median_low(wholes[1:])
    parts = {part: median_low([run[part] for run in runs[1:]]) for part in runs[-1]}
    total = sum(parts.values())
    outer = {part.rpartition(": ")[0] for part in parts}
    parts = {f"{part}: rest" if part in outer else part: spent for part, spent in parts.items()}
    rows = parts | {SUM: total, OTHER: whole - total, WHOLE: whole}
    return {name: figure * NS / count for name, figure in rows.items()}, clocks


def _measure_processes(
    chosen: settings.Settings,
    protocols: dict[str, ProtocolParams],
    options: argparse.Namespace,
    rates: dict[str, float],
    ots: dict[str, Table],
    comparisons: Table,
) -> None:
    """Add what two processes take over loopback: the link alone, the same OTs and comparisons."""
    points = [Point("bytes", ways, count=TRAFFIC) for ways in ("one way", "both ways")]
    points += [
        Point("compare", "comparison", options.comparisons, options={"ring_bits": bits})
        for bits in BITS
    ]
    one, both, *compared = settings.measure(points, chosen, "comparisons:")
    rates["CURVE over loopback, one way"] = one["per_second"] / 1e9
    rates["CURVE over loopback, each of both ways at once"] = both["per_second"] / 1e9
    # of one direction, like the link's rate: both directions run at the same time
    for rows, result in zip(comparisons.values(), compared, strict=True):
        rows[LINK] = result["bytes_each"] / 2 / both["per_second"] * NS
        rows[TOGETHER] = rows[f"ahead: {WHOLE}"] + rows[f"online: {WHOLE}"] + rows[LINK]
        rows[TWO] = NS / result["per_second"]
    for name, protocol in protocols.items():
        point = Point("ot", "random", count=options.ots)
        (result,) = settings.measure([point], replace(chosen, protocol=protocol), f"{name}:")
        for table in ots.values():
            table[name] |= {
                LINK: result["bytes_each"] / 2 / both["per_second"] * NS,
                TWO: NS / result["per_second"],
            }


@contextmanager
def _one_core() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _table(title: str, table: Table) -> Any:
    names = list(dict.fromkeys(row for rows in table.values() for row in rows))
    # the sort is stable: parts stay in the order in which they ended
    order = sorted(names, key=_place)
    columns = ["", *table]
    rows = [
        [name, *(report.figure(column.get(name)) for column in table.values())] for name in order
    ]
    return report.table(title, columns, rows)


def _place(name: str) -> tuple[int, int]:
    """Return a row's place: the parts phase by phase, then what they are compared with."""
    phase, _, rest = name.partition(": ")
    inside = phase in PHASES
    last = rest if inside else name
    return PHASES.index(phase) if inside else len(PHASES), LAST.index(last) if last in LAST else -1
