"""Robust, private federated learning: two servers compute what neither can see.

    from securemedian import Client, Coordinator, Radix, RoundParams, flatten, unflatten

`__init__.pyi` lists the public names with the modules that define them, for type checkers and for
`__getattr__`, which imports a module when its name is first used.

This package is the only name that an installation adds to those of other packages. Its parts are
the folders of the repository, of which `mpc` is the lowest; in a checkout they are links.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "1.1.0"

_folder = Path(__file__).parent
if (_folder / "mpc").is_file():
    raise ImportError(
        "links that have become text files, as git on Windows and some programs for archives "
        f"make them: {_folder}; clone with `git clone -c core.symlinks=true`, or install this "
        "copy with `pip install .`"
    )
_homes = {
    alias.name: str(node.module)
    for node in ast.parse((_folder / "__init__.pyi").read_text("utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
__all__ = list(_homes)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `mpc` needs no sockets."""
    if name in _homes:
        return getattr(import_module(_homes[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, too, although they are imported when they are used."""
    return sorted({*globals(), *__all__})
