"""The conversion of a model in any of the usual forms to one flat vector, and back.

A model is a PyTorch module, its `state_dict` or another mapping of names to arrays, a list or tuple
of arrays, or one array. Its real-valued entries are sent, in the order given. Entries of whole
numbers or truth values (BatchNorm's `num_batches_tracked`, masks) have no meaningful median across
clients: they are not sent, and come back with the values that this client put in. torch is never
imported here: a tensor brings it along. The way back gives the same names, shapes and dtypes, for a
module as a state_dict.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.errors import InputError


@dataclass(frozen=True)
class Spec:
    """The form of a model and its entries, from which `unflatten` rebuilds it."""

    # dict, list, tuple, or ndarray for one array alone
    form: type
    # arrays or tensors of the right shapes and dtypes; those that are not sent, with their values
    entries: dict[Any, Any] = field(repr=False)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the entries that are sent."""
        return [tuple(entry.shape) for entry in self.entries.values() if _is_real(entry)]


def flatten(update: Any) -> tuple[NDArray[np.float64], Spec]:
    """Return a model's real-valued entries as one vector, and what `unflatten` needs.

    The vector has the running means and variances of BatchNorm too, which `parameters()` leaves
    out. Raises InputError if `update` is no model or has no real-valued entries.
    """
    spec = _spec(update)
    sent = [_to_float64(entry).reshape(-1) for entry in spec.entries.values() if _is_real(entry)]
    if not sum(part.size for part in sent):
        raise InputError("the update has no real-valued entries: there is nothing to send")
    return np.concatenate(sent), spec


def unflatten(vector: NDArray[Any], spec: Spec) -> Any:
    """Return the model of `spec` with these values. Raises InputError for another number."""
    values = _values(vector, spec)
    if spec.form is dict:
        return values
    rebuilt = list(values.values())
    return rebuilt[0] if spec.form is np.ndarray else spec.form(rebuilt)


def load(vector: NDArray[Any], model: Any) -> None:
    """Put the values of `vector` into anything that `flatten` takes, in place.

    Entries that are not sent keep their values. Raises InputError, and changes nothing, if there
    are too few values or too many, or an array cannot be written to.
    """
    spec = _spec(model)
    values = _values(vector, spec)
    if _has_state_dict(model):
        model.load_state_dict(values)
        return
    real = {name: entry for name, entry in spec.entries.items() if _is_real(entry)}
    for name, entry in real.items():
        if not (_is_tensor(entry) or entry.flags.writeable):
            raise InputError(f"{name!r} is an array that cannot be written to: give a copy of it")
    for name, entry in real.items():
        if _is_tensor(entry):
            entry.detach().copy_(values[name])
        else:
            entry[...] = values[name]


def _values(vector: NDArray[Any], spec: Spec) -> dict[Any, Any]:
    """Return the entries of `spec` with the values of `vector`, as new arrays or tensors."""
    real = [_is_real(entry) for entry in spec.entries.values()]
    sizes = [
        int(np.prod(entry.shape)) if sent else 0
        for entry, sent in zip(spec.entries.values(), real, strict=True)
    ]
    if vector.shape != (sum(sizes),):
        raise InputError(
            f"this model has {sum(sizes):,} real values, the vector has shape {vector.shape}: "
            "is it the same model, with all entries of its state_dict()?"
        )
    pieces = np.split(vector, np.cumsum(sizes)[:-1])
    return {
        name: _like(entry, piece) if sent else _copy(entry)
        for (name, entry), piece, sent in zip(spec.entries.items(), pieces, real, strict=True)
    }


def _spec(update: Any) -> Spec:
    form: type = np.ndarray
    entries: dict[Any, Any] = {"the update": update}
    if _has_state_dict(update):
        update = update.state_dict()
    if isinstance(update, Mapping):
        form, entries = dict, dict(update)
    elif isinstance(update, list | tuple):
        form, entries = list if isinstance(update, list) else tuple, dict(enumerate(update))
    for name, entry in entries.items():
        if not (isinstance(entry, np.ndarray) or _is_tensor(entry)):
            raise InputError(
                "an update is a module, a state_dict, a list of arrays or one array, "
                f"but {name!r} is a {type(entry).__name__}"
            )
        if _is_complex(entry):
            raise InputError(
                f"{name!r} holds complex numbers, which have no median: "
                "send real and imaginary parts as two arrays"
            )
    return Spec(
        form, {name: entry if _is_real(entry) else _copy(entry) for name, entry in entries.items()}
    )


def _has_state_dict(model: Any) -> bool:
    return callable(getattr(model, "state_dict", None))


def _is_tensor(entry: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(entry, torch.Tensor)


def _is_real(entry: Any) -> bool:
    return entry.dtype.is_floating_point if _is_tensor(entry) else entry.dtype.kind == "f"


def _is_complex(entry: Any) -> bool:
    return entry.dtype.is_complex if _is_tensor(entry) else entry.dtype.kind == "c"


def _copy(entry: Any) -> Any:
    return entry.detach().clone() if _is_tensor(entry) else entry.copy()


def _to_float64(entry: Any) -> NDArray[np.float64]:
    return np.asarray(entry.detach().cpu().double() if _is_tensor(entry) else entry, np.float64)


def _like(entry: Any, values: NDArray[Any]) -> Any:
    """Return `values` in the shape and dtype, and on the device, of `entry`."""
    shaped = values.reshape(entry.shape)
    if _is_tensor(entry):
        # tensor() copies, to() takes over dtype and device
        return sys.modules["torch"].tensor(shaped).to(entry)
    return shaped.astype(entry.dtype)
