"""The dashboard: what it asks, what it remembers, what it serves, and how it looks in a browser."""

import base64
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from securemedian import cli
from securemedian.clients import receipts
from securemedian.common.receipts import Receipt
from securemedian.common.states import LIVE
from securemedian.common.status import RoundStatus
from securemedian.coordinator.dashboard.watch import (
    KINDS,
    PERIODS_S,
    ROUNDS_SHOWN,
    History,
    Watch,
    kind_of,
)
from securemedian.coordinator.unattended import LINES
from securemedian.mpc.errors import ServerUnreachable, UnknownRound
from securemedian.mpc.protocols import wire
from securemedian.operating import keygen
from securemedian.servers.network.control import Dealt, Held, Uploaded
from tests.daemons import ROOT, Pair, running, wait_until
from tests.servers_alone import DEALT, Server, held
from tests.test_receipts import PUBLIC, RECORD, signed

LIMIT_S = 60.0
PAGE = ROOT / "coordinator" / "dashboard" / "page.html"
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


def status(round_id: str, state: str, **changes: Any) -> dict[str, Any]:
    """Return what a server says of a round of three clients."""
    return {
        **NO_ROUND,
        "round": round_id,
        "number": int(round_id.partition("-")[0]),
        "state": state,
        "params": {"method": "radix", "dim": 1000, "min_clients": 2, "max_clients": 3},
        "clients": dict.fromkeys("abc", "none"),
        "peer_linked": True,
        "peer_problem": "",
        **changes,
    }


NO_ROUND = RoundStatus(peer_linked=True).to_dict()


class Fake:
    """A server that answers with the latest of its rounds, or with one that is asked for."""

    address = "tcp://127.0.0.1:7000"

    def __init__(self, *rounds: dict[str, Any]) -> None:
        self.rounds = {each["round"]: each for each in rounds}
        self.asked: list[str] = []
        self.error: Exception | None = None
        # receipts by round, and the rounds of which they were asked for
        self.receipts: dict[str, Receipt] = {}
        self.asked_for_receipts: list[str] = []

    def tell(self, said: dict[str, Any]) -> None:
        self.rounds[said["round"]] = said

    def ask(self, op: str, fields: Mapping[str, Any]) -> wire.Message:
        if op == "result":
            assert not fields["values"]
            self.asked_for_receipts.append(fields["round"])
            if fields["round"] not in self.receipts:
                raise UnknownRound("S0: s0 knows no such round")
            receipt = self.receipts[fields["round"]]
            said = {"record": receipt.encoded, "signatures": dict(receipt.signatures)}
            return wire.Message("result", {"form": "opened", **said})
        assert op == "status"
        self.asked.append(fields["round"])
        if self.error:
            raise self.error
        if fields["round"] and fields["round"] not in self.rounds:
            raise UnknownRound("S0: s0 knows no such round")
        latest = list(self.rounds.values())[-1] if self.rounds else NO_ROUND
        answer = self.rounds[fields["round"]] if fields["round"] else latest
        return wire.Message("status", {"peer_linked": True, "peer_problem": "", **answer})

    def cancel(self) -> None:
        """Nobody waits here."""

    def close(self) -> None:
        """Nothing is open here."""


def receipt_of(round_id: str, *clients: str) -> Receipt:
    """Return a receipt that both servers have signed."""
    return signed(replace(RECORD, round=round_id, included=list(clients)))


def watch_of(servers: Any, *given: Any, **named: Any) -> Watch:
    """Return a watch of servers that are faked."""
    return Watch(servers, *given, **named)


def seen(one: Watch) -> dict[str, Any]:
    view: dict[str, Any] = json.loads(one.view())
    return view


# A client's part in a round


