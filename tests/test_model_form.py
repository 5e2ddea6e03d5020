"""The form of a model: layers are matched by name, and what does not fit is refused in words."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from securemedian import Coordinator, RoundParams, cli, flatten
from securemedian.clients import files, update
from securemedian.common.model_form import MAX_FORM_BYTES, FormEntry, ModelForm
from securemedian.mpc.errors import InputError, PeerProtocolError, SecureMedianError
from securemedian.mpc.rounds.methods.radix import Radix
from tests.daemons import WAIT_S, Pair, in_background
from tests.test_own_model import member

PARAMS = RoundParams(Radix(), dim=8, max_clients=2)
FC1, FC2 = np.full((2, 2), 1.0, np.float32), np.full((2, 2), 10.0, np.float32)


def form_of(model: Any, keep_local: tuple[str, ...] = ()) -> ModelForm:
    form = flatten(model, keep_local)[1].form
    assert form
    return form


# Without servers


def test_entries_are_matched_by_name() -> None:
    agreed = form_of({"fc1": FC1, "fc2": FC2})
    vector, spec = flatten({"fc2": FC2, "n": np.array(3), "fc1": FC1})
    arranged, order = update.arrange(vector, spec, agreed)
    assert vector.tolist() == [10.0] * 4 + [1.0] * 4
    assert arranged.tolist() == [1.0] * 4 + [10.0] * 4
    assert order.sent == ("fc1", "fc2")
    # and back, in the order in which they were given
    back = update.unflatten(np.arange(8.0), order)
    assert list(back) == ["fc2", "n", "fc1"]
    assert back["fc1"].tolist() == [[0, 1], [2, 3]]
    model = {"fc2": np.zeros((2, 2)), "fc1": np.zeros((2, 2))}
    agreed = form_of({"fc1": np.zeros((2, 2)), "fc2": np.zeros((2, 2))})
    update.load(np.arange(8.0), model, form=agreed)
    assert model["fc1"].tolist() == [[0, 1], [2, 3]]
    assert model["fc2"].tolist() == [[4, 5], [6, 7]]
    # the value at a place belongs to the entry that is sent there
    assert [order.name_at(index) for index in (0, 3, 4, 7)] == ["fc1", "fc1", "fc2", "fc2"]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"x": np.zeros((4, 2), np.float32)}, r"entry 1 .*`fc1 float32 \(2, 2\)`.*here none"),
        (
            {"fc1": FC1, "fc2": FC2[0]},
            r"entry 2 .*`fc2 float32 \(2, 2\)`: here `fc2 float32 \(2,\)`",
        ),
        ({"fc1": FC1, "fc2": FC2.astype(np.float16)}, r"entry 2 .*`fc2 float16 \(2, 2\)`"),
        ({"fc1": FC1, "fc2": FC2, "b": FC1}, r"no such entry: `b float32 \(2, 2\)`"),
        ([FC1], r"entry 2 .*here none"),
        ([FC1, FC2, FC1], r"no such entry: `float32 \(2, 2\)`"),
    ],
)
def test_the_first_line_that_differs_is_shown(model: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        update.arrange(*flatten(model), form_of({"fc1": FC1, "fc2": FC2}))


def test_a_list_has_no_names_and_an_array_only_its_length() -> None:
    agreed = form_of({"fc1": FC1, "fc2": FC2})
    vector, spec = flatten([FC2, FC1])
    assert np.array_equal(update.arrange(vector, spec, agreed)[0], vector)
    vector, spec = flatten(np.arange(8.0))
    assert spec.form is None
    assert np.array_equal(update.arrange(vector, spec, agreed)[0], vector)


def test_wrappers_of_a_module_change_no_name() -> None:
    """torch.compile and DataParallel put their own words before the names."""
    torch = pytest.importorskip("torch")
    plain = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    form = form_of(plain)
    assert form_of(torch.nn.DataParallel(plain)) == form
    assert form_of(torch.compile(plain)) == form
    assert form_of(torch.nn.DataParallel(torch.compile(plain))) == form
    # a part of a model may be compiled, too
    part = torch.nn.Sequential(torch.compile(plain[0]), plain[1])
    assert list(part.state_dict())[0] == "0._orig_mod.weight"
    assert form_of(part) == form


def test_two_names_that_are_one_are_refused() -> None:
    with pytest.raises(InputError, match="two entries of the same name: '1'"):
        form_of({1: FC1, "1": FC2})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not json", "invalid form"),
        ("{}", "not canonical"),
        ("7", "invalid form"),
        ("[" * 100_000, "invalid form"),
        ('[["a","float32",[8]],', "invalid form"),
        ('[["a","float32",[-8]]]', "invalid form"),
        ('[["a","float32",[true]]]', "invalid form"),
        ('[[1,"float32",[8]]]', "invalid form"),
        ('[["a", "float32", [8]]]', "not canonical"),
        ('[["a","float32",[7]]]', "the round's 8 values: 7"),
        (json.dumps([["a" * MAX_FORM_BYTES, "float32", [8]]]), "has more than .* characters"),
    ],
)
def test_a_form_from_outside_is_checked(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        ModelForm.parse(text, 8)


def test_a_form_goes_through_its_text() -> None:
    entries = (FormEntry("a", "float32", (2, 3)), FormEntry("schicht-ü", "bfloat16", ()))
    form = ModelForm.of(entries)
    assert ModelForm.parse(form.text, 7) == form
    with pytest.raises(InputError, match="take more than .* bytes: "):
        ModelForm.of([FormEntry(f"{'x' * 90}{n}", "float32", (1,)) for n in range(3000)])


def test_train_keeps_layers_local_over_restarts() -> None:
    """`securemedian train --keep-local`: the network of a client is its own there."""
    pytest.importorskip("torch")
    from securemedian.laboratory import models, worker

    store: dict[str, Any] = {"stored": ({}, {})}
    client: Any = SimpleNamespace(
        stored=({}, {}), store=lambda fields, arrays: store.update(stored=(fields, arrays))
    )
    rng = np.random.default_rng(1)
    network = models.MODELS["heart"]
    images = rng.normal(size=(8, 13)).astype(np.float32)
    trainer = worker.Trainer(network, images, rng.integers(0, 2, 8), (1, 0))
    every = network.build().state_dict()
    last = list(every)[-1]
    kept = worker.Kept.of(client, trainer, [last])
    start = models.start(network, 1)
    assert np.array_equal(kept.vector, start)
    assert kept.sent.sum() == start.size - every[last].numel()
    part = np.zeros(int(kept.sent.sum()), np.float32)
    whole = kept.whole(part)
    assert not whole[kept.sent].any() and np.array_equal(whole[~kept.sent], start[~kept.sent])
    trained = trainer.update(whole, 2)
    assert np.array_equal(kept.keep(trainer, trained), trained[kept.sent])
    assert not np.array_equal(trained[~kept.sent], start[~kept.sent])
    client.stored = store["stored"]
    again = worker.Kept.of(client, trainer, [last])
    assert np.array_equal(again.whole(part)[~kept.sent], trained[~kept.sent])
    with pytest.raises(InputError, match="give `init` and all clients the same --keep-local"):
        again.whole(part[1:])


# With servers


def model(fc1: float, fc2: float, swapped: bool = False) -> dict[str, np.ndarray]:
    made = {"fc1": np.full((2, 2), fc1, np.float32), "fc2": np.full((2, 2), fc2, np.float32)}
    return dict(reversed(made.items())) if swapped else made


def values(result: Any) -> tuple[float, float]:
    """Return the values of both layers, each of which is the same four times."""
    assert np.ptp(result["fc1"]) == np.ptp(result["fc2"]) == 0
    return float(result["fc1"][0, 0]), float(result["fc2"][0, 0])


@pytest.mark.slow
def test_layers_in_another_order_do_not_change_places(pair: Pair, coordinator: Coordinator) -> None:
    """Without a form the first client's counts. Swapped, both results were wrong on 1.0.0."""
    coordinator.open_round(PARAMS, reset=True)
    with member(pair, 1) as one, member(pair, 2) as other:
        one.submit(model(1, 10))
        other.submit(model(2, 20, swapped=True))
        # the lower median of two
        assert values(one.result()) == (1, 10)
        theirs = other.result()
        assert values(theirs) == (1, 10) and list(theirs) == ["fc2", "fc1"]
    # the run keeps the form, in whatever order the next first client has its layers
    round_id = coordinator.open_round(PARAMS)
    with member(pair, 1) as one, member(pair, 2) as other:
        current = other.wait_for_round()
        assert current.form == form_of(model(0, 0))
        mine = model(0, 0, swapped=True)
        current.load_into(mine)
        assert values(mine) == (1, 10)
        other.submit(model(3, 30, swapped=True))
        # a list goes by its order, and a vector by its length
        one.submit([np.full((2, 2), 4, np.float32), np.full((2, 2), 40, np.float32)])
        assert [float(layer[0, 0]) for layer in one.result(round_id)] == [3, 30]


