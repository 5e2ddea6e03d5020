"""The terminal: lines, waits, bars and tables. rich is imported when it draws something.

Every text is printed as it is: brackets are not markup, and only rich's own objects have styles.
"""

import argparse
import re
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, TextIO

from securemedian.common.durable import say

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.constrain import Constrain
    from rich.progress import Progress as Bar

# takes a line for the user
Report = Callable[[str], object]
# takes how much is done, and all there is to do
Progress = Callable[[int, int], object]
# a wait says nothing for so long; where its line cannot be replaced, it says it again so often
AFTER_S, EVERY_S = 3.0, 60.0
# a wait that ends later than this says on which day
DAY_S = 12 * 3600
# an upload that takes less is not shown
UPLOAD_S = 1.0
# columns of tables; a narrower terminal folds the lines, which reads better than figures cut off
TABLE_WIDTH = 112
CLOSE_FROM = 7


def unseen(done: int, total: int) -> None:
    """Ignore the progress of something."""


def folded(text: str, stream: TextIO) -> str:
    """Break a line between words where the terminal `stream` ends. Other streams get it whole.

    Commands in backticks stay whole, to be copied.
    """
    width = get_terminal_size().columns
    if len(text) <= width or not stream.isatty():
        return text
    kept = re.sub(r"`[^`]*`", lambda command: command[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        kept, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\0", " ")


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
                say(folded(f"{self._before}{text}", sys.stdout))
            else:
                print(folded(f"{self._before}{text}", sys.stderr), file=sys.stderr, flush=True)

    def replace(self, text: str) -> bool:
        """Show a wait's line instead of its earlier one, "" for none. Return whether it can."""
        with self._lock:
            if not sys.stderr.isatty():
                return False
            self._clear()
            if text:
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
        self._until = clock(deadline - now)
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


def clock(left_s: float) -> str:
    """Return the time of day in so many seconds, with the day if it is far.

    A server may say any number of them, also one for which no time exists.
    """
    form = "%H:%M:%S" if left_s < DAY_S else "%H:%M on %d %B"
    try:
        return time.strftime(form, time.localtime(time.time() + left_s))
    except (ValueError, OverflowError, OSError):
        return f"in {left_s:g} seconds"


def console(stderr: bool = False, width: int = 0) -> "Console":
    """Return a console, at least `width` wide, on standard error or on standard output."""
    from rich.console import Console

    made = Console(stderr=stderr, markup=False, emoji=False)
    made.width = max(made.width, width)
    return made


def bar(text: str, *columns: str, **options: Any) -> "Bar":
    """Return a bar on standard error that is gone when it ends.

    `columns` are names of rich's columns after the bar, or words.
    """
    from rich import progress

    named: dict[str, Any] = {"console": console(stderr=True), "transient": True} | options
    return progress.Progress(
        progress.TextColumn(text),
        progress.BarColumn(bar_width=20),
        *(
            getattr(progress, name)() if hasattr(progress, name) else progress.TextColumn(name)
            for name in columns
        ),
        **named,
    )


@contextmanager
def shown_upload() -> Iterator[Progress]:
    """Show on standard error, if it is a terminal, what uploads tell, and nothing afterwards."""
    if not sys.stderr.isatty():
        yield unseen
        return
    columns = ("DownloadColumn", "TransferSpeedColumn", "remaining", "TimeRemainingColumn")
    shown = bar("uploading", *columns)
    task = shown.add_task("", total=None)
    began: float | None = None

    def show(sent: int, total: int) -> None:
        nonlocal began
        if sent >= total:
            # the next upload may be short again
            shown.stop()
            began = None
            return
        if began is None:
            began = time.monotonic()
            shown.reset(task)
        shown.update(task, completed=sent, total=total)
        if time.monotonic() - began >= UPLOAD_S:
            shown.start()

    try:
        yield show
    finally:
        shown.stop()


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = ""
) -> "Group":
    """Return a table with its title above and its note below.

    Columns of figures are aligned to the right, columns of words to the left. If there is little
    room, words are folded: a figure that is cut off is another figure.
    """
    from rich.cells import cell_len
    from rich.console import Group
    from rich.table import Table

    # many columns stand closer together
    close = len(columns) > CLOSE_FROM
    made = Table(box=None, header_style="bold", pad_edge=False, collapse_padding=close)
    for i, column in enumerate(columns):
        figures = all(not row[i] or row[i][0].isdigit() for row in rows)
        # a heading of several words may be folded between them
        whole = [*column.split(), *(row[i] for row in rows)]
        widest = max(map(cell_len, whole)) if figures else None
        made.add_column(
            column,
            justify="right" if figures else "left",
            overflow="fold",
            min_width=widest,
        )
    for row in rows:
        made.add_row(*row)
    return Group(f"\n{title}", made, *([prose(note)] if note else []))


def prose(text: str) -> "Constrain":
    """Return text that is folded where the terminal ends, also on a console that is wider."""
    from rich.constrain import Constrain

    real = console()
    return Constrain(text, real.width if real.is_terminal else None)


def figure(value: float | None) -> str:
    """Return a figure with three significant digits, or an empty text for None."""
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


class Paragraphs(argparse.HelpFormatter):
    """A formatter that fills each paragraph of a description to the terminal's width.

    argparse itself either joins paragraphs, or keeps the lines as they stand in the source.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = textwrap.dedent(text).strip().split("\n\n")
        return "\n\n".join(
            super(Paragraphs, self)._fill_text(one, width, indent) for one in paragraphs
        )
