"""docs/extending.md: its commands run as they stand, with the files in examples/extensions."""

import json
import re
import shlex
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from securemedian import cli
from securemedian.laboratory.attacks import ATTACKS
from securemedian.laboratory.data import SOURCES
from securemedian.laboratory.experiments.aggregation import SECURE
from securemedian.laboratory.models import MODELS
from securemedian.mpc.rounds.aggregators import AGGREGATORS
from securemedian.mpc.rounds.methods.registry import METHODS
from tests.conftest import needs

needs("torch", "sklearn", "matplotlib")

pytestmark = pytest.mark.release

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "extending.md").read_text("utf-8")
EXAMPLES = re.findall(r"^    securemedian (.*--with (examples/extensions/\w+\.py).*)", PAGE, re.M)


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Restore the registries afterwards."""
    kept: list[tuple[MutableMapping[str, Any], dict[str, Any]]] = [
        (registry, dict(registry))
        for registry in (ATTACKS, SOURCES, MODELS, AGGREGATORS, SECURE, METHODS)
    ]
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)


def test_there_is_an_example_of_each_kind() -> None:
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "examples/extensions").glob("*.py")}
    assert {name for _, name in EXAMPLES} == files and len(files) == 4


@pytest.mark.parametrize(("command", "name"), EXAMPLES, ids=[name for _, name in EXAMPLES])
def test_an_example_runs(
    command: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(shlex.split(command.replace(name, str(ROOT / name)))) == 0
    experiment = shlex.split(command)[1]
    (path,) = Path("results", "experiments").glob(f"{experiment}-*/{experiment}-*.json")
    results = json.loads(path.read_text())["results"]
    assert all(len(one["accuracy"][0]) == 3 for one in results)
    # it has learnt something
    assert all(one["final"]["mean"] > 20 for one in results), capsys.readouterr().out
