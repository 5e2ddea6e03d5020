"""The line that says what a wait waits for, from whom, and until when."""

import sys
import threading
import time
from collections.abc import Callable

from securemedian.common.durable import say

# takes a line for the user
Report = Callable[[str], object]
# a wait says nothing for so long; where its line cannot be replaced, it says it again so often
AFTER_S, EVERY_S = 3.0, 60.0
# a wait that ends later than this says on which day
DAY_S = 12 * 3600


class Teller:
    """Prints lines, and replaces that of a wait on standard error, if that is a terminal."""

    def __init__(self, before: str = "", on_stdout: bool = False) -> None:
        """Take what each line begins with, and whether lines go to standard output instead."""
        self._before, self._on_stdout, self._waiting = before, on_stdout, False
        # uploads and dealings wait on threads of their own
        self._lock = threading.Lock()

    def __call__(self, text: str) -> None:
        with self._lock:
            self._clear()
            if self._on_stdout:
                say(f"{self._before}{text}")
            else:
                print(f"{self._before}{text}", file=sys.stderr, flush=True)

    def replace(self, text: str) -> bool:
        """Show a wait's line instead of its earlier one, "" for none. Return whether it can."""
        with self._lock:
            if not sys.stderr.isatty():
                return False
            self._clear()
            if text:
                from shutil import get_terminal_size

                line = f"{self._before}{text}"[: get_terminal_size().columns - 1]
                print(line, end="", file=sys.stderr, flush=True)
                self._waiting = True
            return True

    def _clear(self) -> None:
        if self._waiting:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._waiting = False


class Wait:
    """One wait until `deadline`, of time.monotonic(), which says from `AFTER_S` on what it is for.

    `what` returns what is waited for and from whom. A `Teller` on a terminal shows it in place;
    another report gets a line, and again every `EVERY_S`.
    """

    def __init__(self, report: Report, what: Callable[[], str], deadline: float) -> None:
        self._report, self._what = report, what
        self._begun = now = time.monotonic()
        self._until = _clock(deadline - now)
        self._due, self._in_place = now + AFTER_S, False

    def turn(self) -> None:
        """Say it, if it is time to."""
        now = time.monotonic()
        if now < self._due:
            return
        text = f"waiting for {self._what()}, until {self._until}"
        passed = f"{text} ({now - self._begun:.0f} s so far)"
        if isinstance(self._report, Teller) and self._report.replace(passed):
            self._due, self._in_place = now + 1.0, True
        else:
            self._due = now + EVERY_S
            self._report(text)

    def end(self) -> None:
        """Remove the line that is shown in place."""
        if self._in_place and isinstance(self._report, Teller):
            self._report.replace("")


def _clock(left_s: float) -> str:
    form = "%H:%M:%S" if left_s < DAY_S else "%H:%M on %d %B"
    return time.strftime(form, time.localtime(time.time() + left_s))
