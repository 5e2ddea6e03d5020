"""The verb `submit`; what it needs is imported when it runs, so that --help needs nothing."""

import argparse
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securemedian.clients import files, receipts
from securemedian.clients.flags import add_cohort, add_keep_local, add_public
from securemedian.common.durable import say
from securemedian.common.status import by_reason, check_public_metrics
from securemedian.common.terminal import Teller
from securemedian.mpc.errors import ConfigError

if TYPE_CHECKING:
    from securemedian.clients.client import Client
    from securemedian.clients.member import Member

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]


def add_verbs(subparsers: "Verbs") -> None:
    _add_submit(subparsers)
    receipts.add_verb(subparsers)


def _add_submit(subparsers: "Verbs") -> None:
    verb = subparsers.add_parser(
        "submit",
        description=(
            "Wait for the next open round and submit the trained parameters in a .npy, .npz or "
            ".safetensors file, or predictions on a public set in a .npy file (samples, classes)."
        ),
    )
    verb.add_argument("config", metavar="CONFIG", help="this client's client.toml")
    add_cohort(verb)
    verb.add_argument(
        "update",
        type=Path,
        metavar="FILE",
        help="the trained parameters: .npy, .npz or .safetensors",
    )
    add_public(verb)
    verb.add_argument(
        "--round",
        default="",
        metavar="ID",
        help="submit nothing, and get the result or receipt of this earlier round of yours again",
    )
    verb.add_argument(
        "--group",
        type=int,
        metavar="J",
        help="in a round of several groups: the one, from 0 on, whose model was trained",
    )
    verb.add_argument(
        "--result",
        type=Path,
        metavar="FILE",
        help="wait for the result and write it in the same form",
    )
    verb.add_argument(
        "--public-metric",
        type=_public_metric,
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help=(
            "a number to send along in the clear, for everybody in the cohort to read, such as "
            "examples=120; can be given again"
        ),
    )
    add_keep_local(verb)
    verb.add_argument(
        "--saturate",
        action="store_true",
        default=None,
        help="cut values that are beyond the range of the round's method, instead of refusing",
    )
    add_receipt(verb)
    verb.set_defaults(run=_submit)


def _public_metric(text: str) -> tuple[str, float]:
    """Return the name and the number in NAME=NUMBER."""
    name, _, number = text.rpartition("=")
    try:
        ((name, value),) = check_public_metrics({name: float(number)}).items()
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"invalid metric: {text!r} ({error}); write it like examples=120"
        ) from error
    return name, value


def add_receipt(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--receipt",
        type=Path,
        metavar="FILE",
        help="wait for the result and write what both servers have signed: `securemedian receipt`",
    )


def _submit(options: argparse.Namespace) -> None:
    from securemedian.clients.client import Client
    from securemedian.clients.public import PublicSet
    from securemedian.clients.update import arrange, flatten, unflatten

    update = files.read(options.update)
    wanted = [path for path in (options.result, options.receipt) if path]
    for path in wanted:
        files.check_writable(path)
    if options.round and not wanted:
        raise ConfigError(
            f"--round submits nothing: {options.round}; give --result or --receipt, too"
        )
    public = PublicSet.load(options.public) if options.public else None
    with Client.from_config(options.config, options.cohort, public=public, report=tell) as client:
        round_id, form = options.round, None
        if not round_id:
            current = client.wait_for_round()
            round_id, form = current.round_id, current.form
            if current.submitted and wanted:
                say(f"round {round_id} has an upload of this client already, and takes no other")
            else:
                _submit_and_warn(client, update, options)
                say(f"submitted to round {round_id}")
        try:
            if not wanted:
                client.attend()
                return
            result = client.result(round_id, group=options.group)
        except KeyboardInterrupt:
            tell(f"run this again with --round {round_id} to go on with that round")
            raise
        with kept_at_servers(round_id):
            if options.result:
                if not isinstance(result, dict):
                    # an earlier process may have submitted it, whose update this one has read again
                    own = flatten(update, options.keep_local)
                    result = unflatten(result.reshape(-1), arrange(*own, form)[1])
                files.write(options.result, result)
            say_result(client, round_id, options)


@contextmanager
def kept_at_servers(round_id: str) -> Iterator[None]:
    """Let a ConfigError of what is written here say how to get it again."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(
            f"the result of round {round_id} is not written: {error}; the servers still have it, "
            f"so run this again with --round {round_id}"
        ) from error


tell = Teller("securemedian: ")


def _submit_and_warn(client: "Client", update: Any, options: argparse.Namespace) -> None:
    """Submit an update, and say what is odd about it in a line like other messages."""
    from securemedian.clients.upload import RangeWarning
    from securemedian.common.terminal import shown_upload

    with shown_upload() as progress, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RangeWarning)
        client.submit(
            update,
            progress=progress,
            public_metrics=dict(options.public_metric),
            group=options.group,
            keep_local=options.keep_local,
            saturate=options.saturate,
        )
    for warning in caught:
        print(f"securemedian: warning: {warning.message}", file=sys.stderr)


def say_result(member: "Member", round_id: str, options: argparse.Namespace) -> None:
    """Write the receipt, and say where it and the result are, and who was left out and why."""
    if options.result:
        say(f"result of round {round_id} in {options.result}")
    if options.receipt:
        receipts.save(member.receipt(round_id), options.receipt)
        say(f"receipt of round {round_id} in {options.receipt}")
    for group in member.unchanged_groups(round_id):
        print(
            f"group {group} of round {round_id} keeps its model: too few clients have chosen it",
            file=sys.stderr,
        )
    for text in by_reason(member.left_out(round_id)):
        print(f"left out of round {round_id}: {text}", file=sys.stderr)
