"""The verb `plan`: what a round will cost, before anyone starts it.

OTs, bytes and rounds are exact (`mpc.rounds.plan`). Seconds are estimates (FORMULA), from rates
that are measured here and from the rehearsal. Correlations are made and dealings are checked ahead
of the rest. An audited round takes more per OT, in two parts (AHEAD and AFTER). With `--workers W`
the seconds are those of the busiest worker, and the rounds those of the deepest shard. The daemon
adds the time in which it reads, checks and hands out what is stored (the door).
"""

import argparse
import hashlib
import itertools
import math
import sys
import time
import timeit
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from nacl.secret import SecretBox
from rich.console import Group
from rich.text import Text

from securemedian.benchmarks import by_clients, settings
from securemedian.benchmarks.kind import Result
from securemedian.benchmarks.link import LinkShape
from securemedian.benchmarks.work import SWEPT, with_fraction
from securemedian.clients import files
from securemedian.clients.flags import add_methods, given_options
from securemedian.common import policy, terminal
from securemedian.common.policy import Security
from securemedian.laboratory import plots, report
from securemedian.mpc.errors import ConfigError, InputError, PolicyRefused, SecureMedianError
from securemedian.mpc.options import options_of
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.dealing import Dealing
from securemedian.mpc.protocols.prg import SEED_BYTES, os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.protocols.share import SeedUpload
from securemedian.mpc.rounds.chunks import round_demand
from securemedian.mpc.rounds.cost import joined
from securemedian.mpc.rounds.methods.bucketed import MALICIOUS, SCHEDULES
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import check_dealings
from securemedian.mpc.rounds.plan import disk_bytes, predict, predict_shards
from securemedian.mpc.rounds.privacy import DELTA, epsilon_of, signal_to_noise, told_epsilon
from securemedian.mpc.rounds.rehearsal import DryChannel, lone_party

# the parts of a round's seconds
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
# The time of a round with security malicious, ahead of its uploads and after them, with all but the
# cipher: that of so many OTs for each of its own. Measured on two quiet cores, with 1,663,370
# coordinates of 8 clients.
AHEAD, AFTER = 5.6, 1.5
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
    policy.add_switch(plan)
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
    asked, rows, refused = list[RoundParams](), list[Result](), list[SecureMedianError]()
    print("measuring this machine ...", file=sys.stderr, flush=True)
    with terminal.console(stderr=True).status("encryption") as status:
        byte = seconds_per_byte()
        for (name, given), clients in itertools.product(methods(options), counts):
            try:
                method = METHODS[name](**given)
                params = RoundParams(method, dim=options.dim, max_clients=clients)
                if start is not None:
                    params.check_start(start)
                policy.refuse(security, policy.forbidden(security, params))
                status.update(Text(f"{method.label}, {clients} clients"))
                rows.append(forecast(params, protocol, link, byte, options.workers))
                asked.append(params)
            except (ConfigError, InputError, PolicyRefused) as error:
                refused.append(error)
    if not rows:
        raise refused[0]
    console.print(_tables(rows, options.dim))
    # both schedules of a method may be refused for the same reason
    for reason in dict.fromkeys(map(str, refused)):
        # all of them have the same way out
        console.print(f"left out: {reason.removesuffix(policy.OR_WAY_OUT)}")
    if any(str(reason).endswith(policy.OR_WAY_OUT) for reason in refused):
        console.print(f"To take these, {policy.WAY_OUT}")
    for clients in counts:
        about = f"n = {clients}: " if len(counts) > 1 else ""
        lines = cheapest([row for row in rows if row["clients"] == clients])
        lines += of_noise([params for params in asked if params.max_clients == clients])
        lines += of_votes([row for row in rows if row["clients"] == clients])
        for line in lines:
            console.print(about + line)
    for line in ranges(asked):
        console.print(line)
    if options.json:
        report.write_json(options.json, rows)
        console.print(f"saved to {options.json}")
    if options.plot:
        title = f"Plan: rounds by the number of clients, d = {options.dim:,}"
        of = {name: [*its] for name, its in itertools.groupby(rows, itemgetter("name"))}
        growths = by_clients.grown(of, "seconds", "OTs", "MB")
        drawn = by_clients.panels(growths, by_clients.exponents_of(growths))
        console.print(f"saved to {plots.save(options.plot.with_suffix(''), title, drawn)}")


