"""Parts that both plug-ins share: rounds, the lease, and pages with the code's messages."""

import logging
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.clients.config import ClientConfig
from securemedian.coordinator.lease import Lease
from securemedian.mpc.errors import (
    ConfigError,
    DuplicateUpload,
    InputError,
    RoundBusy,
    RoundFailed,
    ServerUnreachable,
)
from securemedian.plugins.rounds import (
    Arrays,
    FrameworkRounds,
    TrainingPlan,
    listed,
    local_part,
    same_form,
    submit,
)
from tests.daemons import ROOT, Pair
from tests.prose import literals

MODEL = {"w": np.zeros((2, 2), np.float32), "steps": np.array([3])}
SHARED = ("common/policy.py", "plugins/rounds.py", "coordinator/lease.py", "mpc/rounds/encode.py")


@pytest.mark.parametrize(("page", "folder"), [("flower.md", "flower"), ("nvflare.md", "nvflare")])
def test_the_messages_of_a_page_are_those_of_the_code(page: str, folder: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    rows = re.findall(r"^\| (`.*?`) \| ", text.partition("goes wrong")[2], re.MULTILINE)
    assert len(rows) > 10
    said = "\n".join(
        literals(path.read_text("utf-8"))
        for path in [*ROOT.glob(f"plugins/{folder}/*.py"), *(ROOT / name for name in SHARED)]
    )
    for message in re.findall("`(.+?)`", " ".join(rows)):
        # words in capitals, N, M and I stand for what varies
        for part in re.split(r"\.\.\.|'?\b(?:[A-Z]{2,}|[NMI])\b'?|NaN", message):
            assert part.strip(" ,:()") in said, message


@pytest.mark.parametrize("name", ["flower", "nvflare"])
def test_a_page_and_its_example_have_the_same_commands(name: str) -> None:
    blocks = [
        re.findall(r"```bash\n(.*?)```", (ROOT / path).read_text("utf-8"), re.DOTALL)[0]
        for path in (f"docs/{name}.md", f"examples/{name}/README.md")
    ]
    assert blocks[0] == blocks[1]
    # besides the two that make an environment
    assert len(re.findall(r"^(?!python3 -m venv|source )\S", blocks[0], re.MULTILINE)) == 3


def test_a_lease_is_for_one(tmp_path: Path) -> None:
    one = Lease(tmp_path / "coordinator.round", "flwr stop")
    one.round_id = "12-0123abcd"
    one.round_id = "1-0123abcd"
    with pytest.raises(RoundBusy, match="another run"):
        Lease(tmp_path / "coordinator.round", "flwr stop")
    one.release()
    assert Lease(tmp_path / "coordinator.round", "flwr stop").round_id == "1-0123abcd"
    with pytest.raises(ConfigError, match="cannot write"):
        Lease(tmp_path / "missing" / "coordinator.round", "flwr stop")
    assert os.stat(tmp_path / "coordinator.round").st_mode & 0o777 == 0o600


def options(**changes: Any) -> TrainingPlan:
    chosen: dict[str, Any] = {"method": "radix", "min_clients": 2, "deadline_s": 60.0}
    given = chosen | {"range_policy": None, "options": None, "wait_s": 0.1} | changes
    return TrainingPlan.of(**given)


def rounds_of(pair: Pair, **changes: Any) -> FrameworkRounds:
    log = logging.getLogger("tests")
    return FrameworkRounds(pair.folder / "coordinator.toml", options(**changes), log, "stop it")


def give(pair: Pair, round_id: str, number: int, value: float) -> None:
    config = ClientConfig.load(pair.folder / f"client-{number}.toml")
    submit(config, {**MODEL, "w": MODEL["w"] + np.float32(value)}, round_id)


@pytest.mark.slow
def test_a_round_of_a_framework_from_its_opening_to_its_result(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = rounds_of(pair)
    round_id = rounds.open(MODEL, 3)
    assert rounds.nobody_submitted(round_id)
    give(pair, round_id, 1, 4.0)
    give(pair, round_id, 2, -1.5)
    assert not rounds.nobody_submitted(round_id)
    with pytest.raises(DuplicateUpload, match="Two nodes may use the same keys: client-2"):
        give(pair, round_id, 2, 7.0)
    with caplog.at_level(logging.INFO, "tests"):
        result = rounds.result(round_id, MODEL)
    assert result["w"].tolist() == [[-1.5, -1.5], [-1.5, -1.5]]
    assert (result["steps"].tolist(), result["w"].dtype) == ([3], np.float32)
    assert "the result of 2 clients, without client-3 (its upload" in caplog.text
    # too few for the next one
    round_id = rounds.open(result, 3)
    with pytest.raises(RoundFailed, match="0 complete uploads"):
        rounds.result(round_id, result)
    # and the one after it is left open
    round_id = rounds.open(result, 3)
    with pytest.raises(RoundBusy, match="or end it with `stop it`"):
        rounds_of(pair).open(MODEL, 3)
    rounds.end()
    status = pair.status(round_id=round_id)
    assert (status["state"], "the run was stopped" in status["reason"]) == ("failed", True)
    # the next caller has the lease, and is killed
    other = rounds_of(pair)
    left_open = other.open(MODEL, 3)
    assert other._lease
    other._lease.release()
    rounds.open(MODEL, 3)
    rounds.end()
    reason = pair.status(round_id=left_open)["reason"]
    assert "a new run has replaced the one that opened it" in reason


@pytest.mark.slow
def test_a_round_of_somebody_else_is_left_alone(pair: Pair) -> None:
    theirs = pair.open(method="radix", dim=3, max_clients=2, deadline_s=60, reset=True)
    rounds = rounds_of(pair)
    with pytest.raises(RoundBusy, match=f"S0: .*{theirs} is open"):
        rounds.open(MODEL, 3)
    rounds.end()
    assert pair.status(round_id=theirs)["state"] == "open"
    pair.caller("coordinator", "s0").ask("abort", round=theirs, reason="the test is over")


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "changed"), [(np.float16, False), (np.float32, True)])
def test_rounds_on_buckets_go_on_from_the_model_that_s0_keeps(
    pair: Pair, dtype: type[np.floating[Any]], changed: bool
) -> None:
    """S0's model is float32, and the clients' is the nearest that float16 can say.

    An optimiser changes the model: S0 takes it, and goes on with its range.
    """
    rounds = rounds_of(pair, method="bucketed", options={"buckets": 16})
    model: Arrays = {"w": np.linspace(-1, 1, 6).astype(dtype)}
    for number in (1, 2):
        round_id = rounds.open(model, 2)
        assert pair.status()["number"] == number
        published = pair.published("client-1", round_id)
        assert published.model is not None and published.policy and published.scale is not None
        assert np.array_equal(published.model.astype(dtype), model["w"])
        assert np.all(published.scale < published.policy.start()) == (number == 2)
        for client in (1, 2):
            config = ClientConfig.load(pair.folder / f"client-{client}.toml")
            # a few of the smallest steps of float16 next to 1
            submit(config, {"w": (model["w"] + dtype(0.002 * client)).astype(dtype)}, round_id)
        result = rounds.result(round_id, model)
        assert result["w"].dtype == dtype
        assert np.abs(result["w"] - model["w"] - 0.002).max() < 0.02
        model = {"w": result["w"] + dtype(changed)}
    rounds.end()


