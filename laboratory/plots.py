"""Plots as PNG files.

Lines can be told apart without colour: by dash pattern, marker and lightness.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from securemedian.mpc.errors import ConfigError

# width and height
PANEL_INCHES = (4.6, 3.6)
# panels side by side, at most
COLUMNS = 3
# markers per line, at most: one at every point of a long line would hide its dashes
MARKS = 12
# letters of a title per inch
TITLE_LETTERS = 11

# colour, dash pattern and marker; from dark to light, so that neighbours also differ in grey
_STYLES: tuple[tuple[str, Any, str], ...] = (
    ("#1b1b4b", "-", "o"),
    ("#8c2d04", (0, (6, 2)), "s"),
    ("#2b7a78", (0, (1.5, 1.5)), "^"),
    ("#c2571a", (0, (6, 2, 1.5, 2)), "D"),
    ("#5b8fd9", (0, (10, 3)), "v"),
    ("#7f7f7f", (0, (3, 1.5, 1, 1.5, 1, 1.5)), "x"),
    ("#e0a020", (0, (3, 3)), "P"),
    ("#9ecae1", (0, (8, 2, 3, 2)), "*"),
    ("#d59bc0", (0, (1, 3)), "<"),
    ("#b5b58c", (0, (12, 2, 1, 2)), ">"),
)


@dataclass(frozen=True)
class Line:
    """A labelled curve through the points (x, y).

    `low` and `high` bound a band around `y`, for example over several seeds.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None

    @classmethod
    def over(cls, label: str, x: Sequence[float], values: Sequence[Sequence[float]]) -> "Line":
        """Return the curve of the means of `values[i]` at x[i], in a band from least to most."""
        return cls(label, x, [*map(fmean, values)], [*map(min, values)], [*map(max, values)])


@dataclass(frozen=True)
class Panel:
    """One pair of axes with its lines; the labels of the axes carry the units."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Grid:
    """A table of numbers, each in a cell whose lightness grows with it from 0 to `top`."""

    x_label: str
    y_label: str
    columns: Sequence[str]
    rows: Sequence[str]
    # [row][column]; nan leaves a cell empty
    values: Sequence[Sequence[float]]
    top: float = 100.0


Picture = Sequence[Panel] | Grid


def check() -> None:
    """Raise ConfigError if plots cannot be drawn; call this before hours of work."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "matplotlib is missing: plots need it; run pip install '.[bench]' in a clone"
        ) from error


def save(stem: Path, title: str, picture: Picture) -> Path:
    """Write panels of lines, or a grid, to STEM.png, and return its path."""
    check()
    figure = _grid(picture, title) if isinstance(picture, Grid) else _panels(picture, title)
    stem.parent.mkdir(parents=True, exist_ok=True)
    # a stem may have a dot of its own, which begins no suffix
    path = stem.with_name(f"{stem.name}.png")
    figure.savefig(path, dpi=110)
    return path


def _panels(panels: Sequence[Panel], title: str) -> Any:
    """Return the panels as a figure.

    A label has the same style in every panel, and one entry in the legend.
    """
    from matplotlib.figure import Figure

    columns = 2 if len(panels) == 4 else min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    width = PANEL_INCHES[0] * columns
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    styles = {label: _STYLES[i % len(_STYLES)] for i, label in enumerate(labels)}
    figure = Figure(figsize=(width, PANEL_INCHES[1] * rows + 0.8), layout="constrained")
    figure.suptitle(textwrap.fill(title, int(TITLE_LETTERS * width)))
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, axis in zip(panels, axes, strict=False):
        _draw(axis, panel, styles)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    entries = {
        label: handle
        for axis in axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    if entries:
        # inches of the widest entry, its line included
        widest = 0.9 + 0.08 * max(map(len, entries))
        figure.legend(
            entries.values(),
            entries.keys(),
            loc="outside lower center",
            ncols=max(1, int(width / widest)),
            handlelength=4,
            frameon=False,
        )
    return figure


def _grid(grid: Grid, title: str) -> Any:
    from matplotlib.figure import Figure

    size = (2.4 + 0.95 * len(grid.columns), 1.8 + 0.42 * len(grid.rows))
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(textwrap.fill(title, int(TITLE_LETTERS * size[0])))
    axis = figure.subplots()
    axis.imshow(grid.values, cmap="gray", vmin=0, vmax=grid.top, aspect="auto")
    axis.set_xticks(range(len(grid.columns)), grid.columns, rotation=30, ha="right")
    axis.set_yticks(range(len(grid.rows)), grid.rows)
    axis.set(xlabel=grid.x_label, ylabel=grid.y_label)
    for y, row in enumerate(grid.values):
        for x, value in enumerate(row):
            colour = "black" if value > grid.top / 2 else "white"
            shown = f"{value:.1f}" if value == value else ""
            axis.text(x, y, shown, ha="center", va="center", color=colour)
    return figure


def _draw(axis: Any, panel: Panel, styles: dict[str, tuple[str, Any, str]]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    for above, line in enumerate(panel.lines):
        colour, dashes, marker = styles[line.label]
        every = -(-len(line.x) // MARKS) if line.x else 1
        # Lines may coincide. The later one is thinner and its markers are smaller or stand
        # elsewhere, so that both can be seen.
        weight = max(1.2, 2.8 - 0.5 * above)
        axis.plot(
            line.x,
            line.y,
            label=line.label,
            color=colour,
            linestyle=dashes,
            marker=marker,
            markevery=(above % every, every),
            markersize=3.5 + 1.5 * weight,
            linewidth=weight,
        )
        if line.low is not None and line.high is not None:
            axis.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    axis.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.log_x:
        axis.set_xscale("log")
        if (numbers := _few_numbers(panel)) is not None:
            axis.set_xticks(numbers, [f"{x:g}" for x in numbers], minor=False)
            axis.xaxis.set_minor_locator(NullLocator())
    elif all(float(x).is_integer() for line in panel.lines for x in line.x):
        # rounds are whole numbers
        axis.xaxis.get_major_locator().set_params(integer=True)
    if panel.log_y:
        axis.set_yscale("log")
        # so that a scale of less than a decade has numbers, too
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(True, color="0.9", linewidth=0.6)
    axis.set_axisbelow(True)


def _few_numbers(panel: Panel) -> list[float] | None:
    """Return the whole numbers that a panel's lines are drawn at, if there are MARKS at most."""
    numbers = sorted({x for line in panel.lines for x in line.x})
    whole = all(float(x).is_integer() for x in numbers)
    return numbers if whole and len(numbers) <= MARKS else None