@pytest.mark.slow
def test_another_form_is_refused_before_anything_is_sent(
    pair: Pair, coordinator: Coordinator
) -> None:
    coordinator.open_round(PARAMS, reset=True)
    with member(pair, 1) as one, member(pair, 2) as other:
        one.submit(model(1, 10))
        with pytest.raises(InputError, match=r"entry 1 of the round is `fc1 float32 \(2, 2\)`"):
            other.submit({"x": np.ones((4, 2), np.float32)})
        assert pair.status()["clients"]["client-2"] == "none"
        # it has sent nothing, and may correct it
        other.submit(model(2, 20))
        assert values(other.result()) == (1, 10)


@pytest.mark.slow
def test_the_coordinator_s_form_is_everybody_s(pair: Pair, coordinator: Coordinator) -> None:
    """Both servers have it, and a client compares what they say."""
    start = model(5, 50, swapped=True)
    round_id = coordinator.open_round(PARAMS, start)
    said = [pair.caller("client-1", server).ask("round").fields for server in ("s0", "s1")]
    assert {each["model_form"] for each in said} == {form_of(start).digest}
    with member(pair, 1) as one, member(pair, 2) as other:
        current = one.wait_for_round()
        mine = model(0, 0)
        current.load_into(mine)
        assert values(mine) == (5, 50)
        # the order that a lying S0 gives to one client
        lied = replace(current, form=form_of(model(0, 0)))
        one._open = lied
        with pytest.raises(PeerProtocolError, match="other forms of the model"):
            one.submit(model(1, 10))
        assert pair.status()["clients"]["client-1"] == "none"
    coordinator.abort_round(round_id, "next")
    round_id = coordinator.open_round(PARAMS, start)
    with member(pair, 1) as one, member(pair, 2) as other:
        one.submit(model(1, 10))
        other.submit(np.array([20.0] * 4 + [2.0] * 4))
        assert values(one.result()) == (1, 10)
        # a vector has no names: it is in the order of the start model
        assert other.result().tolist() == [10.0] * 4 + [1.0] * 4


