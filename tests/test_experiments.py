"""`securemedian experiment`: small runs, resumed, in the clear and through real daemons."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian import cli
from securemedian.laboratory import data, models, plaintext
from securemedian.laboratory.experiments import catalogue, execution, leak, summaries
from securemedian.laboratory.experiments.execution import ExperimentServers
from securemedian.laboratory.experiments.players import Players
from securemedian.laboratory.experiments.runs import Collaboration, Design, Run, RunRecord
from securemedian.mpc.errors import ConfigError, SecureMedianError
from securemedian.mpc.rounds.clusters import exposed
from securemedian.mpc.rounds.methods.reclustered import Reclustered
from securemedian.mpc.rounds.optimiser import Momentum
from securemedian.mpc.rounds.ranges.uniform import CoordinateRange, MeanRange
from tests.conftest import needs

needs("torch", "sklearn", "matplotlib")

pytestmark = pytest.mark.slow

SMALL = ["--plain", "--images", "30", "--rounds", "2"]


@pytest.fixture(scope="module")
def digits() -> data.Dataset:
    models.use_one_thread()
    return data.load()


def design(digits: data.Dataset, name: str = "fig4", **chosen: Any) -> Design:
    chosen = {"images": 60, "rounds": 3, "seeds": [1], "secure": False} | chosen
    return catalogue.EXPERIMENTS[name].design(digits, {}, chosen)


def experiment(*options: str) -> int:
    return cli.main(["experiment", *options])


def summary(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())


def models_of(record: RunRecord) -> list[str]:
    return [figures.model for figures in record.rounds]


def nothing(_: Any) -> None:
    pass


def interrupt_after(rounds: int) -> Callable[[RunRecord], None]:
    def watch(record: RunRecord) -> None:
        if len(record.rounds) == rounds:
            raise KeyboardInterrupt

    return watch


# Through the servers and in the clear


def test_secure_and_plain_are_equal_bit_by_bit(
    digits: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All runs go through one pair of daemons, one of them after it was interrupted.

    A result that differs is refused.
    """
    secure = design(digits, secure=True)
    bucketed = secure.run(1, "bucketed", "bitflip", CoordinateRange(0.2, 0.1))
    bucketed = replace(bucketed, optimiser=Momentum())
    radix = secure.run(1, "radix", "gaussian")
    # with clusters of one client, and so whatever the servers toss
    clustered = [secure.run(1, name) for name in ("share-median-m1-r1", "share-zeno-m1-r1")]
    with ExperimentServers.here(3, nothing) as service:
        through = {radix.run_id: execution.carry_out(radix, 2, digits, service, nothing)}
        for run in clustered:
            through[run.run_id] = execution.carry_out(run, 1, digits, service, nothing)
        with pytest.raises(KeyboardInterrupt):
            execution.carry_out(bucketed, 3, digits, service, interrupt_after(1))
        # these servers are at this very run: but it is another's turn first
        execution.carry_out(replace(radix, seed=2), 1, digits, service, nothing)
        through[bucketed.run_id] = execution.carry_out(bucketed, 3, digits, service, nothing)
        other = replace(bucketed, seed=2)
        with monkeypatch.context() as patch, pytest.raises(SecureMedianError, match="defect"):
            patch.setattr(
                plaintext,
                "published",
                lambda updates, *_, **__: np.zeros((1, updates.shape[1]), np.float32),
            )
            execution.carry_out(other, 1, digits, service, nothing)
    for run, rounds in ((radix, 2), (bucketed, 3), *((run, 1) for run in clustered)):
        plain = replace(run, secure=False)
        clear = execution.carry_out(plain, rounds, digits, None, nothing)
        assert models_of(through[run.run_id]) == models_of(clear)
        assert len(set(models_of(clear))) == rounds
        assert all(figures.cost and figures.cost.ots > 0 for figures in through[run.run_id].rounds)
        assert all(figures.cost is None for figures in clear.rounds)


# Saved runs


