"""Points, run in two processes over loopback, and the medians of their repetitions."""

import json
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import zmq

from securemedian.benchmarks.settings import Settings
from securemedian.benchmarks.work import Point, round_params, weight
from securemedian.common import terminal
from securemedian.mpc.errors import SecureMedianError
from securemedian.mpc.protocols.prg import SESSION_BYTES, os_entropy

START_LIMIT_S = 180.0
# between two finished repetitions
SILENCE_LIMIT_S = 600.0

Result = dict[str, Any]


class BenchmarkError(SecureMedianError):
    """A benchmark process stopped or fell silent."""

    code = "benchmark"


def measure(points: Sequence[Point], chosen: Settings) -> list[Result]:
    """Return one result per point, and show meanwhile how far they are.

    Raises ConfigError if a point is not valid, and BenchmarkError if a process stops or falls
    silent.
    """
    # raises for parameters that are not valid, before any process starts
    total = sum(map(weight, points)) * chosen.repeat
    messages: list[list[list[dict[str, Any]]]] = [[[], []] for _ in points]
    columns = "TaskProgressColumn", "TimeRemainingColumn", "to go"
    with terminal.bar("{task.description}", *columns) as progress:
        task = progress.add_task("starting two processes", total=total)
        with _Processes(
            points=[asdict(point) for point in points],
            repetitions=chosen.repeat,
            protocol=asdict(chosen.protocol),
            link=chosen.link,
            session=os_entropy(SESSION_BYTES).hex(),
        ) as processes:
            for _ in range(2 * len(points) * chosen.repeat):
                party, message = processes.next_message(SILENCE_LIMIT_S)
                messages[message["point"]][party].append(message)
                point = points[message["point"]]
                progress.update(task, advance=weight(point) / 2, description=point.name)
    conditions = {
        "extension": chosen.extension,
        "link": chosen.link,
        "native": chosen.native,
        "aes_bytes_per_second": chosen.yardstick.bytes_per_second,
    }
    return [
        _result(point, *both) | conditions for point, both in zip(points, messages, strict=True)
    ]


def _result(point: Point, s0: list[dict[str, Any]], s1: list[dict[str, Any]]) -> Result:
    """Return the median over the repetitions of each figure.

    Seconds and rounds are those of the slower party.
    """

    def slower(figure: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median_low(max(map(figure, both)) for both in zip(s0, s1, strict=True))

    def costs(of: list[dict[str, Any]], name: str) -> Any:
        return statistics.median_low(message["cost"][name] for message in of)

    # correlations made before the round, checking the uploads, and reading and summing them are
    # not in `seconds`
    names = ("seconds", "ahead_seconds", "checking_seconds", "uploads_seconds", "rounds")
    result = point.to_dict()
    for name in names:
        result[name] = slower(lambda m, name=name: m["cost"][name])  # type: ignore[misc]
    preprocessing = slower(lambda m: float(m["cost"]["preprocessing_seconds"]))
    result |= {
        "preprocessing_seconds": min(result["seconds"], preprocessing),
        "online_seconds": max(0.0, result["seconds"] - preprocessing),
        "publish_seconds": slower(lambda m: float(m["publish_seconds"])),
        # work of both parties: all but reading and summing the uploads
        "mpc_seconds": slower(lambda m: _spent(m) - m["cost"]["uploads_seconds"]),
        "total_seconds": slower(lambda m: _spent(m) + m["publish_seconds"]),
        # the seconds before the last upload of a round, and after it
        "before_seconds": slower(lambda m: float(m["early_seconds"])),
        "after_seconds": slower(lambda m: _spent(m) - m["early_seconds"]),
        "ots": costs(s0, "ots"),
        "repetitions": len(s0),
    }
    for j, (way, messages) in enumerate((("s0_to_s1", s0), ("s1_to_s0", s1))):
        for part in ("", "preprocessing_", "checking_"):
            result[f"{part}bytes_{way}"] = costs(messages, f"{part}bytes_sent")
        # of the processes so far, earlier points included
        result[f"peak_bytes_s{j}"] = max(message["peak_bytes"] for message in messages)
    if point.bench == "median":
        params = round_params(point)
        # bytes of one client, to the server that gets more
        result |= {
            "ring_bits": params.form.ring_bits,
            "client_bytes_ahead": params.form.bytes_ahead,
            "client_bytes_after": params.form.bytes_after,
        }
    if point.count is not None:
        result["per_second"] = point.count / result["seconds"]
        result["bytes_each"] = (result["bytes_s0_to_s1"] + result["bytes_s1_to_s0"]) / point.count
    return result


def _spent(message: dict[str, Any]) -> float:
    cost = message["cost"]
    return float(cost["ahead_seconds"] + cost["checking_seconds"] + cost["seconds"])


class _Processes:
    """The processes of both parties, which are ended by process id whatever happens."""

    def __init__(self, **job: Any) -> None:
        self._job = job
        self._keys = [tuple(key.decode() for key in zmq.curve_keypair()) for _ in range(2)]
        self._lines: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "_Processes":
        try:
            self._start(1, "tcp://127.0.0.1:*")
            _, message = self.next_message(START_LIMIT_S)
            self._start(0, message["endpoint"])
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, party: int, endpoint: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "securemedian.benchmarks.party"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        assert process.stdin is not None and process.stdout is not None
        (public, secret), (peer, _) = self._keys[party], self._keys[1 - party]
        own = {"party": party, "public": public, "secret": secret, "peer_public": peer}
        process.stdin.write(json.dumps(self._job | own | {"endpoint": endpoint}) + "\n")
        process.stdin.close()
        threading.Thread(target=self._read, args=(party, process.stdout), daemon=True).start()

    def _read(self, party: int, lines: Any) -> None:
        for line in lines:
            self._lines.put((party, line))
        self._lines.put((party, ""))

    def next_message(self, limit_s: float) -> tuple[int, dict[str, Any]]:
        """Return the next message of either party, with the party's number.

        Raises BenchmarkError if none comes within `limit_s` or a process stops.
        """
        try:
            party, line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            raise BenchmarkError(
                f"no benchmark process reported anything: {limit_s:g} s; see whether the "
                "machine is busy, and try again"
            ) from None
        if not line:
            raise BenchmarkError(
                f"a process stopped early: that of S{party}; read its message above"
            )
        return party, json.loads(line)

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + 5
        for process in self._processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
