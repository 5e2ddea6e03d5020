"""Reload: who is let in and what changes while a server runs, and what is refused and named."""

import re
import signal
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from securemedian.common.keys import load_keys
from securemedian.common.policy import Policy
from securemedian.mpc.arrays import PublicValues
from securemedian.mpc.errors import ConfigError, NotAllowed, UnknownRound
from securemedian.mpc.rounds.cost import Cost
from securemedian.mpc.rounds.pipeline import Outcome
from securemedian.operating import keygen
from securemedian.servers import config
from securemedian.servers.config import (
    CHANGEABLE,
    Caller,
    CohortTable,
    EngineConfig,
    MetricsConfig,
    ServerConfig,
    reloaded,
)
from securemedian.servers.network.control import Held, Open, Ready, Uploaded
from tests.daemons import ROOT, Pair, running, wait_until
from tests.servers_alone import DIM, SAMPLES, Server, held

SAMPLE = config.load(SAMPLES / "s0.toml")
NEW = Caller("new", zmq.curve_keypair()[0].decode())


def test_every_setting_is_changed_or_refused() -> None:
    """It is known of each setting, so that a new one is not forgotten."""
    others: dict[str, Any] = {
        "party": 1,
        "listen": "tcp://0.0.0.0:7777",
        "key_file": "other",
        "state_dir": "other",
        "peer": replace(SAMPLE.peer, address="tcp://elsewhere:1"),
        "clients": (*SAMPLE.clients, NEW),
        "coordinators": (NEW,),
        "cohorts": (CohortTable("stroke", [one.name for one in SAMPLE.clients[:2]]),),
        "protocol": replace(SAMPLE.protocol, lanes=3),
        "engine": EngineConfig(kind="ray"),
        "policy": Policy(),
        "metrics": MetricsConfig("127.0.0.1:1"),
        "security": "bounded",
    }
    for each in fields(ServerConfig):
        value = others.get(each.name) or getattr(SAMPLE, each.name) + 1
        # not every value fits the others of this party, and that is not the point here
        wanted = replace(SAMPLE)
        object.__setattr__(wanted, each.name, value)
        config, changes = reloaded(SAMPLE, wanted)
        is_changed = each.name in CHANGEABLE
        assert changes["changed"] == [each.name] * is_changed
        assert changes["needs_restart"] == [each.name] * (not is_changed)
        kept = value if is_changed else getattr(SAMPLE, each.name)
        assert getattr(config, each.name) == kept
    unknown = CHANGEABLE - {each.name for each in fields(ServerConfig)}
    assert not unknown


def test_who_comes_and_who_goes_is_named() -> None:
    renamed = replace(SAMPLE.clients[0], name="renamed")
    wanted = replace(SAMPLE, clients=(renamed, SAMPLE.clients[1], NEW))
    _, changes = reloaded(SAMPLE, wanted)
    assert (changes["added"], changes["removed"]) == (["new"], ["client-3"])


def test_lists_must_fit_what_cannot_be_changed() -> None:
    """The new file is consistent, but this server goes on with the peer that it has."""
    intruder = Caller("intruder", SAMPLE.peer.public_key)
    wanted = replace(
        SAMPLE,
        clients=(*SAMPLE.clients, intruder),
        peer=replace(SAMPLE.peer, public_key=NEW.public_key),
    )
    with pytest.raises(ConfigError, match="appears 2 times"):
        reloaded(SAMPLE, wanted)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    yield Server(0, tmp_path)


def reload(server: Server, **changes: Any) -> None:
    """Let a server take over another configuration."""
    server.config = reloaded(server.config, replace(server.config, **changes))[0]
    server.requests.reload(server.config)
    server.rounds.register.reload(server.config)


def refusal(answer: Any) -> tuple[str, str]:
    assert answer.type == "error"
    return answer.fields["code"], answer.fields["message"]


def test_a_round_goes_on_with_the_clients_it_began_with(server: Server) -> None:
    round_id = server.open()
    gone, *others = server.config.clients
    assert server.upload(gone.public_key, round_id).type == "upload"
    server.hear(_uploaded(round_id, gone))
    reload(server, clients=(*others, NEW))
    code, message = refusal(server.ask(gone.public_key, "status"))
    assert code == "not-allowed" and "was taken off the list: s0" in message
    # too late for this round
    assert refusal(server.upload(NEW.public_key, round_id))[0] == "not-allowed"
    assert refusal(server.ask(NEW.public_key, "round"))[0] == "unknown-round"
    assert server.ask(NEW.public_key, "info").fields["name"] == "new"
    for client in others:
        server.upload(client.public_key, round_id)
        server.hear(_uploaded(round_id, client))
    keys = sorted(client.public_key for client in (gone, *others))
    server.hear(Held(round_id, held(keys)), Ready(round_id, 1))
    server.engine.result = Outcome(PublicValues(np.full((1, DIM), 9 << 24, np.uint64)), Cost())
    server.rounds.engine_ended()
    server.hear(server.done())
    status = server.ask(server.coordinator, "status").fields
    assert status["state"] == "published" and gone.name in status["included"]
    assert list(status["clients"]) == [client.name for client in (gone, *others)]
    # and the next one
    server.open()
    status = server.ask(server.coordinator, "status").fields
    assert list(status["clients"]) == [client.name for client in (*others, NEW)]
    assert server.upload(NEW.public_key, status["round"]).type == "upload"


