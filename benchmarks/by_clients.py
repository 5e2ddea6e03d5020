"""`securemedian bench clients`: what whole rounds cost, by the number of clients.

A round here includes all that the servers do by default, checks of what clients send included. The
parts before and after its last upload are told apart, because clients wait for the second alone.
"""

import argparse
import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from securemedian.benchmarks import harness, settings
from securemedian.benchmarks.kind import Found, Result, run, timed
from securemedian.benchmarks.settings import Settings
from securemedian.benchmarks.work import SWEPT, Point, demanded, round_params, run_before
from securemedian.clients import upload
from securemedian.clients.flags import add_methods, given_methods
from securemedian.clients.upload import Round
from securemedian.laboratory import report
from securemedian.laboratory.plots import Line, Panel
from securemedian.mpc.protocols.audit import binding
from securemedian.mpc.protocols.dealing import DealtUpload, deal
from securemedian.mpc.protocols.prg import SEED_BYTES, SESSION_BYTES, os_entropy
from securemedian.mpc.protocols.share import Upload, WordsUpload
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers.config import ServerConfig

DEFAULT_METHODS = ("bucketed", "radix", "pairwise", "mean")
NOTE = (
    "s before, after: seconds before and after the last upload. Before it the servers make "
    "correlations and check dealings. OTs, MB and rounds are those of both parts. "
    "Dealt, sent: MB of one client before and after its training, to the server that gets more. "
    "Client: its own milliseconds for both"
)
BEYOND_POOL = (
    "*: more correlations than the servers keep by default (pool_limit_bytes): they make a part of "
    "them after the last upload"
)

# quantities of pictures, by the word in the legend: title and unit of the panel, and the value of a
# result
PANELS: Mapping[str, tuple[str, str, Callable[[Result], float]]] = {
    "before": ("before the last upload", "seconds", itemgetter("before_seconds")),
    "after": ("after the last upload", "seconds", itemgetter("after_seconds")),
    "seconds": ("a round, estimated", "seconds", itemgetter("seconds")),
    "OTs": ("oblivious transfers", "million OTs", lambda one: one["ots"] / 1e6),
    "MB": ("between the servers, both ways", "megabytes", report.megabytes),
}

# a value per number of clients, by a word of PANELS
Growth = Mapping[str, Mapping[int, float]]
Exponents = Mapping[str, float | None]


def add_kinds(kinds: Any) -> None:
    clients = kinds.add_parser(
        "clients",
        help="costs of whole rounds by the number of clients, checks included",
        description="Time whole rounds by the number of clients, for one method or several, with "
        "all that servers do by default: dealing and its check, checks of values and norms. Prints "
        "a table per method; saves a picture and JSON.",
        usage="securemedian bench clients [OPTION ..] [METHOD [OPTION ..] ..]",
    )
    shown = ", ".join(DEFAULT_METHODS)
    add_methods(clients, _add_options, only=SWEPT, default=shown, several=True)
    clients.set_defaults(run=partial(_run, clients))


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--clients",
        type=settings.numbers,
        default=[4, 8, 16, 32, 64],
        metavar="N,..",
        help="numbers of clients (default: 4,8,16,32,64)",
    )
    settings.add_counts(parser, ("--dim", 1000, "coordinates of an update"))
    settings.add_options(parser)
    settings.add_out(parser)


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    methods, options = given_methods(parser, options)
    methods = methods or [(name, {}) for name in DEFAULT_METHODS]
    run("clients", partial(_measure, methods), options)


def _measure(
    methods: Sequence[tuple[str, dict[str, Any]]], options: argparse.Namespace, chosen: Settings
) -> Found:
    counts = sorted(set(options.clients))
    points = [
        Point("median", method, None, clients, options.dim, given)
        for method, given in methods
        for clients in counts
    ]
    measured = harness.measure(points, chosen)
    results = [
        one | _more(round_params(point), chosen.repeat)
        for one, point in zip(measured, points, strict=True)
    ]
    of: dict[str, list[dict[str, Any]]] = {}
    for at in range(0, len(results), len(counts)):
        # methods may differ in an option that their label does not show
        label = results[at]["label"]
        name = f"{label} ({at // len(counts) + 1})" if label in of else label
        of[name] = results[at : at + len(counts)]
    growths = grown(of, "before", "after", "MB")
    where = f"d = {options.dim:,}, {chosen.extension}, {chosen.link}"
    printed = [report.table(f"{name}: {where}", [*map(_row, rows)]) for name, rows in of.items()]
    beyond = [BEYOND_POOL] if any(one["beyond_pool"] for one in results) else []
    exponents = exponents_of(growths)
    return Found(
        results,
        [*printed, f"\n{NOTE}", *beyond, str(chosen.yardstick)],
        f"Whole rounds by the number of clients, d = {options.dim:,}",
        panels(growths, exponents),
        {"exponents": exponents},
    )


