"""Models of any form to one vector and back."""

from typing import Any

import numpy as np
import pytest

from securemedian.clients import update
from securemedian.clients.update import flatten, unflatten
from securemedian.mpc.errors import InputError

RNG = np.random.default_rng(1)
FORMS: list[Any] = [
    RNG.normal(size=7),
    RNG.normal(size=(2, 3)).astype(np.float32),
    [
        RNG.normal(size=(2, 3)),
        RNG.normal(size=()).reshape(()),
        RNG.normal(size=5).astype(np.float16),
    ],
    (RNG.normal(size=3).astype(np.float32), np.arange(4), RNG.normal(size=0)),
    {
        "weight": RNG.normal(size=(4, 2)).astype(np.float32),
        "steps": np.array(12),
        "mask": np.array([True, False]),
        "bias": RNG.normal(size=4),
    },
]


def leaves(model: Any) -> list[Any]:
    return (
        list(model.values())
        if isinstance(model, dict)
        else list(model)
        if isinstance(model, list | tuple)
        else [model]
    )


@pytest.mark.parametrize("model", FORMS, ids=lambda model: type(model).__name__)
def test_arrays_come_back_as_they_were(model: Any) -> None:
    vector, spec = flatten(model)
    back = unflatten(vector, spec)
    assert vector.dtype == np.float64
    assert type(back) is type(model)
    assert not isinstance(model, dict) or list(back) == list(model)
    for before, after in zip(leaves(model), leaves(back), strict=True):
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
        assert np.array_equal(after, before)


def test_new_values_go_to_real_entries_and_local_ones_stay() -> None:
    model = {"a": np.zeros((2, 2), np.float32), "count": np.array([3, 4]), "b": np.zeros(1)}
    vector, spec = flatten(model)
    # the caller trains on: what was submitted is what comes back
    model["count"] += 1
    back = unflatten(vector + np.arange(5), spec)
    assert back["a"].tolist() == [[0, 1], [2, 3]]
    assert back["b"].tolist() == [4]
    assert back["count"].tolist() == [3, 4]


def test_parameters_that_require_gradients() -> None:
    torch = pytest.importorskip("torch")
    vector, spec = flatten([torch.nn.Parameter(torch.ones(2)), torch.zeros(1)])
    back = unflatten(vector, spec)
    assert vector.tolist() == [1, 1, 0]
    assert not back[0].requires_grad


@pytest.mark.parametrize(
    "update",
    [
        "text",
        3.5,
        [1.0, 2.0],
        np.arange(3),
        [],
        {},
    ],
)
def test_what_is_no_update_is_refused(update: Any) -> None:
    with pytest.raises(InputError):
        flatten(update)


@pytest.mark.parametrize("size", [0, 3, 5])
def test_a_vector_of_another_length_is_refused(size: int) -> None:
    _, spec = flatten(np.zeros((2, 2)))
    with pytest.raises(InputError, match="4 real values"):
        unflatten(np.zeros(size), spec)


# Uploads: what is sent, kept and refused


def widths() -> list[str]:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return [
        name
        for name in dir(ml_dtypes)
        if "float" in name and isinstance(getattr(ml_dtypes, name), type)
    ]


