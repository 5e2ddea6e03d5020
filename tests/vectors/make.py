"""Known answers, for another implementation: `python -m tests.vectors.make` writes them.

Random values come from fixed seeds, and `README.md` says how. `tests/test_vectors.py` checks that
the files are what this program makes.
"""

import hashlib
import json
import re
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import nacl.signing
import numpy as np
from numpy.typing import DTypeLike, NDArray
from zmq.utils import z85

from securemedian.common.keys import SigningKey
from securemedian.common.receipts import Receipt, Record
from securemedian.mpc.arrays import RingShare
from securemedian.mpc.protocols import compare, ring, share, wire
from securemedian.mpc.protocols.channel import Channel, local_pair
from securemedian.mpc.protocols.dealing import Dealing, deal
from securemedian.mpc.protocols.ot.base import BaseOtReceiver, BaseOtSender
from securemedian.mpc.protocols.ot.extension import Direction
from securemedian.mpc.protocols.ot.ggm import receiver_setup, sender_setup
from securemedian.mpc.protocols.ot.softspoken import SoftSpokenReceiver, SoftSpokenSender
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.methods.radix import Radix
from tests.parties import deterministic_entropy, make_parties, run_both

FOLDER = Path(__file__).parent
# longer ones are told by their SHA-256 and their first bytes
LONGEST = 512
FIRST = 32

Case = dict[str, Any]


def shares() -> list[Case]:
    """Return values shared over rings, and words shared by XOR."""
    cases = []
    for bits, xor in ((4, False), (5, False), (32, False), (64, False), (32, True)):
        values = _values(2, 9, bits)
        seeded, full = share.split(values, bits, deterministic_entropy(bits), xor)
        cases.append(
            {
                "bits": bits,
                "xor": xor,
                "values": values.tolist(),
                "s0": {"seed": seeded.seed.hex()},
                "s1": {"packed": told(full.packed)},
            }
        )
    return cases


def encodings() -> list[Case]:
    """Return real numbers in fixed point, in buckets and as words of `radix`."""
    values = np.array([-1e9, -1.5, -0.1, -0.0, 0.0, 1e-3, 0.1, 1.0, 2.75, np.inf])
    fixed = [
        {
            "encoding": "fixed point",
            "bits": bits,
            "fraction_bits": fraction,
            "headroom": headroom,
            "values": _floats(values),
            "elements": encode.to_fixed(values, bits, fraction, headroom).tolist(),
        }
        for bits, fraction, headroom in ((16, 8, 0), (32, 16, 4), (64, 24, 0))
    ]
    model, buckets = np.zeros(values.size), encode.UniformBuckets(2.0, 16)
    index = buckets.bucketize(values, model)
    bucketed = {
        "encoding": "buckets",
        "buckets": 16,
        "width": 2.0,
        "model": _floats(model),
        "values": _floats(values),
        "index": index.tolist(),
        "stands_for": _floats(buckets.quantize(index, model)),
    }
    radix = {
        "encoding": "radix float32",
        "values": _floats(values),
        "words": Radix().words(values).tolist(),
    }
    return [*fixed, bucketed, radix]


def dealings() -> list[Case]:
    """Return both halves of dealings, the rotations of an update, and what a check opens."""
    cases = []
    for dim, buckets, bits in ((16, 16, 4), (70, 6, 8)):
        shape, coin = Dealing(dim, buckets, bits), bytes(range(16))
        draws = _Draws(dim)
        dealt = deal(shape, draws)
        opened = dealt.opened(coin)
        index = np.arange(dim, dtype=np.uint16) % buckets
        seed, secret = draws.drawn
        (part,) = shape.parts
        cases.append(
            {
                "dim": dim,
                "buckets": buckets,
                "bits": bits,
                "partners": part.partners,
                "guards": part.guards,
                "seed_of_s0": seed.hex(),
                "secret": secret.hex(),
                "packed_of_s1": told(dealt.words.packed),
                "index": index.tolist(),
                "rotations": told(dealt.rotations(index)),
                "coin": coin.hex(),
                "opened_sha256": opened.hex(),
            }
        )
    return cases


