"""Test clients.policy: a client takes part in no round that its own file forbids.

It refuses before anything is trained or shared, and both servers are told.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.clients.policy import ClientPolicy
from securemedian.common.policy import Policy
from securemedian.common.status import RoundStatus
from securemedian.mpc.canonical import build
from securemedian.mpc.errors import (
    ChannelTimeout,
    ConfigError,
    PolicyRefused,
    RoundClosed,
)
from securemedian.mpc.rounds.params import RoundParams
from securemedian.operating import keygen
from securemedian.plugins import rounds as plugin
from tests.daemons import WAIT_S, Pair

WHY = "its own policy refuses the round"
MODEL = np.zeros(40, np.float32)
RADIX: dict[str, Any] = {"method": "radix", "dim": MODEL.size, "max_clients": 3}
BUCKETED: dict[str, Any] = RADIX | {"method": "bucketed"}
# each line of a client's [policy], a round that it refuses, and what the refusal says
LINES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "methods": (
        {"methods": ["bucketed"]},
        RADIX,
        r"client-1 refuses method radix: its \[policy\] allows only bucketed",
    ),
    "allowed": (
        {"allowed": {"midpoint": [False]}},
        RADIX | {"midpoint": True},
        r"midpoint True: its \[policy\] allows only False",
    ),
    "at_most": (
        {"at_most": {"results": 1}},
        RADIX | {"ranks": [1, 2]},
        r"results 2: its \[policy\] allows at most 1",
    ),
    "min_clients": (
        {"at_least": {"min_clients": 3}},
        RADIX,
        r"min_clients 2: its \[policy\] asks for at least 3",
    ),
    "check_bits": (
        {"at_least": {"check_bits": 60}},
        BUCKETED,
        r"check_bits 40: its \[policy\] asks for at least 60",
    ),
    "no risk": (
        {},
        BUCKETED | {"uploads": "unverified"},
        r"Its client.toml allows it by uploads = \[.*\] in \[policy.allowed\]",
    ),
    "with_clients": (
        {"with_clients": ["client-2", "client-9"]},
        RADIX,
        r"a round without client-9: its \[policy\] names them in with_clients",
    ),
    "without_clients": (
        {"without_clients": ["client-3", "client-9"]},
        RADIX,
        r"a round with client-3: its \[policy\] names them in without_clients",
    ),
    "security": (
        {"security": "bounded"},
        BUCKETED,
        r"a round without security = \"bounded\" at (both|s0 and s1): its \[policy\] has that line",
    ),
}


def policy(**table: Any) -> ClientPolicy:
    """Return the policy of a table, as the loader makes it."""
    return build(ClientPolicy, table, "[policy]")


def told(*clients: list[str]) -> list[RoundStatus]:
    """Return what servers say of a round in which these may take part."""
    return [RoundStatus(clients=dict.fromkeys(names, "none")) for names in clients]


@pytest.mark.parametrize("name", LINES)
def test_each_line_refuses_by_name_and_nothing_else(name: str) -> None:
    table, given, said = LINES[name]
    listed = told(["client-1", "client-2", "client-3"]) * 2
    params = RoundParams.from_dict(given)
    with pytest.raises(PolicyRefused, match=said):
        policy(**table).check_round(params, 0, "client-1", listed)
    ClientPolicy.unlimited().check_round(params, 10**6, "client-1", listed)


def test_both_servers_must_list_who_must_take_part_and_neither_who_must_not() -> None:
    params, both = RoundParams.from_dict(RADIX), told(["a", "b"], ["a", "c"])
    policy(with_clients=["a"], without_clients=["d"]).check_round(params, 0, "x", both)
    for listed in (both, both[::-1]):
        with pytest.raises(PolicyRefused, match="a round without b"):
            policy(with_clients=["a", "b"]).check_round(params, 0, "x", listed)
        with pytest.raises(PolicyRefused, match="a round with b"):
            policy(without_clients=["b"]).check_round(params, 0, "x", listed)


def test_a_client_refuses_another_weight_than_it_states() -> None:
    weighted = RADIX | {"weights": {"a": 3, "b": 2, "c": 2, "d": 2}}
    params, bold = RoundParams.from_dict(weighted | {"max_clients": 4}), ClientPolicy.unlimited()
    bold.check_round(params, 0, "x", weight=3, key="a")
    for weight, key, said in (
        (0, "a", r"the weight 3 in a round: its client\.toml states none \(weight = N\)"),
        (2, "a", r"the weight 3 in a round: its client\.toml states weight = 2"),
        (3, "z", r"the weight 0 in a round: its client\.toml states weight = 3"),
    ):
        with pytest.raises(PolicyRefused, match=said):
            bold.check_round(params, 0, "x", weight=weight, key=key)
    # in other rounds it says nothing
    bold.check_round(RoundParams.from_dict(RADIX), 0, "x", weight=3, key="a")
    with pytest.raises(PolicyRefused, match="refuses weights 4: its .*at most 0, because"):
        ClientPolicy().check_round(params, 0, "x", weight=3, key="a")


def test_without_a_policy_a_client_refuses_what_a_server_refuses() -> None:
    assert ClientConfig.__dataclass_fields__["policy"].default_factory is ClientPolicy
    for name, value in Policy().to_dict().items():
        assert getattr(ClientPolicy(), name) == value


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('methods = ["median"]', r"\[policy\]: invalid method: .*; take one of"),
        ("at_most = { rounds_per_hour = 3 }", "invalid name in `at_most`: .*; take one of"),
        ("at_least = { check_bits = -1 }", "check_bits = -1; give a number of 0 or more"),
        ('with_clients = "a"', "invalid with_clients: .*; give a list of texts"),
        ("without_clients = [3]", "invalid without_clients: .*; give a list of texts"),
        ('with_clients = ["a"]\nwithout_clients = ["a"]', "no round fits"),
        ("min_clients = 3", "unknown min_clients"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, lines: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ClientConfig.load(_with_policy(tmp_path, lines))


def test_rounds_per_day_need_a_place_to_be_remembered(tmp_path: Path) -> None:
    path = _with_policy(tmp_path, "at_most = { rounds_per_day = 3 }")
    assert ClientConfig.load(path).policy.at_most["rounds_per_day"] == 3
    path.write_text(path.read_text().replace("state_dir", "# state_dir"))
    with pytest.raises(ConfigError, match="rounds_per_day.*set state_dir"):
        ClientConfig.load(path)


def _with_policy(folder: Path, lines: str) -> Path:
    """Write a client's file with these lines in its [policy], and return its path."""
    net = keygen.network(keygen.LOOPBACK, keygen.LOOPBACK, 7000)
    keygen.make(folder, ["client-1", "client-2"], net)
    path = folder / "client-1.toml"
    path.write_text(f"{path.read_text().partition('[policy]')[0]}[policy]\n{lines}\n")
    return path