@pytest.mark.slow
def test_a_form_outlasts_s0(pair: Pair, coordinator: Coordinator) -> None:
    """Otherwise the next client after a restart would set another order."""
    coordinator.open_round(PARAMS, reset=True)
    with member(pair, 1) as one:
        one.submit(model(1, 10))
        pair.stop("s0")
        pair.start("s0")
        pair.link()
        with member(pair, 2) as other:
            other.submit(model(2, 20, swapped=True))
            assert values(other.result()) == (1, 10)
        assert values(one.result()) == (1, 10)
    # a client that was restarted has not seen its update, and its layers are the other way round
    round_id = coordinator.status().round
    with member(pair, 2) as other:
        assert other.result(round_id).tolist() == [1.0] * 4 + [10.0] * 4
        assert values(other.result(round_id, like=model(0, 0, swapped=True))) == (1, 10)


@pytest.mark.slow
def test_a_hostile_form_is_refused(pair: Pair, coordinator: Coordinator) -> None:
    round_id = coordinator.open_round(PARAMS, reset=True)
    caller = pair.caller("client-1", "s0")
    for text in ("x", '[["a","float32",[9]]]', "[" * 1000, "a" * (MAX_FORM_BYTES + 1)):
        with pytest.raises(SecureMedianError):
            caller.ask("form", round=round_id, model_form=text)
    fields: dict[str, Any]
    for fields in ({"model_form": 3}, {"model_form": b"x"}):
        with pytest.raises(SecureMedianError):
            caller.ask("form", round=round_id, **fields)
    assert caller.ask("form", round=round_id).fields["model_form"] == ""
    # the first counts
    first, second = (form_of(model(0, 0, swapped=swapped)).text for swapped in (True, False))
    for text in (first, second, ""):
        said = caller.ask("form", round=round_id, model_form=text).fields
        assert said["model_form"] == first
    with pytest.raises(SecureMedianError, match="only s0 answers this request: 'form'"):
        pair.caller("client-1", "s1").ask("form", round=round_id)


