"""client.toml and coordinator.toml."""

from pathlib import Path

import pytest

from securemedian.clients.config import ClientConfig
from securemedian.mpc.errors import ConfigError

SAMPLES = Path(__file__).parents[1] / "docs" / "samples"
KEY = "6H#oO-F]Cx@k9-zqAHZGFLMSxVc#!sHV!X%iCP4L"
OTHER_KEY = "Vk3cb=Sl&&3]8WNQ+FCbd]1/Q}J9+:tqW^h/W?=V"
SIGNING_KEY = "wQHGLYWqNQ1#-nMFjSCka5-7lQb$bC+E2=+kkqGn"
OTHER_SIGNING_KEY = "/1Ltdna6gI2<+30zF7J:r&=qeR=c7ZD}VKhZ+R0^"
GOOD = f"""
name = "a"
key_file = "a.key_secret"
[s0]
address = "tcp://127.0.0.1:1"
public_key = "{KEY}"
signing_key = "{SIGNING_KEY}"
[s1]
address = "tcp://127.0.0.1:2"
public_key = "{OTHER_KEY}"
signing_key = "{OTHER_SIGNING_KEY}"
"""


@pytest.mark.parametrize("name", ["client", "coordinator"])
def test_samples_load(name: str) -> None:
    config = ClientConfig.load(SAMPLES / f"{name}.toml")
    assert config.key_file == str(SAMPLES / "keys" / f"{config.name}.key_secret")
    assert config.s0.address == "tcp://s0.example.org:7000"
    kept = str(SAMPLES / "keys" / "client-1-state")
    assert config.state_dir == (kept if name == "client" else "")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "a"', 'name = "a"\nport = 3', "unknown port"),
        ('name = "a"\n', "", "missing name"),
        ("[s1]", "[s2]", "unknown s2"),
        ('name = "a"', 'name = "a"\ncohort = "../b"', "invalid cohort name"),
        ('address = "tcp://127.0.0.1:1"', 'address = "127.0.0.1:1"', "tcp://HOST:PORT"),
        (
            'address = "tcp://127.0.0.1:1"',
            'adress = "tcp://127.0.0.1:1"',
            r"\[s0\]: unknown adress",
        ),
        (KEY, "PASTE HERE the public key of s0", "invalid public key"),
        ('name = "a"', 'name = "a"\nreply_timeout_s = 0', "reply_timeout_s"),
        ('name = "a"', 'name = "a"\npoll_interval_s = true', "poll_interval_s"),
        ("[s0]", "[s0", "not TOML"),
        (OTHER_KEY, KEY, "the same public_key"),
        (OTHER_SIGNING_KEY, SIGNING_KEY, "the same signing_key"),
        (SIGNING_KEY, "PASTE HERE the signing key of s0", r"\[s0\]: 'PASTE HERE the signing"),
        (f'signing_key = "{SIGNING_KEY}"\n', "", r"\[s0\]: missing signing_key"),
        ("tcp://127.0.0.1:2", "tcp://127.0.0.1:1", "the same address"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "client.toml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError, match=said):
        ClientConfig.load(path)


def test_a_file_that_went_through_windows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert ClientConfig.load(path).name == "a"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf_16_is_named(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "client.toml"
    path.write_bytes(GOOD.encode(encoding))
    with pytest.raises(ConfigError, match="UTF-16.*save it as UTF-8"):
        ClientConfig.load(path)


def test_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_bytes(GOOD.replace('name = "a"', 'name = "klinik-süd"').encode("cp1252"))
    with pytest.raises(ConfigError, match=r"not in UTF-8: byte \d+ is 0xfc; save it as UTF-8"):
        ClientConfig.load(path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "a"', 'name\u00a0= "a"', "line 2,.*: it has a no-break space; type plain ones"),
        ('name = "a"', "name = \u201ca\u201d", "line 2,.*: it has curly quotes; type plain ones"),
        ('name = "a"', "name = \u201ca\u2019\u00a0", "no-break space and curly quotes"),
        (KEY, f"{KEY}\u00a0", "no-break space; type plain ones"),
        (KEY, f"\u201c{KEY}\u201d", "curly quotes; type plain ones"),
    ],
)
def test_what_a_word_processor_puts_in_is_named(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    path = tmp_path / "client.toml"
    path.write_text(GOOD.replace(old, new, 1), "utf-8")
    with pytest.raises(ConfigError, match=said):
        ClientConfig.load(path)


def test_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keygen"):
        ClientConfig.load(tmp_path / "none.toml")


def test_all_missing_keys_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text(GOOD.replace(KEY, "missing one").replace(OTHER_KEY, "missing other"))
    with pytest.raises(ConfigError) as caught:
        ClientConfig.load(path)
    assert "invalid public keys [s0]: 'missing one', [s1]: 'missing other';" in str(caught.value)


def test_a_cohort_has_a_state_folder_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(GOOD.replace('name = "a"', 'name = "a"\nstate_dir = "kept"'))
    config = ClientConfig.load(path)
    assert (config.cohort, config.state_folder) == ("default", tmp_path / "kept")
    config = ClientConfig.load(path, "stroke")
    assert (config.cohort, config.state_folder) == ("stroke", tmp_path / "kept-stroke")
    path.write_text(GOOD.replace('name = "a"', 'name = "a"\ncohort = "lung"'))
    config = ClientConfig.load(path)
    assert (config.cohort, config.state_folder) == ("lung", None)
    with pytest.raises(ConfigError, match="invalid cohort name"):
        ClientConfig.load(path, "A")
