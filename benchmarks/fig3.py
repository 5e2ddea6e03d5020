"""`securemedian bench fig3`: the growth of the cost with the clients.

This is the paper's Figure 3: time and megabytes of bucketed (b = 8) and pairwise (l = 64) medians
for d = 1000 and n = 2..10; and of the radix median, which the paper does not have.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from securemedian.benchmarks import reported, settings
from securemedian.benchmarks.points import growth
from securemedian.benchmarks.work import Point
from securemedian.laboratory import report
from securemedian.laboratory.plots import Line, Panel
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.params import RoundParams

LABELS = {"bucketed": "bucketed, b = 8", "pairwise": "pairwise, l = 64", "radix": "radix, float32"}

Result = Mapping[str, Any]


def add_kinds(kinds: Any) -> None:
    """Add `fig3` to `bench`."""
    fig3 = kinds.add_parser(
        "fig3",
        help="the paper's Figure 3: cost by number of clients",
        description="The paper's Figure 3: seconds and megabytes of bucketed and pairwise medians "
        "by the number of clients, and of the radix median. Preprocessing is included.",
    )
    fig3.add_argument(
        "--clients",
        type=settings.numbers,
        default=list(range(2, 11)),
        metavar="N,..",
        help="numbers of clients (default: 2,3,..,10)",
    )
    fig3.add_argument(
        "--dim", type=settings.count, default=1000, metavar="D", help="coordinates (default: 1000)"
    )
    settings.add_options(fig3)
    settings.add_out(fig3)
    fig3.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Time all points, print tables, save the JSON and the plot."""
    chosen = settings.read(options)
    stem = options.out / "fig3"
    file = report.prepare(stem)
    results = settings.measure(_points(options.clients, options.dim), chosen)
    report.save(file, asdict(chosen), results)
    console = report.console()
    console.print(_table(results))
    console.print(_compared(results))
    for line in growth(results):
        console.print(line)
    title = f"Figure 3: medians of {options.dim:,} coordinates"
    console.print(f"saved to {file}, {report.draw(stem, title, _panels(results))}")


def _points(clients: Sequence[int], dim: int) -> list[Point]:
    """Return the points, with one width of the count ring for all bucketed medians.

    It is the width that the most clients need; otherwise the cost would grow with the width.
    """
    bits = RoundParams(Bucketed(), dim=dim, max_clients=max(clients)).ring_bits
    return [
        *(
            Point("median", "bucketed", None, n, dim, 8, bits, "scan", verified=False)
            for n in clients
        ),
        *(Point("median", "pairwise", None, n, dim, ring_bits=0, verified=False) for n in clients),
        *(Point("median", "radix", None, n, dim, ring_bits=0, encoding="float32") for n in clients),
    ]


def _of(results: Sequence[Result], method: str) -> list[Result]:
    return [result for result in results if result["method"] == method]


def _table(results: Sequence[Result]) -> Any:
    columns = ["clients", *(f"{method} {unit}" for method in LABELS for unit in ("s", "MB"))]
    rows = [
        [
            str(same[0]["clients"]),
            *(report.figure(value) for r in same for value in (r["seconds"], report.megabytes(r))),
        ]
        for same in zip(*(_of(results, method) for method in LABELS), strict=True)
    ]
    title = f"Figure 3: medians of {results[0]['dim']:,} coordinates; MB: both directions"
    return report.table(title, columns, rows)


def _compared(results: Sequence[Result]) -> Any:
    """Return a table of our figures for the most clients and of theirs."""
    rows = []
    for method, theirs in reported.FIGURE_3.items():
        ours = _of(results, method)[-1]
        figures = ours["seconds"], report.megabytes(ours), theirs.seconds, theirs.megabytes
        rows.append(
            [
                f"{LABELS[method]}, n = {ours['clients']}",
                *map(report.figure, figures),
                theirs.source,
            ]
        )
    columns = ["", "s", "MB", "theirs, s", "MB", "whose"]
    title = "compared with others, whose figures are for d = 1,000 and n = 10"
    return report.table(title, columns, rows)


def _panels(results: Sequence[Result]) -> list[Panel]:
    def panel(title: str, unit: str, ours: Callable[[Result], float], theirs: str) -> Panel:
        lines = [
            Line(
                name,
                [r["clients"] for r in _of(results, method)],
                [ours(r) for r in _of(results, method)],
            )
            for method, name in LABELS.items()
        ]
        lines += [
            Line(f"{method}, the paper's backend", [10], [getattr(figure, theirs)])
            for method, figure in reported.FIGURE_3.items()
        ]
        return Panel(title, "clients", unit, lines, log_y=True)

    return [
        panel("time", "seconds", lambda result: float(result["seconds"]), "seconds"),
        panel("communication, both directions", "megabytes", report.megabytes, "megabytes"),
    ]
