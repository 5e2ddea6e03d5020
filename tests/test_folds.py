"""Folds that audited rounds ask of clients: at a server, in a client's journal, and refused."""

import json
import logging
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.clients.journal import Journal, Submission, Upheld
from securemedian.clients.policy import ClientPolicy
from securemedian.clients.upload import ShareHalf
from securemedian.clients.voter import Voter
from securemedian.common.deviations import Deviation
from securemedian.common.keys import SigningKey
from securemedian.common.policy import Policy
from securemedian.mpc.arrays import Words
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import (
    BadUpload,
    ChannelTimeout,
    ConfigError,
    DuplicateUpload,
    LocalProtocolError,
    PeerDeviated,
    PeerProtocolError,
    PolicyRefused,
    ReceiptInvalid,
    RoundClosed,
)
from securemedian.mpc.protocols import wire
from securemedian.mpc.protocols.audit.binding import fold_words
from securemedian.mpc.protocols.channel import local_pair
from securemedian.mpc.protocols.dealing import Dealing
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers.computing.engine import STOP_S
from securemedian.servers.computing.folds import Folds
from securemedian.servers.config import EngineConfig
from securemedian.servers.machine.members import MISFOLDED, SILENT
from securemedian.servers.machine.round import SESSIONS
from securemedian.servers.network.control import (
    Check,
    Close,
    Compute,
    Dealt,
    Failed,
    Held,
    Open,
    Ready,
    Resume,
    Verdicts,
)
from securemedian.servers.storage.store import DATABASE
from tests.parties import run_both
from tests.servers_alone import AUDITED, DIM, SIGNING, START, Server, hello

BINDING, COIN = bytes([1] * 16), bytes([2] * 16)
ROUND = "1-0000000a"


def shape() -> Dealing:
    assert AUDITED.form.dealing
    return AUDITED.form.dealing


FOLD: Words = np.arange(fold_words(shape()), dtype=np.uint64)


# One server


def pass_dealings(server: Server) -> str:
    """Bring a new server to where it is to be bound: all dealings have passed, and all uploaded."""
    if server.config.party == 0:
        round_id = server.open()
    else:
        round_id = ROUND
        server.hear(Open(ROUND, 1, AUDITED.to_dict(), bytes(16), True, False, START))
    server.upload_all(round_id)
    server.hear(*(Dealt(round_id, key) for key in server.keys))
    checks = [server.keys[:1], server.keys[1:]] if server.config.party == 0 else [server.keys]
    for clients in checks:
        if server.config.party == 1:
            server.hear(Check(round_id, clients))
        server.rounds.engine_ended()
        server.engine.end_check()
        server.rounds.engine_ended()
        if server.config.party == 0:
            server.hear(Verdicts(round_id, clients, []))
    alike = server.latest.server_round.here
    if server.config.party == 0:
        server.ask(server.coordinator, "close", round=round_id)
        server.hear(Held(round_id, alike))
    else:
        server.hear(Close(round_id, alike))
        server.hear(Check(round_id, server.keys))
    assert server.latest.server_round.folding and server.state[0] == "checking"
    return round_id


def asked(server: Server) -> Folds:
    """Return what clients are asked for, once both servers are bound."""
    assert server.engine.folds
    server.engine.folds.ask(BINDING, COIN)
    return server.engine.folds


def fold(server: Server, key: str, binding: bytes = BINDING, array: Any = FOLD) -> wire.Message:
    fields = {"round": server.latest.server_round.round_id, "binding": binding}
    return server.ask(key, "folded", {"fold": array}, **fields)


