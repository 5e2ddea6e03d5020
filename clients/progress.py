"""The display of a long upload on a terminal."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from securemedian.clients import connection
from securemedian.clients.connection import unseen
from securemedian.clients.terminal import console

# an upload that takes less is not shown
AFTER_S = 1.0


@contextmanager
def shown_on_terminal() -> Iterator[connection.Progress]:
    """Show on standard error, if it is a terminal, what uploads tell, and nothing afterwards."""
    if not sys.stderr.isatty():
        yield unseen
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
    )
    task = bar.add_task("uploading", total=None)
    began: float | None = None

    def show(sent: int, total: int) -> None:
        nonlocal began
        if sent >= total:
            # the next upload may be short again
            bar.stop()
            began = None
            return
        if began is None:
            began = time.monotonic()
            bar.reset(task)
        bar.update(task, completed=sent, total=total)
        if time.monotonic() - began >= AFTER_S:
            bar.start()

    try:
        yield show
    finally:
        bar.stop()