def test_every_reason_of_the_servers_has_its_kind(tmp_path: Path) -> None:
    """The servers' own words, from rounds in which clients fail in every way."""
    server = Server(0, tmp_path, DEALT)
    round_id = server.open()
    both, one, neither = server.keys
    names = server.latest.server_round.names

    def kinds(*keys: str) -> list[str]:
        said = RoundStatus.from_answer(server.ask(server.coordinator, "status").fields)
        return [kind_of(names[key], said) for key in keys or server.keys]

    assert kinds() == ["w", "w", "w"]
    server.deal(both, round_id)
    server.deal(one, round_id)
    assert kinds() == ["o", "o", "w"]
    server.upload(both, round_id)
    server.hear(Dealt(round_id, both), Uploaded(round_id, both), Dealt(round_id, one))
    assert kinds() == ["s", "d", "w"]
    server.ask(server.coordinator, "close", round=round_id)
    server.hear(Held(round_id, held([both])))
    assert kinds(one, neither) == ["l", "l"]
    words = {
        "its dealing failed the check": "x",
        "a value of its update is out of range": "x",
        "it sent different uploads to the two servers": "x",
        "its own policy refuses the round": "x",
        "its upload is complete, but max_clients is 3": "x",
        "its dealing reached only s0": "o",
        "its upload reached only s1": "o",
        "its upload reached neither server": "l",
    }
    for why, kind in words.items():
        said = RoundStatus("1-00000000", state="published", left_out={"a": why})
        assert kind_of("a", said) == kind, why
    code = (ROOT / "servers" / "machine" / "members.py").read_text()
    assert "reached {_whom(here" in code and '"neither server"' in code and 'f"only s' in code


def test_who_is_in_is_in_the_result_of_rounds_that_have_one() -> None:
    said = RoundStatus(state="published", clients={"a": "both"}, included=["a"])
    assert kind_of("a", said) == "i"
    assert kind_of("a", replace(said, state="failed")) == "s"
    assert kind_of("a", RoundStatus(state="failed", clients={"a": "here"})) == "o"
    # nobody waits for it after a failure
    assert kind_of("a", RoundStatus(state="failed", clients={"a": "none"})) == "l"


# Requests, and the answers that are remembered


def test_requests_do_not_depend_on_who_looks() -> None:
    """At a hundred views a second, a watch asks as often as with none, for receipts as well."""
    # once a second together
    assert sum(1 / period_s for period_s in PERIODS_S) <= 1
    servers = Fake(), Fake(status("1-00000000", "open"))
    for number in range(1, 4):
        servers[0].tell(status(f"{number}-00000000", "published"))
    # ten times as fast as it is
    with watch_of(servers, PUBLIC, periods_s=[period_s / 10 for period_s in PERIODS_S]) as one:
        begun = time.monotonic()
        while time.monotonic() < begun + 1.0:
            one.view()
            time.sleep(0.01)
        took_s = time.monotonic() - begun
    asked = [len(each.asked) + len(each.asked_for_receipts) for each in servers]
    assert servers[0].asked_for_receipts
    # the first requests are at once
    assert 4 <= sum(asked) <= 10 * took_s + 2
    assert not [each for each in threading.enumerate() if each.name.startswith("watch-")]


def test_a_round_that_ended_unseen_is_asked_for_once_more() -> None:
    server = Fake(status("1-00000000", "running"))
    one = watch_of([server, Fake()], PUBLIC)
    one.look(0)
    server.tell(status("1-00000000", "published", included=["a", "b"], clients={"a": "both"}))
    server.tell(status("2-00000000", "open"))
    one.look(0)
    assert [each["state"] for each in seen(one)["rounds"]] == ["running", "open"]
    one.look(0)
    one.look(0)
    assert server.asked == ["", "", "1-00000000", ""]
    first, second = seen(one)["rounds"]
    assert first["state"] == "published" and first["ended"] and first["cells"] == "ii "
    assert second["state"] == "open" and not second["ended"]


def test_a_round_that_nobody_knows_any_more_has_failed() -> None:
    server = Fake(status("1-00000000", "open"))
    one = watch_of([server, Fake()], PUBLIC)
    one.look(0)
    server.rounds = {"2-00000000": status("2-00000000", "open")}
    for _ in range(4):
        one.look(0)
    assert seen(one)["rounds"][0]["state"] == "failed"
    assert "knows no such round" in seen(one)["rounds"][0]["reason"]
    # and it is not asked for again
    assert server.asked == ["", "", "1-00000000", "", ""]


