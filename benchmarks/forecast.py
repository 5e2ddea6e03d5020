"""The verb `plan`: what a round will cost, before anyone starts it.

OTs, bytes and rounds are exact (`plan`). Seconds are an estimate for two servers with one core
each, like this machine's, from a few rates that are measured here in about a second per method:

    seconds  = max(compute, transfer) + waiting
    compute  = OTs x seconds per OT (more for those of an audited round: AHEAD and AFTER)
               + coordinates x seconds per coordinate of the check of dealings
               + seconds of all other steps + bytes both ways x seconds per byte
    transfer = bytes of the busier direction / bandwidth
    waiting  = rounds x (rtt / 2 + HOP_S) + later votes x CROSSED x rtt

With `--workers W` compute is that of the busiest worker, and the rounds are those of the deepest
shard. The daemon adds the time in which it reads, checks and hands out what is stored (the door).
"""

import argparse
import hashlib
import itertools
import json
import math
import sys
import time
import timeit
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from securemedian.benchmarks import by_clients, settings
from securemedian.benchmarks.link import LinkShape
from securemedian.benchmarks.work import SWEPT, with_fraction
from securemedian.clients import files
from securemedian.clients.flags import add_methods, given_options
from securemedian.common import terminal
from securemedian.common.policy import (
    OR_WAY_OUT,
    WAY_OUT,
    Security,
    add_switch,
    forbidden,
    refuse,
)
from securemedian.laboratory import plots, report
from securemedian.mpc.errors import ConfigError, InputError, PolicyRefused, SecureMedianError
from securemedian.mpc.options import options_of
from securemedian.mpc.protocols.channel import local_pair
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.dealing import Dealing
from securemedian.mpc.protocols.prg import SEED_BYTES, os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.protocols.share import SeedUpload
from securemedian.mpc.rounds.chunks import round_demand
from securemedian.mpc.rounds.cost import Cost, joined
from securemedian.mpc.rounds.methods.bucketed import MALICIOUS, SCHEDULES
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import check_dealings
from securemedian.mpc.rounds.plan import disk_bytes, predict, predict_shards
from securemedian.mpc.rounds.privacy import DELTA, epsilon_of, signal_to_noise, told_epsilon
from securemedian.mpc.rounds.rehearsal import lone_party

# of two tables, each of which fits 80 columns
COSTS = ("M OTs", "MB", "rounds", "memory", "dealt", "sent", "seconds")
SECONDS = ("ahead", "checking", "online", "transfer", "waiting")
# beside the options that `bench median` has
# `security` is a flag of all methods here: what they do not have is left out
PLANNED = (*(name for name in SWEPT if name != "security"), "noise_multiplier")
LOOPBACK_RTT_MS = 0.1
RTT_HELP = "from server to server and back (default: %(default)s, two processes on one machine)"
# the values of options that are compared where none is given
COMPARED: dict[str, dict[str, tuple[str, ...]]] = {
    "bucketed": {"schedule": SCHEDULES},
    "radix": {"encoding": ("float32", "bfloat16", "buckets")},
    "reclustered": {"median_by": ("pairwise", "radix")},
}
# seconds from a send until the receiving thread goes on, without the link: those of the sockets and
# their threads, as measured with `bench median` on small rounds of many messages
HOP_S = 4e-4
# The time of a round with security malicious, ahead of its uploads and after them, with all that is
# computed: that of so many OTs for each of its own. Measured on loaded cores, 100,000 coordinates.
AHEAD, AFTER = 1.1, 0.33
# how often a client crosses its lines, there and back, for a later vote: with `bound` and `upload`
CROSSED = 4
# how many OTs are timed at most, how often, and the clients whose dealings are
CALIBRATION_OTS = 1 << 21
CALIBRATION_RUNS = 3
CALIBRATION_CLIENTS = 2
# for how many rounds epsilon is told
ROUNDS_TOLD = (1, 10, 100)
# signal to noise, below which the noise of many rounds does not average out in time
DROWNED = 0.3
FORMULA = (
    "OTs, bytes and rounds are exact, for the first round of a session. Seconds are estimated for "
    "servers with one core each like this machine's: max(compute, transfer) + waiting. Compute is "
    "calibrated here (about a second per method). Transfer = bytes of the busier direction / "
    f"bandwidth. Waiting = rounds x (rtt / 2 + {HOP_S * 1e3:g} ms): in a round, a message waits "
    f"for one from the other side. Each later vote of zoom waits {CROSSED} x rtt for its clients. "
    "Memory is the most that the lanes' correlations, arrays and buffers take, with the check of "
    "dealings and the result. The program itself takes some 150 MB more."
)
COSTS_NOTE = (
    "~ is an approximate median. MB go between the servers, in the busier direction; memory is MB "
    "at a server. Columns dealt and sent are MB of one client before and after its training, to "
    "the server that gets more. Column seconds is an estimate."
)
SECONDS_NOTE = "seconds = max(ahead + checking + online, transfer) + waiting"


