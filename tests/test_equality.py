"""The comparison of what must be the same at both parties."""

from typing import Any

import numpy as np
import pytest

from securemedian.mpc.errors import PeerDeviated, PeerProtocolError
from securemedian.mpc.protocols.audit.equality import Equality
from securemedian.mpc.protocols.channel import local_pair
from securemedian.mpc.protocols.dealing import toss
from tests.parties import run_both

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


def test_a_digest_cannot_be_sent_back() -> None:
    """A party that waits for the other's messages, and sends them back, has committed to itself."""
    mine, theirs = local_pair(20)

    def run(number: int) -> None:
        if number == 0:
            equality = Equality(mine, 0)
            equality.add(SAME[0])
            with pytest.raises(PeerProtocolError, match="another digest"):
                equality.settle("the test")
            return
        # an honest toss, and then an echo
        toss(theirs, 1)
        for label, words in (("audit.commit", 4), ("audit.open", 8)):
            theirs.send(label, theirs.recv(label, np.uint64, (words,)))

    run_both(run)
