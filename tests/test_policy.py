"""Test servers.policy: either server refuses by name, at `open`, what it takes no part in."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.common.cohorts import DEFAULT_COHORT
from securemedian.mpc.canonical import build
from securemedian.mpc.errors import ConfigError, PolicyRefused
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers.config import CohortTable
from securemedian.servers.network.control import Failed, Open, Opened
from securemedian.servers.policy import Policy
from securemedian.servers.rounds.register import HOUR_S
from tests.daemons import Pair, running, wait_until
from tests.servers_alone import PARAMS, Server

ROUND: dict[str, Any] = {"dim": 1000, "max_clients": 10}
PREDICTIONS: dict[str, Any] = {"exchange": "predictions", "public_set": "ab" * 32, "classes": 10}


def policy(**table: Any) -> Policy:
    """Return the policy of a table, as the loader makes it."""
    return build(Policy, table, "[policy]")


@pytest.mark.parametrize("method", METHODS)
def test_without_a_policy_there_is_no_limit(method: str) -> None:
    Policy().check(RoundParams.from_dict({"method": method, **ROUND}), 10**6, "s0")


@pytest.mark.parametrize(
    ("table", "fits", "refused", "said"),
    [
        (
            {"methods": ["radix", "pairwise"]},
            {"method": "pairwise"},
            {"method": "bucketed"},
            "s1 refuses method bucketed: its [policy] allows only radix and pairwise",
        ),
        (
            {"allowed": {"selection": ["oblivious"]}},
            {"method": "pairwise"},
            {"method": "pairwise", "selection": "opened"},
            "s1 refuses selection opened: its [policy] allows only oblivious",
        ),
        (
            {"allowed": {"result_to": ["clients"]}},
            {"method": "pairwise", "result_to": "clients"},
            {"method": "pairwise"},
            "s1 refuses result_to servers: its [policy] allows only clients",
        ),
        (
            {"allowed": {"midpoint": [False]}},
            {"method": "radix"},
            {"method": "radix", "midpoint": True},
            "s1 refuses midpoint True: its [policy] allows only False",
        ),
        (
            {"at_most": {"ranks": 1}},
            {"method": "radix", "ranks": [3]},
            {"method": "radix", "ranks": [3, 4]},
            "s1 refuses ranks 2: its [policy] allows at most 1",
        ),
        (
            {"at_most": {"quantiles": 2}},
            {"method": "radix", "quantiles": [0.25, 0.5]},
            {"method": "radix", "quantiles": [0.25, 0.5, 0.75]},
            "refuses quantiles 3: its [policy] allows at most 2",
        ),
        (
            {"at_most": {"results": 1}},
            {"method": "radix", "ranks": [3]},
            {"method": "radix", "midpoint": True},
            "refuses results 2: its [policy] allows at most 1",
        ),
        (
            {"at_most": {"results": 3}},
            {"method": "radix", "ranks": [1, 2], "quantiles": [0.5]},
            {"method": "radix", "ranks": [1, 2], "quantiles": [0.5, 0.75]},
            "refuses results 4: its [policy] allows at most 3",
        ),
        (
            {"at_least": {"max_clients": 10}},
            {"method": "radix"},
            {"method": "radix", "max_clients": 9},
            "s1 refuses max_clients 9: its [policy] asks for at least 10",
        ),
        (
            {"at_most": {"weight_cap": 0.4}},
            {"method": "bucketed"},
            {"method": "bucketed", "weight_cap": 1.0},
            "refuses weight_cap 1.0: its [policy] allows at most 0.4",
        ),
        (
            {"at_most": {"weights": 0}},
            {"method": "bucketed"},
            {"method": "bucketed", "weights": {"a": 1, "b": 1, "c": 1}},
            "refuses weights 3: its [policy] allows at most 0",
        ),
        (
            {"at_most": {"dim": 1000}},
            {"method": "mean"},
            {"method": "mean", "dim": 1001},
            "refuses dim 1001: its [policy] allows at most 1000",
        ),
        (
            {"at_most": {"buckets": 16}},
            {"method": "bucketed", "buckets": 16},
            {"method": "bucketed", "buckets": 17},
            "refuses buckets 17: its [policy] allows at most 16",
        ),
        (
            {"allowed": {"uploads": ["dealt"]}},
            {"method": "bucketed", "uploads": "dealt"},
            {"method": "bucketed", "uploads": "unverified"},
            "refuses uploads unverified: its [policy] allows only dealt",
        ),
        (
            {"allowed": {"exchange": ["parameters"]}},
            {"method": "bucketed"},
            {"method": "bucketed"} | PREDICTIONS,
            "s1 refuses exchange predictions: its [policy] allows only parameters",
        ),
        (
            {"allowed": {"exchange": ["predictions"]}},
            {"method": "bucketed"} | PREDICTIONS,
            {"method": "bucketed"},
            "refuses exchange parameters: its [policy] allows only predictions",
        ),
        (
            {"at_most": {"classes": 10}},
            {"method": "bucketed"} | PREDICTIONS,
            {"method": "bucketed"} | PREDICTIONS | {"classes": 20},
            "refuses classes 20: its [policy] allows at most 10",
        ),
        (
            {"at_most": {"groups": 2}},
            {"method": "bucketed", "groups": 2},
            {"method": "bucketed", "groups": 3},
            "refuses groups 3: its [policy] allows at most 2",
        ),
        (
            {"allowed": {"membership": ["hidden"]}},
            {"method": "bucketed", "groups": 2},
            {"method": "bucketed", "groups": 2, "membership": "visible"},
            "refuses membership visible: its [policy] allows only hidden",
        ),
        (
            {"at_most": {"clusters": 2}},
            {"method": "reclustered", "clusters": 2},
            {"method": "reclustered", "clusters": 3},
            "refuses clusters 3: its [policy] allows at most 2",
        ),
        (
            {"at_most": {"reclusterings": 2}},
            {"method": "zeno", "reclusterings": 2},
            {"method": "zeno", "reclusterings": 3},
            "refuses reclusterings 3: its [policy] allows at most 2",
        ),
        (
            {"allowed": {"clustering": ["hidden"]}},
            {"method": "reclustered"},
            {"method": "reclustered", "clustering": "opened", "reclusterings": 1},
            "refuses clustering opened: its [policy] allows only hidden",
        ),
    ],
)
def test_each_limit_holds_and_is_named(
    table: dict[str, Any], fits: dict[str, Any], refused: dict[str, Any], said: str
) -> None:
    made = policy(**table)
    made.check(RoundParams.from_dict(ROUND | fits), 0, "s1")
    with pytest.raises(PolicyRefused) as caught:
        made.check(RoundParams.from_dict(ROUND | refused), 0, "s1")
    assert said in str(caught.value)


def test_a_limit_on_an_option_leaves_methods_without_it_alone() -> None:
    made = policy(allowed={"selection": ["oblivious"]}, at_most={"ranks": 0, "buckets": 3})
    made.check(RoundParams.from_dict({"method": "mean", **ROUND}), 0, "s0")


def test_all_reasons_are_told_at_once() -> None:
    made = policy(methods=["radix"], at_most={"dim": 10}, at_least={"max_clients": 11})
    with pytest.raises(PolicyRefused) as caught:
        made.check(RoundParams.from_dict({"method": "mean", **ROUND}), 0, "s0")
    for place in ("refuses method mean", "refuses dim 1000", "refuses max_clients 10"):
        assert place in str(caught.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"method": ["radix"]}, "unknown method; known are"),
        ({"methods": "radix"}, "methods must be list"),
        ({"methods": []}, "methods is empty"),
        ({"methods": ["mode"]}, "must be one of bucketed,"),
        ({"allowed": {"ranks": [1]}}, "a name in `allowed` must be one of"),
        ({"allowed": {"selection": "oblivious"}}, "must be a list"),
        ({"allowed": {"selection": []}}, "must be a list of one or more"),
        ({"allowed": {"selection": ["hidden"]}}, "oblivious, opened, not 'hidden'"),
        ({"allowed": {"midpoint": [0]}}, "False, True, not 0"),
        ({"allowed": {"exchange": ["updates"]}}, "parameters, predictions, not 'updates'"),
        ({"allowed": {"public_set": [True]}}, "a name in `allowed` must be one of"),
        ({"at_most": {"bucket": 3}}, "a name in `at_most` must be one of dim,"),
        ({"at_most": {"selection": 3}}, "a name in `at_most` must be one of"),
        ({"at_most": {"method": 3}}, "a name in `at_most` must be one of"),
        ({"at_least": {"dims": 3}}, "a name in `at_least` must be one of"),
        ({"at_most": {"dim": "9"}}, "at_most: dim must be a number"),
        ({"at_most": {"dim": True}}, "at_most: dim must be a number"),
        ({"at_most": {"dim": -1}}, "at_most: dim must be a number"),
        ({"at_most": {"dim": 1 << 63}}, "at_most: dim must be a number"),
        ({"at_most": {"dim": float("nan")}}, "at_most: dim must be a number"),
        ({"at_most": {"dim": 3}, "at_least": {"dim": 4}}, "dim: at_least is more than at_most"),
    ],
)
def test_mistakes_are_named(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(**table)
    assert said in str(caught.value)


def asked(number: int, cohort: str = DEFAULT_COHORT) -> Open:
    """Return S0's message about a round of `PARAMS`."""
    name = f"{number}-00000000"
    return Open(name, number, PARAMS.to_dict(), bytes(16), True, False, "0" * 64, cohort=cohort)


