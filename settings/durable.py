"""The replacing of files such that a crash, or a power cut, leaves the old one or the new one."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# what the umask leaves of it, as for any new file
ANYBODY = 0o666
OWNER = 0o600


def replace_file(path: Path, parts: Iterable[Any], mode: int = OWNER) -> None:
    """Write a file anew, from parts that are buffers of bytes, and return once it is on the disk.

    Raises OSError if it cannot be written; then the old file is as it was.
    """
    new = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync_folder(path.parent)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
