"""The conversion of a model in any of the usual forms to one flat vector, and back.

A model is a PyTorch module, its `state_dict` or another mapping of names to arrays, a list or tuple
of arrays, or one array. Its floats of any width are sent, in the order given. Entries of whole
numbers or truth values (BatchNorm's `num_batches_tracked`, masks) have no meaningful median across
clients: they stay local, and come back with the values that this client put in. So do the entries
that `keep_local` names. Anything else is an error. torch and ml_dtypes are never imported here: an
array brings them along. The way back gives the same names, shapes and dtypes, for a module as a
state_dict.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.common.model_form import FormEntry, ModelForm
from securemedian.mpc.errors import InputError, quoted

# the name of an array that is not in a mapping or list
_ALONE = "the update"
# a bfloat16 in a file, where numpy has no dtype for it: a structure of its 16 bits
BFLOAT16 = np.dtype([("bfloat16", "<u2")])
# how much larger a number may be than the greatest of a dtype, and be rounded to it
_ROUNDED = 1.08
# the kinds of numpy's dtypes that hold floats, and that stay local
_FLOATS, _WHOLE = "f", "iub"
# the names of dtypes that other packages bring, whose kind is "V"
_FLOAT_NAME, _WHOLE_NAME = re.compile(r"b?float\d"), re.compile(r"u?int\d")


@dataclass(frozen=True)
class Spec:
    """The kind of a model and its entries, from which `unflatten` rebuilds it."""

    # dict, list, tuple, or ndarray for one array alone
    kind: type
    # arrays or tensors of the right shapes and dtypes; those that are not sent, with their values
    entries: dict[Any, Any] = field(repr=False)
    # the names of those that are sent, in the order in which they are sent
    sent: tuple[Any, ...] = ()

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the entries that are sent, in the order in which they are sent."""
        return [tuple(self.entries[name].shape) for name in self.sent]

    @property
    def sizes(self) -> list[int]:
        """The values of the entries that are sent, in the order in which they are sent."""
        return [int(np.prod(shape)) for shape in self.shapes]

    @property
    def form(self) -> ModelForm | None:
        """The form of what is sent; None of one array alone, which has only its length."""
        if self.kind is np.ndarray:
            return None
        named = self.kind is dict
        entries = [
            FormEntry(str(name) if named else "", _dtype_name(self.entries[name]), shape)
            for name, shape in zip(self.sent, self.shapes, strict=True)
        ]
        return ModelForm.of(entries)

    @property
    def summary(self) -> str:
        """Say what is sent and what stays local, in numbers and names."""
        local = [str(name) for name in self.entries if name not in {*self.sent}]
        said = (
            f"{len(self.sent)} of {len(self.entries)} entries are sent, with "
            f"{sum(self.sizes):,} values: {', '.join(map(str, self.sent))}"
        )
        return f"{said}; local: {', '.join(local)}" if local else said

    def name_at(self, index: int) -> Any:
        """Return the name of the entry that the value at `index` of the vector belongs to."""
        return self.sent[int(np.searchsorted(np.cumsum(self.sizes), index, side="right"))]


def flatten(update: Any, keep_local: Sequence[str] = ()) -> tuple[NDArray[np.float64], Spec]:
    """Return the floats of a model as one vector, and what `unflatten` needs.

    The vector has the running means and variances of BatchNorm too, which `parameters()` leaves
    out. Entries whose names fit one of the patterns `keep_local` (`fnmatch`) are left out. Raises
    InputError if `update` is not a model or has no floats, and for a pattern that no name fits. An
    entry must be of floats, whole numbers or truth values.
    """
    spec = _spec(update, keep_local)
    sent = [_to_float64(name, spec.entries[name]).reshape(-1) for name in spec.sent]
    if not sum(part.size for part in sent):
        raise InputError(
            f"an update without real-valued entries: {len(spec.sent)} entries; send one with floats"
        )
    return np.concatenate(sent), spec


