"""A server's metrics and health over HTTP, for Prometheus and supervisors of processes.

`/metrics` is Prometheus text, `/healthz` says whether the process works, and `/readyz` whether a
round can be opened. Events are counted where they are logged and answered, and the present state is
in a snapshot that the loop makes. So a scrape, on a thread of its own, never touches the loop's
data, and costs the same for any number of clients. No label is a key, a round or a client's name.
"""

import asyncio
import logging
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import securemedian
from securemedian.common.addresses import bracketed, host_and_port, is_loopback
from securemedian.common.http import END_S, listening, server_of
from securemedian.common.states import LIVE, State
from securemedian.mpc.errors import ConfigError, from_code
from securemedian.servers import logs
from securemedian.servers.computing.engine import Engines
from securemedian.servers.config import ServerConfig
from securemedian.servers.rounds.requests import Requests
from securemedian.servers.rounds.rounds import Rounds

if TYPE_CHECKING:
    from prometheus_client import Metric
    from uvicorn import Server

# the time between two snapshots
SNAPSHOT_S = 1.0
# A loop that has not turned for so long hangs. A turn may wait 5 s for a dropped computation.
STUCK_S = 30.0
# the connections that are open at a time; more are closed at once
MOST_CONNECTIONS = 8
# how long a connection may take altogether, and the most bytes of a request
REQUEST_S, REQUEST_BYTES = 5.0, 8192
# the headers of every answer
HEADERS = [
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
    ("Connection", "close"),
]

# the parts of a round's `cost` that follow one another, by the name of the phase
PHASES = {
    "ahead": "ahead_seconds",
    "checking": "checking_seconds",
    "preprocessing": "preprocessing_seconds",
    "online": "online_seconds",
}
# the places of a client's upload, as `status` says it
PLACES = ("both", "here", "there", "none")
_STATES = {state.value for state in State}

# by each metric's name after `securemedian_`: the words that Prometheus shows, and its labels
METRICS: dict[str, tuple[str, ...]] = {
    "info": ("This server and its release.", "server", "release"),
    "ready": ("Whether a round can be opened.",),
    "compiled": ("Whether the kernels are compiled.",),
    "peer_linked": ("Whether the other server is there.",),
    "peer_agrees": ("Whether the other server has the same parameters.",),
    "loop_age_seconds": ("Seconds since the loop turned last.",),
    "live_rounds": ("Rounds under way, by state.", "state"),
    "live_uploads": ("Clients of rounds under way, by where their upload is.", "where"),
    "live_dealings": ("Clients of rounds under way, by where their dealing is.", "where"),
    "progress_ratio": ("How far the computation under way is, from 0 to 1.",),
    "pool_limit_bytes": ("The most bytes of correlations that are made ahead.",),
    "disk_bytes": ("The size of the disk of state_dir.",),
    "disk_free_bytes": ("The free bytes of the disk of state_dir.",),
    "requests": (
        "Requests that were answered, with ok or the code of an error.",
        "request",
        "result",
    ),
    "events": ("Events in the log.", "event"),
    "rounds": ("Rounds that have entered a state.", "cohort", "state"),
    "rounds_failed": ("Rounds that have failed, by the code of the error.", "cohort", "code"),
    "clients": (
        "Clients of published rounds, by whether they were included.",
        "cohort",
        "included",
    ),
    "ots": ("OTs of published rounds, both directions together.",),
    "ahead_ots": ("OTs that were made while clients train.",),
    "peer_bytes": ("Bytes to and from the other server for published rounds.", "direction"),
    "epsilon": ("Epsilon, at delta 1e-5, of the results of a cohort with noise.", "cohort"),
    "phase_seconds": ("Seconds of published rounds, by phase.", "phase"),
}
# the values of a metric by label, or by a tuple of labels
Values = Mapping[Any, float]
# those of the loop before its first turn
STILL: dict[str, Values] = {
    **dict.fromkeys(("compiled", "peer_linked", "peer_agrees", "progress_ratio"), {(): 0}),
    "live_rounds": {state.value: 0 for state in LIVE},
    **dict.fromkeys(("live_uploads", "live_dealings"), dict.fromkeys(PLACES, 0)),
}