@dataclass(frozen=True)
class Forecast:
    """One way to compute the result, and what it will cost."""

    params: RoundParams
    clients: int
    # S0's
    cost: Cost
    memory_bytes: int
    # of the computation: the part that needs no inputs, the check of the uploads without its OTs,
    # and the rest; with workers, those of the busiest one
    ahead_seconds: float
    checking_seconds: float
    online_seconds: float
    transfer_seconds: float
    waiting_seconds: float
    # of each server; 0 for threads of its own process
    workers: int = 0
    # the daemon's time to hand out the slices
    door_seconds: float = 0.0

    @property
    def name(self) -> str:
        return self.params.method.label

    @property
    def compute_seconds(self) -> float:
        return self.ahead_seconds + self.checking_seconds + self.online_seconds

    @property
    def seconds(self) -> float:
        busy = max(self.compute_seconds, self.transfer_seconds)
        return self.door_seconds + busy + self.waiting_seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as --json writes it, with the parameters under "round"."""
        own = {key: value for key, value in vars(self).items() if key not in ("params", "cost")}
        return own | {
            "name": self.name,
            "round": self.params.to_dict(),
            "kind": self.params.method.kind,
            "ots": self.cost.ots,
            "bytes_s0_to_s1": self.cost.bytes_sent,
            "bytes_s1_to_s0": self.cost.bytes_received,
            "rounds": self.cost.rounds,
            # of one client, to the server that gets more: before and after its training
            "client_bytes_ahead": self.params.form.bytes_ahead,
            "client_bytes_after": self.params.form.bytes_after,
            "votes": self.params.form.votes,
            # of dealings and uploads at one server, at most
            "disk_bytes": disk_bytes(self.params, self.clients),
            "compute_seconds": self.compute_seconds,
            "seconds": self.seconds,
            # of one round; None without noise
            "epsilon": told_epsilon(self.params.method.noise.rho),
        }


def add_verbs(verbs: Any) -> None:
    plan = verbs.add_parser(
        "plan",
        description="Tell beforehand what a round will cost, for one method or, to compare, for "
        "all: OTs, bytes each way, rounds, memory, and seconds on a link. This needs no servers "
        "and no data.",
        epilog=FORMULA,
        usage="securemedian plan --clients N,.. --dim D [OPTION ..] [METHOD [OPTION ..]]",
    )
    add_methods(plan, _add_options, only=PLANNED, default="all methods, to compare them")
    plan.set_defaults(run=run, compiles=True)


def _add_options(plan: argparse.ArgumentParser) -> None:
    plan.add_argument(
        "--clients",
        type=settings.numbers,
        metavar="N,..",
        help="clients that take part, one number or several (required)",
    )
    plan.add_argument(
        "--dim", type=int, metavar="D", help="coordinates of an update (required without --model)"
    )
    plan.add_argument(
        "--model",
        type=Path,
        metavar="FILE",
        help="the start model: leave out methods whose range does not hold its values",
    )
    for flag, unit, default, what in (
        ("--bandwidth", "MBIT/S", math.inf, "each way (default: unlimited)"),
        ("--rtt", "MS", LOOPBACK_RTT_MS, RTT_HELP),
    ):
        plan.add_argument(flag, type=_positive, default=default, metavar=unit, help=what)
    settings.add_counts(plan, ("--lanes", ProtocolParams.lanes, "chunks computed at the same time"))
    settings.add_extension(plan)
    plan.add_argument(
        "--workers",
        type=settings.count,
        default=0,
        metavar="W",
        help='workers of each server with [engine] kind = "ray", of one core each (default: none, '
        "one core in all)",
    )
    plan.add_argument(
        "--security",
        choices=list(Security),
        metavar="WORD",
        help=f"leave out what servers with such a `security` refuse, and say why: "
        f"{' or '.join(Security)} (default: {Security.SEMI_HONEST})",
    )
    add_switch(plan)
    plan.add_argument("--json", type=Path, metavar="FILE", help="save the rows as a JSON list")
    plan.add_argument(
        "--plot",
        type=_picture,
        metavar="FILE",
        help="draw the costs by the number of clients, of which --clients has several: a PNG file",
    )


def run(options: argparse.Namespace) -> None:
    """Print a table of the forecasts, the rounds that are too large, and the cheapest methods."""
    start = None
    if options.model:
        start, _ = files.read_start(options.model)
        options.dim = options.dim or start.shape[-1]
    if options.clients is None or options.dim is None:
        raise ConfigError("plan lacks its sizes: --clients, and --dim or --model; give both")
    counts = sorted(set(options.clients))
    if options.plot:
        plots.check()
        if len(counts) < 2:
            raise ConfigError(
                f"--plot draws several numbers of clients: {counts[0]} alone; give --clients "
                "more of them, like 4,8,16"
            )
        report.check_writable(options.plot)
    security = options.security or Security.SEMI_HONEST
    protocol = ProtocolParams(options.field_bits, options.lanes, options.extension)
    link = LinkShape(options.bandwidth * 1e6, options.rtt / 1e3)
    console = terminal.console()
    found, refused = list[Forecast](), list[SecureMedianError]()
    print("measuring this machine ...", file=sys.stderr, flush=True)
    with terminal.console(stderr=True).status("encryption") as status:
        byte = seconds_per_byte()
        for build, clients in itertools.product(rounds(options), counts):
            try:
                params = build(clients)
                if start is not None:
                    params.check_start(start)
                refuse(security, forbidden(security, params))
                status.update(Text(f"{params.method.label}, {clients} clients"))
                found.append(forecast(params, clients, protocol, link, byte, options.workers))
            except (ConfigError, InputError, PolicyRefused) as error:
                refused.append(error)
    if not found:
        raise refused[0]
    console.print(_tables(found))
    # both schedules of a method may be refused for the same reason
    for reason in dict.fromkeys(map(str, refused)):
        # all of them have the same way out
        console.print(f"left out: {reason.removesuffix(OR_WAY_OUT)}")
    if any(str(reason).endswith(OR_WAY_OUT) for reason in refused):
        console.print(f"To take these, {WAY_OUT}")
    taken = dict[str, list[int]]()
    for clients in counts:
        rows = [row for row in found if row.clients == clients]
        about = f"n = {clients}: " if len(counts) > 1 else ""
        for line in [*cheapest(rows), *of_noise(rows), *of_votes(rows)]:
            console.print(about + line)
        for line in ranges(rows):
            taken.setdefault(line, []).append(clients)
    for line, which in taken.items():
        # each once, though several n have it
        console.print(line if which == counts else f"n = {', '.join(map(str, which))}: {line}")
    if options.json:
        options.json.write_text(json.dumps([row.to_dict() for row in found], indent=1) + "\n")
        console.print(f"saved to {options.json}")
    if options.plot:
        title = f"Plan: rounds by the number of clients, d = {options.dim:,}"
        growths = dict[str, dict[str, dict[int, float]]]()
        for row in found:
            growth = growths.setdefault(row.name, {"seconds": {}, "OTs": {}, "MB": {}})
            growth["seconds"][row.clients] = row.seconds
            growth["OTs"][row.clients] = row.cost.ots / 1e6
            growth["MB"][row.clients] = (row.cost.bytes_sent + row.cost.bytes_received) / 1e6
        drawn = by_clients.panels(growths, by_clients.exponents_of(growths))
        console.print(f"saved to {plots.save(options.plot.with_suffix(''), title, drawn)}")


def rounds(options: argparse.Namespace) -> Iterator[Callable[[int], RoundParams]]:
    """Yield one function per round that the options ask for, which takes the number of clients.

    It returns the round's parameters, and raises ConfigError if there can be no such round.
    """
    given = {name: value for name, value in given_options(options).items() if name != "security"}
    for name in METHODS if options.method is None else (options.method,):
        compared = {
            key: values for key, values in COMPARED.get(name, {}).items() if key not in given
        }
        if options.security == MALICIOUS and "security" in options_of(METHODS[name]):
            compared |= {"security": (MALICIOUS,)}
        for values in itertools.product(*compared.values()):
            chosen = with_fraction(name, given | dict(zip(compared, values, strict=True)))
            yield partial(_round, name, chosen, options.dim)


def _round(method: str, options: dict[str, Any], dim: int, clients: int) -> RoundParams:
    return RoundParams(METHODS[method](**options), dim=dim, max_clients=clients)


def forecast(
    params: RoundParams,
    clients: int,
    protocol: ProtocolParams,
    link: LinkShape,
    byte: float,
    workers: int = 0,
) -> Forecast:
    """Return the forecast of one round by the formula above; `byte` is `seconds_per_byte()`.

    Raises ConfigError if the round is too large for any machine, or excludes workers or silent OT.
    """
    if workers and params.form.votes > 1:
        raise ConfigError(
            f"a round of {params.method.name} takes no workers: --workers {workers}; leave them out"
        )
    if params.form.audited and (workers or protocol.silent):
        raise ConfigError(
            "a round with security malicious takes neither workers nor silent OT: --workers or "
            "--extension; leave out those, or security malicious"
        )
    weights, ot = [1] * clients, seconds_per_ot(params, [1] * clients, protocol)
    if workers:
        plans = predict_shards(params, weights, protocol, workers)
    else:
        plans = [predict(params, weights, protocol)]
    total = joined([plan.costs[0] for plan in plans])
    busiest = max(plans, key=lambda plan: (plan.costs[0].ots, plan.online_seconds))
    cost = busiest.costs[0]
    # a server checks dealings while it fills its pools
    each, memory = time_check(params.form.dealing) if params.form.dealing else (0.0, 0)
    checked = -(-params.dim * params.form.votes // max(1, workers)) * clients * each
    ahead, after = (AHEAD, AFTER) if params.form.audited else (1.0, 0.0)
    return Forecast(
        params,
        clients,
        total,
        memory_bytes=memory + max(plan.memory for plan in plans),
        ahead_seconds=ahead * cost.ots * ot,
        checking_seconds=busiest.checking_seconds + checked,
        online_seconds=busiest.online_seconds
        + after * cost.ots * ot
        + (cost.bytes_sent + cost.bytes_received) * byte,
        transfer_seconds=8 * max(total.bytes_sent, total.bytes_received) / link.bits_per_second,
        waiting_seconds=total.rounds * (link.rtt_s / 2 + HOP_S)
        + (params.form.votes - 1) * CROSSED * link.rtt_s,
        workers=workers,
        door_seconds=door_seconds(params, clients) if workers else 0.0,
    )


def seconds_per_ot(params: RoundParams, weights: Sequence[int], protocol: ProtocolParams) -> float:
    """Return the seconds of one OT of this round, at a party whose peer sends only zeros."""
    size = params.dim
    while size > 1 and round_demand(params, weights, size).ots > CALIBRATION_OTS:
        size //= 2
    wanted, party = round_demand(params, weights, size), lone_party(protocol)
    pool = party.pool

    def make() -> None:
        pool.keep_only(Demand())
        pool.reserve(wanted)

    seconds = _fastest(make) if wanted.counts else 0.0
    # the silent extension makes OTs by the group of trees, and some are left over
    return seconds * CALIBRATION_RUNS / max(1, pool.ots + sum(pool.left))


def door_seconds(params: RoundParams, clients: int) -> float:
    """Return the seconds of the door for the shares that a server gets in full.

    They are those of half the clients, and of those who deal all rotations.
    """
    full = (
        clients
        * (params.form.bytes_ahead + (1 + bool(params.form.dealing)) * params.form.bytes_after)
        / 2
    )
    data = bytearray(os_entropy(1 << 22))
    # a digest, and copies from the file and to the workers
    seconds = _fastest(lambda: (hashlib.sha256(data).digest(), bytes(bytes(data))))
    return full * seconds / len(data)


@cache
def time_check(dealing: Dealing) -> tuple[float, int]:
    """Return the seconds per coordinate and client, and the bytes, of a check of dealings.

    They are measured at both parties in this process, on one part. The seconds are those of the
    processor, of which each party takes half. Several clients are checked, because the next one's
    messages are made while one waits.
    """
    part = max(dealing.parts, key=lambda part: part.kept)
    shape = replace(dealing, dim=part.kept, votes=1)
    half = SeedUpload(shape.layout, os_entropy(SEED_BYTES), native_aes=True)
    halves, ends, coin = [half] * CALIBRATION_CLIENTS, local_pair(), bytes(SEED_BYTES)

    def run() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda own, j: check_dealings(own, j, shape, halves, coin), ends, (0, 1)))

    # compiles, and counts both parties' memory
    tracemalloc.start()
    run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    seconds = _fastest(run, time.process_time)
    return seconds / 2 / shape.dim / CALIBRATION_CLIENTS, peak // 2


def _fastest(work: Callable[[], object], timer: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of the fastest of CALIBRATION_RUNS runs."""
    return min(timeit.repeat(work, timer=timer, number=1, repeat=CALIBRATION_RUNS))


