"""`securemedian bench table1`: the cost of a round of a real model, phase by phase.

This is the paper's Table 1: CNNMnist's 1,663,370 coordinates, 8 clients, b = 8; and the same for
the default buckets and schedule. Each is timed with dealt uploads, which the servers check, and
with the paper's own, which nobody can check. The medians in the clear are timed in the same run.
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
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.protocols.dealing import Dealing, deal
from securemedian.mpc.protocols.prg import SEED_BYTES
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.encode import UniformBuckets
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.params import RoundParams

CNN_MNIST = 1_663_370
BUCKETS = 8
# buckets and schedule: the paper's, and the default
SETTINGS = ((BUCKETS, "scan"), (Bucketed().buckets, Bucketed().schedule))
MIB = 1 << 20
SEED = 1


@dataclass(frozen=True)
class Phase:
    """A line of the table; `reported` is a key of `reported.TABLE_1`.

    `setting` names buckets, schedule and kind of upload, where the line is of one.
    """

    name: str
    where: str
    seconds: float
    megabytes: float | None = None
    reported: str = ""
    setting: str = ""

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
    # new processes for each setting, verified first, so that its peak of memory is its own
    results = []
    for buckets, schedule in SETTINGS:
        point = Point(
            "median", "bucketed", None, options.clients, options.dim, buckets, 0, schedule
        )
        both = [replace(point, ahead=True, verified=verified) for verified in (True, False)]
        results += settings.measure(both, chosen)
    pairs = list(zip(results[0::2], results[1::2], strict=True))
    if options.pairwise:
        point = Point("median", "pairwise", None, options.clients, options.dim, ring_bits=0)
        results += settings.measure([replace(point, verified=False)], replace(chosen, repeat=1))
    console = report.console()
    with console.status("one client, and the medians in the clear"):
        clients = ([_train(options.data, options.clients)] if options.data else []) + _client(
            options.clients, options.dim, chosen.repeat
        )
        clear = _in_the_clear(options.clients, options.dim, chosen.repeat)
    phases = clients + _servers(results) + clear
    reached = [_reached(verified, unverified, clear[0].seconds) for verified, unverified in pairs]
    saved = [asdict(phase) for phase in phases]
    report.save(file, asdict(chosen), results, phases=saved, reached=reached)
    console.print(_table(phases, options))
    if not options.data:
        console.print("training is left out: name MNIST's folder with --data to time it, too")
    for each in reached:
        console.print(
            "{setting}: preprocessing and checking / unverified preprocessing "
            "{ahead_to_unverified:.2f}; online / numpy.median {online_to_numpy_median:.2f}; "
            "checking {checking_ms_per_client:.0f} ms per client; peak memory S0 "
            "{peak_mib[0]:.0f} MiB, S1 {peak_mib[1]:.0f} MiB".format(**each)
        )
    console.print(f"saved to {file}, {_plot(stem, phases, options)}")


def _reached(
    verified: dict[str, Any], unverified: dict[str, Any], numpy_median: float
) -> dict[str, Any]:
    """Return what the checks cost in one setting, next to the same round without them."""
    ahead = _ahead(verified) + verified["checking_seconds"]
    return {
        "setting": _setting(verified),
        "ahead_to_unverified": ahead / _ahead(unverified),
        "online_to_numpy_median": verified["online_seconds"] / numpy_median,
        "checking_ms_per_client": 1e3 * verified["checking_seconds"] / verified["clients"],
        "peak_mib": [verified[f"peak_bytes_s{j}"] / MIB for j in (0, 1)],
    }


def _ahead(result: dict[str, Any]) -> float:
    """Return the seconds of making correlations, before the round and in it."""
    return float(result["ahead_seconds"] + result["preprocessing_seconds"])


def _setting(result: dict[str, Any]) -> str:
    unverified = "" if result["verified"] else ", unverified"
    return f"b={result['buckets']} {result['schedule']}{unverified}"


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
    bits = RoundParams(Bucketed(buckets=BUCKETS), dim=dim, max_clients=clients).ring_bits
    buckets = UniformBuckets(width, BUCKETS)
    index = buckets.bucketize(update, model)
    halves = share.split(encode.cumulative(index, BUCKETS), bits)
    sent = 16 + halves[1].packed.nbytes
    bucketize = _time(lambda: buckets.bucketize(update, model), repeat)
    split = _time(lambda: share.split(encode.cumulative(index, BUCKETS), bits), repeat)
    unverified = f"b={BUCKETS}, unverified"
    phases = [
        Phase("bucketize", "client", bucketize, None, "bucketize"),
        Phase("share", "client", split, sent / 1e6, "share", unverified),
    ]
    for number, schedule in SETTINGS:
        method = Bucketed(buckets=number, schedule=schedule, uploads="dealt")
        shape = RoundParams(method, dim=dim, max_clients=clients).dealing
        assert shape is not None
        phases += _dealing(shape, index, f"b={number} {schedule}", repeat)
    return phases


def _dealing(shape: Dealing, index: Any, setting: str, repeat: int) -> list[Phase]:
    # a dealing rotates one update only
    dealings = [deal(shape)]
    dealing = _time(lambda: dealings.append(deal(shape)), repeat)
    rotating = _time(lambda: dealings.pop().rotations(index), repeat)
    ahead, after = SEED_BYTES + shape.bytes_ahead, 2 * shape.bytes_after
    return [
        Phase("deal, before it has trained", "client", dealing, ahead / 1e6, "", setting),
        Phase("rotate", "client", rotating, after / 1e6, "", setting),
    ]


def _servers(results: list[dict[str, Any]]) -> list[Phase]:
    phases = []
    for result in results:
        both = report.megabytes(result)
        if result["method"] == "pairwise":
            name, seconds = "pairwise secure median, l = 64", result["seconds"]
            phases.append(Phase(name, "servers", seconds, both, "pairwise"))
            continue
        made, checked = (
            sum(result[f"{part}_{way}"] for way in ("bytes_s0_to_s1", "bytes_s1_to_s0")) / 1e6
            for part in ("preprocessing", "checking")
        )
        ahead, checking, online = (
            _ahead(result),
            result["checking_seconds"],
            result["online_seconds"],
        )
        whole, range_seconds = ahead + checking + online, result["publish_seconds"]
        # the paper has figures for its own number of buckets
        theirs = ("median", "quantize") if result["buckets"] == BUCKETS else ("", "")
        lines = [
            Phase("secure median", "servers", whole, both, theirs[0]),
            Phase("  preprocessing, while clients train", "servers", ahead, made),
            Phase("  checking, while clients train", "servers", checking, checked),
            Phase("  online", "servers", online, both - made - checked),
            Phase("    of it, reading and adding uploads", "servers", result["uploads_seconds"]),
            Phase("quantize, and the next range", "S0", range_seconds, None, theirs[1]),
        ]
        if not result["verified"]:
            lines = [line for line in lines if "checking" not in line.name]
        phases += [replace(line, setting=_setting(result)) for line in lines]
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
    return f"Table 1: d = {options.dim:,}, n = {options.clients}"


def _plot(stem: Path, phases: list[Phase], options: argparse.Namespace) -> str:
    rows = [
        f"{phase.name.strip()} ({phase.setting or phase.where.partition(',')[0]})"
        for phase in phases
    ]
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
            [
                phase.name,
                phase.where,
                phase.setting,
                *figures,
                report.figure(theirs.seconds if theirs else None),
            ]
        )
    note = (
        f"MB: both directions together; the paper's: {reported.PAPER.removeprefix('paper: ')}, "
        "as printed"
    )
    return report.table(
        _title(options), ["phase", "where", "setting", "s", "MB", "the paper, s"], rows, note
    )
