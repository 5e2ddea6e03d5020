"""The kind `peers` of `bench`: the same comparisons and medians with SPU and MPyC, in one run."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from statistics import median_low
from typing import Any

from securemedian.benchmarks import settings
from securemedian.benchmarks.peers import processes
from securemedian.benchmarks.peers.processes import HERE, PeerFailed
from securemedian.benchmarks.work import Point
from securemedian.laboratory import report
from securemedian.mpc.protocols.protocol import ProtocolParams

Row = dict[str, Any]

COMPARE, MEDIAN, SORT = "compare", "median", "sort"


@dataclass(frozen=True)
class Way:
    """A way in which a peer does one kind of work, with the size of its batch.

    The batch is our batch divided by `part`. Work that a peer does one item after another costs the
    same per item in a smaller batch, and would take minutes in ours.
    """

    work: str
    how: str
    part: int = 1


@dataclass(frozen=True)
class Framework:
    """Another system, and the ways in which it does the work."""

    name: str
    title: str
    parties: int
    # of the ring that its floats are in
    median_bits: int
    ways: tuple[Way, ...]


PEERS = (
    Framework(
        "spu",
        "SPU",
        2,
        64,
        (
            Way(COMPARE, "Cheetah"),
            Way(SORT, "Cheetah, sorting network"),
            Way(MEDIAN, "Cheetah, jnp.median", 20),
        ),
    ),
    Framework(
        "mpyc",
        "MPyC",
        3,
        32,
        (
            Way(COMPARE, "Shamir, 3 parties", 100),
            Way(SORT, "Shamir, np_sort", 10),
            Way(MEDIAN, "Shamir, median_low", 100),
        ),
    ),
)
OURS = "securemedian"
PROTOCOL = ProtocolParams()
RINGS = (32, 64)


def add_kinds(kinds: Any) -> None:
    """Add `peers` to `bench`."""
    peers = kinds.add_parser(
        "peers",
        help="the same comparisons and medians with SPU and MPyC",
        description="Time signed comparisons and coordinate-wise medians with SPU (Cheetah, two "
        "parties), MPyC (three parties, the fewest of which one may be corrupt) and this program, "
        "one after another on this machine, with one process per party on loopback. Peers are "
        "installed with pip in virtual environments of their own. Set-up is not counted; the "
        "median of the repetitions is kept; the peers' results are checked against numpy.",
    )
    peers.add_argument(
        "--peers",
        type=settings.list_from([peer.name for peer in PEERS]),
        default=[peer.name for peer in PEERS],
        metavar="P,..",
        help="the other systems (default: spu,mpyc)",
    )
    peers.add_argument(
        "--count",
        type=settings.count,
        default=400_000,
        help="comparisons per batch (default: %(default)s)",
    )
    peers.add_argument(
        "--clients",
        type=settings.count,
        default=8,
        help="values per median (default: %(default)s)",
    )
    peers.add_argument(
        "--dim", type=settings.count, default=1000, help="medians per batch (default: %(default)s)"
    )
    peers.add_argument(
        "--repeat", type=settings.count, default=3, help="repetitions (default: %(default)s)"
    )
    peers.add_argument("--no-pin", action="store_true", help="do not hold each process to one core")
    peers.add_argument(
        "--env",
        type=Path,
        default=Path("results/peers-env"),
        metavar="DIR",
        help="the peers' virtual environments (default: %(default)s)",
    )
    peers.add_argument(
        "--limit-s",
        type=float,
        default=1200.0,
        help="limit for running each peer, and for installing it (default: %(default)s)",
    )
    peers.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    settings.add_out(peers)
    peers.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Time our program and every peer, print the ratios, save the JSON."""
    console = report.console()
    file = report.check_writable(options.out / "peers.json")
    ours = settings.Settings(PROTOCOL, repeat=options.repeat, pin=not options.no_pin)
    rows = _ours(options, ours)
    failed: dict[str, str] = {}
    for peer in PEERS:
        if peer.name not in options.peers:
            continue
        try:
            with console.status(
                f"{peer.title}: installing it in {options.env} if it is not there yet"
            ):
                python = processes.install(peer.name, options.env.absolute(), options.limit_s)
            with console.status(f"{peer.title}: some minutes with the default sizes"):
                rows += _theirs(peer, python, options)
        except PeerFailed as error:
            failed[peer.name] = str(error)
    rows = with_ratios(rows)
    versions = {
        peer.name: processes.pins(peer.name) for peer in PEERS if peer.name in options.peers
    }
    report.save(file, asdict(ours), rows, versions=versions, failed=failed)
    _show(console, rows, options.markdown)
    for name, why in failed.items():
        console.print(f"{name} gave no result: {why}", markup=False)
    console.print(f"saved to {file}")


