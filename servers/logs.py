"""Structured logs, with one line per event, as JSON unless standard error is a terminal.

Callers never pass secrets or shares.
"""

import json
import logging
import sys
import time
from typing import Any

from securemedian.mpc.errors import cut

# characters
MAX_TRACEBACK = 20_000

_logger = logging.getLogger("securemedian")


def event(
    name: str, level: int = logging.INFO, error: BaseException | None = None, **fields: Any
) -> None:
    """Log the event `name` with its fields, and with the traceback of `error`.

    Texts are cut, because others may have written them.
    """
    fields = {key: cut(value) if type(value) is str else value for key, value in fields.items()}
    _logger.log(level, name, extra={"fields": fields}, exc_info=error)


def _printable(key: str, value: object) -> object:
    """Return a value for a terminal, on which a text of others must not begin new lines."""
    safe = type(value) is not str or value.isprintable() or key == "traceback"
    return value if safe else repr(value)


class _Line(logging.Formatter):
    """The form of one line, as JSON or for a terminal."""

    def __init__(self, server: str, as_json: bool) -> None:
        super().__init__()
        self._server, self._json = server, as_json

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["traceback"] = cut(self.formatException(record.exc_info), MAX_TRACEBACK)
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
        details = " ".join(f"{key}={_printable(key, value)}" for key, value in fields.items())
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        return (
            f"{clock} {self._server} {record.levelname.lower():7} {record.getMessage()} {details}"
        )


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
