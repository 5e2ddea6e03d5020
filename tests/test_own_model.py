"""A model of one's own: start model, training loop, results of the round that was asked for."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from securemedian import Client, Coordinator, RoundParams, cli, flatten, unflatten
from securemedian.clients import files, update
from securemedian.clients.config import ClientConfig
from securemedian.clients.connection import Connection
from securemedian.clients.upload import Round
from securemedian.mpc.errors import (
    ChannelTimeout,
    ConfigError,
    DuplicateUpload,
    InputError,
    RoundClosed,
    ServerUnreachable,
)
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from tests.daemons import ROOT, WAIT_S, Pair, in_background, wait_until

PAGE = (ROOT / "docs" / "own-model.md").read_text("utf-8")
PARAMS = RoundParams(Radix(), dim=5, max_clients=2)
START = np.arange(5, dtype=np.float32)


def own_model() -> dict[str, np.ndarray]:
    return {"w": np.zeros((2, 2), np.float32), "steps": np.array([0]), "b": np.zeros(1)}


# Without servers


def test_a_model_that_does_not_fit_is_refused_and_stays_as_it_was() -> None:
    model = own_model()
    current = Round("7-0123abcd", 7, PARAMS, 0, model=np.ones(6, np.float32))
    with pytest.raises(InputError, match="round 7-0123abcd does not fit.* 5 real values.*6"):
        current.load_into(model)
    assert not model["w"].any()
    model["b"].flags.writeable = False
    with pytest.raises(InputError, match="an array that cannot be written to: 'b'"):
        update.load(START, model)
    assert not model["w"].any()
    with pytest.raises(ConfigError, match="publishes no model"):
        Round("7-0123abcd", 7, PARAMS, 0).load_into(model)


def test_batch_norm_goes_through_a_vector_and_back() -> None:
    """PyTorch's own functions leave the running statistics out, without a word."""
    torch = pytest.importorskip("torch")
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).double()
    network[1].num_batches_tracked += 3
    vector, spec = flatten(network)
    parameters = torch.nn.utils.parameters_to_vector(network.parameters()).detach().numpy()
    assert (vector.size, parameters.size) == (32, 24)
    current = Round("1-0123abcd", 1, PARAMS, 0, model=np.arange(32, dtype=np.float32))
    current.load_into(network)
    assert flatten(network.state_dict())[0].tolist() == list(range(32))
    assert network[1].running_var.tolist() == [28, 29, 30, 31]
    assert network[1].num_batches_tracked == 3
    network.load_state_dict(unflatten(vector, spec))
    assert np.array_equal(flatten(network)[0], vector)
    with pytest.raises(InputError, match="the model has 32 real values"):
        update.load(parameters, network)
    tensors = [torch.zeros(2, requires_grad=True)]
    update.load(np.ones(2), tensors)
    assert tensors[0].tolist() == [1, 1]


