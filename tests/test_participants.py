"""Rounds that are for some clients of a cohort alone, whom the coordinator names."""

import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian import cli
from securemedian.clients.client import Client
from securemedian.coordinator.coordinator import Coordinator
from securemedian.mpc.canonical import flat
from securemedian.mpc.errors import (
    ChannelTimeout,
    ConfigError,
    FrameError,
    NotAllowed,
    UnknownRound,
)
from securemedian.mpc.protocols import wire
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers.config import MAX_CLIENTS
from securemedian.servers.network.control import (
    Close,
    Compute,
    Failed,
    Held,
    Open,
    Opened,
    Ready,
    Uploaded,
    decode,
)
from tests.daemons import Pair
from tests.servers_alone import PARAMS, START, Server, held

ROUND = "1-0000000a"
PAIR = {"clients": 4}


@pytest.fixture
def s0(tmp_path: Path) -> Server:
    return Server(0, tmp_path, min_clients=2)


def names_of(server: Server, keys: list[str]) -> list[str]:
    names = {client.public_key: client.name for client in server.config.clients}
    return [names[key] for key in keys]


def ask(server: Server, participants: Any, **changes: Any) -> wire.Message:
    params = PARAMS.to_dict() | changes
    return server.ask(
        server.coordinator, "open", params=params, range={}, participants=participants
    )


def open_for(s0: Server, keys: list[str], **changes: Any) -> str:
    """Open a round for these clients at S0, with S1's consent, and return its id."""
    ask(s0, names_of(s0, keys[::-1]), **changes)
    asked = s0.sent[-1]
    assert isinstance(asked, Open) and asked.participants == sorted(keys)
    s0.hear(Opened(asked.round, asked.session))
    return asked.round


def asked_of(participants: list[Any]) -> Open:
    params = PARAMS.to_dict()
    return Open(ROUND, 1, params, bytes(16), True, False, START, participants=participants)


@pytest.mark.parametrize("restarted", [False, True])
def test_others_are_refused_and_nobody_waits_for_them(s0: Server, restarted: bool) -> None:
    *two, third = s0.keys
    round_id = open_for(s0, two)
    if restarted:
        s0.upload(two[0], round_id)
        # the floor of today is above the number of participants
        s0.config = replace(s0.config, min_clients=3)
        s0.restart()
        assert s0.latest.server_round.asked.participants == two
        s0.latest.server_round = replace(s0.latest.server_round, adrift=False)
    text = f"round {round_id} is for participants whom its coordinator has named, and you are not"
    for op in ("round", "tell", "upload"):
        if op == "upload":
            refused, code = s0.upload(third, round_id), "not-allowed"
        elif op == "tell":
            metrics = {"loss": 1.0}
            refused, code = s0.ask(third, op, round=round_id, metrics=metrics), "unknown-round"
        else:
            refused, code = s0.ask(third, op), "unknown-round"
        assert refused.fields["code"] == code and refused.fields["message"].startswith(text)
    status = s0.ask(s0.coordinator, "status").fields
    assert sorted(status["clients"]) == sorted(names_of(s0, two)) and status["state"] == "open"
    # a participant's knowledge of a round stays theirs
    assert s0.ask(third, "status").fields["round"] == round_id
    for key in two:
        assert s0.upload(key, round_id).type == "upload"
    s0.hear(*(Uploaded(round_id, key) for key in two))
    # three would fit in
    assert s0.sent[-1] == Close(round_id, held(two)) and s0.state[0] == "closing"
    s0.hear(Held(round_id, held(two)))
    assert s0.ask(s0.coordinator, "status").fields["left_out"] == {}


def test_of_the_participants_one_may_be_missing(s0: Server) -> None:
    s0.config = replace(s0.config, min_clients=2)
    keys = s0.keys
    round_id = open_for(s0, keys)
    for key in keys[:2]:
        s0.upload(key, round_id)
    s0.hear(*(Uploaded(round_id, key) for key in keys[:2]))
    assert s0.state[0] == "open"
    s0.ask(s0.coordinator, "close", round=round_id)
    s0.hear(Held(round_id, held(keys[:2])))
    status = s0.ask(s0.coordinator, "status").fields
    assert list(status["left_out"]) == names_of(s0, keys[2:])


