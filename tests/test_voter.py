"""A client's votes in a round of zoom: against servers that are faked, and that lie."""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zmq

from securemedian.clients.client import Client
from securemedian.clients.journal import Ballot, Journal, Submission, Upheld
from securemedian.clients.policy import ClientPolicy
from securemedian.clients.rounds import Turn
from securemedian.clients.sharing import held
from securemedian.clients.spent import Spent, UpdateSpent
from securemedian.clients.upload import ShareHalf
from securemedian.clients.voter import Voter
from securemedian.common import durable
from securemedian.common.keys import KeyPair, SigningKey
from securemedian.common.receipts import DIFFERENT, Receipt, Record
from securemedian.common.status import POLICY, RoundStatus
from securemedian.common.versions import RECEIPT, VOTE
from securemedian.mpc.arrays import PublicValues
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import (
    BadUpload,
    ConfigError,
    DuplicateUpload,
    LocalProtocolError,
    NotAllowed,
    NotStored,
    PeerProtocolError,
    PolicyRefused,
    ReceiptInvalid,
    RoundClosed,
    RoundFailed,
    SecureMedianError,
    ServerUnreachable,
    TooFewClients,
    UnknownRound,
)
from securemedian.mpc.protocols import dealing, wire
from securemedian.mpc.protocols.audit.binding import fold, vote_masks
from securemedian.mpc.protocols.dealing import DealtUpload
from securemedian.mpc.protocols.share import WordsUpload
from securemedian.mpc.rounds.methods.zoom import Zoom
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.path import Path as Digits

DIM, ROUND, START = 5, "7-3fa9c1d2", bytes(range(32))
PARAMS = RoundParams(Zoom(), dim=DIM, max_clients=3)
AUDITED = RoundParams(Zoom(security="malicious"), dim=DIM, max_clients=3)
UPDATES = np.random.default_rng(1).standard_normal((3, DIM)).astype(np.float32)
OWN = KeyPair(*zmq.curve_keypair())
KEYS = [OWN.public.decode(), *(KeyPair(*zmq.curve_keypair()).public.decode() for _ in range(2))]
SIGNING = SigningKey.new(), SigningKey.new()
NAMES = "s0", "s1"


class TwoServers:
    """Both servers, which open a vote once they have this client's; and the `Member` that asks."""

    def __init__(self, params: RoundParams = PARAMS) -> None:
        self.params, self.path, self.records = params, Digits.begin(params), [b""]
        self.paths = [self.path]
        # by server and level, in the order in which they came
        self.votes: dict[tuple[int, int], bytes] = {}
        self.folds: list[tuple[int, bytes]] = []
        self.said: list[str] = []
        self.declined: list[str] = []
        self.state, self.asking = "voting", False
        # raised by requests of a name, by server
        self.fails: dict[tuple[str, int], SecureMedianError] = {}
        # changes an answer about a level, by the server
        self.lie: Callable[[int, wire.Message], wire.Message] = lambda _, told: told
        signs = [SimpleNamespace(signing_key=key.public) for key in SIGNING]
        self.config = SimpleNamespace(cohort="default", s0=signs[0], s1=signs[1])
        self.keys, self.source = OWN, 0
        self.check_policy: Callable[[str, RoundParams, float], None] = lambda *_: None
        self.open()

    def report(self, text: str) -> None:
        self.said.append(text)

    def decline(self, round_id: str, reason: str) -> None:
        self.declined.append(reason)

    def open(self) -> None:
        """Open the present vote: the digits of the median."""
        words = [words_of(self.params, update) for update in UPDATES]
        slots = np.sort([self.path.slots(each) for each in words], axis=0)
        self.path = self.path.after(PublicValues(slots[1:2].astype(np.uint64)))
        self.paths.append(self.path)
        self.records.append(record(self.params, opened=self.path.digest).encode())

    def ask(
        self,
        op: str,
        fields: dict[str, Any],
        arrays: Any = None,
        timeout_s: float = 1.0,
        party: int = 0,
    ) -> wire.Message:
        assert timeout_s == 0.0 and fields["round"] == ROUND
        if error := self.fails.get((op, party)):
            raise error
        if op == "upload":
            assert (fields["params"], fields["start"]) == (self.params.digest, START)
            level, vote = fields["level"], arrays["share"].tobytes()
            assert fields["path"] == self.paths[level].digest
            assert self.votes.setdefault((party, level), vote) == vote
            if {(0, level), (1, level)} <= self.votes.keys() and level == len(self.paths) - 1:
                if level + 1 < self.params.form.votes:
                    self.open()
                else:
                    self.state = "published"
        elif op == "folded":
            self.folds.append((party, arrays["fold"].tobytes()))
        else:
            return self.lie(party, self.level(party, len(self.paths) - 1, fields["values"]))
        return wire.Message(op)

    def level(self, party: int, level: int, values: bool) -> wire.Message:
        """Return what a server says at a level."""
        signed = Receipt(self.records[level]).signed(NAMES[party], SIGNING[party])
        fields: dict[str, Any] = {"state": self.state, "level": level}
        sizes = {"binding": 16, "coin": 16, "set": 32} if self.asking else {}
        fields |= {name: bytes(sizes.get(name, 0)) for name in ("binding", "coin", "set")}
        fields["folded"] = party in [of for of, _ in self.folds]
        fields |= {"record": signed.encoded, "signature": signed.signatures[NAMES[party]]}
        arrays = {"digits": self.paths[level].last} if values and level else {}
        return wire.Message("bound", fields, arrays)


