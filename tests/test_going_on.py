"""Clients that go on: lost connections, servers that are away, and clients that are restarted."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian.clients import sharing
from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.clients.connection import Connection
from securemedian.laboratory import plaintext
from securemedian.mpc.errors import DuplicateUpload, InputError, ServerUnreachable
from securemedian.mpc.rounds.params import RoundParams
from tests.daemons import ROOT, SETTINGS, WAIT_S, Pair, in_background, wait_until
from tests.soak.proxy import CALM, LOOPBACK, Proxies, Trouble

pytestmark = pytest.mark.slow

DIM = 20_000
# the bytes that a line takes ahead, few enough that an upload can be seen on its way
ROOM = 1 << 12
MODEL = np.zeros(DIM, np.float32)
KINDS: dict[str, dict[str, Any]] = {
    "dealt": {"method": "bucketed", "uploads": "dealt"},
    "shares": {"method": "pairwise"},
}
# a dealing takes several pieces
PAIR: dict[str, Any] = {"clients": 2, "settings": SETTINGS | {"max_message_bytes": 400_000}}


class Line:
    """Client 1, who reaches both servers through a proxy, and what it was told."""

    def __init__(self, pair: Pair, opened: ExitStack, **settings: Any) -> None:
        loaded = ClientConfig.load(pair.folder / "client-1.toml")
        proxies = opened.enter_context(closing(Proxies()))
        ports = [int(one.address.rpartition(":")[2]) for one in (loaded.s0, loaded.s1)]
        self.s0, self.s1 = (proxies.add(port, ROOM) for port in ports)
        settings = {
            "poll_interval_s": 0.02,
            "reply_timeout_s": 0.5,
            "retry_limit_s": WAIT_S,
        } | settings
        s0, s1 = (
            replace(server, address=f"tcp://{LOOPBACK}:{proxy.port}")
            for server, proxy in ((loaded.s0, self.s0), (loaded.s1, self.s1))
        )
        self.config = replace(loaded, s0=s0, s1=s1, **settings)
        self.told: list[str] = []
        self._opened = opened

    def client(self) -> Client:
        return self._opened.enter_context(Client(self.config, report=self.told.append))


@pytest.fixture
def line(pair: Pair, opened: ExitStack) -> Line:
    return Line(pair, opened)


def update(number: int) -> NDArray[np.float32]:
    return np.random.default_rng(number).normal(0, 0.01, DIM).astype(np.float32)


def open_round(pair: Pair, kind: str) -> str:
    return pair.open(model=MODEL, max_clients=2, dim=DIM, **KINDS[kind])


def finish(pair: Pair, client: Client, round_id: str) -> None:
    """Submit for client 2, and check that the result is that of both updates, as client 1 sees it.

    Both have been asked for the same rounds, so the result is that of the very updates 1 and 2.
    """
    config = ClientConfig.load(pair.folder / "client-2.toml")
    with Client(replace(config, poll_interval_s=0.02, state_dir="")) as other:
        other.submit(update(2), round_id)
    params = RoundParams.from_dict(pair.status(round_id=round_id)["params"])
    published = pair.published("client-2", round_id)
    expected = plaintext.published(np.stack([update(1), update(2)]), params, published)[0]
    assert np.array_equal(np.asarray(client.result(round_id), np.float32), expected)
    assert pair.status(round_id=round_id)["left_out"] == {}


@pytest.mark.parametrize(("kind", "server"), [("dealt", "s0"), ("shares", "s1")])
def test_a_connection_that_is_cut_costs_nothing(
    pair: Pair, line: Line, monkeypatch: pytest.MonkeyPatch, kind: str, server: str
) -> None:
    monkeypatch.setattr(sharing, "PIECE_BYTES", 40_000)
    round_id, proxy = open_round(pair, kind), getattr(line, server)
    client = line.client()
    client.wait_for_round()
    # within the dealing or the rotations; of shares one server gets a seed, which is 16 bytes
    proxy.cut_at = proxy.received + (5_000 if kind == "dealt" else 100)
    client.submit(update(1), round_id)
    assert proxy.cut_at is None, "nothing was cut"
    finish(pair, client, round_id)


def at_upload(
    monkeypatch: pytest.MonkeyPatch, server: str, act: Callable[[], object]
) -> list[bytes]:
    """Call `act` before the first upload to a server is sent, and return the uploads as sent."""
    sent: list[bytes] = []
    ask, left = Connection.ask, [act]

    def noting(connection: Connection, op: str, *given: Any, **named: Any) -> Any:
        if op == "upload":
            sent.append(given[1]["share"].tobytes())
            if left and connection.label == server:
                left.pop()()
        return ask(connection, op, *given, **named)

    monkeypatch.setattr(Connection, "ask", noting)
    return sent


def test_a_connection_that_stalls_is_replaced(
    pair: Pair, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_id = open_round(pair, "shares")
    client = line.client()
    client.wait_for_round()

    def release() -> None:
        wait_until(lambda: line.s1.trouble.stalled)
        before = line.s1.connections
        wait_until(lambda: line.s1.connections > before)
        line.s1.put(CALM)

    at_upload(monkeypatch, "S1", lambda: line.s1.put(Trouble(stalled=True)))
    released = in_background(release)
    client.submit(update(1), round_id)
    released()
    where = f"S1 at {line.config.s1.address}"
    # a long upload asks first how much the server takes
    assert line.told[0].startswith(f"{where} did not answer 'info': no answer within 0.5 s")
    assert "Trying again for" in line.told[0]
    assert line.told[1:] == [f"{where} is back"]
    finish(pair, client, round_id)


def test_an_answer_that_is_lost_costs_nothing(
    pair: Pair, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has the upload, and gets it again."""
    round_id = open_round(pair, "shares")
    client = line.client()
    client.wait_for_round()

    def release() -> None:
        wait_until(lambda: pair.status()["clients"]["client-1"] != "none")
        wait_until(lambda: line.told)
        line.s0.put(CALM)

    at_upload(monkeypatch, "S0", lambda: line.s0.put(Trouble(muted=True)))
    released = in_background(release)
    client.submit(update(1), round_id)
    released()
    finish(pair, client, round_id)


