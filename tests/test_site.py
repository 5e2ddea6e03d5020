"""The documentation as a site: everything in it, every link right, and nothing from elsewhere."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import securemedian
from securemedian import cli
from securemedian.common.policy import RISKS, RISKY_ABOVE, risks_of
from securemedian.servers.machine.events import Effect
from securemedian.servers.machine.table import LATE, TABLE
from tests.daemons import ROOT

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