def test_floats_of_any_width_are_sent_and_come_back() -> None:
    """On 1.0.0 a bfloat16 was not sent, and every client kept its own."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert {"bfloat16", "float8_e4m3fn", "float8_e5m2"} <= {*widths()}
    for name in widths():
        kernel = np.array([1, 2], getattr(ml_dtypes, name))
        model = {"kernel": kernel, "bias": np.ones(1, np.float32)}
        vector, spec = flatten(model)
        assert vector.tolist() == [1, 2, 1], name
        back = unflatten(np.array([2.0, 4.0, 3.0]), spec)
        assert back["kernel"].dtype == kernel.dtype
        assert back["kernel"].astype(float).tolist() == [2, 4], name
        update.load(np.array([4.0, 1.0, 3.0]), model)
        assert kernel.astype(float).tolist() == [4, 1], name
    assert flatten([np.array([1, -1], ml_dtypes.int4), np.ones(1)])[0].tolist() == [1]


def test_tensors_of_any_width_are_sent_and_come_back() -> None:
    torch = pytest.importorskip("torch")
    names = [name for name in dir(torch) if name.startswith(("float8", "bfloat16", "float16"))]
    assert {"bfloat16", "float8_e4m3fn", "float8_e5m2"} <= {*names}
    for name in names:
        model = {"kernel": torch.tensor([1.0, 2.0]).to(getattr(torch, name)), "b": torch.ones(1)}
        vector, spec = flatten(model)
        assert vector.tolist() == [1, 2, 1], name
        back = unflatten(np.array([2.0, 4.0, 3.0]), spec)
        assert back["kernel"].dtype == model["kernel"].dtype
        assert back["kernel"].double().tolist() == [2, 4], name


def test_a_bfloat16_without_a_package_is_the_nearest() -> None:
    """ml_dtypes rounds in the same way, ties to even."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.random.default_rng(2).integers(0, 1 << 32, 10_000, np.uint32)
    values = bits.view(np.float32)[np.isfinite(bits.view(np.float32))]
    values = np.concatenate([values, [1 + 2**-8, 1 + 3 * 2**-8, -0.0, 1e-45, 3.4e38]])
    made = update.to_bfloat16(values)
    expected = values.astype(np.float32).astype(ml_dtypes.bfloat16)
    assert np.array_equal(made.view("<u2"), expected.view(np.uint16))
    vector, spec = flatten({"w": made[:4].reshape(2, 2)})
    assert np.array_equal(vector, expected[:4].astype(np.float64))
    assert spec.form and spec.form.entries[0][1:] == ("bfloat16", (2, 2))
    assert unflatten(vector, spec)["w"].dtype == update.BFLOAT16


def refused_arrays() -> dict[str, tuple[Any, str]]:
    pandas = pytest.importorskip("pandas")
    nullable = pandas.array([1.0, None], dtype="Float64")
    return {
        "objects": (np.array([1.0, None], object), "made of Python objects"),
        "unequal": (np.array([1, "a"], object), "made of Python objects"),
        "nullable": (nullable, "is a FloatingArray"),
        "nullable objects": (pandas.Series(nullable).to_numpy(object), r"column.to_numpy\(float\)"),
        "series": (pandas.Series([1.0]), "is a Series"),
        "text": (np.array(["a"]), "is <U1, and only floats"),
        "bytes": (np.array([b"a"]), r"is \|S1, and only floats"),
        "dates": (np.array(["2026-01-01"], "M8[D]"), "datetime64"),
        "spans": (np.array([1], "m8[s]"), "timedelta64"),
        "structure": (np.zeros(2, [("a", "f4")]), "only floats are sent"),
        "void": (np.zeros(2, "V2"), r"\|V2, as .npy and .npz store bfloat16"),
        "masked": (np.ma.masked_array([1.0, 2.0], [False, True]), "masked array"),
        "complex": (np.ones(2, complex), "real and imaginary parts as two arrays"),
        "none": (None, "is a NoneType"),
        "number": (1.5, "is a float"),
        "scalar": (np.float32(1), "is a float32"),
        "list": ([[1.0], [2.0, 3.0]], "is a list"),
        "nested": ({"w": np.ones(2)}, "is a dict"),
    }


def test_what_is_no_array_of_floats_is_an_error_that_names_it() -> None:
    for what, (entry, said) in refused_arrays().items():
        model = {"bias": np.ones(1, np.float32), "kernel": entry}
        with pytest.raises(InputError, match=said) as raised:
            flatten(model)
        assert "'kernel'" in str(raised.value), what
        # unless the user says that it stays
        assert flatten(model, ["kernel"])[0].tolist() == [1], what


@pytest.mark.filterwarnings("ignore")
def test_tensors_that_cannot_be_read_are_named() -> None:
    torch = pytest.importorskip("torch")
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    packed = torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    for model, said in (
        (torch.nn.Sequential(torch.nn.LazyLinear(3)), "'0.weight' has no values yet"),
        (torch.nn.Linear(2, 2, device="meta"), "'weight' has no values .it is on the meta"),
        ({"w": torch.eye(3).to_sparse()}, "'w' is sparse .torch.sparse_coo.; send tensor.to_dense"),
        ({"w": torch.eye(3).to_sparse_csr()}, "'w' is sparse .torch.sparse_csr"),
        ({"w": quantised}, "'w' is quantised; send tensor.dequantize"),
        ({"w": nested}, "'w' is a nested tensor"),
        ({"w": torch.ones(2, dtype=torch.complex64)}, "'w' is torch.complex64"),
        ({"w": packed}, "cannot be read as floats: 'w' .float4_e2m1fn_x2."),
    ):
        with pytest.raises(InputError, match=said):
            flatten(model)
    # a lazy head may stay
    lazy = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.LazyLinear(3))
    assert flatten(lazy, ["1.*"])[0].size == 3


