"""The receipt of a round: the record of what was computed, which both servers sign.

Both servers make the same `Record` of a round that has a result, and each signs it with its Ed25519
key. With both signatures it is the round's `Receipt`, which proves to anybody who knows the two
public signing keys what the servers vouch for, and needs no server.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self

import msgpack

import securemedian
from securemedian.common.keys import SERVERS, SigningKey, is_signature
from securemedian.common.versions import RECEIPT, VOTE
from securemedian.mpc.arrays import Words
from securemedian.mpc.canonical import build, flat
from securemedian.mpc.errors import ConfigError, ReceiptInvalid, cut, quoted
from securemedian.mpc.rounds.params import RoundParams

SERVICE = "securemedian"
# why a client of whom both servers hold an upload, each another one, is left out
DIFFERENT = "it sent different uploads to the two servers"
# The signed bytes begin with this, so that a signature of a record fits nothing else.
_DOMAIN = b"securemedian receipt 1\0"


def for_those_left(params: RoundParams, reasons: Iterable[str]) -> RoundParams:
    """Return the parameters that a round is computed with, by the reasons of who was left out.

    There is a reason for each of these clients. A client that failed the check, or sent two uploads
    that differ, counts as faulty; one of which an upload is missing does not.
    """
    return params.without(sum(why in (DIFFERENT, params.form.fault) for why in reasons))


@dataclass(frozen=True)
class Record:
    """The facts that both servers vouch for. Clients are named by their public keys, sorted."""

    # securemedian
    service: str
    # of the form of the record (`versions.RECEIPT`, or VOTE); both servers write the same
    version: int
    # its name
    cohort: str
    # the round's id and number
    round: str
    number: int
    # `RoundParams.to_dict`
    params: dict[str, Any]
    # those whose updates were computed on
    included: list[str]
    # those of whom a server holds an upload, or that failed a check, and that were left out all the
    # same, by the reason for it
    left_out: dict[str, list[str]]
    # `RunState.digest` of the round's start, which S0 knows and S1 was told beforehand: of range
    # policy, optimiser, number, and shape and SHA-256 of model, scale and moments
    start: bytes
    # `digest_of` the opened values; empty where the result is for the clients alone
    opened: bytes
    # the group of each of those in `included`, where groups are visible
    groups: list[int] = field(default_factory=list)
    # those whom the coordinator let take part; empty if that was the whole cohort
    participants: list[str] = field(default_factory=list)
    # whether the coordinator let others take part than in an earlier attempt at the number
    released: bool = False
    # whether both servers refuse what one of them could turn into more than a bounded leak
    one_malicious_server: bool = False
    # how often the protocol may have run for it at most: each run opens values
    runs: int = 1
    # the rho of zCDP that the cohort's results, this one included, have cost each client
    # (`mpc.rounds.privacy`); None if one of them had no noise
    zcdp_rho: float | None = None

    def __post_init__(self) -> None:
        lists = [self.included, self.participants, *self.left_out.values()]
        texts = [self.service, self.cohort, self.round, *self.left_out]
        if not all(map(str.isprintable, [*texts, *(key for keys in lists for key in keys)])):
            raise ConfigError(
                f"a text has characters that servers never write: {quoted(texts)}; keep to "
                "printable ones"
            )

    @property
    def reasons(self) -> list[str]:
        """Return why each client in `left_out` is."""
        return [why for why, keys in self.left_out.items() for _ in keys]

    def encode(self) -> bytes:
        """Return the canonical bytes: the msgpack map of the fields, in their order."""
        encoded: bytes = msgpack.packb(flat(self))
        return encoded

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Return the record with these canonical bytes. Raises ReceiptInvalid for others."""
        try:
            values = msgpack.unpackb(encoded)
            _check_version(values)
            record = build(cls, values, "the record of a receipt")
        except (ConfigError, TypeError, ValueError, msgpack.UnpackException) as error:
            raise ReceiptInvalid(
                f"invalid record of a round: {cut(str(error))}; use the bytes that a server sent"
            ) from error
        if record.encode() != encoded:
            raise ReceiptInvalid(
                f"invalid record of a round, not canonical: {len(encoded)} bytes; use the bytes "
                "that a server sent"
            )
        return record


