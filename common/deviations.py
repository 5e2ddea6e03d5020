"""The record that a server signs once the other one is proved to have deviated."""

from dataclasses import dataclass
from typing import Self

import msgpack

from securemedian.common.keys import SigningKey, is_signature
from securemedian.mpc.canonical import build, flat
from securemedian.mpc.errors import ConfigError, ReceiptInvalid, cut, quoted

# The signed bytes begin with this, so that the signature does not fit a receipt.
_DOMAIN = b"securemedian deviation 1\0"


@dataclass(frozen=True)
class Deviation:
    """A server's word that the other one has deviated. It proves only who says so."""

    service: str
    # the server that says so: s0 or s1
    server: str
    cohort: str
    # the round's id, and the digest of its parameters in hex digits
    round: str
    params: str
    # the deviation in words
    what: str
    # seconds of the epoch, at this server
    time: float

    def encode(self) -> bytes:
        """Return the canonical bytes: the msgpack map of the fields, in their order."""
        encoded: bytes = msgpack.packb(flat(self))
        return encoded

    def signed(self, key: SigningKey) -> dict[str, str]:
        """Return the canonical bytes and a server's signature of them, in hex digits."""
        encoded = self.encode()
        return {"record": encoded.hex(), "signature": key.sign(_DOMAIN + encoded).hex()}

    @classmethod
    def check(cls, said: dict[str, str], signing_key: str) -> Self:
        """Return what `signed` returned. Raises ReceiptInvalid unless this key has signed it."""
        try:
            encoded = bytes.fromhex(said["record"])
            signature = bytes.fromhex(said["signature"])
            deviation = build(cls, msgpack.unpackb(encoded), "a deviation")
        except (ConfigError, KeyError, TypeError, ValueError, msgpack.UnpackException) as error:
            raise ReceiptInvalid(
                f"invalid deviation record: {cut(str(error))}; ask the server for it again"
            ) from error
        if not is_signature(signing_key, _DOMAIN + encoded, signature):
            raise ReceiptInvalid(
                f"deviation record not signed by this key: {quoted(signing_key)}; compare the "
                "signing key in your file with the server's"
            )
        return deviation
