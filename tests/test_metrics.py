"""A server's pages over HTTP: metrics, health, readiness, and who may ask how much."""

import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
import zmq

import securemedian
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.rounds.cost import Cost
from securemedian.servers import logs, metrics
from securemedian.servers.config import Caller, MetricsConfig
from securemedian.servers.metrics import MOST_CONNECTIONS, HttpServer, Monitor, Tally
from tests.daemons import ROOT, Pair, running, wait_until
from tests.servers_alone import DEALT, PARAMS, Server

pytest.importorskip("prometheus_client")
pytest.importorskip("uvicorn")

from prometheus_client.parser import text_string_to_metric_families

LIMIT_S = 60.0
OPERATIONS = ROOT / "docs" / "operations"


@pytest.fixture
def tally() -> Iterator[Tally]:
    """Count what is logged during a test."""
    tally, logger = Tally(), logging.getLogger("securemedian")
    before = logger.level
    logger.setLevel(logging.INFO)
    logs.add_listener(tally)
    yield tally
    logger.removeHandler(tally)
    logger.setLevel(before)


def turn(monitor: Monitor, server: Server) -> None:
    """Let the loop turn, a second later."""
    monitor._due = 0.0
    monitor.turn(server.requests, server.rounds, server.engines)


def samples(monitor: Monitor) -> dict[tuple[str, ...], float]:
    """Return the values by name and labels, in the order of their names, without the process's."""
    families = text_string_to_metric_families(monitor.metrics().decode())
    return {
        (sample.name.removeprefix("securemedian_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("securemedian_")
    }


@contextmanager
def page(monitor: Monitor) -> Iterator[str]:
    """Serve a monitor at any free port."""
    server = HttpServer("127.0.0.1:0", monitor)
    try:
        yield f"http://127.0.0.1:{server.address[1]}"
    finally:
        server.close()
        assert not server._thread.is_alive()


def get(url: str) -> tuple[int, str]:
    try:
        with urlopen(url, timeout=LIMIT_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def publish(server: Server, cost: Cost, included: int) -> None:
    """Log what a server logs when a round has been published."""
    logs.event(
        "round-published",
        included=[f"client-{i}" for i in range(included)],
        left_out={"late": "its upload reached neither server"},
        cost=cost.to_dict(),
    )


def test_a_round_under_way_is_shown_as_it_is(tmp_path: Path, tally: Tally) -> None:
    server = Server(0, tmp_path, DEALT, state_dir=str(tmp_path))
    monitor = Monitor(server.config, tally)
    turn(monitor, server)
    assert samples(monitor)["live_rounds", "open"] == 0
    round_id = server.open()
    server.deal(server.keys[0], round_id)
    server.upload(server.keys[0], round_id)
    server.deal(server.keys[1], round_id)
    server.engine.progress = (1, 4)
    turn(monitor, server)
    seen = samples(monitor)
    assert seen["live_rounds", "open"] == 1 and seen["live_rounds", "running"] == 0
    assert [seen["live_uploads", where] for where in metrics.PLACES] == [0, 1, 0, 2]
    assert [seen["live_dealings", where] for where in metrics.PLACES] == [0, 2, 0, 1]
    assert seen["progress_ratio",] == 0.25
    assert seen["info", securemedian.__version__, "s0"] == 1
    assert 0 < seen["disk_free_bytes",] <= seen["disk_bytes",]


def test_answers_are_counted_by_request_and_result(tmp_path: Path, tally: Tally) -> None:
    server = Server(0, tmp_path)
    monitor = Monitor(server.config, tally)
    round_id = server.open()
    server.upload(server.keys[0], round_id)
    server.upload(server.keys[1], "9-00000000")
    server.ask(server.keys[0], "no-such-request")
    server.ask(server.keys[0], "close", round=round_id)
    turn(monitor, server)
    seen = samples(monitor)
    expected = {
        ("open", "ok"): 1,
        ("upload", "ok"): 1,
        ("upload", "unknown-round"): 1,
        ("unknown", "bad-frame"): 1,
        ("close", "not-allowed"): 1,
    }
    assert {key[1:]: n for key, n in seen.items() if key[0] == "requests_total"} == expected


def test_what_is_logged_is_counted(tmp_path: Path, tally: Tally) -> None:
    server = Server(0, tmp_path)
    monitor = Monitor(server.config, tally)
    server.ask(server.coordinator, "abort", round=server.open(), reason="a test")
    for included in (2, 3):
        publish(server, Cost(ots=10, bytes_sent=7, online_seconds=0.5), included)
    logs.event("request-refused", suppressed=4)
    logs.event("round-failed", code="whatever\nthe peer says")
    logs.event("pool-filled", ots=99, seconds=1.0)
    seen = samples(monitor)
    assert seen["rounds_total", "default", "open"] == 1
    assert seen["rounds_total", "default", "published"] == 2
    code = server.latest.server_round.code
    assert seen["rounds_failed_total", code, "default"] == 1 and code != "error"
    assert seen["rounds_failed_total", "error", "default"] == 1
    assert seen["clients_total", "default", "yes"] == 5
    assert seen["clients_total", "default", "no"] == 2
    assert seen["ots_total",] == 20 and seen["ahead_ots_total",] == 99
    assert seen["peer_bytes_total", "sent"] == 14 and seen["peer_bytes_total", "received"] == 0
    assert seen["phase_seconds_total", "online"] == 1.0
    assert seen["events_total", "request-refused"] == 5


def test_a_defect_in_counting_stays_here(tally: Tally, capsys: pytest.CaptureFixture[str]) -> None:
    logs.event("pool-filled")
    assert "KeyError" in capsys.readouterr().err


def test_a_round_of_a_cohort_is_counted_there(tmp_path: Path, tally: Tally) -> None:
    logs.event("round-open", cohort="stroke")
    monitor = Monitor(Server(0, tmp_path).config, tally)
    assert samples(monitor)["rounds_total", "stroke", "open"] == 1


def test_health_and_readiness(
    tmp_path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(0, tmp_path)
    monitor = Monitor(server.config, tally)
    with page(monitor) as url:
        assert get(f"{url}/healthz")[0] == 200
        assert get(f"{url}/readyz") == (503, "this server has just been started\n")
        before = samples(monitor)
        assert before["ready",] == before["compiled",] == before["live_uploads", "both"] == 0
        turn(monitor, server)
        assert samples(monitor).keys() == before.keys()
        assert get(f"{url}/readyz") == (200, "a round can be opened\n")
        server.engines.ready = False
        turn(monitor, server)
        assert get(f"{url}/readyz")[0] == 503
        server.engines.ready = True
        server.now += 1000
        server.rounds.tick()
        turn(monitor, server)
        status, why = get(f"{url}/readyz")
        assert status == 503 and "s1 has given no sign of life" in why
        assert get(f"{url}/healthz")[0] == 200
        # no turn for a while
        monkeypatch.setattr(metrics, "STUCK_S", 0.01)
        time.sleep(0.02)
        assert get(f"{url}/healthz")[0] == 503
        assert "the loop turned" in get(f"{url}/readyz")[1]


def test_one_may_get_three_pages_and_nothing_else(tmp_path: Path, tally: Tally) -> None:
    with page(Monitor(Server(0, tmp_path).config, tally)) as url:
        status, text = get(f"{url}/metrics?x=1")
        assert status == 200 and "# TYPE securemedian_ready gauge" in text
        assert "process_open_fds" in text
        assert get(f"{url}/")[0] == get(f"{url}/metrics/../etc/passwd")[0] == 404
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{url}/metrics", data=b"x", timeout=LIMIT_S)
        assert refused.value.code == 405 and "POST" not in refused.value.headers["Allow"]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this system has no IPv6")
def test_the_pages_may_have_an_address_of_ipv6(tmp_path: Path, tally: Tally) -> None:
    with closing(HttpServer("[::1]:0", Monitor(Server(0, tmp_path).config, tally))) as server:
        assert get(f"http://[::1]:{server.address[1]}/healthz")[0] == 200


def connect(url: str) -> socket.socket:
    port = int(url.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)


def test_connections_are_few_and_short(
    tmp_path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "REQUEST_S", 0.5)
    with page(Monitor(Server(0, tmp_path).config, tally)) as url:
        # these say nothing, or not enough, and are closed at their limit
        slow = [connect(url) for _ in range(MOST_CONNECTIONS)]
        for each in slow:
            each.sendall(b"GET /metrics HTTP/1.1\r\n")
        wait_until(lambda: _is_closed_at_once(url))
        assert [each.recv(1) for each in slow] == [b""] * MOST_CONNECTIONS
        assert get(f"{url}/healthz")[0] == 200
        with connect(url) as long:
            long.sendall(b"GET /" + b"x" * (2 * metrics.REQUEST_BYTES))
            with suppress(ConnectionError):
                assert long.recv(12) in (b"", b"HTTP/1.1 400")
        for each in slow:
            each.close()


def _is_closed_at_once(url: str) -> bool:
    with connect(url) as one:
        one.settimeout(0.2)
        try:
            return one.recv(1) == b""
        except TimeoutError:
            return False


def test_a_defect_in_an_answer_is_logged_and_the_next_is_answered(
    tmp_path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = Monitor(Server(0, tmp_path).config, tally)
    with page(monitor) as url:
        monkeypatch.setattr(monitor, "metrics", lambda: 1 // 0)
        assert get(f"{url}/metrics")[0] == 500
        monkeypatch.undo()
        wait_until(lambda: samples(monitor).get(("events_total", "metrics-error")) == 1)
        assert get(f"{url}/metrics")[0] == 200


def test_what_a_scrape_costs_does_not_grow_with_clients(tmp_path: Path) -> None:
    """It is the same work: as many samples, and nothing of the loop's is touched."""
    few = Server(0, tmp_path / "few")
    callers = tuple(Caller(f"c{i}", key) for i, key in enumerate(_keys(300)))
    many = Server(0, tmp_path / "many", replace(PARAMS, max_clients=300), clients=callers)
    counts = []
    for server in (few, many):
        monitor = Monitor(server.config, Tally())
        round_id = server.open()
        turn(monitor, server)
        before = samples(monitor)
        # the loop's objects change, and the snapshot does not
        server.ask(server.coordinator, "abort", round=round_id, reason="a test")
        server.ask(server.keys[0], "info")
        assert samples(monitor)["live_rounds", "open"] == before["live_rounds", "open"] == 1
        counts.append(len(before))
    assert counts[0] == counts[1]


def _keys(count: int) -> list[str]:
    return [zmq.curve_keypair()[0].decode() for _ in range(count)]


def test_no_label_names_a_client_a_key_or_a_round(tmp_path: Path, tally: Tally) -> None:
    server = Server(0, tmp_path)
    monitor = Monitor(server.config, tally)
    round_id = server.open()
    server.upload_all(round_id)
    turn(monitor, server)
    text = monitor.metrics().decode()
    for caller in server.config.clients + server.config.coordinators:
        assert caller.name not in text and caller.public_key not in text
    assert round_id not in text


@pytest.mark.parametrize("listen", ["9464", ":9464", "a:b", "::1:80", "127.0.0.1:65536", "h:-1"])
def test_a_wrong_address_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        MetricsConfig(listen)


def test_an_address_in_use_and_a_missing_library_are_named(
    tmp_path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Server(0, tmp_path, state_dir=str(tmp_path)).config
    monitor = Monitor(config, tally)
    with page(monitor) as url, pytest.raises(ConfigError, match="Address already in use"):
        HttpServer(url.removeprefix("http://"), monitor)
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=re.escape("pip install '.[metrics]' in a clone")):
        Monitor(config, tally)


@pytest.mark.parametrize("name", ["alerts.yml", "grafana.json"])
def test_samples_name_only_metrics_and_events_that_there_are(
    name: str, tmp_path: Path, tally: Tally
) -> None:
    text = (OPERATIONS / name).read_text()
    server = Server(0, tmp_path, state_dir=str(tmp_path))
    monitor = Monitor(server.config, tally)
    turn(monitor, server)
    families = text_string_to_metric_families(monitor.metrics().decode())
    known = {f"{f.name}_total" if f.type == "counter" else f.name for f in families}
    used = set(re.findall(r"\b(?:securemedian|process)_[a-z_]+", text))
    assert used and used <= known
    servers = "".join(path.read_text() for path in (ROOT / "servers").rglob("*.py"))
    for event in re.findall(r'event=\\?"([^"\\]+)', text):
        assert f'"{event}"' in servers, event
    if name.endswith(".json"):
        assert json.loads(text)["panels"]
    else:
        yaml = pytest.importorskip("yaml")
        (group,) = yaml.safe_load(text)["groups"]
        for rule in group["rules"]:
            assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
            assert set(rule["annotations"]) == {"summary", "description"}


@pytest.mark.slow
def test_real_servers_show_their_metrics(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    pair = Pair(tmp_path, clients=2)
    pair.configure("s0", f'\n[metrics]\nlisten = "127.0.0.1:{port}"\n')
    with running(pair):
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: get(f"{url}/readyz")[0] == 200)
        round_id = pair.open(method="radix", dim=100, max_clients=2)
        for name in pair.names:
            pair.submit(name, np.zeros(100, np.float32))
        pair.wait("published")
        status = pair.status(round_id=round_id)
        # the snapshot is a second old at most
        wait_until(lambda: 'request="upload",result="ok"} 2.0' in get(f"{url}/metrics")[1])
        seen: dict[tuple[Any, ...], float] = {
            (sample.name.removeprefix("securemedian_"), *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(get(f"{url}/metrics")[1])
            for sample in family.samples
        }
        assert seen["rounds_total", "default", "published"] == 1
        assert seen["ots_total",] == status["cost"]["ots"] > 0
        assert seen["clients_total", "default", "yes"] == 2
        assert pair.stop("s0") == 0
