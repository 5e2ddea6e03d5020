"""Keys and configurations: what is written is what both loaders take; nothing is overwritten."""

import io
from pathlib import Path

import pytest
import zmq.auth

from securemedian import cli
from securemedian.clients.config import ClientConfig
from securemedian.common.keys import (
    SigningKey,
    fingerprint,
    is_public_key,
    is_signature,
    load_keys,
    load_signing_key,
)
from securemedian.mpc.errors import ConfigError
from securemedian.operating import keygen, public_keys
from securemedian.operating.keygen import LOOPBACK
from securemedian.servers import config as server_config


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
    assert cli.main(["keygen", str(tmp_path), "--clients", "3"]) == 2
    assert cli.main(["keygen", str(tmp_path), "--role", "client", "--name", "client-2"]) == 2
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert "an existing file" in capsys.readouterr().err


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
        # two clients, which both servers allow in so many words
        servers = ["--clients", "2", "--min-clients", "2"] if name in ("s0", "s1") else []
        named = servers if role == name else ["--name", name]
        assert cli.main(["keygen", str(directory), "--role", role, *named, *hosts]) == 0
        keys[name] = public_key(directory, name)
        assert keys[name] in capsys.readouterr().out
        assert {path.name for path in directory.iterdir()} == {
            f"{name}.toml",
            f"{name}.key",
            f"{name}.key_secret",
        }
        assert mode(directory / f"{name}.key_secret") == 0o600
    with pytest.raises(ConfigError) as missing:
        server_config.load(tmp_path / "s0" / "s0.toml")
    for other in ("s1", "coordinator", "client-1", "client-2"):
        assert f"PASTE HERE the public key of {other}" in str(missing.value)
    with pytest.raises(ConfigError, match="PASTE HERE the public key of s0"):
        ClientConfig.load(tmp_path / "client-1" / "client-1.toml")
    # everybody gives everybody's files, in any order; what is not needed does no harm
    files = [str(tmp_path / name / f"{name}.key") for name in reversed(keys)]
    for name in keys:
        path = tmp_path / name / f"{name}.toml"
        assert cli.main(["keygen", "--join", str(path), "--keys", *files]) == 0
        assert f"{path} is complete" in capsys.readouterr().out
        assert cli.main(["keygen", "--check", str(path)]) == 0
    s0, s1 = (server_config.load(tmp_path / name / f"{name}.toml") for name in ("s0", "s1"))
    client = ClientConfig.load(tmp_path / "client-1" / "client-1.toml")
    # of IPv6, too, unless the host is an address of IPv4
    assert (s0.listen, s0.peer.address) == ("tcp://*:7000", "tcp://10.0.0.2:7002")
    assert (s1.listen, s1.peer.listen) == ("tcp://0.0.0.0:7001", "tcp://0.0.0.0:7002")
    assert (client.s0.address, client.s1.address) == (
        "tcp://s0.example.org:7000",
        "tcp://10.0.0.2:7001",
    )
    assert [caller.public_key for caller in s0.clients] == [keys["client-1"], keys["client-2"]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--clients; give their number"),
        (["--clients", "1"], "give 2 to"),
        (["--clients", "3", "--base-port", "0"], "--base-port"),
        (["--role", "client"], "--name"),
        (["--role", "client", "--name", "../x"], "--name"),
        (["--role", "s1", "--name", "beta"], "the name of a server is its role"),
        (["--clients", "a,,b"], "--clients, invalid name"),
        (["--clients", "a,s0"], "names somebody twice"),
        (["--clients", "a"], "as many names"),
        # one file of two would forbid what the other allows
        (["--clients", "2"], "--min-clients 2 at both servers"),
        (["--role", "s0", "--clients", "a,b"], "--min-clients 2 at both servers"),
        (["--clients", "4", "--min-clients", "5"], "--min-clients 4"),
        (["--clients", "3", "--min-clients", "1"], "invalid --min-clients: 1;"),
    ],
)
def test_mistakes_are_told_and_leave_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert cli.main(["keygen", str(tmp_path / "new"), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("given", "floor"), [([], 3), (["--min-clients", "5"], 5)])
def test_the_servers_files_say_the_fewest_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], floor: int
) -> None:
    """A floor of 2 was written into every file, and nobody was asked."""
    assert cli.main(["keygen", str(tmp_path / "all"), "--clients", "5", *given]) == 0
    assert f"fewer than {floor} clients" in capsys.readouterr().out
    assert cli.main(["keygen", str(tmp_path / "one"), "--role", "s1", *given]) == 0
    for path in (tmp_path / "all" / "s0.toml", tmp_path / "all" / "s1.toml"):
        assert server_config.load(path).min_clients == floor
        path.write_text(path.read_text().replace(f"min_clients = {floor}\n", ""))
        assert server_config.load(path).min_clients == 3
    assert f"\nmin_clients = {floor}\n" in (tmp_path / "one" / "s1.toml").read_text()


