"""servers.rounds and servers.requests without sockets.

The tests say what a server does when peer, engine or disk fail it.
"""

import itertools
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zmq.utils import z85

from securemedian.clients.outcomes import receipt_of
from securemedian.common.receipts import Receipt, digest_of
from securemedian.mpc.arrays import PublicValues
from securemedian.mpc.errors import (
    MAX_TEXT,
    ChannelTimeout,
    ConfigError,
    PeerProtocolError,
    RoundBusy,
    SecureMedianError,
)
from securemedian.mpc.protocols import wire
from securemedian.mpc.rounds import cost, pipeline
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.zeno import Zeno
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers import logs
from securemedian.servers.config import MAX_CLIENTS, MAX_NAME, Caller
from securemedian.servers.network import control
from securemedian.servers.network.control import (
    Again,
    Bye,
    Check,
    Close,
    Compute,
    Dealt,
    Done,
    Failed,
    Held,
    Open,
    Opened,
    Ready,
    Resume,
    Uploaded,
    Verdicts,
)
from securemedian.servers.rounds import runner
from securemedian.servers.rounds.register import ENVELOPE_BYTES, ROUNDS_RETAINED, Register
from securemedian.servers.rounds.rounds import Rounds
from securemedian.servers.storage.store import Store
from tests.servers_alone import DEALT, DIM, PARAMS, SIGNING, START, Server, held, hello


@pytest.fixture
def s0(tmp_path: Path) -> Server:
    return Server(0, tmp_path / "s0")


@pytest.fixture
def s1(tmp_path: Path) -> Server:
    return Server(1, tmp_path / "s1")


def asked(round_id: str = "1-0000000a", params: RoundParams = PARAMS, **more: Any) -> Open:
    """Return what S0 asks S1 for: a round in a new session."""
    given: dict[str, Any] = {"new_session": True, "start_over": False, "start": START} | more
    return Open(round_id, 1, params.to_dict(), bytes(16), **given)


def run_until_started(s0: Server) -> str:
    round_id = s0.open()
    s0.upload_all(round_id)
    s0.hear(
        *(Uploaded(round_id, key) for key in s0.keys),
        Held(round_id, held(s0.keys)),
        Ready(round_id, 1),
    )
    assert s0.state == ("running", "") and s0.engine.uploads is not None
    assert len(s0.engine.uploads) == 3
    return round_id


def test_open_that_s1_refuses_or_leaves_unanswered_fails(s0: Server) -> None:
    s0.ask_to_open()
    assert not s0.replies and s0.state == ("opening", "")
    s0.hear(Failed(s0.sent[-1].round, "bad-config", "s1: at least 5 clients"))
    assert s0.replies[-1].fields == {
        "id": 1,
        "code": "bad-config",
        "message": "s1: at least 5 clients",
    }
    s0.ask_to_open()
    s0.now = s0.config.peer_timeout_s
    s0.hear(hello())
    s0.rounds.tick()
    assert s0.replies[-1].fields["code"] == "timeout"


def test_a_result_is_published_when_both_have_it(s0: Server) -> None:
    round_id = run_until_started(s0)
    signed = compute(s0)
    assert signed.is_signed("s0", SIGNING[0].public)
    assert s0.sent[-1] == Done(round_id, 1, signed.signatures["s0"])
    s0.hear(s0.done())
    assert s0.state == ("published", "")
    client = s0.config.clients[0].public_key
    answer = s0.ask(client, "result", round=round_id)
    assert answer.arrays["opened"].tolist() == [9 << 24] * DIM
    receipt = receipt_of(answer)
    receipt.check([key.public for key in SIGNING])
    assert receipt.record.opened == digest_of(answer.arrays["opened"])
    assert receipt.record.included == s0.keys and receipt.record.left_out == {}
    again = s0.ask(client, "result", round=round_id, values=False)
    assert receipt_of(again) == receipt and not again.arrays
    assert s0.ask(client, "status", round=round_id).fields["cost"]["ots"] == 5
    kept = s0.engine.session_id
    s0.open()
    assert s0.sent[-1].session == kept and not s0.sent[-1].new_session


@pytest.mark.parametrize(
    "how",
    ["an error of the engine", "a restarted peer", "a lost peer", "a peer that stops", "its limit"],
)
def test_a_run_that_breaks_off_says_why_and_drops_its_session(s0: Server, how: str) -> None:
    run_until_started(s0)
    if how == "an error of the engine":
        s0.engine.result = ChannelTimeout("nothing for 60 s")
        s0.rounds.engine_ended()
        expected = "nothing for 60 s"
    elif how == "a restarted peer":
        s0.hear(hello("two"))
        expected = "s1 was restarted"
    elif how == "a peer that stops":
        s0.hear(Bye())
        assert s0.sent[-1] == Bye()
        expected = "s1 was stopped"
    else:
        s0.now = s0.config.peer_timeout_s if how == "a lost peer" else s0.config.round_limit_s
        if how == "its limit":
            s0.hear(hello())
        s0.rounds.tick()
        expected = "no sign of life" if how == "a lost peer" else "longer than its limit"
    state, reason = s0.state
    assert state == "queued" and expected in reason and s0.engine.session_id is None
    told = [message for message in s0.sent if isinstance(message, Again)]
    assert [(again.attempt, again.reason) for again in told] == (
        [(1, f"s0: {reason}")] if how in ("an error of the engine", "its limit") else []
    )
    status = s0.ask(s0.coordinator, "status").fields
    assert (status["attempt"], status["attempts_left"], status["retry_in_s"]) == (1, 4, 1.0)
    assert status["opened"] == "maybe"


