"""The command itself: quick, without torch, and kind about mistakes; and its verbs' files."""

import argparse
import json
import os
import re
import subprocess
import sys
import warnings
from contextlib import ExitStack, nullcontext
from functools import partial
from importlib import import_module
from math import ceil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from securemedian import cli
from securemedian.clients import client, files
from securemedian.clients.connection import Limit
from securemedian.clients.member import Member
from securemedian.clients.update import flatten, to_bfloat16, unflatten
from securemedian.clients.upload import RangeWarning, Round
from securemedian.common import terminal
from securemedian.common.receipts import Receipt, Record
from securemedian.common.status import by_reason
from securemedian.coordinator.coordinator import Coordinator
from securemedian.laboratory import report
from securemedian.mpc.errors import ConfigError, InputError, RoundFailed
from securemedian.mpc.options import options_of
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.optimiser import Adam, Momentum
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.uniform import MeanRange

# modules that make a start slow, or that only some installations have
HEAVY = {"numpy", "numba", "zmq", "cryptography", "nacl", "msgpack", "rich", "asyncio"}
EXTRAS = {"torch", "sklearn"}


def test_help_and_errors_of_usage_import_nothing_heavy() -> None:
    check = f"""
import sys
from securemedian import cli
for arguments in (["--help"], ["--version"], [], ["nonsense"], ["--nonsense"]):
    try:
        cli.main(arguments)
    except SystemExit:
        continue
    raise AssertionError(arguments)
sys.exit(" ".join({HEAVY | EXTRAS} & set(sys.modules)) or 0)
"""
    done = run_python(check)
    assert done.returncode == 0, done.stderr


def run_python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_the_verbs_that_are_listed_are_those_that_modules_add() -> None:
    for modules in cli.VERBS.values():
        for module, verbs in modules.items():
            given = argparse.ArgumentParser().add_subparsers()
            import_module(module).add_verbs(given)
            assert list(given.choices) == list(verbs), module


@pytest.mark.parametrize("kind", [RoundFailed, ValueError])
def test_an_error_commands_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: type[Exception]
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise kind("S0: aborted: \x1b[2J\x1b]0;owned\x07\nsecuremedian: submitted to round 9-0")

    monkeypatch.setattr("securemedian.operating.keygen.make", failing)
    cli.main(["keygen", "unused", "--clients", "3"])
    said = capsys.readouterr().err
    assert said.endswith("\n") and said[:-1].isprintable() and r"\x1b[2J" in said