def test_ctrl_c_leaves_what_was_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["fig4", *SMALL, "--seeds", "1", "--faults", "bitflip", "--out", str(tmp_path)]
    carry_out, calls = execution.carry_out, []

    def twice(*arguments: Any) -> RunRecord:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return carry_out(*arguments)

    monkeypatch.setattr(execution, "carry_out", twice)
    assert experiment(*options) == 130
    finished = sorted((tmp_path / "runs").glob("*.json"))
    assert len(finished) == 2
    times = [path.stat().st_mtime_ns for path in finished]
    monkeypatch.setattr(execution, "carry_out", carry_out)
    capsys.readouterr()
    assert experiment(*options) == 0
    assert "2 of 4 runs are there already" in capsys.readouterr().out
    assert [path.stat().st_mtime_ns for path in finished] == times
    assert experiment(*options, "--fresh") == 0
    assert all(path.stat().st_mtime_ns != time for path, time in zip(finished, times, strict=True))


def test_other_parameters_are_another_run(digits: data.Dataset) -> None:
    first = design(digits).run(1, "bucketed", "bitflip")
    changed: dict[str, Any] = {
        "data": "x",
        "data_digest": "x",
        "model": "mlp",
        "recipe": {"rate": 1.0},
        "split": "labels:2",
        "clients": 4,
        "images": None,
        "seed": 2,
        "method": "radix",
        "options": {"method": "bucketed", "buckets": 9},
        "policy": MeanRange(),
        "attack": "gaussian",
        "attackers": 2,
        "first": 4,
        "secure": True,
        "extensions": {"a.py": "x"},
        "optimiser": Momentum(),
        "collaboration": Collaboration(("digits",), 100, 5),
        "inference": True,
    }
    assert set(changed) == set(Run.__dataclass_fields__)
    ids = {replace(first, **{name: value}).run_id for name, value in changed.items()} | {
        first.run_id
    }
    assert len(ids) == len(changed) + 1


def test_damaged_files_are_named(tmp_path: Path, digits: data.Dataset) -> None:
    run = design(digits).run(1, "mean")
    (tmp_path / f"{run.run_id}.json").write_text("{")
    with pytest.raises(ConfigError, match=re.escape(f"{run.run_id}.json; remove it")):
        RunRecord.load(tmp_path, run)
    RunRecord().save(tmp_path, run)
    assert RunRecord.load(tmp_path, run) == RunRecord()
    (tmp_path / f"{run.run_id}.json").rename(tmp_path / f"{replace(run, seed=9).run_id}.json")
    with pytest.raises(ConfigError, match="another run"):
        RunRecord.load(tmp_path, replace(run, seed=9))


# Clients and attackers


def test_attackers_are_the_last_from_their_round_on(digits: data.Dataset) -> None:
    usual = design(digits, clients=5, attackers=2, first=2)
    honest, flipped = (
        Players(usual.run(1, "mean", attack), digits) for attack in ("none", "bitflip")
    )
    start = honest.start()
    for number, attacked in ((1, False), (2, True), (3, True)):
        trained, sent = (players.updates(start, number) for players in (honest, flipped))
        assert trained.shape == (5, start.size)
        assert np.array_equal(trained[:3], sent[:3])
        assert np.array_equal(sent[3:], 2 * start - trained[3:] if attacked else trained[3:])
    assert len(np.unique(trained, axis=0)) == 5