class Tally(logging.Handler):
    """Counts what is logged, so that the log and the metrics never disagree.

    Suppressed lines count once a later line gives their number.
    """

    def __init__(self) -> None:
        super().__init__()
        self._events: Counter[str] = Counter()
        # by cohort, and by state or code
        self._rounds: Counter[tuple[str, str]] = Counter()
        self._failures: Counter[tuple[str, str]] = Counter()
        # clients of published rounds, by cohort and whether they were included
        self._clients: Counter[tuple[str, str]] = Counter()
        self._ahead_ots = 0
        # the sums over the costs of published rounds
        self._cost: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Count one line. The logging module holds this handler's lock."""
        try:
            self._count(record.getMessage(), getattr(record, "fields", {}))
        # a defect here must not reach whoever logs
        except Exception:
            self.handleError(record)

    def _count(self, event: str, fields: Mapping[str, Any]) -> None:
        self._events[event] += 1 + fields.get("suppressed", 0)
        if event == "pool-filled":
            self._ahead_ots += fields["ots"]
        kind, _, state = event.partition("-")
        if kind == "round" and state in _STATES:
            self._round(state, fields.get("cohort", "default"), fields)

    def _round(self, state: str, cohort: str, fields: Mapping[str, Any]) -> None:
        self._rounds[cohort, state] += 1
        if state == State.FAILED:
            # the other server could invent codes
            self._failures[cohort, from_code(fields["code"], "").code] += 1
        if state == State.PUBLISHED:
            self._clients[cohort, "yes"] += len(fields["included"])
            self._clients[cohort, "no"] += len(fields["left_out"])
            self._cost.update(fields["cost"])

    def counted(self) -> dict[str, Values]:
        with self.lock or nullcontext():
            return {
                "events": dict(self._events),
                "rounds": dict(self._rounds),
                "rounds_failed": dict(self._failures),
                "clients": dict(self._clients),
                "ots": {(): self._cost["ots"]},
                "ahead_ots": {(): self._ahead_ots},
                "peer_bytes": {way: self._cost[f"bytes_{way}"] for way in ("sent", "received")},
                "phase_seconds": {phase: self._cost[name] for phase, name in PHASES.items()},
            }


@dataclass(frozen=True)
class Snapshot:
    """The state of the loop at one moment."""

    # whether a round can be opened, and otherwise why not
    ready: bool = False
    problem: str = "this server has just been started"
    # the values of metrics by name
    values: dict[str, Values] = field(default_factory=lambda: STILL)

    @classmethod
    def of(cls, requests: Requests, rounds: Rounds, engines: Engines) -> "Snapshot":
        """Return a snapshot. Only the loop's thread may call it."""
        live, uploads, dealings = Counter[str](), Counter[str](), Counter[str]()
        progress = 0.0
        for entry in rounds.live:
            here = entry.server_round
            live[here.state.value] += 1
            uploads.update(here.whereabouts().values())
            dealings.update(here.whereabouts_of_dealings().values())
            done, total = engines.of(here.cohort).progress
            progress = max(progress, done / total if total else 0.0)
        compiled, linked = engines.ready, rounds.peer.linked
        agrees = linked and not rounds.peer.misfit
        values: dict[str, Values] = {
            "compiled": {(): compiled},
            "peer_linked": {(): linked},
            "peer_agrees": {(): agrees},
            "live_rounds": {**STILL["live_rounds"], **live},
            "live_uploads": {**STILL["live_uploads"], **uploads},
            "live_dealings": {**STILL["live_dealings"], **dealings},
            "progress_ratio": {(): progress},
            "epsilon": rounds.register.epsilons,
            "requests": dict(requests.answers),
        }
        return cls(compiled and agrees, rounds.peer.problem, values)