def test_rounds_per_hour_count_what_both_took_part_in(tmp_path: Path) -> None:
    s1 = Server(1, tmp_path, policy=policy(at_most={"rounds_per_hour": 2}))
    for number in (1, 2):
        s1.hear(asked(number))
        assert isinstance(s1.sent[-1], Opened)
        s1.now = 60.0
        s1.hear(Failed(f"{number}-00000000", "round-failed", "the test goes on"))
    s1.hear(asked(3))
    assert s1.sent[-1] == Failed(
        "3-00000000",
        "policy-refused",
        "s1: s1 refuses rounds_per_hour 3: its [policy] allows at most 2",
    )
    # the first round began an hour ago, the second one did not
    s1.now = HOUR_S
    s1.hear(asked(4))
    assert isinstance(s1.sent[-1], Opened)
    s1.hear(Failed("4-00000000", "round-failed", "the test goes on"), asked(5))
    assert isinstance(s1.sent[-1], Failed)


def test_a_cohort_does_not_use_up_the_rounds_of_another(tmp_path: Path) -> None:
    names = [client.name for client in Server(1, tmp_path / "any").config.clients]
    s1 = Server(
        1,
        tmp_path / "s1",
        policy=policy(at_most={"rounds_per_hour": 1}),
        cohorts=(CohortTable("stroke", names), CohortTable("hiv", names)),
    )
    s1.hear(asked(1, "stroke"), Failed("1-00000000", "round-failed", "the test goes on"))
    s1.hear(asked(2, "stroke"))
    assert isinstance(s1.sent[-1], Failed)
    s1.hear(asked(3, "hiv"))
    assert isinstance(s1.sent[-1], Opened)


