"""Rounds that exchange predictions on a public set, in process and through real daemons."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian import Client, Coordinator, PublicSet, cli
from securemedian.clients import files
from securemedian.clients.config import ClientConfig
from securemedian.clients.upload import Round, encode_update
from securemedian.coordinator.unattended import RunPlan
from securemedian.mpc.arrays import PublicValues
from securemedian.mpc.errors import ConfigError, InputError
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.exchange import Predictions, public_digest
from securemedian.mpc.rounds.methods.base import Method
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.optimiser import Adam
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import run_round
from securemedian.mpc.rounds.run_state import RunState, finish
from securemedian.servers.rounds.runs import begin
from tests.daemons import ROOT, WAIT_S, Pair, in_background
from tests.parties import make_parties, run_both, shared

PAGE = (ROOT / "docs" / "predictions.md").read_text("utf-8")
SAMPLES, CLASSES = 30, 4
DIM = SAMPLES * CLASSES
INPUTS = np.linspace(0, 1, SAMPLES * 5, dtype=np.float32).reshape(SAMPLES, 5)
PUBLIC = PublicSet(INPUTS)
EXCHANGE = Predictions(PUBLIC.digest, CLASSES)
UNIT = Radix(encoding="unit", word_bits=8)


def soft_labels(count: int, seed: int = 1) -> np.ndarray:
    """Return predictions (count, samples, classes): sure ones, unsure ones, and wrong ones."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(count, SAMPLES, CLASSES)) * rng.choice([0.1, 1, 30], (SAMPLES, 1))
    powers = np.exp(scores - scores.max(axis=2, keepdims=True))
    labels = (powers / powers.sum(axis=2, keepdims=True)).astype(np.float32)
    # in the first sample each client is sure of another class, so that all medians are 0
    labels[:, 0] = np.eye(CLASSES, dtype=np.float32)[np.arange(count) % CLASSES]
    labels[:, 1], labels[:, 2] = 0, 1
    return labels


def normalised(labels: np.ndarray) -> np.ndarray:
    """Return rows (samples, classes) that are clipped and add up to 1, sample by sample."""
    found = []
    for row in np.minimum(np.maximum(labels.astype(np.float64), 0), 1):
        found.append(row / row.sum() if row.sum() else np.full(CLASSES, 1 / CLASSES))
    return np.array(found).astype(np.float32)


def in_numpy(method: Method, labels: np.ndarray) -> np.ndarray:
    """Return what a round of these predictions must publish, by plain numpy."""
    values, middle = labels.astype(np.float64), (len(labels) - 1) // 2
    if isinstance(method, Radix):
        median = np.sort(np.rint(values * 255), axis=0)[middle] / 255
    elif isinstance(method, Bucketed):
        # 0, 14 even intervals, and 1
        index = np.where(values <= 0, 0, np.where(values >= 1, 15, np.floor(values * 14) + 1))
        index = np.sort(np.clip(index, 0, 15), axis=0)[middle]
        median = np.where(index == 0, 0, np.where(index == 15, 1, (index - 0.5) / 14))
    elif isinstance(method, Mean):
        # differences to 0.5, toward 0
        median = 0.5 + np.trunc((values - 0.5) * 2.0**16).mean(axis=0) / 2.0**16
    else:
        fixed = np.sort(np.floor(values * 2.0**24), axis=0)
        dropped = {Pairwise: (middle, middle + 1), TrimmedMean: (1, -1)}
        begin, end = dropped[type(method)]
        median = fixed[begin:end].mean(axis=0) / 2.0**24
    return normalised(median)


# Without servers


@pytest.mark.parametrize(
    "method",
    [UNIT, Bucketed(), Pairwise(), Pairwise(result_to="clients"), TrimmedMean(trim=0.2), Mean()],
    ids=lambda m: f"{m.label} {m.result_to}",
)
def test_a_round_publishes_the_median_labels_of_numpy(method: Method) -> None:
    clients = 6
    labels = soft_labels(clients, clients)
    params = RoundParams(method, dim=DIM, max_clients=clients, exchange=EXCHANGE)
    halves = [
        shared(params, encode_update(one.reshape(-1), Round("1-a", 1, params, 0))) for one in labels
    ]
    lanes, protocol = make_parties(1), ProtocolParams(lanes=1, chunk=128)
    one, other = run_both(
        lambda j: run_round(lanes[j], params, protocol, [pair[j] for pair in halves])
    )
    values = one.values
    if method.result_to == "clients":
        values = (values + other.values).astype(values.dtype)
    _, results = finish(RunState(), params, values, clients)
    assert results.dtype == np.float32 and results.shape == (1, DIM)
    got = results.reshape(SAMPLES, CLASSES)
    assert np.array_equal(got, in_numpy(method, labels))
    assert got[1].tolist() == [0.25] * CLASSES and got[2].tolist() == [0.25] * CLASSES
    assert np.allclose(got.sum(axis=1), 1, atol=1e-6)


