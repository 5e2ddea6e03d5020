"""Processes that start again whenever they end, as under systemd, and tell what they log."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from io import BufferedWriter
from pathlib import Path
from typing import Any

from securemedian.laboratory.processes import Child, Processes

# before a process that has ended by itself is started again
PAUSE_S = 1.0
# gets the name of a process and each line of JSON that it writes to standard error
Hear = Callable[[str, dict[str, Any]], None]


def size(pid: int | None) -> tuple[int, int] | None:
    """Return the bytes of memory and the descriptors of a process, or None if it is down."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize(), len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None


class Revived(Child):
    """A process that starts again. `hear` gets {"event": "started"} at each start, too."""

    def __init__(self, name: str, command: list[str], log: Path, hear: Hear) -> None:
        super().__init__(name, self._launched, log)
        self._command, self._hear = command, hear
        # the exit statuses of lives that ended by themselves
        self.exits: list[int] = []
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._killed, self._down_s = False, PAUSE_S
        self._manager = threading.Thread(target=self._manage, name=name, daemon=True)

    def _launched(self, _: BufferedWriter) -> Any:
        out, error = subprocess.DEVNULL, subprocess.PIPE
        return subprocess.Popen(
            self._command, stdin=out, stdout=out, stderr=error, start_new_session=True
        )

    def start(self) -> Any:
        """Start the thread that starts the process."""
        self._manager.start()

    def kill(self, down_s: float = 0.0) -> None:
        """End the process with SIGKILL; it starts again `down_s` after its end."""
        with self._lock:
            self._killed, self._down_s = True, down_s
            self.send(signal.SIGKILL)

    def pause(self, paused: bool) -> None:
        """Stop the process for the time being, or let it continue."""
        self.send(signal.SIGSTOP if paused else signal.SIGCONT)

    def end(self) -> None:
        """Ask the process to end for good."""
        self._stopping.set()
        super().end()

    def wait(self, limit_s: float) -> int:
        """Return the exit status; kill the process if it has not ended within the limit."""
        self._manager.join(limit_s)
        return super().wait(limit_s)

    def check(self) -> None:
        """Accept that the process may be down."""

    def _manage(self) -> None:
        while not self._stopping.is_set():
            with self._lock:
                self._killed, self._down_s = False, PAUSE_S
                process: Any = super().start()
            self._hear(self._name, {"event": "started"})
            with process.stderr as lines, self._log.open("ab", buffering=0) as log:
                for line in lines:
                    log.write(line)
                    # the last line of a killed process may be cut off
                    if line.startswith(b"{") and line.endswith(b"}\n"):
                        self._hear(self._name, json.loads(line))
            status = process.wait()
            if not self._killed and not self._stopping.is_set():
                self.exits.append(status)
            self._stopping.wait(self._down_s)


class Revivals(Processes):
    """The processes of a soak."""

    def __init__(self, logs: Path, hear: Hear) -> None:
        super().__init__(logs)
        self._hear = hear

    def __getitem__(self, name: str) -> Revived:
        child = super().__getitem__(name)
        assert isinstance(child, Revived)
        return child

    def start(self, name: str, module: str, *arguments: str) -> None:
        """Run `python -m MODULE ARGUMENTS`."""
        command = [sys.executable, "-m", module, *arguments]
        self._add(name, Revived(name, command, self._logs / f"{name}.log", self._hear))
