"""Test common.policy: either server refuses by name, at `open`, what it takes no part in."""

import re
import tomllib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian import cli
from securemedian.common.policy import (
    RISKS,
    RISKY_ABOVE,
    Policy,
    Security,
    forbidden,
    risks_of,
)
from securemedian.common.status import DEFAULT_COHORT
from securemedian.mpc.canonical import build
from securemedian.mpc.errors import ConfigError, NotStored, PolicyRefused
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.plan import disk_bytes
from securemedian.mpc.rounds.run_state import RunState
from securemedian.operating import keygen
from securemedian.servers import config
from securemedian.servers.config import CohortTable, EngineConfig
from securemedian.servers.network.control import Failed, Open, Opened
from securemedian.servers.rounds.register import HOUR_S, ROUNDS_RETAINED
from securemedian.servers.storage.database import Bound
from securemedian.servers.storage.store import Store
from tests.daemons import Pair, running
from tests.servers_alone import PARAMS, START, Server

ROUND: dict[str, Any] = {"dim": 1000, "max_clients": 10}
PREDICTIONS: dict[str, Any] = {"exchange": "predictions", "public_set": "ab" * 32, "classes": 10}


def policy(**table: Any) -> Policy:
    """Return the policy of a table, as the loader makes it."""
    return build(Policy, table, "[policy]")


# By risk, a round of it.
CLUSTERED = {"method": "reclustered", "reclusterings": 1}
RISKY: dict[tuple[str, Any], dict[str, Any]] = {
    ("method", "zeno"): {"method": "zeno"},
    ("uploads", "unverified"): {"method": "bucketed", "uploads": "unverified"},
    ("selection", "opened"): {"method": "pairwise", "selection": "opened"},
    ("membership", "visible"): {"method": "radix", "groups": 2, "membership": "visible"},
    ("clustering", "opened"): CLUSTERED | {"clustering": "opened"},
    ("accept_leak", True): CLUSTERED | {"accept_leak": True},
    ("norm_bound", "off"): {"method": "mean", "norm_bound": "off"},
    ("aggregator", "mean"): CLUSTERED | {"aggregator": "mean"},
    ("single_clients", True): {"method": "krum", "chosen": 1},
    ("weights", 0): {"method": "radix", "weights": {f"client-{i}": 5 for i in (1, 2, 3)}},
}
# the line that allows it
LINES = {
    ("method", "zeno"): (
        'methods = ["bucketed", "pairwise", "radix", "zoom", "trimmed-mean", "mean", '
        '"reclustered", "krum", "zeno"] in [policy]'
    ),
    ("norm_bound", "off"): 'norm_bound = ["auto", "off"] in [policy.allowed]',
    ("uploads", "unverified"): 'uploads = ["dealt", "unverified"] in [policy.allowed]',
    ("accept_leak", True): "accept_leak = [false, true] in [policy.allowed]",
    ("single_clients", True): "single_clients = [false, true] in [policy.allowed]",
    ("weights", 0): "weights = 3 in [policy.at_most]",
}


def allowing(name: str, value: Any) -> Policy:
    """Return the default policy with the line that its refusal of a risk prints."""
    with pytest.raises(PolicyRefused) as caught:
        Policy().check(RoundParams.from_dict(ROUND | RISKY[name, value]), 0, "s1")
    line, table = re.findall(r"allow it by (.*) in \[(.*)\]", str(caught.value))[0]
    return Policy(**tomllib.loads(f"[{table}]\n{line}")["policy"])


def test_every_risk_has_a_round_here() -> None:
    above = {(name, value) for name, (value, _) in RISKY_ABOVE.items()}
    every = {(name, value) for name in RISKS for value in RISKS[name]}
    # this is of what ran before, and has tests of its own below
    assert set(RISKY) | {("release", True)} == above | every


