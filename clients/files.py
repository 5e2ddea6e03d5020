"""Updates and results in .npy and .npz files, for their owner alone, never as pickled objects."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from securemedian.common.durable import open_private
from securemedian.mpc.errors import ConfigError, InputError


def read(path: Path) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """Return the array in a .npy file or those in a .npz file by name. Raises InputError."""
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
        raise InputError(f"{path} is an archive that holds more than arrays")
    return arrays


def read_models(path: Path) -> NDArray[Any]:
    """Return a .npy file's flat vector of real numbers, or one per group. Raises InputError."""
    models = read(path)
    if (
        not isinstance(models, np.ndarray)
        or not np.issubdtype(models.dtype, np.floating)
        or not (models.ndim == 1 or (models.ndim == 2 and len(models) > 1))
    ):
        raise InputError(
            f"{path} is not one flat vector of real numbers: "
            "`securemedian init` and `securemedian round result` write such files"
        )
    return models


def check_writable(path: Path) -> None:
    """Raise ConfigError unless `path` can be written; to be called before the work."""
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(
            f"cannot write {path}: choose a file in a folder that exists and that you may write to"
        )


def write(path: Path, model: Any) -> None:
    """Write an array as .npy, or named arrays as .npz, at this path. Raises ConfigError."""
    with writing(path) as file:
        if isinstance(model, dict):
            np.savez(file, **model)
        else:
            np.save(file, model)


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file of its owner's to be written anew. Raises ConfigError; then the old one stays."""
    check_writable(path)
    try:
        with open_private(path) as file:
            yield file
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror or error}; make room or choose another file"
        ) from error
