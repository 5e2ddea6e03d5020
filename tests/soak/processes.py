"""A process that is started again whenever it has ended, as a service manager would do it."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

# between SIGTERM and SIGKILL
STOP_LIMIT_S = 15.0
# before a process that has ended by itself is started again
PAUSE_S = 1.0

# called with each line of JSON that a process writes to standard error, and when it is started
Listener = Callable[[dict[str, Any]], None]


class Restarted:
    """One process under its manager. `kill`, `pause` and `stop` may be called by any thread.

    Everything that it writes goes to NAME.log; lines of JSON go to `listen` as well, on a thread of
    this process's own.
    """

    def __init__(self, name: str, folder: Path, arguments: list[str], listen: Listener) -> None:
        self.name = name
        # the exit statuses of lives that nobody ended from here
        self.exits: list[int] = []
        self._command = [sys.executable, "-m", *arguments]
        self._log = folder / f"{name}.log"
        self._listen = listen
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._killed, self._stopping = False, threading.Event()
        self._down_s = PAUSE_S
        self._thread = threading.Thread(target=self._manage, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The process id, or None while it is down."""
        process = self._process
        return process.pid if process and process.poll() is None else None

    def kill(self, down_s: float) -> None:
        """End the process with SIGKILL; it is started again `down_s` after its end."""
        with self._lock:
            self._killed, self._down_s = True, down_s
            self._signal(signal.SIGKILL)

    def pause(self, paused: bool) -> None:
        """Stop the process for the time being, or let it go on."""
        self._signal(signal.SIGSTOP if paused else signal.SIGCONT)

    def stop(self) -> None:
        """End the process for good, with SIGTERM first."""
        self._stopping.set()
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        self._thread.join(STOP_LIMIT_S)
        self._signal(signal.SIGKILL)
        self._thread.join(STOP_LIMIT_S)

    def size(self) -> tuple[int, int] | None:
        """Return how many bytes of memory and how many descriptors it has; None while down."""
        try:
            pid = self.pid
            pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
            return int(pages) * resource.getpagesize(), len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            return None

    def _signal(self, number: int) -> None:
        if (pid := self.pid) is not None:
            # a child that nobody has waited for keeps its id
            os.kill(pid, number)

    def _manage(self) -> None:
        with self._log.open("ab", buffering=0) as log:
            while not self._stopping.is_set():
                with self._lock:
                    self._killed, self._down_s = False, PAUSE_S
                    self._process = subprocess.Popen(
                        self._command,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.PIPE,
                        # Ctrl-C must reach the soak only, which ends the others in order
                        start_new_session=True,
                    )
                self._listen({"event": "started"})
                self._read(self._process, log)
                status = self._process.wait()
                if not self._killed and not self._stopping.is_set():
                    self.exits.append(status)
                self._stopping.wait(self._down_s)

    def _read(self, process: subprocess.Popen[bytes], log: Any) -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                log.write(line)
                if line.startswith(b"{"):
                    try:
                        event = json.loads(line)
                    # the last line of a killed process
                    except ValueError:
                        continue
                    self._listen(event)
