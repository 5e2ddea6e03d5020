"""`securemedian bench table1`: the cost of a round of a real model, phase by phase.

This is the paper's Table 1: CNNMnist's 1,663,370 coordinates, 8 clients, b = 8. The medians in the
clear are timed in the same run.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from securemedian.benchmarks import reported, settings
from securemedian.benchmarks.reported import Reported
from securemedian.benchmarks.work import Point
from securemedian.laboratory import plots, report
from securemedian.laboratory.plots import Bars
from securemedian.mpc import encode, ring, share
from securemedian.mpc.encode import UniformBuckets
from securemedian.mpc.methods.bucketed import Bucketed
from securemedian.mpc.params import RoundParams

CNN_MNIST = 1_663_370
BUCKETS = 8
MIB = 1 << 20
SEED = 1


@dataclass(frozen=True)
class Phase:
    """A line of the table; `reported` is a key of `reported.TABLE_1`."""

    name: str
    where: str
    seconds: float
    megabytes: float | None = None
    reported: str = ""

    @property
    def theirs(self) -> Reported | None:
        """The paper's figure, if it has one."""
        return reported.TABLE_1.get(self.reported)


def add_kinds(kinds: Any) -> None:
    """Add `table1` to `bench`."""
    table1 = kinds.add_parser(
        "table1",
        help="the paper's Table 1: a round of CNNMnist, phase by phase",
        description="The paper's Table 1: what each phase of a round takes for CNNMnist's "
        "parameters, at one client and at the servers. The servers make their correlations before "
        "the round starts, as they do while clients train. The medians in the clear are timed in "
        "the same run. The servers' peak memory is printed, too.",
    )
    table1.add_argument(
        "--clients",
        type=settings.count,
        default=8,
        metavar="N",
        help="how many clients take part (default: %(default)s)",
    )
    table1.add_argument(
        "--dim",
        type=settings.count,
        default=CNN_MNIST,
        metavar="D",
        help="coordinates (default: %(default)s)",
    )
    table1.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="also time one local epoch of one client, on its part of the MNIST files in DIR",
    )
    table1.add_argument(
        "--pairwise",
        action="store_true",
        help="also run the pairwise median (l = 64), once, which takes minutes",
    )
    settings.add_options(table1)
    settings.add_out(table1)
    table1.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Time all phases, print a table, save the JSON and the plot."""
    chosen = settings.read(options)
    stem = options.out / "table1"
    file = report.prepare(stem)
    points = [
        Point(
            "median", "bucketed", None, options.clients, options.dim, BUCKETS, 0, "scan", ahead=True
        )
    ]
    results = settings.measure(points, chosen)
    if options.pairwise:
        pairwise = [Point("median", "pairwise", None, options.clients, options.dim, ring_bits=0)]
        results += settings.measure(pairwise, replace(chosen, repeat=1))
    console = report.console()
    with console.status("one client, and the medians in the clear"):
        clients = ([_train(options.data, options.clients)] if options.data else []) + _client(
            options.clients, options.dim, chosen.repeat
        )
        clear = _in_the_clear(options.clients, options.dim, chosen.repeat)
    phases = clients + _servers(results) + clear
    summary = {
        "online_to_numpy_median": results[0]["online_seconds"] / clear[0].seconds,
        "peak_mib": [results[0][f"peak_bytes_s{j}"] / MIB for j in (0, 1)],
    }
    report.save(
        file, asdict(chosen), results, phases=[asdict(phase) for phase in phases], **summary
    )
    console.print(_table(phases, options))
    if not options.data:
        console.print("training is left out: name MNIST's folder with --data to time it, too")
    console.print(f"online / numpy.median, same run: {summary['online_to_numpy_median']:.2f}")
    peaks = ", ".join(f"S{j} {mib:.0f} MiB" for j, mib in enumerate(summary["peak_mib"]))
    console.print(f"peak memory of the server processes: {peaks}")
    console.print(f"saved to {file}, {_plot(stem, phases, options)}")


def _train(directory: Path, clients: int) -> Phase:
    from securemedian.laboratory import data, models

    models.use_one_thread()
    model, images = models.MODELS["cnn-mnist"], data.load(directory, "mnist")
    part = data.split(images.labels, clients, SEED)[0]
    rng = np.random.default_rng(SEED)
    vector = models.start(model, SEED)
    start = time.perf_counter()
    models.train(model, vector, images.images[part], images.labels[part], rng)
    where = f"client, {len(part):,} images, one core"
    return Phase("train one local epoch", where, time.perf_counter() - start, None, "train")


def _client(clients: int, dim: int, repeat: int) -> list[Phase]:
    update, model, width = (
        _updates(1, dim)[0],
        np.zeros(dim, np.float32),
        np.full(dim, 0.1, np.float32),
    )
    bits = RoundParams(Bucketed(buckets=BUCKETS), dim, clients).ring_bits
    buckets = UniformBuckets(width, BUCKETS)
    index = buckets.bucketize(update, model)
    halves = share.split(encode.cumulative(index, BUCKETS), bits)
    sent = 16 + halves[1].packed.nbytes
    bucketize = _time(lambda: buckets.bucketize(update, model), repeat)
    split = _time(lambda: share.split(encode.cumulative(index, BUCKETS), bits), repeat)
    return [
        Phase("bucketize", "client", bucketize, None, "bucketize"),
        Phase("share", "client", split, sent / 1e6, "share"),
    ]


def _servers(results: list[dict[str, Any]]) -> list[Phase]:
    bucketed = results[0]
    ahead = bucketed["ahead_seconds"] + bucketed["preprocessing_seconds"]
    both = report.megabytes(bucketed)
    made = (
        bucketed["preprocessing_bytes_s0_to_s1"] + bucketed["preprocessing_bytes_s1_to_s0"]
    ) / 1e6
    phases = [
        Phase("secure median", "servers", ahead + bucketed["online_seconds"], both, "median"),
        Phase("  preprocessing, while clients train", "servers", ahead, made),
        Phase("  online", "servers", bucketed["online_seconds"], both - made),
        Phase("    of it, reading and summing the uploads", "servers", bucketed["uploads_seconds"]),
        Phase("quantize, and the next range", "S0", bucketed["publish_seconds"], None, "quantize"),
    ]
    for pairwise in results[1:]:
        phases.append(
            Phase(
                "pairwise secure median, l = 64",
                "servers",
                pairwise["seconds"],
                report.megabytes(pairwise),
                "pairwise",
            )
        )
    return phases


def _in_the_clear(clients: int, dim: int, repeat: int) -> list[Phase]:
    """Return the phases in the clear, numpy.median first, which the online part is compared to."""
    updates = _updates(clients, dim)
    rank = ring.median_rank(clients)
    median = _time(lambda: np.median(updates, axis=0), repeat)
    partition = _time(lambda: np.partition(updates, rank - 1, axis=0), repeat)
    uploads = [
        encode.cumulative(UniformBuckets(0.1, BUCKETS).bucketize(update, 0.0), BUCKETS)
        for update in updates
    ]

    def bucketed() -> None:
        counts = np.zeros_like(uploads[0])
        for upload in uploads:
            counts += upload
        (counts < rank).sum(axis=0, dtype=np.uint16)

    return [
        Phase("numpy.median", "in the clear", median, None, "insecure median"),
        Phase("numpy.partition", "in the clear", partition),
        Phase("bucketed median", "in the clear", _time(bucketed, repeat)),
    ]


def _updates(clients: int, dim: int) -> Any:
    return np.random.default_rng(SEED).normal(0, 0.03, (clients, dim)).astype(np.float32)


def _time(work: Callable[[], object], repeat: int) -> float:
    """Return the median seconds of the repetitions, after one that warms up."""
    work()
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median_low(seconds)


def _title(options: argparse.Namespace) -> str:
    return f"Table 1: d = {options.dim:,}, n = {options.clients}, b = {BUCKETS}"


def _plot(stem: Path, phases: list[Phase], options: argparse.Namespace) -> str:
    rows = [f"{phase.name.strip()} ({phase.where.partition(',')[0]})" for phase in phases]
    theirs = [phase.theirs.seconds if phase.theirs else None for phase in phases]
    series: dict[str, list[float | None]] = {
        "here": [phase.seconds for phase in phases],
        reported.PAPER: theirs,
    }
    paths = plots.save_bars(stem, _title(options), Bars("seconds", rows, series))
    return " and ".join(str(path) for path in paths)


def _table(phases: list[Phase], options: argparse.Namespace) -> Any:
    rows = []
    for phase in phases:
        theirs = phase.theirs
        figures = report.figure(phase.seconds), report.figure(phase.megabytes)
        rows.append(
            [phase.name, phase.where, *figures, report.figure(theirs.seconds if theirs else None)]
        )
    note = (
        f"MB: both directions together; the paper's: {reported.PAPER.removeprefix('paper: ')}, "
        "as printed"
    )
    return report.table(_title(options), ["phase", "where", "s", "MB", "the paper, s"], rows, note)
