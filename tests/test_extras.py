"""Check what works without the extras, and that a verb that needs one says so in one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from securemedian.operating import keygen
from tests.daemons import ROOT

pytestmark = pytest.mark.release

HIDDEN = {
    "train": ["torch", "sklearn"],
    "bench": ["matplotlib"],
    "metrics": ["prometheus_client", "starlette", "uvicorn"],
    "dashboard": ["starlette", "uvicorn"],
    "ray": ["ray"],
}
# verbs and the status and last line that each must end with
PROGRAM = """
import contextlib, io, json, sys
hidden, commands = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(hidden))
from securemedian import cli
ends = []
for command in commands:
    with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(errors):
        status = cli.main(command.split())
    ends.append([status, errors.getvalue()])
sys.stdout.write(json.dumps(ends))
"""
MODULES = """
import importlib, json, pkgutil, sys
sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])))
import securemedian
for floor in ("mpc", "common", "servers", "clients", "coordinator", "operating", "cli"):
    package = importlib.import_module(f"securemedian.{floor}")
    for module in pkgutil.walk_packages(getattr(package, "__path__", []), f"{package.__name__}."):
        importlib.import_module(module.name)
"""


def without(extras: list[str], *commands: str) -> list[tuple[int, str]]:
    """Return status and output of commands of one process in which extras are not installed."""
    hidden = [name for extra in extras for name in HIDDEN[extra]]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([hidden, commands])],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [(status, said) for status, said in json.loads(done.stdout)]


def test_the_service_is_imported_without_any_extra() -> None:
    hidden = [name for names in HIDDEN.values() for name in names]
    done = subprocess.run(
        [sys.executable, "-c", MODULES, json.dumps(hidden)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("extra", "commands"),
    [
        (
            "train",
            [
                "init mlp {folder}/start.npy",
                "train {folder}/client-1.toml",
                "demo --rounds 1",
                "experiment fig4 --out {folder}",
            ],
        ),
        ("dashboard", [f"dashboard {ROOT}/docs/samples/coordinator.toml"]),
        (
            "bench",
            [
                "bench fig3 --out {folder}",
                "bench clients --out {folder} mean",
                "plan --dim 10 --clients 3,4 --plot {folder}/cost.png mean",
                "experiment fig4 --out {folder}",
            ],
        ),
    ],
)
def test_a_verb_names_the_extra_it_lacks_in_one_line(
    extra: str, commands: list[str], tmp_path: Path
) -> None:
    for status, said in without([extra], *(line.format(folder=tmp_path) for line in commands)):
        assert status == 2
        assert said.startswith("securemedian: ") and said.count("\n") == 1
        assert f"pip install '.[{extra}]' in a clone" in said
    assert list(tmp_path.iterdir()) == []


def test_what_needs_no_extra_works_without_it() -> None:
    for status, said in without([*HIDDEN], "experiment --list", "plan --dim 10 --clients 3 mean"):
        assert status == 0, said


def test_a_server_on_ray_names_the_extra_it_lacks(tmp_path: Path) -> None:
    keygen.make(tmp_path, ["client-1", "client-2"], keygen.network("127.0.0.1", "127.0.0.1", None))
    file = tmp_path / "s0.toml"
    file.write_text(file.read_text() + '\n[engine]\nkind = "ray"\n')
    ((status, said),) = without(["ray"], f"serve {file}")
    assert status == 2
    assert "[engine] kind = \"ray\" needs Ray: pip install '.[ray]' in a clone" in said


@pytest.mark.parametrize(
    ("plug_in", "framework", "name"),
    [("flower", "flwr", "Flower"), ("nvflare", "nvflare", "NVFlare")],
)
def test_a_plug_in_names_the_extra_it_lacks(plug_in: str, framework: str, name: str) -> None:
    program = f"import sys; sys.modules[{framework!r}] = None; import securemedian.{plug_in}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    said = done.stderr.strip().rpartition("\n")[2]
    assert said == (
        f"ImportError: {name} is missing: securemedian.{plug_in} needs it; "
        f"run pip install '.[{plug_in}]' in a clone"
    )