def test_labels_are_clipped_and_add_up_to_one() -> None:
    numbers = [[3.0, -1.0, 0.0, 1.0], [0.2, 0.2, 0.2, 0.2], [-5.0, 0.0, -0.0, -np.inf]]
    results = EXCHANGE.result(np.array([numbers, numbers]).reshape(2, -1)).reshape(2, 3, CLASSES)
    want = [[0.5, 0, 0, 0.5], [0.25] * 4, [0.25] * 4]
    assert results.tolist() == [want, want]
    lone = Predictions(PUBLIC.digest, 2)
    assert lone.result(np.array([np.inf, 0.5])).tolist() == [1 / 1.5, 0.5 / 1.5]


def test_the_digest_of_a_public_set_tells_every_bit() -> None:
    other = INPUTS.copy()
    other[3, 2] = np.nextafter(other[3, 2], 2)
    sets: list[Any] = [INPUTS, other, INPUTS.reshape(-1, 3), INPUTS.astype(np.float64), INPUTS[:-1]]
    sets += [INPUTS[::-1], INPUTS.view(np.int32)]
    assert len({public_digest(one) for one in sets}) == len(sets)
    # but not how it lies in memory
    assert public_digest(np.asfortranarray(INPUTS)) == public_digest(INPUTS)
    assert public_digest(INPUTS.astype(">f4")) == public_digest(INPUTS)
    bads: list[np.ndarray] = [np.array(3.0), np.empty((0, 3)), np.array(["a"])]
    for bad in bads:
        with pytest.raises(InputError, match="a row per sample"):
            public_digest(bad)


