"""The configuration of a client or of the coordinator: one TOML file, whose unknown keys are refused. Samples:
docs/samples/.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from securemedian.mpc.canonical import build
from securemedian.mpc.errors import ConfigError, quoted
from securemedian.settings.addresses import check_endpoint
from securemedian.settings.files import read_toml
from securemedian.settings.keys import check_public_key


@dataclass(frozen=True)
class ServerAddress:
    """Where a server listens, and the key it must prove to have."""

    address: str  # tcp://HOST:PORT
    public_key: str  # the line `public-key` of the server's .key file

    def __post_init__(self) -> None:
        check_endpoint(self.address)
        check_public_key(self.public_key)


@dataclass(frozen=True)
class ClientConfig:
    """A client's settings; a coordinator's are the same. The name is for this side's messages: servers know their
    callers by key.
    """

    name: str
    key_file: str  # NAME.key_secret, mode 0600; a relative path starts at the configuration file
    s0: ServerAddress
    s1: ServerAddress
    reply_timeout_s: float = 60.0  # one request and its answer
    wait_timeout_s: float = 86400.0  # a round to open, or its result
    poll_interval_s: float = 0.5

    def __post_init__(self) -> None:
        for name in ("reply_timeout_s", "wait_timeout_s", "poll_interval_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(
                    f"{name} must be more than 0 seconds and finite, not {quoted(getattr(self, name))}"
                )
        for what in ("address", "public_key"):
            if getattr(self.s0, what) == getattr(self.s1, what):
                raise ConfigError(
                    f"[s0] and [s1] have the same {what}: each names another server, because "
                    "a server that gets both shares of an update knows the update"
                )

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file. ConfigError names the file and what is wrong in it."""
        path = Path(path)
        values = read_toml(path)
        for server in ("s0", "s1"):
            if server in values:
                values[server] = build(ServerAddress, values[server], f"{path}, [{server}]")
        config = build(cls, values, str(path))
        return replace(config, key_file=str(path.parent / config.key_file))