def _ours(options: argparse.Namespace, ours: settings.Settings) -> list[Row]:
    points = [Point(COMPARE, "comparison", count=options.count, ring_bits=bits) for bits in RINGS]
    points += [
        Point("median", "radix", None, options.clients, options.dim, encoding="float32"),
        Point(
            "median", "pairwise", None, options.clients, options.dim, ring_bits=64, verified=False
        ),
        Point(
            "median", "bucketed", None, options.clients, options.dim, 8, 0, "scan", verified=False
        ),
    ]
    exact = ("", "", "exact, radix on float32", "exact, pairwise, l = 64", "bucketed, b = 8")
    results = settings.measure(points, ours, f"{OURS}:")
    return [
        _row(
            _what(point.bench, point.ring_bits, options.clients),
            OURS,
            how,
            point.count or options.dim,
            result["seconds"],
            result["bytes_s0_to_s1"] + result["bytes_s1_to_s0"],
        )
        for point, how, result in zip(points, exact, results, strict=True)
    ]


def _theirs(peer: Framework, python: Path, options: argparse.Namespace) -> list[Row]:
    jobs = [
        (
            way,
            {
                "work": way.work,
                "ring_bits": bits,
                "clients": options.clients,
                "count": max(1, batch // way.part),
            },
        )
        for way in peer.ways
        for bits, batch in (
            [(bits, options.count) for bits in RINGS]
            if way.work == COMPARE
            else [(peer.median_bits, options.dim)]
        )
    ]
    command = [str(python), "-I", str(HERE / f"{peer.name}_party.py")]
    tasks = [task for _, task in jobs]
    parties = processes.run(
        command, peer.parties, tasks, options.repeat, not options.no_pin, options.limit_s
    )
    title = f"{peer.title} {processes.pins(peer.name)[peer.name]}"
    return [
        _row(
            _what(task["work"], task["ring_bits"], options.clients),
            title,
            way.how,
            task["count"],
            # the slower party's seconds of each repetition, as in benchmarks.harness
            median_low(
                [
                    max(seconds)
                    for seconds in zip(*(party["seconds"] for party in results), strict=True)
                ]
            ),
            # the mean, because a repetition that refills a stock of correlations sends more
            sum(sum(party["bytes_sent"]) for party in results) / options.repeat,
        )
        for (way, task), *results in zip(jobs, *parties, strict=True)
    ]


def _what(work: str, ring_bits: int | None, clients: int) -> str:
    return (
        f"signed comparison, l = {ring_bits}" if work == COMPARE else f"median of {clients} floats"
    )


def _row(what: str, system: str, how: str, batch: int, seconds: float, sent: float) -> Row:
    return {
        "what": what,
        "system": system,
        "how": how,
        "batch": batch,
        "seconds": seconds,
        "per_second": batch / seconds,
        "bytes_each": sent / batch,
    }


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """Return the rows grouped by work, each with its ratio: how many times faster ours is.

    Ours is the first row of each group.
    """
    order = list(dict.fromkeys(row["what"] for row in rows))
    grouped = groupby(
        sorted(rows, key=lambda row: order.index(row["what"])), lambda row: row["what"]
    )
    return [
        row | {"ratio": first["per_second"] / row["per_second"]}
        for _, (first, *others) in grouped
        for row in (first, *others)
    ]


def _show(console: Any, rows: Sequence[Row], markdown: bool) -> None:
    columns = ["work", "system", "how", "batch", "per second", "B each", "ours is faster by"]
    figures = [
        [
            row["what"],
            row["system"],
            row["how"],
            f"{row['batch']:,}",
            report.figure(row["per_second"]),
            report.figure(row["bytes_each"]),
            report.figure(row["ratio"]),
        ]
        for row in rows
    ]
    report.show(console, "preprocessing included; bytes of all parties", columns, figures, markdown)