def test_ports() -> None:
    chosen = keygen.network(LOOPBACK, LOOPBACK, 9000)
    assert (chosen.s0, chosen.s1, chosen.s1_peer) == (9000, 9001, 9002)
    free = keygen.network(LOOPBACK, LOOPBACK, None)
    assert len({free.s0, free.s1, free.s1_peer}) == 3


# Exchanging public keys

KEYS = [
    "Vk3cb=Sl&&3]8WNQ+FCbd]1/Q}J9+:tqW^h/W?=V",
    "ZC:n(g3xqV&Kb:p3K@17liL(JforP[JR[37UqL3T",
    "2x$#nbyBNhzC/PmGZlpy3BA%54>Bqn2e5IZhwW>{",
]


# as in docs/samples
SIGNING_KEYS = {
    "s0": "wQHGLYWqNQ1#-nMFjSCka5-7lQb$bC+E2=+kkqGn",
    "s1": "/1Ltdna6gI2<+30zF7J:r&=qeR=c7ZD}VKhZ+R0^",
}


def handed(role: str, name: str, key: str, signing_key: str = "") -> public_keys.PublicKey:
    return public_keys.PublicKey(role, name, key, signing_key or SIGNING_KEYS.get(role, ""))


def alone(directory: Path, role: str, name: str) -> Path:
    """Make one party and return its configuration."""
    pair = ["--clients", "hospital-a,hospital-b", "--min-clients", "2"]
    given = pair if role == name else ["--name", name]
    assert cli.main(["keygen", str(directory), "--role", role, *given]) == 0
    return directory / f"{name}.toml"


def test_a_fingerprint_is_that_of_the_32_bytes() -> None:
    # computed apart from this code: sha256sum of the decoded key, 100 bits in Crockford's base 32
    assert [fingerprint(key) for key in KEYS[:2]] == [
        "E4GWF-Z9M2P-RQ9YA-GJS3G",
        "G0JCH-CX1GY-0C2NA-B05MH",
    ]
    assert len({fingerprint(key) for key in KEYS}) == 3
    # likewise, of 64 bytes
    assert fingerprint(KEYS[0], SIGNING_KEYS["s1"]) == "1F7Q6-3DX96-M6ME3-AC90J"


@pytest.mark.parametrize("text", [KEYS[0][1:], KEYS[0] + "a", "#" * 40, "\u00e9" * 40, "", 7, None])
def test_what_is_no_public_key(text: object) -> None:
    assert not is_public_key(text)
    assert is_public_key(KEYS[0])


def test_everything_that_keygen_makes_has_its_fingerprint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["keygen", str(tmp_path / "all"), "--clients", "3"]) == 0
    said = capsys.readouterr().out
    for role, name in (("s0", "s0"), ("coordinator", "coordinator"), ("client", "client-2")):
        signing = (
            load_signing_key(tmp_path / "all" / "s0.key_secret").public if role == "s0" else ""
        )
        line = handed(role, name, public_key(tmp_path / "all", name), signing).line
        assert line in said.splitlines()
    alone(tmp_path / "one", "client", "hospital-a")
    line = handed("client", "hospital-a", public_key(tmp_path / "one", "hospital-a")).line
    assert line in capsys.readouterr().out.splitlines()


