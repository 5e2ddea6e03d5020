"""A client's checks of the check of its dealing, before it sends anything of its update."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from securemedian.clients.sharing import Dealer
from securemedian.clients.upload import Round
from securemedian.mpc.errors import (
    NotAllowed,
    NotStored,
    PeerProtocolError,
    RoundClosed,
)
from securemedian.mpc.protocols import wire
from securemedian.mpc.protocols.dealing import Dealing, OwnDealing, deal
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers.network.control import Check, Dealt, Open, Resume, Verdicts
from securemedian.servers.storage.spool import OpenedFile
from tests.servers_alone import DEALT, START, Server

COIN, OTHER = bytes(16), bytes([1] * 16)
ROUND = "1-0000000a"
SHAPE = Dealing(40, 16, 5)


class Asked:
    """A connection to a server that answers `checked` so."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.label, self._answers, self.asked = "S0", iter(answers), 0

    def ask(self, op: str, fields: dict[str, Any], **_: Any) -> wire.Message:
        assert op == "checked" and fields == {"round": ROUND}
        self.asked += 1
        return wire.Message(op, next(self._answers))


@pytest.fixture
def own() -> OwnDealing:
    return deal(SHAPE)


def judged(own: OwnDealing, *servers: Asked, deadline_s: float = 60.0) -> None:
    """Let a client judge what the servers say. Raises what it finds."""
    client = object.__new__(Dealer)
    params = RoundParams.from_dict({"dim": 40, "max_clients": 3, "deadline_s": deadline_s})
    given: dict[str, Any] = {
        "round_id": ROUND,
        "_current": Round(ROUND, 1, params, 0),
        "_sender": SimpleNamespace(servers=servers, config=SimpleNamespace(poll_interval_s=1e-3)),
        "_patience_s": 0.0,
        "_stop": threading.Event(),
    }
    vars(client).update(given)
    client._confirm(own)


def said(own: OwnDealing, coin: bytes = COIN, **changes: Any) -> dict[str, Any]:
    return {"verdict": "passed", "coin": coin, "opened": own.opened(coin)} | changes


def test_a_client_goes_on_where_both_have_opened_what_they_should(own: OwnDealing) -> None:
    waiting = {"verdict": "", "coin": b"", "opened": b""}
    servers = Asked(waiting, waiting, said(own)), Asked(waiting, said(own))
    judged(own, *servers)
    assert [server.asked for server in servers] == [3, 2]


@pytest.mark.parametrize("server", [0, 1])
@pytest.mark.parametrize(
    "changes",
    [
        {"opened": bytes(32)},
        {"opened": b""},
        {"opened": None},
        {"coin": OTHER},
        {"coin": b""},
        {"coin": None},
        {"coin": "0" * 16},
    ],
    ids=str,
)
def test_a_client_stops_where_a_server_says_something_else(
    own: OwnDealing, server: int, changes: dict[str, Any]
) -> None:
    answers = [said(own), said(own)]
    answers[server] |= changes
    with pytest.raises(PeerProtocolError, match="Nothing of your update was sent"):
        judged(own, *map(Asked, answers))


def test_each_server_may_be_right_about_another_coin(own: OwnDealing) -> None:
    """Each then has opened what its coin asks for, and the two together something else."""
    with pytest.raises(PeerProtocolError):
        judged(own, Asked(said(own)), Asked(said(own, OTHER)))


@pytest.mark.parametrize("server", [0, 1])
@pytest.mark.parametrize(
    "changes, why",
    [
        ({}, "one of them does not follow the protocol"),
        ({"opened": bytes(32)}, "have not opened what"),
        ({"opened": b""}, "a server no longer has what it opened"),
    ],
)
def test_a_client_that_failed_is_told_what_it_can_know(
    own: OwnDealing, server: int, changes: dict[str, Any], why: str
) -> None:
    answers = [said(own), said(own)]
    answers[server] |= {"verdict": "failed"} | changes
    with pytest.raises(NotAllowed, match=f"failed the check .*{why}"):
        judged(own, *map(Asked, answers))


def test_a_client_waits_no_longer_than_the_round(own: OwnDealing) -> None:
    waiting = Asked(*[{"verdict": ""}] * 1000)
    with pytest.raises(RoundClosed, match="has not checked your dealing"):
        judged(own, waiting, waiting, deadline_s=0.05)