def flat_models(
    model: Any, groups: int = 1, keep_local: Sequence[str] = ()
) -> tuple[NDArray[np.float32] | None, ModelForm | None]:
    """Return start models as float32, (d,) or (groups, d), and their form, if they have one.

    An array, or a list of numbers, is flat already, and has no form. A list of `groups` models has
    one per group, of the same form. Raises InputError for a value that is not a finite float32, and
    what `flatten` raises.
    """
    if model is None:
        return None, None
    if isinstance(model, list) and all(isinstance(each, int | float) for each in model):
        model = np.array(model)
    if isinstance(model, np.ndarray):
        if keep_local:
            raise InputError(
                f"a flat model has no names that keep_local could fit: {keep_local}; give a "
                "state_dict"
            )
        return finite(model), None
    vector, spec = flatten(model[0] if groups > 1 else model, keep_local)
    rows = [vector]
    for other in model[1:] if groups > 1 else ():
        rows.append(arrange(*flatten(other, keep_local), spec.form)[0])
    if groups == 1:
        return finite(vector, spec), spec.form
    return finite(np.stack(rows)), spec.form


def finite(model: NDArray[Any], spec: Spec | None = None) -> NDArray[np.float32]:
    """Return flat start models as float32. Raises InputError for a value that is not finite.

    With a `spec` the error names the entry.
    """
    with np.errstate(over="ignore"):
        made = np.asarray(model, np.float32)
    bad = np.flatnonzero(~np.isfinite(made))
    if bad.size:
        where = repr(spec.name_at(int(bad[0]))) if spec else f"index {bad[0]}"
        first = np.asarray(model).reshape(-1)[bad[0]]
        raise InputError(
            f"the start model has {bad.size:,} values that are not finite in float32: the first "
            f"is {first:g} at {where}; give another one"
        )
    return made


def arrange(vector: NDArray[Any], spec: Spec, form: ModelForm | None) -> tuple[NDArray[Any], Spec]:
    """Return a flat model and its `spec` with the entries in the order of `form`.

    Without a form, or for one array alone, they stay as they are. Raises InputError, which shows
    the first entry that differs, if the model has another form.
    """
    if form is None or spec.form is None:
        return vector, spec
    places = form.places(spec.form)
    if places == sorted(places):
        return vector, spec
    pieces = np.split(vector, np.cumsum(spec.sizes)[:-1])
    arranged = replace(spec, sent=tuple(spec.sent[place] for place in places))
    return np.concatenate([pieces[place] for place in places]), arranged


def unflatten(vector: NDArray[Any], spec: Spec) -> Any:
    """Return the model of `spec` with these values. Raises InputError for another number."""
    values = _values(vector, spec)
    if spec.kind is dict:
        return values
    rebuilt = list(values.values())
    return rebuilt[0] if spec.kind is np.ndarray else spec.kind(rebuilt)


def load(
    vector: NDArray[Any],
    model: Any,
    keep_local: Sequence[str] = (),
    form: ModelForm | None = None,
) -> None:
    """Put the values of `vector` into anything that `flatten` takes, in place.

    The values are in the order of `form`, or in that of the model. Entries that are not sent keep
    their values. Raises InputError, and changes nothing, if the number of values is wrong, one is
    too large for the dtype of its entry, or an array cannot be written to.
    """
    spec = _spec(model, keep_local)
    _, spec = arrange(np.empty(sum(spec.sizes)), spec, form)
    values = _values(vector, spec)
    for name in spec.sent:
        entry = spec.entries[name]
        if not (_holds_each(entry) if _is_tensor(entry) else entry.flags.writeable):
            raise InputError(f"an array that cannot be written to: {name!r}; give a copy of it")
    if _has_state_dict(model):
        model.load_state_dict(values)
        return
    for name in spec.sent:
        entry = spec.entries[name]
        if _is_tensor(entry):
            entry.detach().copy_(values[name])
        else:
            entry[...] = values[name]


def to_arrays(vector: NDArray[Any], spec: Spec) -> dict[str, NDArray[Any]]:
    """Return what is sent of a model as arrays of numpy's by name, as files can hold them.

    A bfloat16 becomes one of BFLOAT16. Raises InputError for other dtypes that numpy lacks.
    """
    arrays: dict[str, NDArray[Any]] = {}
    pieces = np.split(vector, np.cumsum(spec.sizes)[:-1])
    for name, piece in zip(spec.sent, pieces, strict=True):
        entry = spec.entries[name]
        dtype, shaped = _dtype_name(entry), piece.reshape(entry.shape)
        if dtype == "bfloat16":
            arrays[str(name)] = to_bfloat16(shaped)
        elif dtype in ("float16", "float32", "float64"):
            arrays[str(name)] = shaped.astype(dtype)
        else:
            raise InputError(
                f"such a file cannot hold this dtype: {name!r} is {dtype}; use bfloat16"
            )
    return arrays


