"""The consoles that print tables, bars and lines: every text as it is."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console(stderr: bool = False) -> "Console":
    """Return a console that prints a text in brackets like any other, not as markup.

    Only rich's own objects have styles. It is for standard error, or for standard output.
    """
    # it takes a while to import
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False)