def config(pair: Pair, **table: Any) -> ClientConfig:
    """Return the configuration of client-1 with a policy."""
    loaded = ClientConfig.load(pair.folder / "client-1.toml")
    own = policy(**table)
    return replace(loaded, poll_interval_s=0.02, wait_timeout_s=WAIT_S, policy=own)


def refusals(pair: Pair) -> list[Any]:
    """Return why client-1 is left out of the latest round, as each server says."""
    return [pair.status(server)["left_out"].get("client-1") for server in ("s0", "s1")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["with_clients", "security"])
def test_a_client_refuses_before_it_trains_and_both_servers_are_told(pair: Pair, name: str) -> None:
    table, given, said = LINES[name]
    round_id = pair.open(model=MODEL, **given)
    trained: list[Any] = []
    told: list[str] = []
    with Client(config(pair, **table)) as client:
        # as a daemon that goes on with the next round
        with pytest.raises(ChannelTimeout):
            client.fit(MODEL.copy(), trained.append, 1, 1.0, told.append)
        assert not trained
        # whatever it asks for
        for ask in (client.check_round, lambda: client.submit(MODEL, round_id)):
            with pytest.raises(PolicyRefused, match=said):
                ask()
    assert any(line.startswith("going on to the next round: client-1 refuses") for line in told)
    for server in ("s0", "s1"):
        status = pair.status(server)
        assert (status["state"], status["left_out"]) == ("open", {"client-1": WHY})
        assert {status["clients"]["client-1"], *status["dealt"].values()} == {"none"}
        assert [one["client"] for one in pair.events(server) if one["event"] == "client-declined"]
    # nobody waits for it
    for number, client_name in enumerate(("client-2", "client-3")):
        pair.submit(client_name, MODEL + np.float32(number))
    assert pair.wait("published")["left_out"] == {"client-1": WHY}


@pytest.mark.slow
def test_both_servers_know_why_also_where_the_refusal_ends_the_round(pair: Pair) -> None:
    round_id = pair.open(model=MODEL, **RADIX)
    for name in ("client-2", "client-3"):
        pair.submit(name, MODEL)
    with (
        Client(config(pair, methods=["bucketed"])) as client,
        pytest.raises(PolicyRefused, match="client-1 refuses method radix"),
    ):
        client.submit(MODEL, round_id)
    assert pair.wait("published")["left_out"] == {"client-1": WHY}
    assert refusals(pair) == [WHY, WHY]


@pytest.mark.slow
def test_a_plugin_refuses_before_it_trains(pair: Pair) -> None:
    round_id = pair.open(model=MODEL, **RADIX)
    plugin.check(config(pair, methods=["radix"]), round_id)
    assert refusals(pair) == [None, None]
    with pytest.raises(PolicyRefused, match="client-1 refuses method radix"):
        plugin.check(config(pair, methods=["bucketed"]), round_id)
    assert refusals(pair) == [WHY, WHY]
    pair.caller("coordinator", "s0").ask("abort", round=round_id, reason="done")
    with pytest.raises(RoundClosed):
        plugin.check(config(pair), round_id)
    # no round could be opened
    plugin.check(config(pair), "")
