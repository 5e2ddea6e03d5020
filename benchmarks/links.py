"""`securemedian bench links`: the best OT extension for each link.

It times random OTs, comparisons and a bucketed median with every extension over every link.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from securemedian.benchmarks import settings
from securemedian.benchmarks.work import Point
from securemedian.laboratory import report
from securemedian.laboratory.plots import Line, Panel

LINKS = ("loopback", "377MB/s", "100Mbit/s,40ms")
# the work of a point -> the unit of its seconds
WORK = {
    "ot": "seconds per million OTs",
    "compare": "seconds per million comparisons",
    "median": "seconds per median",
}

Result = Mapping[str, Any]


def add_kinds(kinds: Any) -> None:
    """Add `links` to `bench`."""
    links = kinds.add_parser(
        "links",
        help="which OT extension is best on which link",
        description="Time random OTs, signed comparisons (l = 32) and a bucketed median "
        "(8 clients, b = 8) with every OT extension over every link, preprocessing included, and "
        "name the fastest on each link.",
    )
    settings.add_extensions(links)
    links.add_argument(
        "--links",
        type=settings.link,
        nargs="+",
        default=list(LINKS),
        metavar="LINK",
        help=f"loopback, RATE or RATE,RTT (default: {' '.join(LINKS)})",
    )
    for name, default, what in (
        ("--ots", 1 << 22, "random OTs per repetition"),
        ("--comparisons", 1 << 18, "comparisons per repetition"),
        ("--dim", 200_000, "coordinates of the median"),
    ):
        links.add_argument(
            name,
            type=settings.count,
            default=default,
            metavar="N",
            help=f"{what} (default: %(default)s)",
        )
    settings.add_options(links, chooses=False)
    settings.add_out(links)
    links.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Time all points over all links, print a table, save the JSON and the plot."""
    chosen = settings.read(options)
    stem = options.out / "links"
    file = report.prepare(stem)
    points = [
        Point("ot", "random", count=options.ots),
        Point("compare", "comparison", count=options.comparisons, ring_bits=32),
        Point("median", "bucketed", None, 8, options.dim, 8, 0, "scan", ahead=True, verified=False),
    ]
    results: list[dict[str, Any]] = []
    for link in options.links:
        for name, protocol in settings.protocols(options).items():
            results += settings.measure(
                points, replace(chosen, protocol=protocol, link=link), f"{name}, {link}:"
            )
    best = {link: winners([r for r in results if r["link"] == link]) for link in options.links}
    report.save(file, asdict(chosen), results, fastest=best)
    console = report.console()
    console.print(_table(results, options))
    for link, names in best.items():
        console.print(
            f"fastest over {link}: " + ", ".join(f"{what} {name}" for what, name in names.items())
        )
    title = "OT extensions by link"
    console.print(f"saved to {file}, {report.draw(stem, title, _panels(results, options))}")


def winners(results: Sequence[Result]) -> dict[str, str]:
    """Return the fastest extension for each kind of work, from the results of one link."""
    return {
        what: min((r for r in results if r["bench"] == bench), key=seconds)["extension"]
        for bench, what in (("ot", "OTs"), ("compare", "comparisons"), ("median", "median"))
    }


def seconds(result: Result) -> float:
    """Return the seconds per median, or per million OTs or comparisons.

    They include those of correlations that were made before the round started.
    """
    spent = float(result["ahead_seconds"] + result["seconds"])
    return spent if result["count"] is None else spent / result["count"] * 1e6


def _table(results: Sequence[Result], options: argparse.Namespace) -> Any:
    columns = [
        "link",
        "extension",
        "M OTs/s",
        "B each",
        "k comparisons/s",
        "B each",
        "median, s",
        "online, s",
        "MB",
    ]
    rows = []
    for ot, compare, median in zip(*[iter(results)] * 3, strict=True):
        figures = (
            ot["per_second"] / 1e6,
            ot["bytes_each"],
            compare["per_second"] / 1e3,
            compare["bytes_each"],
            seconds(median),
            median["online_seconds"],
            report.megabytes(median),
        )
        rows.append([ot["link"], ot["extension"], *map(report.figure, figures)])
    title = (
        f"comparisons: l = 32; median: bucketed, n = 8, b = 8, d = {options.dim:,}; "
        "bytes of both directions"
    )
    return report.table(title, columns, rows)


def _panels(results: Sequence[Result], options: argparse.Namespace) -> list[Panel]:
    def lines(bench: str) -> list[Line]:
        return [
            Line(
                name,
                range(len(options.links)),
                [seconds(r) for r in results if r["bench"] == bench and r["extension"] == name],
            )
            for name in options.extensions
        ]

    titles = {
        "ot": "random OTs",
        "compare": "comparisons, l = 32",
        "median": f"bucketed median, d = {options.dim:,}",
    }
    return [
        Panel(titles[bench], "link", unit, lines(bench), log_y=True, x_ticks=options.links)
        for bench, unit in WORK.items()
    ]
