"""Figures about this machine's processes, from /proc."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process, which `started` tells from a later one with the same number."""

    pid: int
    started: str

    @property
    def runs(self) -> bool:
        """Return whether it has not ended."""
        stat = _stat(self.pid)
        return stat is not None and stat[0] != "Z" and stat[19] == self.started


def below(process: int) -> dict[Process, bytes]:
    """Return all processes that a process or one of these has started, with their command lines.

    A line has a space between its arguments.
    """
    stats: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (stat := _stat(int(entry.name))):
            stats[int(entry.name)] = stat
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(int(stat[1]), []).append(pid)
    found, left = {}, list(children.get(process, []))
    while left:
        pid = left.pop()
        found[Process(pid, stats[pid][19])] = _command_of(pid)
        left += children.get(pid, [])
    return found


def workers_below(process: int) -> list[int]:
    """Return the processes of Ray's workers of ours below a process."""
    return [each.pid for each, command in below(process).items() if b"ray::_RayWorker" in command]


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name: state, parent, ..; None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return b""
