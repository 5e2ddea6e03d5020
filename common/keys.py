"""The keys: key files, public keys in configurations, and their fingerprints.

Everybody has a CURVE key pair, with which connections are proved. A server has an Ed25519 key pair
as well, with which it signs what it vouches for. All keys are written in z85, 40 characters.
"""

import base64
import hashlib
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import nacl.exceptions
import nacl.signing
from zmq.utils import z85

from securemedian.common.durable import others_may
from securemedian.common.toml import odd_in, read_text
from securemedian.mpc.errors import ConfigError, cut, quoted

# the parties with signing keys, and the names under which they sign
SERVERS = ("s0", "s1")
# the text, before a party's name, that `keygen` writes for a missing public key
MARK = "PASTE HERE the public key of "
# the same for a missing signing key of a server
SIGNING_MARK = "PASTE HERE the signing key of "
# a key in a .key_secret file
_SETTING = re.compile(
    r"""^\s*((?:public|secret|signing)-(?:key|secret))\s*=\s*["']?(.*?)["']?\s*$""", re.MULTILINE
)
# From the letters of RFC 4648 to those of Crockford, who leaves out I, L, O and U: they are too
# easily taken for others.
_SPOKEN = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", "0123456789ABCDEFGHJKMNPQRSTVWXYZ")


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair, in z85."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class SigningKey:
    """An Ed25519 key pair, in z85; the secret is the seed."""

    public: str
    secret: str = field(repr=False)

    @classmethod
    def new(cls) -> "SigningKey":
        key = nacl.signing.SigningKey.generate()
        return cls(_encoded(bytes(key.verify_key)), _encoded(bytes(key)))

    def sign(self, data: bytes) -> bytes:
        """Return the signature of `data`, 64 bytes."""
        return nacl.signing.SigningKey(z85.decode(self.secret)).sign(data).signature


def is_signature(signing_key: str, data: bytes, signature: bytes) -> bool:
    """Return whether this is the signature of `data` by the owner of a public signing key."""
    try:
        nacl.signing.VerifyKey(z85.decode(signing_key)).verify(data, signature)
    # a signature of another length is a ValueError
    except (nacl.exceptions.BadSignatureError, ValueError):
        return False
    return True


def _encoded(key: bytes) -> str:
    return z85.encode(key).decode()


def load_keys(path: str | Path) -> KeyPair:
    """Return the key pair in a .key_secret file. Raises ConfigError if others may read it."""
    path = Path(path)
    _check_key_file(path)
    found = _settings_of(path)
    if "public-key" not in found:
        raise ConfigError(
            f"not a key file of `securemedian keygen`: {path}; name a file that has a public-key"
        )
    if "secret-key" not in found:
        raise ConfigError(f"a public key alone: {path}; name the .key_secret file next to it")
    return KeyPair(found["public-key"].encode(), found["secret-key"].encode())


def load_signing_key(path: str | Path) -> SigningKey:
    """Return the signing key in a server's .key_secret file. Raises ConfigError if none."""
    path = Path(path)
    _check_key_file(path)
    found = _settings_of(path)
    if not {"signing-key", "signing-secret"} <= set(found):
        raise ConfigError(
            f"no signing key, with which a server vouches for results: {path}; name the file of "
            "`securemedian keygen --role s0` or `s1`"
        )
    key = SigningKey(found["signing-key"], found["signing-secret"])
    if not is_signature(key.public, b"", key.sign(b"")):
        raise ConfigError(
            f"signing-key and signing-secret do not belong together: {path}; copy the file "
            "again from where `securemedian keygen` wrote it"
        )
    return key


def _check_key_file(path: Path) -> None:
    """Raise ConfigError if the file is missing, or if others than its owner may read it."""
    if not path.is_file():
        raise ConfigError(f"missing key file: {path}; make one with `securemedian keygen`")
    if others_may(path, 0o077):
        raise ConfigError(
            f"others may read the secret key: {path}; run chmod 600 {path}, and make new keys "
            "if anybody has read it"
        )


def _settings_of(path: Path) -> dict[str, str]:
    """Return the keys in a .key_secret file by name. Raises ConfigError if one is damaged."""
    named = _SETTING.findall(read_text(path))
    for name, key in named:
        if not is_public_key(key):
            # SECURITY: not the key itself, which may be the secret one
            raise ConfigError(
                f"damaged key file, whose {name} is not 40 characters of z85: "
                f"{path}{odd_in(key)}; copy the file again from where `securemedian keygen` "
                "wrote it"
            )
    return dict(named)


def is_public_key(key: object) -> TypeGuard[str]:
    """Return whether `key` is a public key, or a signing key, in z85."""
    try:
        return isinstance(key, str) and len(z85.decode(key)) == 32
    # z85 reports another length, other characters and five characters beyond 32 bits in three ways
    except (ValueError, KeyError, struct.error):
        return False


def check_public_key(key: str, kind: str = "public") -> None:
    """Raise ConfigError unless `key` is a public key in z85; a server has one of `kind` signing."""
    if not is_public_key(key):
        raise ConfigError(
            f"invalid {kind} key: {quoted(key)}{odd_in(key)}; paste the 40 characters after "
            f"`{kind}-key` in the .key file"
        )


def fingerprint(*keys: str) -> str:
    """Return what people compare over the telephone: 4 groups of 5 characters.

    These are the first 100 bits of the SHA-256 of the key's 32 bytes, in Crockford's base 32. For a
    server `keys` are its public key and its signing key, 64 bytes.
    """
    joined = b"".join(z85.decode(key) for key in keys)
    encoded = base64.b32encode(hashlib.sha256(joined).digest()).decode()
    spoken = encoded[:20].translate(_SPOKEN)
    return "-".join(spoken[start : start + 5] for start in range(0, 20, 5))


@dataclass(frozen=True)
class KeyPlace:
    """A place of a configuration that is for somebody else's public key."""

    # such as [peer], or [[clients]] 2
    table: str
    # the owner of the key
    name: str
    key: object
    # whether it is a server's, which has a signing key as well
    signs: bool = False
    signing_key: object = None

    @property
    def complete(self) -> bool:
        """Whether nothing is missing here."""
        return is_public_key(self.key) and (is_public_key(self.signing_key) or not self.signs)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the keys that stand here."""
        return fingerprint(*(key for key in (self.key, self.signing_key) if is_public_key(key)))


def key_places(values: dict[str, Any]) -> list[KeyPlace]:
    """Return the places for public keys in a configuration's TOML, as far as it has tables."""
    party = values.get("party")
    peer = "s1" if party == 0 else "s0" if party == 1 else "the other server"
    single = {"peer": peer, "s0": "s0", "s1": "s1"}
    places = [
        KeyPlace(
            f"[{table}]",
            name,
            values[table].get("public_key"),
            True,
            values[table].get("signing_key"),
        )
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
        f"{place.table}: {quoted(key)}{odd_in(key)}"
        for place in key_places(values)
        for key in (place.key, place.signing_key)
        if isinstance(key, str) and not is_public_key(key)
    ]
    if wrong:
        raise ConfigError(
            f"{where}: invalid public keys {cut(', '.join(wrong))}; fill them in with "
            "`securemedian keygen --join`, or paste the 40 characters after `public-key` (or "
            "`signing-key`) in the .key file"
        )
