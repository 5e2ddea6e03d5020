"""`securemedian bench lanes`: how much faster several lanes of one server are than one.

Parties without a peer (`rehearsal.lone_party`) run on a thread each. What lanes lack of as many
times the speed of one is due to the interpreter, which shows as time outside kernels, or to memory
and caches, which shows as processor time that grows with the lanes. Other load shows as both: the
fastest of many short turns tell what lanes can do, and the rest what they get.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median_low
from typing import Any

from securemedian.benchmarks import settings
from securemedian.benchmarks.parts import Clocks, Place
from securemedian.laboratory import report
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols.kernels import (
    extension,
    lpn,
    packing,
    planes,
    searching,
    tables,
    vectors,
)
from securemedian.mpc.protocols.kernels.native import hashing, leaves, slicing, trees
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds import cutting, lanes, rehearsal
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers import allocator
from securemedian.servers.computing.backends.threads import SWITCH_S

COMPARED = ("bucketed", "pairwise", "radix")
# A turn takes at least this long, next to which starting its threads is nothing.
TURN_S = 0.2
COLUMNS = (
    "method",
    "1 lane, s",
    "lanes, s",
    "times as fast",
    "median",
    "least",
    "most",
    "processor time, times",
    "outside kernels, %",
)
NATIVE = (hashing, leaves, slicing, trees)
# every kernel that a lane calls; those that only kernels call are within others
KERNELS: tuple[Place, ...] = tuple(
    ("kernels", module, name, None)
    for module in (extension, lpn, packing, planes, searching, tables, vectors, *NATIVE)
    for name, function in vars(module).items()
    if hasattr(function, "py_func")
)


@dataclass(frozen=True)
class TurnTime:
    """What one turn of some lanes took: seconds, and processor seconds of all threads together."""

    seconds: float
    processor_seconds: float


def add_kinds(kinds: Any) -> None:
    lanes = kinds.add_parser(
        "lanes",
        help="how many times as fast as one lane several are, on a core each",
        description="Time rounds on one lane and on several in turns, preprocessing included, "
        "without a peer. Several lanes do as many rounds each: on as many cores, of which nobody "
        'else uses any, they would at best take the time of one. "times as fast" compares the '
        "fastest turns of both; median, least and most are of pairs of turns that follow each "
        "other.",
    )
    lanes.add_argument(
        "--methods",
        type=settings.list_from(tuple(METHODS)),
        default=list(COMPARED),
        metavar="M,..",
        help=f"methods, with their default options (default: {','.join(COMPARED)})",
    )
    settings.add_counts(
        lanes,
        ("--clients", 8, "clients of the round"),
        ("--coordinates", ProtocolParams.chunk, "coordinates of each lane's round"),
    )
    settings.add_options(lanes, chooses=False)
    settings.add_out(lanes)
    lanes.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Time all methods, print a table, save the JSON."""
    chosen = settings.read(options)
    if chosen.protocol.lanes < 2:
        raise ConfigError("--lanes must be 2 or more: they are compared with one")
    file = report.check_writable(options.out / "lanes.json")
    console = report.console()
    points = []
    # as servers run
    allocator.keep()
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        for name in options.methods:
            with console.status(name):
                params = RoundParams(
                    METHODS[name](), dim=options.coordinates, max_clients=options.clients
                )
                points.append({"method": name} | measure(params, chosen.protocol, options.repeat))
    finally:
        sys.setswitchinterval(before)
    report.save(file, asdict(chosen) | {"native": chosen.native}, points)
    rows = [
        [str(point["method"]), *(report.figure(point[column]) for column in COLUMNS[1:])]
        for point in points
    ]
    title = (
        f"{chosen.protocol.lanes} lanes next to 1, {options.clients} clients, "
        f"{options.coordinates:,} coordinates each, on {report.cores()} cores"
    )
    console.print(report.table(title, COLUMNS, rows))
    console.print(f"saved to {file}")


def measure(params: RoundParams, protocol: ProtocolParams, repeat: int) -> dict[str, float]:
    """Return the figures of one method, by the names of COLUMNS, from `repeat` pairs of turns."""
    work = _work(params, protocol)
    parties = [rehearsal.lone_party(protocol) for _ in range(protocol.lanes)]
    _turn(parties, work, 1)
    times = math.ceil(TURN_S / _turn(parties[:1], work, 1).seconds)
    turns = [(_turn(parties[:1], work, times), _turn(parties, work, times)) for _ in range(repeat)]
    one, all_ = (min(turn.seconds for turn in kind) for kind in zip(*turns, strict=True))
    ratios = sorted(len(parties) * one.seconds / all_.seconds for one, all_ in turns)
    grown = [all_.processor_seconds / len(parties) / one.processor_seconds for one, all_ in turns]
    figures = (
        one / times,
        all_ / times,
        len(parties) * one / all_,
        median_low(ratios),
        ratios[0],
        ratios[-1],
        median_low(grown),
        100 * _outside_kernels(protocol, work),
    )
    return dict(zip(COLUMNS[1:], figures, strict=True))


def _work(params: RoundParams, protocol: ProtocolParams) -> Callable[[Party], None]:
    weights = [1] * params.max_clients
    chunks = cutting.cut(params, params.max_clients, replace(protocol, lanes=1))

    def work(party: Party) -> None:
        for begin, end in chunks:
            rehearsal.rehearse_round(party, params, weights, protocol.batch, end - begin)

    return work


def _turn(parties: Sequence[Party], work: Callable[[Party], None], times: int) -> TurnTime:
    """Let each party do the work so many times, on a thread of its own."""

    def lane(number: int) -> None:
        for _ in range(times):
            work(parties[number])

    start, processor = time.perf_counter(), time.process_time()
    lanes.run_lanes([party.channel for party in parties], lane)
    return TurnTime(time.perf_counter() - start, time.process_time() - processor)


def _outside_kernels(protocol: ProtocolParams, work: Callable[[Party], None]) -> float:
    """Return the part of one lane's processor time that is not spent in kernels."""
    party, clocks = rehearsal.lone_party(protocol), Clocks()
    work(party)
    with clocks.on(KERNELS):
        start = time.thread_time()
        work(party)
        return 1 - clocks.seconds["kernels"] / (time.thread_time() - start)