@pytest.mark.slow
def test_fit_keeps_layers_local(pair: Pair, coordinator: Coordinator) -> None:
    """FedBN, personal heads and LoRA: each client keeps its own values of some layers."""
    params = RoundParams(Radix(), dim=8, max_clients=2)

    def with_head(fc1: float, fc2: float, swapped: bool = False) -> dict[str, np.ndarray]:
        made = {**model(fc1, fc2), "fc3": np.full((2, 2), 3.0, np.float32)}
        return dict(reversed(made.items())) if swapped else made

    # one has its layers the other way round
    models = {number: with_head(0, number, swapped=number == 2) for number in (1, 2)}
    said: list[str] = []

    def fit(number: int) -> None:
        def train(mine: dict[str, np.ndarray]) -> None:
            mine["fc1"] += number
            mine["fc2"] += 100

        with member(pair, number) as client:
            report = said.append if number == 1 else lambda _: None
            client.fit(models[number], train, 2, WAIT_S, report=report, keep_local=["fc2"])

    waiting = [in_background(partial(fit, number)) for number in (1, 2)]
    for start in (with_head(7, 70), None):
        coordinator.open_round(params, start, keep_local=["fc2"])
        pair.wait("published")
    for join in waiting:
        join()
    assert values(models[1]) == (9, 201)
    assert values(models[2]) == (9, 202)
    assert {float(each) for one in models.values() for each in one["fc3"].flat} == {3}
    assert said[0] == "2 of 3 entries are sent, with 8 values: fc1, fc3; local: fc2"
    with member(pair) as client, pytest.raises(InputError, match="no entry fits: 'bn.*'"):
        client.fit(models[1], print, keep_local=["bn.*"])


@pytest.mark.slow
def test_files_bring_the_form(
    pair: Pair,
    coordinator: Coordinator,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`init` writes the names, `round open` gives them, and `submit` goes by them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("form_start.py").write_text(
        "import numpy as np\ndef build():\n    return {'fc2': np.ones((2, 2), np.float32), "
        "'bn': np.ones(3), 'fc1': np.zeros((2, 2), np.float32)}\n"
    )
    for file in ("start.npz", "start.safetensors"):
        assert cli.main(["init", file, "--from", "form_start:build", "--keep-local", "bn"]) == 0
        shown = capsys.readouterr().out
        assert "2 of 3 entries are sent, with 8 values: fc2, fc1; local: bn" in shown
        config = pair.toml("coordinator")
        assert cli.main(["round", "open", config, "radix", "--model", file, "--max-clients=2"]) == 0
        assert "radix takes values from -3.40282e+38 to 3.40282e+38" in capsys.readouterr().err
        files.write(Path("one.npz"), model(1, 10))
        files.write(Path("two.safetensors"), model(2, 20))
        joins = [
            in_background(
                partial(
                    cli.main,
                    ["submit", pair.toml(f"client-{n}"), name, "--result", f"result-{name}"],
                )
            )
            for n, name in ((1, "one.npz"), (2, "two.safetensors"))
        ]
        for join in joins:
            join()
        for name in ("result-one.npz", "result-two.safetensors"):
            found = files.read(Path(name))
            assert values(found) == (1, 10)
    assert cli.main(["init", "x.npz", "--from", "form_start:build", "--groups", "2"]) == 2
