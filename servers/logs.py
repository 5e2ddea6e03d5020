"""Structured logs, with one line per event, as JSON unless standard error is a terminal.

Callers never pass secrets or shares.
"""

import hashlib
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import Any

from securemedian.mpc.errors import cut, printable

# characters
MAX_TRACEBACK = 20_000
# how many lines one source may cause at once, and after how long it may cause one more
BURST, EVERY_S = 10, 10.0

# a line for a terminal has from so many columns to so many, and names so many members of a list
WIDTHS, FEW = (80, 120), 4

_logger = logging.getLogger("securemedian")


def event(
    name: str, level: int = logging.INFO, error: BaseException | None = None, **fields: Any
) -> None:
    """Log the event `name` with its fields, and with the traceback of `error`.

    Texts are cut, because they may come from outside.
    """
    fields = {key: cut(value) if type(value) is str else value for key, value in fields.items()}
    _logger.log(level, name, extra={"fields": fields}, exc_info=error)


def fingerprint(kind: str, secret: bytes) -> str:
    """Return 16 hex digits that stand for a secret in the log and do not reveal it.

    `kind` says what it is, such as a session's id: the same bytes of two kinds have two names.
    """
    return hashlib.sha256(f"securemedian {kind} in the log".encode() + secret).hexdigest()[:16]


def add_listener(listener: logging.Handler) -> None:
    _logger.addHandler(listener)


@dataclass
class _Allowance:
    """The lines that one source may still cause (a token bucket), and those it was refused."""

    lines: float
    at: float
    suppressed: int = 0


class BoundedLog:
    """Logs events that others can cause at will, at a bounded rate per source.

    A source may cause `BURST` lines at once, then one per `EVERY_S`, which says how many were
    `suppressed` before it. Sources are names on a list, so that the memory is bounded. Used by one
    thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._allowances: dict[str, _Allowance] = {}

    def event(
        self,
        name: str,
        source: str,
        /,
        level: int = logging.WARNING,
        error: BaseException | None = None,
        **fields: Any,
    ) -> None:
        """Log an event as `event` does, if its source may cause one more line."""
        now = self._clock()
        allowance = self._allowances.setdefault(source, _Allowance(BURST, now))
        earned = (now - allowance.at) / EVERY_S
        allowance.lines, allowance.at = min(BURST, allowance.lines + earned), now
        if allowance.lines < 1:
            allowance.suppressed += 1
            return
        if allowance.suppressed:
            fields["suppressed"] = allowance.suppressed
        allowance.lines, allowance.suppressed = allowance.lines - 1, 0
        event(name, level, error, **fields)


class _Line(logging.Formatter):
    """The form of one line, as JSON or for a terminal."""

    def __init__(self, server: str, as_json: bool) -> None:
        super().__init__()
        self._server, self._json = server, as_json

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = dict(getattr(record, "fields", {}))
        if record.exc_info:
            traceback = self.formatException(record.exc_info)[:MAX_TRACEBACK]
            fields["traceback"] = "\n".join(map(printable, traceback.split("\n")))
        if self._json:
            stamp = (
                time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
                + f".{int(record.msecs):03d}Z"
            )
            head = {
                "time": stamp,
                "level": record.levelname.lower(),
                "server": self._server,
                "event": record.getMessage(),
            }
            return json.dumps(head | fields, default=str)
        lines = fields.pop("traceback", "")
        details = " ".join(f"{key}={_short(value)}" for key, value in fields.items())
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = (
            f"{clock} {self._server} {record.levelname.lower():7} {record.getMessage()} {details}"
        )
        most = min(max(get_terminal_size().columns, *WIDTHS[:1]), WIDTHS[1])
        # a reason tells what to do, and is said in full
        if record.levelno < logging.WARNING and len(line) > most:
            line = f"{line[: most - 3]} .."
        return f"{line}\n{lines}" if lines else line


def _short(value: Any) -> str:
    """Return a field for a person: a few digits of a number, and how many a dump has."""
    if isinstance(value, dict | list | tuple) and len(value) > FEW:
        return f"({len(value)})"
    return f"{value:.4g}" if type(value) is float else printable(str(value))


def start(server: str) -> None:
    """Send this process's logs to standard error, and name `server` in every line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line(server, as_json=not sys.stderr.isatty()))
    logging.captureWarnings(True)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # libraries log their warnings and errors only
    root.setLevel(logging.WARNING)
    _logger.setLevel(logging.INFO)
