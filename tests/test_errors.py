"""mpc.errors: what is quoted is short, and every code on the wire is an error again."""

from typing import Any

import pytest

from securemedian.mpc import errors
from securemedian.mpc.errors import MAX_QUOTE, MAX_TEXT, SecureMedianError, cut, from_code, quoted


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