def _more(params: RoundParams, repeat: int) -> dict[str, Any]:
    """Return what the two processes do not measure of a round."""
    return {
        "label": params.method.label,
        "client_seconds": client_seconds(params, repeat),
        # whether servers keep too few correlations by default to make all of them ahead
        "beyond_pool": demanded(params).memory > ServerConfig.pool_limit_bytes,
    }


def client_seconds(params: RoundParams, repeat: int) -> float:
    """Return the median seconds of one client's own work in a round, without what it sends.

    A client that deals also looks at what the servers have opened of its dealing. In an audited
    round it folds its upload. It does so for each of its votes.
    """
    run = run_before(params)
    each = run.groups or (run,)
    policy = run.policy if params.form.buckets else None
    current = Round("1-0", 1, params, 0, each[0].model, each[0].scale, policy)
    update = np.random.default_rng(1).normal(0, 0.03, params.dim).astype(np.float32)
    return timed(partial(_take_part, current, update), repeat)


def _take_part(current: Round, update: Any) -> None:
    params = current.params
    dealt = deal(params.form.dealing) if params.form.dealing else None
    with warnings.catch_warnings():
        # a small norm bound shortens this update
        warnings.simplefilter("ignore", upload.RangeWarning)
        values = params.form.in_group(upload.encode_update(update, current), 0)
    if dealt is None:
        upload.split(values, current)
        return
    dealt.opened(os_entropy(SEED_BYTES))
    for vote in range(params.form.votes):
        rotations = WordsUpload(dealt.shape.rotations_layout, dealt.rotations(values[0], vote))
        sizes = SESSION_BYTES, SEED_BYTES, SEED_BYTES
        halves: tuple[Upload, Upload] = dealt.seeded, dealt.words
        for number, half in enumerate(halves) if params.form.audited else ():
            own = DealtUpload(dealt.shape, half, rotations, vote)
            binding.fold(number, own, *map(os_entropy, sizes))


def grown(of: Mapping[str, Sequence[Result]], *quantities: str) -> Mapping[str, Growth]:
    """Return quantities of PANELS by the number of clients, for the results of each method."""
    return {
        name: {what: {one["clients"]: PANELS[what][2](one) for one in rows} for what in quantities}
        for name, rows in of.items()
    }


def _row(one: Result) -> dict[str, Any]:
    return {
        "clients": f"{one['clients']}{'*' if one['beyond_pool'] else ''}",
        "s before": one["before_seconds"],
        "s after": one["after_seconds"],
        "M OTs": one["ots"] / 1e6,
        "MB to S1": one["bytes_s0_to_s1"] / 1e6,
        "MB to S0": one["bytes_s1_to_s0"] / 1e6,
        "rounds": f"{one['rounds']:,}",
        "dealt": one["client_bytes_ahead"] / 1e6,
        "sent": one["client_bytes_after"] / 1e6,
        "client": one["client_seconds"] * 1e3,
    }


def exponent(values: Iterable[tuple[int, float]]) -> float | None:
    """Return the exponent of n in a least-squares fit of the logarithms of pairs (n, value).

    It is 1 for linear growth and 2 for quadratic. None for fewer than three numbers n, or a value
    of 0.
    """
    pairs = dict(values)
    if len(pairs) < 3 or min(pairs.values()) <= 0:
        return None
    logs = [[math.log(one) for one in axis] for axis in (pairs, pairs.values())]
    return statistics.linear_regression(*logs).slope


def exponents_of(growths: Mapping[str, Growth]) -> Mapping[str, Exponents]:
    """Return the exponents of n for every quantity of each method."""
    return {
        name: {what: exponent(values.items()) for what, values in growth.items()}
        for name, growth in growths.items()
    }


def panels(growths: Mapping[str, Growth], exponents: Mapping[str, Exponents]) -> list[Panel]:
    """Return a panel per quantity, whose legend has the exponents of each line."""
    labels = {name: _label(name, of) for name, of in exponents.items()}
    return [
        Panel(
            PANELS[what][0],
            "clients",
            PANELS[what][1],
            [
                Line(labels[name], [*growth[what]], [*growth[what].values()])
                for name, growth in growths.items()
            ],
            log_x=True,
            log_y=True,
        )
        for what in next(iter(growths.values()))
    ]


def _label(name: str, exponents: Exponents) -> str:
    told = [f"{what} n^{value:.1f}" for what, value in exponents.items() if value is not None]
    return f"{name}: {', '.join(told)}" if told else name
