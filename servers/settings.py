"""What the configurations of servers and clients are made of: TOML files, key files, addresses."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq.auth
from zmq.utils import z85

from mpc.errors import ConfigError


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair, in z85."""

    public: bytes
    secret: bytes = field(repr=False)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file's table; ConfigError if there is none or it does not parse."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}. `securemedian keygen` makes configurations"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def load_keys(path: str | Path) -> KeyPair:
    """The key pair in a .key_secret file, which nobody but its owner may read."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"no key file {path}: `securemedian keygen` makes one")
    if path.stat().st_mode & 0o077:
        raise ConfigError(
            f"others may read the secret key in {path}: run chmod 600 {path}, and make new keys if anybody did"
        )
    try:
        public, secret = zmq.auth.load_certificate(path)
    except ValueError as error:
        raise ConfigError(f"{path} is not a key file of `securemedian keygen`: {error}") from error
    if secret is None:
        raise ConfigError(f"{path} holds a public key alone: name the .key_secret file beside it")
    return KeyPair(public, secret)


def check_public_key(key: str) -> None:
    """ConfigError unless `key` is a CURVE public key in z85."""
    try:
        usable = len(z85.decode(key)) == 32
    except (ValueError, KeyError):  # how z85 reports another length and other characters
        usable = False
    if not usable:
        raise ConfigError(f"{key!r} is no public key: paste the 40 characters after `public-key` in the .key file")


def check_endpoint(endpoint: str) -> None:
    """ConfigError unless `endpoint` is one that zmq can use over a network."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not (endpoint.startswith("tcp://") and host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ConfigError(f"an address is tcp://HOST:PORT with a port from 1 to 65535, not {endpoint!r}")
