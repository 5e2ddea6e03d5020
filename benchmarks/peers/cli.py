"""The kind `peers` of `bench`: the same comparisons and medians with SPU and MPyC, in one run.

It is for a checkout alone. Each peer runs in a virtual environment of its own, `ENVIRONMENTS`/NAME
with the packages of requirements-NAME.txt, as one process per party: NAME_party.py. A party's job
is {"rank", "addresses" (one per party), "core", "limit_s", "repetitions", "log", "tasks"}, a task
{"work": "compare" | "median" | "sort", "count", "ring_bits", "clients" (of medians)}.
"""

import argparse
import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median_low
from typing import Any

from securemedian.benchmarks import settings
from securemedian.benchmarks.work import Point
from securemedian.laboratory import report
from securemedian.mpc.errors import SecureMedianError
from securemedian.mpc.protocols.protocol import ProtocolParams

HERE = Path(__file__).parent
ENVIRONMENTS = Path("results/peers-env")
# for a run of a peer, and between two looks at its processes
LIMIT_S, POLL_S = 1200.0, 0.2
# characters of a failed program's output that are shown
SHOWN = 800
OURS = "securemedian"
RINGS = (32, 64)
COMPARE, MEDIAN, SORT = "compare", "median", "sort"

Row = dict[str, Any]


class PeerFailed(SecureMedianError):
    """The error that a peer is not there, or gave no correct result in time.

    The other peers still run.
    """

    code = "peer-failed"


@dataclass(frozen=True)
class Framework:
    """Another system, and the ways in which it does the work."""

    name: str
    title: str
    parties: int
    # of the ring that its floats are in
    median_bits: int
    # the work, how it is done, and the part of our batch that is taken: of work that a peer does
    # one item after another our batch would take minutes, at the same cost per item
    ways: tuple[tuple[str, str, int], ...]

    @property
    def python(self) -> Path:
        """The Python of its environment."""
        return ENVIRONMENTS.absolute() / self.name / "bin" / "python"

    def versions(self) -> dict[str, str]:
        """Return the pinned version of each package that it requires."""
        lines = (HERE / f"requirements-{self.name}.txt").read_text().split()
        return dict(line.split("==") for line in lines)


PEERS = (
    Framework(
        "spu",
        "SPU",
        2,
        64,
        (
            (COMPARE, "Cheetah", 1),
            (SORT, "Cheetah, sorting network", 1),
            (MEDIAN, "Cheetah, jnp.median", 20),
        ),
    ),
    Framework(
        "mpyc",
        "MPyC",
        3,
        32,
        (
            (COMPARE, "Shamir, 3 parties", 100),
            (SORT, "Shamir, np_sort", 10),
            (MEDIAN, "Shamir, median_low", 100),
        ),
    ),
)


def add_kinds(kinds: Any) -> None:
    """Add `peers` to `bench`."""
    peers = kinds.add_parser(
        "peers",
        help="the same comparisons and medians with SPU and MPyC",
        description="Time signed comparisons and coordinate-wise medians with SPU (Cheetah, two "
        "parties), MPyC (three parties, the fewest of which one may be corrupt) and this program, "
        "one after another on this machine, with one process per party on loopback. A peer is "
        f"left out unless it is installed in {ENVIRONMENTS}. Set-up is not counted; the median "
        "of the repetitions is kept; the peers' results are checked against numpy.",
    )
    settings.add_counts(
        peers,
        ("--count", 400_000, "comparisons per batch"),
        ("--clients", 8, "values per median"),
        ("--dim", 1000, "medians per batch"),
        ("--repeat", 3, "repetitions"),
    )
    settings.add_markdown(peers)
    settings.add_out(peers)
    peers.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Time our program and every peer, print the ratios, save the JSON."""
    console = report.console()
    file = report.check_writable(options.out / "peers.json")
    ours = settings.Settings(ProtocolParams(), repeat=options.repeat)
    rows, failed = _ours(options, ours), {}
    for peer in PEERS:
        try:
            with console.status(f"{peer.title}: some minutes with the default sizes"):
                rows += _theirs(peer, options)
        except PeerFailed as error:
            failed[peer.name] = str(error)
    rows = with_ratios(rows)
    versions = {peer.name: peer.versions() for peer in PEERS}
    report.save(file, asdict(ours), rows, versions=versions, failed=failed)
    columns = ["work", "system", "how", "batch", "per second", "B each", "ours is faster by"]
    figures = [
        [row["what"], row["system"], row["how"], f"{row['batch']:,}"]
        + [report.figure(row[name]) for name in ("per_second", "bytes_each", "ratio")]
        for row in rows
    ]
    title = "preprocessing included; bytes of all parties"
    report.show(console, title, columns, figures, options.markdown)
    for name, why in failed.items():
        console.print(f"{name} gave no result: {why}", markup=False)
    console.print(f"saved to {file}")


def _ours(options: argparse.Namespace, ours: settings.Settings) -> list[Row]:
    n, d = options.clients, options.dim
    bucketed = {"buckets": 8, "schedule": "scan"}
    points = [
        *(
            (Point(COMPARE, "comparison", options.count, options={"ring_bits": bits}), "")
            for bits in RINGS
        ),
        (Point("median", "radix", None, n, d), "exact, radix on float32"),
        (Point("median", "pairwise", None, n, d, verified=False), "exact, pairwise, l = 64"),
        (Point("median", "bucketed", None, n, d, bucketed, verified=False), "bucketed, b = 8"),
    ]
    results = settings.measure([point for point, _ in points], ours, f"{OURS}:")
    return [
        _row(
            _what(point.bench, point.options.get("ring_bits"), n),
            OURS,
            how,
            point.count or d,
            result["seconds"],
            result["bytes_s0_to_s1"] + result["bytes_s1_to_s0"],
        )
        for (point, how), result in zip(points, results, strict=True)
    ]


def _theirs(peer: Framework, options: argparse.Namespace) -> list[Row]:
    rows, tasks = [], []
    for work, how, part in peer.ways:
        compares = work == COMPARE
        for bits in RINGS if compares else (peer.median_bits,):
            count = max(1, (options.count if compares else options.dim) // part)
            tasks.append(
                {"work": work, "ring_bits": bits, "clients": options.clients, "count": count}
            )
            rows.append((_what(work, bits, options.clients), how, count))
    parties = parties_results(peer, tasks, options.repeat)
    title = f"{peer.title} {peer.versions()[peer.name]}"
    return [
        _row(
            what,
            title,
            how,
            count,
            # the slower party's seconds of each repetition, as in benchmarks.harness
            median_low(map(max, zip(*(party["seconds"] for party in results), strict=True))),
            # the mean, because a repetition that refills a stock of correlations sends more
            sum(sum(party["bytes_sent"]) for party in results) / options.repeat,
        )
        for (what, how, count), *results in zip(rows, *parties, strict=True)
    ]


def _what(work: str, ring_bits: int | None, clients: int) -> str:
    compares = f"signed comparison, l = {ring_bits}"
    return compares if work == COMPARE else f"median of {clients} floats"


def _row(what: str, system: str, how: str, batch: int, seconds: float, sent: float) -> Row:
    row = {"what": what, "system": system, "how": how, "batch": batch, "seconds": seconds}
    return row | {"per_second": batch / seconds, "bytes_each": sent / batch}


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """Return the rows grouped by work, each with its ratio: how many times faster ours is.

    Ours is the first row of each group.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["what"], []).append(row)
    return [
        row | {"ratio": same[0]["per_second"] / row["per_second"]}
        for same in groups.values()
        for row in same
    ]


