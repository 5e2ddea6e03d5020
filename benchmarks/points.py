"""`securemedian bench ot|compare|median`: what single steps and whole medians cost."""

import argparse
import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from securemedian.benchmarks import harness, settings
from securemedian.benchmarks.by_clients import exponent
from securemedian.benchmarks.kind import Found, Result, run
from securemedian.benchmarks.settings import Settings, numbers
from securemedian.benchmarks.work import SWEPT, Point, can_be_malformed
from securemedian.clients.flags import add_methods, given_options
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
        kind.set_defaults(run=partial(run, "", _measure))


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


def _measure(options: argparse.Namespace, chosen: Settings) -> Found:
    results = harness.measure(options.points(options), chosen)
    note = _MEDIANS if results[0]["bench"] == "median" else _COUNTED
    title = f"{chosen.extension}, {chosen.link}"
    printed = [report.table(title, [_row(one) for one in results], note), str(chosen.yardstick)]
    return Found(results, [*printed, *growth(results)])


_COUNTED = "seconds = ahead of the inputs + online; MB: both directions; k/s: thousands per second"
_MEDIANS = (
    "seconds = ahead of the inputs + checking the uploads + online; MB: both directions; "
    "dealt, sent: MB of a client before and after its training, to the server that gets more"
)


def _row(one: Result) -> dict[str, Any]:
    median = one["bench"] == "median"
    return {
        "work": one["name"],
        "seconds": one["ahead_seconds"] + one["checking_seconds"] + one["seconds"],
        "ahead": one["ahead_seconds"] + one["preprocessing_seconds"],
        **({"checking": one["checking_seconds"]} if median else {}),
        "online": one["online_seconds"],
        "M OTs": one["ots"] / 1e6,
        "MB": report.megabytes(one),
        "rounds": f"{one['rounds']:,}",
        **(
            {"dealt": one["client_bytes_ahead"] / 1e6, "sent": one["client_bytes_after"] / 1e6}
            if median
            else {"k/s": one["per_second"] / 1e3, "B each": one["bytes_each"]}
        ),
    }


def growth(results: Sequence[Result]) -> list[str]:
    """Return a sentence on how the cost grows with the clients, for each method.

    A method must have been timed for three numbers of clients or more. The sentence gives the
    exponent of n in a least-squares fit of the logarithms: 1 for linear growth, 2 for quadratic.
    """
    series: dict[tuple[Any, ...], list[Result]] = {}
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
