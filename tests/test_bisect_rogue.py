"""A server that deviates in a round with security malicious: what it learns, and what is said."""

from functools import partial

import numpy as np
import pytest

from securemedian.mpc.errors import ChannelClosed, PeerDeviated
from securemedian.mpc.protocols.audit.opening import Opener
from securemedian.mpc.protocols.channel import Channel
from tests.parties import run_both
from tests.rogue.attacks import entropy
from tests.rogue.bisecting import OF_PRODUCTS, PLACES, ROWS, Signs, spy, told_fold
from tests.rogue.hooks import Array, replace
from tests.test_bisect import RNG, Round, rogue_run

DIM = 1024
ALL = ROWS | OF_PRODUCTS


def digits(buckets: Array, steps: int) -> Array:
    """Return the first digits of buckets (d,): (steps, d), 1 where H(y) < k."""
    return np.array([buckets >> step & 1 for step in reversed(range(4))][:steps], np.uint8)


def beyond(round_: Round, spoils: Signs, lanes: int) -> float:
    """Return the bits per coordinate that the rogue learns beyond the digits of the median."""
    total, medians = 0.0, round_.medians()
    for lane in range(lanes):
        signs = np.array(spoils.of(lane), np.uint8)
        ends = range(lane * round_.chunk, DIM, lanes * round_.chunk)
        own = np.concatenate([medians[i : i + round_.chunk] for i in ends])
        if len(signs):
            true = digits(own, 4)
            both = np.concatenate([true, signs])
            total += (entropy(both) - entropy(true)) * own.size / DIM
    return total


def attack(
    name: str, rogue: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[float, dict[int, BaseException]]:
    """Return what party `rogue` learns, in bits per coordinate, and how both servers end."""

    round_ = Round(RNG.integers(0, 16, (9, DIM)), lanes=2, chunk=256)
    until_the_end = partial(replace, put=monkeypatch.setattr)
    spoils, errors = spy(until_the_end, rogue), dict[int, BaseException]()
    if name:
        ALL[name][0](until_the_end, rogue)
    rogue_run(round_, errors)
    return beyond(round_, spoils, 2), errors


@pytest.mark.parametrize("rogue", [0, 1])
@pytest.mark.parametrize("name", ["", *ALL])
def test_a_rogue_server_learns_the_digits_of_the_median_alone(
    name: str, rogue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    learnt, errors = attack(name, rogue, monkeypatch)
    assert learnt == 0
    if name:
        said = errors[1 - rogue]
        assert isinstance(said, PeerDeviated) and ALL[name][1] in str(said)
    else:
        assert not errors


def test_it_would_learn_more_from_a_server_that_does_not_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Opener, "exchange", lambda *given: Opener.tell(*given)[0])
    learnt, errors = attack("rank", 1, monkeypatch)
    assert learnt > 0.5 and not errors


def test_errors_would_cancel_in_a_hash_whose_key_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mix no toss into the key: another digit is published, and nobody notices."""
    monkeypatch.setattr(Opener, "mix", lambda *_: None)
    round_, errors = Round(np.full((5, DIM), 7), lanes=2, chunk=256), dict[int, BaseException]()
    ROWS["cancel"][0](partial(replace, put=monkeypatch.setattr), 1)
    found = rogue_run(round_, errors)
    assert not errors and (found[0] == found[1]).all()
    assert 4 <= (found[0] != 7).sum() <= 4 * PLACES


class Broken(Channel):
    """A channel that breaks before message `left` of this end is sent."""

    def __init__(self, channel: Channel, left: int) -> None:
        super().__init__(channel._link)
        self.left = left

    def send(self, label: str, array: Array) -> None:
        self.left -= 1
        if self.left < 0:
            self.close()
            raise ChannelClosed("broken on purpose")
        super().send(label, array)


def test_whoever_breaks_off_learns_digits_of_one_set_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Server 1 breaks off at each message, and takes a client out if nothing was opened.

    It gets a share of a sign only after server 0 has stored that it sends one, and no broken link
    is a deviation.
    """

    spoils = spy(partial(replace, put=monkeypatch.setattr), 1)
    round_ = Round(RNG.integers(0, 16, (4, 40)), lanes=1)
    medians, opened_first, whole = round_.medians(), 0, 0
    for left in range(200):
        spoils.shares.clear()
        spoils.theirs.clear()
        round_.marks.clear()
        round_.again()
        one, other = round_.pairs[0]
        broken = Broken(other, left)
        round_.pairs = [(one, broken)]
        errors: dict[int, BaseException] = {}
        rogue_run(round_, errors)
        signs = spoils.of(0)
        if broken.left >= 0:
            # it came to the end
            whole = left
            assert not errors
            break
        # server 0 may have all digits when the last share of server 1 is on its way
        assert all(isinstance(error, ChannelClosed) for error in errors.values())
        assert (np.array(signs, np.uint8) == digits(medians, len(signs))).all()
        if "opened 0" in round_.marks:
            opened_first = opened_first or left
            continue
        assert not signs
        # the others are bound in another session: tried after every fourth message
        if left % 4 == 0:
            round_.again()
            for found in run_both(partial(round_.run, who=[0, 1, 3])):
                assert (found == round_.medians([0, 1, 3])).all()
    # messages before the first sign, and after it
    assert 40 < opened_first < whole - 3


def test_a_server_that_tells_wrong_folds_takes_clients_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody is accused, because it might be the clients; and nothing was opened."""

    until_the_end = partial(replace, put=monkeypatch.setattr)
    round_, spoils = Round(RNG.integers(0, 16, (3, 64)), lanes=1), spy(until_the_end, 1)
    told_fold(until_the_end, 1)

    def run(number: int) -> None:
        one = round_.bind(number)
        assert one.compare(round_.folds(number, one.toss())) == [False] * 3

    run_both(run)
    assert not spoils.of(0) and "opened 0" not in round_.marks
