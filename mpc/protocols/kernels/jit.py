"""The one way in which every kernel is compiled: serial, without the GIL, kept on disk.

All that is taken from the inside of numba is taken here.

A kernel names the types that it takes. It is compiled for all of them at once, and for no others:
once it is compiled, another type is a TypeError.

A signature has a code per argument, by the names of numba. `u8` is a number of 8 bytes, `u8[2]` an
array of two dimensions that is read, and `u8[2]!` one that is written. `b1` is a bool, and `none`
None. Arrays are in C order. An array that is read may be read-only, as what came from the disk or
from the peer is.
"""

import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numba
from numba import types
from numba.core import cgutils
from numba.core.caching import (
    CompileResultCacheImpl,
    IndexDataCacheFile,
    InTreeCacheLocator,
    NullCache,
    UserProvidedCacheLocator,
)
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import TypingError as TypingError
from numba.core.registry import cpu_target

from securemedian.mpc.errors import ConfigError

try:
    import fcntl
except ImportError:
    # Windows, where processes that compile at the same time must have folders of their own
    fcntl = None  # type: ignore[assignment]

F = TypeVar("F", bound=Callable[..., Any])


class _Form(CompileResultCacheImpl):
    """The form of compiled code on disk, in NUMBA_CACHE_DIR or beside the package."""

    _locator_classes: list[Any] = [UserProvidedCacheLocator, InTreeCacheLocator]


# of numba, without its types, which are not complete
FORM: Any = _Form
FILE: Any = IndexDataCacheFile
CONFIG: Any = numba.config
TOOLS: Any = cgutils
# Whether kernels are compiled.
COMPILES = not CONFIG.DISABLE_JIT
# the dtypes of ring elements
RINGS = ("u1", "u2", "u4", "u8")


def features() -> frozenset[str]:
    """Return the features of the x86-64 processor that numba compiles for, by LLVM's names."""
    triple, _, found = cpu_target.target_context.codegen().magic_tuple()
    if not COMPILES or not triple.startswith("x86_64"):
        return frozenset()
    return frozenset(name[1:] for name in found.split(",") if name.startswith("+"))


