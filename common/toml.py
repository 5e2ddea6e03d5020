"""The reading of TOML configuration files, and of other text that people have edited."""

import re
import tomllib
from pathlib import Path
from typing import Any

from securemedian.mpc.errors import ConfigError

# characters that word processors and mail programs put instead of those that people typed
_ODD = {
    "a no-break space": "\u00a0\u2007\u202f",
    "a space of no width": "\u200b\u2060\ufeff",
    "curly quotes": "\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb",
    "a long dash": "\u2010\u2011\u2012\u2013\u2014\u2212",
}
_LINE = re.compile(r"\(at line (\d+), ")


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file's table. Raises ConfigError if there is none."""
    text = read_text(path, "configuration", "make one with `securemedian keygen`")
    try:
        return tomllib.loads(text)
    except ValueError as error:
        where = _LINE.search(str(error))
        wrong = text.splitlines()[int(where[1]) - 1] if where else text
        raise ConfigError(
            f"{path} is not TOML: {error}{odd_in(wrong)}; correct that line"
        ) from error


def read_text(path: Path, what: str = "file", remedy: str = "name one that you may read") -> str:
    """Return the text of a file in UTF-8, with or without a byte order mark. Raises ConfigError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the {what}: {path} ({error.strerror}); {remedy}") from error
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in data:
        raise ConfigError(
            f"a file in UTF-16, which some editors on Windows write: {path}; save it as UTF-8"
        )
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not in UTF-8: byte {error.start} is {data[error.start]:#x}; save it as "
            "UTF-8"
        ) from error


def odd_in(text: str) -> str:
    """Return in words what a word processor may have put into `text`, or an empty text."""
    found = [words for words, characters in _ODD.items() if set(characters) & set(text)]
    return f": it has {' and '.join(found)}; type plain ones" if found else ""
