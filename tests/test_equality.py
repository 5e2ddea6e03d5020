"""The comparison of what must be the same at both parties."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.arrays import Words
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import PeerDeviated, SecureMedianError
from securemedian.mpc.protocols.audit.equality import Compared, Equality
from securemedian.mpc.protocols.channel import Channel, local_pair
from securemedian.mpc.protocols.group import to_group
from tests.parties import run_both
from tests.test_privacy import Recorder

SAME: list[Any] = [
    np.arange(100, dtype=np.uint64),
    np.ones((3, 5), np.uint8),
    np.zeros(0, np.uint16),
]


def settled(*collected: list[Any], times: int = 1) -> list[str]:
    """Return what each party says of arrays that the two have collected; "" if all are the same."""
    pair = local_pair(20)

    def run(number: int) -> str:
        equality = Equality(pair[number], number)
        try:
            for _ in range(times):
                for array in collected[number]:
                    equality.add(array)
                equality.settle("the test")
        except PeerDeviated as error:
            return str(error)
        return ""

    return list(run_both(run))


def test_the_same_passes_again_and_again() -> None:
    assert settled(SAME, SAME, times=3) == ["", ""]


@pytest.mark.parametrize("array, place", [(0, 0), (0, 99), (1, (2, 4))])
def test_one_bit_that_differs_is_found_by_both(array: int, place: Any) -> None:
    other = [each.copy() for each in SAME]
    other[array][place] ^= 1
    said = settled(SAME, other)
    assert said == ["the test do not agree"] * 2


def test_what_is_missing_is_found() -> None:
    assert all(settled(SAME, SAME[:1]))


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
        equality = Equality(rogue if number else pair[0], number)
        equality.add(SAME[0])
        try:
            equality.settle("the test")
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
        equality = Equality(pair[number], number)
        equality.add(SAME[number])
        with pytest.raises(PeerDeviated, match="the test do not agree"):
            equality.settle("the test")

    run_both(run)
    assert len(set(digests)) == 2
    hashed = [to_group(digest("audit digest", each)) for each in digests]
    heard = b"".join(array.tobytes() for end in pair for _, array in end.received)
    assert not any(each in heard for each in [*digests, *hashed])