def write_module(text: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    """Write a module into the current folder, which is `folder` from now on."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"own_{folder.name.replace('-', '_')}"
    Path(f"{name}.py").write_text(text)
    return name


def test_a_start_model_is_built_by_a_function_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write_module(
        "import numpy as np\n"
        "def build():\n"
        "    return {'w': np.random.normal(size=(2, 3)), 'n': np.array([1]), 'b': np.ones(2)}\n",
        monkeypatch,
        tmp_path,
    )
    for file, seed in (("a.npy", "1"), ("b.npy", "1"), ("c.npy", "2")):
        assert cli.main(["init", file, "--from", f"{name}:build", "--seed", seed]) == 0
    assert capsys.readouterr().out.startswith(f"a.npy: 8 values of {name}:build\n")
    a, b, c = (files.read_models(Path(file)) for file in ("a.npy", "b.npy", "c.npy"))
    assert (a.dtype, a.shape, a[6:].tolist()) == (np.float32, (8,), [1, 1])
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (":fails", "fails (ValueError: two lines)"),
        (":words", "returned no model"),
        (":lacks", "has no such function: 'lacks'"),
        (".lacks:build", "cannot import"),
        ("", "write it like package.module:function"),
    ],
)
def test_a_build_that_gives_no_model_is_one_line(
    function: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = write_module(
        "def fails():\n    raise ValueError('two\\nlines')\n\ndef words():\n    return 'words'\n",
        monkeypatch,
        tmp_path,
    )
    assert cli.main(["init", "a.npy", "--from", name + function]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not Path("a.npy").exists()


def test_init_takes_either_a_network_or_a_function(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for network, source in (([], []), (["digits"], ["--from", "a:b"])):
        assert cli.main(["init", *network, str(tmp_path / "a.npy"), *source]) == 2
        assert "either a NETWORK before the file, or --from" in capsys.readouterr().err


def test_an_error_of_a_library_is_one_line_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("of two\nlines")

    monkeypatch.setattr("securemedian.operating.keygen.make", fails)
    assert cli.main(["keygen", "unused", "--clients", "3"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("securemedian: RuntimeError: of two lines (PYTHONDEVMODE=1 ")
    assert error.count("\n") == 1
    # a server's log keeps the traceback
    monkeypatch.setattr("securemedian.servers.config.load", fails)
    with pytest.raises(RuntimeError, match="of two"):
        cli.main(["serve", "unused.toml"])


# With servers


def member(pair: Pair, number: int = 1) -> Client:
    """Return a client that forgets what it made when it is closed."""
    return Client(replace(ClientConfig.load(pair.toml(f"client-{number}")), state_dir=""))


@pytest.mark.slow
def test_the_size_and_the_round_of_a_result_are_those_of_the_coordinator_s_verbs(
    pair: Pair,
    coordinator: Coordinator,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each round's file has its own result; a second round was refused, and got the first one's."""
    config = pair.toml("coordinator")
    opening = ["round", "open", config, "radix", "--max-clients", "2"]
    assert cli.main(opening) == 2
    assert "S0 keeps no model: dim is unknown" in capsys.readouterr().err
    files.write(tmp_path / "start.npy", START)
    ids = []
    for number in (1, 2):
        model = ["--model", str(tmp_path / "start.npy")] if number == 1 else []
        assert cli.main([*opening, *model]) == 0
        shown = capsys.readouterr()
        ids.append(shown.out.strip())
        assert "warning: the result of at most 2 clients" in shown.err
        assert coordinator.dim() == 5
        asked = ["round", "result", config, str(tmp_path / f"{number}.npy")]
        waiting = in_background(partial(cli.main, asked))
        for client in (1, 2):
            with member(pair, client) as one:
                one.submit(np.full(5, number, np.float32))
        waiting()
        assert f"result of round {ids[-1]} in " in capsys.readouterr().out
        assert files.read_models(tmp_path / f"{number}.npy").tolist() == [number] * 5
    # the first one again, by its id, and what is said where the latest one is meant
    assert cli.main(["round", "result", config, str(tmp_path / "3.npy"), "--round", ids[0]]) == 0
    assert files.read_models(tmp_path / "3.npy").tolist() == [1] * 5
    assert cli.main([*opening, "--dim", "6"]) == 2
    capsys.readouterr()
    assert cli.main(["round", "result", config, str(tmp_path / "4.npy")]) == 0
    assert f"result of round {ids[1]} in " in capsys.readouterr().out
    # a failed round has no result, and least of all an older one's
    assert cli.main(opening) == 0
    failed = capsys.readouterr().out.strip()
    coordinator.abort_round(failed, "wrong data")
    assert cli.main(["round", "result", config, str(tmp_path / "5.npy")]) == 2
    assert f"round {failed} has no result: S0: aborted" in capsys.readouterr().err
    assert not (tmp_path / "5.npy").exists()
    # five clients are not warned of
    assert cli.main([*opening[:-1], "5"]) == 0
    assert "warn" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_is_downloaded_only_where_it_is_needed(
    pair: Pair, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give no model to a client that has trained already: without buckets it asks for none."""
    asked: list[str] = []
    real = Connection.ask

    def ask(self: Connection, op: str, *rest: Any, **more: Any) -> Any:
        asked.append(op)
        return real(self, op, *rest, **more)

    monkeypatch.setattr(Connection, "ask", ask)
    for method, needed in ((Radix(), 0), (Bucketed(), 1)):
        params = RoundParams(method, dim=5, max_clients=2)
        round_id = coordinator.open_round(params, START, reset=True)
        asked.clear()
        with Client.from_config(pair.toml("client-1")) as client:
            client.submit(START + 1, round_id)
            assert asked.count("model") == needed
            pair.submit("client-2", START + 2)
            # decoded against the run that the round started from
            assert (client.result(round_id) > START).all()
            assert asked.count("model") == 1


@pytest.mark.slow
def test_a_client_restarted_after_it_submitted_is_told(
    pair: Pair, coordinator: Coordinator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    round_id = coordinator.open_round(PARAMS, START)
    with member(pair) as before:
        assert not before.wait_for_round().submitted
        before.submit(own_model())
    with member(pair) as restarted, member(pair, 2) as other:
        current = restarted.wait_for_round()
        assert (current.round_id, current.submitted) == (round_id, True)
        with pytest.raises(DuplicateUpload, match="stored already: .*; wait for its result"):
            restarted.submit(own_model())
        with pytest.raises(ChannelTimeout, match="not published"):
            restarted.result(timeout_s=0.1)
        assert not other.wait_for_round().submitted
        files.write(tmp_path / "update.npz", own_model())
        command = ["submit", pair.toml("client-1"), str(tmp_path / "update.npz")]
        submitting = in_background(
            lambda: cli.main([*command, "--result", str(tmp_path / "result.npz")])
        )
        already = f"round {round_id} has an upload of this client already"
        wait_until(lambda: already in capsys.readouterr().out)
        other.submit(START + 10)
        assert restarted.result().tolist() == [0] * 5
        submitting()
    result = files.read(tmp_path / "result.npz")
    assert isinstance(result, dict)
    assert {name: entry.shape for name, entry in result.items()} == {
        name: entry.shape for name, entry in own_model().items()
    }
    with member(pair) as later, member(pair, 3) as absent:
        # the round is over, and nothing but the servers knows of the upload
        assert later.result().tolist() == [0] * 5
        with pytest.raises(InputError, match="before a submit"):
            absent.result()
        assert absent.result(round_id).tolist() == [0] * 5


@pytest.mark.slow
def test_results_are_those_of_the_round_asked_for(
    pair: Pair, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with member(pair) as one, member(pair, 2) as two:
        ids = []
        for number in (1, 2):
            ids.append(coordinator.open_round(PARAMS, START))
            for client in (one, two):
                client.submit({"w": np.full(5, number, np.float32)}, ids[-1])
            assert one.result()["w"].tolist() == [number] * 5
        for number in (1, 2):
            assert two.result(ids[number - 1])["w"].tolist() == [number] * 5
        with pytest.raises(RoundClosed, match=f"the latest round is {ids[1]}"):
            one.submit(START, ids[0])
        with pytest.raises(RoundClosed, match=f"round {ids[1]} takes no uploads: it is published"):
            member(pair, 3).submit(START, ids[1])
        # an upload that reaches S0 alone: the round's result is still to come, not the last one's
        ids.append(coordinator.open_round(PARAMS, START))
        ask = one.servers[1].ask

        def lost(op: str, *rest: Any, **named: Any) -> Any:
            if op == "upload":
                raise ServerUnreachable("cut off")
            return ask(op, *rest, **named)

        monkeypatch.setattr(one.servers[1], "ask", lost)
        with pytest.raises(ServerUnreachable, match="cut off"):
            one.submit(START, ids[2])
        # not the last round's, and not before this one's upload is with both
        with pytest.raises(ServerUnreachable, match="cut off"):
            one.result(timeout_s=0.1)
        with pytest.raises(ChannelTimeout, match=f"round {ids[2]} was not published"):
            one.result(ids[2], timeout_s=0.1)


@pytest.mark.slow
def test_fit_is_the_whole_loop(pair: Pair, coordinator: Coordinator) -> None:
    """Every round trains from the result of the one before, also where only clients know it."""
    method = Pairwise(ring_bits=32, fraction_bits=8, result_to="clients")
    params = RoundParams(method, dim=5, max_clients=2)
    models, said = {1: own_model(), 2: own_model()}, list[str]()
    starts: dict[int, list[list[float]]] = {1: [], 2: []}

    def fit(number: int) -> None:
        def train(model: dict[str, np.ndarray]) -> None:
            starts[number].append(flatten(model)[0].tolist())
            model["w"] += number
            model["b"] += number
            model["steps"] += 1

        with member(pair, number) as client:
            report = said.append if number == 1 else lambda _: None
            done = client.fit(models[number], train, rounds=2, timeout_s=WAIT_S, report=report)
            assert done == 2

    waiting = [in_background(partial(fit, number)) for number in (1, 2)]
    for start, outcome in ((START, "published"), (None, "published")):
        round_id = coordinator.open_round(params, start)
        pair.wait(outcome)
    for join in waiting:
        join()
    # the lower median of two: what client 1 sent
    assert starts[1] == starts[2] == [START.tolist(), (START + 1).tolist()]
    for model in models.values():
        assert flatten(model)[0].tolist() == (START + 2).tolist()
        assert model["steps"].tolist() == [2]
    # the next round may be open before it is waited for
    assert [line for line in said if not line.startswith("waiting for ")][-3:] == [
        f"round {round_id}: training",
        f"round {round_id}: submitted, waiting for the result",
        f"round {round_id}: the result is loaded",
    ]


@pytest.mark.slow
def test_fit_goes_on_after_a_failed_round_and_does_not_train_twice(
    pair: Pair, coordinator: Coordinator
) -> None:
    model, said, trained = own_model(), [], []
    failed = coordinator.open_round(PARAMS, START)

    def train(model: dict[str, np.ndarray]) -> None:
        trained.append(flatten(model)[0].tolist())
        model["w"] += 100

    def report(text: str) -> None:
        said.append(text)
        if text.endswith("submitted, waiting for the result"):
            coordinator.abort_round(coordinator.status().round, "wrong data")

    with member(pair) as client:
        assert client.fit(model, train, timeout_s=0.2, report=report) == 0
        said_after = said[said.index(f"round {failed}: submitted, waiting for the result") + 1]
        reason = "S0: aborted by coordinator: wrong data"
        assert said_after == (f"going on to the next round: round {failed} has no result: {reason}")
        assert said[-1].endswith(
            "no new round was opened for this client within 0.2 s: the training ends after 0 rounds"
        )
        assert flatten(model)[0].tolist() == START.tolist()
        with pytest.raises(ChannelTimeout):
            client.fit(model, train, rounds=1, timeout_s=0.2, report=said.append)
    # the next one holds an upload of this client from before it was restarted
    coordinator.open_round(PARAMS, START)
    with member(pair) as before, member(pair, 2) as other:
        before.submit(START + 7)
        other.submit(START + 8)
        pair.wait("published")
    coordinator.open_round(PARAMS, START)
    with member(pair) as before, member(pair) as client:
        before.submit(START + 7)

        def second(text: str) -> None:
            if "stored already" in text:
                with member(pair, 2) as other:
                    other.submit(START + 8)

        assert client.fit(model, train, rounds=1, timeout_s=WAIT_S, report=second) == 1
    assert trained == [START.tolist()]
    assert flatten(model)[0].tolist() == (START + 7).tolist()


@pytest.mark.slow
def test_a_model_of_another_size_is_told_before_the_training(
    pair: Pair, coordinator: Coordinator
) -> None:
    coordinator.open_round(PARAMS, START)
    with member(pair) as client, pytest.raises(InputError, match="6 real values.*5"):
        client.fit([np.zeros(6)], lambda _: pytest.fail("trained"), report=lambda _: None)


@pytest.mark.slow
def test_a_training_client_restarted_after_it_submitted_waits(
    pair: Pair, coordinator: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the steps of `securemedian train`."""
    worker = pytest.importorskip("securemedian.laboratory.worker")
    coordinator.open_round(PARAMS, START)
    with member(pair) as before:
        before.submit(START)
    with member(pair) as client:
        # it is not asked for an update
        worker.run(client, worker.OfModels(SimpleNamespace()), rounds=1)
    assert capsys.readouterr().out == "round 1: update was submitted before\n"


# The page


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


# a dozen programs, each of which imports PyTorch, take long on a machine that is busy
@pytest.mark.release
@pytest.mark.timeout(900)
def test_the_page_runs_as_it_stands(pair: Pair, coordinator: Coordinator) -> None:
    """Its servers are those of these tests; its files and all its other commands run as printed."""
    torch = pytest.importorskip("torch")
    folder = pair.folder.parent
    for code in blocks("python"):
        (folder / code.splitlines()[0].removeprefix("# ")).write_text(code)
    tools = folder / "bin"
    tools.mkdir()
    for name, arguments in (("securemedian", "-m securemedian"), ("python", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (tools / name).chmod(0o755)
    servers, *commands = blocks("bash")
    assert servers.startswith("# servers\n")
    # the loop of one's own, where client 1 was restarted after client 2
    commands.append(
        "securemedian round open keys/coordinator.toml bucketed --max-clients 2\n"
        "python loop.py keys/client-1.toml & python loop.py keys/client-2.toml\nwait\n"
    )
    script = subprocess.Popen(
        ["bash", "-euxc", "".join(commands)],
        cwd=folder,
        env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = script.communicate(timeout=840)
    finally:
        if script.poll() is None:
            os.killpg(script.pid, signal.SIGKILL)
            script.wait()
    assert script.returncode == 0, output
    start, form = files.read_start(folder / "start.npz")
    assert start.shape == (174,) and form and form.entries[0].name == "0.weight"
    assert output.count("the result is loaded") == 6, output
    assert output.count("submitted to round 3-") == 2, output
    second = files.read_models(folder / "second.npy")
    assert not np.array_equal(second, files.read_models(folder / "first.npy"))
    for number in (1, 2, 3):
        state = torch.load(folder / f"trained-{number}.pt", weights_only=True)
        assert np.array_equal(flatten(state)[0].astype(np.float32), second)


# Mistakes in notebooks


@pytest.mark.slow
def test_a_cell_that_runs_twice_is_told_so(pair: Pair) -> None:
    first = Client.from_config(pair.toml("client-3"))
    with pytest.raises(ConfigError, match=r"another Client of this process.*close\(\) that one"):
        Client.from_config(pair.toml("client-3"))
    first.close()
    second = Client.from_config(pair.toml("client-3"))
    # the first one's end is not the second one's
    first.close()
    with pytest.raises(ConfigError, match="another Client of this process"):
        Client.from_config(pair.toml("client-3"))
    # one that nobody holds any more has ended
    del second
    with Client.from_config(pair.toml("client-3")) as third:
        assert third.name() == "client-3"


@pytest.mark.slow
def test_a_call_after_close_says_so(pair: Pair, coordinator: Coordinator) -> None:
    round_id = coordinator.open_round(PARAMS, START)
    client = member(pair, 1)
    client.wait_for_round()
    client.close()
    client.close()
    calls: list[Any] = [
        client.name,
        client.wait_for_round,
        client.check_round,
        client.attend,
        partial(client.submit, START),
        partial(client.submit, START, round_id),
        partial(client.result, round_id),
        partial(client.receipt, round_id),
        partial(client.fit, own_model(), print, rounds=1),
        partial(client.store, {}, {}),
        client.status,
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="closed here, .*: client-1;"):
            call()
    assert pair.status()["clients"]["client-1"] == "none"
    other = Coordinator.from_config(pair.toml("coordinator"))
    other.close()
    for call in (other.dim, other.status, partial(other.open_round, PARAMS)):
        with pytest.raises(ConfigError, match="closed here, by"):
            call()