def test_how_far_a_failed_round_was_is_remembered() -> None:
    server = Fake()
    one = watch_of([server, Fake()], PUBLIC)
    for state in ("open", "checking", "failed"):
        server.tell(status("1-00000000", state))
        one.look(0)
    assert seen(one)["rounds"][0]["reached"] == "checking"


def test_a_round_of_several_votes_says_which_and_until_when() -> None:
    server = Fake(status("1-00000000", "voting", level=3, levels=8, lacking=["b"]))
    server.tell(server.rounds["1-00000000"] | {"deadline_in_s": 60.0})
    one = watch_of([server, Fake()], PUBLIC)
    one.look(0)
    (shown,) = seen(one)["rounds"]
    assert (shown["level"], shown["levels"], shown["lacking"]) == (3, 8, ["b"])
    assert shown["closes"] - shown["began"] == pytest.approx(60.0, abs=5)


def test_rounds_stand_in_the_order_of_their_numbers() -> None:
    """A line of `coordinate` about a round tells a time before that of an earlier round."""
    history = History()
    history.take(of_number("1-00000000", 1), 100.0)
    history.take(of_number("1-00000001", 1), 101.0)
    history.take(of_number("2-00000000", 2), 300.0)
    history.take(of_number("3-00000000", 3), 200.0)
    # a run that starts over
    history.take(of_number("1-00000002", 1), 400.0)
    assert [seen.status.number for seen in history.rounds] == [1, 1, 2, 3, 1]


def of_number(round_id: str, number: int) -> RoundStatus:
    return RoundStatus.from_answer(status(round_id, "published") | {"number": number})


def test_what_is_remembered_is_bounded() -> None:
    server = Fake()
    one = watch_of([server, Fake()], PUBLIC)
    for number in range(1, ROUNDS_SHOWN + 20):
        server.tell(status(f"{number}-00000000", "failed", included=["a"]))
        one.look(0)
    rounds = seen(one)["rounds"]
    assert len(rounds) == ROUNDS_SHOWN and rounds[-1]["number"] == ROUNDS_SHOWN + 19


def test_what_servers_say_of_themselves_and_do_not_say() -> None:
    zero, one_ = Fake(), Fake()
    one = watch_of([zero, one_], PUBLIC)
    assert [link["answers"] for link in seen(one)["servers"]] == [None, None]
    one.look(0)
    one_.error = ServerUnreachable("S1 at tcp://x could not be reached")
    one.look(1)
    links = seen(one)["servers"]
    assert links[0] | {"seen": 0} == {
        "name": "s0",
        "address": Fake.address,
        "answers": True,
        "problem": "",
        "linked": True,
        "seen": 0,
    }
    assert (links[1]["answers"], links[1]["problem"]) == (False, str(one_.error))
    # an answer of another release must not end the thread
    one_.error = None
    one_.tell({"round": "1-00000000", "peer_linked": True})
    one.look(1)
    assert seen(one)["servers"][1]["answers"]
    zero.tell({"round": "1-00000000"})
    one.look(0)
    assert seen(one)["rounds"][0]["state"] == "none"
    zero.tell({"round": "2-00000000", "deadline_in_s": "soon", "state": "open"})
    one.look(0)
    assert "invalid deadline_in_s" in seen(one)["servers"][0]["problem"]
    assert len(seen(one)["rounds"]) == 1


def test_weights_are_left_out_and_the_view_is_made_once_per_answer() -> None:
    server = Fake(status("1-00000000", "open", params={"method": "mean", "weights": {"key": 3}}))
    one = watch_of([server, Fake()], PUBLIC)
    one.look(0)
    assert seen(one)["rounds"][0]["params"] == {"method": "mean"}
    assert one.view() is one.view()
    before = one.view()
    one.look(0)
    assert one.view() is not before


LINE = {
    "time": "2020-11-22T10:00:00Z",
    "seconds": 60.0,
    "number": 1,
    "state": "published",
    "reason": "",
    "included": ["a", "b"],
    "left_out": {"c": "its upload reached only s1"},
    "cost": {"ots": 5},
    "opened": "result",
}