@pytest.mark.parametrize("party", [0, 1])
def test_clients_are_asked_once_both_are_bound(tmp_path: Path, party: int) -> None:
    server = Server(party, tmp_path, AUDITED)
    round_id = pass_dealings(server)
    first, second, _ = server.keys
    nothing = {"state": "checking", "binding": b"", "coin": b"", "set": b"", "folded": False}
    assert server.ask(first, "bound", round=round_id).fields.items() >= nothing.items()
    assert fold(server, first).fields["code"] == RoundClosed.code
    # the seed of masks that came with the upload
    assert server.engine.bound.masks == [bytes(range(16))] * 3
    # and is none of a share
    assert not server.engine.bound.uploads[0].words(0, 0, 1).any()
    folds = asked(server)
    said = server.ask(first, "bound", round=round_id).fields
    assert (said["binding"], said["coin"], said["folded"]) == (BINDING, COIN, False)
    # of all who are asked, in their order
    assert (
        said["set"] == folds.set == digest("set", *server.keys) != digest("set", *server.keys[1:])
    )
    assert fold(server, first, COIN).fields["code"] == RoundClosed.code
    assert fold(server, first, array=FOLD[1:]).fields["code"] == BadUpload.code
    for _ in range(2):
        assert fold(server, first).type == "folded"
    assert fold(server, first, array=FOLD + np.uint64(1)).fields["code"] == DuplicateUpload.code
    assert server.ask(first, "bound", round=round_id).fields["folded"]
    assert not server.ask(second, "bound", round=round_id).fields["folded"]
    assert (folds.has(first), folds.has(second)) == (True, False)
    assert server.ask(server.coordinator, "bound", round=round_id).fields["code"] == "not-allowed"


def test_who_does_not_answer_is_left_out_and_the_others_are_asked_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "securemedian")
    s0 = Server(0, tmp_path, AUDITED, min_clients=2)
    round_id = pass_dealings(s0)
    first, second, third = s0.keys
    s0.engine.end_check(1, silent=[1])
    s0.rounds.engine_ended()
    s0.hear(Verdicts(round_id, s0.keys, [second]))
    names = s0.latest.server_round.names
    assert s0.ask(s0.coordinator, "status").fields["left_out"] == {names[second]: SILENT}
    assert s0.sent[-1] == Check(round_id, [first, third]) and len(s0.engine.checked) == 2
    (event,) = (one for one in caplog.records if one.message == "clients-folded")
    assert vars(event)["fields"]["failed"] == [names[second]]
    assert s0.ask(second, "bound", round=round_id).fields["binding"] == b""
    s0.engine.end_check()
    s0.rounds.engine_ended()
    s0.hear(Verdicts(round_id, [first, third], []))
    assert s0.state[0] == "starting" and isinstance(s0.sent[-1], Compute)
    assert s0.latest.server_round.excluded == {SILENT: [second]}


def test_a_round_says_that_it_waits_for_material(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "securemedian")
    server = Server(0, tmp_path, AUDITED)
    server.engine.prepares, server.engine.progress = True, (30, 200)
    pass_dealings(server)
    (event,) = (one for one in caplog.records if one.message == "waiting-for-material")
    assert vars(event)["fields"].items() >= {"done": 30, "total": 200}.items()


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("last", [False, True])
def test_who_is_left_out_costs_a_session_and_the_last_one_ends_the_round(
    tmp_path: Path, party: int, last: bool
) -> None:
    server = Server(party, tmp_path, AUDITED, min_clients=2)
    round_id, keys, entry = pass_dealings(server), server.keys, server.latest
    most = SESSIONS + entry.server_round.runs
    if last:
        entry.server_round = replace(entry.server_round, sessions=most)
    server.engine.end_check(2, silent=[2])
    server.rounds.engine_ended()
    if party == 0:
        server.hear(Verdicts(round_id, keys, keys[2:]))
    else:
        server.hear(Check(round_id, keys[:2]))
    if last:
        assert server.state[0] == "failed"
        assert f"{most} sessions of the servers have ended" in server.state[1]
    else:
        assert server.state[0] == "checking" and entry.server_round.sessions == 2
        assert stored(server)["sessions"] == 2