def base_ots() -> list[Case]:
    """Return the messages and keys of base OTs."""
    session, choices, heard = b"a session", np.array([0, 1, 1], np.uint8), _Heard()
    one, two = heard.channels()
    draws = _Draws(1), _Draws(2)
    sender = BaseOtSender(one, session, draws[0])
    sender.announce()
    receiver = BaseOtReceiver(two, session, draws[1])
    pairs, keys = run_both(lambda j: receiver.keys(choices) if j else sender.keys(choices.size))
    return [
        {
            "session": session.hex(),
            "choices": choices.tolist(),
            "sender_draws": draws[0].told(),
            "receiver_draws": draws[1].told(),
            "messages": heard.messages,
            "sender_keys": [[key.hex() for key in pair] for pair in pairs],
            "receiver_keys": [key.hex() for key in keys],
        }
    ]


def ot_extension() -> list[Case]:
    """Return set-up and the first OTs of SoftSpokenOT, for each k."""
    return [_extended(field_bits) for field_bits in (1, 2, 4, 8)]


def _extended(field_bits: int) -> Case:
    session, count, heard = bytes(range(32)), 512, _Heard()
    one, two = heard.channels()
    draws = _Draws(3), _Draws(4)
    (delta, holes), leaves = run_both(
        lambda j: (
            receiver_setup(two, session, field_bits, draws[1])
            if j
            else sender_setup(one, session, field_bits, draws[0])
        )
    )
    sender = SoftSpokenSender(Direction(one, session, 0, 0), delta, holes)
    receiver = SoftSpokenReceiver(Direction(two, session, 0, 0), leaves)
    (choices, chosen), (keys0, keys1) = run_both(
        lambda j: sender.extend(count) if j else receiver.extend(count)
    )
    return {
        "field_bits": field_bits,
        "session": session.hex(),
        "lane": 0,
        "count": count,
        "sender_draws": draws[0].told(),
        "receiver_draws": draws[1].told(),
        "messages": heard.messages,
        "choices": told(choices),
        "receiver_keys": told(chosen),
        "sender_keys": [told(keys0), told(keys1)],
    }


def comparisons() -> list[Case]:
    """Return what both parties say and get when they compare, on OTs of a session of their own."""
    return [_compared(bits) for bits in (4, 16, 33)]


def _compared(bits: int) -> Case:
    heard, session, draws = _Heard(), bytes(16), (_Draws(5), _Draws(6))
    (first,), (second,) = make_parties(pairs=[heard.channels()], session_id=session, entropy=draws)
    values = _values(1, 64, bits)[0]
    mask = _values(1, 64, bits, seed=1)[0]
    halves = RingShare(mask), RingShare(ring.reduce(values - mask, bits))
    parties = first, second
    found = run_both(lambda j: compare.msb(parties[j], halves[j], bits))
    return {
        "bits": bits,
        "session": session.hex(),
        "protocol": ProtocolParams(lanes=1).agreement(),
        "draws": [each.told() for each in draws],
        "shares": [told(half) for half in halves],
        "messages": heard.messages,
        "shares_of_top_bits": [told(bits_) for bits_ in found],
    }


def receipts() -> list[Case]:
    """Return a record, its canonical bytes and both signatures."""
    record = Record(
        "service", 1, "", "7-0123", 7, {"method": "radix", "dim": 3},
        ["a", "b", "c"], {"its update is late": ["d"]}, bytes(32), bytes(range(32)),
    )  # fmt: skip
    receipt, keys = Receipt(record.encode()), {}
    for number, server in enumerate(("s0", "s1")):
        seed = bytes([number + 1]) * 32
        public = bytes(nacl.signing.SigningKey(seed).verify_key)
        key = SigningKey(*(z85.encode(each).decode() for each in (public, seed)))
        keys[server] = {"seed": seed.hex(), "public": public.hex(), "public_z85": key.public}
        receipt = receipt.signed(server, key)
    return [
        {
            "receipt": receipt.to_dict(),
            "signing_keys": keys,
            "encoded": receipt.encoded.hex(),
            "signatures": {name: each.hex() for name, each in receipt.signatures.items()},
        }
    ]


