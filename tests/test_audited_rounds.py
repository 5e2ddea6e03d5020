"""Audited rounds through two real servers: clients answer once more, and what deviates is found."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.servers.machine.selection import MISFOLDED, SILENT
from tests.daemons import Pair, in_background, running, wait_until

pytestmark = pytest.mark.slow

DIM = 200
MODEL = np.zeros(DIM, np.float32)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running(Pair(tmp_path_factory.mktemp("pair"), clients=3)) as made:
        yield made


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def open_round(pair: Pair, audit: bool = True, **params: Any) -> str:
    given = {"method": "bucketed", "dim": DIM, "max_clients": 3, "min_clients": 2} | params
    return str(pair.open(model=MODEL, audit=audit, **given))


def client_of(pair: Pair, opened: ExitStack, number: int) -> Client:
    config = ClientConfig.load(pair.folder / f"client-{number}.toml")
    return opened.enter_context(Client(replace(config, poll_interval_s=0.02)))


def update(number: int) -> NDArray[np.float32]:
    return (MODEL + np.linspace(-1, 1, DIM) * number / 10).astype(np.float32)


def results(clients: list[Client], round_id: str) -> list[NDArray[np.float32]]:
    """Return what all clients get, which wait for it at the same time."""
    got: list[Any] = [None] * len(clients)

    def wait(place: int) -> None:
        got[place] = clients[place].result(round_id, timeout_s=60)

    for join in [in_background(partial(wait, place)) for place in range(len(clients))]:
        join()
    return got


def test_an_audited_round_publishes_the_same(pair: Pair, opened: ExitStack) -> None:
    clients = [client_of(pair, opened, number) for number in (1, 2, 3)]
    found = []
    for audit in (False, True):
        round_id = open_round(pair, audit)
        for number, client in enumerate(clients):
            client.submit(update(number), round_id)
        found.append(results(clients, round_id))
        record = clients[0].receipt(round_id).record
        assert record.params["audit"] is audit and len(record.included) == 3
        assert not clients[0]._journal.upheld
    assert all(np.array_equal(found[0][0], one) for one in found[0] + found[1])
