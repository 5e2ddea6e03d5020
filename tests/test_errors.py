"""Errors: what is quoted is short, a code is an error again, and a text says what to do."""

import ast
import importlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from securemedian.mpc import errors
from securemedian.mpc.errors import MAX_QUOTE, MAX_TEXT, SecureMedianError, cut, from_code, quoted
from tests.prose import ROOT, files, shown


@pytest.mark.parametrize("value", ["guess", 7, None, True, 1.5, [1, "two"], {"a": 1}, b"raw", ""])
def test_a_short_value_is_quoted_whole(value: Any) -> None:
    assert quoted(value) == repr(value)


def nested() -> Any:
    value: Any = "end"
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10**6,
        "\x00" * 10**6,
        b"\x00" * 10**6,
        ["x" * 1000] * 1000,
        {str(i): "x" * 1000 for i in range(1000)},
        {b"x" * 1000: 1, "y" * 1000: 2},
        nested(),
    ],
    ids=["text", "escapes", "bytes", "list", "table", "mixed keys", "depth"],
)
def test_a_long_value_is_quoted_shortly(value: Any) -> None:
    assert len(quoted(value)) < 2 * MAX_QUOTE


def test_a_text_is_cut_and_says_so() -> None:
    assert cut("x" * MAX_TEXT) == "x" * MAX_TEXT
    assert cut("x" * (MAX_TEXT + 1)) == "x" * MAX_TEXT + f"... ({MAX_TEXT + 1} characters)"


def test_a_text_of_others_commands_no_terminal() -> None:
    assert cut("aborted: \x1b[2J\x1b]0;owned\x07\nsecuremedian: submitted") == (
        r"aborted: \x1b[2J\x1b]0;owned\x07\nsecuremedian: submitted"
    )
    assert cut("\u202eH\u00f4pital \u5317 \\x") == r"\u202eHôpital 北 \x"


def test_every_error_has_a_code_of_its_own_and_is_found_by_it() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, SecureMedianError)
    ]
    assert len({kind.code for kind in kinds}) == len(kinds) > 10
    for kind in kinds:
        assert type(from_code(kind.code, "why")) is kind
    assert type(from_code("new", "why")) is SecureMedianError


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
