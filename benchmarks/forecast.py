"""The verb `plan`: what a round will cost, before anyone starts it.

OTs, bytes and rounds are exact (`plan`). Seconds are an estimate for two servers with one core
each, like this machine's, from a calibration that takes about a second per method, and a few for
an audit:

    seconds  = max(compute, transfer) + waiting
    compute  = OTs x seconds per OT + coordinates x seconds per coordinate of the check
               + seconds of the audit of a part x OTs of the audit / those of the part
               + coordinates x seconds per coordinate online + bytes both ways x seconds per byte
    transfer = bytes of the busier direction / bandwidth
    waiting  = rounds x (rtt / 2 + HOP_S)

With `--workers W` each server has so many workers of one core, which take a shard each:

    seconds  = door + max(compute of the busiest worker, transfer) + waiting of the deepest shard
    door     = bytes of all shares in full x seconds per byte of the door

The door is the daemon, which reads what it has stored, checks its digests and hands out slices.

Seconds per OT and per coordinate are those of one party that runs a part of this round alone
(`rehearsal`), and those per byte of the encryption of the servers' sockets.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Group
from rich.text import Text

from securemedian.benchmarks import by_clients, settings
from securemedian.benchmarks.link import LinkShape
from securemedian.benchmarks.work import SWEPT, with_fraction
from securemedian.clients import files
from securemedian.clients.flags import add_methods, given_options
from securemedian.common import terminal
from securemedian.common.policy import refuse, unbounded
from securemedian.common.security import OR_WAY_OUT, WAY_OUT, Security, add_switch
from securemedian.laboratory import plots, report
from securemedian.mpc.arrays import PublicValues
from securemedian.mpc.errors import ConfigError, InputError, PolicyRefused, SecureMedianError
from securemedian.mpc.protocols.audit.binding import fold
from securemedian.mpc.protocols.channel import Channel, local_pair
from securemedian.mpc.protocols.dealing import Dealing, DealtUpload, check, deal
from securemedian.mpc.protocols.party import SESSION_BYTES, Party
from securemedian.mpc.protocols.prg import SEED_BYTES, os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.protocols.share import SeedUpload, Upload, WordsUpload
from securemedian.mpc.rounds.auditing import Auditor, check_audited
from securemedian.mpc.rounds.chunks import chunk_demand
from securemedian.mpc.rounds.cost import Cost, joined
from securemedian.mpc.rounds.cutting import cut, cut_check, shards
from securemedian.mpc.rounds.methods.bucketed import SCHEDULES
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.plan import predict, predict_audit, predict_shards
from securemedian.mpc.rounds.privacy import DELTA, epsilon_of, signal_to_noise, told_epsilon
from securemedian.mpc.rounds.rehearsal import (
    lone_party,
    rehearse,
    rehearse_check,
    rehearse_judge,
    rehearse_survey,
)

# of two tables, each of which fits 80 columns
COSTS = ("method", "M OTs", "MB", "rounds", "memory", "dealt", "sent", "seconds")
SECONDS = ("method", "ahead", "check", "online", "transfer", "waiting", "seconds")
# beside the options that `bench median` has
PLANNED = (*SWEPT, "noise_multiplier")
LOOPBACK_RTT_MS = 0.1
# the values of options that are compared where none is given
COMPARED: dict[str, dict[str, tuple[str, ...]]] = {
    "bucketed": {"schedule": SCHEDULES},
    "radix": {"encoding": ("float32", "bfloat16", "buckets")},
    "reclustered": {"median_by": ("pairwise", "radix")},
}
# seconds from a send until the receiving thread goes on, without the link: those of the sockets and
# their threads, as measured with `bench median` on small rounds of many messages
HOP_S = 4e-4
# in the part of a round that is timed, at most
CALIBRATION_OTS = 1 << 21
# coordinates of which sketches are timed, at most
SKETCHED = 1 << 16
CALIBRATION_RUNS = 3
CALIBRATION_CLIENTS = 2
# coordinates of the audit that is timed, at most: so many that its buckets are the smallest
AUDITED = 1 << 17
# for how many rounds epsilon is told
ROUNDS_TOLD = (1, 10, 100)
# signal to noise, below which the noise of many rounds does not average out in time
DROWNED = 0.3
FORMULA = (
    "OTs, bytes and rounds are exact, for the first round of a session. Seconds are estimated for "
    "servers with one core each like this machine's: max(compute, transfer) + waiting, where "
    "compute is calibrated here (about a second per method, a few for an audit), transfer = bytes "
    f"of the busier direction / bandwidth, and waiting = rounds x (rtt / 2 + {HOP_S * 1e3:g} ms): "
    "in a round, a message waits for one from the other side. Memory is what the lanes' "
    "correlations, arrays and buffers take at their most, the check of dealings beside them, and "
    "the result; the program itself, some 150 MB, comes on top."
)
COSTS_NOTE = (
    "~ is an approximate median. MB go between the servers, in the busier direction; memory is MB "
    "at a server. dealt and sent are MB of one client before and after its training, to the server "
    "that gets more. seconds are estimated."
)
SECONDS_NOTE = "seconds = max(ahead + check + online, transfer) + waiting"


@dataclass(frozen=True)
class Speed:
    """The speed of one core, in seconds per item."""

    ot: float
    # of the check, for all clients
    checked: float
    # online
    coordinate: float
    # to encrypt or decrypt it
    byte: float
    # of the verdicts of a method that surveys, online, for a whole round
    verdicts: float = 0.0


@dataclass(frozen=True)
class Forecast:
    """One way to compute the result, and what it will cost."""

    name: str
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
    # what the daemon takes to hand out the slices
    door_seconds: float = 0.0

    @property
    def compute_seconds(self) -> float:
        return self.ahead_seconds + self.checking_seconds + self.online_seconds

    @property
    def seconds(self) -> float:
        busy = max(self.compute_seconds, self.transfer_seconds)
        return self.door_seconds + busy + self.waiting_seconds

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as --json writes it, with the parameters under "round"."""
        fields = vars(self) | {
            "round": self.params.to_dict(),
            "kind": self.params.method.kind,
            "ots": self.cost.ots,
            "bytes_s0_to_s1": self.cost.bytes_sent,
            "bytes_s1_to_s0": self.cost.bytes_received,
            "rounds": self.cost.rounds,
            # of one client, to the server that gets more: before and after its training
            "client_bytes_ahead": self.params.bytes_ahead,
            "client_bytes_after": self.params.bytes_after,
            "compute_seconds": self.compute_seconds,
            "seconds": self.seconds,
            # of one round; None without noise
            "epsilon": told_epsilon(self.params.method.zcdp_rho),
        }
        return {name: value for name, value in fields.items() if name not in ("params", "cost")}


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
    plan.add_argument(
        "--bandwidth",
        type=_positive,
        default=math.inf,
        metavar="MBIT/S",
        help="each way (default: unlimited)",
    )
    plan.add_argument(
        "--rtt",
        type=_positive,
        default=LOOPBACK_RTT_MS,
        metavar="MS",
        help="from server to server and back (default: %(default)s, two processes on one machine)",
    )
    settings.add_counts(plan, ("--lanes", ProtocolParams.lanes, "chunks computed at the same time"))
    settings.add_extension(plan)
    plan.add_argument(
        "--workers",
        type=_whole,
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
        raise ConfigError("plan needs --clients, and --dim or --model")
    counts = sorted(set(options.clients))
    if options.plot:
        plots.check()
        if len(counts) < 2:
            raise ConfigError(
                f"--plot draws several numbers of clients, not {counts[0]} alone: give --clients "
                "more of them, like 4,8,16"
            )
        report.check_writable(options.plot)
    console = terminal.console()
    protocol = ProtocolParams(options.field_bits, options.lanes, options.extension)
    link = LinkShape(options.bandwidth * 1e6, options.rtt / 1e3)
    found, refused = list[Forecast](), list[SecureMedianError]()
    print("measuring this machine ...", file=sys.stderr, flush=True)
    with terminal.console(stderr=True).status("encryption") as status:
        byte = seconds_per_byte()
        for build, clients in itertools.product(rounds(options), counts):
            try:
                params = build(clients)
                if start is not None:
                    params.check_start(start)
                if params.method.audited and (options.workers or protocol.silent):
                    raise ConfigError(
                        "an audited round takes neither workers nor silent OT: leave out --workers "
                        "and --extension, or --audit"
                    )
                if options.security == Security.BOUNDED:
                    refuse(options.security, unbounded(params))
                name = params.method.label
                status.update(Text(f"{name}, {clients} clients"))
                found.append(forecast(name, params, clients, protocol, link, byte, options.workers))
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
    for clients in counts:
        rows = [row for row in found if row.clients == clients]
        about = f"n = {clients}: " if len(counts) > 1 else ""
        for line in [*cheapest(rows), *of_noise(rows), *ranges(rows)]:
            console.print(about + line)
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
        picture = by_clients.draw(options.plot.with_suffix(""), title, growths)
        console.print(f"saved to {picture}")


def rounds(options: argparse.Namespace) -> Iterator[Callable[[int], RoundParams]]:
    """Yield one function per round that the options ask for, which takes the number of clients.

    It returns the round's parameters, and raises ConfigError if there can be no such round.
    """
    given = given_options(options)
    for name in METHODS if options.method is None else (options.method,):
        compared = {
            key: values for key, values in COMPARED.get(name, {}).items() if key not in given
        }
        for values in itertools.product(*compared.values()):
            chosen = given | dict(zip(compared, values, strict=True))
            yield partial(_round, name, with_fraction(name, chosen), options.dim)


def _round(method: str, options: Mapping[str, Any], dim: int, clients: int) -> RoundParams:
    return RoundParams(METHODS[method](**options), dim=dim, max_clients=clients)


def forecast(
    name: str,
    params: RoundParams,
    clients: int,
    protocol: ProtocolParams,
    link: LinkShape,
    byte: float,
    workers: int = 0,
) -> Forecast:
    """Return the forecast of one round; `byte` is `seconds_per_byte()`.

    Raises ConfigError if the round is too large for any machine.
    """
    weights = [1] * clients
    speed = calibrate(params, weights, protocol, byte)
    # a server checks dealings while it fills its pools
    checking = time_check(params.dealing).memory if params.dealing else 0
    if not workers:
        predicted = predict(params, weights, protocol)
        memory = predicted.memory + checking
        row = estimate(name, params, clients, predicted.costs[0], memory, speed, link)
        return with_audit(row, weights, protocol, speed) if params.method.audited else row
    # a shard for each worker
    plans = predict_shards(params, weights, protocol, workers)
    total = joined([plan.costs[0] for plan in plans])
    memory = max(plan.memory for plan in plans) + checking
    whole = estimate(name, params, clients, total, memory, speed, link)
    busiest = max((plan.costs[0] for plan in plans), key=lambda cost: cost.ots)
    parts = shards(params.dim, workers)
    checked = parts[0].dim
    if dealing := params.dealing:
        checked = max(sum(dealing.parts[i].kept for i in one.parts(dealing)) for one in parts)
    both = busiest.bytes_sent + busiest.bytes_received
    return replace(
        whole,
        ahead_seconds=busiest.ots * speed.ot,
        checking_seconds=checked * speed.checked,
        online_seconds=speed.verdicts + parts[0].dim * speed.coordinate + both * speed.byte,
        workers=workers,
        door_seconds=in_full(params, clients) * door_seconds_per_byte(),
    )


def in_full(params: RoundParams, clients: int) -> float:
    """Return the bytes of the shares that a server gets in full.

    They are those of half the clients, and of those who deal all rotations.
    """
    full = clients * (params.bytes_ahead + params.bytes_after) / 2
    return full + (clients * params.bytes_after / 2 if params.dealing else 0.0)


def with_audit(
    row: Forecast, weights: Sequence[int], protocol: ProtocolParams, speed: Speed
) -> Forecast:
    """Return a forecast with the audit in its check, and the audit's OTs no longer ahead."""
    ots = predict_audit(row.params, weights, protocol).ots
    return replace(
        row,
        ahead_seconds=row.ahead_seconds - ots * speed.ot,
        checking_seconds=row.checking_seconds + time_audit(row.params, weights, protocol),
    )


def ranges(rows: Sequence[Forecast]) -> list[str]:
    """Return a sentence per range on the methods that take such values alone."""
    methods: dict[str, list[str]] = {}
    for row in rows:
        if taken := row.params.value_range:
            methods.setdefault(str(taken), []).append(row.name)
    return [f"{', '.join(dict.fromkeys(names))}: {taken}" for taken, names in methods.items()]


@cache
def door_seconds_per_byte() -> float:
    """Return the seconds per byte in which a daemon reads, hashes and copies what it has stored."""
    data = bytearray(os_entropy(1 << 22))

    def hand_out() -> None:
        hashlib.sha256(data).digest()
        # from the file, and to where workers fetch it
        bytes(bytes(data))

    return _fastest(hand_out) / len(data)


def _fastest(work: Callable[[], object], timer: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of the fastest of CALIBRATION_RUNS runs."""
    return min(timeit.repeat(work, timer=timer, number=1, repeat=CALIBRATION_RUNS))


def estimate(
    name: str,
    params: RoundParams,
    clients: int,
    cost: Cost,
    memory: int,
    speed: Speed,
    link: LinkShape,
) -> Forecast:
    """Return the forecast by the formula above, from S0's predicted cost."""
    both = cost.bytes_sent + cost.bytes_received
    return Forecast(
        name,
        params,
        clients,
        cost,
        memory,
        ahead_seconds=cost.ots * speed.ot,
        checking_seconds=params.dim * speed.checked,
        online_seconds=speed.verdicts + params.dim * speed.coordinate + both * speed.byte,
        transfer_seconds=8 * max(cost.bytes_sent, cost.bytes_received) / link.bits_per_second,
        waiting_seconds=cost.rounds * (link.rtt_s / 2 + HOP_S),
    )


def calibrate(
    params: RoundParams, weights: Sequence[int], protocol: ProtocolParams, byte: float
) -> Speed:
    """Time a part of the round at a party whose peer sends nothing but zeros.

    Returns the best of CALIBRATION_RUNS runs.
    """
    begin, end = cut(params, len(weights), protocol)[0]
    size, given = end - begin, (params, weights, protocol.batch)
    while size > 1 and chunk_demand(params, weights, size).ots > CALIBRATION_OTS:
        size //= 2

    def chunk(party: Party) -> None:
        if params.method.surveys:
            rehearse_survey(party, *given, size)
        rehearse(party, *given, size)

    computed, judged = _timed(lone_party(protocol), chunk), _Timed(0.0, 0.0)
    if params.method.surveys:
        judged = _timed(lone_party(protocol), lambda party: rehearse_judge(party, *given), runs=1)
    pieces = cut_check(params, len(weights), protocol)
    # those that make more, because few at a time take long each
    judging = params.method.judge_demand(weights, params.max_clients).ots
    by_verdicts = judging > chunk_demand(params, weights, size).ots
    ot, checked = judged.ot if by_verdicts else computed.ot, 0.0
    if pieces:
        piece = pieces[0]
        check = _timed(
            lone_party(protocol), lambda party: rehearse_check(party, params, piece, protocol.batch)
        )
        clients = piece.clients.stop - piece.clients.start
        # per coordinate of all clients
        checked = check.online / piece.dim * len(weights) / clients
        # a round that takes no OTs itself, such as a trimmed mean that drops nobody
        ot = ot or check.ot
    elif surveyor := params.upload_check:
        part = min(size, SKETCHED)
        survey = _timed(
            lone_party(protocol), lambda party: rehearse_survey(party, *given, part, surveyor)
        )
        judge = _timed(lone_party(protocol), lambda party: rehearse_judge(party, *given, surveyor))
        checked, ot = survey.online / part + judge.online / params.dim, ot or judge.ot
    elif params.dealing is not None:
        checked = time_check(params.dealing).seconds * len(weights)
    return Speed(ot, checked, computed.online / size, byte, judged.online)


class _Timed(NamedTuple):
    """The seconds of one OT, or 0 where none was made, and those of the rest."""

    ot: float
    online: float


def _timed(party: Party, work: Callable[[Party], None], runs: int = CALIBRATION_RUNS) -> _Timed:
    """Return the best of so many runs."""
    best = _Timed(math.inf, math.inf)
    for _ in range(runs):
        pool, start = party.pool, time.perf_counter()
        # the silent extension makes OTs by the group of trees, and some are left over
        ots, ahead = pool.ots + sum(pool.left), pool.spent.seconds
        work(party)
        seconds = time.perf_counter() - start
        ahead, made = pool.spent.seconds - ahead, pool.ots + sum(pool.left) - ots
        best = _Timed(
            min(best.ot, ahead / made if made else math.inf), min(best.online, seconds - ahead)
        )
    return _Timed(best.ot if best.ot < math.inf else 0.0, best.online)


class DealingCheck(NamedTuple):
    """What checking dealings takes a server: seconds per coordinate and client, and bytes."""

    seconds: float
    memory: int


@cache
def time_check(dealing: Dealing) -> DealingCheck:
    """Return what checking dealings takes, measured at both parties in this process, on one part.

    The seconds are those of the processor, of which each party takes half. Several clients are
    checked, because the next one's messages are made while one waits.
    """
    part = max(dealing.parts, key=lambda part: part.kept)
    shape = replace(dealing, dim=part.kept)
    half = SeedUpload(shape.layout, os_entropy(SEED_BYTES), native_aes=True)
    halves = [half] * CALIBRATION_CLIENTS

    def run() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda own, j: check(own, j, shape, halves), local_pair(), (0, 1)))

    # compiles, and counts both parties' memory
    tracemalloc.start()
    run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    seconds = _fastest(run, time.process_time)
    return DealingCheck(seconds / 2 / shape.dim / CALIBRATION_CLIENTS, peak // 2)


def time_audit(params: RoundParams, weights: Sequence[int], protocol: ProtocolParams) -> float:
    """Return the seconds of the processor that an audit takes one party, but for its base OTs.

    A part is measured at both parties in this process, with two clients who weigh as much as all
    do, less what an audit of one coordinate takes.
    """
    total = sum(weights)
    few = [total - 1, 1] if total > 1 else [1]
    part, least = (replace(params, dim=dim) for dim in (min(params.dim, AUDITED), 1))
    seconds, base = (
        _fastest(_audits(each, few, protocol), time.process_time) for each in (part, least)
    )
    whole, measured = (predict_audit(each, few, protocol).ots for each in (params, part))
    return max(0.0, seconds - base) / 2 * whole / measured


def _audits(
    params: RoundParams, weights: Sequence[int], protocol: ProtocolParams
) -> Callable[[], object]:
    """Return what audits a round, at both parties, of clients whose values are all in bucket 1."""
    shape, values = check_audited(params), np.ones(params.dim, np.uint8)
    both: tuple[list[DealtUpload], list[DealtUpload]] = [], []
    for _ in weights:
        dealt = deal(shape)
        turns = WordsUpload(shape.rotations_layout, dealt.rotations(values))
        halves: tuple[Upload, Upload] = dealt.seeded, dealt.words
        for uploads, half in zip(both, halves, strict=True):
            uploads.append(DealtUpload(shape, half, turns))
    lanes, mask = [lone_party(protocol) for _ in range(protocol.lanes)], os_entropy(SEED_BYTES)

    def audit(number: int, channels: Sequence[Channel], session_id: bytes) -> None:
        parties = [
            replace(lane, number=number, channel=channel)
            for lane, channel in zip(lanes, channels, strict=True)
        ]
        given = params, protocol, both[number], weights, [mask] * len(weights), session_id
        auditor = Auditor.bind(parties, *given)
        coin = auditor.toss()
        auditor.compare(
            [fold(1 - number, each, session_id, coin, mask) for each in both[1 - number]]
        )
        auditor.prove(PublicValues(values))

    def audits() -> None:
        session_id, pairs = os_entropy(SESSION_BYTES), [local_pair() for _ in lanes]
        with ThreadPoolExecutor(2) as pool:
            ends = zip(*pairs, strict=True)
            list(pool.map(lambda j, own: audit(j, own, session_id), (0, 1), ends))

    return audits


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
    lines = []
    for what, wanted in (("exact median", "exact"), ("approximate median", "approximate")):
        of_kind = [row for row in rows if row.params.method.kind == wanted]
        if of_kind:
            best = min(of_kind, key=lambda row: row.seconds)
            lines.append(
                f"On this link the {what} takes the least time with {best.name}: about "
                f"{best.seconds:.3g} s per round."
            )
    return lines


def of_noise(rows: Sequence[Forecast]) -> list[str]:
    """Return what the noise of a round gives and what it costs, in plain words."""
    lines = []
    for row in rows:
        method, dim = row.params.method, row.params.dim
        if not isinstance(method, Mean) or not method.noise_multiplier:
            continue
        told = ", ".join(
            f"{rounds}: {epsilon_of(rounds * method.zcdp_rho):.3g}" for rounds in ROUNDS_TOLD
        )
        lines.append(f"{row.name}: epsilon at delta {DELTA:g}, by the rounds of a cohort, {told}")
        ratio = signal_to_noise(method.noise_multiplier, row.clients, dim)
        lines.append(
            f"the mean is at most {ratio:.2g} times as long as its noise: n / (z sqrt(2 d))"
        )
        if ratio < DROWNED:
            most, needed = dim * (ratio / DROWNED) ** 2, row.clients * DROWNED / ratio
            lines.append(
                f"The noise drowns the model. With such noise {row.clients:,} clients "
                f"can train some {max(1, int(most)):,} parameters, and {dim:,} parameters take "
                f"some {math.ceil(needed):,} clients. What few clients can have is privacy of each "
                "record: docs/differential-privacy.md"
            )
    return lines


def _tables(rows: Sequence[Forecast]) -> Group:
    """Return a table of what the rounds cost, and one of what their seconds consist of."""
    first = rows[0]
    if len({row.clients for row in rows}) > 1:
        return Group(_by_clients(rows))
    title = f"n = {first.clients} clients, d = {first.params.dim:,} coordinates"
    seconds = "Of the seconds, for servers like this machine and on this link:"
    if first.workers:
        title += f", {first.workers} workers per server"
        seconds += f" the daemon's {first.door_seconds:.3g} s for its workers, and"
    return Group(
        terminal.table(title, COSTS, [_costs(row) for row in rows], COSTS_NOTE),
        terminal.table(seconds, SECONDS, [_seconds(row) for row in rows], SECONDS_NOTE),
    )


def _by_clients(rows: Sequence[Forecast]) -> Any:
    """Return a table of what the rounds cost, by the number of clients."""
    first = rows[0]
    title = f"d = {first.params.dim:,} coordinates, n clients"
    if first.workers:
        title += f", {first.workers} workers per server"
    method, *costs = COSTS
    cells, before = [], ""
    for row in rows:
        name, *figures = _costs(row)
        # once per method
        cells.append(["" if name == before else name, f"{row.clients:,}", *figures])
        before = name
    return terminal.table(title, (method, "n", *costs), cells, COSTS_NOTE)


def _costs(row: Forecast) -> list[str]:
    busier = max(row.cost.bytes_sent, row.cost.bytes_received)
    client = row.params.bytes_ahead, row.params.bytes_after
    return [
        ("~ " if row.params.method.kind == "approximate" else "") + row.name,
        *(_figure(value / 1e6) for value in (row.cost.ots, busier)),
        f"{row.cost.rounds:,}",
        *(_figure(value / 1e6) for value in (row.memory_bytes, *client)),
        _figure(row.seconds),
    ]


def _seconds(row: Forecast) -> list[str]:
    computing = row.ahead_seconds, row.checking_seconds, row.online_seconds
    parts = *computing, row.transfer_seconds, row.waiting_seconds, row.seconds
    return [row.name, *map(_figure, parts)]


def _figure(value: float) -> str:
    """Return a figure with about three digits."""
    return f"{value:,.{3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0}f}"


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".png":
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a PNG file, like cost.png")
    return path


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value