def parties_results(
    peer: Framework, tasks: Sequence[dict[str, Any]], repetitions: int
) -> list[list[dict[str, Any]]]:
    """Run a peer's parties, and return what each of them wrote for each task.

    Their logs are written to the peer's environment. Raises PeerFailed if that is not there, or a
    party stops early, takes longer than LIMIT_S or leaves out a result.
    """
    folder = peer.python.parent.parent
    if not peer.python.exists():
        raise PeerFailed(
            f"it is not installed: python3.11 -m venv {folder} && {peer.python} -m pip install "
            f"-r {HERE / f'requirements-{peer.name}.txt'}"
        )
    cores = sorted(os.sched_getaffinity(0))
    common = {
        "addresses": _addresses(peer.parties),
        "limit_s": max(1, int(LIMIT_S)),
        "repetitions": repetitions,
        "tasks": tasks,
    }
    command = [str(peer.python), "-I", str(HERE / f"{peer.name}_party.py")]
    outputs = [folder / f"party-{rank}.out" for rank in range(peer.parties)]
    processes: list[subprocess.Popen[str]] = []
    deadline = time.monotonic() + LIMIT_S
    with ExitStack() as stack:
        stack.callback(_end, processes)
        for rank, output in enumerate(outputs):
            log = folder / f"party-{rank}.log"
            log.unlink(missing_ok=True)
            job = common | {"rank": rank, "core": cores[rank % len(cores)], "log": str(log)}
            out = stack.enter_context(output.open("w"))
            processes.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, text=True
                )
            )
            assert processes[-1].stdin is not None
            processes[-1].stdin.write(json.dumps(job))
            processes[-1].stdin.close()
        # a list, so that all processes are asked
        while any([process.poll() is None for process in processes]):
            if any(process.returncode for process in processes):
                break
            if time.monotonic() > deadline:
                raise PeerFailed(f"not done within {LIMIT_S:g} s: lower --count and --dim")
            time.sleep(POLL_S)
        for process, output in zip(processes, outputs, strict=True):
            if process.returncode:
                raise PeerFailed(f"stopped with {process.returncode}: {_last_words(output)}")
    return [_results(output, len(tasks)) for output in outputs]


def _end(processes: Sequence["subprocess.Popen[str]"]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()


def _addresses(parties: int) -> list[str]:
    """Return loopback addresses whose ports were free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(parties)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def _results(output: Path, tasks: int) -> list[dict[str, Any]]:
    """Return the JSON lines among whatever else the peer writes."""
    lines = output.read_text().splitlines()
    results = [json.loads(line) for line in lines if line.startswith('{"task"')]
    if len(results) != tasks:
        raise PeerFailed(f"{len(results)} of {tasks} results: {_last_words(output)}")
    return results


def _last_words(output: Path) -> str:
    return output.read_text(errors="replace").strip()[-SHOWN:] or "it said nothing"
