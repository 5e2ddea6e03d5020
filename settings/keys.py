"""The CURVE keys: key files, public keys in configurations, and their fingerprints."""

import base64
import hashlib
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import zmq.auth
from zmq.utils import z85

from securemedian.mpc.errors import ConfigError, cut, quoted

# what `keygen` writes, before a party's name, where a public key is still missing
MARK = "PASTE HERE the public key of "
# From the letters of RFC 4648 to those of Crockford, who leaves out I, L, O and U: they are too
# easily taken for others.
_SPOKEN = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", "0123456789ABCDEFGHJKMNPQRSTVWXYZ")


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


def is_public_key(key: object) -> TypeGuard[str]:
    """Return whether `key` is a CURVE public key in z85."""
    try:
        return isinstance(key, str) and len(z85.decode(key)) == 32
    # z85 reports another length, other characters and five characters beyond 32 bits in three ways
    except (ValueError, KeyError, struct.error):
        return False


def check_public_key(key: str) -> None:
    """Raise ConfigError unless `key` is a CURVE public key in z85."""
    if not is_public_key(key):
        raise ConfigError(
            f"{quoted(key)} is no public key: "
            "paste the 40 characters after `public-key` in the .key file"
        )


def fingerprint(key: str) -> str:
    """Return what people compare over the telephone: 4 groups of 5 characters.

    These are the first 100 bits of the SHA-256 of the key's 32 bytes, in Crockford's base 32.
    """
    encoded = base64.b32encode(hashlib.sha256(z85.decode(key)).digest()).decode()
    spoken = encoded[:20].translate(_SPOKEN)
    return "-".join(spoken[start : start + 5] for start in range(0, 20, 5))


@dataclass(frozen=True)
class KeyPlace:
    """A place of a configuration that is for somebody else's public key."""

    # such as [peer], or [[clients]] 2
    table: str
    # whose key it is
    name: str
    key: object


def key_places(values: dict[str, Any]) -> list[KeyPlace]:
    """Return the places for public keys in the TOML of a server, client or coordinator.

    What is no table there is left out, for the loader to report.
    """
    party = values.get("party")
    peer = "s1" if party == 0 else "s0" if party == 1 else "the other server"
    single = {"peer": peer, "s0": "s0", "s1": "s1"}
    places = [
        KeyPlace(f"[{table}]", name, values[table].get("public_key"))
        for table, name in single.items()
        if isinstance(values.get(table), dict)
    ]
    for table in ("coordinators", "clients"):
        entries = values.get(table)
        places += [
            KeyPlace(f"[[{table}]] {number}", str(entry.get("name", "")), entry.get("public_key"))
            for number, entry in enumerate(entries if isinstance(entries, list) else [], 1)
            if isinstance(entry, dict)
        ]
    return places


def check_key_places(values: dict[str, Any], where: str) -> None:
    """Raise ConfigError, which names all of them, if texts stand where public keys belong."""
    wrong = [
        f"{place.table}: {quoted(place.key)}"
        for place in key_places(values)
        if isinstance(place.key, str) and not is_public_key(place.key)
    ]
    if wrong:
        verb = "is no public key" if len(wrong) == 1 else "are no public keys"
        raise ConfigError(
            f"{where}: {cut('; '.join(wrong))} {verb}: fill them in with "
            "`securemedian keygen --join`, or paste the 40 characters after `public-key` in the "
            ".key file"
        )
