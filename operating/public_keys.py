"""The exchange of public keys: what one party hands out, and how another fills it in and checks it.

Behind the flags `--join` and `--check` of `keygen`.
"""

import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securemedian.clients.config import ClientConfig
from securemedian.common.durable import replace_file
from securemedian.common.keys import (
    SERVERS,
    check_public_key,
    fingerprint,
    is_public_key,
    key_places,
    load_keys,
    load_signing_key,
)
from securemedian.common.toml import odd_in, read_text, read_toml
from securemedian.mpc.errors import ConfigError, cut, quoted
from securemedian.servers import config as server_config

ROLES = ("s0", "s1", "coordinator", "client")
# a party's name becomes a file name, and is written into TOML
NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,39}"
# the standard input, among the files of `--keys`
STDIN = "-"

# A mail program may have broken the line, so that any white space separates the words.
_LINE = re.compile(
    rf"(?<!\S)({'|'.join(ROLES)})\s+({NAME})\s+(\S{{40}})(?:\s+(\S{{40}}))?"
    r"\s+((?:[0-9A-Z]{5}-){3}[0-9A-Z]{5})"
    r"(?!\S)"
)
_SETTING = re.compile(r'^\s*(role|name|signing-key|public-key)\s*=\s*"(.*)"\s*$')
_SECRET = re.compile(r"^\s*(secret-key|signing-secret)\s*=", re.MULTILINE)
# the rest of a .key file: comments and the titles of its parts
_REST_OF_KEY_FILE = re.compile(r"^\s*(#(\s.*)?|metadata|signing|curve)?\s*$")


@dataclass(frozen=True)
class PublicKey:
    """A public key and whose it is, as a party hands it out."""

    role: str
    name: str
    key: str
    # of a server alone
    signing_key: str = ""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigError(f"invalid role: {quoted(self.role)}; take one of {', '.join(ROLES)}")
        check_name(self.name)
        check_public_key(self.key)
        if self.role not in SERVERS:
            if self.signing_key:
                raise ConfigError(f"a {self.role} has no signing key: {self.name}; leave it out")
            return
        if self.name != self.role:
            raise ConfigError(
                f"the name of a server is its role {self.role}: {self.name}; correct it"
            )
        if not self.signing_key:
            raise ConfigError(
                f"a key without its signing key: {self.name}; have the whole line or .key file "
                "sent again"
            )
        check_public_key(self.signing_key, "signing")

    @property
    def keys(self) -> list[str]:
        return [self.key, *([self.signing_key] if self.signing_key else [])]

    @property
    def fingerprint(self) -> str:
        return fingerprint(*self.keys)

    @property
    def line(self) -> str:
        """The line to hand out; its last word shows whether the keys were copied unharmed."""
        return " ".join([self.role, self.name, *self.keys, self.fingerprint])

    @property
    def settings(self) -> dict[str, str]:
        signing = {"signing_key": self.signing_key} if self.signing_key else {}
        return {"public_key": self.key, **signing}


def check_name(name: str, where: str = "") -> str:
    """Return the name of a party. Raises ConfigError unless it can have it."""
    if not re.fullmatch(NAME, name):
        raise ConfigError(
            f"{where}invalid name: {quoted(name)}; use 1 to 40 letters, digits, dots, dashes "
            "or underscores"
        )
    return name


