"""Keys and configurations: what is written is what both loaders take; nothing is overwritten."""

import re
from pathlib import Path

import pytest
import zmq.auth

from securemedian import cli
from securemedian.clients.config import ClientConfig
from securemedian.mpc.errors import ConfigError
from securemedian.scripts import keygen
from securemedian.scripts.keygen import LOOPBACK
from securemedian.servers import config as server_config
from securemedian.settings.keys import load_keys


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def public_key(directory: Path, name: str) -> str:
    return zmq.auth.load_certificate(directory / f"{name}.key")[0].decode()


def test_everybodys_configuration_loads_and_fits_together(tmp_path: Path) -> None:
    directory = tmp_path / "keys"
    assert cli.main(["keygen", str(directory), "--clients", "3"]) == 0
    assert mode(directory) == 0o700
    s0, s1 = (server_config.load(directory / f"{name}.toml") for name in ("s0", "s1"))
    coordinator = ClientConfig.load(directory / "coordinator.toml")
    clients = [ClientConfig.load(directory / f"client-{number}.toml") for number in (1, 2, 3)]
    assert (s0.party, s1.party) == (0, 1)
    assert s0.peer.address == s1.peer.listen
    assert len({s0.listen, s1.listen, s0.peer.address}) == 3
    assert (s0.peer.public_key, s1.peer.public_key) == (
        public_key(directory, "s1"),
        public_key(directory, "s0"),
    )
    assert s0.clients == s1.clients
    assert s0.coordinators == s1.coordinators
    for caller, allowed in zip([coordinator, *clients], s0.coordinators + s0.clients, strict=True):
        assert (caller.s0.address, caller.s1.address) == (s0.listen, s1.listen)
        assert (caller.s0.public_key, caller.s1.public_key) == (
            public_key(directory, "s0"),
            public_key(directory, "s1"),
        )
        assert (caller.name, load_keys(caller.key_file).public.decode()) == (
            allowed.name,
            allowed.public_key,
        )
    for secret in directory.glob("*.key_secret"):
        assert mode(secret) == 0o600


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["keygen", str(tmp_path), "--role", "client", "--name", "client-2"]) == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert cli.main(["keygen", str(tmp_path), "--clients", "2"]) == 2
    assert cli.main(["keygen", str(tmp_path), "--role", "client", "--name", "client-2"]) == 2
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert "there already" in capsys.readouterr().err


def test_parties_made_alone_need_only_each_others_public_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = ["--host0", "s0.example.org", "--host1", "10.0.0.2"]
    keys = {}
    for role, name in (
        ("s0", "s0"),
        ("s1", "s1"),
        ("coordinator", "coordinator"),
        ("client", "client-1"),
        ("client", "client-2"),
    ):
        directory = tmp_path / name
        assert cli.main(["keygen", str(directory), "--role", role, "--name", name, *hosts]) == 0
        keys[name] = public_key(directory, name)
        assert keys[name] in capsys.readouterr().out
        assert {path.name for path in directory.iterdir()} == {
            f"{name}.toml",
            f"{name}.key",
            f"{name}.key_secret",
        }
        assert mode(directory / f"{name}.key_secret") == 0o600
    with pytest.raises(ConfigError, match="PASTE HERE the public key of"):
        server_config.load(tmp_path / "s0" / "s0.toml")
    with pytest.raises(ConfigError, match="PASTE HERE the public key of s0"):
        ClientConfig.load(tmp_path / "client-1" / "client-1.toml")
    for name in keys:
        path = tmp_path / name / f"{name}.toml"
        path.write_text(
            re.sub(
                "PASTE HERE the public key of ([a-z0-9-]+)",
                lambda place: keys[place[1]],
                path.read_text(),
            )
        )
    s0, s1 = (server_config.load(tmp_path / name / f"{name}.toml") for name in ("s0", "s1"))
    client = ClientConfig.load(tmp_path / "client-1" / "client-1.toml")
    assert (s0.listen, s0.peer.address) == ("tcp://0.0.0.0:7000", "tcp://10.0.0.2:7002")
    assert (s1.listen, s1.peer.listen) == ("tcp://0.0.0.0:7001", "tcp://0.0.0.0:7002")
    assert (client.s0.address, client.s1.address) == (
        "tcp://s0.example.org:7000",
        "tcp://10.0.0.2:7001",
    )
    assert [caller.public_key for caller in s0.clients] == [keys["client-1"], keys["client-2"]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--clients N"),
        (["--clients", "1"], "from 2 to"),
        (["--clients", "2", "--name", "x"], "--role"),
        (["--clients", "2", "--base-port", "0"], "--base-port"),
        (["--role", "client"], "--name"),
        (["--role", "client", "--name", "../x"], "--name"),
        (["--role", "client", "--name", 'a"b'], "--name"),
    ],
)
def test_mistakes_are_told_and_leave_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert cli.main(["keygen", str(tmp_path / "new"), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_ports() -> None:
    chosen = keygen.network(LOOPBACK, LOOPBACK, 9000)
    assert (chosen.s0, chosen.s1, chosen.s1_peer) == (9000, 9001, 9002)
    free = keygen.network(LOOPBACK, LOOPBACK, None)
    assert len({free.s0, free.s1, free.s1_peer}) == 3
