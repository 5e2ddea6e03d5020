"""Comparing what must be the same at both parties, of which neither may see the other's.

Each party has an array. Once both are fixed, the two toss the key of a universal hash
(`dealing.Differences`). Arrays that differ anywhere, also by one party's choice, have the same
digest with a chance below 2^-90, up to 2^41 bytes of them. One key is enough beside the 2^-40 of
all else.

No digest is opened. One that does not match would tell whoever has caused it which of its guesses
of the other's arrays is right, off line and one after another. The parties compare the digests p of
party 0 and q of party 1 by Diffie and Hellman, with G a hash to the group and fresh secrets a, b:

    A = a G(p),   B = b G(q)                                        exchanged
    H(j, A, B, a B),  a B of party 0 and b A of party 1             exchanged

Both a B and b A are a b G(p) if p = q. If p is not q, a party that deviates cannot compute the
digest that the other one expects. It can try no other guess than the q of its B. Both would solve
computational Diffie-Hellman. So it learns one bit, whether that guess is right. The party's number
in the hash keeps it from sending the other's back.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import PeerDeviated, PeerProtocolError
from securemedian.mpc.protocols.channel import Channel, Planned, both_ways
from securemedian.mpc.protocols.dealing import Differences, toss, toss_messages
from securemedian.mpc.protocols.group import POINT_BYTES, multiply, scalar, to_group
from securemedian.mpc.protocols.prg import Entropy, os_entropy

DIGEST_BYTES = hashlib.sha256().digest_size


class Compared(Differences):
    """A digest of what one party has."""

    KEYS = 1


def settle(
    channel: Channel,
    number: int,
    array: NDArray[np.generic],
    what: str,
    entropy: Entropy = os_entropy,
) -> None:
    """Compare an array with the other party's, which does the same, in four rounds.

    Raises PeerDeviated, which says `what` is wrong, if they differ, or if the peer sends something
    that is not of this comparison. SECURITY: the array has to be fixed by what was sent before,
    because the keys of the hash are known after the toss.
    """
    hashed = Compared(toss(channel, number, entropy))
    hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    differ, secret = PeerDeviated(f"{what} do not agree"), scalar(entropy)
    hidden = multiply(secret, to_group(digest("audit digest", hashed.digest())), "a hash")
    try:
        theirs = channel.exchange("audit.hidden", _words(hidden)).tobytes()
        shared = multiply(secret, theirs, "audit.hidden")
        pair = (hidden, theirs) if number == 0 else (theirs, hidden)
        mine, due = (digest("audit proof", who, *pair, shared) for who in (number, 1 - number))
        proof = channel.exchange("audit.proof", _words(mine))
    except PeerProtocolError as error:
        raise PeerDeviated(f"{differ}: {error}") from None
    if proof.tobytes() != due:
        raise differ


def settling() -> Iterator[Planned]:
    """Yield what each party sends (True) and receives (False) in `settle`, in its order."""
    yield from toss_messages()
    yield from both_ways("audit.hidden", POINT_BYTES // 8)
    yield from both_ways("audit.proof", DIGEST_BYTES // 8)


def _words(data: bytes) -> NDArray[np.uint64]:
    return np.frombuffer(data, np.uint64)