def ranges(rows: Sequence[Forecast]) -> list[str]:
    """Return a sentence per range on the methods that take such values alone."""
    methods: dict[str, list[str]] = {}
    for row in rows:
        if taken := row.params.value_range:
            methods.setdefault(str(taken), []).append(row.name)
    return [f"{', '.join(dict.fromkeys(names))}: {taken}" for taken, names in methods.items()]


def seconds_per_byte() -> float:
    """Return the seconds per byte of CURVE's cipher, XSalsa20 and Poly1305, on a 64 KiB message.

    Of longer ones the new memory that PyNaCl asks for takes twice as long as the cipher.
    """
    from nacl.secret import SecretBox
    from nacl.utils import random

    box, message = SecretBox(random(32)), bytes(1 << 16)
    return _fastest(lambda: box.encrypt(message)) / len(message)


def cheapest(rows: Sequence[Forecast]) -> list[str]:
    """Return a sentence on the fastest method for each kind of median among the forecasts."""
    best = {row.params.method.kind: row for row in sorted(rows, key=lambda row: row.seconds)[::-1]}
    return [
        f"On this link the {kind} median takes the least time with {best[kind].name}: about "
        f"{best[kind].seconds:.3g} s per round."
        for kind in ("exact", "approximate")
        if kind in best
    ]


