"""Servers that start at once: forks of a process that has imported and loaded all they need.

A server takes two seconds of processor time to import its modules and to load its kernels. One
process next to each process of pytest does that once. Each fork is a
server of its own: it reads its file, opens its sockets and runs until a signal ends it.
"""

import functools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from io import BufferedWriter
from pathlib import Path
from typing import Any

from securemedian.mpc.protocols.compiling import compile_kernels

ROOT = Path(__file__).parent.parent
MOST_BYTES = 1 << 20


class Forked:
    """A forked process, as `subprocess.Popen` shows one."""

    def __init__(self, source: "Source", pid: int) -> None:
        self._source, self.pid = source, pid

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        status: int | None = self._source.ask({"ended": self.pid})
        return status

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, within `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            time.sleep(0.02)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        self.send_signal(signal.SIGKILL)


class Source:
    """The process that forks others, which ends with the one that started it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._one_at_a_time = threading.Lock()
        with theirs:
            command = [sys.executable, "-m", "tests.forks", str(theirs.fileno())]
            subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()])

    def start(
        self,
        arguments: Sequence[str],
        log: BufferedWriter,
        descriptors: int,
        module: str = "securemedian.cli",
    ) -> Forked:
        """Run a module's `main` with these arguments in a new process, with its errors in `log`.

        It can open so many `descriptors` from its start on: a server looks once.
        """
        request = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(os.environ),
            "descriptors": descriptors,
        }
        return Forked(self, self.ask(request, log.fileno()))

    def ask(self, request: dict[str, Any], *descriptors: int) -> Any:
        """Return the answer to a request."""
        with self._one_at_a_time:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            return json.loads(self._socket.recv(MOST_BYTES))


@functools.cache
def source() -> Source:
    """Return the one of this process."""
    return Source()


def main(asked: socket.socket) -> None:
    """Fork, and tell how forks have ended, until the process that asks is gone."""
    # the imports of `securemedian serve`
    for module in ("securemedian.cli", "securemedian.servers.daemon"):
        import_module(module)
    compile_kernels()
    statuses: dict[int, int] = {}
    while True:
        text, descriptors, *_ = socket.recv_fds(asked, MOST_BYTES, 1)
        if not text:
            return
        request = json.loads(text)
        if "ended" in request:
            pid = request["ended"]
            if pid not in statuses and (found := os.waitpid(pid, os.WNOHANG))[0]:
                statuses[pid] = os.waitstatus_to_exitcode(found[1])
            asked.send(json.dumps(statuses.get(pid)).encode())
        elif pid := os.fork():
            os.close(descriptors[0])
            # of a process long ago
            statuses.pop(pid, None)
            asked.send(json.dumps(pid).encode())
        else:
            asked.close()
            os.dup2(descriptors[0], sys.stderr.fileno())
            os.close(descriptors[0])
            os.environ.clear()
            os.environ.update(request["environment"])
            resource.setrlimit(resource.RLIMIT_NOFILE, (request["descriptors"],) * 2)
            sys.exit(import_module(request["module"]).main(request["arguments"]))


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