def test_colluding_attackers_see_the_honest_updates(digits: data.Dataset) -> None:
    from securemedian.laboratory.attacks import ATTACKS, Optimised

    def mean(updates: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(updates.mean(axis=0), np.float32)

    usual = design(digits, clients=6, attackers=2, first=1)
    honest = Players(usual.run(1, "mean"), digits)
    start = honest.start()
    trained = honest.updates(start, 1)
    for name, attack in ATTACKS.items():
        sent = Players(usual.run(1, "mean", name), digits).updates(start, 1, mean)
        assert sent.shape == trained.shape
        assert sent.dtype == np.float32
        assert np.array_equal(sent[:4], trained[:4])
        assert np.array_equal(sent[4:], trained[4:]) == (name == "none")
        if attack.sees_honest:
            knows = {"aggregate": mean} if issubclass(attack, Optimised) else {}
            expected = attack(first=1, **knows).corrupt(
                trained[4:], start, trained[:4], np.random.default_rng((1, 6, 1))
            )
            assert np.array_equal(sent[4:], expected)


def test_threads_change_no_update(digits: data.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    run = design(digits).run(1, "mean")
    start = Players(run, digits).start()
    alone = Players(run, digits).updates(start, 1)
    monkeypatch.setattr("securemedian.laboratory.experiments.players.THREADS_PAY_FROM", 0)
    assert np.array_equal(Players(run, digits).updates(start, 1), alone)


def test_clients_train_at_the_chosen_rate_and_for_the_chosen_epochs(digits: data.Dataset) -> None:
    usual = {"batch": 10, "rate": 0.1, "epochs": 2}
    assert design(digits).run(1, "mean").recipe == usual
    chosen = design(digits, rate=0.05, epochs=1)
    changed = usual | {"rate": 0.05, "epochs": 1}
    assert chosen.run(1, "mean").recipe == changed
    networks = ("digits", "digits-linear")
    assert chosen.run(1, "cronus", networks=networks).recipe == dict.fromkeys(networks, changed)
    start = Players(chosen.run(1, "mean"), digits).start()
    ours, theirs = (
        Players(one.run(1, "mean"), digits).updates(start, 1) for one in (chosen, design(digits))
    )
    assert not np.array_equal(ours, theirs)


def test_fewer_test_images_are_drawn_at_random_and_make_another_run(digits: data.Dataset) -> None:
    fewer, again = (design(digits, test_images=100) for _ in range(2))
    assert np.array_equal(fewer.data.images, digits.images)
    known = dict(zip(map(bytes, digits.test_images), digits.test_labels, strict=True))
    drawn = dict(zip(map(bytes, fewer.data.test_images), fewer.data.test_labels, strict=True))
    assert len(drawn) == 100 and drawn.items() <= known.items()
    assert not np.array_equal(fewer.data.test_labels, digits.test_labels[:100])
    assert np.array_equal(again.data.test_labels, fewer.data.test_labels)
    assert design(digits).run(1, "mean").run_id != fewer.run(1, "mean").run_id


def test_a_run_that_diverges_ends_and_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["attacks", "--plain", "--images", "30", "--rounds", "30", "--out", str(tmp_path)]
    assert experiment(*options, "--methods", "mean,radix", "--attacks", "sign-flip-100") == 0
    mean, radix = (
        next(
            one for one in summary(tmp_path, "attacks-digits")["results"] if one["method"] == method
        )
        for method in ("mean", "radix")
    )
    (after,) = mean["diverged_after"]
    assert 0 < after < 30
    # that of guessing one of ten digits
    assert mean["accuracy"][0][after:] == [10.0] * (30 - after)
    assert radix["diverged_after"] == [None]
    assert radix["final"]["mean"] > 50
    said = capsys.readouterr().out
    # while it runs
    assert f"diverged after round {after}" in said
    # in the table
    assert "diverged 10.00" in said


# Every experiment


def tiny_cifar10(folder: Path) -> Path:
    rng = np.random.default_rng(1)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        records = rng.integers(0, 256, (3, 3073), np.uint8)
        records[:, 0] %= 10
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    return folder


# one of each kind: the others have the same curves and pictures of other methods, and tests above
# and below run some of those
RUN = {
    "fig6": "--methods mean,bucketed --faults bitflip",
    "fig13": "",
    "share": "--methods share-median-m3-r4,share-krum-m3-r4,share-zeno-m3-r4 --attacks bitflip",
    "byzfl": "--seeds 1 --attackers 1 --methods mean,radix",
    "cronus": "--seeds 1 --samples 20 --warm-up 1 --attacks none,lie",
    "cronus-heterogeneous": "--seeds 1 --samples 20 --warm-up 1",
    "cronus-membership": "--seeds 1 --samples 20 --warm-up 1",
}


@pytest.mark.parametrize("name", RUN)
def test_experiments_run(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--plain", "--rounds", "1", "--from", "1", "--seeds", "1,2"]
    options += ["--out", str(tmp_path / "out"), *RUN[name].split()]
    if name == "fig6":
        options += ["--data", str(tiny_cifar10(tmp_path))]
    else:
        options += ["--images", "5"]
    assert experiment(name, *options) == 0
    said = capsys.readouterr().out
    assert catalogue.EXPERIMENTS[name].figure in said
    model = "cnn-cifar10" if name == "fig6" else "digits"
    found = summary(tmp_path / "out", f"{name}-{model}")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"{name}-{model}.{end}" for end in ("json", "png")
    } | {"runs"}
    assert found["settings"]["model"] == model
    assert set(found["machine"]) == set(summaries.machine())
    for one in found["results"]:
        final = one["final"]
        assert 0 <= final["min"] <= final["mean"] <= final["max"] <= 100
        assert one["accuracy"] == [[pytest.approx(value, abs=0.01)] for (value,) in one["accuracy"]]
        assert one["servers"] is None
    cells = {tuple(one[at] for at in ("panel", "line", "x", "attack")) for one in found["results"]}
    assert len(cells) == len(found["results"])


def test_byzfls_protocol_shows_the_worst_attack_at_each_level(digits: data.Dataset) -> None:
    """No level, method or number of attackers is left out, and attackers hold no images."""
    made = design(digits, "byzfl", methods=["mean", "radix"], attackers=2)
    curves = catalogue.EXPERIMENTS["byzfl"].shape.curves(made)
    assert len(curves) == len(catalogue.SIMILAR) * 2 * 2 * len(made.attacks)
    assert {curve.x for curve in curves} == {1, 2} == {c.runs[0].attackers for c in curves}
    assert all(curve.runs[0].holders == 10 - curve.runs[0].attackers for curve in curves)
    accuracy = {attack: 90.0 - place for place, attack in enumerate(made.attacks)}
    results = [
        catalogue.CurveResult(curve, [[0.0, accuracy[curve.runs[0].attack]]]) for curve in curves
    ]
    show = catalogue.EXPERIMENTS["byzfl"].shape.rows
    assert show is not None
    rows = show(results)
    assert len(rows) == len(catalogue.SIMILAR) * 2
    worst = f"{min(accuracy.values()):.1f} {made.attacks[-1]}"
    assert all(row["f = 1"] == row["f = 2"] == worst for row in rows)


def test_what_is_below_the_exact_median_is_counted_from_the_fourth_round_on(
    digits: data.Dataset,
) -> None:
    """Every seed is compared with itself, in its own panel, and the worst round counts."""
    made = design(digits, rounds=5, seeds=[1, 2], attacks=["none", "bitflip"])
    curves = {
        (curve.runs[0].attack, curve.runs[0].method): curve
        for curve in catalogue.EXPERIMENTS["fig4"].shape.curves(made)
    }

    def below(attack: str, *accuracies: list[float]) -> float | None:
        exact = catalogue.CurveResult(
            curves["none", "radix"], [[90, 90, 90, 50, 60], [0, 0, 0, 70, 80]]
        )
        other = catalogue.CurveResult(curves[attack, "bucketed"], accuracies)
        records = {run.run_id: RunRecord() for curve in curves.values() for run in curve.runs}
        summary = summaries.summary(
            catalogue.EXPERIMENTS["fig4"], made, [exact, other], records, ""
        )
        assert summary["results"][0]["below_exact"] == 0
        return summary["results"][1]["below_exact"]

    assert below("none", [0, 0, 0, 50, 59], [0, 0, 0, 67, 90]) == 3
    assert below("none", [0, 0, 0, 51, 61], [0, 0, 0, 72, 82]) == -1
    # the exact median of another panel says nothing
    assert below("bitflip", [0, 0, 0, 50, 59], [0, 0, 0, 67, 90]) is None


def test_files_are_named_after_split_and_optimiser(tmp_path: Path) -> None:
    options = [*SMALL, "--methods", "mean", "--split", "dirichlet:0.3", "--out", str(tmp_path)]
    assert experiment("fig2", *options, "--optimiser", "momentum:rate=0.5") == 0
    stem = "fig2-digits-dirichlet-0.3-momentum"
    assert {path.name for path in tmp_path.iterdir()} - {"runs"} == {
        f"{stem}.{end}" for end in ("json", "png")
    }
    made = summary(tmp_path, stem)["settings"]
    assert made["optimiser"] == {"optimiser": "momentum", "rate": 0.5, "decay": 0.9}
    assert made["split"] == "dirichlet:0.3"


def test_unscaled_columns_are_learnt_through_batch_normalisation(tmp_path: Path) -> None:
    """The default finds scales from hundredths to 1e10, and the paper's range does not."""
    options = ["--dataset", "clinic", "--images", "300", "--attacks", "none"]
    methods = "radix,bucketed,bucketed-paper"
    assert experiment("ranges", *options, "--methods", methods, "--out", str(tmp_path)) == 0
    found = {one["method"]: one for one in summary(tmp_path, "ranges-clinic")["results"]}
    assert found["bucketed"]["below_exact"] < 5
    assert found["bucketed-paper"]["final"]["mean"] < 60 < found["radix"]["final"]["mean"]


# reclusterings that leave no coin with which some of 12 updates do not follow: of six one in 80
# does, of ten none in 30,000
MANY = 12


def test_the_analysis_of_a_leak_is_saved_drawn_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leak, "RECLUSTERINGS", (1, MANY))
    monkeypatch.setattr(leak, "COORDINATES", 32)
    assert experiment("share-leak", "--clients", "12", "--out", str(tmp_path)) == 0
    assert "SHARE, Appendix C.3" in capsys.readouterr().out
    assert (tmp_path / "share-leak-digits.png").exists()
    found = summary(tmp_path, "share-leak-digits")
    assert [one["exposed"] for one in found["results"]] == [0, 12]
    assert found["results"][1]["opened"]["max"] < 1e-4 < found["results"][1]["hidden"]["min"]


def test_opened_sums_give_updates_away_and_a_hidden_result_does_not() -> None:
    """12 updates follow from many sums to within the fixed point, and from the result none."""
    updates = np.random.default_rng(5).normal(size=(12, 40))
    for reclusterings, solved in ((1, False), (MANY, True)):
        method = Reclustered(clusters=3, reclusterings=reclusterings)
        hidden, _ = leak.attack(method, updates)
        opening = replace(method, clustering="opened", accept_leak=True)
        opened, coin = leak.attack(opening, updates)
        assert (opened < 1e-6).all() if solved else (opened > 0.1).all()
        assert (hidden > 0.5).all()
        assert len(exposed(coin, 12, 4, reclusterings).clients) == (12 if solved else 0)


def test_the_list(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert experiment("--list") == 0
    said = capsys.readouterr().out
    for word in (*catalogue.EXPERIMENTS, "Figure 13", "bucketed", "krum", "lie", "cnn-cifar10"):
        assert word in said
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "fig13"),
        ("fig3", "fig13"),
        ("fig4 --methods median,nonsense", "nonsense"),
        ("fig4 --faults nonsense", "nonsense"),
        ("fig4 --model nonsense", "nonsense"),
        ("fig4 --rounds 0", "--rounds"),
        ("fig4 --from 0", "--from"),
        ("fig4 --rate nan", "--rate"),
        ("fig4 --epochs 0", "--epochs"),
        ("fig4 --test-images 298", "1 to 297"),
        ("fig4 --clients 1", "--clients"),
        ("fig4 --attackers 3", "--attackers"),
        ("fig4 --seeds 1,-1", "--seeds"),
        ("fig13 --methods radix", "bucketed-paper"),
        ("fig13 --faults lie,paf --attackers 1", "one attack"),
        ("fig4 --images 1000", "images"),
        ("fig4 --split nonsense", "split"),
        ("fig4 --data .", "MNIST"),
        ("fig4 --dataset nonsense", "nonsense"),
        # not with one attacker of three
        ("fig4 --methods krum", "Krum"),
        ("fig5", "--data"),
        ("fig2 --json rows.json", "of runs"),
        ("cronus --samples 1500", "1 to 1,499"),
        ("cronus --warm-up -1", "--warm-up"),
        ("cronus --clients 4 --attackers 3", "spectral filter"),
        ("cronus-heterogeneous --methods mean", "one common model"),
        ("cronus-heterogeneous --attacks none,lie --attackers 1", "one attack"),
        ("cronus-heterogeneous --dataset clinic", "no two networks for this data set: clinic"),
        ("cronus-membership --methods alone", "not alone"),
        ("fig4 --with nothing.py", "nothing.py"),
        ("fig4 --with broken.py", "SyntaxError"),
        ("fig4 --with text.txt", "ends in .py"),
        ("fig4 --out file", "file"),
    ],
)
def test_mistakes_are_told_before_anything_starts(
    options: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("def")
    (tmp_path / "text.txt").write_text("x = 1")
    (tmp_path / "file").write_text("")
    assert experiment(*options.split()) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert said in error
