"""Errors that users can cause: each says what is wrong, the value, and what to do."""

import ast
import importlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from securemedian.mpc import errors
from tests.prose import ROOT, files, shown

NOT_CAUSED = (
    errors.LocalProtocolError,
    errors.PeerProtocolError,
    errors.ChannelClosed,
    errors.ChannelTimeout,
)
"""Defects, here or at a peer, and broken connections: users do not cause them."""
OTHERS = {"ArgumentTypeError", "AggregationError", "BenchmarkError"}
"""Classes that are not of `mpc.errors`, and tell users something all the same."""
BETWEEN_SERVERS = {"servers/network/control.py"}
"""Modules whose errors tell a server that a message of its peer is malformed."""
FORM = re.compile(r"[^:;]+: .+; .+", re.DOTALL)
WHOLE = re.compile(r"`[^`]*`|`said`; .+|.*: `(?:error|message|status\.reason|why)`")
"""A text from elsewhere, alone or behind the place where it arose: it has its parts itself."""


class Text(NamedTuple):
    """The text of an error, with each value between backticks."""

    path: str
    line: int
    text: str


def classes() -> set[str]:
    """Return the names of the classes of errors that users can cause."""
    for module in ("servers.network.peer", "clients.client", "laboratory.experiments.execution"):
        importlib.import_module(f"securemedian.{module}")
    found, pending = set(OTHERS), [errors.SecureMedianError]
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if not issubclass(cls, NOT_CAUSED):
            found.add(cls.__name__)
    return found


def texts(path: str, source: str, known: set[str]) -> Iterator[Text]:
    """Give the texts of the errors of these classes that a module makes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in known:
                yield Text(path, node.lineno, shown(node.args[0]))


def all_texts() -> list[Text]:
    known = classes()
    return [
        text
        for path in files()
        if path.suffix == ".py"
        for name in [str(path.relative_to(ROOT))]
        if not name.startswith(("tests/", "docs/", "examples/")) and name not in BETWEEN_SERVERS
        for text in texts(name, path.read_text("utf-8"), known)
    ]


def test_every_error_says_what_is_wrong_the_value_and_what_to_do() -> None:
    found = all_texts()
    assert len(found) > 400
    wrong = [
        each for each in found if not (FORM.fullmatch(each.text) or WHOLE.fullmatch(each.text))
    ]
    assert not wrong, "\n".join(f"{path}:{line}: {text}" for path, line, text in wrong)


def test_an_error_without_its_three_parts_is_found() -> None:
    source = """
raise ConfigError("no")
raise ConfigError(f"bad x: {x}")
raise errors.InputError(f"bad x: {x}; give y")
raise ConfigError(f"{where}: {error}")
raise ConfigError("a: " + f"{b}" + "; c")
raise ValueError("no")
"""
    found = list(texts("m.py", source, {"ConfigError", "InputError"}))
    assert [text.line for text in found] == [2, 3, 4, 5, 6]
    good = [bool(FORM.fullmatch(text.text) or WHOLE.fullmatch(text.text)) for text in found]
    assert good == [False, False, True, True, True]