class Monitor:
    """The state of a server for the HTTP thread. The loop calls `turn`; any thread the rest."""

    def __init__(self, config: ServerConfig, tally: Tally) -> None:
        """Begin to monitor. Raises ConfigError if the extra `metrics` is not installed."""
        try:
            import starlette  # noqa: F401
            import uvicorn  # noqa: F401
            from prometheus_client import CollectorRegistry, ProcessCollector
        except ImportError as error:
            raise ConfigError(
                "prometheus-client, starlette or uvicorn is missing: [metrics] needs all "
                "three; run pip install '.[metrics]' in a clone"
            ) from error
        self._config, self._tally = config, tally
        self._snapshot, self._turned, self._due = Snapshot(), time.monotonic(), 0.0
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def turn(self, requests: Requests, rounds: Rounds, engines: Engines) -> None:
        """Note that the loop turns, and take a snapshot each `SNAPSHOT_S`."""
        self._turned = time.monotonic()
        if self._turned >= self._due:
            self._due = self._turned + SNAPSHOT_S
            self._snapshot = Snapshot.of(requests, rounds, engines)

    def metrics(self) -> bytes:
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def health(self) -> tuple[bool, str]:
        """Return whether the loop turns, and a sentence about it."""
        age = time.monotonic() - self._turned
        return age < STUCK_S, f"the loop turned {age:.1f} s ago"

    def readiness(self) -> tuple[bool, str]:
        """Return whether a round can be opened, and a sentence about it."""
        healthy, sentence = self.health()
        now = self._snapshot
        if not healthy:
            return False, sentence
        return now.ready, "a round can be opened" if now.ready else now.problem

    def collect(self) -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        counted = self._tally.counted()
        for name, values in (self._snapshot.values | self._gauges() | counted).items():
            about, *labels = METRICS[name]
            counter = name in counted or name == "requests"
            kind = CounterMetricFamily if counter else GaugeMetricFamily
            family = kind(f"securemedian_{name}", about, labels=labels)
            for of, value in values.items():
                family.add_metric([of] if isinstance(of, str) else of, float(value))
            yield family

    def _gauges(self) -> dict[str, Values]:
        config = self._config
        numbers = {
            "loop_age_seconds": time.monotonic() - self._turned,
            "ready": self.readiness()[0],
            "pool_limit_bytes": config.pool_limit_bytes,
        }
        # the folder may be gone, or its disk: the figure is left out then
        with suppress(OSError):
            disk = shutil.disk_usage(config.state_dir)
            numbers |= {"disk_bytes": disk.total, "disk_free_bytes": disk.free}
        info: Values = {(config.name, securemedian.__version__): 1}
        return {"info": info} | {name: {(): number} for name, number in numbers.items()}


class HttpServer:
    """Serves a monitor's pages on a thread of its own, to few connections at a time."""

    def __init__(self, listen: str, monitor: Monitor) -> None:
        """Listen at HOST:PORT. Raises ConfigError if that cannot be."""
        self._monitor, self._log = monitor, logs.BoundedLog()
        bound, host = listening(listen), host_and_port(listen)[0]
        self.address = bound.getsockname()[:2]
        self._server = self._made()
        self._thread = threading.Thread(
            target=self._server.run, args=([bound],), name="metrics", daemon=True
        )
        self._thread.start()
        logs.event(
            "metrics-listening",
            logging.INFO if is_loopback(host) else logging.WARNING,
            listen=f"{bracketed(self.address[0])}:{self.address[1]}",
            for_others=not is_loopback(host),
        )

    def close(self) -> None:
        """End the thread and close everything."""
        self._server.should_exit = True
        self._thread.join(2 * END_S)

    def _made(self) -> "Server":
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse, Response
        from starlette.routing import Route
        from uvicorn.protocols.http.h11_impl import H11Protocol

        class Connection(H11Protocol):
            """One of a few connections, which ends after `REQUEST_S`."""

            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                left_s = REQUEST_S if len(self.connections) <= MOST_CONNECTIONS else 0.0
                asyncio.get_running_loop().call_later(left_s, transport.abort)

        async def metrics(_: Request) -> Response:
            kind = "text/plain; version=0.0.4; charset=utf-8"
            return Response(self._monitor.metrics(), media_type=kind)

        async def health(request: Request) -> Response:
            healthy = request.url.path == "/healthz"
            good, sentence = (self._monitor.health if healthy else self._monitor.readiness)()
            return PlainTextResponse(f"{sentence}\n", 200 if good else 503)

        async def failed(_: Request, error: Exception) -> Response:
            self._log.event("metrics-error", "page", logging.ERROR, error)
            return PlainTextResponse("a defect in this server: see its log\n", 500)

        routes = [Route("/metrics", metrics), Route("/healthz", health), Route("/readyz", health)]
        return server_of(
            Starlette(routes=routes, exception_handlers={Exception: failed}),
            http=Connection,
            h11_max_incomplete_event_size=REQUEST_BYTES,
            headers=HEADERS,
            log_config=None,
            # others could cause its lines at will
            log_level="critical",
        )