def test_a_round_that_s1_refuses_does_not_count_at_s0(tmp_path: Path) -> None:
    s0 = Server(0, tmp_path, policy=policy(at_most={"rounds_per_hour": 1}))
    for _ in range(3):
        s0.ask_to_open()
        s0.hear(Failed(s0.sent[-1].round, "policy-refused", "s1: no"))
        assert s0.replies[-1].fields["message"] == "s1: no"
    s0.open()
    s0.hear(Failed(s0.sent[-1].round, "round-failed", "the test goes on"))
    s0.ask_to_open()
    assert (
        "refuses rounds_per_hour 2: its [policy] allows at most 1"
        in s0.replies[-1].fields["message"]
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two servers with policies of their own."""
    made = Pair(tmp_path_factory.mktemp("pair") / "keys")
    made.configure("s0", '\n[policy]\nallowed = { selection = ["oblivious"] }\n')
    made.configure("s1", "\n[policy]\nat_most = { results = 1, rounds_per_hour = 2 }\n")
    with running(made):
        yield made


@pytest.mark.slow
def test_either_server_refuses_by_name_and_info_tells_both_policies(pair: Pair) -> None:
    radix: dict[str, Any] = {"method": "radix", "dim": 4, "max_clients": 3}
    pairwise: dict[str, Any] = {"method": "pairwise", "dim": 4, "max_clients": 3}
    with pytest.raises(PolicyRefused, match="^s0 refuses selection opened: .* only oblivious"):
        pair.open(**pairwise, selection="opened")
    assert pair.status()["state"] == "none"
    with pytest.raises(PolicyRefused, match="^s1: s1 refuses results .* at most 1"):
        pair.open(**radix, ranks=[1, 2, 3])
    assert pair.status()["opened"] == "nothing"
    refusals = [e for e in pair.events("s1") if e["event"] == "open-refused"]
    assert [event["code"] for event in refusals] == [PolicyRefused.code]
    # what neither refuses is computed
    round_id = pair.open(**radix)
    for number in (1, 2, 3):
        pair.submit(f"client-{number}", np.full(4, number, np.float32))
    pair.wait("published")
    assert pair.result(round_id).tolist() == [2.0] * 4
    pair.open(**radix)
    pair.caller("coordinator", "s0").ask("abort", round=pair.status()["round"], reason="enough")
    wait_until(lambda: pair.status("s1")["state"] == "failed")
    with pytest.raises(PolicyRefused, match="s1 refuses rounds_per_hour 3: .* at most 2"):
        pair.open(**radix)
    s0, s1 = (
        pair.caller("client-1", server).ask("info").fields["policy"] for server in ("s0", "s1")
    )
    everything = Policy().to_dict()
    assert s0 == everything | {"allowed": {"selection": ["oblivious"]}}
    assert s1 == everything | {"at_most": {"results": 1, "rounds_per_hour": 2}}
