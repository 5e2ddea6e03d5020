"""servers.rounds and servers.requests without sockets: what a server does when peer, engine or disk fail it."""

from pathlib import Path

import numpy as np
import pytest

import securemedian
from securemedian.mpc import pipeline, wire
from securemedian.mpc.errors import ChannelTimeout, RoundBusy
from securemedian.mpc.methods.pairwise import Pairwise
from securemedian.mpc.params import RoundParams
from securemedian.mpc.protocol import ProtocolParams
from securemedian.servers import config, control
from securemedian.servers.control import (
    Bye,
    Close,
    Done,
    Failed,
    Held,
    Hello,
    Open,
    Opened,
    Ready,
    Run,
    Uploaded,
)
from securemedian.servers.requests import Desk
from securemedian.servers.rounds import HELLO_S, KEPT_ROUNDS, Rounds
from securemedian.servers.store import Store

SAMPLES = Path(__file__).parent.parent / "docs" / "samples"
DIM = 4
PARAMS = RoundParams(Pairwise(), DIM, 3)
ALIKE = ProtocolParams().agreement() | {"release": securemedian.__version__}


class FakeEngine:
    """Computes nothing; the test says when it has ended and how."""

    def __init__(self) -> None:
        self.session_id: bytes | None = None
        self.result = None
        self.dropped = 0
        self.refusal: Exception | None = None
        self.phase, self.progress = "", (0, 0)

    def prepare(self, session_id, params) -> None:
        if self.refusal:
            raise self.refusal
        self.session_id = session_id

    def start(self, params, uploads, weights) -> None:
        self.uploads = uploads

    def poll(self):
        result, self.result = self.result, None
        return result

    def drop(self) -> None:
        self.session_id = None
        self.dropped += 1


class Server:
    """One server and everything it says. It is linked from the start."""

    def __init__(self, party: int, folder: Path) -> None:
        self.config = config.load(SAMPLES / f"s{party}.toml")
        self.engine, self.sent, self.replies, self.now = FakeEngine(), [], [], 0.0
        self.rounds = Rounds(
            self.config, Store(folder), self.engine, self.sent.append, lambda: self.now
        )
        self.desk = Desk(
            self.config,
            self.rounds,
            self.engine,
            lambda address, parts: self.replies.append(wire.unpack(parts)),
        )
        self.hear(Hello("one", ALIKE))

    def hear(self, *messages) -> None:
        for message in messages:
            self.rounds.control(control.encode(message))

    def ask(self, key: str, op: str, arrays=None, **fields) -> wire.Message | None:
        """The latest answer that there is: to `open`, which may have to wait for S1, perhaps an earlier one."""
        self.desk.request(b"", key, wire.pack(op, fields | {"id": len(self.replies) + 1}, arrays))
        return self.replies[-1] if self.replies else None

    def open(self) -> str:
        """Open a round at S0, with S1's consent."""
        self.ask(
            self.config.coordinators[0].public_key,
            "open",
            params=PARAMS.to_dict(),
            range={},
            reset=False,
        )
        round_id = self.sent[-1].round
        self.hear(Opened(round_id))
        return round_id

    def upload_all(self, round_id: str) -> None:
        for client in self.config.clients:
            self.ask(
                client.public_key,
                "upload",
                {"share": np.zeros(16, np.uint8)},
                round=round_id,
                params=PARAMS.digest,
                form="seed",
            )

    @property
    def keys(self) -> list[str]:
        return sorted(client.public_key for client in self.config.clients)

    @property
    def state(self) -> tuple[str, str]:
        round = self.rounds.latest.round
        return str(round.state), round.reason


@pytest.fixture
def s0(tmp_path):
    return Server(0, tmp_path)


@pytest.fixture
def s1(tmp_path):
    return Server(1, tmp_path)


def run_until_started(s0: Server) -> str:
    round_id = s0.open()
    s0.upload_all(round_id)
    s0.hear(*(Uploaded(round_id, key) for key in s0.keys), Held(round_id, s0.keys), Ready(round_id))
    assert s0.state == ("running", "") and len(s0.engine.uploads) == 3
    return round_id


def test_open_is_answered_when_s1_has_spoken(s0):
    s0.ask(
        s0.config.coordinators[0].public_key, "open", params=PARAMS.to_dict(), range={}, reset=False
    )
    assert not s0.replies and s0.state == ("opening", "")
    opened = s0.sent[-1]
    assert isinstance(opened, Open) and opened.new_session
    s0.hear(Opened(opened.round))
    assert s0.replies[-1].fields == {"id": 1, "round": opened.round, "number": 1} and s0.state == (
        "open",
        "",
    )


