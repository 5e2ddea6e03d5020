"""Audited rounds through two real servers: clients answer once more, and what deviates is found."""

import signal
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian.clients.client import Client
from securemedian.common.deviations import Deviation
from securemedian.coordinator.coordinator import Coordinator
from securemedian.mpc.errors import ReceiptInvalid, RoundFailed
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.uniform import ConstantRange
from securemedian.servers.machine.members import MISFOLDED, SILENT
from tests.daemons import Pair, client_of, in_background, results_of, wait_until
from tests.rogue.serve import serving

pytestmark = pytest.mark.slow

DIM = 200
PAIR = {"clients": 4}
SERVERS = ("s0", "s1")
MODEL = np.zeros(DIM, np.float32)


def open_round(pair: Pair, audit: bool = True, **params: Any) -> str:
    given: dict[str, Any] = {
        "method": "bucketed",
        "dim": DIM,
        "max_clients": 3,
        "min_clients": 2,
    } | params
    return str(pair.open(model=MODEL, audit=audit, **given))


def update(number: int) -> NDArray[np.float32]:
    return (MODEL + np.linspace(-1, 1, DIM) * number / 10).astype(np.float32)


def test_an_audited_round_publishes_the_same(pair: Pair, opened: ExitStack) -> None:
    """Its material is made while clients train, and its cost counts that."""
    clients = [opened.enter_context(client_of(pair, number)) for number in (1, 2, 3)]
    found = []
    for audit in (False, True):
        round_id, before = open_round(pair, audit), [len(made(pair, one)) for one in SERVERS]
        if audit:
            wait_until(lambda: [len(made(pair, one)) - 1 for one in SERVERS] == before)  # noqa: B023
        for number, client in enumerate(clients):
            client.submit(update(number), round_id)
        found.append(results_of(clients, round_id))
        record = clients[0].receipt(round_id).record
        assert ("security" in record.params) is audit and len(record.included) == 3
        assert not clients[0]._journal.upheld
    assert all(np.array_equal(found[0][0], one) for one in found[0] + found[1])
    cost = pair.status()["cost"]
    assert cost["ots"] == made(pair, "s0")[-1]["ots"] > 0
    assert cost["preprocessing_bytes_sent"] > 0.8 * cost["bytes_sent"]
    assert cost["ahead_seconds"] > 0


def made(pair: Pair, server: str) -> list[dict[str, Any]]:
    return [event for event in pair.events(server) if event["event"] == "pool-filled"]


def await_folds(pair: Pair) -> None:
    """Wait until both servers ask for folds."""
    callers = [pair.caller("coordinator", server) for server in SERVERS]
    wait_until(
        lambda: {one.ask("status").fields["phase"] for one in callers} == {"waiting for folds"}
    )


def test_a_client_that_dies_before_it_answers_comes_back(pair: Pair, opened: ExitStack) -> None:
    clients = [opened.enter_context(client_of(pair, number)) for number in (1, 2)]
    round_id = open_round(pair)
    with client_of(pair, 3) as before:
        for number, client in enumerate([*clients, before]):
            client.submit(update(number), round_id)
    join = in_background(lambda: results_of(clients, round_id))
    await_folds(pair)
    with client_of(pair, 3) as then:
        assert list(then._journal.upheld) == [round_id]
        then.attend(round_id, 60)
        join()
        assert len(then.receipt(round_id).record.included) == 3
    with client_of(pair, 3) as later:
        assert not later._journal.upheld


def test_who_answers_never_or_wrongly_is_left_out(pair: Pair, opened: ExitStack) -> None:
    clients = [opened.enter_context(client_of(pair, number)) for number in (1, 2, 3, 4)]
    # submitted in time on a busy machine, too
    round_id = open_round(pair, max_clients=4, deadline_s=15)
    for number, client in enumerate(clients):
        client.submit(update(number), round_id)
    liar = clients[1]._journal
    (upheld,) = liar.upheld.values()
    liar._rounds[round_id].upheld = replace(upheld, rotations=upheld.rotations ^ np.uint64(1))
    one, _, other = results_of(clients[:3], round_id)
    assert np.array_equal(one, other)
    assert len(clients[0].receipt(round_id).record.included) == 2
    assert clients[0].left_out(round_id) == {"client-2": MISFOLDED, "client-4": SILENT}


@pytest.mark.parametrize("server", ["s0", "s1"])
def test_a_server_that_is_killed_once_it_is_bound_costs_nothing(
    pair: Pair, opened: ExitStack, server: str
) -> None:
    clients = [opened.enter_context(client_of(pair, number)) for number in (1, 2, 3)]
    round_id = open_round(pair)
    for number, client in enumerate(clients):
        client.submit(update(number), round_id)
    join = in_background(lambda: results_of(clients[:2], round_id))
    await_folds(pair)
    # these have answered what the server forgets
    wait_until(lambda: all(one._journal._rounds[round_id].coins for one in clients[:2]))
    pair.stop(server, signal.SIGKILL)
    pair.start(server)
    pair.link()
    clients[2].result(round_id, 60)
    join()
    assert len(clients[2].receipt(round_id).record.included) == 3


@pytest.mark.parametrize("how", ["rank", "malicious-no-bits"])
def test_a_server_that_deviates_is_found(tmp_path: Path, opened: ExitStack, how: str) -> None:
    """It asks for another rank, or its material is wrong."""
    rogue = opened.enter_context(serving(Pair(tmp_path / "keys", 4), "s1", how))
    coordinator = opened.enter_context(Coordinator.from_config(rogue.toml("coordinator")))
    method = Bucketed(security="malicious")
    round_id = coordinator.open_round(
        RoundParams(method, dim=DIM, max_clients=4), MODEL, ConstantRange(1.0)
    )
    clients = [opened.enter_context(Client.from_config(rogue.toml(name))) for name in rogue.names]
    early = how == "malicious-no-bits"
    if early:
        # nobody has sent anything
        wait_until(lambda: coordinator.status(round_id).state == "failed")
    for number, client in enumerate([] if early else clients):
        client.submit(update(number), round_id)
    # each says so of the other, and S0 what it has found itself
    with pytest.raises(RoundFailed, match="the peer deviated: s0 has signed that s1"):
        results_of(clients, round_id)
    status = coordinator.status(round_id)
    assert status.opened == ("nothing" if early else "maybe")
    said = Deviation.check(status.deviation, coordinator.config.s0.signing_key)
    assert (said.server, said.round) == ("s0", round_id)
    assert said.params == RoundParams.from_dict(status.params).digest.hex()
    with pytest.raises(ReceiptInvalid, match="not signed"):
        Deviation.check(status.deviation, coordinator.config.s1.signing_key)
