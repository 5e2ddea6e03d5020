"""Child processes that have a log each and are all ended by process id, whatever happens."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BufferedWriter
from pathlib import Path
from typing import Protocol, Self

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


class Running(Protocol):
    """A process that runs, as `subprocess.Popen` shows it."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...


# starts a process that writes to this log
Launch = Callable[[BufferedWriter], Running]


class Child:
    """One child process. Any thread may call the methods."""

    def __init__(self, name: str, launch: Launch, log: Path) -> None:
        self._name, self._launch, self._log = name, launch, log
        self._process: Running | None = None

    def start(self) -> Running:
        """Start the process."""
        with self._log.open("ab") as log:
            self._process = self._launch(log)
        return self._process

    @property
    def pid(self) -> int | None:
        """Return the process id, or None while the process is down."""
        process = self._process
        return process.pid if process and process.poll() is None else None

    def send(self, number: int) -> None:
        """Send a signal, unless the process is down."""
        if self._process and self.pid is not None:
            # a child that nobody has waited for keeps its id
            self._process.send_signal(number)

    def end(self) -> None:
        """Ask the process to end for good."""
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)

    def wait(self, limit_s: float) -> int:
        """Return the exit status; kill the process if it has not ended within the limit."""
        assert self._process
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            return self._process.wait(STOP_LIMIT_S)

    def check(self) -> None:
        """Raise SecureMedianError with the last line of the log if the process has ended."""
        status = self._process.poll() if self._process else None
        if status is not None:
            last = self._log.read_text("utf-8", "replace").strip().rpartition("\n")[2]
            raise SecureMedianError(
                f"{self._name} ended with status {status}: {last or 'no output'}; see {self._log}"
            )


class Processes:
    """The child processes of a folder by name, which the end of this context ends.

    Each writes to NAME.log there.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: dict[str, Child] = {}
        # Ctrl-C reaches the main thread only, so it cannot come between a start and its entry here
        self._starter = ThreadPoolExecutor(1)
        # The thread begins now: `stop` would not wait for one whose own start Ctrl-C has cut short.
        self._starter.submit(lambda: None).result()

    def __getitem__(self, name: str) -> Child:
        return self._children[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._children)

    def start(self, name: str, module: str, *arguments: str) -> None:
        """Run `python -m MODULE ARGUMENTS`."""
        self.launch(
            name,
            lambda log: subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C must reach this process only, which ends the others in order
                start_new_session=True,
            ),
        )

    def launch(self, name: str, launch: Launch) -> None:
        """Start a process in any way."""
        self._add(name, Child(name, launch, self._logs / f"{name}.log"))

    def _add(self, name: str, child: Child) -> None:
        def start() -> None:
            self._children[name] = child
            child.start()

        self._starter.submit(start).result()

    def pop(self, name: str) -> Child:
        """Return a process that is no longer ended with the others."""
        return self._children.pop(name)

    def check(self) -> None:
        """Raise SecureMedianError if a process has ended by itself."""
        for child in self._children.values():
            child.check()

    def stop(self) -> None:
        """Send SIGTERM to all processes, and SIGKILL to those still there STOP_LIMIT_S later."""
        # nothing is to interrupt this
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._starter.shutdown()
        children = list(self._children.values())
        for child in children:
            child.end()
        deadline = time.monotonic() + STOP_LIMIT_S
        for child in children:
            child.wait(max(0.0, deadline - time.monotonic()))
        self._children.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
