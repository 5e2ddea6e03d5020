"""Updates and results in .npy and .npz files; never pickled objects."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.errors import ConfigError, InputError


def read(path: Path) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """Return the array of a .npy file or the named arrays of a .npz file.

    Raises InputError if it is neither.
    """
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            arrays = {name: loaded[name] for name in loaded.files}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    # numpy parses the header as Python and the archive by zipfile: a damaged file raises whatever
    # the tokenizer, the decompressor or the allocation of an absurd shape raises
    except Exception as error:
        raise InputError(f"{path} is no .npy or .npz file of plain numbers") from error
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise InputError(f"{path} is an archive that has more in it than arrays")
    return arrays


def read_vector(path: Path) -> NDArray[Any]:
    """A .npy file that holds one flat vector of numbers."""
    model = read(path)
    if (
        not isinstance(model, np.ndarray)
        or model.ndim != 1
        or not np.issubdtype(model.dtype, np.floating)
    ):
        raise InputError(
            f"{path} is not one flat vector of real numbers: "
            "`securemedian init` and `securemedian round result` write such files"
        )
    return model


def check_writable(path: Path) -> None:
    """ConfigError now rather than after the work whose outcome is to be written."""
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"cannot write {path}: choose a file in a folder that is there and yours")


def write(path: Path, model: Any) -> None:
    """An array as .npy, named arrays as .npz, at exactly this path."""
    check_writable(path)
    with path.open("wb") as file:
        if isinstance(model, dict):
            np.savez(file, **model)
        else:
            np.save(file, model)