@pytest.mark.parametrize("method", METHODS)
def test_by_default_a_method_without_risk_has_no_limit(method: str) -> None:
    params = RoundParams.from_dict({"method": method, **ROUND})
    Policy.unlimited().check(params, 10**6, "s0")
    if ("method", method) not in RISKY:
        Policy().check(params, 10**6, "s0")


@pytest.mark.parametrize(("name", "value"), RISKY)
def test_a_risk_is_refused_until_a_line_allows_it(name: str, value: Any) -> None:
    params = RoundParams.from_dict(ROUND | RISKY[name, value])
    with pytest.raises(PolicyRefused) as caught:
        Policy().check(params, 0, "s1")
    (why,) = [why for text, why in risks_of(name).items() if str(value).lower() in text]
    said = str(caught.value)
    assert said.startswith(f"s1 refuses {name} ") and f", because otherwise {why}. " in said
    assert said.count("refuses") == 1 and LINES.get((name, value), "") in said
    # and that line allows nothing else
    allowing(name, value).check(params, 0, "s1")
    for other, another in RISKY:
        if (other, another) != (name, value):
            with pytest.raises(PolicyRefused, match=f"s1 refuses {other} "):
                round_ = RoundParams.from_dict(ROUND | RISKY[other, another])
                allowing(name, value).check(round_, 0, "s1")


@pytest.mark.parametrize(("name", "value"), RISKY)
def test_either_server_alone_refuses_a_risk(name: str, value: Any, tmp_path: Path) -> None:
    more: dict[str, Any] = {"dim": 4, "max_clients": 3, "min_clients": 3}
    if name == "method" and value == "zeno":
        more["validator"] = "client-1"
    params = RoundParams.from_dict(RISKY[name, value] | more)

    def server(number: int, policy: Policy, folder: str) -> Server:
        return Server(number, tmp_path / folder, params, policy=policy)

    careful, bold = Policy(), allowing(name, value)
    models = {"model": np.zeros((2, 4), np.float32)} if params.method.groups > 1 else None
    s0 = server(0, careful, "s0")
    s0.ask_to_open(models)
    assert f"s0 refuses {name} " in s0.replies[-1].fields["message"]
    assert not any(isinstance(message, Open) for message in s0.sent)
    s0 = server(0, bold, "s0-bold")
    s0.ask_to_open(models)
    message = s0.sent[-1]
    assert isinstance(message, Open)
    s1 = server(1, careful, "s1")
    s1.hear(message)
    assert isinstance(s1.sent[-1], Failed) and f"s1 refuses {name} " in s1.sent[-1].reason
    s1 = server(1, bold, "s1-bold")
    s1.hear(message)
    assert isinstance(s1.sent[-1], Opened)


@pytest.mark.parametrize("policy", [Policy(), Policy.unlimited()])
def test_keygen_writes_each_line_with_what_it_risks(policy: Policy, tmp_path: Path) -> None:
    keygen.make(tmp_path, ["a", "b"], keygen.network("127.0.0.1", "127.0.0.1", 7000), policy)
    for server in ("s0", "s1"):
        text = (tmp_path / f"{server}.toml").read_text()
        assert config.load(tmp_path / f"{server}.toml").policy == policy
        written = text.partition("[policy]")[2].partition("[[coordinators]]")[0].splitlines()
        for key in ("methods", *policy.allowed, *policy.at_most):
            (at,) = [i for i, line in enumerate(written) if line.startswith(f"{key} = ")]
            risks = risks_of("method" if key == "methods" else key)
            assert written[at - len(risks) : at] == [f"# {v}: {why}" for v, why in risks.items()]


