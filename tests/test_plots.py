"""Plots are written whole, say what their axes are, and tell lines apart without colour."""

import re
from pathlib import Path
from typing import Any

import pytest

from securemedian.laboratory import plots
from securemedian.laboratory.plots import Grid, Line, Panel


def panel(lines: int, title: str = "a panel", **options: Any) -> Panel:
    x = [1.0, 2.0, 3.0]
    return Panel(
        title,
        "round",
        "accuracy (%)",
        [Line(f"line-{i}", x, [i + v for v in x]) for i in range(lines)],
        **options,
    )


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text of the figures that are written."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    found: list[str] = []
    write = Figure.savefig

    def watch(figure: Any, *given: Any, **named: Any) -> None:
        write(figure, *given, **named)
        found.extend(text.get_text() for text in figure.findobj(Text))

    monkeypatch.setattr(Figure, "savefig", watch)
    return found


def test_panels_with_all_words(tmp_path: Path, texts: list[str]) -> None:
    band = Line("band", [1, 10, 100], [1, 2, 3], [0, 1, 2], [2, 3, 4])
    panels = [
        panel(2),
        panel(3, "another"),
        Panel("third", "p0", "seconds (s)", [band], log_x=True, log_y=True),
    ]
    path = plots.save(
        tmp_path / "new" / "folder" / "fig0.5", "A title", [*panels, panel(1, "fourth")]
    )
    assert path.name == "fig0.5.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    words = {"A title", "a panel", "another", "third", "fourth", "accuracy (%)", "p0", "band"}
    assert words | {"seconds (s)"} <= set(texts)
    # one legend for all panels
    assert texts.count("line-0") == 1


def test_a_grid_has_every_number(tmp_path: Path, texts: list[str]) -> None:
    grid = Grid(
        "attack",
        "method",
        ["none", "lie"],
        ["mean", "krum", "median"],
        [[91.25, 10], [0, 100], [33, 50]],
    )
    path = plots.save(tmp_path / "grid", "A grid", grid)
    assert path.read_bytes().startswith(b"\x89PNG")
    words = {"A grid", "attack", "method", "none", "lie", "mean", "krum", "91.2", "0.0", "100.0"}
    assert words <= set(texts)


def test_the_same_plot_has_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    first, second = (plots.save(tmp_path / name, "t", [panel(2)]) for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()


def test_styles_differ_without_colour() -> None:
    assert len({(str(dashes)) for _, dashes, _ in plots._STYLES}) == len(plots._STYLES)
    assert len({marker for *_, marker in plots._STYLES}) == len(plots._STYLES)
    for colour, *_ in plots._STYLES:
        assert re.fullmatch("#[0-9a-f]{6}", colour)


def test_no_lines_and_single_points(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    panels = [Panel("empty", "x", "y", []), Panel("point", "x", "y", [Line("one", [1], [1])])]
    assert plots.save(tmp_path / "few", "few", panels).exists()


def test_an_axis_of_rounds_has_whole_numbers(tmp_path: Path, texts: list[str]) -> None:
    line = Line("line", [11, 12, 13], [100, 200, 300])
    plots.save(tmp_path / "rounds", "A title", [Panel("a panel", "round", "accuracy (%)", [line])])
    rounds = {text for text in texts if re.fullmatch(r"1[0-4](\.\d+)?", text)}
    assert {"11", "12", "13"} <= rounds <= {"10", "11", "12", "13", "14"}
