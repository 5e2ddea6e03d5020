"""The documentation as a site: everything in it, every link right, and nothing from elsewhere."""

import ast
import html
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import securemedian
from securemedian import cli
from securemedian.common.policy import RISKS, RISKY_ABOVE, risks_of
from securemedian.common.receipts import Record
from securemedian.common.status import RoundStatus
from securemedian.mpc.canonical import hints_of
from securemedian.mpc.options import options_of
from securemedian.mpc.rounds.exchange import EXCHANGES
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import ROUND_FIELDS
from securemedian.servers.computing import shards
from securemedian.servers.machine.events import Effect
from securemedian.servers.machine.table import LATE, TABLE
from securemedian.servers.network import control
from securemedian.servers.rounds.requests import OPS
from tests.daemons import ROOT
from tests.rogue.attacks import attacks
from tests.rogue.deviations import about

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")

# an element that a browser fetches by itself; links that people follow are not
FETCHED = re.compile(
    r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=\"?(https?:)?//[^\">]+"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, of which a wrong link or a page that is left out is an error."""
    folder = tmp_path_factory.mktemp("site")
    # a proxy that is not there stands for a machine without a network
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | nowhere | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def hooks() -> Any:
    """Load the hooks of mkdocs, which are a file without a package."""
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells(table: str) -> dict[str, list[str]]:
    """Return the cells of each row of a table in Markdown, by the name in its first cell."""
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {row[0].strip("`"): row for row in rows}


def test_every_table_is_on_one_page(hooks: Any) -> None:
    names = ("wire.md", "threat-model.md", "operating.md")
    pages = [(ROOT / "docs" / name).read_text("utf-8") for name in names]
    wanted = [name for page in pages for name in re.findall(r"<!-- table: (\w+) -->", page)]
    assert sorted(wanted) == sorted(hooks.TABLES)
    assert not [page for page in pages if "<!--" in hooks.on_page_markdown(page)]


def test_the_table_of_rogue_servers_has_every_attack(hooks: Any) -> None:
    """Compare it; `scripts/rogue --json docs/figures/rogue-servers.json` measures again."""
    rows = hooks.rogue_servers().splitlines()[2:]
    found = [tuple(row.strip("| ").split(" | ")[:3]) for row in rows]
    every = [(f"`{a.deviation}`", about(a.deviation), f"`{a.method.name}`") for a in attacks()]
    assert sorted(found) == sorted(every)


@pytest.mark.parametrize("kinds", [control.KINDS, shards.KINDS, {"": Record}, {"": RoundStatus}])
def test_every_field_of_a_message_is_described(hooks: Any, kinds: dict[str, type]) -> None:
    for kind in kinds.values():
        described = hooks.described(kind)
        assert [name for names, _ in described for name in names] == list(hints_of(kind))
        assert all(about for _, about in described), kind


def test_every_request_and_its_answer_are_in_the_table(hooks: Any) -> None:
    """The names in the answers that a handler writes are in its docstring, which the table has."""
    rows = cells(hooks.requests())
    assert list(rows) == list(OPS)
    for name, op in OPS.items():
        _, asked, takes, answer = rows[name]
        assert ("S0 only" in asked) == op.leader_only
        assert set(hints_of(op.fields)) | op.arrays <= set(re.findall(r"`(\w+)`", takes)), name
        assert all(about for _, about in hooks.described(op.fields)), name
        tree = ast.parse(textwrap.dedent(inspect.getsource(op.handler)))
        keys = [key for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys]
        written = {key.value for key in keys if isinstance(key, ast.Constant)}
        assert answer and written <= set(re.findall(r"`([\w.]+)`", answer)), name


def test_every_parameter_of_a_round_is_in_the_table(hooks: Any) -> None:
    owners = [*METHODS.values(), *EXCHANGES.values()]
    options = {name for owner in owners for name in options_of(owner)}
    assert set(cells(hooks.params())) == {*ROUND_FIELDS, *options} - {"method"}


@pytest.mark.release
def test_every_page_is_there_and_found(site: Path) -> None:
    start = (site / "index.html").read_text("utf-8")
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"CHANGELOG"}
    pages |= {"commands", "settings", "states"}
    for page in pages:
        assert (site / f"{page}.html").is_file(), page
        assert f'href="{page}.html"' in start or page == "index", page


@pytest.mark.release
def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    assert FETCHED.search('<script src="https://elsewhere.example/x.js">')
    for path in site.rglob("*.html"):
        assert not FETCHED.search(path.read_text("utf-8")), path


@pytest.mark.release
def test_every_command_and_every_public_name_has_its_reference(site: Path) -> None:
    commands = (site / "commands.html").read_text("utf-8")
    for title in cli.helps():
        assert f'id="{title.replace(" ", "-")}"' in commands, title
    python = (site / "python.html").read_text("utf-8")
    for name in vars(securemedian)["__all__"]:
        assert re.search(rf'id="securemedian[.\w]*\.{name}"', python), name


@pytest.mark.release
def test_every_file_of_settings_is_shown_whole(site: Path) -> None:
    shown = re.sub(r"<[^>]+>", "", (site / "settings.html").read_text("utf-8"))
    for path in (ROOT / "docs/samples").glob("*.toml"):
        assert path.read_text("utf-8").strip() in html.unescape(shown), path.name
    for name in (*RISKS, *RISKY_ABOVE):
        for value, why in risks_of(name).items():
            assert f"{value}: {why}" in html.unescape(shown)


@pytest.mark.release
def test_every_line_of_the_state_tables_is_shown(site: Path) -> None:
    page = (site / "states.html").read_text("utf-8")
    tables = [
        [
            [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<td>(.*?)</td>", row)]
            for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)[1:]
        ]
        for table in re.findall(r"<table>(.*?)</table>", page, re.DOTALL)
    ]
    assert len(tables) == 4 and all(f"<em>{effect}</em>: " in page for effect in Effect)
    for party in (0, 1):
        lines, late = tables[2 * party : 2 * party + 2]
        shown = [(state, line[1]) for line in lines for state in line[0].split(", ")]
        assert len(shown) == sum(map(len, TABLE[party].values()))
        assert len(set(shown)) == len(TABLE[party])
        assert {state for state, _ in shown} == {state.value for state, _ in TABLE[party]}
        pairs = {(line[0], kind) for line in late for kind in line[1].split(", ")}
        expected = {(state.value, kind.__name__.lower()) for state, kind in LATE[party]}
        assert pairs == expected
        actions = sum(len(one[4].split("; ")) * len(one[0].split(", ")) for one in lines if one[4])
        assert actions == sum(len(one.actions) for two in TABLE[party].values() for one in two)