def test_a_pasted_block_fills_the_named_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = alone(tmp_path, "s0", "s0")
    path.chmod(0o640)
    before = path.read_text()
    lines = [
        handed("client", name, key).line
        for name, key in zip(("hospital-b", "hospital-a"), KEYS, strict=False)
    ]
    # mail programs break lines, and the coordinator's .key file is pasted as a whole
    alone(tmp_path / "gamma", "coordinator", "coordinator")
    alone(tmp_path / "beta", "s1", "s1")
    block = "\n".join(lines).replace(" ", "\n  ") + "\n"
    block += (tmp_path / "gamma" / "coordinator.key").read_text()
    block += (tmp_path / "beta" / "s1.key").read_text()
    monkeypatch.setattr("sys.stdin", io.StringIO(block))
    assert cli.main(["keygen", "--join", str(path)]) == 0
    said = capsys.readouterr().out
    assert f"client hospital-b: {fingerprint(KEYS[0])}" in said
    assert f"{path} is complete" in said
    loaded = server_config.load(path)
    assert [(caller.name, caller.public_key) for caller in loaded.clients] == [
        ("hospital-a", KEYS[1]),
        ("hospital-b", KEYS[0]),
    ]
    assert loaded.peer.public_key == public_key(tmp_path / "beta", "s1")
    assert mode(path) == 0o640 and not path.with_name("s0.toml.new").exists()
    # everything else is unchanged, comments included
    kept = [line for line in before.splitlines() if "PASTE" not in line]
    assert not set(kept) - set(path.read_text().splitlines())


def test_a_file_fills_no_place_but_that_of_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = alone(tmp_path, "s0", "s0")
    before = path.read_bytes()

    def refused(file: str, text: str) -> str:
        given = tmp_path / file
        given.write_text(text)
        assert cli.main(["keygen", "--join", str(path), "--keys", str(given)]) == 2
        assert path.read_bytes() == before
        return capsys.readouterr().err

    own, second = (handed("client", f"hospital-{one}", KEYS[0]).line for one in "ac")
    # as another one, as the other server, and twice
    other = handed("coordinator", "coordinator", KEYS[1])
    for text in (other.line, handed("s1", "s1", KEYS[1]).line, f"{own}\n{second}"):
        assert "than the one of hospital-a" in refused("hospital-a.key", text)
    # as the coordinator, in its own name; the place would have to be named by who runs the server
    said = refused("hospital-a.key", handed("coordinator", "hospital-a", KEYS[1]).line)
    assert "does not name this coordinator" in said
    assert "does not name this client" in refused("hospital-c.key", second)
    # a key in neither file has an invalid role
    assert "invalid role" in refused("s1.key", f'name = "s1"\npublic-key = "{KEYS[1]}"')
    assert "invalid role" in refused("hospital-a.key", f'public-key = "{KEYS[1]}"')
    path.write_text(f'{path.read_text()}\n[[clients]]\nname = "hospital-c"\npublic_key = ""\n')
    assert (
        cli.main(["keygen", "--join", str(path), "--keys", str(tmp_path / "hospital-c.key")]) == 0
    )
    assert f"client hospital-c: {fingerprint(KEYS[0])}" in capsys.readouterr().out


