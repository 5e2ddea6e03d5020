"""servers.logs: one line per event, for machines or for people."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from securemedian.servers import logs


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
