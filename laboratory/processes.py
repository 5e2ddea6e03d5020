"""Child processes that have a log each and are all ended by process id, whatever happens."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from securemedian.mpc.errors import SecureMedianError

# between SIGTERM and SIGKILL
STOP_LIMIT_S = 15.0


# after which SIGTERM unwinds the stack again: Python ignores what is raised in a finalizer
AGAIN_S = 2.0


def unwind_on_sigterm() -> None:
    """Let SIGTERM unwind the stack, so that the processes started here are ended."""

    def unwind(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        sys.exit(128 + signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, unwind)


class Processes:
    """The running processes, which the end of this context ends."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        # Ctrl-C reaches the main thread only, so it cannot come between a start and its entry here
        self._starter = ThreadPoolExecutor(1)
        # The thread begins now: `stop` would not wait for one whose own start Ctrl-C has cut short.
        self._starter.submit(lambda: None).result()

    def start(self, name: str, module: str, *arguments: str) -> None:
        """Run `python -m MODULE ARGUMENTS` with its output in NAME.log."""
        self._starter.submit(self._start, name, [sys.executable, "-m", module, *arguments]).result()

    def _start(self, name: str, command: list[str]) -> None:
        with self._log(name).open("wb") as log:
            self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C must reach this process only, which ends the others in order
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise SecureMedianError with the last line of its log if a process has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                last = self._log(name).read_text("utf-8", "replace").strip().rpartition("\n")[2]
                raise SecureMedianError(
                    f"{name} ended with status {process.returncode}: {last or 'it said nothing'}"
                )

    def stop(self) -> None:
        """Send SIGTERM to all processes, and SIGKILL to those still there STOP_LIMIT_S later."""
        # nothing is to interrupt this
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._starter.shutdown()
        for process in self._running.values():
            process.terminate()
        deadline = time.monotonic() + STOP_LIMIT_S
        for process in self._running.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"
