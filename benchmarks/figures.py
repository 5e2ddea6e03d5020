"""`securemedian bench fig3|fig12|table1`: the paper's Figures 3 and 12, and its Table 1.

Each is a row of `FIGURES`: the points of `benchmarks.work` that are timed, what is printed of
them beside the figures of others, and what is drawn. The machines differ, so only orders of
magnitude can be compared (docs/protocols.md section 8).
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from securemedian.benchmarks import harness, settings
from securemedian.benchmarks.kind import Found, Result, by_clients, run, timed
from securemedian.benchmarks.points import growth
from securemedian.benchmarks.settings import Settings
from securemedian.benchmarks.work import Point
from securemedian.common import terminal
from securemedian.laboratory import report
from securemedian.laboratory.plots import Line, Panel
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.protocols.dealing import deal
from securemedian.mpc.protocols.prg import SEED_BYTES
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.encode import UniformBuckets
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.params import RoundParams

# parameters of the networks 784-200-200-10 and CNNMnist
MLP, CNN_MNIST = 199_210, 1_663_370
# the paper's
BUCKETS, SCHEDULE = 8, "scan"
MIB = 1 << 20
SEED = 1

# Figures of others: seconds, and megabytes where they report them

PAPER = "paper: 112-core Xeon 8280, link of 377 MB/s"
BACKEND = "the paper's backend (SCI, C++) on a two-core machine"
# for d = 1000, b = 8, n = 10; the bucketed median's cost does not depend on n
FIGURE_3 = {"bucketed": (0.12, 9.1), "pairwise": (0.86, 57.8)}
# for CNNMnist, 8 clients, b = 8, l = 64
TABLE_1 = {
    "train": 24,
    "bucketize": 5,
    "share": 1,
    "median": 125,
    "quantize": 5,
    "insecure median": 6,
}


@dataclass(frozen=True)
class Figure:
    """A figure of the paper: its sweep by default, and how it is measured."""

    title: str
    text: str
    # one number, or several
    clients: int | list[int]
    dim: int
    measure: Callable[[argparse.Namespace, Settings], Found]


def add_kinds(kinds: Any) -> None:
    """Add a kind of benchmark per figure."""
    for name, figure in FIGURES.items():
        kind = kinds.add_parser(name, help=f"the paper's {figure.title}", description=figure.text)
        several = isinstance(figure.clients, list)
        shown = str(figure.clients).strip("[]").replace(" ", "")
        kind.add_argument(
            "--clients",
            type=settings.numbers if several else settings.count,
            default=figure.clients,
            metavar="N,.." if several else "N",
            help=f"how many clients take part (default: {shown})",
        )
        settings.add_counts(kind, ("--dim", figure.dim, "coordinates"))
        if name == "table1":
            kind.add_argument(
                "--data",
                type=Path,
                metavar="DIR",
                help="also time a local epoch of one client, on its part of MNIST's files in DIR",
            )
        settings.add_options(kind)
        settings.add_out(kind)
        kind.set_defaults(run=partial(run, name, figure.measure))


def _median(method: str, clients: int, dim: int, ahead: bool = False, **options: Any) -> Point:
    return Point("median", method, None, clients, dim, options, ahead, verified=False)


def _bucketed(clients: Sequence[int], dim: int, ahead: bool) -> list[Point]:
    """Return the paper's bucketed medians, all with the count ring that the most clients need.

    Otherwise the cost would grow with the width.
    """
    bits = RoundParams(Bucketed(), dim=dim, max_clients=max(clients)).form.ring_bits
    options = {"buckets": BUCKETS, "ring_bits": bits, "schedule": SCHEDULE}
    return [_median("bucketed", n, dim, ahead, **options) for n in clients]


# Figure 3

LEFT_OUT = (
    "Left out: dealing, and all checks of what clients send. bucketed then begins with a sum, so "
    "its line is flat by construction; `securemedian bench clients` includes all of it."
)
LABELS = {"bucketed": "bucketed, b = 8", "pairwise": "pairwise, l = 64", "radix": "radix, float32"}


def _figure_3(options: argparse.Namespace, chosen: Settings) -> Found:
    clients, dim = options.clients, options.dim
    points = _bucketed(clients, dim, ahead=False)
    points += [_median("pairwise", n, dim) for n in clients]
    points += [Point("median", "radix", None, n, dim, {"encoding": "float32"}) for n in clients]
    results = harness.measure(points, chosen)
    of = {method: [one for one in results if one["method"] == method] for method in LABELS}
    rows: list[dict[str, Any]] = [{"clients": str(n)} for n in clients]
    compared, panels = [], []
    for method, own in of.items():
        for row, one in zip(rows, own, strict=True):
            row |= {f"{method} s": one["seconds"], f"{method} MB": report.megabytes(one)}
    for method, (seconds, megabytes) in FIGURE_3.items():
        last = of[method][-1]
        ours = {"s": last["seconds"], "MB": report.megabytes(last)}
        theirs = {"theirs, s": seconds, "MB ": megabytes, "whose": BACKEND}
        compared.append({"": f"{LABELS[method]}, n = {last['clients']}"} | ours | theirs)
    for place, (what, unit, value) in enumerate(
        (
            ("time", "seconds", lambda one: float(one["seconds"])),
            ("communication, both directions", "megabytes", report.megabytes),
        )
    ):
        lines = [by_clients(name, of[method], value) for method, name in LABELS.items()]
        for method, figures in FIGURE_3.items():
            lines.append(Line(f"{method}, the paper's backend", [10], [figures[place]]))
        panels.append(Panel(what, "clients", unit, lines, log_y=True))
    title = f"Figure 3: medians of {dim:,} coordinates"
    others = "compared with others, whose figures are for d = 1,000 and n = 10"
    printed = [
        report.table(f"{title}; MB: both directions", rows),
        report.table(others, compared),
        *growth(results),
        LEFT_OUT,
    ]
    return Found(results, printed, f"{title}, without checks", panels)


# Figure 12

# a field of a result -> its column, and its name in the plot
PARTS = {
    "total_seconds": ("total, s", "total server time"),
    "mpc_seconds": ("MPC, s", "MPC, preprocessing included"),
    "uploads_seconds": ("uploads, s", "reading and summing the uploads"),
    "publish_seconds": ("quantize, s", "quantize and range update, at S0"),
}


def _figure_12(options: argparse.Namespace, chosen: Settings) -> Found:
    results = harness.measure(_bucketed(options.clients, options.dim, ahead=True), chosen)
    first, last = results[0], results[-1]
    grown = float(last["mpc_seconds"] / first["mpc_seconds"] - 1)
    rows = [
        {"clients": str(one["clients"])}
        | {column: one[part] for part, (column, _) in PARTS.items()}
        | {"MB": report.megabytes(one)}
        for one in results
    ]
    dim = f"d = {options.dim:,}"
    title = f"Figure 12: bucketed median, {dim}, count ring of {first['ring_bits']} bits"
    note = (
        "MPC: preprocessing included; uploads: reading and summing them; "
        "quantize: the next range included; MB: both directions"
    )
    changes = (
        f"the MPC part changes by {grown:+.1%} from {first['clients']} to {last['clients']} "
        "clients; in the paper it is constant"
    )
    lines = [by_clients(name, results, itemgetter(part)) for part, (_, name) in PARTS.items()]
    return Found(
        results,
        [report.table(title, rows, note), changes],
        "Figure 12: server time",
        [Panel(f"bucketed median, {dim}", "clients", "seconds", lines)],
        {"growth_of_mpc": grown},
    )


# Table 1


@dataclass(frozen=True)
class Phase:
    """A line of the table; `reported` is a key of `TABLE_1`.

    `setting` names buckets, schedule and kind of upload, where the line is of one.
    """

    name: str
    where: str
    seconds: float
    megabytes: float | None = None
    reported: str = ""
    setting: str = ""

    @property
    def row(self) -> dict[str, str | float | None]:
        row: dict[str, str | float | None] = {
            "phase": self.name,
            "where": self.where,
            "setting": self.setting,
            "s": self.seconds,
        }
        return row | {"MB": self.megabytes, "the paper, s": TABLE_1.get(self.reported)}


def _table_1(options: argparse.Namespace, chosen: Settings) -> Found:
    clients, dim = options.clients, options.dim
    # the paper's, and the default
    methods = Bucketed(buckets=BUCKETS, schedule=SCHEDULE), Bucketed()
    # new processes for each, verified first, so that its peak of memory is its own
    pairs: list[tuple[dict[str, Any], ...]] = []
    for method in methods:
        swept = {"buckets": method.buckets, "schedule": method.schedule}
        point = _median("bucketed", clients, dim, ahead=True, **swept)
        verified = replace(point, verified=True)
        pairs.append(tuple(harness.measure([verified, point], chosen)))
    results = [one for pair in pairs for one in pair]
    with terminal.console().status("one client, and the medians in the clear"):
        phases = [_train(options.data, clients)] if options.data else []
        phases += _client(clients, dim, chosen.repeat, methods)
        phases += [phase for one in results for phase in _servers(one)]
        clear = _in_the_clear(clients, dim, chosen.repeat)
        phases += clear
    reached = [_reached(one, other, clear[0].seconds) for one, other in pairs]
    title = f"Table 1: d = {dim:,}, n = {clients}"
    note = f"MB: both directions together; the paper's: {PAPER[7:]}, as printed"
    printed = [
        report.table(title, [one.row for one in phases], note),
        str(chosen.yardstick),
    ]
    if not options.data:
        printed.append("training is left out: name MNIST's folder with --data to time it, too")
    printed += [REACHED.format(**one) for one in reached]
    saved = {
        "phases": [asdict(phase) for phase in phases],
        "reached": reached,
        "aes": asdict(chosen.yardstick),
    }
    return Found(results, printed, saved=saved)


REACHED = (
    "{setting}: preprocessing and checking / unverified preprocessing {ahead_to_unverified:.2f}; "
    "online / numpy.median {online_to_numpy_median:.2f}; checking {checking_ms_per_client:.0f} ms "
    "per client; peak memory S0 {peak_mib[0]:.0f} MiB, S1 {peak_mib[1]:.0f} MiB"
)


def _reached(verified: Result, unverified: Result, numpy_median: float) -> dict[str, Any]:
    ahead = _ahead(verified) + verified["checking_seconds"]
    return {
        "setting": _setting(verified),
        "ahead_to_unverified": ahead / _ahead(unverified),
        "online_to_numpy_median": verified["online_seconds"] / numpy_median,
        "checking_ms_per_client": 1e3 * verified["checking_seconds"] / verified["clients"],
        "peak_mib": [verified[f"peak_bytes_s{j}"] / MIB for j in (0, 1)],
    }


def _ahead(result: Result) -> float:
    """Return the seconds of making correlations, before the round and in it."""
    return float(result["ahead_seconds"] + result["preprocessing_seconds"])


def _setting(result: Result) -> str:
    unverified = "" if result["verified"] else ", unverified"
    return f"b={result['buckets']} {result['schedule']}{unverified}"


def _train(directory: Path, clients: int) -> Phase:
    from securemedian.laboratory import data, models

    models.use_one_thread()
    model, images = models.MODELS["cnn-mnist"], data.load(directory, "mnist")
    part = images.parts(clients, SEED)[0]
    rng = np.random.default_rng(SEED)
    vector = models.start(model, SEED)
    start = time.perf_counter()
    models.train(model, vector, images.images[part], images.labels[part], rng)
    where = f"client, {len(part):,} images, one core"
    return Phase("train one local epoch", where, time.perf_counter() - start, None, "train")


def _client(clients: int, dim: int, repeat: int, methods: Sequence[Bucketed]) -> list[Phase]:
    (update,) = _updates(1, dim)
    model, width = np.zeros(dim, np.float32), np.full(dim, 0.1, np.float32)
    bits = RoundParams(methods[0], dim=dim, max_clients=clients).form.ring_bits
    buckets = UniformBuckets(width, BUCKETS)
    index = buckets.bucketize(update, model)

    def shared() -> Any:
        return share.split(encode.cumulative(index, BUCKETS), bits)

    bucketize = timed(lambda: buckets.bucketize(update, model), repeat)
    sent = (SEED_BYTES + shared()[1].packed.nbytes) / 1e6
    unverified = f"b={BUCKETS}, unverified"
    phases = [
        Phase("bucketize", "client", bucketize, None, "bucketize"),
        Phase("share", "client", timed(shared, repeat), sent, "share", unverified),
    ]
    for method in methods:
        shape = RoundParams(
            replace(method, uploads="dealt"), dim=dim, max_clients=clients
        ).form.dealing
        assert shape is not None
        # a dealing rotates one update only
        dealings = [deal(shape)]
        dealing = timed(lambda: dealings.append(deal(shape)), repeat)  # noqa: B023
        rotating = timed(lambda: dealings.pop().rotations(index), repeat)  # noqa: B023
        ahead = (SEED_BYTES + shape.bytes_ahead) / 1e6
        after = 16 * shape.rotations_layout.words / 1e6
        setting = f"b={method.buckets} {method.schedule}"
        phases += [
            Phase("deal, before it has trained", "client", dealing, ahead, "", setting),
            Phase("rotate", "client", rotating, after, "", setting),
        ]
    return phases


def _servers(result: Result) -> list[Phase]:
    both = report.megabytes(result)
    made, checked = (
        sum(result[f"{part}_{way}"] for way in ("bytes_s0_to_s1", "bytes_s1_to_s0")) / 1e6
        for part in ("preprocessing", "checking")
    )
    ahead, checking, online = _ahead(result), result["checking_seconds"], result["online_seconds"]
    # the paper has figures for its own number of buckets
    theirs = ("median", "quantize") if result["buckets"] == BUCKETS else ("", "")
    phases = [
        Phase("secure median", "servers", ahead + checking + online, both, theirs[0]),
        Phase("  preprocessing, while clients train", "servers", ahead, made),
        Phase("  checking, while clients train", "servers", checking, checked),
        Phase("  online", "servers", online, both - made - checked),
        Phase("    of it, reading and adding uploads", "servers", result["uploads_seconds"]),
        Phase("quantize, and the next range", "S0", result["publish_seconds"], None, theirs[1]),
    ]
    if not result["verified"]:
        del phases[2]
    return [replace(phase, setting=_setting(result)) for phase in phases]


def _in_the_clear(clients: int, dim: int, repeat: int) -> list[Phase]:
    """Return the phases in the clear, numpy.median first, which the online part is compared to."""
    updates, rank = _updates(clients, dim), ring.median_rank(clients)
    median = timed(lambda: np.median(updates, axis=0), repeat)
    partition = timed(lambda: np.partition(updates, rank - 1, axis=0), repeat)
    return [
        Phase("numpy.median", "in the clear", median, None, "insecure median"),
        Phase("numpy.partition", "in the clear", partition),
    ]


def _updates(clients: int, dim: int) -> Any:
    return np.random.default_rng(SEED).normal(0, 0.03, (clients, dim)).astype(np.float32)


FIGURES = {
    "fig3": Figure(
        "Figure 3: cost by number of clients",
        "The paper's Figure 3: seconds and megabytes of bucketed and pairwise medians by the "
        f"number of clients, and of the radix median. Preprocessing is included. {LEFT_OUT}",
        list(range(2, 11)),
        1000,
        _figure_3,
    ),
    "fig12": Figure(
        "Figure 12: server time, and the MPC part of it, by number of clients",
        "The paper's Figure 12: a server's time for one bucketed median of the MLP's parameters, "
        "and the part of it that is secure computation, by the number of clients. Correlations "
        "are made before the round starts, and their seconds are in both. The rest is reading and "
        "summing the uploads, and S0's new model and range.",
        list(range(10, 161, 30)),
        MLP,
        _figure_12,
    ),
    "table1": Figure(
        "Table 1: a round of CNNMnist, phase by phase",
        "The paper's Table 1: the time of each phase of a round for CNNMnist's parameters, at one "
        "client and at the servers. Uploads are dealt, so that the servers check them, or the "
        "paper's own, which nobody can check. The servers make their correlations before the "
        "round starts, as they do while clients train. The medians in the clear are timed in the "
        "same run, and the servers' peak memory is printed, too.",
        8,
        CNN_MNIST,
        _table_1,
    ),
}