class Cache(NullCache):
    """The compiled code of a function on disk, which several processes may add to at once.

    It also finds compiled code beside the function's own file, although it may write to another
    folder. The user who installed the package has compiled it for all. The folder is looked for
    when the first kernel is needed, and not when a module with kernels is imported.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        # of the function, and of what it closes over, which for kernels is nothing
        self._hashes = tuple(
            hashlib.sha256(each).hexdigest() for each in (function.__code__.co_code, b"")
        )

    @cached_property
    def _form(self) -> Any:
        try:
            return FORM(self._function)
        except RuntimeError:
            # numba found neither folder
            CONFIG.CACHE_DIR = str(_another_folder())
            return FORM(self._function)

    @cached_property
    def _files(self) -> list[Any]:
        beside = Path(self._function.__code__.co_filename).parent / "__pycache__"
        stamp = self._form.locator.get_source_stamp()
        folders = (self.cache_path, beside)
        return [FILE(str(folder), self._form.filename_base, stamp) for folder in folders]

    @property
    def cache_path(self) -> str:
        return str(self._form.locator.get_cache_path())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        data = self._found(sig, target_context)
        return None if data is None else self._form.rebuild(target_context, data)

    def save_overload(self, sig: Any, data: Any) -> None:
        if self._form.check_cachable(data):
            self._form.locator.ensure_cache_path()
            # numba adds a line to the index without looking whether another process does so
            with self._locked():
                self._files[0].save(self._key(sig, data.codegen), self._form.reduce(data))

    def has(self, sig: Any, target_context: Any) -> bool:
        """Return whether there is code for these types and this processor."""
        return self._found(sig, target_context) is not None

    def _found(self, sig: Any, target_context: Any) -> Any:
        # as numba does: it is part of what a processor is known by
        target_context.refresh()
        key = self._key(sig, target_context.codegen())
        return next((data for file in self._files if (data := file.load(key)) is not None), None)

    def _key(self, sig: Any, codegen: Any) -> Any:
        return sig, codegen.magic_tuple(), self._hashes

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (Path(self.cache_path) / "kernels.lock").open("a") as file:
            # held for as long as one file takes to write. Some file systems have no locks
            with suppress(OSError):
                if fcntl:
                    fcntl.flock(file, fcntl.LOCK_EX)
            yield


@cache
def _another_folder() -> Path:
    """Return the folder for compiled code where neither NUMBA_CACHE_DIR nor the package can be one.

    It is the user's own cache, as XDG has it, or a folder in TMPDIR, and is said once. Processes
    that are started from here use it, too.

    SECURITY: servers run what is in it, so that nobody else may be able to write there. Raises
    ConfigError if there is none.
    """
    user, why = os.getuid() if hasattr(os, "getuid") else 0, []
    own = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    temporary = Path(tempfile.gettempdir()) / f"securemedian-kernels-{user}"
    for folder in (own / "numba", temporary):
        try:
            _make_private(folder)
        except OSError as error:
            why.append(f"{folder} ({error.strerror or error})")
            continue
        logging.getLogger("securemedian").warning(
            "compiled kernels are kept in %s, because neither NUMBA_CACHE_DIR nor the package's "
            "own folder can be written",
            folder,
        )
        os.environ["NUMBA_CACHE_DIR"] = str(folder)
        return folder
    raise ConfigError(
        "no folder to keep compiled kernels in: NUMBA_CACHE_DIR, the package's own folder or "
        f"{' or '.join(why)}; set NUMBA_CACHE_DIR to a folder that this user alone may write"
    )


def _make_private(folder: Path) -> None:
    """Make a folder that only this user may write, unless there is one. Raises OSError."""
    if not folder.is_absolute():
        # this user has no HOME
        raise FileNotFoundError(0, "not an absolute path")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hasattr(os, "getuid"):
        # a link has a mode that everybody may write
        found, above = folder.lstat(), folder.parent.stat()
        # in a folder with the sticky bit, others cannot put another one in its place
        exposed = above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX
        if found.st_mode & 0o022 or exposed:
            raise PermissionError(0, "others may write there, or it is a link")
        if found.st_uid != os.getuid() or above.st_uid not in (0, os.getuid()):
            raise PermissionError(0, "it belongs to somebody else")
    tempfile.TemporaryFile(dir=folder).close()


class Kernel:
    """A kernel, and the types that it takes."""

    def __init__(self, dispatcher: Any, signatures: Sequence[str]) -> None:
        self._dispatcher, self.signatures = dispatcher, signatures
        self._compile, self._compiled = dispatcher.compile, False
        # numba calls it when the kernel is called with types that it is not compiled for
        dispatcher.compile = self._first_called

    def compile(self) -> None:
        """Compile the kernel for all types that it takes, or load it from the cache on disk."""
        # another thread may be at it
        with global_compiler_lock:
            if not self._compiled:
                for signature in self.signatures:
                    self.compile_for(signature)
                self._dispatcher.disable_compile()
                self._compiled = True

    def compile_for(self, signature: str) -> None:
        """Do it for one of the signatures."""
        self._compile(_types_of(signature))

    @property
    def missing(self) -> list[str]:
        """The signatures for which the cache on disk has no code."""
        cache, context = self._dispatcher._cache, self._dispatcher.targetctx
        return [each for each in self.signatures if not cache.has(_types_of(each), context)]

    @property
    def folder(self) -> Path:
        """Return the folder of its compiled code."""
        return Path(self._dispatcher._cache.cache_path)

    def _first_called(self, given: object) -> Any:
        self.compile()
        # numba calls this from now on: it picks among the types that there are
        return self._dispatcher


def locked(file: IO[str]) -> bool:
    """Lock a file, unless another process has it. Return whether that is done, or cannot be."""
    try:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    # some file systems have no locks
    except OSError:
        pass
    return True


# by module
KERNELS: dict[str, list[Kernel]] = {}


def kernel(*signatures: str) -> Callable[[F], F]:
    """Compile a function that takes arrays and writes into arrays, for these signatures.

    Under NUMBA_DISABLE_JIT=1, which the tests use, it stays plain Python.
    """

    def decorate(function: F) -> F:
        compiled = callee(function)
        if COMPILES:
            KERNELS.setdefault(function.__module__, []).append(Kernel(compiled, signatures))
        return compiled

    return decorate


def callee(function: F) -> F:
    """Compile a function that only kernels call, for the types that they call it with."""
    # numba's types know fewer options than numba, which would add a way for C to call it
    njit: Any = numba.njit
    compiled = njit(nogil=True, no_cfunc_wrapper=True)(function)
    if COMPILES:
        compiled._cache = Cache(function)
    return cast(F, compiled)


def _types_of(signature: str) -> tuple[Any, ...]:
    return tuple(map(_type_of, signature.split()))


def _type_of(code: str) -> Any:
    name, _, dimensions = code.partition("[")
    kind = getattr(types, name)
    if not dimensions:
        return kind
    return types.Array(kind, int(dimensions[0]), "C", readonly=not code.endswith("!"))
