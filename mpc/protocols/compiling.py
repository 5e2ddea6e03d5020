"""The kernels that a server computes with, all of which are compiled before its first round."""

from securemedian.mpc.protocols.kernels import (
    extension,
    gaussian,
    lpn,
    packing,
    planes,
    searching,
    sketching,
    tables,
    vectors,
)
from securemedian.mpc.protocols.kernels.jit import KERNELS, Kernel
from securemedian.mpc.protocols.kernels.native import (
    aes,
    hashing,
    leaves,
    processor,
    slicing,
    trees,
    weighing,
)
from securemedian.mpc.protocols.protocol import ProtocolParams


def compile_kernels(params: ProtocolParams | None = None) -> None:
    """Compile every kernel that a round of any method uses, for every type that it takes.

    Kernels that are in the cache on disk are loaded instead.
    """
    for kernel in kernels_of(params or ProtocolParams()):
        kernel.compile()


def kernels_of(params: ProtocolParams) -> list[Kernel]:
    """Return the kernels that these parameters need: modules of them, taken whole."""
    native = processor.taken(params.native_aes)
    modules = [gaussian, packing, planes, searching, sketching, tables, vectors]
    modules += [aes, leaves] if native else [extension]
    if processor.taken(True):
        modules.append(weighing)
    if processor.FEATURES:
        modules.append(slicing)
    if params.silent and native:
        modules += [extension, hashing, trees]
    elif params.silent:
        modules.append(lpn)
    return [kernel for module in modules for kernel in KERNELS.get(module.__name__, ())]