def words_of(params: RoundParams, update: Any) -> Any:
    assert isinstance(params.method, Zoom)
    return params.method.words(update)


def record(params: RoundParams, **changed: Any) -> Record:
    about: dict[str, Any] = {
        "service": "securemedian",
        "version": VOTE,
        "cohort": "default",
        "round": ROUND,
    }
    about |= {"number": 7, "params": params.to_dict(), "included": sorted(KEYS), "left_out": {}}
    return Record(**(about | {"start": START, "opened": b"", "runs": 3} | changed))


def journal_in(folder: Path) -> Journal:
    """Return the journal in a folder, which has a file of what was voted on beside it."""
    return Journal(folder, spent=Spent(Path(f"{folder}.spent")))


def made(journal: Journal, params: RoundParams = PARAMS, confirmed: bool = True) -> Submission:
    """Return a first vote that both servers have, with all that the others are made of."""
    assert (shape := params.form.dealing)
    draw = journal.draw(ROUND, params.digest, 0)
    words = words_of(params, UPDATES[0])
    path = Digits.begin(params)
    rotations = dealing.deal(shape, draw.entropy()).rotations(path.slots(words))
    masks = (bytes([1] * 16), bytes([2] * 16)) if params.form.audited else (b"", b"")
    upheld = Upheld(shape, draw, rotations, masks, Ballot(words, START, path))
    half = ShareHalf("rotations", rotations)
    found = Submission(ROUND, params.digest, START, bytes(32), (half, half), upheld=upheld)
    journal.keep(found)
    if confirmed:
        journal.confirm(found)
    return found


def voter_of(journal: Journal, both: TwoServers) -> Voter:
    client: Any = both
    return Voter(journal, client)


@pytest.fixture
def both() -> TwoServers:
    return TwoServers()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = journal_in(tmp_path / "state")
    made(opened)
    yield opened
    opened.close()