def test_join_tells_what_is_still_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = alone(tmp_path / "s0", "s0", "s0")
    alone(tmp_path / "s1", "s1", "s1")
    assert cli.main(["keygen", "--join", str(path), "--keys", str(tmp_path / "s1/s1.key")]) == 0
    said = capsys.readouterr().out
    for place in ("[[coordinators]] 1 has no", "[[clients]] 1 has no", "[[clients]] 2 has no"):
        assert f"still to do: {place} public key of" in said
    assert "[peer] has no" not in said and "is complete" not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no public key in the file"),
        (f"client a {KEYS[0]}", "invalid public key"),
        (f"hello!\nclient a {KEYS[0]} DIGITS", "invalid public key: 'hello!'"),
        (f"clint a {KEYS[0]} DIGITS", "invalid public key"),
        (f"client a {KEYS[1]} DIGITS", "the key of a was changed on the way"),
        (f'role = "client"\nname = "a"\npublic-key = "{KEYS[0][:-1]}"', "invalid public key"),
        (f'role = "owner"\npublic-key = "{KEYS[0]}"', "invalid role"),
        (f"s0 s0 {KEYS[0]} DIGITS", "a key without its signing key"),
        (
            f'role = "s0"\nname = "beta"\npublic-key = "{KEYS[0]}"',
            "the name of a server is its role",
        ),
        (
            f'role = "client"\nname = "a"\nsigning-key = "{KEYS[1]}"\npublic-key = "{KEYS[0]}"',
            "has no signing key",
        ),
        (f"s0 beta {KEYS[0]} {KEYS[1]} DIGITS", "the key of beta was changed on the way"),
        (f'signing-secret = "{KEYS[1]}"', "a secret key, which"),
        (f'public-key = "{KEYS[0]}"\nsecret-key = "{KEYS[1]}"', "a secret key, which"),
    ],
)
def test_mistakes_in_keys_are_told_and_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path = alone(tmp_path, "s1", "s1")
    before = path.read_bytes()
    given = tmp_path / "given.txt"
    given.write_text(text.replace("DIGITS", fingerprint(KEYS[0])))
    assert cli.main(["keygen", "--join", str(path), "--keys", str(given)]) == 2
    error = capsys.readouterr().err
    assert said in error and str(given) in error
    assert path.read_bytes() == before


def test_a_key_that_is_there_is_never_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = alone(tmp_path, "client", "a")
    public_keys.join(path, [handed("s0", "s0", KEYS[0])])
    before = path.read_bytes()
    public_keys.join(path, [handed("s0", "s0", KEYS[0])])
    assert path.read_bytes() == before
    with pytest.raises(ConfigError) as caught:
        public_keys.join(path, [handed("s1", "s1", KEYS[2]), handed("s0", "s0", KEYS[1])])
    assert fingerprint(KEYS[0]) in str(caught.value) and fingerprint(KEYS[1]) in str(caught.value)
    assert path.read_bytes() == before
    with pytest.raises(ConfigError, match="another signing_key of s0"):
        public_keys.join(path, [handed("s0", "s0", KEYS[0], SIGNING_KEYS["s1"])])
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("party = 0\n", r"lacks a table: \[peer\]"),
        ("party = 0\npeer = 3\n", "not a table: `peer`"),
        ("party = 0\npeer = { public_key = '' }\n", "paste it by hand"),
        ("party = 0\n[peer]\n", "paste it by hand"),
        ("party =", "is not TOML"),
    ],
)
def test_a_configuration_of_another_form_is_left_alone(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "s0.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        public_keys.join(path, [handed("s1", "s1", KEYS[0])])
    assert path.read_text() == text


def test_check_names_every_missing_and_doubtful_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = alone(tmp_path, "s0", "s0")
    own = public_key(tmp_path, "s0")
    signing = load_signing_key(tmp_path / "s0.key_secret").public
    text = path.read_text().replace("PASTE HERE the signing key of s1", signing)
    for name, key in (("s1", own), ("hospital-a", KEYS[0]), ("coordinator", KEYS[0])):
        text = text.replace(f"PASTE HERE the public key of {name}", key)
    path.write_text(text)
    assert cli.main(["keygen", "--check", str(path)]) == 2
    said = capsys.readouterr()
    assert "[peer] s1 has this party's own key" in said.err
    assert "[[clients]] 2 has no public key of hospital-b" in said.err
    assert "[[clients]] 1 hospital-a has the same key as [[coordinators]] 1 coordinator" in said.err
    printed = [line.split() for line in said.out.splitlines()]
    assert ["own", "key", "s0", fingerprint(own, signing)] in printed
    assert ["[peer]", "s1", fingerprint(own, signing)] in printed
    assert ["[[clients]]", "1", "hospital-a", fingerprint(KEYS[0])] in printed
    assert ["[[clients]]", "2", "hospital-b", "missing"] in printed


@pytest.mark.parametrize("name", ["s0", "client-1"])
def test_check_finds_what_a_start_would_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    directory = tmp_path / "keys"
    assert cli.main(["keygen", str(directory), "--clients", "3"]) == 0
    path, secret = directory / f"{name}.toml", directory / f"{name}.key_secret"
    assert cli.main(["keygen", "--check", str(path)]) == 0
    secret.chmod(0o644)
    assert cli.main(["keygen", "--check", str(path)]) == 2
    assert "chmod 600" in capsys.readouterr().err
    secret.chmod(0o600)
    path.write_text(f"pear = 1\n{path.read_text()}")
    assert cli.main(["keygen", "--check", str(path)]) == 2
    assert "unknown pear" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["DIR", "--join", "s0.toml"],
        ["--check", "s0.toml", "--role", "s0"],
        ["--check", "s0.toml", "--keys", "s1.key"],
        ["--clients", "2", "--keys", "s1.key"],
        ["--clients", "3"],
        ["--check", "none.toml"],
        ["--join", "none.toml", "--keys", "none.key"],
    ],
)
def test_flags_that_do_not_fit_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["keygen", *arguments]) == 2
    assert list(tmp_path.iterdir()) == []


