"""Versions: what parties of two releases agree on, leave out, and refuse in words."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest

import securemedian
from securemedian.common import receipts, versions
from securemedian.common.receipts import Receipt, Record
from securemedian.common.versions import agree, check_known, check_store, own_versions
from securemedian.mpc.errors import ConfigError, ReceiptInvalid, VersionsDiffer
from securemedian.mpc.options import option, options_of
from securemedian.mpc.protocols import wire
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers.network import control
from securemedian.servers.network.control import Hello
from tests.servers_alone import MODEL, Server, hello

RECORD = Record("securemedian", 1, "default", "7-3fa9c1d2", 7, {}, ["key"], {}, bytes(32), b"")


@dataclass(frozen=True, kw_only=True)
class Newer(Bucketed):
    """A method of a later release."""

    later: int = option(0, text="an option", since=2)
    listed: list[int] = option([], text="another", since=3)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this release be that of wire version 2, which also speaks 1."""
    monkeypatch.setattr(versions, "WIRE", 2)
    monkeypatch.setattr(versions, "LOWEST_WIRE", 1)
    monkeypatch.setattr(versions, "PEER_WIRE", 1)
    monkeypatch.setattr(securemedian, "__version__", "1.0")
    monkeypatch.setitem(METHODS, "bucketed", Newer)


def said(lowest: int, highest: int, release: str = "9.9") -> dict[str, Any]:
    return {"release": release, "wire": [lowest, highest]}


@pytest.mark.usefixtures("two")
def test_the_lower_of_the_highest_is_used() -> None:
    assert agree("s1", own_versions()) == 2
    assert agree("s1", said(1, 1)) == agree("s1", said(0, 1)) == 1
    assert agree("s1", said(2, 3)) == agree("s1", said(1, 9)) == 2


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (said(3, 4), r"s1 runs release 9\.9 \(wire version 3 to 4\), and here is release 1\.0 "),
        (said(3, 4), r"\(wire version 1 to 2\); update this side"),
        (said(0, 0, "0.9"), r"release 0\.9 \(wire version 0\).*; update s1$"),
        ({}, "a release before 1.0 .*; update s1$"),
        ({"release": 7, "wire": [True, 2]}, "a release before 1.0 .*; update s1$"),
        ({"release": "\x1b[2J", "wire": [3, 4]}, r"release \\x1b\[2J "),
    ],
)
def test_a_party_two_releases_off_is_refused_in_words(theirs: dict[str, Any], words: str) -> None:
    with pytest.raises(VersionsDiffer, match=words):
        agree("s1", theirs)


@pytest.mark.usefixtures("two")
def test_a_server_may_need_a_later_version_of_the_other_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(versions, "PEER_WIRE", 2)
    params = RoundParams(Bucketed(), dim=4, max_clients=3)
    assert own_versions()["wire"] == [1, 2] and own_versions(peer=True)["wire"] == [2, 2]
    assert agree("s1", said(2, 3), peer=True) == 2
    for check in (agree, partial(check_known, params=params)):
        check("s1", said(0, 1, "0.9"), peer=False)
        words = r"0\.9 \(wire version 0 to 1\), .* release 1\.0 \(wire version 2\); update s1$"
        with pytest.raises(VersionsDiffer, match=words):
            check("s1", said(0, 1, "0.9"), peer=True)


@pytest.mark.usefixtures("two")
def test_what_is_newer_is_left_out_where_it_has_its_default() -> None:
    old, new = RoundParams(Bucketed(), dim=4, max_clients=3), RoundParams(dim=4, max_clients=3)
    new = replace(new, method=Newer())
    assert new.to_dict() == old.to_dict() and new.digest == old.digest and new.wire == 1
    assert RoundParams.from_dict(old.to_dict()) == new
    changed = replace(new, method=Newer(later=7))
    assert changed.to_dict() == old.to_dict() | {"later": 7} and changed.digest != old.digest
    assert (changed.since, changed.wire) == ({"later": 2}, 2)
    assert RoundParams.from_dict(changed.to_dict()) == changed
    assert replace(new, method=Newer(listed=[1])).wire == 3
    assert {name: each.since for name, each in options_of(Newer).items()}["later"] == 2


