"""Openings, against a server that waits for the other's share before it chooses its own.

The attacks are those of a review of 1.0.0, where they read what they wanted and passed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.arrays import RingShare, Words, XorBits
from securemedian.mpc.errors import (
    ChannelClosed,
    ChannelTimeout,
    PeerDeviated,
    SecureMedianError,
)
from securemedian.mpc.protocols import lengths, share, wire
from securemedian.mpc.protocols.audit.equality import settle
from securemedian.mpc.protocols.boolean import pack_bits
from securemedian.mpc.protocols.channel import (
    NONCE_WORDS,
    Channel,
    frame_size,
    local_pair,
    opening_messages,
)
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.prg import os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import check_values
from tests.parties import make_parties, run_both

RNG = np.random.default_rng(41)
# the rogue's message instead of its opening, given that and what the other party has opened
Choose = Callable[[Words, Words], Words]
DIM = 128
# rows of clients whose median is bucket 7, of whom one is elsewhere
REST, CLIENTS = 7, 5


def nonce() -> Words:
    return np.frombuffer(os_entropy(8 * NONCE_WORDS), np.uint64)


def rush(channel: Channel, label: str, choose: Choose) -> None:
    """Let a channel wait for what the other party opens."""
    true = channel.exchange

    def exchange(given: str, array: Words, shape: tuple[int, ...] | None = None) -> Words:
        if given != label:
            return true(given, array, shape)
        theirs = channel.recv(given, array.dtype, array.shape if shape is None else shape)
        channel.send(given, choose(array, theirs))
        return theirs

    setattr(channel, "exchange", exchange)  # noqa: B010


def outcomes(function: Callable[[int], Any]) -> list[Any]:
    """Return what both parties return, or their errors of this project."""

    def run(number: int) -> Any:
        try:
            return function(number)
        except SecureMedianError as error:
            return error

    return list(run_both(run))


# The opening itself


def test_an_opening_gives_each_party_the_others_words_in_two_rounds() -> None:
    pair = local_pair(20)
    words = RNG.integers(0, 2**64, (2, 5), np.uint64)
    opened = run_both(lambda j: pair[j].open("open.bits", j, words[j], nonce()))
    assert [each.tolist() for each in opened] == words[::-1].tolist()
    planned = [
        frame_size(label, dtype, shape)
        for sent, label, dtype, shape in opening_messages("open.bits", 5 + NONCE_WORDS)
        if sent
    ]
    for end in pair:
        assert (end.traffic.rounds, end.traffic.bytes_sent) == (2, sum(planned))


@pytest.mark.parametrize(
    "choose",
    [
        lambda mine, theirs: mine ^ np.uint64(1),
        # this makes the other see zeros
        lambda mine, theirs: theirs,
        lambda mine, theirs: np.concatenate([theirs[:-NONCE_WORDS], mine[-NONCE_WORDS:]]),
        # the right words under another nonce, and others under the right one
        lambda mine, theirs: np.concatenate([mine[:-NONCE_WORDS], nonce()]),
        lambda mine, theirs: mine[:-1],
        lambda mine, theirs: mine.astype(np.uint32),
        lambda mine, theirs: mine[None],
    ],
)
def test_another_opening_is_a_deviation(choose: Choose) -> None:
    pair = local_pair(20)
    rush(pair[1], "open.bits", choose)
    words = RNG.integers(0, 2**64, (2, 5), np.uint64)
    found = outcomes(lambda j: pair[j].open("open.bits", j, words[j], nonce()))[0]
    assert isinstance(found, PeerDeviated) and "is not what it has committed to" in str(found)


MESSAGES = (("commit.bits", 4), ("open.bits", 2 + NONCE_WORDS))


@pytest.mark.parametrize("heard", [0, 1])
def test_the_others_commitment_cannot_be_sent_back(heard: int) -> None:
    """Neither on its own lane, nor that of one lane on another."""
    lanes = [local_pair(20) for _ in range(2)]
    words = RNG.integers(0, 2**64, 2, np.uint64)

    def run(number: int) -> Any:
        if number == 0:
            for lane in lanes[1 : heard + 1]:
                open_lane(lane[0])
            return lanes[0][0].open("open.bits", 0, words, nonce())
        for label, size in MESSAGES:
            lanes[0][1].send(label, lanes[heard][1].recv(label, np.uint64, (size,)))
        return None

    def open_lane(channel: Channel) -> None:
        """Say what an honest party says, without waiting for an answer."""
        quiet = Channel(channel._link)
        quiet.recv = lambda label, dtype, shape: np.zeros(shape, dtype)  # type: ignore[method-assign]
        quiet.check_opening = lambda *given: None  # type: ignore[method-assign]
        quiet.open("open.bits", 0, words, nonce())

    assert isinstance(outcomes(run)[0], PeerDeviated)


def test_an_old_commitment_cannot_be_sent_again() -> None:
    pair, words = local_pair(20), RNG.integers(0, 2**64, 2, np.uint64)
    old = list[tuple[str, Words]]()

    def run(number: int) -> Any:
        if number == 0:
            pair[0].open("open.bits", 0, words, nonce())
            return pair[0].open("open.bits", 0, words, nonce())
        true = pair[1].send

        def send(label: str, array: Words) -> None:
            old.append((label, array))
            true(label, array)

        setattr(pair[1], "send", send)  # noqa: B010
        pair[1].open("open.bits", 1, words, nonce())
        for label, array in old[:]:
            true(label, array)
        return None

    assert isinstance(outcomes(run)[0], PeerDeviated)


@pytest.mark.parametrize("lost", range(6))
@pytest.mark.parametrize("alone", [True, False])
def test_a_link_that_fails_makes_nobody_say_that_the_other_deviated(lost: int, alone: bool) -> None:
    """Lose each message of an opening and of a comparison, alone or with all after it."""
    pair, sent = local_pair(1), 0
    true = pair[1]._link.send

    def send(parts: Sequence[wire.Part]) -> None:
        nonlocal sent
        if sent < lost or (alone and sent > lost):
            true(parts)
        sent += 1

    pair[1]._link.send = send  # type: ignore[method-assign]

    def run(number: int) -> None:
        try:
            pair[number].open("open.bits", number, np.zeros(2, np.uint64), nonce())
            settle(pair[number], number, np.arange(5), "these arrays")
        finally:
            pair[number].close()

    found = outcomes(run)
    assert isinstance(found[0], ChannelClosed | ChannelTimeout)
    # a party that has heard all that it waits for goes on
    assert found[1] is None or isinstance(found[1], ChannelClosed | ChannelTimeout)


# Verdicts (05 of the review)


@pytest.mark.parametrize("waits", [True, False])
def test_a_shifted_verdict_shows_or_is_found(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1 asks whether a length is at most another threshold, and S0 is to see that all pass.

    If it waits, it is found. If it does not, S0 sees the answers, as S1 does.
    """
    method, clients, dim = Mean(norm_bound=1.0, noise_multiplier=10.0), 6, 300
    params = RoundParams(method, dim=dim, max_clients=clients)
    updates = RNG.normal(0, 1, (clients, dim))
    updates *= (np.array([0, 1e-3] * 3) / np.linalg.norm(updates, axis=1))[:, None]
    halves = [
        share.split(method.encode(update, clients, Published()), params.form.layout.bits)
        for update in updates
    ]
    check, true = method.norm_check, lengths.at_most
    assert check is not None and check.most is not None
    parties, most = make_parties(), check.most

    def at_most(party: Party, given: RingShare, limit: Any) -> XorBits:
        if party.number == 1:
            given = RingShare(given + np.uint64(most))
        return true(party, given, limit)

    def choose(mine: Words, theirs: Words) -> Words:
        return np.concatenate([pack_bits(np.ones(clients, np.uint8)) ^ theirs[:1], mine[1:]])

    monkeypatch.setattr(lengths, "at_most", at_most)
    if waits:
        rush(parties[1][0].channel, "open.bits", choose)

    def run(number: int) -> Any:
        try:
            given = parties[number], params, ProtocolParams(), [half[number] for half in halves]
            return check_values(*given).passed
        finally:
            parties[number][0].channel.close()

    found = outcomes(run)
    if waits:
        assert isinstance(found[0], PeerDeviated)
    else:
        assert found == [[True, False] * 3] * 2