@pytest.mark.parametrize(
    ("participants", "changes", "message"),
    [
        (
            ["zoe", "NAME", "adam"],
            {},
            r"participants: not clients of .* at s0: 'adam', 'zoe'; correct the names$",
        ),
        (["NAME", "NAME"], {}, "fewer participants than the 2 that s0 asks for .*: 1;"),
        (["NAME", "OTHER"], {"min_clients": 3}, "fewer participants than the 3 .*: 2;"),
        (["NAME", 7], {}, "give a list of texts"),
        (["NAME", ["OTHER"]], {}, "give a list of texts"),
        ("NAME", {}, "give a list of texts"),
        (["x" * 40 + str(at) for at in range(MAX_CLIENTS)], {}, r"at s0: 'x.*characters\)"),
    ],
)
def test_wrong_participants_are_refused_before_anything_is_opened(
    s0: Server, participants: Any, changes: dict[str, Any], message: str
) -> None:
    name, other = names_of(s0, s0.keys[:2])
    if isinstance(participants, list):
        participants = [{"NAME": name, "OTHER": other}.get(str(one), one) for one in participants]
    s0.sent.clear()
    refused = ask(s0, participants, **changes).fields
    assert refused["code"] == "bad-config" and re.search(message, refused["message"])
    assert not s0.sent and not s0.rounds.register.entries


def test_a_round_that_needs_more_clients_than_a_server_lists_is_not_opened(
    s0: Server, tmp_path: Path
) -> None:
    names = ", ".join(sorted(client.name for client in s0.config.clients))
    needs = {"max_clients": 10, "min_clients": 5}
    refused = ask(s0, [], **needs).fields
    assert refused["code"] == "bad-config"
    assert not any(isinstance(message, Open) for message in s0.sent)
    assert refused["message"] == (
        f"the round needs 5 clients (min_clients), and s0 lists 3 for it: {names}; list 2 more at "
        "both servers, or lower min_clients"
    )
    # the floor of the server's own file counts, too
    s0.config = replace(s0.config, min_clients=4)
    s0.restart()
    assert "needs 4 clients" in ask(s0, [], max_clients=10).fields["message"]
    s1 = Server(1, tmp_path / "s1", min_clients=2)
    s1.hear(replace(asked_of([]), params=PARAMS.to_dict() | needs))
    said = s1.sent[-1]
    assert isinstance(said, Failed) and said.code == "bad-config"
    assert "and s1 lists 3 for it" in said.reason


def test_clients_without_a_weight_do_not_count_and_are_named(s0: Server) -> None:
    fourth = replace(s0.config.clients[0], name="client-4", public_key="4" * 40)
    s0.config = replace(s0.config, clients=(*s0.config.clients, fourth))
    s0.restart()
    first, second, third, _ = (client.name for client in s0.config.clients)
    weights = dict.fromkeys((first, second, third), 1)
    refused = ask(s0, [], min_clients=4, max_clients=4, weights=weights).fields
    listed = f"lists 3 for it: {first}, {second}, {third}; without a weight: client-4;"
    assert listed in refused["message"]


def test_s1_compares_them_with_its_own_list_and_floor(tmp_path: Path) -> None:
    s1 = Server(1, tmp_path, min_clients=2)
    *two, third = s1.keys
    for participants, code, text in (
        (
            [*two, "~" * 40],
            "clients-differ",
            "participants that s1 does not have in cohort default",
        ),
        ([third], "bad-config", "the 2 that s1 asks for"),
    ):
        s1.hear(asked_of(participants))
        refused = s1.sent[-1]
        assert isinstance(refused, Failed) and refused.code == code and text in refused.reason
    for malformed in (two[::-1], [two[0], two[0]]):
        with pytest.raises(ConfigError, match="`participants`"):
            asked_of(malformed)
    fields = flat(asked_of(two)) | {"participants": [7, 8]}
    with pytest.raises(FrameError, match="give a list of texts"):
        decode(wire.pack("open", fields))
    s1.hear(asked_of(two))
    assert s1.sent[-1] == Opened(ROUND, bytes(16), runs=s1.config.max_attempts)
    assert s1.upload(third, ROUND).fields["code"] == "not-allowed"
    for key in two:
        s1.upload(key, ROUND)
    s1.hear(Close(ROUND, held(two)))
    # S0 has others than those that it has named to S1
    leader = replace(s1.latest.server_round, asked=asked_of(s1.keys))
    s1.hear(Compute(ROUND, leader.digest, 1, bytes(16), False))
    assert s1.sent[-1].code == "parameters-differ"


