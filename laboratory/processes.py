"""Child processes that have a log each and are all ended by process id, whatever happens."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BufferedWriter
from pathlib import Path
from typing import Any, Protocol, Self

from securemedian.mpc.errors import SecureMedianError

# between SIGTERM and SIGKILL
STOP_LIMIT_S = 15.0
# before a process that has ended by itself is started again
PAUSE_S = 1.0
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
# gets the name of a process and each line of JSON that it writes to standard error
Hear = Callable[[str, dict[str, Any]], None]


def _launch(command: Sequence[str], heard: bool, log: BufferedWriter) -> Running:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if heard else log,
        stderr=subprocess.PIPE if heard else subprocess.STDOUT,
        # Ctrl-C must reach this process only, which ends the others in order
        start_new_session=True,
    )


class Child:
    """One child process. With `hear` it starts again whenever it ends, as under systemd.

    `hear` then gets what the process writes, on a thread of the child's own, and {"event":
    "started"} at each start. Any thread may call the methods.
    """

    def __init__(self, name: str, launch: Launch, log: Path, hear: Hear | None = None) -> None:
        self._name, self._launch, self._log, self._hear = name, launch, log, hear
        # the exit statuses of lives that ended by themselves
        self.exits: list[int] = []
        self._process: Running | None = None
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._killed, self._down_s = False, PAUSE_S
        self._manager = threading.Thread(target=self._manage, name=name, daemon=True)

    def start(self) -> None:
        """Start the process, and its manager if it has one."""
        if self._hear:
            self._manager.start()
        else:
            self._begin()

    def _begin(self) -> Running:
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

    def kill(self, down_s: float = 0.0) -> None:
        """End the process with SIGKILL; its manager starts it again `down_s` after its end."""
        with self._lock:
            self._killed, self._down_s = True, down_s
            self.send(signal.SIGKILL)

    def pause(self, paused: bool) -> None:
        """Stop the process for the time being, or let it continue."""
        self.send(signal.SIGSTOP if paused else signal.SIGCONT)

    def end(self) -> None:
        """Ask the process to end for good."""
        self._stopping.set()
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)

    def wait(self, limit_s: float) -> int:
        """Return the exit status; kill the process if it has not ended within the limit."""
        assert self._process
        if self._hear:
            self._manager.join(limit_s)
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            return self._process.wait(STOP_LIMIT_S)

    def size(self) -> tuple[int, int] | None:
        """Return its bytes of memory and its descriptors, or None while it is down."""
        try:
            pid = self.pid
            pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
            return int(pages) * resource.getpagesize(), len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            return None

    def check(self) -> None:
        """Raise SecureMedianError with the last line of the log if the process has ended."""
        if self._hear or self._process is None:
            return
        status = self._process.poll()
        if status is not None:
            last = self._log.read_text("utf-8", "replace").strip().rpartition("\n")[2]
            raise SecureMedianError(
                f"{self._name} ended with status {status}: {last or 'no output'}; see {self._log}"
            )

    def _manage(self) -> None:
        while not self._stopping.is_set():
            with self._lock:
                self._killed, self._down_s = False, PAUSE_S
                process = self._begin()
            self._tell({"event": "started"})
            self._read(process)
            status = process.wait()
            if not self._killed and not self._stopping.is_set():
                self.exits.append(status)
            self._stopping.wait(self._down_s)

    def _read(self, process: Any) -> None:
        with process.stderr as lines, self._log.open("ab", buffering=0) as log:
            for line in lines:
                log.write(line)
                # the last line of a killed process may be cut off
                if line.startswith(b"{") and line.endswith(b"}\n"):
                    self._tell(json.loads(line))

    def _tell(self, event: dict[str, Any]) -> None:
        assert self._hear
        self._hear(self._name, event)


class Processes:
    """The child processes of a folder by name, which the end of this context ends.

    Each writes to NAME.log there. With `hear` all of them are started again (`Child`).
    """

    def __init__(self, logs: Path, hear: Hear | None = None) -> None:
        self._logs, self._hear = logs, hear
        self._children: dict[str, Child] = {}
        # Ctrl-C reaches the main thread only, so it cannot come between a start and its entry here
        self._starter = ThreadPoolExecutor(1)
        # The thread begins now: `stop` would not wait for one whose own start Ctrl-C has cut short.
        self._starter.submit(lambda: None).result()

    def __getitem__(self, name: str) -> Child:
        return self._children[name]

    def __iter__(self) -> Any:
        return iter(self._children)

    def start(self, name: str, module: str, *arguments: str) -> None:
        """Run `python -m MODULE ARGUMENTS`."""
        command = [sys.executable, "-m", module, *arguments]
        self.launch(name, partial(_launch, command, self._hear is not None))

    def launch(self, name: str, launch: Launch) -> None:
        """Start a process in any way."""
        child = Child(name, launch, self._logs / f"{name}.log", self._hear)
        self._starter.submit(self._start, name, child).result()

    def _start(self, name: str, child: Child) -> None:
        self._children[name] = child
        child.start()

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