def test_s1_refuses_a_session_that_it_has_not_or_cannot_prepare_and_takes_a_new_one(
    s1: Server,
) -> None:
    s1.hear(asked(new_session=False))
    assert isinstance(s1.sent[-1], Failed) and "no session to keep" in s1.sent[-1].reason
    s1.hear(asked("1-0000000b"))
    assert s1.sent[-1] == Opened("1-0000000b", bytes(16), runs=5) and s1.state == ("open", "")
    s1.engine.refusal = RoundBusy("the last run has not stopped")
    s1.hear(asked("1-0000000c"))
    assert s1.state == ("failed", "the last run has not stopped")
    assert isinstance(s1.sent[-1], Failed)


def test_s1_checks_parameters_clients_and_digest_itself(s1: Server) -> None:
    few = asked()
    s1.hear(replace(few, params=few.params | {"min_clients": 1}))
    assert s1.sent[-1].code == "bad-config"
    s1.hear(asked("1-0000000b", RoundParams(Pairwise(), dim=DIM, max_clients=2)))
    assert s1.sent[-1].code == "bad-config" and "below the 3 clients" in s1.sent[-1].reason
    s1.hear(asked("1-0000000c"))
    s1.upload_all("1-0000000c")
    s1.hear(Close("1-0000000c", held(s1.keys)))
    assert s1.sent[-1] == Held("1-0000000c", held(s1.keys))
    s1.hear(Compute("1-0000000c", bytes(32), 1, bytes(16), False))
    assert s1.sent[-1].code == "parameters-differ" and s1.engine.session_id is None


def test_s1_takes_no_rounds_of_a_peer_that_is_configured_differently(s1: Server) -> None:
    s1.hear(hello(lanes=7), asked())
    failed = s1.sent[-1]
    assert failed.code == "parameters-differ" and "lanes: 2 here, 7 there" in failed.reason


def test_a_stopping_server_takes_no_rounds_and_lets_a_run_finish(s0: Server) -> None:
    run_until_started(s0)
    s0.rounds.stop()
    assert s0.state == ("running", "") and s0.rounds.running
    compute(s0)
    s0.hear(s0.done())
    assert s0.state == ("published", "") and not s0.rounds.live and not s0.rounds.running
    refused = s0.ask(s0.coordinator, "open", params=PARAMS.to_dict(), range={}, reset=False)
    assert (
        refused.fields["code"] == "round-busy"
        and "while a server stops" in refused.fields["message"]
    )