def test_a_run_brings_its_past_and_what_was_measured(tmp_path: Path) -> None:
    file = tmp_path / LINES
    server = Fake(status("2-00000000", "open", clients=dict.fromkeys("cba", "none")))
    one = watch_of([server, Fake()], PUBLIC, tmp_path)
    # nothing is there yet
    one.look(0)
    file.write_text(
        json.dumps(LINE | {"round": "1-00000000", "evaluation": {"accuracy": 0.5}}) + "\n"
    )
    one.look(0)
    view = seen(one)
    first, second = view["rounds"]
    assert view["clients"] == ["c", "b", "a"]
    assert (first["cells"], second["cells"]) == ("oii", "www")
    assert first["ended"] - first["began"] == 60 and first["evaluation"] == {"accuracy": 0.5}
    # a round that was seen under way gets what was measured later
    server.tell(status("2-00000000", "published", included=["a"]))
    one.look(0)
    with file.open("a") as lines:
        lines.write(
            json.dumps(
                LINE | {"round": "2-00000000", "evaluation": {"accuracy": 0.7, "loss": math.nan}}
            )
            + "\n"
        )
    one.look(0)
    # a browser reads no NaN
    assert seen(one)["rounds"][1]["evaluation"] == {"accuracy": 0.7, "loss": "nan"}
    for damage, message in (("no JSON", "a damaged file"), ('{"seconds": 1}', "KeyError")):
        file.write_text(f"{damage}\n")
        one.look(0)
        assert message in seen(one)["run"]["problem"]
        assert len(seen(one)["rounds"]) == 2


# Receipts


def test_the_receipt_of_a_published_round_is_verified() -> None:
    server = Fake(status("1-00000000", "running"))
    one = watch_of([server, Fake()], PUBLIC)
    one.look(0)
    assert server.asked_for_receipts == []
    server.tell(status("1-00000000", "published", included=["a", "b"]))
    server.receipts["1-00000000"] = receipt_of("1-00000000", "key-a", "key-b")
    for _ in range(4):
        one.look(0)
    # once, and instead of one request for the status
    assert server.asked_for_receipts == ["1-00000000"] and len(server.asked) == 4
    assert seen(one)["rounds"][0]["receipt"] == {
        "valid": True,
        "says": "both servers have signed it, for 2 clients",
        "opened": bytes(32).hex(),
    }


@pytest.mark.parametrize(
    ("receipt", "says"),
    [
        (receipt_of("2-00000000", "key-a"), "that of another round: 2-00000000"),
        (receipt_of("1-00000000", "key-a", "key-b"), "of 2 clients"),
        (Receipt(RECORD.encode()), "not signed by s0 and s1"),
        (Receipt(b"nothing"), "invalid record of a round"),
    ],
)
def test_a_receipt_that_does_not_hold_is_told_apart(receipt: Receipt, says: str) -> None:
    server = Fake(status("1-00000000", "published", included=["a"]))
    server.receipts["1-00000000"] = receipt
    one = watch_of([server, Fake()], PUBLIC)
    one.look(0)
    one.look(0)
    shown = seen(one)
    assert shown["rounds"][0]["receipt"]["valid"] is False
    assert says in shown["rounds"][0]["receipt"]["says"]
    # that is about the round: S0 has answered
    assert shown["servers"][0]["answers"]


def test_a_receipt_that_is_not_kept_any_more_is_not_asked_for_again() -> None:
    server = Fake(status("1-00000000", "published", included=["a"]))
    one = watch_of([server, Fake()], PUBLIC)
    for _ in range(4):
        one.look(0)
    assert server.asked_for_receipts == ["1-00000000"]
    shown = seen(one)["rounds"][0]
    assert (shown["state"], shown["receipt"]["valid"]) == ("published", None)