# The signing keys of servers


def test_a_signature_is_of_its_key_and_its_data(tmp_path: Path) -> None:
    key = SigningKey.new()
    signature = key.sign(b"data")
    assert len(signature) == 64 and is_signature(key.public, b"data", signature)
    for other, data, signed in (
        (SigningKey.new().public, b"data", signature),
        (key.public, b"date", signature),
        (key.public, b"data", bytes([signature[0] ^ 1]) + signature[1:]),
        (key.public, b"data", signature[1:]),
        (key.public, b"data", b""),
    ):
        assert not is_signature(other, data, signed)
    assert key.secret not in repr(key)


def test_a_signing_key_and_its_secret_are_a_pair(tmp_path: Path) -> None:
    secret = alone(tmp_path, "s1", "s1").with_suffix(".key_secret")
    key = load_signing_key(secret)
    secret.write_text(secret.read_text().replace(key.public, SigningKey.new().public))
    with pytest.raises(ConfigError, match="do not belong together"):
        load_signing_key(secret)


def test_a_key_file_that_went_through_windows_is_read_or_named(tmp_path: Path) -> None:
    server = tmp_path / "s0"
    alone(server, "s0", "s0")
    path = server / "s0.key_secret"
    plain = path.read_text("utf-8")
    keys, signing = load_keys(path), load_signing_key(path)
    lines = plain[plain.index("public-key") :].replace("\n", "\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + (lines + plain.replace("\n", "\r\n")).encode())
    assert (load_keys(path), load_signing_key(path)) == (keys, signing)
    path.write_text(plain, "utf-16")
    with pytest.raises(ConfigError, match="UTF-16"):
        load_keys(path)
    secret = keys.secret.decode()
    for wrong in (f"\u201c{secret}\u201d", f'"{secret}\u00a0"', f'"{secret[:-1]}"'):
        path.write_text(plain.replace(f'"{secret}"', wrong), "utf-8")
        with pytest.raises(ConfigError, match="whose secret-key is not 40 characters") as caught:
            load_keys(path)
        assert secret[:8] not in str(caught.value)
        with pytest.raises(ConfigError, match="whose secret-key is not 40 characters"):
            load_signing_key(path)


def test_a_public_key_that_went_through_windows_is_read_or_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = alone(tmp_path, "s1", "s1")
    alone(tmp_path / "client", "client", "hospital-a")
    given = tmp_path / "client" / "hospital-a.key"
    plain = given.read_text("utf-8")
    own = public_key(tmp_path / "client", "hospital-a")
    arguments = ["keygen", "--join", str(path), "--keys", str(given)]
    given.write_text(plain.replace('"', "\u201d"), "utf-8")
    assert cli.main(arguments) == 2
    assert "it has curly quotes; type plain ones" in capsys.readouterr().err
    path.write_text(path.read_text("utf-8"), "utf-8-sig")
    given.write_text(plain, "utf-8-sig")
    cli.main(arguments)
    assert f"client hospital-a: {fingerprint(own)}" in capsys.readouterr().out