def read_public_keys(sources: Sequence[str]) -> list[PublicKey]:
    """Return the public keys in these files, of which "-" is the standard input.

    A file NAME.key has the key of NAME and no other, because its sender wrote it: who names the
    files says by that whose keys they are. The standard input may have several.

    Raises ConfigError if a file cannot be read, or has something else.
    """
    found = []
    for source in sources:
        if source == STDIN:
            if sys.stdin.isatty():
                print("Paste the others' lines, and end with Ctrl-D:")
            text = sys.stdin.read().removeprefix("\ufeff")
        else:
            text = read_text(Path(source))
        where = "the standard input" if source == STDIN else source
        try:
            keys = parse_public_keys(text)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        if not keys:
            raise ConfigError(
                f"no public key in the file: {where}; give .key files, or lines of keygen"
            )
        if source != STDIN and [key.name for key in keys] != [Path(source).stem]:
            held = ", ".join(f"{key.role} {key.name}" for key in keys)
            raise ConfigError(
                f"{source} has other keys than the one of {Path(source).stem}: "
                f"{cut(held, 200)}; ask who sent it; lines that you have compared go to the "
                "standard input"
            )
        found += keys
    return found


def parse_public_keys(text: str) -> list[PublicKey]:
    """Return the public keys in lines as `PublicKey.line` has them, and in the text of .key files.

    Raises ConfigError if there is anything else, if one does not say whose it is, or if a key does
    not fit its fingerprint.
    """
    if _SECRET.search(text):
        raise ConfigError(
            "a secret key, which nobody but its owner may have: secret-key = ..; take the .key "
            "file without it, and if the secret has left its owner, have new keys made"
        )
    found = []
    for match in _LINE.finditer(text):
        role, whose, key, signing_key, digits = match.groups()
        check_public_key(key)
        if signing_key:
            check_public_key(signing_key, "signing")
        made = [key, *([signing_key] if signing_key else [])]
        if fingerprint(*made) != digits:
            raise ConfigError(
                f"the key of {whose} was changed on the way, for it does not fit its "
                f"fingerprint: {digits}; have it sent again"
            )
        found.append(PublicKey(role, whose, *made))
    about: dict[str, str] = {}
    for line in _LINE.sub("", text).splitlines():
        if setting := _SETTING.match(line):
            about[setting[1]] = setting[2]
            if setting[1] == "public-key":
                of = (about.pop(what, "") for what in ("role", "name", "public-key", "signing-key"))
                found.append(PublicKey(*of))
        elif not _REST_OF_KEY_FILE.match(line):
            raise ConfigError(
                f"invalid public key: {quoted(line.strip())}{odd_in(line)}; give .key files, or "
                "whole lines of `keygen` (role, name, key, fingerprint) and nothing else"
            )
    return found


def join(path: Path, keys: Sequence[PublicKey]) -> list[str]:
    """Fill others' public keys into a configuration, and return what was done, in words.

    A server gets the other server, and the coordinators and clients that its file names.
    Everybody else gets the two servers. Raises ConfigError, and changes nothing, if a key has no
    place there, or if another key has it already.
    """
    values, text, done = read_toml(path), read_text(path), []
    for key in keys:
        if (found := _entry(values, key, path)) is None:
            done.append(f"{key.role} {key.name}: not needed in {path.name}")
            continue
        table, place, entry = found
        for setting, new in key.settings.items():
            if is_public_key(kept := entry.get(setting)) and kept != new:
                raise ConfigError(
                    f"{path} has another {setting} of {key.name} than {fingerprint(new)}: "
                    f"{fingerprint(kept)}; ask which is right, and change it by hand if it is the "
                    "new one"
                )
        text = _filled(text, table, place, key)
        done.append(f"{key.role} {key.name}: {key.fingerprint}")
        try:
            values = tomllib.loads(text)
        except ValueError as error:
            raise ConfigError(
                f"cannot fill keys into the file: {path} ({error}); paste them by hand"
            ) from error
        found = _entry(values, key, path)
        if found is None or not found[2].items() >= key.settings.items():
            raise ConfigError(
                f"cannot find in {path} where a key belongs: {key.name}; paste it by hand"
            )
    replace_text(path, text)
    return done