def _uploaded(round_id: str, client: Caller) -> Uploaded:
    return Uploaded(round_id, client.public_key)


def test_limits_hold_for_the_next_round(server: Server) -> None:
    round_id, unlimited = server.open(), Policy.unlimited()
    reload(server, min_clients=3, round_limit_s=7.0, policy=replace(unlimited, at_most={"dim": 1}))
    assert server.latest.server_round.limits.run_s == SAMPLE.round_limit_s
    server.ask(server.coordinator, "abort", round=round_id, reason="")
    code, message = refusal(
        server.ask(server.coordinator, "open", params=server.params.to_dict(), range={})
    )
    assert code == "policy-refused" and "refuses dim 4: its [policy] allows at most 1" in message
    reload(server, policy=unlimited)
    server.open()
    assert server.latest.server_round.limits.run_s == 7.0


def test_a_table_whose_round_has_not_ended_stays(tmp_path: Path) -> None:
    """It cannot be removed from a server that runs, nor from one that starts."""
    table = CohortTable("stroke", [one.name for one in SAMPLE.clients])
    server = Server(0, tmp_path, cohorts=(table,))
    asked: dict[str, Any] = {"params": server.params.to_dict(), "range": {}, "cohort": "stroke"}
    server.ask(server.coordinator, "open", **asked)
    (opened,) = [message for message in server.sent if isinstance(message, Open)]
    without = replace(server.config, cohorts=())
    refused = pytest.raises(ConfigError, match=f"lacks its table: 'stroke', round {opened.round};")
    with refused:
        server.rounds.register.check(without)
    server.config = without
    with refused:
        server.restart()


def test_the_page_names_what_can_be_changed() -> None:
    page = (ROOT / "docs/operating.md").read_text("utf-8")
    table = page[page.index("| setting | from when on |") :].split("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    shown = {name for cell in cells for name in re.findall(r"`\[*([a-z_]+)\]*`", cell)}
    assert shown == CHANGEABLE


@pytest.mark.slow
def test_real_servers_reload(tmp_path: Path) -> None:
    pair = Pair(tmp_path, clients=3)
    with running(pair):
        first, second, third = pair.names
        assert pair.caller(third, "s0").ask("info").fields["name"] == third
        _replace(third, "joiner", tmp_path)
        # one setting that cannot be changed, and one that can
        pair.configure("s0", peer_wait_s=61, round_limit_s=99)
        for name in ("s0", "s1"):
            pair.tell(name, signal.SIGHUP)
            event = wait_until(lambda: _last(pair, name, "reloaded"))  # noqa: B023
            assert event["added"] == ["joiner"] and event["removed"] == [third]
        event = _last(pair, "s0", "reloaded")
        assert event["changed"] == ["clients", "round_limit_s"]
        assert event["needs_restart"] == ["peer_wait_s"] and event["level"] == "warning"
        # the connection that is open, and a new one
        with pytest.raises(NotAllowed, match="taken off the list: s0"):
            pair.caller(third, "s0").ask("info")
        keys = load_keys(tmp_path / f"{third}.key_secret")
        again = pair.stranger(keys, "s0")
        assert again.is_ignored([b"x"])
        again.close()
        wait_until(lambda: _last(pair, "s0", "key-refused"))
        with pytest.raises(UnknownRound):
            pair.caller("joiner", "s0").ask("round")
        pair.open(method="radix", dim=10, max_clients=3)
        for i, name in enumerate((first, second, "joiner")):
            pair.submit(name, np.full(10, i, np.float32))
        assert pair.wait("published")["included"]
        assert np.array_equal(pair.result(pair.status()["round"], "joiner"), np.ones(10))
        # a mistake changes nothing
        pair.configure("s0", "\nno TOML")
        pair.tell("s0", signal.SIGHUP)
        assert "is not TOML" in wait_until(lambda: _last(pair, "s0", "reload-failed"))["reason"]
        assert pair.caller("joiner", "s0").ask("info").fields["name"] == "joiner"


def _last(pair: Pair, server: str, event: str) -> Any:
    """Return the last event of that name."""
    return next((e for e in reversed(pair.events(server)) if e["event"] == event), None)


def _replace(leaves: str, joins: str, folder: Path) -> None:
    """Make keys for one client, and put it in the place of another one in both lists."""
    net = keygen.network("127.0.0.1", "127.0.0.1", None)
    key = keygen.make(folder, [], net, roles={joins: "client"})[0].key
    for server in ("s0", "s1"):
        path = folder / f"{server}.toml"
        entry = f'name = "{leaves}"\npublic_key = "[^"]*"'
        text, count = re.subn(
            entry, lambda _: f'name = "{joins}"\npublic_key = "{key}"', path.read_text()
        )
        assert count == 1
        path.write_text(text)