def methods(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each method that the options ask for, with the options that it is given."""
    given = {name: value for name, value in given_options(options).items() if name != "security"}
    for name in METHODS if options.method is None else (options.method,):
        compared = {
            key: values for key, values in COMPARED.get(name, {}).items() if key not in given
        }
        if options.security == MALICIOUS and "security" in options_of(METHODS[name]):
            compared |= {"security": (MALICIOUS,)}
        for values in itertools.product(*compared.values()):
            yield name, with_fraction(name, given | dict(zip(compared, values, strict=True)))


def forecast(
    params: RoundParams, protocol: ProtocolParams, link: LinkShape, byte: float, workers: int = 0
) -> Result:
    """Return the forecast of one round, as --json writes it; `byte` is `seconds_per_byte()`.

    Raises ConfigError if the round is too large for any machine, or excludes workers or silent OT.
    """
    form, clients = params.form, params.max_clients
    if workers and form.votes > 1:
        raise ConfigError(
            f"a round of {params.method.name} takes no workers: --workers {workers}; leave them out"
        )
    if form.audited and (workers or protocol.silent):
        raise ConfigError(
            "a round with security malicious takes neither workers nor silent OT: --workers or "
            "--extension; leave out those, or security malicious"
        )
    weights = [1] * clients
    if workers:
        plans = predict_shards(params, weights, protocol, workers)
    else:
        plans = [predict(params, weights, protocol)]
    total = joined([plan.cost for plan in plans])
    busiest = max(plans, key=lambda plan: (plan.cost.ots, plan.online_seconds))
    cost = busiest.cost
    making = cost.ots * seconds_per_ot(params, weights, protocol)
    before, after = (AHEAD, AFTER) if form.audited else (1.0, 0.0)
    early = cost.preprocessing_bytes_sent + cost.preprocessing_bytes_received
    late = cost.bytes_sent + cost.bytes_received - early
    # a server checks dealings while it fills its pools
    each, memory = time_check(form.dealing) if form.dealing else (0.0, 0)
    ahead = before * making + early * byte
    checked = -(-params.dim * form.votes // max(1, workers)) * clients * each
    checking = busiest.checking_seconds + checked
    online = busiest.online_seconds + after * making + late * byte
    transfer = 8 * max(total.bytes_sent, total.bytes_received) / link.bits_per_second
    waiting = total.rounds * (link.rtt_s / 2 + HOP_S) + (form.votes - 1) * CROSSED * link.rtt_s
    compute = ahead + checking + online
    door = door_seconds(params) if workers else 0.0
    return {
        "name": params.method.label,
        "round": params.to_dict(),
        "kind": params.method.kind,
        "clients": clients,
        # of each server; 0 for threads of its own process
        "workers": workers,
        "ots": total.ots,
        "bytes_s0_to_s1": total.bytes_sent,
        "bytes_s1_to_s0": total.bytes_received,
        "rounds": total.rounds,
        # of one client, to the server that gets more: before and after its training
        "client_bytes_ahead": form.bytes_ahead,
        "client_bytes_after": form.bytes_after,
        "votes": form.votes,
        # of dealings and uploads at one server, at most
        "disk_bytes": disk_bytes(params, clients),
        "memory_bytes": memory + max(plan.memory for plan in plans),
        "ahead_seconds": ahead,
        "checking_seconds": checking,
        "online_seconds": online,
        "transfer_seconds": transfer,
        "waiting_seconds": waiting,
        "door_seconds": door,
        "compute_seconds": compute,
        "seconds": door + max(compute, transfer) + waiting,
        # of one round; None without noise
        "epsilon": told_epsilon(params.method.noise.rho),
    }


def seconds_per_ot(params: RoundParams, weights: Sequence[int], protocol: ProtocolParams) -> float:
    """Return the seconds of one OT of this round, at a party whose peer sends only zeros."""
    size = params.dim
    while size > 1 and round_demand(params, weights, size).ots > CALIBRATION_OTS:
        size //= 2
    wanted, pool = round_demand(params, weights, size), lone_party(protocol).pool

    def make() -> None:
        pool.keep_only(Demand())
        pool.reserve(wanted)

    seconds = _fastest(make) if wanted.counts else 0.0
    # the silent extension makes OTs by the group of trees, and some are left over
    return seconds * CALIBRATION_RUNS / max(1, pool.ots + sum(pool.left))


def door_seconds(params: RoundParams) -> float:
    """Return the seconds of the door for the shares that a server gets in full.

    They are those of half the clients, and of those who deal all rotations.
    """
    form, data = params.form, os_entropy(1 << 22)
    full = form.bytes_ahead + (1 + bool(form.dealing)) * form.bytes_after
    # a digest, and copies from the file and to the workers
    seconds = _fastest(lambda: (hashlib.sha256(data).digest(), bytearray(bytearray(data))))
    return params.max_clients / 2 * full * seconds / len(data)


@cache
def time_check(dealing: Dealing) -> tuple[float, int]:
    """Return the seconds per coordinate and client, and the bytes, of a check of dealings.

    They are measured on one part, at a party whose peer sends only zeros.
    """
    part = max(dealing.parts, key=lambda part: part.kept)
    shape = replace(dealing, dim=part.kept, votes=1)
    half = SeedUpload(shape.layout, os_entropy(SEED_BYTES), native_aes=True)
    halves = [half] * CALIBRATION_CLIENTS
    check = partial(check_dealings, DryChannel(), 0, shape, halves, bytes(SEED_BYTES))
    tracemalloc.start()
    # compiles
    check()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return _fastest(check) / shape.dim / CALIBRATION_CLIENTS, peak


def seconds_per_byte() -> float:
    """Return the seconds per byte of CURVE's cipher, XSalsa20 and Poly1305, on a 64 KiB message.

    Of longer ones the new memory that PyNaCl asks for takes twice as long as the cipher.
    """
    box, message = SecretBox(os_entropy(SecretBox.KEY_SIZE)), bytes(1 << 16)
    return _fastest(lambda: box.encrypt(message)) / len(message)


def _fastest(work: Callable[[], object]) -> float:
    """Return the processor's seconds of the fastest of CALIBRATION_RUNS runs."""
    return min(timeit.repeat(work, timer=time.process_time, number=1, repeat=CALIBRATION_RUNS))


def ranges(asked: Sequence[RoundParams]) -> list[str]:
    """Return a sentence per range on the methods that take such values alone, and for which n."""
    methods, lines = dict[tuple[str, int], list[str]](), dict[str, list[str]]()
    for params in asked:
        if taken := params.value_range:
            methods.setdefault((str(taken), params.max_clients), []).append(params.method.label)
    for (values, clients), names in methods.items():
        lines.setdefault(f"{', '.join(dict.fromkeys(names))}: {values}", []).append(f"{clients}")
    counts = {params.max_clients for params in asked}
    return [
        line if len(which) == len(counts) else f"n = {', '.join(which)}: {line}"
        for line, which in lines.items()
    ]


def cheapest(rows: Sequence[Result]) -> list[str]:
    """Return a sentence on the fastest method for each kind of median among the forecasts."""
    best = {row["kind"]: row for row in sorted(rows, key=itemgetter("seconds"), reverse=True)}
    return [
        f"On this link the {kind} median takes the least time with {best[kind]['name']}: about "
        f"{best[kind]['seconds']:.3g} s per round."
        for kind in ("exact", "approximate")
        if kind in best
    ]


def of_noise(asked: Sequence[RoundParams]) -> list[str]:
    """Return what the noise of a round gives and what it costs, in plain words."""
    lines = []
    for params in asked:
        method, clients, dim = params.method, params.max_clients, params.dim
        if not isinstance(method, Mean) or not method.noise_multiplier:
            continue
        ratio = signal_to_noise(method.noise_multiplier, clients, dim)
        told = [f"{n}: {epsilon_of(n * method.noise.rho):.3g}" for n in ROUNDS_TOLD]
        lines += [
            f"{method.label}: epsilon at delta {DELTA:g}, by the rounds of a cohort, "
            f"{', '.join(told)}",
            f"the mean is at most {ratio:.2g} times as long as its noise: n / (z sqrt(2 d))",
        ]
        if ratio < DROWNED:
            most, needed = dim * (ratio / DROWNED) ** 2, clients * DROWNED / ratio
            lines.append(
                f"The noise drowns the model. With such noise {clients:,} clients can train "
                f"some {max(1, int(most)):,} parameters, and {dim:,} parameters take some "
                f"{math.ceil(needed):,} clients. With few clients, protect each record instead: "
                "docs/differential-privacy.md"
            )
    return lines


def of_votes(rows: Sequence[Result]) -> list[str]:
    """Return what a round of several votes takes besides: of clients and disks."""
    return [
        f"{row['name']}: {row['votes']} votes, for each of which all clients are there. A server "
        f"keeps up to {terminal.figure(row['disk_bytes'] / 1e6)} MB of dealings and votes on its "
        "disk until the round ends."
        for row in rows
        if row["votes"] > 1
    ]


def _tables(rows: Sequence[Result], dim: int) -> Group:
    """Return a table of what the rounds cost, and one of what their seconds consist of.

    With several numbers of clients there is only the first, with the clients in a column.
    """
    first, several = rows[0], len({row["clients"] for row in rows}) > 1
    title = f"d = {dim:,} coordinates"
    title = f"{title}, n clients" if several else f"n = {first['clients']} clients, {title}"
    seconds = "Of the seconds, for servers like this machine and on this link:"
    if first["workers"]:
        title += f", {first['workers']} workers per server"
        seconds += f" the daemon's {first['door_seconds']:.3g} s for its workers, and"
    costs = list[dict[str, Any]]()
    for before, row in itertools.pairwise([{"name": ""}, *rows]):
        about = "~ " if row["kind"] == "approximate" else ""
        costs.append(
            {
                # each name once
                "method": about + row["name"] if row["name"] != before["name"] else "",
                **({"n": f"{row['clients']:,}"} if several else {}),
                "M OTs": row["ots"] / 1e6,
                "MB": max(row["bytes_s0_to_s1"], row["bytes_s1_to_s0"]) / 1e6,
                "rounds": f"{row['rounds']:,}",
                "memory": row["memory_bytes"] / 1e6,
                "dealt": row["client_bytes_ahead"] / 1e6,
                "sent": row["client_bytes_after"] / 1e6,
                "seconds": row["seconds"],
            }
        )
    table = report.table(title, costs, COSTS_NOTE)
    if several:
        return table
    parts = [
        {
            "method": row["name"],
            **{part: row["_".join([part, "seconds"])] for part in SECONDS},
            "seconds": row["seconds"],
        }
        for row in rows
    ]
    return Group(table, report.table(seconds, parts, SECONDS_NOTE))


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