def to_bfloat16(values: NDArray[Any]) -> NDArray[Any]:
    """Return the nearest bfloat16 of each value, ties to even, as arrays of BFLOAT16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    half = np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return ((bits + half) >> np.uint32(16)).astype("<u2").view(BFLOAT16).reshape(values.shape)


def _values(vector: NDArray[Any], spec: Spec) -> dict[Any, Any]:
    """Return the entries of `spec` with the values of `vector`, as new arrays or tensors."""
    sizes = spec.sizes
    if vector.shape != (sum(sizes),):
        raise InputError(
            f"the model has {sum(sizes):,} real values, and the vector has another shape: "
            f"{vector.shape}; give the same model, with all entries of its state_dict()"
        )
    pieces = np.split(vector, np.cumsum(sizes)[:-1])
    parts = dict(zip(spec.sent, pieces, strict=True))
    return {
        name: _like(name, entry, parts[name]) if name in parts else _copy(entry)
        for name, entry in spec.entries.items()
    }


def _spec(update: Any, keep_local: Sequence[str]) -> Spec:
    kind: type = np.ndarray
    entries: dict[Any, Any] = {_ALONE: update}
    if _has_state_dict(update):
        update = update.state_dict()
    if isinstance(update, Mapping):
        kind, entries = dict, dict(update)
    elif isinstance(update, list | tuple):
        kind, entries = list if isinstance(update, list) else tuple, dict(enumerate(update))
    local = _local(entries, keep_local)
    sent = tuple(
        name for name, entry in entries.items() if name not in local and _is_sent(name, entry)
    )
    kept = {name: e if name in sent else _copy(e) for name, e in entries.items()}
    return Spec(kind, kept, sent)


def _local(entries: Mapping[Any, Any], keep_local: Sequence[str]) -> set[Any]:
    """Return the names that fit one of the patterns. Raises InputError for one that fits none."""
    if isinstance(keep_local, str):
        raise InputError(
            f"keep_local is not a list of patterns: {keep_local!r}; put it in brackets"
        )
    local: set[Any] = set()
    for pattern in keep_local:
        found = {name for name in entries if fnmatchcase(str(name), pattern)}
        if not found:
            names = ", ".join(map(str, list(entries)[:8]))
            raise InputError(
                f"keep_local has a pattern that no entry fits: {quoted(pattern)}; the entries "
                f"are {names}{' ..' if len(entries) > 8 else ''}"
            )
        local |= found
    return local


def _is_sent(name: Any, entry: Any) -> bool:
    """Return whether an entry is sent. Raises InputError if it is not an array of usual numbers."""
    if _is_tensor(entry):
        return _is_sent_tensor(name, entry)
    if not isinstance(entry, np.ndarray):
        raise InputError(
            f"an update is a module, a state_dict, a list of arrays or one array: {name!r} is a "
            f"{type(entry).__name__}; make it an array of floats, or name it in keep_local"
        )
    dtype = entry.dtype
    if isinstance(entry, np.ma.MaskedArray):
        raise InputError(f"a masked array: {name!r}; send entry.filled(value)")
    if dtype.kind in _FLOATS or dtype == BFLOAT16:
        return True
    if dtype.kind in _WHOLE:
        return False
    # those of ml_dtypes
    if dtype.kind == "V" and dtype.type is not np.void:
        if _FLOAT_NAME.match(dtype.name):
            return True
        if _WHOLE_NAME.match(dtype.name):
            return False
    why, _, remedy = _why_not(dtype).partition("; ")
    raise InputError(f"unusable dtype: {name!r} is {dtype}, {why}; {remedy}")


def _why_not(dtype: np.dtype[Any]) -> str:
    """Say why an array of this dtype cannot be sent, and what to do."""
    if dtype.kind == "c" or "complex" in dtype.name:
        return "and complex numbers have no median; send real and imaginary parts as two arrays"
    if dtype.kind == "V" and dtype.names is None:
        return (
            "as .npy and .npz store bfloat16 and float8; save it as float32 there, or "
            "as .safetensors"
        )
    if dtype.kind == "O":
        return (
            "made of Python objects; convert it, as in array.astype(float); for nullable "
            "columns of pandas column.to_numpy(float)"
        )
    return "and only floats are sent; convert it to floats, or name it in keep_local"


def _is_sent_tensor(name: Any, tensor: Any) -> bool:
    """Return whether a tensor is sent. Raises InputError if its values cannot be read as they are.

    Those that cannot be read are lazy, meta, sparse, nested, quantised or distributed tensors.
    """
    torch = sys.modules["torch"]
    for what, is_so, remedy in (
        (
            "has no values yet (it is lazy)",
            isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin),
            "call the model once, with a batch of data",
        ),
        ("has no values (it is on the meta device)", tensor.is_meta, "load the model's weights"),
        ("is quantised", tensor.is_quantized, "send tensor.dequantize()"),
        ("is a nested tensor", tensor.is_nested, "send its parts"),
        (
            f"is sparse ({tensor.layout})",
            tensor.layout != torch.strided,
            "send tensor.to_dense()",
        ),
        (
            "is distributed over processes",
            hasattr(tensor, "full_tensor"),
            "send tensor.full_tensor()",
        ),
    ):
        if is_so:
            raise InputError(
                f"an entry that cannot be sent: {name!r} {what}; {remedy}, or name it in keep_local"
            )
    if tensor.dtype.is_complex:
        raise InputError(
            f"complex numbers have no median: {name!r} is {tensor.dtype}; send real and "
            "imaginary parts as two tensors"
        )
    if tensor.dtype.is_floating_point:
        return True
    if tensor.dtype == torch.bool or _WHOLE_NAME.match(_dtype_name(tensor)):
        return False
    raise InputError(
        f"only floats are sent: {name!r} is {tensor.dtype}; convert it to floats, or name it in "
        "keep_local"
    )


def _has_state_dict(model: Any) -> bool:
    return callable(getattr(model, "state_dict", None))


def _holds_each(tensor: Any) -> bool:
    """Return whether a tensor has a place for each of its values: an expanded one has not."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return all(size <= 1 or stride for size, stride in sizes)


