"""Updates and results in .npy and .npz files; never pickled objects."""

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.errors import ConfigError, InputError


def read(path: Path) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """The array of a .npy file or the named arrays of a .npz file. InputError if it is neither."""
    try:
        loaded = np.load(path, allow_pickle=False)
        return (
            loaded
            if isinstance(loaded, np.ndarray)
            else {name: loaded[name] for name in loaded.files}
        )
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is no .npy or .npz file of plain numbers: {error}") from error


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