def test_they_must_have_the_clients_that_an_earlier_attempt_binds(s0: Server) -> None:
    *two, third = s0.keys
    round_id = open_for(s0, two)
    for key in two:
        s0.upload(key, round_id)
    s0.hear(*(Uploaded(round_id, key) for key in two))
    s0.hear(Held(round_id, held(two)), Ready(round_id, 1))
    assert s0.state[0] == "running"
    s0.fail()
    refused = ask(s0, names_of(s0, [two[0], third])).fields
    assert refused["code"] == "clients-differ"
    assert "the participants are others: an earlier attempt" in refused["message"]
    for name in names_of(s0, two):
        assert name in refused["message"]
    open_for(s0, s0.keys)


# With real servers


@pytest.mark.slow
def test_real_servers_compute_for_the_participants_alone(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params = RoundParams.from_dict({"method": "radix", "dim": 3, "max_clients": 4})
    updates = {name: np.full(3, at, np.float32) for at, name in enumerate(pair.names)}
    first, second = pair.names[:3], pair.names[1:]
    with ExitStack() as stack:
        coordinator = stack.enter_context(
            Coordinator.from_config(pair.folder / "coordinator.toml", report=print)
        )
        clients = {
            name: stack.enter_context(Client.from_config(pair.folder / f"{name}.toml"))
            for name in pair.names
        }
        with pytest.raises(ConfigError, match="at s0: 'mallory', 'trudy'"):
            coordinator.open_round(params, participants=["client-1", "trudy", "mallory"])
        with pytest.raises(ConfigError, match="nobody may take part"):
            coordinator.open_round(params, participants=[])
        round_id = coordinator.open_round(params, participants=first)
        with pytest.raises(ChannelTimeout, match="no new round was opened for this client"):
            clients["client-4"].wait_for_round(0.5)
        with pytest.raises(UnknownRound, match="you are not among them"):
            clients["client-4"].submit(updates["client-4"], round_id)
        with pytest.raises(NotAllowed, match="you are not among them"):
            outsider = pair.caller("client-4", "s1")
            share = {"share": np.zeros(16, np.uint8)}
            outsider.ask("upload", share, round=round_id, params=params.digest, form="seed")
        for name in first:
            clients[name].submit(updates[name], round_id)
        # the median of 0, 1 and 2, long before the deadline
        assert coordinator.result(round_id).tolist() == [1, 1, 1]
        status = coordinator.status(round_id)
        assert sorted(status.included) == first == sorted(status.clients)
        receipt = coordinator.receipt(round_id)
        assert receipt.record.participants == receipt.record.included
        # the one that has waited takes part in the next one, of others, from the command line
        config = str(pair.folder / "coordinator.toml")
        command = ["round", "open", config, "radix", "--dim", "3", "--max-clients", "4"]
        capsys.readouterr()
        assert cli.main([*command, "--participants", ",".join(second)]) == 0
        said = capsys.readouterr()
        assert "the result of at most 3 clients" in said.err
        for name in second:
            assert clients[name].wait_for_round(30).round_id == said.out.strip()
            clients[name].submit(updates[name])
        assert clients["client-4"].result().tolist() == [2, 2, 2]
        # and the first one can still ask for the result of its own
        assert clients["client-1"].result().tolist() == [1, 1, 1]
    receipt_file = tmp_path / "receipt.json"
    receipt_file.write_text(receipt.to_json())
    keys = [str(pair.folder / f"{server}.toml") for server in ("s0", "s1")]
    assert cli.main(["receipt", "show", str(receipt_file), "--keys", *keys]) == 0
    assert "participants  3, whom the coordinator has named" in capsys.readouterr().out