def test_a_round_says_what_it_exchanges() -> None:
    params = RoundParams(UNIT, dim=DIM, max_clients=3, exchange=EXCHANGE)
    flat = params.to_dict()
    assert {name: flat[name] for name in ("exchange", "public_set", "classes")} == {
        "exchange": "predictions",
        "public_set": PUBLIC.digest,
        "classes": CLASSES,
    }
    assert RoundParams.from_dict(flat) == params
    assert PUBLIC.round(CLASSES).items() <= flat.items()
    assert params.digest != replace(params, exchange=Predictions("0" * 64, CLASSES)).digest
    # rounds of parameters are named as they always were
    plain = RoundParams(UNIT, dim=DIM, max_clients=3)
    assert not {"exchange", "public_set", "classes"} & plain.to_dict().keys()
    assert RoundParams.from_dict(plain.to_dict() | {"exchange": "parameters"}) == plain


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"exchange": "gradients"}, "invalid exchange: .*; take one of parameters, predictions"),
        ({"classes": 4}, "invalid option of parameters: classes, which belongs to predictions"),
        ({"exchange": "predictions", "classes": 4}, "invalid public_set: .*; give the SHA-256"),
        ({"public_set": "A" * 64, "classes": 4, "exchange": "predictions"}, "64 hex digits"),
        ({"public_set": "a" * 64, "classes": 1, "exchange": "predictions"}, "whole number from 2"),
        (
            {"public_set": "a" * 64, "classes": 7, "exchange": "predictions"},
            "not a multiple of the 7",
        ),
    ],
)
def test_parameters_that_no_round_can_have(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RoundParams.from_dict({"method": "radix", "dim": DIM, "max_clients": 3} | given)


def test_the_model_stays_as_it_is_and_rounds_count() -> None:
    params = RoundParams(UNIT, dim=DIM, max_clients=3, exchange=EXCHANGE)
    kept = replace(RunState(), model=np.ones(7, np.float32), published=4)
    started = begin(kept, params, {}, False, None, {})
    assert started is kept
    values = PublicValues(UNIT.words(soft_labels(1).reshape(1, DIM)))
    after, _ = finish(started, params, values, 3)
    assert after.published == 5 and after.model is kept.model
    assert np.array_equal(after.scale, kept.scale)
    assert begin(kept, params, {}, True, None, {}).number == 1
    for more in ({"policy": "constant"}, {}, {}):
        model = np.zeros(DIM, np.float32) if not more else None
        with pytest.raises(ConfigError, match="has no model, range or optimiser"):
            begin(kept, params, more, False, model, {})
    with pytest.raises(ConfigError, match="has no model, range or optimiser"):
        begin(kept, params, {}, False, None, Adam().to_dict())


@pytest.mark.parametrize("method", [UNIT, Bucketed()], ids=lambda m: m.name)
def test_what_is_no_prediction_is_refused(method: Method) -> None:
    current = Round("1-a", 1, RoundParams(method, dim=DIM, max_clients=3, exchange=EXCHANGE), 0)
    good = soft_labels(1)[0].reshape(-1)
    encode_update(good, current)
    for bad, message in (
        (np.nan, "predictions array is not finite: 1 NaN"),
        (1.0001, r"1 predictions lie outside \[0, 1\]: the first is 1.0001 for class 2 of sample"),
        (-1e-9, "for class 2 of sample 5; send probabilities"),
        (np.inf, "outside"),
    ):
        values = good.astype(np.float64)
        values[5 * CLASSES + 2] = bad
        with pytest.raises(InputError, match=message):
            encode_update(values, current)
    with pytest.raises(InputError, match="takes updates of 120 values"):
        encode_update(good[:-1], current)


def test_a_public_set_in_a_folder(tmp_path: Path) -> None:
    PUBLIC.save(tmp_path / "set")
    loaded = PublicSet.load(tmp_path / "set")
    assert loaded.digest == PUBLIC.digest and loaded.samples == SAMPLES
    with pytest.raises(ConfigError, match=r".inputs.npy. in the folder"):
        PublicSet.load(tmp_path)
    np.savez(tmp_path / "inputs.npz", a=INPUTS)
    (tmp_path / "inputs.npz").rename(tmp_path / "inputs.npy")
    with pytest.raises(InputError, match="an archive"):
        PublicSet.load(tmp_path)
    np.save(tmp_path / "inputs.npy", np.array(["a"]))
    with pytest.raises(InputError, match="a row per sample"):
        PublicSet.load(tmp_path)


def test_a_coordinator_s_plan_names_the_public_set(tmp_path: Path) -> None:
    PUBLIC.save(tmp_path / "set")
    (tmp_path / "t.toml").write_text(
        'coordinator = "c.toml"\nrounds = 1\npublic = "set"\n'
        '[round]\nmethod = "radix"\nmax_clients = 3\nclasses = 4\n'
    )
    plan = RunPlan.load(tmp_path / "t.toml")
    params = plan.params(1)
    assert params.exchange == EXCHANGE and params.dim == DIM


def test_flags_that_do_not_fit_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["round", "open", "none.toml", "--max-clients", "3", "--public", ".", "--classes"]
    assert cli.main([*command, "4"]) == 2
    assert "(inputs.npy) in the folder" in capsys.readouterr().err


def test_a_worker_warms_up_for_predictions_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "none.toml", "--warm-up", "2"]) == 2
    assert "; give --public, too" in capsys.readouterr().err


# With servers


def member(pair: Pair, number: int, public: PublicSet | None = PUBLIC) -> Client:
    config = ClientConfig.load(pair.folder / f"client-{number}.toml")
    quick = replace(config, state_dir="", wait_timeout_s=WAIT_S, poll_interval_s=0.05)
    return Client(quick, public)


@pytest.mark.slow
def test_clients_get_the_labels_of_numpy_and_a_receipt(
    pair: Pair, coordinator: Coordinator, tmp_path: Path
) -> None:
    params = RoundParams(UNIT, dim=DIM, max_clients=3, exchange=EXCHANGE)
    with member(pair, 1) as one, member(pair, 2) as two, member(pair, 3) as three:
        for number in (1, 2):
            labels = soft_labels(3, number)
            round_id = coordinator.open_round(params, reset=number == 1)
            for client, own in zip((one, two, three), labels, strict=True):
                current = client.wait_for_round()
                assert current.number == number and current.model is None
                client.submit(own)
            got = one.result()
            assert np.array_equal(got, in_numpy(UNIT, labels)) and got.dtype == np.float32
            assert np.array_equal(coordinator.result(round_id).reshape(SAMPLES, CLASSES), got)
            receipt = two.receipt(round_id)
            assert receipt.record.params == params.to_dict()
            assert len(receipt.record.included) == 3