def test_too_few_that_answer_fail_the_round(tmp_path: Path) -> None:
    s0 = Server(0, tmp_path, AUDITED, min_clients=3)
    round_id = pass_dealings(s0)
    s0.engine.end_check(1)
    s0.rounds.engine_ended()
    s0.hear(Verdicts(round_id, s0.keys, s0.keys[1:2]))
    state, reason = s0.state
    assert state == "failed" and MISFOLDED in reason
    assert s0.latest.server_round.opened == "nothing"


@pytest.mark.parametrize("party", [0, 1])
def test_a_restart_forgets_what_it_is_bound_to_and_keeps_the_masks(
    tmp_path: Path, party: int
) -> None:
    server = Server(party, tmp_path, AUDITED)
    round_id = pass_dealings(server)
    asked(server)
    fold(server, server.keys[0])
    server.restart()
    assert server.ask(server.keys[0], "bound", round=round_id).fields["binding"] == b""
    here = server.latest.server_round
    said = here.here, server.keys, sorted(here.passed), list[str]()
    coins = {key: coin + here.token(key, coin) for key, coin in here.known("coin").items()}
    session = server.sent[-1].session if party == 0 else bytes([9] * 16)
    server.hear(Resume(round_id, session, "checking", 0, b"", *said, coins))
    if party == 1:
        server.hear(Check(round_id, server.keys))
    assert server.latest.server_round.folding
    assert server.engine.bound.masks == [bytes(range(16))] * 3


def test_after_a_run_that_broke_off_the_same_clients_are_asked_in_another_session(
    tmp_path: Path,
) -> None:
    s0 = Server(0, tmp_path, AUDITED)
    round_id = pass_dealings(s0)
    s0.engine.end_check()
    s0.rounds.engine_ended()
    s0.hear(Verdicts(round_id, s0.keys, []))
    assert isinstance(s0.sent[-1], Compute) and not s0.sent[-1].new_session
    s0.hear(Ready(round_id, 1))
    s0.engine.result = ChannelTimeout("nothing for 60 s")
    s0.rounds.engine_ended()
    assert s0.state[0] == "queued"
    s0.now += 1.0
    s0.rounds.tick()
    resume = s0.sent[-1]
    assert isinstance(resume, Resume) and s0.latest.server_round.adrift
    here = s0.latest.server_round
    held, passed = here.here, sorted(here.passed)
    s0.hear(Resume(round_id, resume.session, "queued", 1, b"", held, s0.keys, passed, [], {}))
    assert s0.sent[-1] == Check(round_id, s0.keys) and s0.state[0] == "checking"
    # values may have been opened: nobody can be left out any more
    s0.engine.end_check(2, silent=[2])
    s0.rounds.engine_ended()
    s0.hear(Verdicts(round_id, s0.keys, s0.keys[2:]))
    state, reason = s0.state
    assert state == "failed" and "cannot be repeated without folds of all its clients: " in reason
    lost = s0.latest.server_round.names[s0.keys[2]]
    assert f"{lost} ({SILENT})" in reason


@pytest.mark.parametrize("party", [0, 1])
def test_nothing_is_sent_of_a_session_that_is_not_stored(tmp_path: Path, party: int) -> None:
    """Neither while it is bound, nor when a sign is to be opened; and it is stored by then."""
    server = Server(party, tmp_path, AUDITED)
    round_id = pass_dealings(server)
    bound, here = server.engine.bound, server.latest.server_round
    bound.mark()
    assert here.sessions == 1 and stored(server)["sessions"] == 1
    server.engine.end_check()
    server.rounds.engine_ended()
    if party == 0:
        server.hear(Verdicts(round_id, server.keys, []), Ready(round_id, 1))
    else:
        server.hear(Compute(round_id, server.latest.server_round.digest, 1, bytes(16), False))
    server.engine.given.mark()
    assert stored(server)["state"] == "running"
    # of a state, or of a session, before
    with pytest.raises(LocalProtocolError, match="was not stored"):
        bound.mark()
    server.latest.saved = json.dumps(stored(server) | {"sessions": 0})
    with pytest.raises(LocalProtocolError, match="session 1 of a round that is running"):
        server.engine.given.mark()


