"""The console of every verb prints values as they are: brackets are no markup."""

import re
from pathlib import Path

import pytest

from securemedian.clients import terminal

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


def test_there_is_no_other_console() -> None:
    folders = "benchmarks clients common coordinator laboratory operating plugins servers"
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in folders.split()
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"\bConsole\(|from_markup|rich\.markup|import print", line)
    ]
    assert found == [
        "clients/terminal.py: return Console(stderr=stderr, markup=False, emoji=False)"
    ]