def of_noise(rows: Sequence[Forecast]) -> list[str]:
    """Return what the noise of a round gives and what it costs, in plain words."""
    lines = []
    for row in rows:
        method, dim = row.params.method, row.params.dim
        if not isinstance(method, Mean) or not method.noise_multiplier:
            continue
        ratio = signal_to_noise(method.noise_multiplier, row.clients, dim)
        told = [f"{n}: {epsilon_of(n * method.noise.rho):.3g}" for n in ROUNDS_TOLD]
        lines += [
            f"{row.name}: epsilon at delta {DELTA:g}, by the rounds of a cohort, {', '.join(told)}",
            f"the mean is at most {ratio:.2g} times as long as its noise: n / (z sqrt(2 d))",
        ]
        if ratio < DROWNED:
            most, needed = dim * (ratio / DROWNED) ** 2, row.clients * DROWNED / ratio
            lines.append(
                f"The noise drowns the model. With such noise {row.clients:,} clients can train "
                f"some {max(1, int(most)):,} parameters, and {dim:,} parameters take some "
                f"{math.ceil(needed):,} clients. With few clients, protect each record instead: "
                "docs/differential-privacy.md"
            )
    return lines


def of_votes(rows: Sequence[Forecast]) -> list[str]:
    """Return what a round of several votes takes besides: of clients and disks."""
    lines = []
    for row in rows:
        if (votes := row.params.form.votes) > 1:
            disk = _figure(disk_bytes(row.params, row.clients) / 1e6)
            lines.append(
                f"{row.name}: {votes} votes, for each of which all clients are there. A server "
                f"keeps up to {disk} MB of dealings and votes on its disk until the round ends."
            )
    return lines


