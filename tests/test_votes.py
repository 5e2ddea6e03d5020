"""Rounds of several votes through two real servers."""

import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path as Folder
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian.common.receipts import Receipt, Record
from securemedian.mpc.errors import (
    BadUpload,
    DuplicateUpload,
    NotAllowed,
    RoundClosed,
    RoundFailed,
)
from securemedian.mpc.protocols import dealing, ring
from securemedian.mpc.protocols.audit import binding
from securemedian.mpc.protocols.audit.binding import vote_masks
from securemedian.mpc.protocols.dealing import DealtUpload
from securemedian.mpc.protocols.share import WordsUpload
from securemedian.mpc.rounds.path import Path
from tests.daemons import Pair, wait_until

pytestmark = pytest.mark.slow

DIM = 40
SERVERS = ("s0", "s1")
MASKS = np.arange(16, dtype=np.uint8)
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


@pytest.fixture(autouse=True)
def ended(pair: Pair) -> Iterator[None]:
    """End a round that a failed test leaves: nobody else may abort it."""
    yield
    if (status := pair.status())["state"] == "voting":
        pair.caller("client-1", "s0").ask("decline", round=status["round"])


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
        arrays: dict[str, NDArray[Any]] = {"share": made}
        if self.params.form.audited and not vote:
            arrays["masks"] = MASKS
        self.pair.caller(self.name, server).ask("upload", arrays, **about | told | fields)

    def ask(self, server: str, **fields: Any) -> Any:
        asked: dict[str, Any] = {"round": self.round_id, "after": self.path.votes} | fields
        return self.pair.caller(self.name, server).ask("bound", **asked)

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

    def fold(self, to: Sequence[str] = SERVERS) -> None:
        """Answer both servers' binding of the vote that was sent last."""
        wait_until(lambda: all(self.ask(server).fields["binding"] for server in SERVERS))
        about: dict[str, Any] = {"round": self.round_id}
        vote = self.path.votes
        for server in to:
            said = self.ask(server).fields
            assert said["level"] == vote and not said["folded"]
            rotations = WordsUpload(self.dealt.shape.rotations_layout, self.made)
            index = self.pair.round(self.name)[0]["index"]
            of = int(server == "s0")
            half = (self.dealt.seeded, self.dealt.words)[(of + index) % 2]
            upload = DealtUpload(self.dealt.shape, half, rotations, vote)
            mask = vote_masks(MASKS.tobytes(), vote, self.path.digest)
            made = binding.fold(of, upload, said["binding"], said["coin"], mask)
            fields = about | {"binding": said["binding"]}
            self.pair.caller(self.name, server).ask("folded", {"fold": made}, **fields)

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


def await_failure(pair: Pair, server: str) -> None:
    wait_until(lambda: pair.status(server)["state"] == "failed")


def restart(pair: Pair, server: str, **how: Any) -> None:
    pair.stop(server, signal.SIGKILL)
    pair.start(server, **how)
    pair.link()


@pytest.mark.parametrize(("server", "moment"), [("s0", "said done"), ("s1", "state voting")])
def test_a_server_that_dies_between_digits_and_the_next_votes_goes_on(
    pair: Pair, server: str, moment: str
) -> None:
    """The other one takes the next votes already, or waits with its digits."""
    voters = begin(pair)
    for voter in voters:
        voter.follow()
    (pair.folder / f"{server}.moment").write_text(f"die {moment}")
    restart(pair, server, module="tests.dying")
    for voter in voters:
        voter.vote()
    assert pair.ended(server) == -signal.SIGKILL
    pair.start(server)
    pair.link()
    all_vote(voters)
    check_result(pair, voters, 2)
    assert pair.status()["attempt"] == 3


def test_each_rank_has_votes_of_its_own(pair: Pair) -> None:
    voters = begin(pair, ranks=[1, 3], **{"slots": 4})
    assert voters[0].params.form.votes == 12
    for _ in range(11):
        all_vote(voters)
    check_result(pair, voters, 1, 3)


def test_a_vote_counts_once_and_within_the_digits_that_were_told(pair: Pair) -> None:
    server, other = "s1", "s0"
    voters = begin(pair)
    voter, made = voters[0], voters[0].made
    with pytest.raises(RoundClosed, match="does not take vote 2"):
        voter.send(made, server, level=1)
    for each in voters:
        each.follow()
    # within other digits, and of another level
    with pytest.raises(BadUpload, match="other digits"):
        voter.send(made, server, path=bytes(32))
    for level in (2, 3):
        with pytest.raises(RoundClosed, match="does not take vote"):
            voter.send(made, server, level=level)
    with pytest.raises(BadUpload, match="masks"):
        about: dict[str, Any] = {"round": voter.round_id, "params": voter.params.digest}
        about |= {"form": "rotations"}
        arrays: dict[str, Any] = {"share": made, "masks": MASKS}
        told = {"level": 1, "path": voter.path.digest}
        pair.caller(voter.name, server).ask("upload", arrays, **about | told)
    voter.made = voter.dealt.rotations(voter.path.slots(voter.words), 1)
    voter.send(voter.made, server)
    voter.send(voter.made, server)
    with pytest.raises(DuplicateUpload):
        voter.send(voter.made ^ np.uint64(1), server)
    # of the vote before, too
    first = {"level": 0, "path": b""}
    voter.send(made, server, **first)
    with pytest.raises(DuplicateUpload):
        voter.send(made ^ np.uint64(1), server, **first)
    voter.send(voter.made, other)
    for each in voters[1:]:
        each.vote()
    all_vote(voters)
    check_result(pair, voters, 2)