def _is_tensor(entry: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(entry, torch.Tensor)


def _dtype_name(entry: Any) -> str:
    """Return the name of a dtype, the same for numpy and torch."""
    if _is_tensor(entry):
        return str(entry.dtype).removeprefix("torch.")
    return "bfloat16" if entry.dtype == BFLOAT16 else str(entry.dtype.name)


def _copy(entry: Any) -> Any:
    """Return a copy of an entry that stays local; of one that has no values, the entry itself."""
    if _is_tensor(entry):
        lazy = isinstance(entry, sys.modules["torch"].nn.parameter.UninitializedTensorMixin)
        return entry if lazy else entry.detach().clone()
    return entry.copy() if isinstance(entry, np.ndarray) else entry


def _to_float64(name: Any, entry: Any) -> NDArray[np.float64]:
    try:
        if _is_tensor(entry):
            return np.asarray(entry.detach().cpu().double(), np.float64)
        if entry.dtype == BFLOAT16:
            bits = np.ascontiguousarray(entry).view("<u2").astype(np.uint32) << np.uint32(16)
            return bits.view(np.float32).astype(np.float64).reshape(entry.shape)
        return np.asarray(entry, np.float64)
    # whatever the package that brings the array raises
    except Exception as error:
        raise InputError(
            f"an entry that cannot be read as floats: {name!r} ({_dtype_name(entry)}), "
            f"{type(error).__name__}; convert it to float32"
        ) from error


def _like(name: Any, entry: Any, values: NDArray[Any]) -> Any:
    """Return `values` in the shape and dtype, and on the device, of `entry`.

    Raises InputError for a number that is too large for the dtype.
    """
    shaped = values.reshape(entry.shape)
    made: Any
    most = np.inf
    if _is_tensor(entry):
        torch = sys.modules["torch"]
        # tensor() copies, to() takes over dtype and device
        made = torch.tensor(shaped).to(entry)
        if made.element_size() == 1:
            # some of these floats take the greatest number for larger ones
            most = _ROUNDED * torch.finfo(entry.dtype).max
    else:
        # values that overflow are found below
        with np.errstate(over="ignore"):
            narrow = entry.dtype == BFLOAT16
            made = to_bfloat16(shaped) if narrow else shaped.astype(entry.dtype)
    if shaped.itemsize <= (made.element_size() if _is_tensor(made) else made.itemsize):
        return made
    cut = ~np.isfinite(_to_float64(name, made)) | (np.abs(shaped) > most)
    lost = np.isfinite(shaped) & cut
    if lost.any():
        raise InputError(
            f"the dtype cannot hold a value of the result: {name!r} is {_dtype_name(entry)}, "
            f"and the value {shaped[lost].flat[0]:g}; train in a wider dtype, such as float32"
        )
    return made