def test_submit_goes_on_where_it_ended_and_takes_no_other_update(
    pair: Pair, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(pair, opened, retry_limit_s=0.2)
    round_id = open_round(pair, "shares")
    client = line.client()
    client.wait_for_round()
    sent = at_upload(monkeypatch, "S1", lambda: line.s1.put(Trouble(cut=True)))
    for _ in range(2):
        with pytest.raises(ServerUnreachable, match="S1 at"):
            client.submit(update(1))
    with pytest.raises(DuplicateUpload, match="another update of yours is on its way"):
        client.submit(update(3))
    line.s1.put(CALM)
    # the round is not over for this client
    assert client.wait_for_round(WAIT_S).submitted
    seed, words, again = sent
    assert len(seed) == 16 and words == again
    finish(pair, client, round_id)


def test_fit_goes_on_with_the_update_that_it_has_trained(
    pair: Pair, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is away for longer than `retry_limit_s`, and the round is still open after it."""
    line = Line(pair, opened, retry_limit_s=0.2)
    round_id = open_round(pair, "shares")
    at_upload(monkeypatch, "S1", lambda: line.s1.put(Trouble(cut=True)))
    model, trained, said = np.zeros(DIM, np.float32), list[int](), list[str]()

    def train(model: NDArray[np.float32]) -> None:
        trained.append(1)
        model[:] = update(1)

    def report(text: str) -> None:
        said.append(text)
        if text.startswith("going on to the next round: S1"):
            line.s1.put(CALM)
        if "stored already" in text:
            finish(pair, client, round_id)

    client = line.client()
    assert client.fit(model, train, 1, WAIT_S, report) == 1
    assert trained == [1]
    assert said[-2:] == [
        f"round {round_id}: your upload is stored already, waiting for the result",
        f"round {round_id}: the result is loaded",
    ]


def test_waits_outlast_a_server_that_is_away_and_say_so_once(pair: Pair, line: Line) -> None:
    before = open_round(pair, "shares")
    client = line.client()
    assert client.wait_for_round().round_id == before
    pair.caller("coordinator", "s0").ask("abort", round=before, reason="enough seen")
    line.s0.put(Trouble(cut=True))

    def come_back() -> None:
        wait_until(lambda: line.told)
        # for several requests
        before = line.s0.connections
        wait_until(lambda: line.s0.connections > before + 2)
        line.s0.put(CALM)

    returned = in_background(come_back)
    round_id = open_round(pair, "shares")
    assert client.wait_for_round().round_id == round_id
    returned()
    assert len(line.told) == 2 and "Trying again for 86,3" in line.told[0]
    assert line.told[1] == f"S0 at {line.config.s0.address} is back"
    client.submit(update(1))
    finish(pair, client, round_id)


def test_a_slow_line_is_no_server_that_is_away(pair: Pair, line: Line) -> None:
    """The limit of an answer begins again with each byte that has arrived."""
    round_id = open_round(pair, "shares")
    client = line.client()
    client.wait_for_round()
    for proxy in (line.s0, line.s1):
        proxy.put(Trouble(delay_s=0.02, piece_bytes=ROOM))
    seen: list[tuple[int, int]] = []
    start = time.monotonic()
    client.submit(update(1), progress=lambda sent, total: seen.append((sent, total)))
    assert time.monotonic() - start > line.config.reply_timeout_s
    for proxy in (line.s0, line.s1):
        proxy.put(CALM)
    assert line.told == []
    sent, totals = zip(*seen, strict=True)
    assert len(set(sent)) > 3 and list(sent) == sorted(sent)
    assert set(totals) == {16 + 8 * DIM} and sent[-1] == totals[0]
    finish(pair, client, round_id)


def test_servers_that_are_killed_and_restarted_cost_nothing(
    pair: Pair, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One while the client deals, in the midst of the pieces, and the other while it submits."""
    round_id = open_round(pair, "dealt")
    words_to = "S1" if pair.round("client-1")[0]["index"] % 2 == 0 else "S0"
    killed: list[tuple[str, int]] = []
    ask = Connection.ask

    def restart(server: str, request: int) -> None:
        killed.append((server, request))
        pair.stop(server.lower(), signal.SIGKILL)
        pair.start(server.lower())

    def killing(connection: Connection, op: str, *given: Any, **named: Any) -> Any:
        if not killed and op == "deal" and given[0]["piece"] == 1:
            restart(connection.label, 1)
        elif len(killed) == 1 and op == "upload":
            restart(connection.label, 0)
        return ask(connection, op, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "ask", killing)
        client = line.client()
        client.wait_for_round()
        client.submit(update(1))
    assert killed == [(words_to, 1), ("S0", 0)]
    finish(pair, client, round_id)


# Clients that are killed

# submits, and sleeps before the request OP number NUMBER to SERVER, or at the end
CHILD = """
import sys, time
import numpy as np
from securemedian.clients.client import Client
from securemedian.clients.connection import Connection

config, update, op, server, number, group = sys.argv[1:]
ask, left = Connection.ask, [int(number)]

def sleep():
    print("asleep", flush=True)
    time.sleep(600)

def counted(connection, name, *given, **named):
    if (name, connection.label) == (op, server):
        left[0] -= 1
        if left[0] < 0:
            sleep()
    return ask(connection, name, *given, **named)

Connection.ask = counted
with Client.from_config(config) as client:
    client.submit(np.load(update), group=int(group))
    sleep()
"""


def kill_at(
    pair: Pair, folder: Path, op: str, server: str, number: int, group: int = 0
) -> ClientConfig:
    """Run client 1 until a request, kill it, and return its configuration."""
    path = pair.folder / "client-1.toml"
    np.save(folder / "update.npy", update(1))
    output = folder / "output"
    with output.open("wb") as file:
        child = subprocess.Popen(
            [
                *(sys.executable, "-c", CHILD, path, folder / "update.npy"),
                *(op, server, str(number), str(group)),
            ],
            stdout=file,
            stderr=file,
            cwd=ROOT,
        )
    try:
        wait_until(lambda: child.poll() is not None or "asleep" in output.read_text())
        assert "asleep" in output.read_text(), output.read_text()
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    return replace(ClientConfig.load(path), poll_interval_s=0.02)


def unsent(client: Client) -> list[str]:
    """Return the rounds for which a client keeps something that servers lack."""
    return client._journal.rounds


def test_a_client_killed_while_it_deals_goes_on_with_its_dealing(
    pair: Pair, opened: ExitStack, tmp_path: Path
) -> None:
    round_id = open_round(pair, "dealt")
    words_to = "S1" if pair.round("client-1")[0]["index"] % 2 == 0 else "S0"
    config = kill_at(pair, tmp_path, "deal", words_to, 1)
    client = opened.enter_context(Client(config))
    assert unsent(client) == [round_id]
    current = client.wait_for_round()
    assert not current.dealing_lost and not current.submitted
    client.submit(update(1))
    finish(pair, client, round_id)
    assert unsent(client) == [] and client.sent[-1].round_id == round_id


@pytest.mark.parametrize(
    ("kind", "server"), [("dealt", "S0"), ("shares", "S1"), ("shares", "none")]
)
def test_a_client_killed_while_it_submits_goes_on_with_its_upload(
    pair: Pair, opened: ExitStack, tmp_path: Path, kind: str, server: str
) -> None:
    round_id = open_round(pair, kind)
    config = kill_at(pair, tmp_path, "upload", server, 0)
    client = opened.enter_context(Client(config))
    assert unsent(client) == ([] if server == "none" else [round_id])
    if server != "none":
        with pytest.raises(DuplicateUpload, match="another update of yours is on its way"):
            client.submit(update(3), round_id)
    current = client.wait_for_round()
    assert current.submitted
    # both have it, and S1 tells S0 so
    wait_until(lambda: pair.status()["clients"]["client-1"] == "both")
    finish(pair, client, round_id)
    assert unsent(client) == [] and client.sent[-1].round_id == round_id


def test_a_dealing_is_not_mixed_with_one_whose_secret_is_lost(
    pair: Pair, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1 has the words of a dealing whose seed S0 never got, and the client has no `state_dir`."""
    round_id = open_round(pair, "dealt")
    name = next(name for name in pair.names if pair.round(name)[0]["index"] % 2 == 0)
    config = replace(ClientConfig.load(pair.folder / f"{name}.toml"), state_dir="")
    ask = Connection.ask

    def holding(connection: Connection, op: str, *given: Any, **named: Any) -> Any:
        if op == "deal" and given[0]["form"] == "seed":
            raise ServerUnreachable("held here")
        return ask(connection, op, *given, **named)

    with monkeypatch.context() as patch, Client(config) as first:
        patch.setattr(Connection, "ask", holding)
        first.wait_for_round()
        wait_until(lambda: pair.caller(name, "s1").ask("round").fields["dealt"])
    second = opened.enter_context(Client(config))
    with pytest.raises(DuplicateUpload, match="S1: another dealing of yours"):
        second.submit(update(1), round_id)


def test_a_dealing_goes_to_the_same_servers_whatever_s0_says(
    pair: Pair, line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that got both halves would know the dealing, and then the update."""
    round_id = open_round(pair, "dealt")
    ask, dealt, moved = Connection.ask, [], [0]

    def moving(connection: Connection, op: str, *given: Any, **named: Any) -> Any:
        if op == "deal":
            dealt.append((connection.label, given[0]["form"]))
            raise ServerUnreachable("held here")
        answer = ask(connection, op, *given, **named)
        if op == "round":
            answer.fields["index"] += moved[0]
        return answer

    monkeypatch.setattr(Connection, "ask", moving)
    for moved[0] in (0, 1):
        with Client(line.config) as client:
            assert client.wait_for_round().round_id == round_id
            wait_until(lambda: len(dealt) > moved[0])
    assert dealt[0] == dealt[1]


@pytest.mark.parametrize(("membership", "server"), [("hidden", "S1"), ("visible", "none")])
def test_a_client_that_was_killed_knows_the_group_that_it_has_chosen(
    pair: Pair, opened: ExitStack, tmp_path: Path, membership: str, server: str
) -> None:
    starts = np.stack([MODEL, MODEL])
    round_id = pair.open(
        model=starts, max_clients=2, dim=DIM, method="bucketed", groups=2, membership=membership
    )
    config = kill_at(pair, tmp_path, "upload", server, 0, group=1)
    model = MODEL.copy()

    def never(model: NDArray[np.float32]) -> float:
        raise AssertionError("what was chosen is not chosen again, nor trained")

    with (
        Client(config) as client,
        Client(replace(ClientConfig.load(pair.folder / "client-2.toml"), state_dir="")) as other,
    ):
        assert client.chosen_group(round_id) == 1
        wait = in_background(
            partial(client.fit, model, never, 1, report=lambda text: None, loss=never)
        )
        other.submit(update(2), round_id, group=1)
        one, both = other.results(round_id)
        wait()
        published = other.model(round_id)
    params = RoundParams.from_dict(pair.status(round_id=round_id)["params"])
    updates = np.stack([update(1), update(2)])
    want = plaintext.published(updates, params, published, groups=[1, 1])
    assert np.array_equal(both, want[1]) and not np.array_equal(one, both)
    assert np.array_equal(model, both)
    # once it is over, too
    with Client(config) as later:
        assert np.array_equal(later.result(), both)
        assert np.array_equal(later.result(round_id, group=0), one)
        with pytest.raises(InputError, match="no such group: 2; choose one from 0 to 1"):
            later.result(round_id, group=2)
    # and who has kept nothing is told so
    with (
        Client(replace(config, state_dir="")) as without,
        pytest.raises(InputError, match="does not know which one your upload is for"),
    ):
        without.result(round_id)
