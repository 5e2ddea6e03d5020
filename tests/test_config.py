"""servers.config: the samples load, and every mistake is named."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from securemedian.mpc.errors import ConfigError
from securemedian.servers import config

SAMPLES = Path(__file__).parent.parent / "docs" / "samples"
S0 = (SAMPLES / "s0.toml").read_text()


@pytest.mark.parametrize("party", (0, 1))
def test_the_samples_load(party: int) -> None:
    loaded = config.load(SAMPLES / f"s{party}.toml")
    assert loaded.party == party and loaded.name == f"s{party}"
    assert [client.name for client in loaded.clients] == ["client-1", "client-2", "client-3"]
    assert Path(loaded.key_file) == SAMPLES / "keys" / f"s{party}.key_secret"
    assert Path(loaded.state_dir) == SAMPLES / "state" / f"s{party}"


def test_the_samples_name_every_setting() -> None:
    for kind, text in (
        (config.ServerConfig, S0),
        (config.ProtocolParams, S0.partition("[protocol]")[2]),
        (config.EngineConfig, S0.partition("[engine]")[2]),
        (config.Policy, S0.partition("[policy]")[2]),
    ):
        for setting in fields(kind):
            # release 1.0's name for a `security`
            assert setting.name in text or setting.name == "audit"


def test_what_release_1_0_wrote_of_doors_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "s0.toml"
    for lines in ("doors = 0", 'doors = 0\ndoor_ports = "7010-7019"'):
        file.write_text(f"{lines}\n{S0}")
        loaded = config.load(file)
        assert loaded == replace(
            config.load(SAMPLES / "s0.toml"), key_file=loaded.key_file, state_dir=loaded.state_dir
        )
    file.write_text(f"doors = 2\n{S0}")
    with pytest.raises(
        ConfigError, match=r"s0\.toml, .*: doors = '?2'?; remove `doors` and `door_p"
    ):
        config.load(file)


def test_both_samples_agree() -> None:
    assert (
        config.load(SAMPLES / "s0.toml").agreement() == config.load(SAMPLES / "s1.toml").agreement()
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("party = 0", "party = 2", "invalid party: 2; write 0 or 1"),
        ("party = 0", "party = 1", "`listen` where party = 1"),
        ("party = 0", "party = true", "invalid party: True; give a whole number"),
        ("party = 0\n", "", "missing party"),
        ("party = 0", "party = 0\nlisten_adress = 3", "unknown listen_adress"),
        ("party = 0", "party = ", "is not TOML"),
        ('listen = "tcp://', 'listen = "http://', "tcp://HOST:PORT"),
        ("min_clients = 3", "min_clients = 1", "a single client's median"),
        ("peer_wait_s = 300", "peer_wait_s = 0", "invalid peer_wait_s: 0; give more than 0"),
        ("peer_wait_s = 300", "peer_wait_s = inf", "at most a week"),
        (
            "max_message_bytes = 268435456",
            "max_message_bytes = 0",
            "invalid max_message_bytes",
        ),
        (
            "peer_wait_s = 300",
            'peer_wait_s = "5 min"',
            "invalid peer_wait_s: '5 min'; give a number",
        ),
        ("lanes = 2", "lanes = 0", "invalid lanes: 0"),
        (
            'kind = "threads"',
            'kind = "processes"',
            "invalid kind: 'processes'; take one of threads, ray",
        ),
        ('kind = "threads"', 'kind = "threads"\nworkers = 3', 'are for kind = "ray" alone'),
        ('kind = "threads"', 'kind = "ray"\naddress = "ray"', "HOST:PORT"),
        (
            'kind = "threads"',
            'kind = "ray"\nworkers = 4\nshards = 3',
            "than the 3 shards, so that some would have nothing to do: 4;",
        ),
        (
            'kind = "threads"',
            'kind = "ray"\nports = "50100-50000"',
            "invalid range of ports: '50100-50000'; write FIRST-LAST, such as 50000-50100",
        ),
        (
            'kind = "threads"',
            'kind = "ray"\nports = "7000-7100"',
            "[engine] ports are S1's, because the workers of S0 connect",
        ),
        ('public_key = "', 'public_key = "#', "invalid public key"),
        (
            'address = "tcp://',
            'listen = "tcp://0.0.0.0:1"\naddress = "tcp://',
            "both or neither of its addresses",
        ),
        ("client-2", "client-1", "appears 2 times: 'client-1'"),
        ('name = "client-3"', 'name = ""', "a name of 0 characters: ''; use 1 to 40"),
        ("[[coordinators]]", "[coordinators]", "write [[coordinators]]"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in S0
    path = tmp_path / "s0.toml"
    path.write_text(S0.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    assert message in str(caught.value)


def test_a_key_has_one_role(tmp_path: Path) -> None:
    key = config.load(SAMPLES / "s0.toml").clients[0].public_key
    coordinator = config.load(SAMPLES / "s0.toml").coordinators[0].public_key
    path = tmp_path / "s0.toml"
    path.write_text(S0.replace(coordinator, key))
    with pytest.raises(ConfigError, match="one role"):
        config.load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        config.load(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("table", ["peer", "clients", "coordinators"])
def test_a_server_refuses_its_own_key_in_its_lists(table: str) -> None:
    loaded = config.load(SAMPLES / "s0.toml")
    entry = getattr(loaded, table)
    key = (entry if table == "peer" else entry[0]).public_key
    own = config.load(SAMPLES / "s1.toml").peer
    with pytest.raises(ConfigError, match="own public key"):
        config.check_own_key(loaded, key, own.signing_key)
    with pytest.raises(ConfigError, match="own public key"):
        config.check_own_key(loaded, own.public_key, loaded.peer.signing_key)
    config.check_own_key(loaded, own.public_key, own.signing_key)


def test_what_servers_on_ray_agree_on() -> None:
    threads, ray = config.EngineConfig(), config.EngineConfig(kind="ray", workers=3)
    assert threads.agreement() == {"engine": "threads"}
    assert ray.agreement() == {"engine": "ray", "shards": 3}
    other = config.EngineConfig(kind="ray", address="10.0.0.5:6379", workers=1, shards=3)
    assert ray.agreement() == other.agreement()


@pytest.mark.parametrize(
    ("kind", "said", "lanes"),
    [("threads", "", 2), ("ray", "", 1), ("ray", "lanes = 3", 3), ("threads", "lanes = 1", 1)],
)
def test_a_shard_has_one_lane_unless_told_otherwise(
    tmp_path: Path, kind: str, said: str, lanes: int
) -> None:
    stated = next(line for line in S0.splitlines() if line.startswith("lanes = "))
    path = tmp_path / "s0.toml"
    path.write_text(S0.replace(stated, said, 1).replace('kind = "threads"', f'kind = "{kind}"', 1))
    loaded = config.load(path)
    assert (loaded.engine.kind, loaded.protocol.lanes) == (kind, lanes)
    # all else stays what it was
    assert loaded.protocol.chunk == 262144
