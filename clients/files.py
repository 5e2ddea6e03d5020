"""Updates and results in files, for their owner alone, never as pickled objects.

They are .npy, .npz or .safetensors. The last has 8 bytes with the length of a JSON header,
little-endian, that header, and the arrays one after the other. As numpy has no bfloat16, its arrays
are read and written as `clients.update.BFLOAT16`.
"""

import json
import math
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.update import BFLOAT16, finite, flatten
from securemedian.common.durable import open_private
from securemedian.common.model_form import ModelForm
from securemedian.mpc.errors import ConfigError, InputError, quoted

SAFETENSORS = ".safetensors"
_LENGTH = struct.Struct("<Q")
# of the header, as other readers of the format have it
_MAX_HEADER = 100_000_000
# the format's names for dtypes; those of 8-bit floats are in no dtype of numpy's
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
# a file in the archives of torch.save
_PICKLE = "data.pkl"


def read(path: Path) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """Return the array in a .npy file, or those in a .npz or .safetensors file by name.

    Raises InputError.
    """
    if path.suffix == SAFETENSORS:
        return _read_safetensors(path)
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            if any(Path(name).name == _PICKLE for name in loaded.files):
                raise InputError(
                    f"a file of torch.save, which holds Python objects: {path}; load it with "
                    "torch.load(.., weights_only=True), and save the state_dict as .safetensors"
                )
            arrays = {name: loaded[name] for name in loaded.files}
    except OSError as error:
        raise _unreadable(path, error) from error
    except InputError:
        raise
    # numpy parses the header as Python and the archive by zipfile: a damaged file raises whatever
    # the tokenizer, the decompressor or the allocation of an absurd shape raises
    except Exception as error:
        raise InputError(
            f"not a .npy or .npz file of plain numbers: {path}; save it as one, or as .safetensors"
        ) from error
    if not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise InputError(f"an archive that holds more than arrays: {path}; save plain arrays")
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
            f"not one flat vector of real numbers: {path}; take a file that `securemedian init` "
            "or `securemedian round result` wrote"
        )
    return models


def read_start(path: Path) -> tuple[NDArray[np.float32], ModelForm | None]:
    """Return the start model in a file, or one per group, and its form if the file has names.

    A .npy file has flat models. Raises InputError, also for a value that is not a finite float32.
    """
    if path.suffix == ".npy" or not isinstance(found := read(path), dict):
        return finite(read_models(path)), None
    vector, spec = flatten(found)
    return finite(vector, spec), spec.form


def check_writable(path: Path) -> None:
    """Raise ConfigError unless `path` can be written; to be called before the work."""
    # of a link, what it points to
    target = path.resolve()
    there = target if target.exists() else target.parent
    if target.is_dir() or not target.parent.is_dir() or not os.access(there, os.W_OK):
        raise ConfigError(
            f"cannot write the file: {path}; choose one in a folder that exists and that you "
            "may write to"
        )


def write(path: Path, model: Any) -> None:
    """Write an array as .npy, or named arrays as .npz or .safetensors, at this path.

    Raises ConfigError.
    """
    with writing(path) as file:
        if path.suffix == SAFETENSORS:
            named = model if isinstance(model, dict) else {"model": model}
            for part in _safetensors(named):
                file.write(part)
        elif isinstance(model, dict):
            np.savez(file, **model)
        else:
            np.save(file, model)


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """Replace a file of its owner's once all is written. Raises ConfigError and keeps the old."""
    check_writable(path)
    try:
        with open_private(path) as file:
            yield file
    except OSError as error:
        raise ConfigError(
            f"cannot write the file: {path} ({error.strerror or error}); make room or choose "
            "another file"
        ) from error


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot read the file: {path} ({error.strerror or error}); name one that you may read"
    )


def _read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    try:
        data = path.read_bytes()
        (length,) = _LENGTH.unpack_from(data)
        begin = _LENGTH.size + length
        if length > _MAX_HEADER or begin > len(data):
            raise ValueError(f"a header of {length:,} bytes")
        header = json.loads(data[_LENGTH.size : begin])
        header.pop("__metadata__", None)
        arrays, expected = {}, 0
        for name, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape = about["dtype"], tuple(about["shape"])
            first, last = about["data_offsets"]
            if dtype not in _DTYPES:
                raise InputError(
                    f"{path} has an unknown dtype: {quoted(name)} is {quoted(dtype)}; save it "
                    "as bfloat16 or float32"
                )
            if not all(type(size) is int and size >= 0 for size in shape):
                raise ValueError(f"the shape {shape}")
            count = math.prod(shape)
            if (first, last) != (expected, expected + count * _DTYPES[dtype].itemsize):
                raise ValueError(f"{name} at {first} to {last}")
            found = np.frombuffer(data, _DTYPES[dtype], count, begin + first)
            arrays[name], expected = found.reshape(shape).copy(), last
        if begin + expected != len(data):
            raise ValueError(f"{len(data) - begin - expected} bytes too many")
        # in the order of the header
        return {name: arrays[name] for name in header}
    except OSError as error:
        raise _unreadable(path, error) from error
    except InputError:
        raise
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError, struct.error) as error:
        raise InputError(
            f"not a .safetensors file, or a damaged one: {path} ({quoted(str(error))}); save it "
            "again"
        ) from error


def _safetensors(arrays: dict[str, NDArray[Any]]) -> list[bytes]:
    """Return the bytes of a .safetensors file, in parts. Raises InputError for another dtype."""
    names = {dtype: name for name, dtype in _DTYPES.items()}
    header, parts, begin = {}, [], 0
    for name, array in arrays.items():
        dtype = array.dtype.newbyteorder("<")
        if dtype not in names:
            raise InputError(
                f".safetensors cannot hold this dtype here: {name!r} is {dtype}; convert it to "
                "float32"
            )
        parts.append(np.ascontiguousarray(array, dtype).tobytes())
        end = begin + len(parts[-1])
        header[str(name)] = {
            "dtype": names[dtype],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header).encode()
    # arrays begin at a multiple of 8
    text += b" " * (-len(text) % 8)
    return [_LENGTH.pack(len(text)), text, *parts]