@dataclass(frozen=True)
class Receipt:
    """A record in its canonical bytes, and its signatures by the name of the server."""

    encoded: bytes
    signatures: Mapping[str, bytes] = field(default_factory=dict)

    @cached_property
    def record(self) -> Record:
        """The record. Raises ReceiptInvalid if the bytes are none."""
        return Record.decode(self.encoded)

    def signed(self, server: str, key: SigningKey) -> Self:
        """Return the receipt with the signature of a server."""
        return self.with_signature(server, key.sign(_DOMAIN + self.encoded))

    def with_signature(self, server: str, signature: bytes) -> Self:
        """Return the receipt with this signature, which is not checked."""
        return replace(self, signatures={**self.signatures, server: signature})

    def is_signed(self, server: str, signing_key: str) -> bool:
        """Return whether it has a server's signature that fits this public signing key."""
        signature = self.signatures.get(server, b"")
        return is_signature(signing_key, _DOMAIN + self.encoded, signature)

    def check(self, signing_keys: Sequence[str], vote: bool = False) -> None:
        """Raise ReceiptInvalid, which names the server, unless both servers have signed it.

        They have signed it for a result, or with `vote` for a vote.
        """
        if (self.record.version == VOTE) is not vote:
            raise ReceiptInvalid(
                "the record of a vote stands for that of a result, or the reverse: round "
                f"{quoted(self.record.round)}; ask for the receipt of the round"
            )
        wrong = [
            server
            for server, key in zip(SERVERS, signing_keys, strict=True)
            if not self.is_signed(server, key)
        ]
        if wrong:
            raise ReceiptInvalid(
                f"the receipt is not signed by {' and '.join(wrong)}: round "
                f"{quoted(self.record.round)}; the record was changed, or correct the signing key "
                "here if it is not the server's"
            )

    # As a map of plain texts and numbers: in JSON, in msgpack, and in files

    def to_dict(self) -> dict[str, Any]:
        """Return the record's fields and the signatures, with bytes as hex digits."""
        record = {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in flat(self.record).items()
        }
        return {
            "record": record,
            "signatures": {name: signature.hex() for name, signature in self.signatures.items()},
        }

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Return the receipt that `to_dict` took apart. Raises ReceiptInvalid if there is none."""
        try:
            if not isinstance(values, dict) or set(values) != {"record", "signatures"}:
                raise ConfigError(
                    f"a receipt has `record` and `signatures`: {quoted(values)}; use the file "
                    "unchanged"
                )
            hexes = {each.name for each in fields(Record) if each.type is bytes}
            given = {
                name: bytes.fromhex(value) if name in hexes else value
                for name, value in dict(values["record"]).items()
            }
            _check_version(given)
            record = build(Record, given, "record")
            signatures = {
                str(name): bytes.fromhex(value)
                for name, value in dict(values["signatures"]).items()
            }
            return cls(record.encode(), signatures)
        except (ConfigError, OverflowError, TypeError, ValueError) as error:
            raise ReceiptInvalid(
                f"invalid receipt: {cut(str(error))}; use the file that `round result` wrote"
            ) from error

    def to_json(self) -> str:
        """Return the text of a receipt file."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the receipt in the text of a file. Raises ReceiptInvalid if there is none."""
        try:
            return cls.from_dict(json.loads(text))
        except ValueError as error:
            raise ReceiptInvalid(
                f"invalid receipt: {error}; use the file that `round result` wrote"
            ) from error


def _check_version(values: object) -> None:
    """Raise ConfigError if the fields of a record are those of a version that is not read here."""
    version = values.get("version") if isinstance(values, dict) else None
    known = type(version) is int and (1 <= version <= RECEIPT or version == VOTE)
    if version is not None and not known:
        raise ConfigError(
            f"unknown version: {quoted(version)}, and release {securemedian.__version__} reads "
            f"versions up to {RECEIPT}; read it with the release that wrote it, or a later one"
        )


def digest_of(opened: Words) -> bytes:
    """Return the SHA-256 of opened values as they are sent: packed, in little-endian words."""
    return hashlib.sha256(opened.astype("<u8", copy=False).tobytes()).digest()


def differences(one: Record, other: Record) -> str:
    """Return the names of the fields in which two records differ."""
    names = [
        each.name for each in fields(Record) if getattr(one, each.name) != getattr(other, each.name)
    ]
    return ", ".join(names)