def _tables(rows: Sequence[Forecast]) -> Group:
    """Return a table of what the rounds cost, and one of what their seconds consist of.

    With several numbers of clients there is only the first, with the clients in a column.
    """
    first, several = rows[0], len({row.clients for row in rows}) > 1
    title = f"d = {first.params.dim:,} coordinates"
    title = f"{title}, n clients" if several else f"n = {first.clients} clients, {title}"
    seconds = "Of the seconds, for servers like this machine and on this link:"
    if first.workers:
        title += f", {first.workers} workers per server"
        seconds += f" the daemon's {first.door_seconds:.3g} s for its workers, and"
    cells = []
    for before, row in zip([None, *rows], rows, strict=False):
        # each name once
        repeated = before is not None and before.name == row.name
        about = "~ " if row.params.method.kind == "approximate" else ""
        numbers = [f"{row.clients:,}"] if several else []
        cells.append(["" if repeated else about + row.name, *numbers, *_costs(row)])
    costs = terminal.table(
        title, ("method", *(["n"] if several else []), *COSTS), cells, COSTS_NOTE
    )
    if several:
        return Group(costs)
    own = attrgetter(*(f"{part} seconds".replace(" ", "_") for part in SECONDS), "seconds")
    cells = [[row.name, *map(_figure, own(row))] for row in rows]
    columns = "method", *SECONDS, "seconds"
    return Group(costs, terminal.table(seconds, columns, cells, SECONDS_NOTE))


def _costs(row: Forecast) -> list[str]:
    busier = max(row.cost.bytes_sent, row.cost.bytes_received)
    client = row.params.form.bytes_ahead, row.params.form.bytes_after
    sizes = row.cost.ots, busier, row.memory_bytes, *client
    ots, between, *others = [_figure(size / 1e6) for size in sizes]
    return [ots, between, f"{row.cost.rounds:,}", *others, _figure(row.seconds)]


def _figure(value: float) -> str:
    """Return a figure with about three digits."""
    return f"{value:,.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".png":
        raise argparse.ArgumentTypeError(
            f"not the name of a PNG file: {text!r}; give one like cost.png"
        )
    return path


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"not above 0: {text}; give more")
    return value