def test_open_that_s1_refuses_or_leaves_unanswered_fails(s0):
    coordinator = s0.config.coordinators[0].public_key
    s0.ask(coordinator, "open", params=PARAMS.to_dict(), range={}, reset=False)
    s0.hear(Failed(s0.sent[-1].round, "bad-config", "s1: at least 5 clients"))
    assert s0.replies[-1].fields == {
        "id": 1,
        "code": "bad-config",
        "message": "s1: at least 5 clients",
    }
    s0.ask(coordinator, "open", params=PARAMS.to_dict(), range={}, reset=False)
    s0.now = s0.config.peer_timeout_s
    s0.hear(Hello("one", ALIKE))
    s0.rounds.tick()
    assert s0.replies[-1].fields["code"] == "timeout"


def test_a_result_is_published_when_both_have_it(s0):
    round_id = run_until_started(s0)
    s0.engine.result = pipeline.Outcome(np.full((1, DIM), 3 << 24, np.uint64), pipeline.Cost(ots=5))
    s0.rounds.engine_ended()
    assert s0.sent[-1] == Done(round_id) and s0.state == ("running", "")
    s0.hear(Done(round_id))
    assert s0.state == ("published", "")
    client = s0.config.clients[0].public_key
    assert s0.ask(client, "result", round=round_id).arrays["results"].tolist() == [[3.0] * DIM]
    assert s0.ask(client, "status", round=round_id).fields["cost"]["ots"] == 5
    kept = s0.engine.session_id
    s0.open()
    assert s0.sent[-1].session == kept and not s0.sent[-1].new_session


@pytest.mark.parametrize(
    "how",
    [
        "an error of the engine",
        "a restarted peer",
        "a lost peer",
        "a peer that stops",
        "its own limit",
    ],
)
def test_a_run_that_fails_says_why_and_drops_the_session(s0, how):
    run_until_started(s0)
    if how == "an error of the engine":
        s0.engine.result = ChannelTimeout("nothing for 60 s")
        s0.rounds.engine_ended()
        expected = "nothing for 60 s"
    elif how == "a restarted peer":
        s0.hear(Hello("two", ALIKE))
        expected = "s1 was restarted"
    elif how == "a peer that stops":
        s0.hear(Bye())
        assert s0.sent[-1] == Bye()
        expected = "s1 was stopped"
    else:
        s0.now = s0.config.peer_timeout_s if how == "a lost peer" else s0.config.round_limit_s
        if how == "its own limit":
            s0.hear(Hello("one", ALIKE))
        s0.rounds.tick()
        expected = "no sign of life" if how == "a lost peer" else "longer than its limit"
    state, reason = s0.state
    assert state == "failed" and expected in reason and s0.engine.session_id is None
    assert any(
        isinstance(message, Failed) and message.reason == f"s0: {reason}" for message in s0.sent
    )


def test_s1_refuses_a_session_that_it_has_not_and_takes_a_new_one(s1):
    s1.hear(Open("1-a", 1, PARAMS.to_dict(), bytes(16), False))
    assert isinstance(s1.sent[-1], Failed) and "no session to keep" in s1.sent[-1].reason
    s1.hear(Open("1-b", 1, PARAMS.to_dict(), bytes(16), True))
    assert s1.sent[-1] == Opened("1-b") and s1.state == ("open", "")


def test_s1_refuses_a_round_that_it_cannot_prepare(s1):
    s1.engine.refusal = RoundBusy("the last run has not stopped")
    s1.hear(Open("1-a", 1, PARAMS.to_dict(), bytes(16), True))
    assert s1.state == ("failed", "the last run has not stopped")
    assert isinstance(s1.sent[-1], Failed) and not any(
        isinstance(message, Opened) for message in s1.sent
    )


def test_s0_fails_a_round_that_it_cannot_prepare(s0):
    s0.engine.refusal = RoundBusy("the last run has not stopped")
    s0.open()
    assert s0.state == ("failed", "the last run has not stopped")
    assert isinstance(s0.sent[-1], Failed) and s0.engine.dropped


