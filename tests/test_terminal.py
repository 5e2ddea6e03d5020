"""The console of every verb prints values unchanged: brackets are not markup."""

import argparse
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from securemedian.common import terminal
from securemedian.common.status import RoundStatus
from securemedian.coordinator import cli as coordinator_cli
from securemedian.coordinator import unattended

ROOT = Path(__file__).parent.parent
BRACKETS = "[policy] [bold]a[/bold] [/] :smile: [red"


def test_brackets_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Group
    from rich.table import Table

    table = Table(BRACKETS, title=BRACKETS)
    table.add_row(BRACKETS)
    made = terminal.console()
    made.width = 120
    made.print(BRACKETS)
    made.print(Group(BRACKETS, table))
    assert capsys.readouterr().out.count(BRACKETS) == 5
    terminal.console(stderr=True).print(BRACKETS)
    assert BRACKETS in capsys.readouterr().err


def test_a_terminal_gets_whole_words_and_whole_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    line = f"securemedian: {'word ' * 8}`securemedian round open` and {'word ' * 5}end"
    assert terminal.folded(line, io.StringIO()) == line
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    folded = terminal.folded(line, screen)
    assert " ".join(folded.split()) == line and "`securemedian round open`" in folded
    assert max(map(len, folded.splitlines())) <= 40


def test_there_is_no_other_console() -> None:
    folders = "benchmarks clients common coordinator laboratory operating plugins servers"
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in folders.split()
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"\bConsole\(|from_markup|rich\.markup|import print", line)
    ]
    assert found == ["common/terminal.py: made = Console(stderr=stderr, markup=False, emoji=False)"]


def test_the_status_of_a_round_is_a_table_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = RoundStatus(
        round="3-00000000",
        number=3,
        state="failed",
        reason=BRACKETS,
        params={"method": "mean", "dim": 1000, "min_clients": 2, "max_clients": 3}
        | {"deadline_s": 600.0, "weights": {}},
        clients={"[a]": "both", "b": "none"},
        left_out={"b": BRACKETS},
        cost={"seconds": 1.23456, "ots": 12345, "messages": 7},
        peer_linked=True,
    )
    coordinator: Any = SimpleNamespace(status=lambda _: told)
    show = coordinator_cli._status
    show(coordinator, argparse.Namespace(round="", json=False))
    assert json.loads(capsys.readouterr().out)["round"] == "3-00000000"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    show(coordinator, argparse.Namespace(round="", json=True))
    assert json.loads(capsys.readouterr().out)["reason"] == BRACKETS
    show(coordinator, argparse.Namespace(round="", json=False))
    out = " ".join(capsys.readouterr().out.split())
    assert f"reason {BRACKETS}" in out and f"client b upload at none; left out: {BRACKETS}" in out
    assert "client [a] upload at both" in out
    assert "cost 1.23 s in the run, 12,345 OTs servers" in out
    assert "method mean coordinates 1,000 clients 2 to 3 options deadline_s 600 opened" in out


def test_a_round_of_several_votes_says_which_and_whom_it_waits_for() -> None:
    told = RoundStatus(state="voting", level=3, levels=8, lacking=["a", "b"], deadline_in_s=60.0)
    until = terminal.clock(60.0)[:5]
    assert told.of_levels.startswith(f"level 3 of 8, waiting for a, b, until {until}")
    assert replace(told, lacking=[]).of_levels.startswith("level 3 of 8, waiting for both servers")
    assert replace(told, state="running").of_levels == "level 3 of 8"
    assert RoundStatus(state="voting").of_levels == ""
    # whatever a server says
    for left_s in (math.nan, math.inf, 1e300, -1e18):
        assert replace(told, deadline_in_s=left_s).of_levels.endswith(
            f"until in {left_s:g} seconds"
        )
    console = terminal.console(width=100)
    with console.capture() as shown:
        console.print(coordinator_cli._table(told))
    assert "votes" in shown.get() and "level 3 of 8, waiting for a, b" in shown.get()
    assert "level 3 of 8, waiting for a, b" in unattended._progress("1 of 2", told)