@pytest.mark.parametrize("arguments", [["--help"], ["receipt", "show", "RECEIPT"]])
def test_a_reader_that_leaves_is_no_error(tmp_path: Path, arguments: list[str]) -> None:
    """`| head` was answered with BrokenPipeError, twice."""
    record = Record(
        "a", 1, "b", "c", 1, {"dim": 3}, [f"key {i}" for i in range(9999)], {}, b"e", b"f"
    )
    file = tmp_path / "receipt.json"
    file.write_text(Receipt(record.encode()).to_json())
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "securemedian", *arguments]
    done = subprocess.run(
        [str(file) if each == "RECEIPT" else each for each in command],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        # printed when the buffer is full, or at the end
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    os.close(writer)
    assert done.stderr == "" and done.returncode in (0, 141)


@pytest.mark.parametrize(("looks", "said"), [([7], []), ([None, None, 7], ["waiting for a thing"])])
def test_waiting_is_said_once_and_only_by_who_waits(
    looks: list[Any], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that found an open round was told to wait for one."""
    monkeypatch.setattr(terminal, "AFTER_S", 0.0)
    told: list[str] = []
    config = SimpleNamespace(poll_interval_s=0.0)
    service: Any = SimpleNamespace(
        report=told.append, config=config, meanwhile=lambda: None, check_open=lambda: None
    )
    found = Member.wait(service, 0, partial(looks.pop, 0), Limit(60.0), "none", "a thing")
    assert (found, [line.partition(", until")[0] for line in told]) == (7, said)


def test_who_is_left_out_is_said_by_reason() -> None:
    """It said "client-2, client-3: its dealing"."""
    out = {"b": "its dealing is late", "c": "its dealing is late", "a": "it failed"}
    assert by_reason(out) == ["a: it failed", "each of b, c: its dealing is late"]


def test_one_word_for_one_thing_in_the_usage_lines() -> None:
    """There were CONFIG and config, folder and DIR, file and FILE."""
    for prog, text in cli.helps().items():
        usage = text.partition("\n\n")[0].split()
        assert not {"config", "file", "folder", "directory", "FOLDER"} & set(usage), prog


def test_arrays_and_named_arrays_go_through_files(tmp_path: Path) -> None:
    for name, model in (
        ("a.npy", np.arange(3.0)),
        ("a.npz", {"x": np.ones((2, 2), np.float32), "y": np.zeros(1)}),
        ("noending", np.ones(2)),
        (
            "a.safetensors",
            {"x": np.ones((2, 2), np.float32), "n": np.array(3), "b": to_bfloat16(np.ones((1, 2)))},
        ),
        ("b.npz", {"b": to_bfloat16(np.ones((1, 2)))}),
    ):
        files.write(tmp_path / name, model)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        back = files.read(tmp_path / name)
        assert isinstance(back, dict) == isinstance(model, dict)
        np.testing.assert_equal(back, model)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("hello")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.save(tmp_path / "pickle.npy", np.array([{}], object), allow_pickle=True)
    for name in ("text.npy", "empty.npy", "pickle.npy", "none.npy"):
        with pytest.raises(InputError, match=name):
            files.read(tmp_path / name)
    files.write(tmp_path / "matrix.npy", np.ones((1, 2)))
    with pytest.raises(InputError, match="flat vector"):
        files.read_models(tmp_path / "matrix.npy")
    with pytest.raises(ConfigError, match="cannot write"):
        files.write(tmp_path / "no" / "a.npy", np.ones(2))


def test_safetensors_are_those_of_others(tmp_path: Path) -> None:
    """The files of the format's own package are read, and it reads ours."""
    safetensors = pytest.importorskip("safetensors.numpy")
    arrays = {
        "z": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.array(2.5, np.float16),
        "n": np.array([True, False]),
        "empty": np.zeros((0, 3)),
        "counts": np.array([1, -2], np.int64),
    }
    safetensors.save_file(arrays, tmp_path / "theirs.safetensors", {"format": "np"})
    np.testing.assert_equal(files.read(tmp_path / "theirs.safetensors"), arrays)
    files.write(tmp_path / "ours.safetensors", arrays)
    np.testing.assert_equal(safetensors.load_file(tmp_path / "ours.safetensors"), arrays)
    torch = pytest.importorskip("torch")
    saved = pytest.importorskip("safetensors.torch")
    state = {"w": torch.tensor([[1.0, -2.5]]).bfloat16(), "b": torch.ones(1)}
    saved.save_file(state, tmp_path / "torch.safetensors")
    vector, spec = flatten(files.read(tmp_path / "torch.safetensors"))
    assert sorted(vector.tolist()) == [-2.5, 1, 1]
    assert spec.form and {entry.dtype for entry in spec.form.entries} == {"bfloat16", "float32"}
    files.write(tmp_path / "back.safetensors", unflatten(vector * 2, spec))
    back = saved.load_file(tmp_path / "back.safetensors")
    assert back["w"].dtype == torch.bfloat16 and back["w"].tolist() == [[2, -5]]
    eight = {"w": torch.ones(2).to(torch.float8_e4m3fn)}
    saved.save_file(eight, tmp_path / "eight.safetensors")
    with pytest.raises(InputError, match="'w' is 'F8_E4M3'; save"):
        files.read(tmp_path / "eight.safetensors")


def test_damaged_safetensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    files.write(path, {"w": np.ones(4, np.float32), "b": np.zeros(2)})
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])

    def with_header(text: bytes) -> bytes:
        return len(text).to_bytes(8, "little") + text + whole[8 + length :]

    def changed(**about: Any) -> bytes:
        return with_header(json.dumps(header | {"w": header["w"] | about}).encode())

    for data in (
        b"",
        whole[:7],
        whole[:20],
        whole[:-1],
        whole + b"x",
        (1 << 62).to_bytes(8, "little") + whole[8:],
        with_header(b"[]"),
        with_header(b"[" * 100_000),
        with_header(b'{"w": 3}'),
        with_header(b"\xff"),
        changed(data_offsets=[0, 8]),
        changed(data_offsets=[8, 24]),
        changed(data_offsets="ab"),
        changed(shape=[5]),
        changed(shape=[-4]),
        changed(shape=[2.0, 2]),
        changed(dtype=["F32"]),
    ):
        path.write_bytes(data)
        with pytest.raises(InputError, match="not a .safetensors file, or a damaged one"):
            files.read(path)
    path.unlink()
    with pytest.raises(InputError, match="cannot read .*No such file"):
        files.read(path)