def stored(server: Server) -> dict[str, Any]:
    """Return what the database has of the round."""
    (text,) = (
        sqlite3.connect(server.folder / DATABASE).execute("SELECT saved FROM rounds").fetchone()
    )
    return dict(json.loads(text))


@pytest.mark.parametrize("how", ["before", "another session"])
def test_s1_runs_nothing_that_it_is_not_bound_to(tmp_path: Path, how: str) -> None:
    s1 = Server(1, tmp_path, AUDITED)
    pass_dealings(s1)
    if how == "another session":
        s1.engine.end_check()
        s1.rounds.engine_ended()
    digest, another = s1.latest.server_round.digest, how == "another session"
    s1.hear(Compute(ROUND, digest, 1, bytes(16), another))
    # a message waits for the computation
    s1.now += STOP_S
    s1.rounds.tick()
    state, reason = s1.state
    assert state == "failed" and s1.engine.uploads is None
    assert "before" in reason


def test_what_deviates_is_signed_and_fails_the_round_for_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    s0 = Server(0, tmp_path, AUDITED)
    round_id = pass_dealings(s0)
    assert "deviation" not in s0.ask(s0.coordinator, "status").fields
    s0.engine.result = PeerDeviated("another sum than what it is bound to")
    with caplog.at_level(logging.ERROR, "securemedian"):
        s0.rounds.engine_ended()
    (event,) = (one for one in caplog.records if one.message == "peer-deviated")
    state, reason = s0.state
    assert state == "failed" and reason.startswith("the peer deviated: s0 has signed that s1")
    assert s0.sent[-1].code == PeerDeviated.code and s0.engine.session_id is None
    s0.restart()
    said = s0.ask(s0.coordinator, "status").fields["deviation"]
    assert said.items() <= vars(event)["fields"].items()
    found = Deviation.check(said, SIGNING[0].public)
    assert (found.round, found.server, found.time) == (round_id, "s0", s0.now)
    assert found.what == "another sum than what it is bound to"
    broken: list[dict[str, str]] = [{}, said | {"record": "00"}, said | {"signature": "00"}]
    for wrong in broken:
        with pytest.raises(ReceiptInvalid):
            Deviation.check(wrong, SIGNING[0].public)
    with pytest.raises(ReceiptInvalid, match="not signed"):
        Deviation.check(said, SigningKey.new().public)


CLAIM = Failed(ROUND, PeerDeviated.code, "the peer deviated: it was you")


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("first", ["own", "claim", "defect", "lost"])
def test_what_is_found_here_is_signed_whatever_the_other_server_says_first(
    tmp_path: Path, party: int, first: str
) -> None:
    """Let it say its claim, another failure, or that it is another instance, which ends the run."""
    server = Server(party, tmp_path, AUDITED)
    round_id = pass_dealings(server)
    said = replace(CLAIM, round=round_id)
    finding = PeerDeviated("another sum than what it is bound to")
    if first == "own":
        server.engine.result = finding
        server.rounds.engine_ended()
    elif first == "lost":
        server.hear(said, hello("two"))
        assert server.engine.dropped
    else:
        server.hear(said if first == "claim" else replace(said, code="bug"))
        assert server.state[0] == "checking" and not server.engine.dropped
    server.engine.result = finding
    server.rounds.engine_ended()
    server.hear(said)
    state, reason = server.state
    assert state == "failed"
    assert reason.startswith(f"the peer deviated: s{party} has signed that s{1 - party} does not")
    found = server.ask(server.coordinator, "status").fields["deviation"]
    assert Deviation.check(found, SIGNING[party].public).server == f"s{party}"
    server.restart()
    assert server.ask(server.coordinator, "status").fields["deviation"] == found


