"""The verb `compile`, which other verbs that need every kernel begin with."""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from securemedian.common import terminal
from securemedian.common.terminal import Paragraphs

# between two lines where standard error is not a terminal
LINE_S = 5.0

_DESCRIPTION = """\
Compile the servers' kernels for this machine's processor, and keep them on disk. It takes all
cores for half a minute or a few, once after an installation or an update. Kernels that are
there already are left alone. A server that finds nothing compiles by itself at its first start,
which takes longer; the demo, experiments, benchmarks and `plan` do so, too.

They are kept in the first of these folders that can be written: NUMBA_CACHE_DIR, beside the
package, the user's own cache, TMPDIR. Kernels beside the package serve all its users; those
elsewhere serve users with the same NUMBA_CACHE_DIR or home. Nobody else may write there,
because the server runs these kernels."""


def add_verbs(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser("compile", description=_DESCRIPTION, formatter_class=Paragraphs)
    verb.set_defaults(run=_compile)


def _compile(_: argparse.Namespace) -> None:
    from securemedian.mpc.protocols.compiling import all_kernels

    compile_all()
    folders = [str(kernel.folder) for kernel in all_kernels()]
    if folders:
        print(f"all kernels are compiled for this processor, in {os.path.commonpath(folders)}")
    else:
        print("nothing is compiled, because NUMBA_DISABLE_JIT is set")


def compile_all() -> None:
    """Compile what the cache on disk lacks, and show on standard error how far that is.

    Raises ConfigError if no folder can be written.
    """
    from securemedian.mpc.protocols.compiling import fill_cache

    with _shown() as told, _ended_in_order():
        fill_cache(told)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the workers, too, and then this process."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    # only the main thread may set handlers
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, end) for number in numbers} if main else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _shown() -> Iterator[Callable[[int, int], None]]:
    """Show what is told as a bar on a terminal, and otherwise as lines."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    columns = "MofNCompleteColumn", "remaining", "TimeRemainingColumn"
    with terminal.bar("compiling kernels, once", *columns, speed_estimate_period=600.0) as progress:
        task = progress.add_task("", total=None, visible=False)

        def show(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, visible=True)

        yield show


def _lines() -> Callable[[int, int], None]:
    """Return what says in lines how far it is and how long it will take."""
    # as what it is told of, imported when it is needed
    from securemedian.mpc.protocols.compiling import Pace

    pace = Pace(LINE_S)

    def tell(done: int, total: int) -> None:
        if done == 0:
            text = f"compiling {total} kernels, once"
        elif done == total:
            text = f"compiled {total} kernels"
        elif (left := pace.seconds_to_go(done, total)) is not None:
            text = f"compiled {done} of {total} kernels, about {left:.0f} s to go"
        else:
            return
        print(f"securemedian: {text}", file=sys.stderr, flush=True)

    return tell
