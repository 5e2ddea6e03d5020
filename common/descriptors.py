"""The descriptors that this process may still open, which libzmq does not look at in time."""

import os

from securemedian.mpc.errors import NoSocket


def check_descriptors(count: int, what: str) -> None:
    """Raise NoSocket unless this process can open so many more descriptors, which `what` needs.

    libzmq ends the whole process where a new context finds none.
    """
    opened: list[int] = []
    try:
        for _ in range(count):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise NoSocket(
            f"{what} needs {count} descriptors, more than this process can open: {len(opened)} "
            f"({error.strerror}); close unused files, or raise the limit (ulimit -n)"
        ) from error
    finally:
        for descriptor in opened:
            os.close(descriptor)
