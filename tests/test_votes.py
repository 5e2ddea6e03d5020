"""Rounds of several votes through two real servers, and at one server alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian.common.receipts import Receipt, Record
from securemedian.mpc.protocols import dealing, ring
from securemedian.mpc.rounds.path import Path
from tests.daemons import Pair, wait_until

DIM = 40
SERVERS = ("s0", "s1")
# three votes
SMALL: dict[str, Any] = {
    "method": "zoom",
    "encoding": "fixed",
    "word_bits": 12,
    "fraction_bits": 4,
    "dim": DIM,
    "max_clients": 3,
    "min_clients": 2,
}


class Voter:
    """A client that votes as it is asked to, without a journal."""

    def __init__(self, pair: Pair, name: str, values: NDArray[np.float32]) -> None:
        """Deal for the latest round, and send the first vote."""
        self.pair, self.name = pair, name
        current, self.params = pair.round(name)
        self.round_id: str = current["round"]
        shape = self.params.form.dealing
        assert shape is not None
        self.words = self.params.method.words(values)  # type: ignore[attr-defined]
        self.path = Path.begin(self.params)
        self.dealt = pair.deal(name, dealing.deal(shape))
        self.vote()

    def vote(self, to: Sequence[str] = SERVERS) -> None:
        """Make the next vote and send it."""
        made = self.dealt.rotations(self.path.slots(self.words), self.path.votes)
        for server in to:
            self.send(made, server)
        self.made = made

    def send(self, made: NDArray[np.uint64], server: str, **fields: Any) -> None:
        """Send a vote, or other fields than its own."""
        vote = self.path.votes
        told = {"level": vote, "path": self.path.digest} if vote else {}
        about = {"round": self.round_id, "params": self.params.digest, "form": "rotations"}
        arrays = {"share": made}
        if self.params.form.audited and not vote:
            arrays["masks"] = np.arange(16, dtype=np.uint8)  # type: ignore[assignment]
        self.pair.caller(self.name, server).ask("upload", arrays, **about | told | fields)

    def ask(self, server: str, **fields: Any) -> Any:
        asked = {"round": self.round_id, "after": self.path.votes} | fields
        return self.pair.caller(self.name, server).ask("level", **asked)

    def follow(self) -> None:
        """Take the next digits, as both servers tell them."""
        told = [self.until_told(server) for server in SERVERS]
        assert told[0].fields["record"] == told[1].fields["record"]
        for server, answer in zip(SERVERS, told, strict=True):
            key = self.pair.config(self.name).s0.signing_key
            key = key if server == "s0" else self.pair.config(self.name).s1.signing_key
            signed = Receipt(answer.fields["record"]).with_signature(
                server, answer.fields["signature"]
            )
            assert signed.is_signed(server, key)
            assert answer.fields["level"] == self.path.votes + 1
        path = self.path.with_last(told[0].arrays["digits"])
        assert Record.decode(told[1].fields["record"]).opened == path.digest
        self.path = path

    def until_told(self, server: str) -> Any:
        return wait_until(lambda: answer if (answer := self.ask(server)).fields["record"] else None)


def updates(count: int = 3) -> list[NDArray[np.float32]]:
    numbers = np.random.default_rng(5)
    return [numbers.normal(0, 8, DIM).astype(np.float32) for _ in range(count)]


def begin(pair: Pair, **changes: Any) -> list[Voter]:
    pair.open(**SMALL | changes)
    return [Voter(pair, name, values) for name, values in zip(pair.names, updates(), strict=False)]


def all_vote(voters: Sequence[Voter]) -> None:
    """Take the next digits and vote within them, at all clients."""
    for voter in voters:
        voter.follow()
    for voter in voters:
        voter.vote()


def expected(voters: Sequence[Voter], rank: int) -> NDArray[Any]:
    return np.sort([voter.words for voter in voters], axis=0)[rank - 1]


def check_result(pair: Pair, voters: Sequence[Voter], *ranks: int) -> None:
    """Check that the round has published these ranks of all words, with one receipt."""
    pair.wait("published")
    voter = voters[0]
    answer = pair.caller(voter.name, "s1").ask("result", round=voter.round_id)
    values = ring.unpack(
        answer.arrays["opened"].reshape(-1), voter.params.form.opened_bits, DIM * len(ranks)
    )
    for row, rank in zip(values.reshape(len(ranks), DIM), ranks, strict=True):
        assert np.array_equal(row, expected(voters, rank))
    receipt = Receipt(answer.fields["record"], answer.fields["signatures"])
    receipt.check([pair.config(voter.name).s0.signing_key, pair.config(voter.name).s1.signing_key])
    assert len(receipt.record.included) == len(voters)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["fixed", "float32"])
def test_a_round_of_votes_has_the_sorted_words(pair: Pair, encoding: str) -> None:
    changes = (
        {} if encoding == "fixed" else {"encoding": encoding, "word_bits": 32, "fraction_bits": -1}
    )
    voters = begin(pair, **changes)
    votes = voters[0].params.form.votes
    for vote in range(1, votes):
        assert voters[0].path.votes == vote - 1
        all_vote(voters)
    check_result(pair, voters, 2)
    status = pair.status()
    assert (status["level"], status["levels"], status["attempt"]) == (votes, votes, votes)
    assert status["cost"]["ots"] > 0
