"""The release before this one, as its wheel says, for tests in which parties of both meet.

Tests unpack the wheel once, into pytest's cache, with its kernels. A compiled kernel is copied from
this checkout if its source, and all that it imports of ours, are the same.
"""

import ast
import fcntl
import functools
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# the release before this one
WHEEL = Path(__file__).parent / "releases" / "securemedian-1.0.0-py3-none-any.whl"
KERNELS = "mpc/protocols/kernels"
# a machine with other work takes minutes to compile all kernels
COMPILED_S = 840.0


@dataclass(frozen=True)
class Release:
    """An unpacked release."""

    folder: Path

    def program(self, text: str) -> list[str]:
        """Return the arguments with which Python runs a program that imports this release."""
        return ["-c", f"import sys; sys.path.insert(0, {str(self.folder)!r})\n{text}"]

    @property
    def command(self) -> list[str]:
        """Return the arguments with which Python is the command `securemedian` of this release."""
        return self.program("from securemedian import cli\nsys.exit(cli.main())")

    def run(self, text: str, *arguments: str, limit_s: float = 120.0) -> str:
        """Run a program that imports this release, and return what it prints."""
        return self.finish(self.begin(text, *arguments), limit_s)

    def begin(self, text: str, *arguments: str) -> "subprocess.Popen[str]":
        """Begin to run such a program."""
        command = [sys.executable, *self.program(text), *arguments]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder
        )

    def finish(self, process: "subprocess.Popen[str]", limit_s: float = 120.0) -> str:
        """Return what it has printed at its end."""
        try:
            out, err = process.communicate(timeout=limit_s)
        finally:
            process.kill()
        assert process.returncode == 0, err
        return out


def unpacked(cache: pytest.Cache) -> Release:
    """Return the release before this one, whose kernels are compiled."""
    folder = cache.mkdir(WHEEL.name.partition("-py3")[0])
    with (folder / "lock").open("w") as lock:
        # another process of pytest may be at it
        fcntl.flock(lock, fcntl.LOCK_EX)
        done, release = folder / "done", Release(folder / "site")
        if not done.exists():
            shutil.rmtree(release.folder, ignore_errors=True)
            with zipfile.ZipFile(WHEEL) as wheel:
                wheel.extractall(release.folder)
            _share_kernels(release.folder / "securemedian")
            compiled = "from securemedian import cli\nsys.exit(cli.main(['compile']))"
            release.run(compiled, limit_s=COMPILED_S)
            done.touch()
    return release


def _share_kernels(package: Path) -> None:
    """Give a release those compiled kernels of this checkout that it would make, too."""
    for path in (package / KERNELS).rglob("*.py"):
        name = path.relative_to(package)
        ours = ROOT / name
        if not all(_same(package / each, ROOT / each) for each in _imported(package, name)):
            continue
        # numba tells by this whether a source has changed
        stamp = ours.stat()
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        (path.parent / "__pycache__").mkdir(exist_ok=True)
        for compiled in (ours.parent / "__pycache__").glob(f"{path.stem}.*.nb?"):
            shutil.copy(compiled, path.parent / "__pycache__")


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.read_bytes() == other.read_bytes()


def _imported(package: Path, name: Path) -> set[Path]:
    """Return a module and all that it imports of the package, at any depth, by their paths."""
    found, left = set(), [name]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += _imports(package, one)
    return found


@functools.cache
def _imports(package: Path, name: Path) -> list[Path]:
    return list(_imports_of(package, name))


def _imports_of(package: Path, name: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse((package / name).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("securemedian."):
            at = Path(*str(node.module).split(".")[1:])
            for path in (at.with_suffix(".py"), *(at / f"{a.name}.py" for a in node.names)):
                if (package / path).is_file():
                    yield path
