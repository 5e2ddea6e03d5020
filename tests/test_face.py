"""The public names: found at run time and by pyright; and a checkout without links.

`tests/test_types.py` has mypy look at the same program.
"""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import securemedian
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.optimiser import OPTIMISERS
from securemedian.mpc.rounds.ranges.registry import POLICIES
from tests.daemons import ROOT

LIMIT_S = 280
# Lines that end in "# error" must be errors, all others must not be.
PROGRAM = """\
import numpy as np

import securemedian
from securemedian import *
from securemedian import Adam, Client, Coordinator, FollowRange, Momentum, Radix, RoundParams
from securemedian import Median  # error

Radix(encoding="bfloat16", nonsense=3)  # error
Radix(quantiles=0.5)  # error
RoundParams(Radix(), dim="10", max_clients=5)  # error
Momentum(speed=1)  # error
Pairwise(selection="opened")
params = RoundParams(Radix(midpoint=True), dim=10, max_clients=5)
plain = securemedian.RoundParams(dim=10, max_clients=5)
start = np.zeros(10, np.float32)

with Coordinator.from_config("coordinator.toml") as coordinator:
    round_id = coordinator.open_round(params, start, FollowRange(), optimiser=Adam(rate=0.01))
    coordinator.open_round(params, optimiser="adam")  # error
    number: int = coordinator.status(round_id).number
    coordinator.status(round_id).nonsense  # error
    coordinator.abort_round(round_id)
    coordinator.open(params)  # error

with Client.from_config("client.toml") as client:
    try:
        client.submit({"w": start}, round_id)
        client.submit(start, nonsense=1)  # error
    except (securemedian.RoundFailed, ServerUnreachable) as error:
        print(error.code)
"""
WANTED = {n for n, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# error")}


def test_every_option_of_a_round_has_a_public_class() -> None:
    for cls in (*METHODS.values(), *POLICIES.values(), *OPTIMISERS.values()):
        assert getattr(securemedian, cls.__name__) is cls
    names = vars(securemedian)["__all__"]
    for name in names:
        assert getattr(securemedian, name).__name__ == name
    assert set(dir(securemedian)) > {*names, "__version__"}
    with pytest.raises(AttributeError, match="'securemedian' has no attribute 'Median'"):
        _ = securemedian.Median  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("basedpyright"), reason="basedpyright is not installed")
def test_pyright_knows_the_public_names(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    settings = {"extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    checked = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    found = json.loads(checked.stdout)["generalDiagnostics"]
    errors = {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}
    assert errors == WANTED, checked.stdout


def test_links_that_became_files_are_named_at_the_first_import(tmp_path: Path) -> None:
    package = tmp_path / "securemedian"
    package.mkdir()
    for path in (ROOT / "securemedian").iterdir():
        if path.is_symlink():
            (package / path.name).write_text(os.readlink(path))
        elif path.is_file():
            shutil.copy(path, package)
    for statement in ("import securemedian", "from securemedian import Client"):
        done = subprocess.run(
            [sys.executable, "-c", statement],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        said = done.stderr.strip().rpartition("\n")[2]
        assert (
            said.startswith("ImportError: links that have become text files")
            and str(package) in said
        )
