"""The reading of TOML configuration files."""

import tomllib
from pathlib import Path
from typing import Any

from securemedian.mpc.errors import ConfigError


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML file's table. Raises ConfigError if there is none."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}. `securemedian keygen` makes configurations"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