def test_what_a_dtype_cannot_hold_is_an_error() -> None:
    """A float32 start model in a float16 network became infinite, without a word."""
    half = {"w": np.zeros(2, np.float16)}
    with pytest.raises(InputError, match="'w' is float16, and the value 100000"):
        update.load(np.array([1.0, 1e5]), half)
    assert half["w"].tolist() == [0, 0]
    update.load(np.array([1.0, np.inf]), half)
    assert half["w"].tolist() == [1, np.inf]
    torch = pytest.importorskip("torch")
    eight = {"w": torch.zeros(2).to(torch.float8_e4m3fn)}
    with pytest.raises(InputError, match="'w' is float8_e4m3fn, and the value 600"):
        update.load(np.array([1.0, 600.0]), eight)
    network = torch.nn.Linear(1, 1).half()
    with pytest.raises(InputError, match="'bias' is float16, and the value 70000"):
        update.load(np.array([1.0, 7e4]), network)


def test_arrays_of_any_layout_go_there_and_back() -> None:
    """Flower and others have refused, or mixed up, what is not contiguous."""
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    model = {"fortran": np.asfortranarray(base), "turned": base.T, "reversed": base[::-1]}
    vector, spec = flatten(model)
    back = unflatten(vector, spec)
    assert all(np.array_equal(back[name], model[name]) for name in model)
    view = np.zeros((4, 3), np.float32).T
    update.load(np.arange(12.0), [view])
    assert np.array_equal(view, base)
    torch = pytest.importorskip("torch")
    network = torch.nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
    vector, spec = flatten(network)
    update.load(vector * 2, network)
    assert np.array_equal(flatten(network)[0], vector * 2)
    with pytest.raises(InputError, match="an array that cannot be written to: 'w'"):
        update.load(np.arange(3.0), {"w": torch.ones(1).expand(3)})


def test_extra_state_of_a_module_is_named_and_may_stay() -> None:
    torch = pytest.importorskip("torch")

    class Scaled(torch.nn.Linear):  # type: ignore[name-defined]
        def get_extra_state(self) -> dict[str, int]:
            return {"amax": 1}

        def set_extra_state(self, state: dict[str, int]) -> None:
            assert state == {"amax": 1}

    network = torch.nn.Sequential(Scaled(2, 2))
    with pytest.raises(InputError, match="'0._extra_state' is a dict"):
        flatten(network)
    update.load(np.ones(6), network, ["*_extra_state"])
    assert flatten(network, ["*_extra_state"])[0].tolist() == [1] * 6


def test_layers_stay_local_by_pattern() -> None:
    model = {"body.w": np.ones(2), "bn.var": np.full(3, 9.0), "head.w": np.full(1, 8.0)}
    vector, spec = flatten(model, ["bn.*", "head*"])
    assert vector.tolist() == [1, 1]
    assert spec.summary == "1 of 3 entries are sent, with 2 values: body.w; local: bn.var, head.w"
    back = unflatten(vector + 1, spec)
    assert {name: array[0] for name, array in back.items()} == {
        "body.w": 2,
        "bn.var": 9,
        "head.w": 8,
    }
    update.load(np.array([5.0, 6.0]), model, ["bn.*", "head*"])
    assert (model["body.w"].tolist(), model["bn.var"][0]) == ([5, 6], 9)
    assert flatten([np.ones(2), np.zeros(1)], ["1"])[0].tolist() == [1, 1]
    # a slip of the pen would send what must stay
    with pytest.raises(InputError, match="no entry fits: 'bm.*'; the entries are body.w, bn.var"):
        flatten(model, ["bm.*"])
    with pytest.raises(InputError, match="keep_local is not a list"):
        flatten(model, "bn.*")
    with pytest.raises(InputError, match="without real-valued entries"):
        flatten(model, ["*"])


def test_a_tied_weight_is_the_same_under_both_names() -> None:
    torch = pytest.importorskip("torch")
    network = torch.nn.ModuleDict({"emb": torch.nn.Embedding(3, 2), "out": torch.nn.Linear(2, 3)})
    network["out"].weight = network["emb"].weight
    vector, _ = flatten(network)
    assert vector.size == 15
    update.load(np.concatenate([np.arange(6.0), np.arange(6.0), np.zeros(3)]), network)
    assert network["out"].weight is network["emb"].weight
    assert network["emb"].weight.flatten().tolist() == list(range(6))
