"""The treatment of freed memory by the C library.

Lanes free arrays of megabytes and want as many again at the next step. By default the C library
gives such memory back to the system, which finds and clears it again each time, while all other
threads of the process wait. That took a tenth of the preprocessing, and nearly half of the online
time.
"""

import ctypes

# parameters of mallopt (malloc.h of glibc)
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
# bytes that stay with the process when they are free: about what two lanes' chunks take
KEPT_BYTES = 256 << 20
# longer arrays, such as some uploads, go back to the system when they are freed
LONGEST_BYTES = 32 << 20


def keep() -> None:
    """Keep freed memory for later, where the C library can. To be called before there are threads.

    All threads then share what is kept.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(_ARENA_MAX, 1)
        option(_MMAP_THRESHOLD, LONGEST_BYTES)
        option(_TRIM_THRESHOLD, KEPT_BYTES)


def environment() -> dict[str, str]:
    """Return the variables with which the C library of a new process does the same."""
    return {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": str(LONGEST_BYTES),
        "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
    }


def give_back() -> None:
    """Give memory that is free back to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