@pytest.mark.parametrize("party", [0, 1])
def test_what_is_found_while_material_is_made_is_signed(tmp_path: Path, party: int) -> None:
    """Hear only after it what ends the round, and everything else at once."""
    server = Server(party, tmp_path, AUDITED)
    if party == 0:
        round_id = server.open()
    else:
        round_id = ROUND
        server.hear(Open(ROUND, 1, AUDITED.to_dict(), bytes(16), True, False, START))
    server.engine.prepares = True
    server.hear(*(Dealt(round_id, key) for key in server.keys), replace(CLAIM, round=round_id))
    assert server.latest.server_round.dealt_there == set(server.keys)
    assert server.state[0] == "open"
    server.engine.prepares, server.engine.result = False, PeerDeviated("wrong random bits")
    server.rounds.engine_ended()
    assert server.state[0] == "failed" and f"s{party} has signed that" in server.state[1]


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("ends", ["passing", "breaking off", "never"])
def test_what_is_only_heard_is_said_as_hearsay(tmp_path: Path, party: int, ends: str) -> None:
    server = Server(party, tmp_path, AUDITED)
    round_id = pass_dealings(server)
    server.hear(replace(CLAIM, round=round_id))
    if ends == "never":
        server.now += STOP_S
        server.rounds.tick()
    elif ends == "passing":
        server.engine.end_check()
    else:
        server.engine.result = ChannelTimeout("nothing for 60 s")
    server.rounds.engine_ended()
    state, reason = server.state
    here, there = f"s{party}", f"s{1 - party}"
    assert state == "failed"
    assert reason.startswith(f"{there} claims that {here} deviated, and {here} has found and sign")
    assert reason.endswith(CLAIM.reason)
    assert "deviation" not in server.ask(server.coordinator, "status").fields


def test_an_upload_needs_masks_where_it_is_audited_and_the_first_ones_count(tmp_path: Path) -> None:
    s0 = Server(0, tmp_path, AUDITED)
    round_id = s0.open()
    key, layout = s0.keys[0], AUDITED.form.layout
    s0.deal(key, round_id)
    rotations = np.zeros((layout.rows, layout.row_words), np.uint64)
    fields = {"round": round_id, "params": AUDITED.digest, "form": "rotations"}

    def upload(**arrays: Any) -> wire.Message:
        return s0.ask(key, "upload", {"share": rotations} | arrays, **fields)

    for wrong in ({}, {"masks": np.zeros(15, np.uint8)}, {"masks": np.zeros(16, np.uint16)}):
        assert upload(**wrong).fields["code"] == BadUpload.code
    for _ in range(2):
        assert upload(masks=np.zeros(16, np.uint8)).type == "upload"
    again = upload(masks=np.ones(16, np.uint8))
    assert again.fields["code"] == DuplicateUpload.code and "masks" in again.fields["message"]


def test_a_round_that_is_not_audited_takes_neither_masks_nor_folds(tmp_path: Path) -> None:
    plain = RoundParams(Bucketed(), dim=DIM, max_clients=3)
    s0 = Server(0, tmp_path, plain)
    round_id = s0.open()
    layout = plain.form.layout
    s0.deal(s0.keys[0], round_id)
    arrays: dict[str, Any] = {
        "share": np.zeros((layout.rows, layout.row_words), np.uint64),
        "masks": np.zeros(16, np.uint8),
    }
    fields = {"round": round_id, "params": plain.digest, "form": "rotations"}
    refused = s0.ask(s0.keys[0], "upload", arrays, **fields)
    assert (
        refused.fields["code"] == BadUpload.code
        and "for a round without security malicious: " in refused.fields["message"]
    )
    assert fold(s0, s0.keys[0]).fields["code"] == BadUpload.code
    assert s0.ask(s0.keys[0], "bound", round=round_id).fields["binding"] == b""


# Waiting for folds


