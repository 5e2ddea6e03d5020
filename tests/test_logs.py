"""servers.logs: one line per event, for machines or for people."""

import gc
import io
import json
import logging
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from securemedian.mpc.protocols import wire
from securemedian.servers import logs
from securemedian.servers.network import control
from tests.servers_alone import Server


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=(io.StringIO, Terminal))
def stream(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[io.StringIO]:
    """Give standard error as a file and as a terminal, and put pytest's own logging back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    made = request.param()
    monkeypatch.setattr("sys.stderr", made)
    logs.start("s0")
    yield made
    logging.captureWarnings(False)
    root.handlers[:], root.level = handlers, level
    logging.getLogger("securemedian").setLevel(logging.NOTSET)


def test_an_event_is_one_line(stream: io.StringIO) -> None:
    logs.event("round-open", round="1-a", number=1)
    logs.event("engine-error", logging.ERROR, ValueError("odd"))
    first, second = stream.getvalue().splitlines()[:2]
    if stream.isatty():
        assert (
            first.endswith("s0 info    round-open round=1-a number=1")
            and "error   engine-error" in second
        )
    else:
        wanted = {
            "level": "info",
            "server": "s0",
            "event": "round-open",
            "round": "1-a",
            "number": 1,
        }
        assert wanted.items() <= json.loads(first).items()
        assert "ValueError: odd" in json.loads(second)["traceback"]


def test_a_traceback_commands_no_terminal(stream: io.StringIO) -> None:
    logs.event("engine-error", logging.ERROR, ValueError("odd \x1b[2J\x07"))
    text = stream.getvalue()
    if not stream.isatty():
        text = json.loads(text)["traceback"]
    assert r"ValueError: odd \x1b[2J\x07" in text
    assert all(line.isprintable() for line in text.splitlines())


def test_a_fingerprint_names_a_secret_and_its_kind() -> None:
    names = {
        logs.fingerprint(kind, secret) for kind in ("coin", "session") for secret in (b"a", b"b")
    }
    assert len(names) == 4 and all(len(bytes.fromhex(name)) == 8 for name in names)
    assert logs.fingerprint("coin", b"a") == logs.fingerprint("coin", b"a")


def test_a_source_causes_a_burst_and_then_a_line_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    log = logs.BoundedLog(lambda: now[0])

    def lines(source: str, count: int) -> list[dict[str, Any]]:
        caplog.clear()
        with caplog.at_level(logging.INFO, "securemedian"):
            for _ in range(count):
                log.event("request-refused", source, caller=source)
        return [vars(record)["fields"] for record in caplog.records]

    assert lines("a", 5000) == [{"caller": "a"}] * logs.BURST
    now[0] += logs.EVERY_S
    suppressed = {"caller": "a", "suppressed": 5000 - logs.BURST}
    assert lines("a", 100) == [suppressed]
    assert lines("b", 1) == [{"caller": "b"}], "one source takes nothing from another"
    now[0] += 100 * logs.EVERY_S
    assert len(lines("a", 100)) == logs.BURST


@pytest.mark.slow
@pytest.mark.parametrize("party", [0, 1])
def test_refused_callers_cost_a_server_nothing_that_grows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, party: int
) -> None:
    """Send a client's invalid frames, a refused request, and frames of the other server."""
    server = Server(party, tmp_path)
    client = server.keys[0]
    bad: list[list[wire.Part]] = [
        [b"junk"],
        wire.pack("surprise", {"id": 1}),
        wire.pack("upload", {"id": 1, "round": "7-3fa9c1d2", "params": b"", "form": "seed"}),
        wire.pack("open", {"id": 1, "params": {}, "range": {}}),
    ]
    late = control.Done("7-3fa9c1d2", 1, b"")

    def flood(count: int) -> None:
        for number in range(count):
            server.requests.request(b"", client, bad[number % len(bad)])
            server.rounds.control([b"junk"] if number % 2 else control.encode(server.next(late)))
            server.replies.clear()

    caplog.clear()
    server.sent.clear()
    with caplog.at_level(logging.INFO, "securemedian"):
        flood(100)
        most = len(caplog.records)
        caplog.clear()
        tracemalloc.start()
        flood(100)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        flood(3000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    assert most == 2 * logs.BURST and len(caplog.records) < logs.BURST
    # less than a pointer for each frame
    assert grown < 16_384, grown
    assert all(isinstance(message, control.Hello) for message in server.sent)


def test_a_line_for_a_terminal_fits_it_and_dumps_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    form = logs._Line("s0", as_json=False)

    def line(level: int = logging.INFO, **fields: Any) -> str:
        record = logging.LogRecord("securemedian", level, "", 0, "round-published", None, None)
        record.fields = fields
        return form.format(record)

    told = line(cost={str(name): 1 for name in range(9)}, included=["a", "b"], seconds=1.23456789)
    assert told.endswith("round-published cost=(9) included=['a', 'b'] seconds=1.235")
    assert len(line(text="x" * 300)) == 100 and line(text="x" * 300).endswith(" ..")
    # the remedy is said in full
    assert line(logging.WARNING, reason="x" * 300).endswith("x" * 300)