def test_what_was_opened_is_noted_once_and_outlasts_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "opened"
    one = OpenedFile(path)
    one.note(["a", "b"], [b"x" * 32, b"y" * 32])
    # the check that broke off is made again, with another client
    one.note(["b", "c"], [b"y" * 32, b"z" * 32])
    with path.open("ab") as file:
        file.write(b"\x92\xa1d\xc4\x20cut")
    again = OpenedFile(path)
    assert again.of == one.of == {"a": b"x" * 32, "b": b"y" * 32, "c": b"z" * 32}
    again.note(["d"], [b"w" * 32])
    assert OpenedFile(path).of == again.of and len(again.of) == 4
    for client in ("a", "d"):
        with pytest.raises(PeerProtocolError, match="has opened other differences"):
            OpenedFile(path).note([client], [b"?" * 32])


def test_what_cannot_be_noted_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OpenedFile(tmp_path / "opened")

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", full)
        with pytest.raises(NotStored):
            file.note(["a"], [b"x" * 32])
    assert not file.of and not (tmp_path / "opened").read_bytes()
    file.note(["a"], [b"y" * 32])
    assert OpenedFile(tmp_path / "opened").of == {"a": b"y" * 32}


@pytest.fixture
def s1(tmp_path: Path) -> Iterator[Server]:
    server = Server(1, tmp_path, DEALT)
    server.hear(Open(ROUND, 1, DEALT.to_dict(), bytes(16), True, False, START))
    yield server
    server.store.close()


def checked(server: Server, *failed: int) -> None:
    """Let the first client's dealing be checked."""
    server.hear(Check(ROUND, server.keys[:1]))
    server.rounds.engine_ended()
    server.engine.end_check(*failed)
    server.rounds.engine_ended()


def test_a_server_tells_what_it_has_opened_once_it_knows_the_verdict(s1: Server) -> None:
    first = s1.keys[0]
    assert s1.ask(first, "checked", round=ROUND).fields["code"] == "bad-upload"
    s1.deal(first, ROUND)
    nothing = {"verdict": "", "coin": b"", "opened": b""}
    assert s1.ask(first, "checked", round=ROUND).fields.items() >= nothing.items()
    s1.engine.hashes = b"h" * 32
    checked(s1)
    told = {"verdict": "passed", "coin": s1.engine.coins[0], "opened": b"h" * 32}
    assert s1.ask(first, "checked", round=ROUND).fields.items() >= told.items()
    # also after a restart
    s1.restart()
    assert s1.ask(first, "checked", round=ROUND).fields.items() >= told.items()
    # nobody else is told
    assert s1.ask(s1.keys[1], "checked", round=ROUND).fields["code"] == "bad-upload"
    held = s1.ask(first, "checked", round=ROUND).fields["dealing"]
    assert len(held) == 32
    s1.fail()
    # by it the client knows its round again. One that waits for the verdict is told of none: it
    # would take what is not there any more for a deviation
    for _ in range(2):
        assert s1.ask(first, "checked", round=ROUND, failed=True).fields["dealing"] == held
        assert s1.ask(first, "checked", round=ROUND).fields["code"] == "round-closed"
        s1.restart()


def test_s0_tells_no_verdict_of_its_own_alone(tmp_path: Path) -> None:
    s0 = Server(0, tmp_path, DEALT)
    round_id, first = s0.open(), s0.keys[0]
    s0.deal(first, round_id)
    s0.hear(Dealt(round_id, first))
    s0.rounds.engine_ended()
    s0.engine.end_check()
    s0.rounds.engine_ended()
    assert s0.ask(first, "checked", round=round_id).fields["verdict"] == ""
    s0.hear(Verdicts(round_id, [first], []))
    assert s0.ask(first, "checked", round=round_id).fields["verdict"] == "passed"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_check_that_opens_something_else_the_second_time_ends_the_round(
    s1: Server, restarted: bool
) -> None:
    """S0 lies, breaks off, and repeats the check without a lie."""
    first = s1.keys[0]
    s1.deal(first, ROUND)
    s1.engine.hashes = b"l" * 32
    checked(s1)
    coin = s1.engine.coins[0]
    told = coin + s1.latest.server_round.token(first, coin)
    if restarted:
        s1.restart()
        s1.engine.hashes = b"l" * 32
    # S0 says that it has lost its verdict
    s1.hear(Resume(ROUND, bytes([1] * 16), "open", 0, b"", {}, [first], [], [], {first: told}))
    s1.hear(Check(ROUND, [first], coin))
    s1.engine.end_check()
    s1.rounds.engine_ended()
    assert s1.ask(first, "checked", round=ROUND).fields["verdict"] == "passed"
    s1.hear(Resume(ROUND, bytes([2] * 16), "open", 0, b"", {}, [first], [], [], {first: told}))
    s1.hear(Check(ROUND, [first], coin))
    s1.engine.hashes = b"t" * 32
    with pytest.raises(PeerProtocolError, match="does not follow the protocol"):
        s1.engine.end_check()