@pytest.mark.parametrize("missing", ["nobody", "at s0", "at s1"])
def test_both_servers_agree_on_who_has_answered(missing: str) -> None:
    both = [Folds(["a", "b"], 1) for _ in (0, 1)]
    ends = local_pair(20)
    for party, folds in enumerate(both):
        folds.ask(BINDING, COIN)
        for client in ("a", "b"):
            if (missing, client) != (f"at s{party}", "b"):
                folds.put(client, BINDING, np.zeros(1, np.uint64))

    def gather(party: int) -> list[bool]:
        return both[party].gather(ends[party], party, 0.0 if missing != "nobody" else 60.0)

    came = [True, missing == "nobody"]
    assert run_both(gather) == (came, came)
    with pytest.raises(RoundClosed):
        both[0].put("a", BINDING, np.zeros(1, np.uint64))


# Policies and options


RAY = EngineConfig("ray")
AUDITS = [Policy(audit=True), ClientPolicy(audit=True)]


@pytest.mark.parametrize("policy", AUDITS, ids=["server", "client"])
def test_a_policy_asks_for_an_audit(policy: Policy) -> None:
    policy.check(AUDITED, 0, "s0")
    for method in ({"method": "bucketed"}, {"method": "mean"}):
        params = RoundParams.from_dict({"dim": DIM, "max_clients": 3} | method)
        with pytest.raises(PolicyRefused, match="round without security malicious: its"):
            policy.check(params, 0, "s0")
    assert policy.to_dict()["audit"] is True and "audit" not in Policy().to_dict()


@pytest.mark.parametrize("how", ["silent", "ray"])
def test_a_server_that_cannot_audit_refuses_in_words(tmp_path: Path, how: str) -> None:
    s0 = Server(0, tmp_path, AUDITED)
    silent = replace(s0.config.protocol, ot_extension="silent")
    protocol, engine = (silent, s0.config.engine) if how == "silent" else (s0.config.protocol, RAY)
    s0.rounds.register.reload(replace(s0.config, protocol=protocol, engine=engine))
    s0.ask_to_open()
    refused = s0.replies[-1].fields
    assert refused["code"] == ConfigError.code
    assert {"silent": "silent OT", "ray": "workers on Ray"}[how] in refused["message"]


# The journal


def submission() -> Submission:
    layout = shape().rotations_layout
    half = ShareHalf("rotations", np.arange(layout.words, dtype=np.uint64)[None])
    draw = Journal(None).draw("1-a", b"p", 1)
    upheld = Upheld(shape(), draw, half.share, (bytes(16), bytes([1] * 16)))
    return Submission("1-a", b"p", bytes(32), b"u", (half, half), 0, 0, upheld)


@pytest.mark.parametrize("confirmed", [False, True])
def test_what_folds_are_made_of_outlasts_the_process_until_the_round_ends(
    tmp_path: Path, confirmed: bool
) -> None:
    journal, made = Journal(tmp_path), submission()
    journal.keep(made)
    if confirmed:
        journal.confirm(made)
    journal.note_fold("1-a", BINDING, COIN)
    journal.close()
    journal = Journal(tmp_path)
    (found,) = journal.upheld.values()
    assert made.upheld and found.draw.entropy()(32) == made.upheld.draw.entropy()(32)
    assert (found.shape, found.masks, found.draw.index) == (shape(), made.upheld.masks, 1)
    assert np.array_equal(found.rotations, made.upheld.rotations)
    # under the same coin and set again, and never under others
    journal.note_fold("1-a", BINDING, COIN)
    journal.note_fold("1-a", COIN, COIN)
    with pytest.raises(PeerProtocolError, match="another coin"):
        journal.note_fold("1-a", BINDING, BINDING)
    journal.let_go("1-a")
    assert not journal.upheld
    journal.close()
    journal = Journal(tmp_path)
    assert not journal.upheld and len(journal.sent) == confirmed
    if confirmed:
        assert made.upheld.draw.secret not in (tmp_path / "1-a.kept").read_bytes()
    journal.close()


