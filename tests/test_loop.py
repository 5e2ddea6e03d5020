"""The daemon's loop: clients that ask a lot keep no message of the other server waiting."""

from collections import deque
from typing import Any, cast

import pytest
import zmq

from securemedian.servers import daemon
from securemedian.servers.daemon import MOST_REQUESTS, Daemon
from securemedian.servers.network.control import Hello
from securemedian.servers.network.peer import Change, PeerWatch

# how long a request takes, s
COST_S = 0.005


class Fake:
    """An object with these attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Loop:
    """A daemon's loop with sockets that are lists, and a clock that requests move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, messages: int, requests: int) -> None:
        self.now, self.cost_s = 0.0, COST_S
        self.messages, self.requests = deque(range(messages)), deque(range(requests))
        # the names taken, in order
        self.taken: list[str] = []
        monkeypatch.setattr(daemon.time, "monotonic", lambda: self.now)
        self.control = Fake(recv_multipart=self._message)
        self.clients = Fake(socket=object(), recv=self._request)
        self.daemon = Daemon.__new__(Daemon)
        vars(self.daemon).update(
            _control=self.control,
            _clients=self.clients,
            _requests=Fake(request=self._take, tick=lambda: None),
            _rounds=Fake(
                control=lambda parts: self.taken.append("message"),
                flush=lambda: self.taken.append("flush"),
                engine_ended=lambda: None,
                tick=lambda: None,
            ),
            _engines=Fake(check=lambda: None),
            _reload_asked=False,
            _monitor=None,
            _wake_out=0,
        )

    def turn(self) -> None:
        ready = {self.control: 1, self.clients.socket: 1}
        self.daemon._turn(cast(Any, Fake(poll=lambda limit: ready)))

    def _message(self, flags: int = 0) -> int:
        if not self.messages:
            raise zmq.Again
        return self.messages.popleft()

    def _request(self) -> tuple[int] | None:
        return (self.requests.popleft(),) if self.requests else None

    def _take(self, number: int) -> None:
        self.taken.append("request")
        self.now += self.cost_s


def test_all_messages_of_the_peer_come_before_few_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch, messages=40, requests=200)
    loop.turn()
    assert loop.taken[:40] == ["message"] * 40
    requests = loop.taken.count("request")
    assert requests and requests * COST_S <= daemon.REQUESTS_S + 2 * COST_S
    assert loop.taken[40:] == ["request"] * requests + ["flush"]
    # those that cost nothing are taken together, up to as many as one write to the disk is worth
    loop.cost_s = 0.0
    loop.taken.clear()
    loop.turn()
    assert loop.taken == ["request"] * MOST_REQUESTS + ["flush"]


def test_any_message_that_is_taken_is_a_sign_of_life() -> None:
    watch = PeerWatch("s1", {}, 300.0, 10.0)
    watch.begin(0.0)
    hello = Hello("a", "b", 0, [], {})
    assert watch.hello(hello, 0.0, "b") is Change.LINKED
    for number in range(5):
        assert watch.received(number, 8.0 * (number + 1))
        assert watch.tick(8.0 * (number + 1) + 9) is None
    # one after a gap is not taken, and tells nothing
    assert not watch.received(7, 48.0)
    assert watch.tick(51.0) is Change.LOST