def test_the_verb_keygen_writes_the_default(tmp_path: Path) -> None:
    assert cli.main(["keygen", str(tmp_path / "all"), "--clients", "3"]) == 0
    assert cli.main(["keygen", str(tmp_path / "one"), "--role", "s0"]) == 0
    assert config.load(tmp_path / "all" / "s0.toml").policy == Policy()
    written = tomllib.loads((tmp_path / "one" / "s0.toml").read_text())["policy"]
    assert Policy(**written) == Policy() and Policy().to_dict() == {"at_least": {}} | written


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
            {"allowed": {"selection": ["hidden"]}},
            {"method": "pairwise"},
            {"method": "pairwise", "selection": "opened"},
            "s1 refuses selection opened: its [policy] allows only hidden",
        ),
        (
            {"at_most": {"quantiles": 2}},
            {"method": "radix", "quantiles": [0.25, 0.5], "min_clients": 5},
            {"method": "radix", "quantiles": [0.25, 0.5, 0.75], "min_clients": 5},
            "refuses quantiles 3: its [policy] allows at most 2",
        ),
        (
            {"at_most": {"results": 3}},
            {"method": "radix", "ranks": [2, 3], "quantiles": [0.5], "min_clients": 5},
            {"method": "radix", "ranks": [2, 3], "quantiles": [0.5, 0.75], "min_clients": 5},
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
            {"at_most": {"weights": 3}},
            {"method": "bucketed", "weights": dict.fromkeys("abc", 1)},
            {"method": "bucketed", "weights": dict.fromkeys("abcd", 1)},
            "refuses weights 4: its [policy] allows at most 3",
        ),
        (
            {"allowed": {"exchange": ["parameters"]}},
            {"method": "bucketed"},
            {"method": "bucketed"} | PREDICTIONS,
            "s1 refuses exchange predictions: its [policy] allows only parameters",
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
    made = policy(allowed={"selection": ["hidden"]}, at_most={"ranks": 0, "buckets": 3})
    made.check(RoundParams.from_dict({"method": "trimmed-mean", **ROUND}), 0, "s0")


def test_all_reasons_are_told_at_once() -> None:
    made = policy(methods=["radix"], at_most={"dim": 10}, at_least={"max_clients": 11})
    with pytest.raises(PolicyRefused) as caught:
        made.check(RoundParams.from_dict({"method": "pairwise", **ROUND}), 0, "s0")
    for place in ("refuses method pairwise", "refuses dim 1000", "refuses max_clients 10"):
        assert place in str(caught.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"method": ["radix"]}, "unknown method; known are"),
        ({"methods": "radix"}, "invalid methods: 'radix'; give a list"),
        ({"methods": []}, "methods allows none"),
        ({"methods": ["mode"]}, "take one of bucketed,"),
        ({"allowed": {"ranks": [1]}}, "invalid name in `allowed`: '"),
        (
            {"allowed": {"selection": "hidden"}},
            "invalid allowed: 'selection': 'hidden'; give a list",
        ),
        ({"allowed": {"selection": ["shown"]}}, "'shown'; take one of hidden, opened"),
        ({"allowed": {"midpoint": [0]}}, "0; take one of False, True"),
        ({"allowed": {"public_set": [True]}}, "invalid name in `allowed`: '"),
        ({"at_most": {"bucket": 3}}, "invalid name in `at_most`: 'bucket'; take one of dim,"),
        ({"at_most": {"method": 3}}, "invalid name in `at_most`: '"),
        ({"at_least": {"dims": 3}}, "invalid name in `at_least`: '"),
        ({"at_most": {"dim": True}}, "; give a number"),
        ({"at_most": {"dim": 1 << 63}}, "invalid limit in at_most: dim"),
        ({"at_most": {"dim": float("nan")}}, "invalid limit in at_most: dim"),
        ({"at_most": {"dim": 3}, "at_least": {"dim": 4}}, "so that no round fits: dim;"),
    ],
)
def test_mistakes_are_named(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(**table)
    assert said in str(caught.value)


def limited(rounds_per_hour: int) -> Policy:
    """Return a policy that limits nothing else."""
    return replace(Policy.unlimited(), at_most={"rounds_per_hour": rounds_per_hour})


def asked(number: int, cohort: str = DEFAULT_COHORT) -> Open:
    """Return S0's message about a round of `PARAMS`."""
    name = f"{number}-00000000"
    return Open(name, number, PARAMS.to_dict(), bytes(16), True, False, "0" * 64, cohort=cohort)


def test_rounds_per_hour_count_what_both_took_part_in(tmp_path: Path) -> None:
    s1 = Server(1, tmp_path, policy=limited(2))
    for number in (1, 2):
        s1.hear(asked(number))
        assert isinstance(s1.sent[-1], Opened)
        s1.now = 60.0
        s1.hear(Failed(f"{number}-00000000", "round-failed", "the test goes on"))
    s1.hear(asked(3))
    assert s1.sent[-1] == Failed(
        "3-00000000",
        "policy-refused",
        "s1: s1 refuses rounds_per_hour 3: its [policy] allows at most 2 "
        "(the line rounds_per_hour in [policy.at_most])",
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
        policy=limited(1),
        cohorts=(CohortTable("stroke", names), CohortTable("hiv", names)),
    )
    s1.hear(asked(1, "stroke"), Failed("1-00000000", "round-failed", "the test goes on"))
    s1.hear(asked(2, "stroke"))
    assert isinstance(s1.sent[-1], Failed)
    s1.hear(asked(3, "hiv"))
    assert isinstance(s1.sent[-1], Opened)


def test_a_round_that_s1_refuses_does_not_count_at_s0(tmp_path: Path) -> None:
    s0 = Server(0, tmp_path, policy=limited(1))
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


@pytest.mark.slow
def test_a_server_refuses_by_name_and_info_tells_its_policy(tmp_path: Path) -> None:
    made = Pair(tmp_path / "keys")
    file = made.folder / "s1.toml"
    written, own = keygen.policy_table(Policy.unlimited()), policy(at_most={"results": 1})
    file.write_text(file.read_text().replace(written, keygen.policy_table(own)))
    with running(made) as pair:
        with pytest.raises(PolicyRefused, match="^s1: s1 refuses results .* at most 1"):
            pair.open(method="radix", dim=4, max_clients=3, ranks=[2, 2], min_clients=3)
        assert pair.status()["opened"] == "nothing"
        refusals = [event for event in pair.events("s1") if event["event"] == "open-refused"]
        assert [event["code"] for event in refusals] == [PolicyRefused.code]
        default = Policy().to_dict()
        told = pair.caller("client-1", "s1").ask("info").fields["policy"]
        assert told == default | {"at_most": default["at_most"] | {"results": 1}}


ZOOM: dict[str, Any] = {"method": "zoom", "dim": 4, "max_clients": 3}
AGAINST = {"security": "malicious"}
STANDS_OUT = "one malicious server may read a client that stands out"


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("method", ["zoom", "radix"])
def test_other_clients_after_a_zoom_need_a_line(tmp_path: Path, party: int, method: str) -> None:
    """Also once the earlier round is forgotten, of which nobody knows what it was."""
    params = RoundParams.from_dict(ZOOM | ({} if method == "zoom" else {"method": "radix"}))
    bold = Policy(allowed={"release": [False, True]})

    def asked(policy: Policy, forgets: bool) -> str:
        folder = tmp_path / f"{policy is bold}{forgets}"
        server = Server(party, folder, params, policy=policy)
        database = server.store.database
        bound = Bound(1, frozenset(server.keys), "", "a" * 64)
        with database.transaction():
            database.bind(DEFAULT_COHORT, bound)
        ran = Open("1-0000000a", 1, params.to_dict(), bytes(16), True, False, START)
        register = server.rounds.register
        entry = register.admit(ran, params, RunState())
        entry.server_round = replace(entry.server_round, ran=True)
        if not forgets:
            register._entries["1-0000000a"] = entry
        again = replace(ran, round="1-0000000b", release=True)
        try:
            register.admit(again, params, RunState())
        except PolicyRefused as error:
            return str(error)
        register.admit(replace(again, round="1-0000000c", release=False), params, RunState())
        return ""

    said = asked(Policy(), forgets=False)
    assert bool(said) is (method == "zoom")
    said = asked(Policy(), forgets=True)
    assert f"s{party} refuses release True: its [policy] allows only False" in said
    assert "release = [false, true] in [policy.allowed]" in said
    assert not asked(bold, forgets=False) and not asked(bold, forgets=True)


@pytest.mark.parametrize(("number", "refused"), [(1, True), (2, False)])
def test_rounds_of_one_vote_do_not_push_a_zoom_out_of_mind(
    tmp_path: Path, number: int, refused: bool
) -> None:
    """Four later rounds that ran are all that is retained: the first may be of its number."""
    params = RoundParams.from_dict(ZOOM | {"method": "radix"})
    server = Server(1, tmp_path, params, policy=Policy())
    register, database = server.rounds.register, server.store.database
    with database.transaction():
        database.bind(DEFAULT_COHORT, Bound(1, frozenset(server.keys), "", "a" * 64))
    given = params.to_dict(), bytes(16), True, False, START
    for place in range(ROUNDS_RETAINED):
        of = 1 if place else number
        entry = register.admit(Open(f"{of}-0000000{place}", of, *given), params, RunState())
        entry.server_round = replace(entry.server_round, ran=True)
        register._entries[entry.server_round.round_id] = entry
    again = Open("1-0000000b", 1, *given, release=True)
    with pytest.raises(PolicyRefused) if refused else nullcontext():
        register.admit(again, params, RunState())


@pytest.mark.parametrize("party", [0, 1])
def test_zoom_beside_bounded_needs_its_line(tmp_path: Path, party: int) -> None:
    zoom, strict = RoundParams.from_dict(ZOOM), RoundParams.from_dict(ZOOM | AGAINST)
    line = policy(zoom=STANDS_OUT)
    with pytest.raises(ConfigError, match="zoom"):
        policy(zoom="yes")
    assert "zoom" not in Policy().to_dict() and line.to_dict()["zoom"] == STANDS_OUT
    asked = Open("1-0000000a", 1, zoom.to_dict(), bytes(16), True, False, START)
    asked = replace(asked, one_malicious_server=True)
    for number, (own, params, refused) in enumerate(
        [(Policy(), zoom, True), (line, zoom, False), (Policy(), strict, False)]
    ):
        server = Server(party, tmp_path / str(number), zoom, policy=own, security="bounded")
        told = replace(asked, params=params.to_dict())
        if refused:
            with pytest.raises(PolicyRefused, match=f'write zoom = "{STANDS_OUT}" into'):
                server.rounds.register.admit(told, params, RunState())
        else:
            server.rounds.register.admit(told, params, RunState())
    malicious = Security.MALICIOUS
    assert forbidden(malicious, zoom, STANDS_OUT) and not forbidden(malicious, strict)


def test_a_zoom_is_refused_by_name_where_a_server_has_no_room_or_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = RoundParams.from_dict(ZOOM)
    asked = Open("1-0000000a", 1, params.to_dict(), bytes(16), True, False, START)
    ray = Server(1, tmp_path / "ray", params, engine=EngineConfig(kind="ray"))
    with pytest.raises(ConfigError, match="no zoom has workers on Ray: s1; set kind"):
        ray.rounds.register.admit(asked, params, RunState())
    server = Server(1, tmp_path / "disk", params)
    needed = disk_bytes(params, len(server.keys))
    monkeypatch.setattr(Store, "free_bytes", needed - 1)
    with pytest.raises(NotStored, match=f"{needed} bytes, and {needed - 1} are free"):
        server.rounds.register.admit(asked, params, RunState())
    monkeypatch.setattr(Store, "free_bytes", needed)
    server.rounds.register.admit(asked, params, RunState())