def test_files_of_torch_and_bfloat16_in_npz_say_what_to_do(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    with pytest.raises(InputError, match="a file of torch.save.*as .safetensors"):
        files.read(tmp_path / "model.pt")
    np.savez(tmp_path / "half.npz", w=np.ones(2, ml_dtypes.bfloat16))
    with pytest.raises(InputError, match=r"'w' is \|V2.*save it as float32"):
        flatten(files.read(tmp_path / "half.npz"))


def test_a_link_is_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    good, bad = tmp_path / "good.npy", tmp_path / "bad.npy"
    good.symlink_to(tmp_path / "there" / "result.npy")
    bad.symlink_to(tmp_path / "gone" / "result.npy")
    files.write(good, np.ones(2))
    assert np.load(tmp_path / "there" / "result.npy").shape == (2,)
    # nor below a file, where a folder cannot be made
    for path in (bad, good / "result.npy"):
        for check in (files.check_writable, report.check_writable):
            with pytest.raises(ConfigError, match=f"cannot write .*{path.name}"):
                check(path)
    assert report.check_writable(tmp_path / "new" / "result.json").parent.is_dir()
    with pytest.raises(InputError, match="cannot read the file: .*bad.npy .No such file"):
        files.read(bad)


def test_a_start_model_has_finite_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """1e39 became infinite with a warning of numpy's, and NaN was found by S0."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for number, said in (("1e39", "1e+39"), ("np.nan", "nan"), ("-np.inf", "-inf")):
        name = f"start_{said.strip('-').replace('+', '')}"
        Path(f"{name}.py").write_text(
            "import numpy as np\ndef build():\n"
            f"    return {{'a': np.ones(2), 'b': np.array([{number}])}}\n"
        )
        assert cli.main(["init", "start.npy", "--from", f"{name}:build"]) == 2
        assert f"not finite in float32: the first is {said} at 'b'" in capsys.readouterr().err
        assert not Path("start.npy").exists()
    np.save("wide.npy", np.array([1.0, 1e39]))
    with pytest.raises(InputError, match=r"1e\+39 at index 1"):
        files.read_start(Path("wide.npy"))


def test_a_flag_of_another_method_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refuse it before anything is read or asked of a server, which would refuse it, too."""
    opening = ["round", "open", "unused.toml", "--max-clients", "3", "--dim", "5"]
    with pytest.raises(SystemExit):
        cli.main([*opening, "radix", "--schedule", "bisect"])
    error = capsys.readouterr().err
    assert "usage: securemedian round open .. radix" in error
    assert error.endswith("unrecognized arguments: --schedule bisect\n")
    # and one of the file's
    (tmp_path / "round.toml").write_text('[round]\nschedule = "bisect"\n')
    assert cli.main([*opening, "--params", str(tmp_path / "round.toml"), "radix"]) == 2
    error = capsys.readouterr().err
    assert "invalid option of radix: schedule, which belongs to bucketed" in error
    assert error.count("\n") == 1


def test_a_round_can_be_a_file_which_flags_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    class Fake(ExitStack):
        def open_round(self, **named: Any) -> str:
            order = ("params", "model", "range_policy", "reset", "optimiser")
            asked[:] = [*(named.pop(name) for name in order), named]
            return "1-abc"

    monkeypatch.setattr(Coordinator, "from_config", lambda *_, **__: Fake())
    files.write(tmp_path / "start.npy", np.ones(5, np.float32))
    (tmp_path / "round.toml").write_text(
        'model = "start.npy"\nparticipants = ["a", "b"]\n'
        '[round]\nmethod = "radix"\nmax_clients = 9\nring_bits = 16\n'
        '[range]\npolicy = "mean"\n[optimiser]\noptimiser = "adam"\nrate = 0.5\n'
    )
    file = ["round", "open", "unused.toml", "--params", str(tmp_path / "round.toml")]
    assert cli.main(file) == 0
    named = {"keep_range": False, "participants": ["a", "b"], "release": False, "form": None}
    params = RoundParams(Radix(ring_bits=16), dim=5, max_clients=9)
    assert asked[0] == params and np.array_equal(asked[1], np.ones(5))
    assert asked[2:] == [MeanRange(), False, Adam(rate=0.5), named]
    flags = "--min-clients 3 --optimiser momentum --participants c,d,e radix --quantiles 0.5"
    assert cli.main([*file, *flags.split(), "--max-clients", "8", "--reset", "--release"]) == 0
    assert asked[0] == RoundParams(
        Radix(ring_bits=16, quantiles=[0.5]), dim=5, max_clients=8, min_clients=3
    )
    named = {"keep_range": False, "participants": ["c", "d", "e"], "release": True, "form": None}
    assert asked[2:] == [MeanRange(), True, Momentum(), named]
    # without METHOD, and what stands before it is not undone
    assert cli.main(["round", "open", "unused.toml", "--max-clients", "8", "--dim", "4"]) == 0
    assert asked[0] == RoundParams(Bucketed(), dim=4, max_clients=8)
    capsys.readouterr()
    (tmp_path / "round.toml").write_text("rounds = 3\n")
    assert cli.main(file) == 2
    assert "round.toml: unknown rounds; known are model," in capsys.readouterr().err


def test_help_of_a_method_shows_its_options_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    pages = cli.helps()
    for name, method in METHODS.items():
        shown = re.findall(r"^  --([\w-]+)", pages[f"securemedian round open {name}"], re.M)
        assert shown == [option.replace("_", "-") for option in options_of(method)]
        assert not set(shown) & set(
            re.findall(r"^  --([\w-]+)", pages["securemedian round open"], re.M)
        )


def test_no_help_is_longer_than_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for page, text in cli.helps().items():
        lines = text.splitlines()
        assert sum(ceil(len(line) / 80) or 1 for line in lines) <= 60, page
        assert max(map(len, lines)) <= 80, page


def test_submit_says_what_is_odd_about_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Beyond(client.Client):
        def __init__(self) -> None:
            pass

        def close(self) -> None:
            pass

        def wait_for_round(self, timeout_s: float | None = None) -> Round:
            return Round("1-abc", 1, RoundParams(Pairwise(), dim=3, max_clients=3), 0)

        def submit(self, update: object, *_: object, **__: object) -> None:
            warnings.warn("2 of the 3 values", RangeWarning, stacklevel=2)

        def attend(self, *_: object) -> None:
            pass

    monkeypatch.setattr(client.Client, "from_config", lambda _, cohort, **options: Beyond())
    files.write(tmp_path / "update.npy", np.zeros(3, np.float32))
    assert cli.main(["submit", "client.toml", str(tmp_path / "update.npy")]) == 0
    out, error = capsys.readouterr()
    assert "submitted to round 1-abc" in out
    assert error.endswith("securemedian: warning: 2 of the 3 values\n")


@pytest.mark.parametrize("wants", [[], ["--receipt", "receipt.json"]])
def test_who_interrupts_a_wait_is_told_how_to_go_on(
    wants: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same command again would wait for the next round."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    current = Round("1-abc", 1, RoundParams(Pairwise(), dim=3, max_clients=3), 0)
    made = nullcontext(
        SimpleNamespace(
            wait_for_round=lambda: current,
            submit=lambda *_, **__: None,
            attend=interrupted,
            result=interrupted,
        )
    )
    monkeypatch.setattr(client.Client, "from_config", lambda *_, **__: made)
    monkeypatch.chdir(tmp_path)
    files.write(tmp_path / "update.npy", np.zeros(3, np.float32))
    assert cli.main(["submit", "client.toml", "update.npy", *wants]) == 130
    said = "securemedian: run this again with --round 1-abc to go on with that round\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_what_is_closed_is_opened_to_nowhere(closed: str) -> None:
    """Start as cron and some daemons do: a file got the number of the standard output."""
    script = (
        "import os, sys; from securemedian import cli; "
        "code = cli.main(['receipt', 'show', 'nothing']); "
        "assert sorted(map(int, os.listdir('/proc/self/fd')))[:3] == [0, 1, 2]; "
        "print(1); print(2, file=sys.stderr); sys.exit(10 * code)"
    )
    ended = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, script],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 20 and "Traceback" not in ended.stderr


def test_a_name_that_the_output_cannot_show_is_written_as_its_code() -> None:
    """With a terminal of another encoding `doctor` ended with UnicodeEncodeError."""
    ended = subprocess.run(
        [sys.executable, "-m", "securemedian", "doctor", "klinik-s\u00fcd.toml"],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONIOENCODING": "ascii:strict"},
    )
    assert (
        ended.returncode == 2
        and r"cannot read the configuration: klinik-s\xfcd.toml" in ended.stdout
    )
