"""`securemedian bench ot|compare|median`: what single steps and whole medians cost."""

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from securemedian.benchmarks import settings
from securemedian.benchmarks.by_clients import exponent
from securemedian.benchmarks.settings import numbers
from securemedian.benchmarks.work import SWEPT, Point, can_be_malformed
from securemedian.clients.flags import add_methods, given_options
from securemedian.common import terminal
from securemedian.laboratory import report
from securemedian.mpc.rounds.methods.registry import DEFAULT_METHOD

DEFAULT_OTS = 1 << 23
DEFAULT_COMPARISONS = 1 << 20


def add_kinds(kinds: Any) -> None:
    ot = kinds.add_parser("ot", help="random OTs, half in either direction, the check included")
    settings.add_counts(ot, ("--count", DEFAULT_OTS, "OTs per repetition"))
    ot.set_defaults(points=lambda o: [Point("ot", "random", count=o.count)])

    compare = kinds.add_parser(
        "compare", help="signed comparisons of shared values, preprocessing included"
    )
    compare.add_argument(
        "--ring-bits",
        type=numbers,
        default=[32, 64],
        metavar="L,..",
        help="rings Z_2^L (default: 32,64)",
    )
    settings.add_counts(compare, ("--count", DEFAULT_COMPARISONS, "comparisons per repetition"))
    compare.set_defaults(
        points=lambda o: [
            Point("compare", "comparison", count=o.count, options={"ring_bits": bits})
            for bits in o.ring_bits
        ]
    )

    median = kinds.add_parser(
        "median",
        help="a whole median on shares",
        usage="securemedian bench median [OPTION ..] [METHOD [OPTION ..]]",
    )
    add_methods(median, _add_median_options, only=SWEPT)
    median.set_defaults(points=_median_points)
    for kind in (ot, compare):
        _add_shared(kind)
    for kind in (ot, compare, median):
        kind.set_defaults(run=run)


def _add_shared(kind: argparse.ArgumentParser) -> None:
    settings.add_options(kind)
    kind.add_argument("--json", type=Path, metavar="FILE", help="save the points as a JSON list")


def _add_median_options(median: argparse.ArgumentParser) -> None:
    median.add_argument(
        "--clients",
        type=numbers,
        default=[2, 4, 6, 8, 10],
        metavar="N,..",
        help="numbers of clients (default: 2,4,6,8,10)",
    )
    median.add_argument(
        "--dim", type=numbers, default=[1000], metavar="D,..", help="coordinates (default: 1000)"
    )
    median.add_argument(
        "--ahead",
        action="store_true",
        help="make all correlations before the round starts, as servers do while clients train",
    )
    for flag, verified, text in (
        ("--verify", True, "let the servers check what clients upload (default)"),
        ("--no-verify", False, "trust the clients instead; give both to compare them"),
    ):
        median.add_argument(flag, action="append_const", dest="verified", const=verified, help=text)
    _add_shared(median)


def run(options: argparse.Namespace) -> None:
    """Time all points, print a table, save the JSON."""
    chosen = settings.read(options)
    if options.json:
        report.check_writable(options.json)
    results = settings.measure(options.points(options), chosen)
    console = terminal.console(width=terminal.TABLE_WIDTH)
    console.print(_table(results))
    console.print(str(chosen.yardstick))
    for line in growth(results):
        console.print(line)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
        console.print(f"saved to {options.json}")


def _table(results: Sequence[dict[str, Any]]) -> Any:
    first = results[0]
    medians = first["bench"] == "median"
    columns = _MEDIANS if medians else _COUNTED
    rows = [[one["name"], *(figure(one) for figure in columns.values())] for one in results]
    note = (
        "seconds = ahead of the inputs + checking the uploads + online; MB: both directions; "
        "dealt, sent: MB of a client before and after its training, to the server that gets more"
        if medians
        else "seconds = ahead of the inputs + online; MB: both directions; "
        "k/s: thousands per second"
    )
    title = f"{first['extension']}, {first['link']}"
    return terminal.table(title, ["work", *columns], rows, note)


Figures = dict[str, Callable[[dict[str, Any]], str]]
_SECONDS: Figures = {
    "seconds": lambda r: f"{r['ahead_seconds'] + r['checking_seconds'] + r['seconds']:.3f}",
    "ahead": lambda r: f"{r['ahead_seconds'] + r['preprocessing_seconds']:.3f}",
}
_REST: Figures = {
    "online": lambda r: f"{r['online_seconds']:.3f}",
    "M OTs": lambda r: f"{r['ots'] / 1e6:.2f}",
    "MB": lambda r: f"{report.megabytes(r):.2f}",
    "rounds": lambda r: str(r["rounds"]),
}
# title -> figure of a result
_COUNTED: Figures = {
    **_SECONDS,
    **_REST,
    "k/s": lambda r: f"{r['per_second'] / 1e3:,.0f}",
    "B each": lambda r: f"{r['bytes_each']:.1f}",
}
_MEDIANS: Figures = {
    **_SECONDS,
    "checking": lambda r: f"{r['checking_seconds']:.3f}",
    **_REST,
    "dealt": lambda r: f"{r['client_bytes_ahead'] / 1e6:.2f}",
    "sent": lambda r: f"{r['client_bytes_after'] / 1e6:.2f}",
}


def growth(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence on how the cost grows with the clients, for each method.

    A method must have been timed for three numbers of clients or more. The sentence gives the
    exponent of n in a least-squares fit of the logarithms: 1 for linear growth, 2 for quadratic.
    """
    series: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for result in results:
        if result["clients"] is not None:
            varied = tuple(
                result.get(name) for name in ("method", "dim", "buckets", "schedule", "encoding")
            ) + ("" if result["verified"] else "unverified",)
            series.setdefault(varied, []).append(result)
    lines = []
    for varied, points in series.items():
        ots, seconds = (
            exponent((point["clients"], point[what]) for point in points)
            for what in ("ots", "seconds")
        )
        if ots is not None and seconds is not None:
            name = " ".join(str(value) for value in varied if value not in (None, ""))
            lines.append(f"{name}: OTs grow as n^{ots:.2f}, seconds as n^{seconds:.2f}")
    return lines


def _median_points(options: argparse.Namespace) -> list[Point]:
    method = options.method or DEFAULT_METHOD
    given = given_options(options)
    # in which of the ways that were asked for, where a method has both
    checked = (options.verified or [True]) if can_be_malformed(method) else [True]
    return [
        Point("median", method, None, clients, dim, given, options.ahead, verified)
        for clients, dim, verified in itertools.product(options.clients, options.dim, checked)
    ]
