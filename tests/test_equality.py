"""The comparison of what must be the same at both parties."""

from collections.abc import Callable

import numpy as np
import pytest

from securemedian.mpc.arrays import Words
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import PeerDeviated, SecureMedianError
from securemedian.mpc.protocols.audit.equality import Compared, settle
from securemedian.mpc.protocols.channel import Channel, local_pair
from securemedian.mpc.protocols.group import to_group
from tests.parties import run_both
from tests.test_privacy import Recorder

SAME = np.arange(100, dtype=np.uint64)


def settled(*arrays: np.ndarray, times: int = 1) -> list[str]:
    """Return what each party says of the arrays that the two have; "" if they are the same."""
    pair = local_pair(20)

    def run(number: int) -> str:
        try:
            for _ in range(times):
                settle(pair[number], number, arrays[number], "these arrays")
        except PeerDeviated as error:
            return str(error)
        return ""

    return list(run_both(run))


def test_the_same_passes_again_and_again() -> None:
    assert settled(SAME, SAME, times=3) == ["", ""]
    assert settled(SAME[:0], SAME[:0]) == ["", ""]


@pytest.mark.parametrize("place", [0, 99])
def test_one_bit_that_differs_is_found_by_both(place: int) -> None:
    other = SAME.copy()
    other[place] ^= np.uint64(1)
    assert settled(SAME, other) == ["these arrays do not agree"] * 2


def test_what_is_missing_is_found() -> None:
    assert all(settled(SAME, SAME[:-1]))


class Changing(Channel):
    """A channel of a party that changes what it sends under a label, seeing what came before."""

    def __init__(self, channel: Channel, label: str, change: Callable[[Words], Words]) -> None:
        super().__init__(channel._link)
        self._label, self._change = label, change

    def exchange(self, label: str, array: Words, shape: tuple[int, ...] | None = None) -> Words:
        if label != self._label:
            return super().exchange(label, array, shape)
        theirs = self.recv(label, array.dtype, array.shape)
        self.send(label, self._change(theirs))
        return theirs


# an invalid point, one outside the prime-order group, and one off the curve
POINTS = [
    bytes(32),
    bytes([1] + 31 * [0]),
    bytes([236] + 30 * [255] + [127]),
    bytes([2] + 31 * [0]),
]


@pytest.mark.parametrize("label", ["toss.open", "audit.hidden", "audit.proof"])
@pytest.mark.parametrize(
    "change",
    [lambda theirs: theirs, lambda theirs: theirs ^ np.uint64(1), lambda theirs: theirs[:-1]]
    + [lambda theirs, point=point: np.frombuffer(point, np.uint64) for point in POINTS],
)
def test_another_message_is_a_deviation(label: str, change: Callable[[Words], Words]) -> None:
    """Sent back, changed, cut short, or no point: that the digests are the same does not help."""
    pair = local_pair(20)
    rogue = Changing(pair[1], label, change)

    def run(number: int) -> type[Exception] | None:
        try:
            settle(rogue if number else pair[0], number, SAME, "these arrays")
        except SecureMedianError as error:
            pair[number].close()
            return type(error)
        return None

    assert run_both(run)[0] is PeerDeviated


def test_no_digest_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is the point that it is hashed to: whoever could compute either would try guesses."""
    digests, true_digest = list[bytes](), Compared.digest

    def digest_of(compared: Compared) -> bytes:
        digests.append(true_digest(compared))
        return digests[-1]

    monkeypatch.setattr(Compared, "digest", digest_of)
    pair = [Recorder(end) for end in local_pair(20)]

    def run(number: int) -> None:
        with pytest.raises(PeerDeviated, match="these arrays do not agree"):
            settle(pair[number], number, SAME + np.uint64(number), "these arrays")

    run_both(run)
    assert len(set(digests)) == 2
    hashed = [to_group(digest("audit digest", each)) for each in digests]
    heard = b"".join(array.tobytes() for end in pair for _, array in end.received)
    assert not any(each in heard for each in [*digests, *hashed])