@pytest.mark.slow
def test_mistakes_are_told_before_anything_is_uploaded(
    pair: Pair, coordinator: Coordinator
) -> None:
    params = RoundParams(UNIT, dim=DIM, max_clients=3, exchange=EXCHANGE)
    round_id = coordinator.open_round(params)
    good = soft_labels(1)[0]
    other = PublicSet(INPUTS + 1)
    for public, message in ((None, "this client has none"), (other, other.digest)):
        with member(pair, 1, public) as client:
            with pytest.raises(ConfigError, match=message):
                client.wait_for_round()
            with pytest.raises(ConfigError, match=message):
                client.submit(good, round_id)
    with member(pair, 1) as client:
        outside = good.copy()
        outside[3, 1] = 1.5
        for bad, message in (
            (good.T, r"\(samples, classes\) = \(30, 4\): \(4, 30\)"),
            (good.reshape(-1), r"= .*: \(120,\)"),
            ({"a": good[:10], "b": good[10:]}, r"= .*: \(10, 4\) and \(20, 4\)"),
            (outside, "for class 1 of sample 3"),
            (np.where(good > 2, 0, np.nan), "NaN"),
        ):
            with pytest.raises(InputError, match=message):
                client.submit(bad, round_id)
        with pytest.raises(ConfigError, match=r"fit\(\) exchanges parameters"):
            client.fit({"w": np.zeros(DIM)}, lambda model: None, rounds=1)
        assert coordinator.status(round_id).clients["client-1"] == "none"
        client.submit(good, round_id)
        assert coordinator.status(round_id).clients["client-1"] != "none"


@pytest.mark.slow
def test_the_commands_open_and_submit(
    pair: Pair, coordinator: Coordinator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    PUBLIC.save(tmp_path / "set")
    public = ["--public", str(tmp_path / "set")]
    opening = ["round", "open", str(pair.folder / "coordinator.toml"), "--max-clients", "3"]
    unit = ["radix", "--encoding", "unit", "--word-bits", "8"]
    assert cli.main([*opening, *public, "--classes", "4", *unit]) == 0
    labels = soft_labels(3, 7)
    waiting = []
    for number, own in enumerate(labels, 1):
        update, result = (str(tmp_path / f"{what}-{number}.npy") for what in ("own", "all"))
        files.write(Path(update), own)
        config = str(pair.folder / f"client-{number}.toml")
        submit = ["submit", config, update, "--result", result, *public]
        waiting.append(in_background(partial(cli.main, submit)))
    for wait in waiting:
        wait()
    assert np.array_equal(np.load(tmp_path / "all-2.npy"), in_numpy(UNIT, labels))


# the lines that docs/predictions.md leaves to its reader, seeded by the client's number
NETWORK = """
import sys
import numpy as np

NUMBER = sys.argv[1][-6]
RNG = np.random.default_rng(int(NUMBER))

def predict(inputs):
    labels = RNG.dirichlet(np.ones(4), len(inputs))
    np.save(f"own-{NUMBER}.npy", labels)
    return labels

def train(inputs, labels):
    assert inputs.shape == (30, 8) and labels.shape == (30, 4)

def train_on_own_data():
    pass
"""


@pytest.mark.release
def test_the_page_runs_as_it_stands(
    pair: Pair, coordinator: Coordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").symlink_to(pair.folder)
    (tmp_path / "my_network.py").write_text(NETWORK)
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(code)

    def python(*arguments: str) -> None:
        paths = os.pathsep.join([str(ROOT), str(tmp_path)])
        environment = os.environ | {"PYTHONPATH": paths}
        subprocess.run([sys.executable, *arguments], check=True, env=environment, timeout=WAIT_S)

    python("make_public.py")
    commands = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    (opening,) = (text for text in commands if "round open" in text)
    assert cli.main(shlex.split(opening.replace("\\\n", " "))[1:]) == 0
    clients = [("collaborate.py", f"keys/client-{i}.toml", f"all-{i}.npy") for i in (1, 2, 3)]
    for wait in [in_background(partial(python, *arguments)) for arguments in clients]:
        wait()
    own = np.array([np.load(tmp_path / f"own-{number}.npy") for number in (1, 2, 3)])
    for number in (1, 2, 3):
        assert np.array_equal(np.load(tmp_path / f"all-{number}.npy"), in_numpy(UNIT, own))


def test_the_page_s_other_commands_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come as far as the public set, which is not there."""
    monkeypatch.chdir("/")
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    lines = [line for text in blocks for line in text.replace("\\\n", " ").splitlines()]
    assert sum(" train " in line for line in lines) == 2
    for line in lines:
        arguments = shlex.split(line)[1:]
        with pytest.raises(ConfigError, match=r".inputs.npy. in the folder: public"):
            parsed = cli._parser().parse_args(arguments)
            parsed.run(parsed)