def test_s1_checks_parameters_clients_and_digest_itself(s1):
    s1.hear(Open("1-a", 1, PARAMS.to_dict() | {"min_clients": 1}, bytes(16), True))
    assert s1.sent[-1].code == "bad-config"
    s1.hear(Open("1-b", 1, RoundParams(Pairwise(), DIM, 2).to_dict(), bytes(16), True))
    assert s1.sent[-1].code == "bad-config" and "at least 3" in s1.sent[-1].reason
    s1.hear(Open("1-c", 1, PARAMS.to_dict(), bytes(16), True))
    s1.upload_all("1-c")
    s1.hear(Close("1-c", s1.keys))
    assert s1.sent[-1] == Held("1-c", s1.keys)
    s1.hear(Run("1-c", bytes(32)))
    assert s1.sent[-1].code == "parameters-differ" and s1.engine.session_id is None


def test_a_new_round_of_s0_ends_the_one_in_hand_at_s1(s1):
    s1.hear(
        Open("1-a", 1, PARAMS.to_dict(), bytes(16), True),
        Open("1-b", 1, PARAMS.to_dict(), bytes(16), True),
    )
    assert s1.rounds.find("1-a").round.state == "failed" and s1.state == ("open", "")


def test_s1_takes_no_rounds_of_a_peer_that_is_configured_differently(s1):
    s1.hear(Hello("one", ALIKE | {"lanes": 7}), Open("1-a", 1, PARAMS.to_dict(), bytes(16), True))
    assert (
        s1.sent[-1].code == "parameters-differ" and "lanes: 2 here, 7 there" in s1.sent[-1].reason
    )


def test_a_stopping_server_takes_no_rounds_and_lets_a_run_finish(s0):
    round_id = run_until_started(s0)
    s0.rounds.stop()
    assert s0.state == ("running", "")
    s0.engine.result = pipeline.Outcome(np.zeros((1, DIM), np.uint64), pipeline.Cost())
    s0.rounds.engine_ended()
    s0.hear(Done(round_id))
    assert s0.state == ("published", "") and s0.rounds.live is None
    refused = s0.ask(
        s0.config.coordinators[0].public_key, "open", params=PARAMS.to_dict(), range={}, reset=False
    )
    assert refused.fields["code"] == "round-busy" and "being stopped" in refused.fields["message"]


def test_a_stopping_server_fails_a_round_that_is_not_running(s0):
    s0.open()
    s0.rounds.stop()
    assert s0.state == ("failed", "s0 was stopped")


def test_a_disk_that_fails_is_said_and_nothing_is_held(s0, monkeypatch):
    round_id = s0.open()

    def full(*args, **kwargs) -> None:
        raise OSError(28, "No space left on device")

    words = np.zeros((1, PARAMS.layout.row_words), np.uint64)
    client = s0.config.clients[0].public_key
    monkeypatch.setattr("numpy.memmap", full)
    refused = s0.ask(
        client, "upload", {"share": words}, round=round_id, params=PARAMS.digest, form="words"
    )
    assert refused.type == "error" and "No space left" in refused.fields["message"]
    monkeypatch.undo()
    assert (
        s0.ask(
            client, "upload", {"share": words}, round=round_id, params=PARAMS.digest, form="words"
        ).type
        == "upload"
    )


def test_a_defect_in_one_request_is_answered_and_the_server_goes_on(s0, monkeypatch):
    client = s0.config.clients[0].public_key
    monkeypatch.setattr(Rounds, "latest", property(lambda self: 1 // 0))
    answer = s0.ask(client, "info")
    assert (answer.type, answer.fields["code"]) == (
        "error",
        "local-protocol",
    ) and "ZeroDivision" not in answer.fields["message"]
    monkeypatch.undo()
    assert s0.ask(client, "info").type == "info"


def test_only_the_latest_rounds_are_kept(s0):
    ids = []
    for _ in range(KEPT_ROUNDS + 1):
        ids.append(s0.open())
        s0.rounds.fail("had enough")
    client = s0.config.clients[0].public_key
    assert s0.ask(client, "status", round=ids[0]).fields["code"] == "unknown-round"
    assert s0.ask(client, "status", round=ids[1]).fields["state"] == "failed"


def test_hellos_are_sent_each_second(s0):
    s0.sent.clear()
    for s0.now in (0.0, HELLO_S / 2, HELLO_S, HELLO_S * 1.5, HELLO_S * 2):
        s0.rounds.tick()
    assert len(s0.sent) == 3 and all(hello.agreement == ALIKE for hello in s0.sent)


def test_a_bad_frame_of_the_peer_changes_nothing(s0):
    s0.open()
    s0.rounds.control([b"junk"])
    s0.hear(Done("9-unknown"))
    assert s0.state == ("open", "")