def test_a_run_brings_its_receipts(tmp_path: Path) -> None:
    lines = [LINE | {"round": f"{number}-00000000"} for number in (1, 2, 3)]
    (tmp_path / LINES).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    receipts.save(receipt_of("1-00000000", "key-a", "key-b"), tmp_path / "receipt-1.json")
    assert (tmp_path / "receipt-1.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "receipt-2.json").write_text("{}")
    one = watch_of([Fake(), Fake()], PUBLIC, tmp_path)
    one.look(0)
    found = [each["receipt"] for each in seen(one)["rounds"]]
    assert [each and each["valid"] for each in found] == [True, False, None]
    assert "invalid receipt" in found[1]["says"]


# Pages


@contextmanager
def served(view: Callable[[], bytes], local: bool = True, *names: str) -> Iterator[str]:
    """Serve the page on a thread, and yield its address."""
    uvicorn = pytest.importorskip("uvicorn")
    pytest.importorskip("starlette")
    from securemedian.coordinator.dashboard.app import make_app

    settings = uvicorn.Config(
        make_app(view, local, names), port=0, log_level="warning", lifespan="off"
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def get(url: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    try:
        with urlopen(Request(url, method=method, headers=headers), timeout=LIMIT_S) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except HTTPError as error:
        return error.code, dict(error.headers), error.read().decode()


def test_the_page_is_served_under_a_strict_policy() -> None:
    with served(lambda: b'{"x":1}') as url:
        code, headers, text = get(url)
        assert code == 200 and headers["content-type"].startswith("text/html")
        assert text == PAGE.read_text("utf-8")
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        assert policy["connect-src"] == "'self'" and "unsafe" not in str(policy)
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        code, headers, text = get(f"{url}/state")
        assert (code, text, headers["content-type"]) == (200, '{"x":1}', "application/json")
        assert get(f"{url}/else")[0] == 404
        assert get(f"{url}/state", "POST")[0] == 405


def test_names_that_lead_here_are_not_answered() -> None:
    """So a page under a name of somebody else's, which points to 127.0.0.1, reads nothing."""
    with served(lambda: b"secret") as url:
        for host in (
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "",
            "[",
            "x]:1",
        ):
            code, _, text = get(f"{url}/state", Host=host)
            assert code in (400, 421) and "secret" not in text, host
        for host in ("localhost:1", "127.0.0.1", "[::1]:8080"):
            assert get(f"{url}/state", Host=host)[0] == 200, host
    for local in (True, False):
        with served(lambda: b"told", local, "ops.example") as url:
            assert get(f"{url}/state", Host="ops.example:8080")[2] == "told"
            assert get(f"{url}/state", Host="10.0.0.7:8080")[0] == (421 if local else 200)
            for host in ("evil.example", "", "10.0.0.7.evil.example", "[", "x]:1"):
                code, _, text = get(f"{url}/state", Host=host)
                assert code in (400, 421) and "told" not in text, host


def test_the_page_loads_nothing_from_elsewhere() -> None:
    text = PAGE.read_text("utf-8")
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|insertAdjacent|document\.write|eval\(|\sstyle=|\son\w+=", text)
    assert set(re.findall(r"fetch\(\"([^\"]*)", text)) == {"/state"}


def test_the_page_knows_the_phases_and_states() -> None:
    text = PAGE.read_text("utf-8")
    steps = text[text.index("const STEPS") : text.index("const PHASES")]
    assert set(re.findall(r'"([a-z]+)"', steps)) >= set(LIVE)
    assert len({sign for sign, _, _ in KINDS.values()}) == len(KINDS)


def test_what_the_page_draws_can_be_told_apart() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not there")
    text = PAGE.read_text("utf-8")
    parts = [text[text.index("const STEPS") : text.index("const PHASES")]]
    drawn = r"^(?:const clock.*?\);|function (?:tallest|ends|titles|reached).*?^})$"
    parts += re.findall(drawn, text, re.DOTALL | re.MULTILINE)
    asked = """[
        tallest([2, 1, 90, 2]), tallest([3]), tallest([0, 0]),
        ends([0.92, 0.95]), ends([-1, 3]), ends([40, 80]),
        titles([4, 5, 5, 5, 6].map((number) => ({ number }))),
        reached({ state: "open" }), reached({ state: "failed", reached: "checking" }),
        reached({ state: "failed", reached: "", opened: "maybe" }),
        reached({ state: "failed", reached: "", opened: "nothing" }),
        clock(1795408158),
    ]"""
    program = "\n".join([*parts, f"console.log(JSON.stringify({asked}))"])
    done = subprocess.run(
        [node, "-e", program],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
        env=os.environ | {"TZ": "UTC"},
    )
    *found, time_shown = json.loads(done.stdout)
    assert found == [
        # one slow round does not flatten all bars
        *(2, 3, 1e-9),
        # an axis that began at its lowest value made 92 % look like nothing
        *([0, 1], [-1, 3], [0, 80]),
        # four columns were called 5
        ["4", "5", "5 try 2", "5 try 3", "6"],
        # how far a failed round was
        *(0, 2, 3, -1),
    ]
    # 11/23/2026, with no zone
    assert time_shown == "2026-11-23 04:29:18 UTC"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "8080"], "HOST:PORT"),
        (["--listen", "192.0.2.1:1"], "cannot listen on this address: 192.0.2.1:1"),
        (["--output", __file__], "not a folder"),
    ],
)
def test_mistakes_are_named(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("uvicorn")
    keygen.make(tmp_path, ["client-1", "client-2"], keygen.network("127.0.0.1", "127.0.0.1", None))
    assert cli.main(["dashboard", str(tmp_path / "coordinator.toml"), *arguments]) == 2
    assert message in capsys.readouterr().err


# With real servers


@contextmanager
def dashboard(folder: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run the command, and yield the page's address."""
    log = folder / "dashboard.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "securemedian", "dashboard"]
            + [str(folder / "coordinator.toml"), *arguments],
            stderr=errors,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
    try:
        found = wait_until(lambda: re.search(r"http://\S+", log.read_text()))
        yield found[0].rstrip("/"), process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_real_round_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    pair = Pair(tmp_path, clients=3)
    with running(pair), dashboard(tmp_path, "--listen", "127.0.0.1:0") as (url, process):

        def state() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(get(f"{url}/state")[2])
            return found

        assert "password" not in (tmp_path / "dashboard.log").read_text()
        wait_until(lambda: all(link["linked"] for link in state()["servers"]))
        round_id = pair.open(method="radix", dim=10, max_clients=3)
        one, two, three = pair.names
        pair.submit(one, np.zeros(10, np.float32))
        pair.submit(two, np.ones(10, np.float32), to=("s0",))
        wait_until(lambda: [each["cells"] for each in state()["rounds"]] == ["sow"])
        assert state()["rounds"][0]["closes"] > time.time()
        pair.submit(three, np.ones(10, np.float32))
        pair.caller("coordinator", "s0").ask("close", round=round_id)
        shown = wait_until(lambda: (found := state()["rounds"][0])["receipt"] and found)
        assert shown["state"] == "published" and shown["receipt"]["valid"]
        assert shown["cells"] == "ioi" and shown["cost"]["ots"] > 0
        assert shown["left_out"] == {two: "its upload reached only s0"}
        pair.stop("s1")
        wait_until(lambda: not state()["servers"][0]["linked"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0


@pytest.mark.slow
def test_others_than_this_machine_are_warned_of(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    keygen.make(tmp_path, ["client-1", "client-2"], keygen.network("127.0.0.1", "127.0.0.1", None))
    # `coordinate` has not begun, and the dashboard waits for it
    later = str(tmp_path / "later")
    with dashboard(tmp_path, "--listen", "0.0.0.0:0", "--output", later) as (url, process):
        said = (tmp_path / "dashboard.log").read_text()
        assert "it asks for no password" in said and "later is not there yet" in said
        # no server has an answer for it, and the page is there all the same
        assert get(url.replace("0.0.0.0", "127.0.0.1"))[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 130


# In a browser

HOSTILE = "<img src=x onerror=alert(1)>"


def run_view() -> bytes:
    """Return the view of a run with failures in it, and of a round under way."""
    server = Fake()
    one = watch_of([server, Fake()], PUBLIC)
    places = {"a": "both", "b": "here", HOSTILE: "none"}
    out = {"b": "its upload reached only s0", HOSTILE: "its upload reached neither server"}
    cost = {"ots": 5000, "bytes_sent": 2e6, "bytes_received": 2e6, "seconds": 1.5} | {
        f"{phase}_seconds": 0.5 for phase in ("ahead", "checking", "preprocessing", "online")
    }
    for number in range(1, 31):
        said = status(f"{number}-00000000", "published", cost=cost, left_out=out, clients=places)
        server.tell(said | {"included": ["a"]})
        # the last one's receipt is another round's
        number = min(number, 29)
        server.receipts[said["round"]] = receipt_of(f"{number}-00000000", "key-a")
        one.look(0)
        one.look(0)
    server.tell(status("31-00000000", "failed", reason="too few", clients=places, left_out=out))
    one.look(0)
    server.tell(
        status(
            "31-00000001",
            "running",
            clients=places,
            included=["a"],
            phase="protocol",
            progress=[1, 4],
        )
    )
    one.look(0)
    one.look(1)
    for number in range(1, 31):
        one._history.remember(
            LINE | {"round": f"{number}-00000000", "evaluation": {"accuracy": number / 31}}, 0.0
        )
    return one.view()


@contextmanager
def browser(width: int) -> Iterator[Any]:
    """Start a headless Chromium whose page is so wide."""
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        driver.set_page_load_timeout(30)
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        yield driver
    finally:
        driver.quit()


@pytest.mark.release
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")
@pytest.mark.parametrize("width", [1280, 400])
def test_in_a_browser(width: int) -> None:
    view = run_view()
    with served(lambda: view) as url, browser(width) as page:
        page.get(url)
        run = page.execute_script
        wait_until(lambda: run("return document.querySelectorAll('#grid td').length") == 96)
        # nothing is wider than the page, and the latest rounds are in sight
        root = "document.documentElement"
        assert run(f"return {root}.scrollWidth == {root}.clientWidth")
        assert run(
            "const box = document.querySelector('#grid').parentNode.getBoundingClientRect();"
            "return document.getElementById('round-31-00000001').getBoundingClientRect().right"
            " <= box.right + 1"
        )
        # the steps' names do not run into each other
        overlaps = (
            "return [...document.querySelectorAll('#steps li')]"
            ".filter(e => e.scrollWidth > e.clientWidth).length"
        )
        assert run(overlaps) == 0
        assert run("return document.getElementById('headline').textContent") == (
            "Round 31-00000001 is running"
        )
        assert run("return document.getElementById('doing-text').textContent") == "protocol: 25 %"
        current = "return document.querySelector('[aria-current=step]').textContent"
        assert run(current) == "computing"
        # a hostile name is text
        names = "return [...document.querySelectorAll('#grid tbody th')].map(e => e.textContent)"
        assert HOSTILE in run(names) and run("return document.images.length") == 0
        # by keyboard: the failed round, and the focus stays when the page is drawn again
        button = "round-31-00000000"
        run(f"document.getElementById('{button}').focus()")
        from selenium.webdriver.common.keys import Keys

        page.switch_to.active_element.send_keys(Keys.ENTER)
        assert run("return document.activeElement.id") == button
        assert run("return document.activeElement.getAttribute('aria-pressed')") == "true"
        facts = run("return document.getElementById('facts').textContent")
        assert "failed: too few" in facts and "its upload reached neither server" in facts
        for number, sign in ((29, "✓"), (30, "✕")):
            run(f"document.getElementById('round-{number}-00000000').click()")
            found = run("return document.getElementById('facts').textContent")
            assert f"receipt{sign} " in found
        assert run("return document.querySelectorAll('#facts dd.bad').length") == 1
        assert "[object" not in run("return document.body.innerText")
        # every sign has a word for those who do not see it
        assert run(
            "return [...document.querySelectorAll('#grid td')].every("
            "e => e.querySelector('.hidden').textContent)"
        )
        assert (
            run(
                "return [...document.querySelectorAll('svg[role=img]')].every(e => e.ariaLabel)"
                " && document.querySelectorAll('svg[role=img]').length"
            )
            == 2
        )
        # the browser has refused nothing
        assert page.get_log("browser") == []
        assert base64.b64decode(page.get_screenshot_as_base64()).startswith(b"\x89PNG")