def check(path: Path) -> tuple[list[str], list[str]]:
    """Return a line per key of a configuration, with its fingerprint, and what is wrong with keys.

    If nothing is, the whole configuration is checked as at the start of a server or client: raises
    ConfigError if it would be refused there.
    """
    values = read_toml(path)
    lines, faults = [], []
    # the place of each key, which nobody else may have
    owners: dict[str, str] = {}
    if isinstance(key_file := values.get("key_file"), str):
        try:
            own = [load_keys(path.parent / key_file).public.decode()]
            if _is_server(values):
                own.append(load_signing_key(path.parent / key_file).public)
            owners |= dict.fromkeys(own, "this party's own key")
            lines.append(f"{'own key':<20} {path.stem:<24} {fingerprint(*own)}")
        except ConfigError as error:
            faults.append(str(error))
    for place in key_places(values):
        if not place.complete:
            lines.append(f"{place.table:<20} {place.name:<24} missing")
            kind = "signing" if is_public_key(place.key) else "public"
            faults.append(f"{place.table} has no {kind} key of {place.name}")
            continue
        lines.append(f"{place.table:<20} {place.name:<24} {place.fingerprint}")
        both = [key for key in (place.key, place.signing_key) if is_public_key(key)]
        who = f"{place.table} {place.name}"
        faults += [f"{who} has {owners[key]}" for key in both if key in owners]
        owners |= {key: f"the same key as {who}" for key in both if key not in owners}
    if not faults:
        if _is_server(values):
            server_config.load(path)
        else:
            ClientConfig.load(path)
    return lines, faults


def _is_server(values: dict[str, Any]) -> bool:
    return "party" in values


def _entry(
    values: dict[str, Any], key: PublicKey, path: Path
) -> tuple[str, int, dict[str, Any]] | None:
    """Return the table of a configuration, the place in it and the entry that a key is for.

    It is None if the key is not needed. Raises ConfigError if the file lacks the entry.
    """
    signs, at_server = key.role in SERVERS, _is_server(values)
    # clients and the coordinator need both servers' keys, and a server needs all but its own
    if key.role == f"s{values['party']}" if at_server else not signs:
        return None
    table = key.role if not at_server else "peer" if signs else f"{key.role}s"
    found = values.get(table, [])
    entries = [found] if isinstance(found, dict) else found
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{path}, not a table: `{table}`; write it as docs/samples shows")
    if signs and len(entries) != 1:
        raise ConfigError(f"{path} lacks a table: [{table}]; write it as docs/samples shows")
    for place, entry in enumerate(entries):
        if signs or entry.get("name") == key.name:
            return table, place, entry
    raise ConfigError(
        f"{path} does not name this {key.role}, whom you and not the key let take part: "
        f'{key.name}; to let it, write first [[{table}]] with name = "{key.name}" and '
        'public_key = ""'
    )


def _filled(text: str, table: str, place: int, key: PublicKey) -> str:
    """Return the text with the keys in one table. All else stays."""
    header = re.compile(r"^[ \t]*\[.*$", re.MULTILINE)
    wanted = re.compile(rf"^[ \t]*\[+\s*{table}\s*\]+")
    starts = [match.start() for match in header.finditer(text)] + [len(text)]
    spans = [
        (start, end)
        for start, end in zip(starts, starts[1:], strict=False)
        if wanted.match(text[start:end])
    ]
    if place >= len(spans):
        return text
    start, end = spans[place]
    part = text[start:end]
    for setting, value in key.settings.items():
        part = re.sub(
            rf'^([ \t]*{setting}[ \t]*=[ \t]*")[^"]*"',
            # keys have no backslash, which would mean something here
            rf'\g<1>{value}"',
            part,
            count=1,
            flags=re.MULTILINE,
        )
    return text[:start] + part + text[end:]


def replace_text(path: Path, text: str) -> None:
    """Replace a file in one step, and keep its mode."""
    try:
        mode = path.stat().st_mode & 0o777
        replace_file(path, [text.encode()], mode)
        # the bits that the umask took from it
        path.chmod(mode)
    except OSError as error:
        raise ConfigError(
            f"cannot write the file: {path} ({error.strerror}); choose another"
        ) from error