@pytest.mark.parametrize("source", [0, 1])
def test_a_client_votes_on_until_the_round_ends(
    journal: Journal, both: TwoServers, source: int
) -> None:
    both.source = source
    voter_of(journal, both).tend()
    words = np.sort([words_of(PARAMS, update) for update in UPDATES], axis=0)
    assert len(both.paths) == PARAMS.form.votes
    # all digits but the last one
    assert np.array_equal(both.path.rows[0] >> np.uint64(4), words[1] >> np.uint32(4))
    assert both.said == [f"round {ROUND}: level {level} of 8" for level in range(2, 9)]
    # the same vote at both, which rotates its own vectors to the slot of the word
    for level in range(1, 8):
        assert both.votes[0, level] == both.votes[1, level]
    assert len({both.votes[0, level] for level in range(1, 8)}) == 7
    assert not journal.upheld and not both.declined


def test_each_vote_is_that_of_the_slot_of_the_clients_own_word(
    journal: Journal, both: TwoServers
) -> None:
    upheld = journal.upheld[ROUND]
    assert upheld.ballot
    words, dealt = upheld.ballot.words, dealing.deal(upheld.shape, upheld.draw.entropy())
    voter_of(journal, both).tend()
    for level in range(1, 8):
        slots = both.paths[level].slots(words)
        assert both.votes[0, level] == dealt.rotations(slots, level).tobytes()


def replaced(told: wire.Message, arrays: Any = None, **fields: Any) -> wire.Message:
    return wire.Message("bound", told.fields | fields, told.arrays if arrays is None else arrays)


def signed(told: wire.Message, party: int, **changed: Any) -> wire.Message:
    """Return an answer with another record that the server has signed."""
    other = replace(Record.decode(told.fields["record"]), **changed)
    receipt = Receipt(other.encode()).signed(NAMES[party], SIGNING[party])
    return replaced(told, record=receipt.encoded, signature=receipt.signatures[NAMES[party]])


def at(*parties: int) -> Callable[[Any], Any]:
    """Return a decorator of a lie that these servers alone tell."""

    def only(lie: Any) -> Any:
        return lambda party, told: lie(party, told) if party in parties else told

    return only