def test_who_is_not_computed_on_is_told_no_digits(pair: Pair) -> None:
    pair.open(**SMALL | {"max_clients": 4})
    voters = [Voter(pair, name, one) for name, one in zip(pair.names, updates(2), strict=False)]
    pair.caller("coordinator", "s0").ask("close", round=voters[0].round_id)
    for voter in voters:
        voter.follow()
    for server in SERVERS:
        with pytest.raises(NotAllowed, match="not among the clients"):
            pair.caller("client-3", server).ask("bound", round=voters[0].round_id)
        with pytest.raises(RoundClosed, match="too late to decline"):
            pair.caller("client-3", server).ask("decline", round=voters[0].round_id)
        with pytest.raises(RoundClosed, match="may have opened values"):
            pair.caller("coordinator", "s0").ask("abort", round=voters[0].round_id, reason="why")
    for voter in voters:
        voter.vote()
    all_vote(voters)
    check_result(pair, voters, 1)


def all_fold(voters: Sequence[Voter]) -> None:
    for voter in voters:
        voter.fold()


def test_a_server_that_is_killed_while_folds_of_a_vote_are_lacking_goes_on(pair: Pair) -> None:
    """The same votes are answered for in another session."""
    voters = begin(pair, security="malicious")
    all_fold(voters)
    all_vote(voters)
    voters[0].fold()
    assert pair.status()["lacking"] == ["client-2", "client-3"]
    restart(pair, "s0")
    all_fold(voters)
    all_vote(voters)
    restart(pair, "s1")
    all_fold(voters)
    check_result(pair, voters, 2)


# These fail, which binds later rounds to their clients


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_from_a_backup_takes_no_vote_again_that_was_told(
    pair: Pair, tmp_path: Folder, server: str
) -> None:
    voters = begin(pair)
    state, backup = pair.folder / f"{server}-state", tmp_path / "backup"
    for voter in voters:
        voter.follow()
    pair.stop(server)
    shutil.copytree(state, backup)
    pair.start(server)
    pair.link()
    for voter in voters:
        voter.vote()
    for voter in voters:
        voter.follow()
    pair.stop(server)
    shutil.rmtree(state)
    shutil.copytree(backup, state)
    pair.start(server)
    for each in SERVERS:
        await_failure(pair, each)
        assert "the state folder of one is not its latest" in pair.status(each)["reason"]
        ran = [event for event in pair.events(each) if event["event"] == "round-running"]
        of_round = [event["vote"] for event in ran if event["round"] == voters[0].round_id]
        assert of_round == [1, 2]


def test_who_votes_differently_at_the_servers_ends_the_round(pair: Pair) -> None:
    voters = begin(pair)
    for voter in voters:
        voter.follow()
    voters[1].vote(["s0"])
    with pytest.raises(RoundFailed):
        voters[1].send(voters[1].made ^ np.uint64(1), "s1")
        voters[1].until_told("s1")
    status = pair.status()
    assert status["state"] == "failed" and status["opened"] == "maybe"
    assert "s0 and s1 have different votes of client-2. Nobody is left out" in status["reason"]


def test_who_is_lacking_at_the_limit_ends_the_round_and_is_named(pair: Pair) -> None:
    voters = begin(pair, limit_s=4.0)
    for voter in voters:
        voter.follow()
    voters[0].vote()
    voters[1].vote(["s1"])
    status = pair.status()
    assert status["lacking"] == ["client-2", "client-3"] and 0 < status["deadline_in_s"] <= 4
    assert (status["level"], status["levels"], status["state"]) == (2, 3, "voting")
    wait_until(lambda: pair.status()["state"] == "failed")
    why = "vote 2 of 3 did not come in time from client-2 (s0), client-3 (both). Nobody is left out"
    for server in SERVERS:
        await_failure(pair, server)
        assert why in pair.status(server)["reason"]
    with pytest.raises(RoundFailed, match="client-3"):
        voters[0].ask("s1")


def test_who_does_not_answer_for_a_later_vote_ends_the_round_and_is_named(pair: Pair) -> None:
    """Also where one server alone lacks the answer."""
    voters = begin(pair, security="malicious", limit_s=6.0)
    all_fold(voters)
    all_vote(voters)
    voters[0].fold()
    voters[1].fold()
    voters[2].fold(["s0"])
    assert pair.status("s1")["lacking"] == ["client-3"] and "lacking" not in pair.status()
    for server in SERVERS:
        await_failure(pair, server)
    reason = pair.status()["reason"]
    assert "without folds of all its clients: client-3 (its fold did not" in reason
    assert "client-1" not in reason
