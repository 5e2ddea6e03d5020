"""The words of `security`: how much one server that deviates may learn of a round.

Servers' files, a client's `[policy]`, `keygen`, `plan` and every refusal have them from here.
"""

import argparse
from enum import StrEnum
from typing import Any

from securemedian.mpc.errors import ConfigError, quoted
from securemedian.mpc.options import check_one_of


class Security(StrEnum):
    """The words, and the rounds that each allows."""

    # only those in which a deviating server learns no more than a bounded leak
    BOUNDED = "bounded"
    # all, because both servers are trusted to follow the protocol
    SEMI_HONEST = "semi-honest"

    @property
    def line(self) -> str:
        """The line of a file that says it."""
        return f'security = "{self}"'


# the cost of leaving `BOUNDED`, and the lines and the flag that do so
COST = "a deviating server could then read one client's value"
WAY_OUT = (
    f"write {Security.SEMI_HONEST.line} into s0.toml and s1.toml and into [policy] of the clients' "
    f"files (keygen --security {Security.SEMI_HONEST} writes all of them): {COST}"
)
OR_WAY_OUT = f", or {WAY_OUT}"
# the name of `BOUNDED` in files of release 1.0, which release 1.1 still reads, and on the wire
SWITCH = "one_malicious_server"


def of_switch(bounded: object) -> Security:
    """Return the word for what the wire, and files of release 1.0, say of `SWITCH`."""
    return Security.BOUNDED if bounded is True else Security.SEMI_HONEST


def check_security(word: str) -> Security:
    """Return the word of a setting. Raises ConfigError if it is unknown."""
    check_one_of("security", word, list(Security))
    return Security(word)


def in_words(agreement: dict[str, Any]) -> dict[str, Any]:
    """Return what a server says that both must have, with `security` instead of `SWITCH`."""
    if SWITCH not in agreement:
        return agreement
    others = {name: value for name, value in agreement.items() if name != SWITCH}
    return others | {"security": str(of_switch(agreement[SWITCH]))}


def without_switch(values: Any, where: str) -> Any:
    """Return a table of settings in which `security` stands instead of `SWITCH`.

    Raises ConfigError if `SWITCH` is neither true nor false, or contradicts `security`.
    """
    if not isinstance(values, dict) or SWITCH not in values:
        return values
    others = {name: value for name, value in values.items() if name != SWITCH}
    if type(values[SWITCH]) is not bool:
        raise ConfigError(
            f"{where}, {SWITCH} is neither true nor false: {quoted(values[SWITCH])}; write "
            f"{' or '.join(word.line for word in Security)} instead"
        )
    word = of_switch(values[SWITCH])
    if others.setdefault("security", str(word)) != word:
        raise ConfigError(
            f"{where}, {SWITCH} contradicts security: {quoted(others['security'])}; remove the "
            f"line {SWITCH}"
        )
    return others


def add_switch(parser: argparse.ArgumentParser) -> None:
    """Add the flags of release 1.0 for `--security`, which release 1.1 still takes."""
    flag = SWITCH.replace("_", "-")
    for name, word in ((f"--{flag}", Security.BOUNDED), (f"--no-{flag}", Security.SEMI_HONEST)):
        parser.add_argument(
            name, dest="security", action="store_const", const=str(word), help=argparse.SUPPRESS
        )