OTHER = KeyPair(*zmq.curve_keypair()).public.decode()
PATH = Digits.begin(PARAMS).after(PublicValues(np.zeros((1, DIM), np.uint64)))
LIES: dict[str, Any] = {
    "another prefix of one": at(1)(lambda p, t: signed(t, p, opened=PATH.digest)),
    "another set of one": at(0)(lambda p, t: signed(t, p, included=sorted(KEYS[:2]))),
    "a record that one has not signed": at(1)(lambda _, t: replaced(t, signature=bytes(64))),
    "the other server's signature": at(1)(lambda _, t: signed(t, 0)),
    "a level too far": at(0, 1)(lambda _, t: replaced(t, level=t.fields["level"] + 1)),
    "a level too far of one": at(1)(lambda _, t: replaced(t, level=t.fields["level"] + 1)),
    "a level before": at(0)(lambda _, t: replaced(t, level=-1)),
    "other digits": at(0)(lambda _, t: replaced(t, {"digits": PATH.last})),
    "no digits": at(0)(lambda _, t: replaced(t, {})),
    "digits of another kind": at(0)(lambda _, t: replaced(t, {"digits": np.zeros(1, np.float64)})),
    "digits of another length": at(0)(lambda _, t: replaced(t, {"digits": np.zeros(9, np.uint64)})),
    "no record": at(0, 1)(lambda _, t: replaced(t, record=b"")),
    "no answer": at(1)(lambda _, t: replaced(t, state=0)),
    "the receipt of a result": at(0, 1)(lambda p, t: signed(t, p, version=RECEIPT)),
    "another round": at(0, 1)(lambda p, t: signed(t, p, round="8-3fa9c1d2", number=8)),
    "another cohort": at(0, 1)(lambda p, t: signed(t, p, cohort="other")),
    "another start": at(0, 1)(lambda p, t: signed(t, p, start=bytes(32))),
    "other parameters": at(0, 1)(lambda p, t: signed(t, p, params=AUDITED.to_dict())),
    "without this client": at(0, 1)(lambda p, t: signed(t, p, included=sorted(KEYS[1:]))),
    "that leaves this client out": at(0, 1)(
        lambda p, t: signed(t, p, included=sorted(KEYS[1:]), left_out={DIFFERENT: KEYS[:1]})
    ),
    "with too few": at(0, 1)(lambda p, t: signed(t, p, included=KEYS[:1])),
    "another path of both": at(0, 1)(lambda p, t: signed(t, p, opened=PATH.digest)),
}
# from the second record on
CHANGES: dict[str, Any] = {
    "runs": 4,
    "included": sorted([*KEYS[:2], OTHER]),
    "released": True,
    "participants": KEYS,
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@pytest.mark.parametrize("before", [0, 3])
def test_a_client_sends_nothing_where_servers_contradict_each_other(
    journal: Journal, both: TwoServers, lie: Any, before: int
) -> None:
    both.lie = lambda party, told: lie(party, told) if told.fields["level"] > before else told
    with pytest.raises((PeerProtocolError, ReceiptInvalid, TooFewClients)):
        voter_of(journal, both).tend()
    assert len(both.votes) == 2 * before and both.declined == ["servers-differ"]


@pytest.mark.parametrize(("name", "value"), CHANGES.items(), ids=CHANGES)
def test_a_client_sends_nothing_once_the_round_has_changed(
    journal: Journal, both: TwoServers, name: str, value: Any
) -> None:
    def lie(party: int, told: wire.Message) -> wire.Message:
        return signed(told, party, **{name: value}) if told.fields["level"] > 1 else told

    both.lie = lie
    with pytest.raises(PeerProtocolError, match=f"both servers have changed {name} in round"):
        voter_of(journal, both).tend()
    assert [*both.votes] == [(0, 1), (1, 1)] and both.declined == ["servers-differ"]


def test_a_record_of_an_earlier_level_counts_for_nothing(
    journal: Journal, both: TwoServers
) -> None:
    def lie(party: int, told: wire.Message) -> wire.Message:
        level = told.fields["level"]
        old = both.level(party, min(level, 1), party == both.source)
        return replaced(old, level=level)

    both.lie = lie
    with pytest.raises(PeerProtocolError, match="tells other digits than both vouch for"):
        voter_of(journal, both).tend()
    assert [*both.votes] == [(0, 1), (1, 1)]


@pytest.mark.parametrize(
    ("level", "party", "error"),
    [(1, 0, ServerUnreachable), (4, 1, NotStored), (4, 0, RoundClosed)],
)
def test_a_vote_that_a_server_lacks_is_sent_again_with_the_same_bytes(
    tmp_path: Path, both: TwoServers, party: int, level: int, error: type[SecureMedianError]
) -> None:
    journal = journal_in(tmp_path / "state")
    made(journal)
    voter = voter_of(journal, both)

    def lie(_: int, told: wire.Message) -> wire.Message:
        if told.fields["level"] == level:
            both.fails["upload", party] = error("away")
        return told

    both.lie = lie
    for restarts in (False, True, True):
        voter.tend()
        assert (party, level) not in both.votes and both.state == "voting"
        (upheld,) = journal.upheld.values()
        assert upheld.ballot and upheld.ballot.path.votes == level
        if restarts:
            journal.close()
            journal = journal_in(tmp_path / "state")
            voter = voter_of(journal, both)
            (again,) = journal.upheld.values()
            assert np.array_equal(again.rotations, upheld.rotations)
            assert again.ballot and again.ballot.record == upheld.ballot.record
            assert again.ballot.path.digest == upheld.ballot.path.digest
    both.fails.clear()
    both.lie = lambda _, told: told
    voter.tend()
    assert both.state == "published" and len(both.votes) == 14 and not journal.upheld
    journal.close()


@pytest.mark.parametrize("error", [BadUpload, DuplicateUpload])
def test_a_server_that_refuses_a_vote_ends_the_round_for_the_client(
    journal: Journal, both: TwoServers, error: type[SecureMedianError]
) -> None:
    both.fails["upload", 1] = error("another vote of yours is here")
    with pytest.raises(error):
        voter_of(journal, both).tend()
    assert both.declined == ["servers-differ"] and len(both.votes) == 1


@pytest.mark.parametrize("error", [NotAllowed, RoundFailed])
def test_a_client_lets_go_of_a_round_that_is_over_for_it(
    journal: Journal, both: TwoServers, error: type[SecureMedianError]
) -> None:
    both.fails["bound", 0] = error("left out")
    voter_of(journal, both).tend()
    assert not journal.upheld and not both.votes and not both.declined


def test_nothing_is_sent_of_a_vote_that_cannot_be_kept(
    journal: Journal, both: TwoServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    voter = voter_of(journal, both)
    with monkeypatch.context() as patch:
        patch.setattr(durable.os, "fsync", full)
        for _ in range(2):
            with pytest.raises(ConfigError, match="Nothing was sent"):
                voter.tend()
    assert not both.votes and not both.declined
    voter.tend()
    assert both.state == "published"


def test_a_client_votes_once_after_each_vote(journal: Journal, both: TwoServers) -> None:
    upheld = journal.upheld[ROUND]
    assert upheld.ballot
    after = replace(upheld.ballot, path=both.path)
    journal.vote(ROUND, upheld.rotations, after)
    other = replace(upheld.ballot, path=PATH)
    for again in (after, other, replace(after, path=Digits(PARAMS, 3, PATH.rows))):
        with pytest.raises(LocalProtocolError, match="votes once"):
            journal.vote(ROUND, upheld.rotations, again)


def test_who_refuses_the_set_declines_and_sends_nothing(journal: Journal, both: TwoServers) -> None:
    def refuse(round_id: str, params: RoundParams, timeout_s: float) -> None:
        assert (round_id, params, timeout_s) == (ROUND, PARAMS, 0.0)
        both.decline(round_id, POLICY)
        raise PolicyRefused("a round without hospital-b")

    both.check_policy = refuse
    voter_of(journal, both).tend()
    assert both.declined == ["policy"] and not both.votes
    assert both.said == [f"round {ROUND} ends, and has no result: a round without hospital-b"]


# Folds


def test_a_client_folds_its_present_vote_under_masks_of_that_vote(tmp_path: Path) -> None:
    both, journal = TwoServers(AUDITED), journal_in(tmp_path)
    made(journal, AUDITED)
    voter = voter_of(journal, both)
    both.fails["upload", 1] = ServerUnreachable("away")
    voter.tend()
    (upheld,) = journal.upheld.values()
    assert upheld.ballot and upheld.ballot.path.votes == 1
    both.fails.clear()

    both.asking = True
    both.records, both.paths = both.records[:2], both.paths[:2]
    both.votes[1, 1] = both.votes[0, 1]
    voter._sent = [(ROUND, 1)] * 2
    voter.tend()
    dealt = dealing.deal(upheld.shape, upheld.draw.entropy())
    rotations = WordsUpload(upheld.shape.rotations_layout, upheld.rotations)
    for party, half in ((0, dealt.words), (1, dealt.seeded)):
        of = 1 - party
        masks = vote_masks(upheld.masks[of], 1, upheld.ballot.path.digest)
        held = DealtUpload(upheld.shape, half, rotations, 1)
        assert dict(both.folds)[party] == fold(of, held, bytes(16), bytes(16), masks).tobytes()
        assert masks != upheld.masks[of]
    journal.close()


def test_a_client_folds_nothing_where_no_server_has_masks(
    journal: Journal, both: TwoServers
) -> None:
    both.asking, both.paths = True, both.paths[:1]
    voter_of(journal, both).tend()
    assert not both.folds and not both.votes


@pytest.mark.parametrize("lacks", [0, 1])
def test_a_server_that_lacks_a_fold_gets_it_later(tmp_path: Path, lacks: int) -> None:
    """S0 alone is asked first, and so it must not have its fold before S1."""
    both, journal = TwoServers(AUDITED), journal_in(tmp_path)
    made(journal, AUDITED)
    both.asking, both.paths = True, both.paths[:1]
    both.fails["folded", lacks] = ServerUnreachable("away")
    voter = voter_of(journal, both)
    voter.tend()
    assert [party for party, _ in both.folds] == [1 - lacks] * (1 - lacks)
    both.fails.clear()
    voter.tend()
    assert [party for party, _ in both.folds] == [1, 0]
    journal.close()


@pytest.mark.parametrize("never", [0, 1])
def test_a_server_that_never_has_a_fold_does_not_hold_the_client(
    tmp_path: Path, never: int
) -> None:
    """It acknowledges each, and asks again for ever: the client gets back to its time limits."""
    both, journal = TwoServers(AUDITED), journal_in(tmp_path)
    made(journal, AUDITED)
    both.paths, both.asking = both.paths[:1], True

    def lie(party: int, told: wire.Message) -> wire.Message:
        assert len(both.folds) <= 3
        return replaced(told, folded=False) if party == never else told

    both.lie = lie
    voter_of(journal, both).tend()
    assert [party for party, _ in both.folds] == [1, 0, 0][: 3 - never]
    journal.close()


@pytest.mark.parametrize("party", [0, 1])
def test_a_client_folds_nothing_of_another_level(tmp_path: Path, party: int) -> None:
    both, journal = TwoServers(AUDITED), journal_in(tmp_path)
    made(journal, AUDITED)
    both.asking, both.paths = True, both.paths[:1]
    both.lie = lambda p, told: replaced(told, level=int(p == party))
    if party == 0:
        voter_of(journal, both).tend()
    else:
        with pytest.raises(PeerProtocolError, match="name different levels"):
            voter_of(journal, both).tend()
    assert not both.folds
    journal.close()


def test_a_binding_is_answered_for_one_vote(tmp_path: Path) -> None:
    both, journal = TwoServers(AUDITED), journal_in(tmp_path)
    made(journal, AUDITED)
    voter, upheld = voter_of(journal, both), journal.upheld[ROUND]
    both.asking, said = True, both.paths
    both.paths = said[:1]
    voter.tend()
    assert upheld.ballot and len(both.folds) == 2
    both.folds.clear()
    both.paths = said
    journal.vote(ROUND, upheld.rotations, replace(upheld.ballot, path=both.path))
    voter._sent = [(ROUND, 1)] * 2
    with pytest.raises(PeerProtocolError, match="another coin or set"):
        voter.tend()
    assert not both.folds
    journal.close()


# Updates that were voted on


OTHER_ROUND = "8-3fa9c1d2"


def test_a_round_has_its_update_for_good_in_all_cohorts(tmp_path: Path) -> None:
    path = tmp_path / "a-state.spent"
    one, other = Spent(path), Spent(path)
    update, another = digest("u", 1), digest("u", 2)
    assert one.round_of(update) == "" and one.numbers() == set()
    one.claim(update, ROUND)
    # the same round may try again
    one.claim(update, ROUND)
    # another cohort's process, and the next one
    with pytest.raises(UpdateSpent, match=f"round {OTHER_ROUND} .* in another round: {ROUND}; tr"):
        other.claim(update, OTHER_ROUND)
    assert Spent(path).round_of(update) == ROUND
    other.claim(another, OTHER_ROUND)
    assert one.round_of(another) == OTHER_ROUND and one.numbers() == {7, 8}
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_update_is_freed_by_its_round_alone(tmp_path: Path) -> None:
    path, update = tmp_path / "a-state.spent", digest("u", 1)
    one, other = Spent(path), Spent(path)
    one.claim(update, ROUND)
    other.free(update, OTHER_ROUND)
    assert other.round_of(update) == ROUND
    # two processes free it, and claim it again: the first claim counts
    one.free(update, ROUND)
    other.claim(update, OTHER_ROUND)
    one.free(update, ROUND)
    with pytest.raises(UpdateSpent, match=f"another round: {OTHER_ROUND};"):
        one.claim(update, "9-3fa9c1d2")


def test_of_two_processes_that_claim_an_update_at_once_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, update = tmp_path / "a-state.spent", digest("u", 1)
    one, other = Spent(path), Spent(path)
    opened, open_file = [0], os.open

    def open_(*given: Any) -> int:
        opened[0] += 1
        if opened[0] == 1:
            # the other one writes after this one has begun, and before it does
            other.claim(update, OTHER_ROUND)
        return open_file(*given)

    monkeypatch.setattr("securemedian.clients.spent.os.open", open_)
    with pytest.raises(UpdateSpent, match=OTHER_ROUND):
        one.claim(update, "9-a")
    assert opened[0] > 1 and one.round_of(update) == OTHER_ROUND
    # the claim that came second counts for nothing, also once the first one is free
    one.free(update, OTHER_ROUND)
    assert one.round_of(update) == ""


def test_a_line_that_a_crash_has_cut_spoils_no_other(tmp_path: Path) -> None:
    path, update = tmp_path / "a-state.spent", digest("u", 1)
    line = f"claim {OTHER_ROUND} {update.hex()}"
    for length in range(len(line)):
        path.write_text(line[:length])
        assert Spent(path).round_of(update) == "" and not Spent(path).numbers()
        Spent(path).claim(update, ROUND)
        assert Spent(path).round_of(update) == ROUND


def test_what_is_claimed_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []

    def sync(descriptor: int) -> None:
        synced.append(stat.S_ISREG(os.fstat(descriptor).st_mode))

    monkeypatch.setattr(os, "fsync", sync)
    for times in (1, 2):
        # the first one may have failed
        Spent(tmp_path / "spent").claim(bytes(32), ROUND)
        # the file, and its name in the folder
        assert synced == [True, False] * times


def test_nothing_is_claimed_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UpdateSpent):
        Spent(None).claim(bytes(32), ROUND)
    monkeypatch.setattr("securemedian.clients.spent.os.fsync", _full)
    with pytest.raises(ConfigError, match="Nothing was sent"):
        Spent(tmp_path / "spent").claim(bytes(32), ROUND)


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_an_update_is_claimed_before_its_upload_is_kept_or_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, update = journal_in(tmp_path / "state"), bytes(32)
    journal.draw(ROUND, PARAMS.digest, 0)
    with monkeypatch.context() as patch, pytest.raises(ConfigError, match="Nothing was sent"):
        patch.setattr("securemedian.clients.spent.os.fsync", _full)
        made(journal)
    assert journal.submission(ROUND) is None
    spent = Spent(Path(f"{tmp_path / 'state'}.spent"))
    # a crash has come between the claim and the upload: it may be made again for the same round
    assert spent.round_of(update) == f"{ROUND}/"
    found = made(journal, confirmed=False)
    with pytest.raises(UpdateSpent, match=f"round {OTHER_ROUND} .*: {ROUND}; train again"):
        journal.keep(replace(found, round_id=OTHER_ROUND))
    assert journal.submission(OTHER_ROUND) is None
    # however its round ends for this client
    journal.forget(ROUND)
    assert spent.round_of(update) == f"{ROUND}/"
    # S0 opens another round of the same id, once S1 has forgotten the first one
    with pytest.raises(UpdateSpent, match=f"another round: {ROUND}; train again"):
        journal.keep(found, "of another dealing")
    # rounds of one vote take it
    journal.keep(replace(found, round_id=OTHER_ROUND, upheld=None))
    journal.close()


@pytest.mark.parametrize(
    ("said", "freed"),
    [
        ((("failed", "nothing"), ("failed", "nothing")), True),
        ((("failed", "nothing"), ("failed", "maybe")), False),
        ((("failed", "maybe"), ("failed", "nothing")), False),
        # it may open something yet
        ((("failed", "nothing"), ("open", "nothing")), False),
        ((("closing", "nothing"), ("failed", "nothing")), False),
        ((("published", "nothing"), ("failed", "nothing")), False),
        # another round of that id, in which a server holds no dealing, or another one
        ((("failed", "nothing"), ("failed", "nothing", None)), False),
        ((("failed", "nothing", b"other"), ("failed", "nothing")), False),
        # a server has forgotten it
        ((("failed", "nothing"),), False),
        ((), False),
    ],
)
def test_an_update_is_freed_only_if_both_servers_say_that_nothing_was_opened(
    tmp_path: Path, said: tuple[tuple[Any, ...], ...], freed: bool
) -> None:
    def status(_: str, party: int) -> RoundStatus:
        if party >= len(said):
            raise UnknownRound("forgotten")
        return RoundStatus(state=said[party][0], opened=said[party][1])

    def ask(op: str, fields: Any, party: int) -> wire.Message:
        assert (op, fields) == ("checked", {"round": ROUND, "failed": True})
        return wire.Message(op, {"dealing": [*said[party], b"dealt"][2]})

    client: Any = SimpleNamespace(status=status, ask=ask, _spent=Spent(tmp_path / "spent"))
    client._spent.claim(digest("u"), f"{ROUND}/{held([{'dealing': b'dealt'}] * 2)}")
    Client._free(client, digest("v"))
    Client._free(client, digest("u"))
    assert bool(client._spent.round_of(digest("u"))) is not freed


def test_who_trains_the_same_update_again_declines_and_goes_on() -> None:
    """Otherwise a coordinator ends all clients, by a round that fails and another one."""
    said: list[Any] = []
    client: Any = SimpleNamespace(decline=lambda *given: said.append(given), report=said.append)
    current: Any = SimpleNamespace(round_id=ROUND)
    with Turn(client, current, ()):
        raise UpdateSpent("an update that was voted on")
    assert said == [(ROUND, POLICY), "going on to the next round: an update that was voted on"]


def admitting(declined: list[str], **policy: Any) -> Any:
    """Return a client in a round that it has voted in, whose servers include clients a to c."""
    told = RoundStatus(included=["a", "b", "c"], clients=dict.fromkeys("abcd", "both"))
    config = SimpleNamespace(name="a", weight=0, state_dir="a", policy=ClientPolicy(**policy))
    return SimpleNamespace(
        config=config,
        keys=OWN,
        status=lambda *_: told,
        decline=declined.append,
        _journal=SimpleNamespace(made_within_a_day=[1.0], upheld={ROUND: None}),
        _released=lambda *_: False,
    )


def test_a_client_votes_on_if_it_is_content_with_the_set() -> None:
    declined: list[str] = []
    strict = admitting(declined, with_clients=["b"], without_clients=["d"])
    strict.config.policy.at_most["rounds_per_day"] = 1
    Client.check_policy(strict, ROUND, PARAMS, 0.0)
    assert not declined
    refused = {"without d": {"with_clients": ["d"]}, "with c": {"without_clients": ["c"]}}
    for why, policy in refused.items():
        with pytest.raises(PolicyRefused, match=f"a round {why}"):
            Client.check_policy(admitting(declined, **policy), ROUND, PARAMS, 0.0)
    released = admitting(declined)
    released._released = lambda *_: True
    with pytest.raises(PolicyRefused, match="release True"):
        Client.check_policy(released, ROUND, PARAMS, 0.0)
    # another round of the same day
    with pytest.raises(PolicyRefused, match="rounds_per_day"):
        Client.check_policy(strict, OTHER_ROUND, PARAMS, 0.0)
    assert declined == [ROUND] * 3 + [OTHER_ROUND]