@pytest.mark.usefixtures("two")
def test_who_does_not_know_an_option_is_named() -> None:
    params = RoundParams(Newer(later=7), dim=4, max_clients=3)
    check_known("s1", said(1, 2), params)
    check_known("s1", said(1, 1), replace(params, method=Newer()))
    with pytest.raises(VersionsDiffer, match=r"s1 runs .*9\.9, which does not know later: .*; up"):
        check_known("s1", said(0, 1), params)


@pytest.fixture
def s0(tmp_path: Path) -> Iterator[Server]:
    made = Server(0, tmp_path)
    yield made
    made.store.close()


@pytest.mark.usefixtures("two")
def test_a_round_is_opened_with_what_both_servers_and_its_clients_speak(s0: Server) -> None:
    def open_round(**options: Any) -> wire.Message:
        params = RoundParams(Newer(**options), dim=4, max_clients=3)
        fields = {"params": params.to_dict(), "range": {"policy": "constant"}}
        return s0.ask(s0.coordinator, "open", {"model": MODEL}, **fields)

    client = s0.keys[0]
    s0.hear(replace(hello(), release="0.9", wire=[1, 1]))
    refused = open_round(later=7)
    assert refused.fields["code"] == VersionsDiffer.code
    assert "s1 runs release 0.9, which does not know later" in refused.fields["message"]
    assert s0.ask(client, "round").type == "error"
    # the same release, and another process
    s0.hear(hello("two"))
    open_round(later=7)
    found = s0.ask(client, "round").fields
    assert found["wire"] == [2, 2] and found["params"]["later"] == 7
    s0.hear(replace(hello("three"), release="0.1", wire=[0, 0]))
    assert "s1 runs release 0.1 (wire version 0)" in s0.ask(client, "info").fields["peer_problem"]
    # every release reads these
    assert s0.ask(client, "info").fields["wire"] == [1, 2]


def test_a_hello_is_read_by_every_release() -> None:
    fields = {"instance": "x", "peer": "", "sent": 0, "rounds": [], "agreement": {}}
    assert control.decode(wire.pack("hello", fields)) == Hello("x", "", 0, [], {})
    later = fields | {"release": "9.9", "wire": [8, 9], "invented": {"much": 1}}
    assert control.decode(wire.pack("hello", later)) == Hello("x", "", 0, [], {}, "9.9", [8, 9])


def test_the_versions_on_disk_that_are_read() -> None:
    check_store("state.db", versions.STORE)
    check_store("state.db", versions.LOWEST_STORE)
    for other in (versions.LOWEST_STORE - 1, versions.STORE + 1, "3"):
        with pytest.raises(ConfigError, match=r"state\.db is of another release .* Nothing was"):
            check_store("state.db", other)


@pytest.mark.parametrize("version", [2, 0, "0.10.0"])
def test_a_receipt_of_another_version_is_refused_in_words(version: Any) -> None:
    fields = RECORD.__dict__ | {"version": version}
    assert Record.decode(RECORD.encode()) == RECORD
    with pytest.raises(ReceiptInvalid, match="unknown version: .* read it with the release that"):
        Record.decode(msgpack.packb(fields))
    told = Receipt(RECORD.encode()).to_dict()
    told["record"]["version"] = version
    with pytest.raises(ReceiptInvalid, match="unknown version: .* read it with the release that"):
        Receipt.from_dict(told)


def test_a_later_record_without_what_is_new_in_it_has_the_same_bytes() -> None:
    @dataclass(frozen=True)
    class Later(Record):
        audited: str = field(default="", metadata={"since": 2})

    assert Later(**RECORD.__dict__).encode() == RECORD.encode()
    assert Later(**RECORD.__dict__, audited="yes").encode() != RECORD.encode()
    assert receipts.differences(RECORD, RECORD) == ""
