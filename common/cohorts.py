"""The names of cohorts, which servers and callers know alike."""

import re

from securemedian.mpc.errors import ConfigError, quoted

# the cohort that is always there, and needs no name
DEFAULT_COHORT = "default"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,38}[a-z0-9])?", re.ASCII)


def check_cohort(name: str) -> None:
    """Raise ConfigError unless a cohort can have this name."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"invalid cohort name: {quoted(name)}; use a to z, digits, dots and dashes, at most "
            "40 characters, with a letter or a digit at both ends"
        )
