"""The verb `receipt`, which shows and verifies the receipt of a round and needs no server."""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securemedian.clients import files
from securemedian.common.toml import read_text, read_toml
from securemedian.mpc.errors import ConfigError, ReceiptInvalid
from securemedian.mpc.rounds.privacy import DELTA, epsilon_of

if TYPE_CHECKING:
    from securemedian.common.receipts import Receipt

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

_IN_KEY_FILE = re.compile(r'^\s*(role|signing-key)\s*=\s*"(.*)"\s*$', re.MULTILINE)


def add_verb(subparsers: "Verbs") -> None:
    verb = subparsers.add_parser(
        "receipt",
        description="Show or verify the receipt of a round, without a server.",
    )
    actions = verb.add_subparsers(required=True, metavar="ACTION")
    for name, act, summary in (
        ("show", _show, "print what a receipt says"),
        ("verify", _verify, "check the signatures of both servers"),
    ):
        action = actions.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        action.add_argument("file", type=Path, metavar="FILE", help="the receipt")
        action.add_argument(
            "--keys",
            nargs="+",
            type=Path,
            required=name == "verify",
            default=[],
            metavar="FILE",
            help=(
                "trust the keys in these files: the .toml of any party, or the .key files of both "
                "servers; a server's .toml also gives the clients' names"
            ),
        )
        action.set_defaults(run=act)


def save(receipt: "Receipt", path: Path) -> None:
    """Write a receipt file. Raises ConfigError if the path cannot be written."""
    with files.writing(path) as file:
        file.write(receipt.to_json().encode())


def load(path: Path) -> "Receipt":
    """Return the receipt in a file, unchecked. Raises ReceiptInvalid if there is none."""
    from securemedian.common.receipts import Receipt

    try:
        return Receipt.from_json(read_text(path))
    except ConfigError as error:
        raise ReceiptInvalid(str(error)) from error
    except ReceiptInvalid as error:
        raise ReceiptInvalid(f"{path}: {error}") from error


def _verify(options: argparse.Namespace) -> None:
    receipt = load(options.file)
    receipt.check(signing_keys(options.keys))
    print(f"{options.file}: both servers vouch for round {receipt.record.round}")


def _show(options: argparse.Namespace) -> None:
    receipt = load(options.file)
    names = {key: name for path in options.keys for key, name in _clients(path).items()}
    record = receipt.record
    print(f"round {record.round}, number {record.number} of the cohort {record.cohort}")
    print(f"by {record.service}, receipt version {record.version}")
    for line in _parameters(record.params):
        print(line)
    print(f"started from  {record.start.hex()}")
    print(f"opened        {record.opened.hex() or 'nothing: the result is for the clients alone'}")
    print(f"included      {len(record.included)} clients")
    for why, keys in {"": record.included, **record.left_out}.items():
        if why:
            print(f"left out      {why}")
        for key in keys:
            print(f"  {key} {names.get(key, '')}".rstrip())
    if record.zcdp_rho is not None:
        epsilon = epsilon_of(record.zcdp_rho)
        print(f"epsilon       {epsilon:.4g} at delta {DELTA:g} of all results so far")
    if record.released:
        print("released      the coordinator let others take part than in an earlier attempt")
    if record.one_malicious_server:
        print(
            "one server that deviates learns no more of it than docs/threat-model.md says, in at "
            f"most {record.runs} runs"
        )
    if record.participants:
        print(f"participants  {len(record.participants)}, whom the coordinator has named")
    for key in record.participants:
        print(f"  {key} {names.get(key, '')}".rstrip())
    signed = " and ".join(sorted(receipt.signatures)) or "nobody"
    if options.keys:
        receipt.check(signing_keys(options.keys))
        print(f"signed by {signed}, verified")
    else:
        print(f"signed by {signed}, not verified: give --keys")


def _parameters(params: Mapping[str, Any]) -> list[str]:
    """Return the lines on a round's parameters: first what an auditor looks for, then the rest."""
    first = {
        "method": "method",
        "dim": "coordinates",
        "min_clients": "at least",
        "max_clients": "at most",
        "result_to": "result to",
        "noise_multiplier": "noise",
    }
    # JSON escapes whatever would be a command to a terminal
    said = {name: json.dumps(value) for name, value in params.items()}
    lines = [f"{word:<13} {said.pop(name)}" for name, word in first.items() if name in said]
    rest = ", ".join(f"{json.dumps(name)[1:-1]} {value}" for name, value in said.items())
    return [*lines, f"{'and':<13} {rest}"]


def signing_keys(paths: Sequence[Path]) -> list[str]:
    """Return the signing keys of S0 and S1 in these files. Raises ConfigError unless one each."""
    found: dict[str, set[str]] = {"s0": set(), "s1": set()}
    for path in paths:
        for server, key in _signing_keys_in(path):
            found[server].add(key)
    for server, keys in found.items():
        if len(keys) != 1:
            named = " and ".join(map(str, paths))
            raise ConfigError(
                f"{named} has {len(keys)} signing keys of a server, and one is needed: "
                f"{server}; give the .toml of a client or of a server, or the .key files of "
                "both servers"
            )
    return [key for keys in found.values() for key in keys]


def _signing_keys_in(path: Path) -> list[tuple[str, str]]:
    """Return the servers' signing keys in one file, with the name of the server."""
    from securemedian.common.keys import check_public_key, key_places, load_signing_key

    if path.suffix == ".toml":
        values = read_toml(path)
        keys = [(place.name, place.signing_key) for place in key_places(values) if place.signs]
        if values.get("party") in (0, 1):
            own = load_signing_key(path.parent / str(values.get("key_file")))
            keys.append((f"s{values['party']}", own.public))
    else:
        about = dict(_IN_KEY_FILE.findall(read_text(path)))
        keys = [(about.get("role", path.stem), about.get("signing-key"))]
    good = [(server, str(key)) for server, key in keys if server in ("s0", "s1") and key]
    for _, key in good:
        check_public_key(key, "signing")
    return good


def _clients(path: Path) -> dict[str, str]:
    from securemedian.common.keys import key_places

    places = key_places(read_toml(path)) if path.suffix == ".toml" else []
    return {str(place.key): place.name for place in places if not place.signs}