def test_a_disk_that_fails_is_said_and_nothing_is_held(
    s0: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_id = s0.open()

    written = os.pwrite

    def full(file: int, data: memoryview, at: int) -> int:
        if at:
            raise OSError(28, "No space left on device")
        return written(file, data[:8], at)

    words = np.arange(PARAMS.form.layout.row_words, dtype=np.uint64)[None]
    client = s0.config.clients[0].public_key
    fields = {"round": round_id, "params": PARAMS.digest, "form": "words"}
    monkeypatch.setattr("os.pwrite", full)
    refused = s0.ask(client, "upload", {"share": words}, **fields)
    assert refused.type == "error" and "No space left" in refused.fields["message"]
    monkeypatch.undo()
    assert s0.ask(client, "upload", {"share": words}, **fields).type == "upload"
    # the bytes written before the disk was full do not belong to it
    assert (s0.latest.spool.get(client).words(0, 0, words.size) == words).all()


@pytest.mark.parametrize("party", [0, 1])
def test_what_was_made_for_another_model_is_refused(tmp_path: Path, party: int) -> None:
    """S0 alone hands out the model: with another one for each client it could read an update."""
    server = Server(party, tmp_path, DEALT)
    round_id = server.open() if party == 0 else "1-0000000a"
    if party == 1:
        server.hear(asked(round_id, DEALT))
    client, layout = server.keys[0], DEALT.form.layout
    assert server.latest.server_round.asked.start != "1" * 64
    another = {"start": bytes.fromhex("1" * 64)}
    refused = server.deal(client, round_id, **another)
    assert refused.fields["code"] == "bad-upload"
    assert "made for another model or range" in refused.fields["message"]
    assert not server.latest.server_round.dealt_here
    assert server.deal(client, round_id).type == "deal"
    rotations = {"share": np.zeros((layout.rows, layout.row_words), np.uint64)}
    fields = {"round": round_id, "params": DEALT.digest, "form": "rotations"}
    refused = server.ask(client, "upload", rotations, **fields, **another)
    assert refused.fields["code"] == "bad-upload"
    assert "made for another model or range" in refused.fields["message"]
    assert not server.latest.server_round.here
    assert server.ask(client, "upload", rotations, **fields).type == "upload"


def test_a_dealing_that_cannot_be_written_is_still_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s0 = Server(0, tmp_path, DEALT)
    shape = DEALT.form.dealing
    assert shape
    round_id, client = s0.open(), s0.keys[0]
    words = np.arange(shape.layout.words, dtype=np.uint64)
    half = words.size // 2
    pieces: list[dict[str, Any]] = [
        {"form": "words", "pieces": 2, "piece": piece, "share": part}
        for piece, part in enumerate((words[:half], words[half:]))
    ]

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    early = s0.deal(client, round_id, **pieces[1])
    assert early.fields["code"] == "bad-upload" and "piece 0 is due" in early.fields["message"]
    # room for the whole is made at the first piece
    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", full)
        refused = s0.deal(client, round_id, **pieces[0])
        assert refused.type == "error" and "No space left" in refused.fields["message"]
    assert not s0.deal(client, round_id, **pieces[0]).fields["whole"]
    size = (tmp_path / "spool" / round_id / "uploads.words").stat().st_size
    assert size == 8 * words.size
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", full)
        assert s0.deal(client, round_id, **pieces[1]).type == "error"
    assert not s0.latest.server_round.dealt_here
    assert s0.deal(client, round_id, **pieces[1]).fields["whole"]
    assert (s0.latest.spool.dealing(client).words(0, 0, words.size) == words).all()
    assert s0.sent[-1] == Dealt(round_id, client)


def test_unfinished_dealings_take_one_dealing_of_disk_per_client_and_nothing_else(
    tmp_path: Path,
) -> None:
    """However often they are begun, in however many pieces, and over whichever connection."""
    s1 = Server(1, tmp_path, DEALT)
    shape, round_id = DEALT.form.dealing, "1-0000000a"
    assert shape
    s1.hear(asked(round_id, DEALT))
    words = np.arange(shape.layout.words, dtype=np.uint64)
    file = tmp_path / "spool" / round_id / "uploads.words"

    def piece(key: str, number: int, pieces: int) -> wire.Message:
        size = -(-words.size // pieces)
        share = words[number * size : (number + 1) * size]
        return s1.deal(key, round_id, form="words", piece=number, pieces=pieces, share=share)

    for key in s1.keys:
        # each of one word, and then fewer
        for pieces in (words.size, 2, 3):
            for _ in range(2):
                assert not piece(key, 0, pieces).fields["whole"]
        # pieces of another way of cutting do not go on with this one
        assert "piece 0 is due" in piece(key, 1, 2).fields["message"]
    assert file.stat().st_size == len(s1.keys) * 8 * words.size
    assert not s1.latest.server_round.dealt_here and not isinstance(s1.sent[-1], Dealt)
    first, second, third = s1.keys
    # the others' pieces in between change nothing
    for number in (1, 2):
        for key in (first, second):
            assert piece(key, number, 3).type == "deal"
    for key in (first, second):
        assert (s1.latest.spool.dealing(key).words(0, 0, words.size) == words).all()
    # begun as words, and then a seed after all
    assert s1.deal(third, round_id).fields["whole"]
    assert file.stat().st_size == len(s1.keys) * 8 * words.size
    # a dealing stands as soon as it is whole, and its pieces may come again, cut in another way
    assert piece(third, 0, 1).fields["code"] == "duplicate-upload"
    assert not piece(first, 0, 2).fields["whole"] and piece(first, 0, 1).fields["whole"]
    s1.hear(Close(round_id, {}))
    assert piece(first, 2, 3).fields["whole"]
    words = words + np.uint64(1)
    assert piece(first, 0, 1).fields["code"] == "duplicate-upload"
    words = words - np.uint64(1)
    s1.fail()
    assert not file.exists()
    assert piece(first, 0, 1).fields["whole"]
    assert piece(first, 0, 2).fields["code"] == "round-closed"


def test_pieces_that_do_not_fit_are_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    s0, shape = Server(0, tmp_path, DEALT), DEALT.form.dealing
    assert shape
    round_id, key = s0.open(), s0.keys[0]
    words, seed = np.arange(shape.layout.words, dtype=np.uint64), np.zeros(16, np.uint8)
    half = words[: -(-words.size // 2)]
    for form, share, piece, pieces, why in (
        ("words", half, 2, 2, "an unknown piece: piece 2 of 2"),
        ("words", half, -1, 2, "an unknown piece: piece -1"),
        ("words", words[:0], 0, 0, "an unknown piece: piece 0 of 0"),
        ("words", words[:1], 0, 1 << 62, "an unknown piece: piece 0 of"),
        ("words", half[1:], 0, 2, "is not uint64"),
        ("words", half.astype(np.int64), 0, 2, "is not uint64"),
        ("words", half[None], 0, 2, "is not uint64"),
        ("rotations", half, 0, 2, "seed or words"),
        ("seed", seed, 0, 2, "an unknown piece: piece 0 of 2"),
        ("seed", seed[:15], 0, 1, "is not uint8"),
    ):
        cut = {"form": form, "share": share, "piece": piece, "pieces": pieces}
        refused = s0.deal(key, round_id, **cut).fields
        assert refused["code"] == "bad-upload" and why in refused["message"]
    assert "other parameters" in s0.deal(key, round_id, params=b"?").fields["message"]
    assert s0.deal(key, round_id).fields["whole"]


def test_what_is_checked_are_the_dealings_and_their_verdicts_are_logged_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    s0 = Server(0, tmp_path, DEALT)
    round_id = s0.open()
    first, second, third = s0.keys
    for key in (first, second):
        s0.deal(key, round_id)
    s0.hear(Dealt(round_id, first))
    assert s0.sent[-1] == Check(round_id, [first])
    s0.rounds.engine_ended()
    assert s0.engine.checked == [s0.latest.spool.dealing(first)]
    s0.engine.end_check()
    s0.rounds.engine_ended()
    s0.hear(Dealt(round_id, second), Verdicts(round_id, [first], []))
    s0.rounds.engine_ended()
    s0.engine.end_check(0)
    with caplog.at_level(logging.INFO, "securemedian"):
        s0.rounds.engine_ended()
    (event,) = (record for record in caplog.records if record.message == "clients-checked")
    names = s0.config.members["default"].clients
    assert event.levelno == logging.WARNING
    assert vars(event)["fields"]["failed"] == [names[second]]
    s0.hear(Verdicts(round_id, [second], [second]))
    status = s0.ask(s0.coordinator, "status").fields
    assert status["left_out"] == {names[second]: "its dealing failed the check"}
    assert status["state"] == "open"
    assert "failed the check" in s0.ask(second, "round").fields["left_out"]
    assert s0.upload(second, round_id).fields["code"] == "not-allowed"
    assert s0.upload(first, round_id).type == "upload"
    # a share is not a rotation
    share = {"share": np.zeros(16, np.uint8)}
    fields = {"round": round_id, "params": DEALT.digest, "form": "seed"}
    assert s0.deal(third, round_id).type == "deal"
    refused = s0.ask(third, "upload", share, **fields)
    assert refused.fields["code"] == "bad-upload" and "rotations" in refused.fields["message"]
    s0.fail()
    assert not list((tmp_path / "spool").iterdir())


def test_a_check_that_breaks_off_is_made_again_under_the_same_coin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "securemedian")
    s1 = Server(1, tmp_path, DEALT)
    s1.hear(asked(params=DEALT))
    s1.deal(s1.keys[0], "1-0000000a")
    s1.hear(Check("1-0000000a", s1.keys[:1]))
    s1.rounds.engine_ended()
    (coin,) = s1.engine.coins
    s1.engine.result = ChannelTimeout("nothing for 60 s")
    s1.rounds.engine_ended()
    assert s1.state == ("open", "nothing for 60 s") and s1.engine.session_id is None
    assert s1.sent[-1] == Again("1-0000000a", 0, "timeout", "s1: nothing for 60 s")
    # S0's messages from before it knew are useless
    s1.hear(Check("1-0000000a", s1.keys[:1]))
    assert not s1.engine.checked and s1.state[0] == "open"
    resume = Resume("1-0000000a", bytes([1] * 16), "open", 0, b"", {}, s1.keys[:1], [], [], {})
    s1.hear(resume)
    known = coin + s1.latest.server_round.token(s1.keys[0], coin)
    assert s1.sent[-1].coins == {s1.keys[0]: known} and s1.engine.session_id == resume.session
    s1.hear(Check("1-0000000a", s1.keys[:1], coin))
    assert s1.engine.coins == [coin, coin]
    begun = [vars(one)["fields"] for one in caplog.records if one.message == "check-begun"]
    assert len(begun) == 2 and begun[0] == begun[1], "the soak reads from it that the coin is one"
    assert begun[0]["clients"] == [s1.config.members["default"].clients[s1.keys[0]]]
    assert begun[0]["coin"] == logs.fingerprint("coin", coin) and coin.hex() not in str(begun)


@pytest.mark.parametrize("why", ["out of range", "reached only s0", "reached neither server"])
def test_a_round_that_its_validator_ends_names_it(tmp_path: Path, why: str) -> None:
    """Nothing is opened, so that the next round may have another validator."""
    s0 = Server(0, tmp_path, min_clients=2)
    validator, *others = s0.keys
    method = Zeno(validator=validator, clusters=1)
    s0.params = RoundParams(method, dim=DIM, max_clients=3)
    name = s0.config.members["default"].clients[validator]
    s0.params = replace(s0.params, method=replace(method, validator=name))
    round_id = s0.open()
    s0.params = s0.latest.server_round.params
    for key in s0.keys if "neither" not in why else others:
        s0.upload(key, round_id)
    there = s0.keys if why == "out of range" else others
    s0.hear(*(Uploaded(round_id, key) for key in there))
    if s0.state[0] == "open":
        s0.ask(s0.coordinator, "close", round=round_id)
    s0.hear(Held(round_id, held(there)))
    if why == "out of range":
        s0.engine.end_check(0)
        s0.rounds.engine_ended()
        s0.hear(Verdicts(round_id, s0.keys, [validator]))
    state, reason = s0.state
    assert state == "failed" and why in reason
    assert reason.startswith("the validator is left out") and repr(name) in reason
    assert reason.endswith("open a round with another validator")
    assert s0.ask(s0.coordinator, "status").fields["opened"] == "nothing"


def test_a_defect_in_one_request_is_answered_and_the_server_goes_on(
    s0: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = s0.config.clients[0].public_key
    monkeypatch.setattr(Register, "latest", lambda self, cohort: 1 // 0)
    answer = s0.ask(client, "info")
    assert (answer.type, answer.fields["code"]) == (
        "error",
        "local-protocol",
    ) and "ZeroDivision" not in answer.fields["message"]
    monkeypatch.undo()
    assert s0.ask(client, "info").type == "info"


def test_what_is_said_of_the_most_clients_fits_into_a_header(tmp_path: Path) -> None:
    """Use the longest names that are allowed together, weights, and the longest reasons."""
    keys = sorted(z85.encode(number.to_bytes(32, "big")).decode() for number in range(MAX_CLIENTS))
    clients = tuple(Caller(f"{at:0{MAX_NAME}}", key) for at, key in enumerate(keys))
    # as many bytes as characters in these, except for this one
    longer = replace(clients[0], name="\u00e9" + clients[0].name[1:])
    with pytest.raises(ConfigError, match=r"163,841 bytes in UTF-8.*shorter names"):
        Server(1, tmp_path, clients=(longer, *clients[1:]))
    params = RoundParams(
        Bucketed(weights=dict.fromkeys(keys, 1000)), dim=DIM, max_clients=MAX_CLIENTS
    )
    s1 = Server(1, tmp_path, params, clients=clients)
    round_id = "1-0000000a"
    s1.hear(asked(round_id, params))
    server_round = s1.latest.server_round
    longest = "its upload is complete, but max_clients is 65536"
    left_out = {client.name: longest for client in clients}
    s1.latest.server_round = server_round = replace(server_round, left_out=left_out)
    status = s1.ask(s1.coordinator, "status")
    assert status.type == "status" and status.fields["left_out"] == server_round.left_out
    for message in (
        Close(round_id, dict.fromkeys(keys, bytes(32))),
        Verdicts(round_id, keys, keys),
    ):
        control.decode(control.encode(message))


def test_only_the_latest_rounds_are_kept(s0: Server) -> None:
    ids = []
    for _ in range(ROUNDS_RETAINED + 1):
        ids.append(s0.open())
        s0.fail()
    client = s0.config.clients[0].public_key
    assert s0.ask(client, "status", round=ids[0]).fields["code"] == "unknown-round"
    assert s0.ask(client, "status", round=ids[1]).fields["state"] == "failed"


def test_a_bad_frame_of_the_peer_changes_nothing(s0: Server) -> None:
    s0.open()
    s0.rounds.control([b"junk"])
    s0.hear(Done("9-0000000f", 1, bytes(64)))
    assert s0.state == ("open", "")


# Events that the table rules out


def test_a_message_that_cannot_come_fails_a_live_round_and_is_logged(
    s0: Server, caplog: pytest.LogCaptureFixture
) -> None:
    round_id = s0.open()
    with caplog.at_level(logging.INFO, "securemedian"):
        s0.hear(Ready(round_id, 1))
    state, reason = s0.state
    assert state == "failed" and "cannot come while" in reason and s0.engine.dropped
    assert s0.sent[-1].code == "peer-protocol"
    assert "message-refused" in caplog.messages
    assert s0.ask(s0.coordinator, "status").fields["opened"] == "nothing"


def test_a_message_that_cannot_come_changes_nothing_in_an_ended_round(
    s0: Server, caplog: pytest.LogCaptureFixture
) -> None:
    round_id = s0.open()
    s0.fail()
    s0.sent.clear()
    caplog.clear()
    with caplog.at_level(logging.INFO, "securemedian"):
        s0.hear(Close(round_id, {}), Compute(round_id, bytes(32), 1, bytes(16), False))
        # these are late
        s0.hear(Opened(round_id, bytes(16)), Uploaded(round_id, "somebody"))
        s0.hear(Done(round_id, 1, b""))
        # of no round here
        s0.hear(Done("9-0000000f", 1, bytes(64)))
    assert s0.state == ("failed", "had enough") and not s0.sent
    assert caplog.messages == ["message-refused"] * 2 + ["message-late"]


def test_a_defect_in_an_action_fails_the_round_and_not_the_server(
    s0: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s0.engine, "prepare", lambda *_: 1 // 0)
    round_id = s0.open()
    state, reason = s0.state
    assert state == "failed" and "ZeroDivisionError" in reason and s0.engine.dropped
    # both servers had opened it
    assert s0.replies[-1].fields["round"] == round_id
    assert not list((s0.folder / "spool").iterdir())


def test_a_failure_that_cannot_be_told_still_drops_the_uploads(
    s0: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_id = s0.open()
    s0.upload_all(round_id)

    def mute(message: control.Message) -> None:
        raise OSError("no way out")

    monkeypatch.setattr(s0.rounds._runner, "_send", mute)
    s0.fail()
    assert s0.state[0] == "failed" and not list((s0.folder / "spool").iterdir())


# An attempt that may have opened values


def fail_while_running(s0: Server, left_out: str) -> str:
    """Run with all clients but one, and fail."""
    round_id = s0.open()
    keys = [key for key in s0.keys if key != left_out]
    for key in keys:
        s0.upload(key, round_id)
    s0.ask(s0.coordinator, "close", round=round_id)
    s0.hear(Held(round_id, held(keys)), Ready(round_id, 1))
    assert s0.state == ("running", "")
    s0.engine.result = PeerProtocolError("not this")
    s0.rounds.engine_ended()
    assert s0.state[0] == "failed"
    return round_id


def test_an_abort_is_refused_while_running(s0: Server) -> None:
    round_id = run_until_started(s0)
    refused = s0.ask(s0.coordinator, "abort", round=round_id, reason="too slow")
    assert refused.fields["code"] == "round-closed" and "opened values" in refused.fields["message"]
    assert s0.state == ("running", "")
    assert s0.ask(s0.coordinator, "status").fields["opened"] == "maybe"


def test_s0_repeats_an_attempt_that_may_have_opened_values_with_its_clients_only(
    tmp_path: Path,
) -> None:
    s0 = Server(0, tmp_path, min_clients=2)
    first, second, third = s0.keys
    failed = fail_while_running(s0, left_out=third)
    assert s0.ask(s0.coordinator, "status", round=failed).fields["opened"] == "maybe"
    round_id = s0.open()
    refused = s0.upload(third, round_id)
    assert (
        refused.fields["code"] == "not-allowed" and "earlier attempt" in refused.fields["message"]
    )
    s0.upload(first, round_id)
    s0.ask(s0.coordinator, "close", round=round_id)
    s0.hear(Held(round_id, held(s0.keys)))
    state, reason = s0.state
    assert state == "failed" and "may have opened values" in reason
    assert s0.ask(s0.coordinator, "status").fields["opened"] == "nothing"

    # the same clients may, and once published the next number is for all
    round_id = s0.open()
    for key in (first, second):
        s0.upload(key, round_id)
        s0.hear(Uploaded(round_id, key))
    # nobody else can come
    assert s0.state[0] == "closing"
    s0.hear(Held(round_id, held(s0.keys)), Ready(round_id, 1))
    compute(s0)
    s0.hear(s0.done())
    assert s0.state[0] == "published"
    assert s0.upload(third, s0.open()).type == "upload"


@pytest.mark.parametrize("how", ["release", "model"])
def test_starting_over_releases_the_clients_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    s0 = Server(0, tmp_path, min_clients=2)
    third = s0.keys[-1]
    fail_while_running(s0, left_out=third)
    model = {"model": np.zeros(DIM, np.float32)} if how == "model" else None
    with caplog.at_level(logging.INFO, "securemedian"):
        round_id = s0.open(model, release=how == "release")
    asked = next(message for message in reversed(s0.sent) if isinstance(message, Open))
    assert asked.release == (how == "release") and "clients-released" in caplog.messages
    assert s0.upload(third, round_id).type == "upload"


@pytest.mark.parametrize("how", ["reset", "model"])
def test_a_retry_from_the_same_start_has_the_same_clients_and_coin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    s0 = Server(0, tmp_path, min_clients=2)
    model = {"model": np.ones(DIM, np.float32)}
    s0.open(model)
    s0.fail()
    third = s0.keys[-1]
    fail_while_running(s0, left_out=third)
    opening = s0.latest.server_round.toss_opening
    s0.restart()
    s0.hear(hello())
    round_id = s0.open(None if how == "reset" else model, reset=how == "reset")
    assert s0.latest.server_round.asked.start_over
    assert s0.upload(third, round_id).fields["code"] == "not-allowed"
    assert s0.latest.server_round.toss_opening == opening
    assert "clients-released" not in caplog.messages


def test_a_round_that_is_not_taken_up_keeps_no_seeds(tmp_path: Path) -> None:
    s0 = Server(0, tmp_path)
    round_id = s0.open()
    s0.upload(s0.keys[0], round_id)
    rows = s0.store.database._connection
    with s0.store.database.transaction():
        rows.execute("UPDATE rounds SET asked = replace(asked, 'mean', 'unknown')")
    assert s0.store.database.uploads(round_id)
    s0.restart()
    assert not s0.rounds.register.entries and not s0.store.database.uploads(round_id)


def test_starting_over_that_s1_refuses_releases_nobody(tmp_path: Path) -> None:
    s0 = Server(0, tmp_path, min_clients=2)
    third = s0.keys[-1]
    fail_while_running(s0, left_out=third)
    s0.ask_to_open(release=True)
    s0.hear(Failed(s0.sent[-1].round, "bad-config", "s1: no"))
    assert s0.state[0] == "failed"
    assert s0.upload(third, s0.open()).fields["code"] == "not-allowed"


def test_s1_remembers_on_its_own_account(tmp_path: Path) -> None:
    s1 = Server(1, tmp_path, min_clients=2)
    *two, third = s1.keys

    def attempt(round_id: str, keys: list[str], start_over: bool = False, **more: Any) -> None:
        s1.hear(asked(round_id, start_over=start_over, **more))
        for key in keys:
            s1.upload(key, round_id)
        s1.hear(Close(round_id, held(keys)))
        s1.hear(Compute(round_id, s1.latest.server_round.digest, 1, bytes(16), False))

    attempt("1-0000000a", two)
    assert s1.state == ("running", "") and s1.sent[-1] == Ready("1-0000000a", 1)
    s1.hear(Failed("1-0000000a", "timeout", "s0: nothing for 60 s"))
    attempt("1-0000000b", s1.keys[1:])
    assert s1.state[0] == "failed" and s1.sent[-1].code == "clients-differ"
    attempt("1-0000000c", two)
    assert s1.state == ("running", "")
    s1.hear(Failed("1-0000000c", "timeout", "s0: nothing for 60 s"))
    attempt("1-0000000d", s1.keys[1:], start_over=True)
    assert s1.state[0] == "failed" and s1.sent[-1].code == "clients-differ"
    attempt("1-0000000e", s1.keys[1:], release=True)
    assert s1.state == ("running", "")


# Other people's text is cut, and malformed text is refused

LONG = "x" * 900_000


@pytest.mark.parametrize("party", [0, 1])
def test_no_request_below_the_limit_of_a_header_ends_a_server(
    tmp_path: Path, party: int, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(party, tmp_path)
    client = server.config.clients[0].public_key
    share = {"share": np.zeros(16, np.uint8)}
    named = {"round": "1-0000000a", "params": b""}
    requests: list[tuple[str, str, Any, dict[str, Any]]] = [
        (client, "status", None, {"round": LONG}),
        (client, "status", None, {"round": "\x00" * 100_000}),
        (client, "status", None, {"round": ["x"] * 100_000}),
        (client, "status", None, {LONG: 1}),
        (client, "result", None, {"round": LONG.encode()}),
        (client, LONG, None, {}),
        (client, "info", {LONG: np.zeros(1, np.uint8)}, {}),
        (client, "upload", share, named | {"form": LONG}),
        (client, "upload", share, named | {"params": LONG, "form": "seed"}),
        (server.coordinator, "open", None, {"params": {"method": LONG}, "range": {}}),
        (server.coordinator, "open", None, {"params": {LONG: 1}, "range": {}}),
        (server.coordinator, "open", None, {"params": {"weights": {LONG: 1}}, "range": {}}),
        (
            server.coordinator,
            "open",
            None,
            {"params": PARAMS.to_dict(), "range": {"policy": LONG}},
        ),
        (server.coordinator, "abort", None, {"round": LONG, "reason": ""}),
    ]
    with caplog.at_level(logging.INFO, "securemedian"):
        for key, op, arrays, fields in requests:
            before = len(server.replies)
            answer = server.ask(key, op, arrays, **fields)
            assert len(server.replies) == before + 1 and answer.type == "error"
            assert len(answer.fields["message"]) < 2 * MAX_TEXT, op[:10]
    for record in caplog.records:
        assert all(len(str(field)) < 2 * MAX_TEXT for field in vars(record)["fields"].values())
    assert server.ask(client, "info").type == "info"


def test_an_error_that_nobody_cut_is_cut_where_it_is_sent(
    s0: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wordy(rounds: Rounds, cohort: str) -> None:
        raise RoundBusy(LONG)

    monkeypatch.setattr(Rounds, "dim", wordy)
    refused = s0.ask(s0.keys[0], "info")
    assert refused.fields["code"] == "round-busy"
    assert len(refused.fields["message"]) < 2 * MAX_TEXT


def test_who_reads_no_answers_is_named(
    s0: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unread(address: bytes, parts: Sequence[wire.Part]) -> None:
        raise ChannelTimeout("4 answers wait")

    monkeypatch.setattr(s0.requests, "_reply", unread)
    with caplog.at_level(logging.INFO, "securemedian"):
        s0.ask(s0.keys[0], "info")
        # and likewise where the answer is an error
        s0.ask(s0.keys[0], "status", round=LONG)
    told = [vars(r)["fields"] for r in caplog.records if r.getMessage() == "answers-unread"]
    names = {client.public_key: client.name for client in s0.config.clients}
    caller = names[s0.keys[0]]
    assert told == [{"caller": caller, "reason": "4 answers wait"}] * 2


def test_a_refusal_that_cannot_be_sent_does_not_end_the_server(
    s0: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(address: bytes, parts: Sequence[wire.Part]) -> None:
        raise OSError("no route")

    monkeypatch.setattr(s0.requests, "_reply", gone)
    with caplog.at_level(logging.INFO, "securemedian"):
        s0.ask(s0.keys[0], "status", round=LONG)
        s0.ask(s0.keys[0], "info")
        s0.open()
    assert caplog.messages.count("answer-lost") >= 2
    monkeypatch.undo()
    assert s0.ask(s0.keys[0], "info").type == "info" and s0.state[0] == "failed"


def test_a_defect_that_a_message_shows_fails_the_round_and_not_the_server(
    s0: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_id = s0.open()
    monkeypatch.setattr(runner, "fold", lambda here, events, now: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        s0.fail()
    monkeypatch.undo()
    monkeypatch.setattr(s0.rounds.peer, "bye", lambda: 1 // 0)
    s0.hear(Bye())
    assert s0.state[0] == "failed" and "defect" in s0.state[1]
    assert s0.ask(s0.keys[0], "status", round=round_id).type == "status"


@pytest.mark.parametrize(
    "name", ["../escaped", "1-../../esca", "/tmp/escaped", "", "1-0000000a/.."]
)
def test_a_spool_lies_in_its_folder_or_is_refused(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / "state")
    before = set(tmp_path.rglob("*"))
    with pytest.raises(SecureMedianError, match="invalid round id"):
        store.spool(name, PARAMS.form.layout)
    assert set(tmp_path.rglob("*")) == before
    store.spool("1-0000000a", PARAMS.form.layout).drop()
    store.close()


def test_a_round_is_opened_only_if_its_uploads_fit_with_what_comes_with_them(
    tmp_path: Path,
) -> None:
    words = 8 * PARAMS.form.layout.words
    fields = {
        "id": 1 << 62,
        "round": "9" * 18 + "-0000000a",
        "params": bytes(32),
        "start": bytes(32),
    } | {"form": "words"}
    shape = (PARAMS.form.layout.rows, PARAMS.form.layout.row_words)
    curve = 33
    upload = wire.frame_size("upload", fields, {"share": (np.uint64, shape)}) + 2 * curve
    assert upload <= words + ENVELOPE_BYTES
    for party, missing in itertools.product((0, 1), (0, 1)):
        server = Server(
            party,
            tmp_path / f"{party}{missing}",
            max_message_bytes=words + ENVELOPE_BYTES - missing,
        )
        if party == 0:
            server.open()
        else:
            server.hear(asked())
        if missing:
            assert not server.rounds.live
            refusal = server.replies[-1].fields["message"] if party == 0 else server.sent[-1].reason
            assert "max_message_bytes" in refusal
        else:
            assert server.state == ("open", "")


# Claims that both servers vouch for, over restarts


def compute(server: Server) -> Receipt:
    """Let the engine of a server that runs the protocol end, and return what it has signed."""
    values = PublicValues(np.full((1, DIM), 9 << 24, np.uint64))
    server.engine.result = pipeline.Outcome(values, cost.Cost(ots=5))
    server.rounds.engine_ended()
    receipt = server.latest.server_round.receipt
    assert receipt is not None and server.state == ("running", "")
    return receipt


def resumed(server: Server, round_id: str, signature: bytes) -> Resume:
    """Return what S1 answers to S0's `resume` when it has a result that it has signed like this."""
    server.rounds.tick()
    asked = next(one for one in reversed(server.sent) if isinstance(one, Resume))
    assert asked.round == round_id and asked.signature
    return Resume(round_id, asked.session, "running", 1, signature, asked.held, [], [], [], {})


def test_a_result_outlives_both_servers_until_both_have_signed_it(s0: Server) -> None:
    round_id = run_until_started(s0)
    receipt = compute(s0)
    # S1's `done` is lost
    signature = s0.done().signature
    s0.restart()
    assert s0.latest.result is not None and s0.latest.result.receipt == receipt
    s0.hear(resumed(s0, round_id, signature))
    assert s0.state == ("published", "")
    for _ in range(2):
        answer = s0.ask(s0.keys[0], "result", round=round_id)
        receipt_of(answer).check([key.public for key in SIGNING])
        assert digest_of(answer.arrays["opened"]) == receipt.record.opened
        # S0 says on each new link what it has signed
        s0.restart()
        told = next(one for one in s0.sent if isinstance(one, Resume))
        assert told.signature == receipt.signatures["s0"]


@pytest.mark.parametrize("when", ["done", "resume"])
def test_a_server_that_signs_something_else_fails_the_round_for_good(s0: Server, when: str) -> None:
    round_id = run_until_started(s0)
    receipt = compute(s0)
    wrong = Receipt(replace(receipt.record, opened=bytes(32)).encode()).signed("s1", SIGNING[1])
    signature = wrong.signatures["s1"]
    if when == "done":
        s0.hear(Done(round_id, 1, signature))
    else:
        s0.restart()
        s0.hear(resumed(s0, round_id, signature))
    state, reason = s0.state
    assert state == "failed" and "s1 vouches for another result" in reason
    assert s0.sent[-1].code == "receipt-invalid"
    refused = s0.ask(s0.keys[0], "result", round=round_id)
    assert refused.fields["code"] == "round-failed" and not refused.arrays
    # the run goes on from where the round began
    assert s0.rounds.register.runs["default"].digest == s0.latest.before.digest