@pytest.mark.slow
def test_servers_that_are_away_are_waited_for(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    rounds = FrameworkRounds(
        pair.away("coordinator"), options(), logging.getLogger("tests"), "stop it"
    )
    with pytest.raises(ServerUnreachable, match=r"within 0.5 s.*\(waited for 0.1 s\)"):
        rounds.open(MODEL, 3)
    assert not rounds.nobody_submitted("1-0123abcd")
    rounds.end()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "median"}, "invalid method: .*; take one of"),
        ({"method": "bucketed", "options": {"trim": 0.1}}, "invalid option of bucketed: trim"),
        ({"min_clients": 1}, "invalid min_clients: 1; give 2"),
        ({"options": {"dim": 5, "max_clients": 2}}, "these options: dim and max_clients"),
        ({"on_failure": "retry"}, "invalid on_failure: .*; take one of stop, skip"),
        ({"wait_s": 0}, "invalid wait_s: 0; give more than 0 seconds"),
        ({"method": "pairwise", "options": {"result_to": "clients"}}, "needs the result here"),
    ],
)
def test_wrong_options_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        options(**changes)


def test_options_are_the_parameters_of_a_round() -> None:
    chosen = options(method="bucketed", on_failure="skip", options={"buckets": 8})
    assert chosen.skips and not options().skips
    params = chosen.params(dim=7, max_clients=4)
    assert (params.dim, params.max_clients, params.min_clients) == (7, 4, 2)
    assert (params.deadline_s, params.form.buckets) == (60.0, 8)
    # though two clients could not take part in such a round
    for method, others in (("krum", {"faulty": 1, "chosen": 3}), ("radix", {"ranks": [5]})):
        assert options(method=method, options=others).params(dim=7, max_clients=5).max_clients == 5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"w": MODEL["w"]}, "the update lacks entries of the model: steps"),
        (MODEL | {"b": MODEL["w"]}, "that the model has not: b"),
        (
            MODEL | {"w": MODEL["w"][0]},
            r"'w' was sent as float32 \(2, 2\) and came back as float32 \(",
        ),
        (MODEL | {"w": MODEL["w"].astype(int)}, r"and came back as int64 \(2, 2\)"),
    ],
)
def test_an_update_of_another_form_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        same_form(given, MODEL)


def test_an_update_gets_the_order_of_the_model() -> None:
    assert list(same_form(dict(reversed(MODEL.items())), MODEL)) == list(MODEL)


def test_a_few_of_many_are_listed() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(list("abcdefg")) == "a, b, c, d, e and 2 more"


@pytest.mark.slow
def test_layers_stay_with_the_nodes_of_a_framework(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    rounds = rounds_of(pair, keep_local=["head*"])
    model = {**MODEL, "head.w": np.full(2, 5.0)}
    with caplog.at_level(logging.INFO, "tests"):
        round_id = rounds.open(model, 2)
    assert "entries are sent" in caplog.text and "local: steps, head.w" in caplog.text
    for number, value in ((1, 4.0), (2, -1.5)):
        config = ClientConfig.load(pair.folder / f"client-{number}.toml")
        mine = {"head.w": np.full(2, float(number)), **MODEL, "w": MODEL["w"] + np.float32(value)}
        # another order at one of them, and a head of its own, which is not sent
        given = mine if number == 1 else dict(reversed(mine.items()))
        submit(config, given, round_id, ["head*"])
        assert local_part(given, ["head*"])["head.w"].tolist() == [number, number]
    result = rounds.result(round_id, model)
    assert result["w"].tolist() == [[-1.5, -1.5], [-1.5, -1.5]]
    # the framework's server keeps the head that it began with
    assert result["head.w"].tolist() == [5, 5]
    rounds.end()
