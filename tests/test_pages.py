"""The pages: every command that they print is one, and all that their Python imports exists."""

import argparse
import ast
import contextlib
import importlib
import io
import json
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from securemedian import cli
from securemedian.common.policy import BOUNDED, PERMITTED, Policy, Security
from securemedian.mpc.rounds.methods.registry import METHODS
from tests.daemons import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")])
IDS = [str(path.relative_to(ROOT)) for path in PAGES]
NOTEBOOK = ROOT / "examples" / "hospitals.ipynb"
START = re.compile(r"(?:^|\$\()(?:scripts/run|securemedian) (.*)")


def commands(page: Path) -> Iterator[list[str]]:
    """Give the arguments of each command of a page that stands in a block of its own."""
    text = page.read_text("utf-8")
    fenced = re.findall(r"```(?:bash)?\n(.*?)```", text, re.DOTALL)
    indented = re.findall(r"(?:^    .*\n)+", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.M)
    for block in [*fenced, *indented]:
        for line in block.replace("\\\n", " ").splitlines():
            found = START.search(line.strip())
            # dots stand for what the page leaves out
            if found and not re.search(r" \.\.(?!/)", line):
                words = shlex.split(found[1].rstrip(")"), comments=True)
                yield words[: words.index("&")] if "&" in words else words


def test_commands_are_found() -> None:
    assert sum(len(list(commands(page))) for page in PAGES) > 60


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return cli._parser()


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_command_is_one(page: Path, parser: argparse.ArgumentParser) -> None:
    for words in commands(page):
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                _, unknown = parser.parse_known_args(words)
        except SystemExit as ended:
            assert ended.code == 0, f"{' '.join(words)}\n{said.getvalue()}"
        else:
            assert not unknown, f"{' '.join(words)}: no such option as {unknown}"


@pytest.mark.slow
# of Opacus, which it says of any such program
@pytest.mark.filterwarnings("ignore")
def test_the_example_of_training_with_noise_costs_what_it_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The servers' part is left out: what `fit` loads and sends is tested with other models."""
    pytest.importorskip("opacus")
    import torch

    class Alone:
        def fit(self, model: torch.nn.Linear, train: Any, rounds: int) -> None:
            for _ in range(rounds):
                before = model.weight.detach().clone()
                train(model)
                assert not torch.equal(model.weight, before)
                # as `fit` does with a round's model
                model.load_state_dict({"weight": before, "bias": model.bias.detach().clone()})

    client = "securemedian.clients.client.Client.from_config"
    monkeypatch.setattr(client, lambda _: contextlib.nullcontext(Alone()))
    monkeypatch.setattr("sys.argv", ["private.py", "client-1.toml"])
    runpy.run_path(str(ROOT / "examples" / "private.py"))
    assert 4.5 < float(capsys.readouterr().out) < 5.01


def test_every_test_that_a_page_names_is_there() -> None:
    named = {name for page in PAGES for name in re.findall(r"tests/test_\w+\.py", page.read_text())}
    assert len(named) > 10
    assert not [name for name in named if not (ROOT / name).exists()]


def python(page: Path) -> list[str]:
    """Return the Python of a page or of a notebook."""
    text = page.read_text("utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", [*PAGES, NOTEBOOK], ids=[*IDS, NOTEBOOK.name])
def test_every_import_of_ours_is_there(page: Path) -> None:
    for code in python(page):
        try:
            tree = ast.parse(code)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("securemedian"):
                try:
                    module = importlib.import_module(str(node.module))
                except ImportError as error:
                    # the module of a plug-in, without its framework
                    assert "pip install" in str(error), error
                    continue
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


def test_the_glossary_is_short_and_every_word_of_it_is_used() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    words = re.findall(r"^\| ([^|]+) \| ", glossary.partition("| --- | --- |")[2], re.MULTILINE)
    used = "\n".join(page.read_text("utf-8") for page in PAGES if page.name != "glossary.md")
    assert 20 < len(words) <= 40 and words == sorted(words, key=str.lower)
    assert not [word for word in words if not re.search(rf"(?i)\b{word}", used)]


def test_the_methods_that_fresh_keys_allow_are_those_of_the_readme() -> None:
    table = re.findall(r"^\| `(\S+)`.*\| (.*) \|$", (ROOT / "README.md").read_text("utf-8"), re.M)
    allowed = dict.fromkeys(METHODS, "neither")
    allowed |= dict.fromkeys(Policy().methods, "semi-honest")
    allowed |= dict.fromkeys(BOUNDED, "bounded, semi-honest")
    allowed |= dict.fromkeys(PERMITTED[Security.MALICIOUS], "all")
    assert dict(table) == allowed
