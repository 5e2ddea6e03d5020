"""The kernels that a server computes with, all of which are compiled before its first round."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process

from securemedian.mpc.protocols.kernels import (
    ands,
    bisecting,
    extension,
    gaussian,
    lpn,
    macs,
    packing,
    planes,
    searching,
    sketching,
    tables,
    vectors,
)
from securemedian.mpc.protocols.kernels.jit import KERNELS, Kernel, locked
from securemedian.mpc.protocols.kernels.native import aes, hashing, leaves, processor, trees
from securemedian.mpc.protocols.kernels.native import macs as native_macs
from securemedian.mpc.protocols.protocol import OT_EXTENSIONS, ProtocolParams

# Processes that compile at the same time, at most: each takes 200 MB.
PROCESSES = 8
# Limit of all of it. Two cores take half a minute.
LIMIT_S = 3600.0
# signals that end a process: one that is being started is not left half started
_ENDING = {
    number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, 0))
}
# how often one that waits looks how far it is
LOOK_S = 1.0
# is told how many signatures of kernels there are by now, of how many
Told = Callable[[int, int], None]


def report_nothing(done: int, total: int) -> None:
    """Do nothing."""


class Pace:
    """How long it will take still, which is said every so many seconds."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._began = self._said = time.monotonic()

    def seconds_to_go(self, done: int, total: int) -> float | None:
        """Return it if it is time to say so; not of the first tenth, which tells little."""
        now = time.monotonic()
        if now - self._said < self._every_s or 10 * done < total or not done:
            return None
        self._said = now
        return (now - self._began) / done * (total - done)


def compile_kernels(params: ProtocolParams | None = None, told: Told = report_nothing) -> None:
    """Compile every kernel that a round of any method uses, for every type that it takes.

    Kernels that are in the cache on disk are loaded instead.
    """
    kernels = kernels_of(params or ProtocolParams())
    done, total = 0, sum(len(kernel.signatures) for kernel in kernels)
    for kernel in kernels:
        kernel.compile()
        done += len(kernel.signatures)
        told(done, total)


def fill_cache(told: Told = report_nothing, params: ProtocolParams | None = None) -> None:
    """Compile into the cache on disk what it lacks, on all cores.

    That is for `params`, by default for any. `told` hears of nothing where nothing is missing. Of
    several processes one compiles, and the others wait for it.
    """
    if not (total := len(_lacking(params))):
        return
    told(0, total)
    with _alone(lambda: told(max(0, total - len(_lacking(params))), total)):
        if lacking := _lacking(params):
            _compile_all(lacking, told)


def _lacking(params: ProtocolParams | None) -> list[tuple[int, str]]:
    """Return the signatures that the cache lacks, with the numbers of their kernels."""
    needed = all_kernels() if params is None else kernels_of(params)
    return [
        (number, signature)
        for number, kernel in enumerate(all_kernels())
        if kernel in needed
        for signature in kernel.missing
    ]


@contextmanager
def _alone(turn: Callable[[], object]) -> Iterator[None]:
    """Hold the lock of those who fill the cache, and call `turn` while another one has it."""
    folder = all_kernels()[0].folder
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "compiling.lock").open("a") as file:
        limit = time.monotonic() + LIMIT_S
        while not locked(file) and time.monotonic() < limit:
            turn()
            time.sleep(LOOK_S)
        yield


def _compile_all(lacking: Sequence[tuple[int, str]], told: Told) -> None:
    """Compile these signatures in processes of their own."""
    # not forked: threads of numba may hold locks
    context = get_context("spawn")
    processes = min(os.cpu_count() or 1, PROCESSES, len(lacking))
    others = active_children()
    try:
        with _deaf():
            # it starts the process that keeps what workers share, which unblocks them again
            workers = ProcessPoolExecutor(processes, context, initializer=_end_with_parent)
    except (OSError, ImportError, NotImplementedError):
        # a system without semaphores, such as a container without /dev/shm
        for done, each in enumerate(lacking, 1):
            _compile_one(*each)
            told(done, len(lacking))
        return
    try:
        with _deaf():
            pending = {workers.submit(_compile_one, *each) for each in lacking}
        limit, done = time.monotonic() + LIMIT_S, 0
        while pending:
            # not for longer: a signal that another thread has taken ends no wait of this one
            ended, pending = wait(pending, LOOK_S, FIRST_COMPLETED)
            for one in ended:
                one.result()
                done += 1
                told(done, len(lacking))
            if pending and time.monotonic() > limit:
                raise TimeoutError(f"{len(pending)} kernels are not compiled within {LIMIT_S:g} s")
    except BaseException:
        # such as Ctrl-C: nobody waits for what is being compiled
        for child in active_children():
            if child not in others:
                # not terminate: they take no other signal
                child.kill()
        raise
    finally:
        workers.shutdown(cancel_futures=True)


@contextmanager
def _deaf() -> Iterator[None]:
    """Start processes that take none of these signals, and handle them here once they run.

    Their parent ends them.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    came: list[int] = []
    # the mask is for the new processes: here another thread may take a signal
    handlers = {
        each: signal.signal(each, lambda number, _: came.append(number)) for each in _ENDING
    }
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


def _end_with_parent() -> None:
    """End this process when the one that started it does, however that ends."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _compile_one(number: int, signature: str) -> None:
    all_kernels()[number].compile_for(signature)


def all_kernels() -> list[Kernel]:
    """Return the kernels that any parameters need on this processor, in the same order always."""
    return list(
        dict.fromkeys(
            kernel
            for extension in OT_EXTENSIONS
            for native in (True, False)
            for kernel in kernels_of(ProtocolParams(ot_extension=extension, native_aes=native))
        )
    )


def kernels_of(params: ProtocolParams) -> list[Kernel]:
    """Return the kernels that these parameters need: modules of them, taken whole."""
    native = processor.use_native(params.native_aes)
    modules = [ands, bisecting, extension, gaussian, macs, packing, planes]
    modules += [searching, sketching, tables, vectors]
    if native:
        modules += [aes, hashing, leaves, native_macs]
    if params.silent:
        modules.append(trees if native else lpn)
    return [kernel for module in modules for kernel in KERNELS.get(module.__name__, ())]