def messages() -> list[Case]:
    """Return frames of the wire."""
    cases: list[tuple[str, dict[str, Any], dict[str, NDArray[Any]]]] = [
        ("info", {}, {}),
        ("upload", {"round": "7-0123", "row": 0}, {"words": np.arange(3, dtype=np.uint64)}),
        (
            "result",
            {"number": 7, "of": ["a", "b"], "rate": 0.5, "none": None, "done": True},
            {"model": np.array([[1.5, -2]], np.float32), "choices": np.array([1, 0], np.uint8)},
        ),
    ]
    return [
        {
            "type": kind,
            "fields": fields,
            "arrays": {name: told(array) for name, array in arrays.items()},
            "parts": [bytes(part).hex() for part in wire.pack(kind, fields, arrays)],
        }
        for kind, fields, arrays in cases
    ]


FILES: dict[str, Callable[[], list[Case]]] = {
    "shares": shares,
    "encodings": encodings,
    "dealings": dealings,
    "base-ots": base_ots,
    "ot-extension": ot_extension,
    "comparisons": comparisons,
    "receipts": receipts,
    "messages": messages,
}


def text_of(name: str) -> str:
    """Return what the file of this name has."""
    text = json.dumps(FILES[name](), indent=1)
    # lists of numbers and texts on one line each
    return re.sub(r"\[\s+([^][{}]*?)\s+\]", _one_line, text) + "\n"


def _one_line(found: re.Match[str]) -> str:
    return f"[{' '.join(found[1].split())}]"


class _Draws:
    """A source of bytes that can be repeated, and what was drawn of it."""

    def __init__(self, seed: int) -> None:
        self._seed, self._entropy = seed, deterministic_entropy(seed)
        self.drawn: list[bytes] = []

    def __call__(self, count: int) -> bytes:
        drawn = self._entropy(count)
        self.drawn.append(drawn)
        return drawn

    def told(self) -> Case:
        """Return the seed, and of how many bytes the draws were: [bytes, times]."""
        sizes = [[size, len(list(same))] for size, same in groupby(map(len, self.drawn))]
        return {"seed": self._seed.to_bytes(16, "little").hex(), "draws": sizes}


class _Heard:
    """Two connected channels, and the messages over them: those to either party in their order."""

    def __init__(self) -> None:
        self.messages: dict[str, list[Case]] = {"to_first": [], "to_second": []}

    def channels(self) -> tuple[Channel, Channel]:
        one, other = local_pair(20)
        return _Ear(one, self.messages["to_first"]), _Ear(other, self.messages["to_second"])


class _Ear(Channel):
    def __init__(self, channel: Channel, kept: list[Case]) -> None:
        super().__init__(channel._link)
        self._kept = kept

    def recv(self, label: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """Receive as a channel does, and note the message."""
        array = super().recv(label, dtype, shape)
        self._kept.append({"label": label, **told(array)})
        return array


def _values(rows: int, columns: int, bits: int, seed: int = 0) -> NDArray[Any]:
    """Return ring elements, the largest and the smallest among them."""
    words = np.frombuffer(deterministic_entropy(100 + seed)(8 * rows * columns), np.uint64).reshape(
        rows, columns
    )
    found = ring.reduce(words, bits)
    found[0, :2] = 0, found.dtype.type(2**bits - 1)
    return found


def told(array: NDArray[Any]) -> Case:
    data = np.ascontiguousarray(array).tobytes()
    about: Case = {"dtype": array.dtype.str, "shape": list(array.shape)}
    if len(data) <= LONGEST:
        return about | {"bytes": data.hex()}
    return about | {"sha256": hashlib.sha256(data).hexdigest(), "first": data[:FIRST].hex()}


def _floats(values: NDArray[np.float64]) -> list[str]:
    """Return float64 as hexadecimal texts, which lose nothing, and of which JSON has infinity."""
    return list(map(float.hex, values.tolist()))


if __name__ == "__main__":
    for file in FILES:
        (FOLDER / f"{file}.json").write_text(text_of(file), "utf-8")
