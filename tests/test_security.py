"""`security`: what each word refuses by name, at servers, at clients and in `plan`."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian import cli
from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.clients.policy import ClientPolicy
from securemedian.common.policy import BOUNDED, Policy, Security, forbidden
from securemedian.common.status import RoundStatus
from securemedian.coordinator.coordinator import Coordinator
from securemedian.mpc.canonical import build
from securemedian.mpc.errors import ConfigError, PolicyRefused
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import RoundParams
from securemedian.operating import doctor
from securemedian.plugins import rounds as plugin
from securemedian.servers import config
from securemedian.servers.network.control import Failed, Open, Opened
from tests.daemons import Pair, running
from tests.servers_alone import DIM, START, Server, hello

ROUND: dict[str, Any] = {"dim": DIM, "max_clients": 5, "min_clients": 3}
GOOD: dict[str, dict[str, Any]] = {
    "buckets": {"method": "bucketed"},
    "mean": {"method": "mean"},
    "mean with a bound": {"method": "mean", "norm_bound": 3.0},
    "mean without": {"method": "mean", "norm_bound": "off"},
    "mean with noise": {"method": "mean", "norm_bound": 3.0, "noise_multiplier": 1.0},
}
# with security malicious
STRICT: dict[str, dict[str, Any]] = {
    "buckets": {"method": "bucketed", "security": "malicious"},
    "as release 1.0 spells it": {"method": "bucketed", "audit": True},
}
BAD: dict[str, dict[str, Any]] = {
    "schedule scan": {"method": "bucketed", "schedule": "scan"},
    "uploads unverified": {"method": "bucketed", "uploads": "unverified"},
    "groups 2": {"method": "bucketed", "groups": 2},
    "weights 3": {"method": "bucketed", "weights": {f"client-{i}": 5 for i in (1, 2, 3)}},
    **{f"method {name}": {"method": name} for name in METHODS if name not in BOUNDED},
}


def params(given: dict[str, Any]) -> RoundParams:
    more = {"validator": "v", "clusters": 1} if given["method"] == "zeno" else {}
    return RoundParams.from_dict(ROUND | more | given)


@pytest.mark.parametrize("name", GOOD)
def test_what_it_permits(name: str) -> None:
    assert forbidden("bounded", params(GOOD[name])) == []
    assert forbidden("semi-honest", params(GOOD[name])) == []


@pytest.mark.parametrize("name", STRICT)
def test_malicious_permits_rounds_with_it_alone(name: str) -> None:
    asked = params(STRICT[name])
    assert asked.form.audited and asked.method.label == "bucketed b=16 bisect malicious"
    # one spelling is told and signed, which clients of release 1.0 refuse
    assert asked.to_dict()["security"] == "malicious" and "audit" not in asked.to_dict()
    assert asked.wire == 3 and RoundParams.from_dict(asked.to_dict()) == asked
    for word in Security:
        assert forbidden(word, asked) == []


@pytest.mark.parametrize("name", [*GOOD, *BAD])
def test_malicious_refuses_all_else_by_name(name: str) -> None:
    given = params(BAD.get(name) or GOOD[name])
    named = "method mean" if given.method.name == "mean" else name
    expected = {named if name in BAD or "mean" in name else ""} - {""}
    if given.method.name in ("bucketed", "zoom"):
        # by its option
        expected = expected - {"method zoom"} | {"security semi-honest"}
    said = forbidden("malicious", given)
    line = 'security = "malicious" permits only '
    assert {each.partition(f": {line}")[0] for each in said} == expected
    assert all(line in each and "Take " in each for each in said)


@pytest.mark.parametrize("name", ["schedule scan", "uploads unverified", "groups 2", "weights 3"])
def test_a_round_with_it_takes_nothing_else(name: str) -> None:
    option = name.split()[0]
    for spelling in ({"security": "malicious"}, {"audit": True}):
        with pytest.raises(ConfigError, match=f"security malicious takes {option} .* only: "):
            params(BAD[name] | spelling)
    with pytest.raises(ConfigError, match="takes counts of at most 16 bits: 17 bits; let fewer"):
        params(STRICT["buckets"] | {"ring_bits": 17})


@pytest.mark.parametrize("name", BAD)
def test_it_refuses_all_else_by_name_with_the_way_out(name: str) -> None:
    (said,) = forbidden("bounded", params(BAD[name]))
    assert said.startswith(f'{name}: security = "bounded" permits only ')
    assert "Take " in said
    # the files, the line, the flag, and what it costs
    for each in ("s0.toml", "s1.toml", "[policy] of the clients'", 'security = "semi-honest"'):
        assert each in said
    assert "keygen --security semi-honest" in said
    assert said.endswith(": a deviating server could then read one client's value")


@pytest.mark.parametrize("name", ["schedule scan", "groups 2", "method pairwise"])
def test_either_server_refuses_it_when_the_round_is_opened(tmp_path: Path, name: str) -> None:
    asked = params(BAD[name])
    models = {"model": np.zeros((2, DIM), np.float32)} if asked.method.groups > 1 else None
    s0 = Server(0, tmp_path / "s0", asked, security="bounded")
    s0.hear(hello(one_malicious_server=True))
    s0.ask_to_open(models)
    answer = s0.replies[-1]
    assert answer.fields["code"] == "policy-refused"
    assert "s0 refuses " in answer.fields["message"]
    assert 'security = "bounded" permits only' in answer.fields["message"]
    # as S0 asks for it
    asked = replace(asked, method=asked.method.settled(None))
    s1 = Server(1, tmp_path / "s1", asked, security="bounded")
    s1.hear(hello(one_malicious_server=True))
    given = asked.to_dict(), bytes(16), True, False, START
    s1.hear(Open("1-0000000a", 1, *given, one_malicious_server=True))
    (refusal,) = [message for message in s1.sent if isinstance(message, Failed)]
    assert refusal.code == "policy-refused" and "s1 refuses " in refusal.reason


def test_a_permitted_round_is_opened_and_says_so(tmp_path: Path) -> None:
    s0 = Server(0, tmp_path, params(GOOD["buckets"]), security="bounded")
    s0.hear(hello(one_malicious_server=True))
    s0.ask_to_open()
    asked = s0.sent[-1]
    assert isinstance(asked, Open) and asked.one_malicious_server
    s0.hear(Opened(asked.round, asked.session))
    status = s0.ask(s0.keys[0], "status", round=asked.round).fields
    assert status["state"] == "open" and status["one_malicious_server"]


def test_both_servers_must_have_it(tmp_path: Path) -> None:
    s0 = Server(0, tmp_path / "s0", params(GOOD["buckets"]), security="bounded")
    s0.ask_to_open()
    assert s0.replies[-1].fields["code"] == "parameters-differ"
    assert "security: 'bounded' here, 'semi-honest' there" in s0.replies[-1].fields["message"]
    # whatever the hello says
    s1 = Server(1, tmp_path / "s1", params(GOOD["buckets"]))
    given = s1.params.to_dict(), bytes(16), True, False, START
    s1.hear(Open("1-0000000a", 1, *given, one_malicious_server=True))
    said = 's1 has security = "semi-honest", and is asked for a round with security = "bounded"'
    assert said in s1.sent[-1].reason


@pytest.mark.parametrize("theirs", ["semi-honest", "bounded"])
def test_both_servers_must_have_malicious(tmp_path: Path, theirs: str) -> None:
    s0 = Server(0, tmp_path, params(STRICT["buckets"]), security="malicious")
    s0.hear(hello(one_malicious_server=theirs == "bounded"))
    s0.ask_to_open()
    assert s0.replies[-1].fields["code"] == "parameters-differ"
    said = f"security: 'malicious' here, {theirs!r} there"
    assert said in s0.replies[-1].fields["message"]


@pytest.mark.parametrize("party", [0, 1])
def test_a_server_with_malicious_opens_rounds_with_it_alone(tmp_path: Path, party: int) -> None:
    asked = [params(given) for given in (GOOD["buckets"], GOOD["mean"], STRICT["buckets"])]
    for number, one in enumerate(asked):
        server = Server(party, tmp_path / str(number), one, security="malicious")
        server.hear(hello(one_malicious_server=True, malicious=True))
        if party == 0:
            server.ask_to_open()
        else:
            one = replace(one, method=one.method.settled(None))
            given = one.to_dict(), bytes(16), True, False, START
            server.hear(Open("1-0000000a", 1, *given, one_malicious_server=True))
        last = server.sent[-1]
        if one.form.audited:
            assert isinstance(last, Opened if party else Open)
        else:
            refused = last.reason if party else server.replies[-1].fields["message"]
            assert f"s{party} refuses " in refused and 'security = "malicious" perm' in refused


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (
            {"protocol": ProtocolParams(ot_extension="silent")},
            'ot_extension = "softspoken"',
        ),
        ({"engine": config.EngineConfig("ray")}, 'kind = "threads" in .engine. of s0'),
    ],
)
def test_what_a_server_cannot_have_with_it(given: dict[str, Any], remedy: str) -> None:
    for word in ("bounded", "malicious"):
        server = replace(config.load(Path("docs/samples/s0.toml")), security=word)
        with pytest.raises(ConfigError, match=f'security = "{word}" .*set {remedy}'):
            replace(server, **given)


def test_a_client_asks_for_it() -> None:
    policy = build(ClientPolicy, {"security": "bounded"}, "[policy]")
    good = params(GOOD["buckets"])

    def told(*bounded: bool) -> list[RoundStatus]:
        return [RoundStatus(one_malicious_server=each) for each in bounded]

    policy.check_round(good, 0, "a", told(True, True))
    for bounded, where in (
        ([True, False], "s1"),
        ([False, True], "s0"),
        ([False, False], "s0 and s1"),
        ([], "both"),
    ):
        with pytest.raises(PolicyRefused, match=f'without security = "bounded" at {where}: '):
            policy.check_round(good, 0, "a", told(*bounded))
    # and judges the parameters by itself
    with pytest.raises(PolicyRefused, match='schedule scan: security = "bounded" permits'):
        policy.check_round(params(BAD["schedule scan"]), 0, "a", told(True, True))
    ClientPolicy().check_round(good, 0, "a")
    # "malicious" needs no server's word, because both compute what the parameters say
    policy, strict = ClientPolicy(security="malicious"), params(STRICT["buckets"])
    assert not policy.needs_statuses
    policy.check_round(strict, 0, "a")
    for given in (good, params(GOOD["mean"])):
        with pytest.raises(PolicyRefused, match='security = "malicious" permits only'):
            policy.check_round(given, 0, "a", told(True, True))


def test_plan_leaves_out_what_it_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["plan", "--clients", "3", "--dim", "200", "--security", "bounded"]
    assert cli.main([*given, "bucketed"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "bucketed b=16 bisect" in out
    assert "left out: bounded refuses schedule scan: " in out
    # once, and no line in brackets is taken for markup
    assert out.count("and into [policy] of the clients' files") == 1
    # of bucketed it forecasts the rounds that the word permits
    assert cli.main([*given[:-1], "malicious", "bucketed"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "bucketed b=16 bisect malicious" in out
    assert "left out: security malicious takes schedule bisect only: schedule scan;" in out
    assert cli.main([*given[:-1], "malicious", "mean"]) == 2
    assert 'mean: security = "malicious" permits only bucketed' in capsys.readouterr().err
    # and with the flag of release 1.0
    for flags in (given, [*given[:-2], "--one-malicious-server"]):
        assert cli.main([*flags, "radix"]) == 2
        assert "permits only bucketed and mean" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "word"),
    [
        ([], "bounded"),
        (["--security", "bounded"], "bounded"),
        (["--security", "semi-honest"], "semi-honest"),
        (["--security", "malicious"], "malicious"),
        # the flags of release 1.0
        (["--one-malicious-server"], "bounded"),
        (["--no-one-malicious-server"], "semi-honest"),
    ],
)
def test_keygen_writes_it_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: list[str], word: str
) -> None:
    on = word != "semi-honest"
    assert cli.main(["keygen", str(tmp_path / "all"), "--clients", "3", *flag]) == 0
    for name in ("s0", "s1"):
        made = config.load(tmp_path / "all" / f"{name}.toml")
        assert made.security == word and made.bounded is on
        assert made.max_attempts == (2 if on else config.ServerConfig.max_attempts)
    client = ClientConfig.load(tmp_path / "all" / "client-1.toml")
    assert client.policy.security == word
    assert client.policy.methods == Policy().methods
    out = capsys.readouterr().out
    strict = {"bounded": "bucketed, mean", "malicious": "bucketed, zoom --security malicious"}
    allowed = strict.get(word, ", ".join(Policy().methods))
    assert f"security is {word}: these files allow rounds of {allowed}\n" in out
    assert "a deviating server could then read one client's value" in out
    for role in (["s1"], ["client", "--name", "a"]):
        assert cli.main(["keygen", str(tmp_path / role[0]), "--role", *role, *flag]) == 0
    for path in (tmp_path / "s1" / "s1.toml", tmp_path / "client" / "a.toml"):
        assert f'security = "{word}"\n' in path.read_text()


@pytest.mark.parametrize("on", [True, False])
def test_files_of_release_1_0_are_read(tmp_path: Path, on: bool) -> None:
    word, other = ("bounded", "semi-honest") if on else ("semi-honest", "bounded")
    given = ["keygen", str(tmp_path / "all"), "--clients", "3", "--security", word]
    assert cli.main(given) == 0
    old = f"one_malicious_server = {str(on).lower()}\n"
    for name in ("s0", "client-1"):
        path = tmp_path / "all" / f"{name}.toml"
        text = path.read_text()
        load = config.load if name == "s0" else ClientConfig.load

        def read(lines: str, path: Path = path, text: str = text, load: Any = load) -> Any:
            path.write_text(text.replace(f'security = "{word}"\n', lines))
            loaded = load(path)
            return getattr(loaded, "policy" if isinstance(loaded, ClientConfig) else "self", loaded)

        assert read(old).security == word
        assert read(old + f'security = "{word}"\n').security == word
        with pytest.raises(ConfigError, match="contradicts security"):
            read(old + f'security = "{other}"\n')
        with pytest.raises(ConfigError, match="neither true nor false: 'yes'; write"):
            read('one_malicious_server = "yes"\n')
        with pytest.raises(
            ConfigError, match="invalid security: .*; take one of malicious, bounded, semi-honest"
        ):
            read('security = "malicious server"\n')


def test_doctor_names_the_line_that_replaces_an_old_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "REACH_S", 0.1)
    assert cli.main(["keygen", str(tmp_path / "all"), "--clients", "3"]) == 0
    path = tmp_path / "all" / "client-1.toml"
    text = path.read_text().replace('security = "bounded"\n', "")
    for old, word in (("audit", "malicious"), ("one_malicious_server", "bounded")):
        path.write_text(text.replace("[policy]\n", f"[policy]\n{old} = true\n"))
        capsys.readouterr()
        cli.main(["doctor", str(path)])
        said = f'has {old}, which release 1.2 does not read: write security = "{word}"'
        assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_rounds_of_clients_that_ask_for_it(tmp_path: Path) -> None:
    """Ask as a Flower node or an NVFlare site does, too; the coordinator is told why."""
    made = Pair(tmp_path, clients=3)
    for server in ("s0", "s1"):
        made.configure(server, security="bounded", max_attempts=2)
    with running(made) as pair, ExitStack() as stack:
        coordinator = stack.enter_context(Coordinator(pair.config("coordinator")))
        own = {"security": "bounded", "allowed": {"norm_bound": ["auto", "off"]}}
        policy = build(ClientPolicy, own, "[policy]")
        configs = [pair.config(name, state_dir="", policy=policy) for name in pair.names]
        clients = [stack.enter_context(Client(config)) for config in configs]
        model = np.zeros(200, np.float32)
        size = {"dim": 200, "max_clients": 3, "min_clients": 3}
        with pytest.raises(PolicyRefused, match='schedule scan: security = "bounded" perm'):
            coordinator.open_round(
                RoundParams.from_dict(size | {"method": "bucketed", "schedule": "scan"}), model
            )
        for given in ({"method": "bucketed"}, {"method": "mean"}, GOOD["mean without"]):
            round_id = coordinator.open_round(RoundParams.from_dict(size | given), model)
            plugin.check(configs[0], round_id)
            for number, client in enumerate(clients):
                client.submit(model + np.float32(number) / 100, round_id)
            results = [client.result(round_id) for client in clients]
            assert all(np.array_equal(results[0], result) for result in results)
            assert coordinator.status(round_id).one_malicious_server
            record = clients[0].receipt(round_id).record
            assert record.one_malicious_server and record.runs == 2


@pytest.mark.slow
def test_a_client_that_asks_for_it_shares_nothing_where_it_is_off(tmp_path: Path) -> None:
    with running(Pair(tmp_path, clients=3)) as pair:
        round_id = pair.open(
            model=np.zeros(40, np.float32), **(GOOD["buckets"] | ROUND | {"dim": 40})
        )
        loaded = ClientConfig.load(pair.folder / "client-1.toml")
        asks = build(ClientPolicy, {"security": "bounded"}, "[policy]")
        with pytest.raises(PolicyRefused, match='without security = "bounded" at s0 and s1'):
            plugin.check(replace(loaded, policy=asks), round_id)
        assert pair.status()["left_out"] == {"client-1": "its own policy refuses the round"}
        assert set(pair.status()["dealt"].values()) == {"none"}
