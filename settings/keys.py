"""The CURVE keys: files that `securemedian keygen` makes, and public keys in configurations."""

from dataclasses import dataclass, field
from pathlib import Path

import zmq.auth
from zmq.utils import z85

from securemedian.mpc.errors import ConfigError, quoted


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair, in z85."""

    public: bytes
    secret: bytes = field(repr=False)


def load_keys(path: str | Path) -> KeyPair:
    """Return the key pair in a .key_secret file.

    Raises ConfigError if there is none, if it holds no secret key, or if others than its owner may
    read it.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"no key file {path}: `securemedian keygen` makes one")
    if path.stat().st_mode & 0o077:
        raise ConfigError(
            f"others may read the secret key in {path}: run chmod 600 {path}, "
            "and make new keys if anybody has read it"
        )
    try:
        public, secret = zmq.auth.load_certificate(path)
    # pyzmq reports a name without a value by the latter
    except (ValueError, IndexError) as error:
        raise ConfigError(f"{path} is not a key file of `securemedian keygen`: {error}") from error
    if secret is None:
        raise ConfigError(f"{path} holds a public key alone: name the .key_secret file next to it")
    return KeyPair(public, secret)


def check_public_key(key: str) -> None:
    """Raise ConfigError unless `key` is a CURVE public key in z85."""
    try:
        usable = len(z85.decode(key)) == 32
    # z85 reports another length by the one and other characters by the other
    except (ValueError, KeyError):
        usable = False
    if not usable:
        raise ConfigError(
            f"{quoted(key)} is no public key: "
            "paste the 40 characters after `public-key` in the .key file"
        )