# A client


class TwoServers:
    """Both servers: the things they say that they are bound to, and the folds that they get."""

    def __init__(self) -> None:
        self.state, self.source = "checking", 0
        bound = {"level": 0, "binding": BINDING, "coin": COIN, "folded": False}
        bound |= {"record": b"", "signature": b""}
        self.bound: list[dict[str, Any]] = [bound | {"set": SET} for _ in (0, 1)]
        self.got: list[tuple[int, bytes, bytes]] = []
        self.declined: list[Any] = []

    def ask(
        self,
        op: str,
        fields: dict[str, Any],
        arrays: Any = None,
        timeout_s: float = 0.0,
        party: int = 0,
    ) -> wire.Message:
        if op == "bound":
            return wire.Message("bound", self.bound[party] | {"state": self.state})
        self.got.append((party, fields["binding"], arrays["fold"].tobytes()))
        self.bound[party]["folded"] = True
        return wire.Message("folded", {})

    def report(self, text: str) -> None:
        """Print nothing."""

    def decline(self, *given: Any) -> None:
        self.declined.append(given)


SET = digest("set", "a", "b", "c")
OTHERS = {"coin": BINDING, "set": digest("set", "a", "c")}


@pytest.fixture
def both() -> TwoServers:
    return TwoServers()


@pytest.fixture
def voter(both: TwoServers) -> Voter:
    journal = Journal(None)
    journal.keep(submission())
    client: Any = both
    return Voter(journal, client)


def test_a_client_folds_once_for_what_both_servers_name(voter: Voter, both: TwoServers) -> None:
    voter.tend()
    assert [(party, binding) for party, binding, _ in both.got] == [(1, BINDING), (0, BINDING)]
    # each server gets the fold of the other one's half
    assert both.got[0][2] != both.got[1][2]
    voter.tend()
    assert len(both.got) == 2
    # the server that is asked first gets the same bytes again, should it not have them
    both.bound[0]["folded"] = False
    voter.tend()
    assert both.got[2] == both.got[1] and len(both.got) == 3
    # of another binding there are others
    for said in both.bound:
        said.update(binding=COIN, folded=False)
    voter.tend()
    assert len(both.got) == 5 and both.got[3][2] != both.got[0][2]


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize(
    ("name", "other"), [*OTHERS.items(), ("binding", COIN)], ids=[*OTHERS, "binding"]
)
def test_a_client_folds_for_nothing_that_one_server_names_alone(
    voter: Voter, both: TwoServers, party: int, name: str, other: bytes
) -> None:
    both.bound[party][name] = other
    if name == "binding":
        # it may have gone on
        voter.tend()
    else:
        with pytest.raises(PeerProtocolError, match=f"name different {name}s"):
            voter.tend()
    assert not both.got


@pytest.mark.parametrize(("name", "other"), OTHERS.items(), ids=OTHERS)
def test_a_client_folds_never_again_for_a_binding_under_others(
    voter: Voter, both: TwoServers, name: str, other: bytes
) -> None:
    voter.tend()
    for said in both.bound:
        said.update({name: other, "folded": False})
    with pytest.raises(PeerProtocolError, match="name another coin or set"):
        voter.tend()
    assert len(both.got) == 2


@pytest.mark.parametrize(
    "said", [{"set": b""}, {"coin": b"short"}, {"binding": b"1"}, {"folded": 1}, {"set": "a" * 32}]
)
def test_a_client_folds_for_nothing_of_another_form(
    voter: Voter, both: TwoServers, said: dict[str, Any]
) -> None:
    both.bound[1].update(said)
    with pytest.raises(PeerProtocolError, match="S1 does not say what it is bound to"):
        voter.tend()
    assert not both.got


def test_a_client_forgets_a_round_that_has_ended(voter: Voter, both: TwoServers) -> None:
    both.state = "published"
    voter.tend()
    assert not both.got and not voter._journal.upheld
