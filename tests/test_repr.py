"""Objects that hold secrets print none of them: logs, tracebacks and debuggers show a `repr`."""

import contextlib
import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
from functools import cache
from typing import Any

import numpy as np

from securemedian.mpc.protocols import wire
from securemedian.mpc.protocols.share import split
from securemedian.mpc.rounds.methods.base import Chunk
from securemedian.servers.computing.base import RoundInput
from securemedian.servers.machine.events import Tossed
from securemedian.servers.network.control import Check
from tests.parties import make_parties

PACKAGES = ("mpc", "common", "clients", "servers", "coordinator", "operating")
# types that may hold a secret
MAY_BE_SECRET = re.compile(r"bytes|ndarray|\bAny\b|Upload|Stream|ShareHalf|Kept")

# Fields of such a type that a `repr` shows, and why they may be seen.
SHOWN: dict[str, tuple[str, ...]] = {
    "a digest of parameters, of a model, of a run, or the id of a binding": (
        *("Draw.params", "Submission.params", "Submission.start", "Sent.start", "_Shared.start"),
        *("Round.start", "ShareFields.params", "ShareFields.start", "UploadFields.params"),
        *("UploadFields.start", "DealFields.params", "DealFields.start"),
        *("Record.start", "FoldedFields.binding", "Ballot.start", "UploadFields.path"),
    ),
    "what both servers sign, and signatures": (
        *("Record.params", "Record.opened", "Receipt.encoded", "Receipt.signatures"),
        "ServerRound.vouched",
        *("Resume.signature", "Done.signature", "Compute.digest"),
    ),
    "the SHA-256 of a share, which is uniform: it tells nothing without the other share": (
        *("Member.dealt", "Member.uploaded", "Member.uploaded_there"),
        *("DealingStored.digest", "Stored.digest"),
        *("Resume.held", "Uploaded.digest", "_Holding.held", "Close.held", "Held.held"),
        *("Row.sha256", "_Incoming.sha256"),
        *("_Incoming.sha256_before", "Opened.hashes"),
    ),
    "parameters, options, states and figures, which are public": (
        *("Option.kind", "Option.default", "Policy.allowed", "ClientPolicy.allowed"),
        *("RoundStatus.params", "RoundStatus.cost", "Hello.agreement", "Open.params"),
        *("TellFields.metrics", "Opening.params", "Opening.range", "Opening.optimiser"),
        *("SavedRound.asked", "Result.cost", "Seen.evaluation", "RoundPlan.round"),
        *("RoundPlan.range", "RoundPlan.optimiser", "RunPlan.round", "RunPlan.range"),
        *("RunPlan.optimiser", "Snapshot.values"),
    ),
    "a model, or a scale, that is published": (
        "RunState.model",
        "RunState.scale",
        "RunState.bound",
    ),
    "what an optimiser made of published models": ("RunState.moments",),
    "a public permutation, after its toss": ("Permutation.places", "Permutation.order"),
    "random bytes that measure a link": ("Load.load",),
    "a public key": ("KeyPair.public",),
    "names of layers": ("Spec.sent",),
    "where a caller's answer goes": ("Call.address",),
    "a class of which this test knows that it prints nothing secret": (
        *("DealtUpload.half", "Submission.halves", "Chunk.uploads", "RoundInput.uploads"),
        *("Ends.randomness",),
        *("Direction.entropy", "Work.entropy"),
    ),
}
REASONS = {name: reason for reason, names in SHOWN.items() for name in names}


@cache
def made() -> tuple[type[Any], ...]:
    """Return all dataclasses of the packages, which are as many modules as there are."""
    found: dict[type[Any], None] = {}
    for package in PACKAGES:
        root = importlib.import_module(f"securemedian.{package}")
        for info in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
            for each in vars(importlib.import_module(info.name)).values():
                if inspect.isclass(each) and each.__module__ == info.name:
                    found |= {each: None} if holds(each) else {}
    assert len(found) > 100
    return tuple(found)


def holds(each: type[Any]) -> bool:
    """Return whether a class is a dataclass of which there can be one."""
    return dataclasses.is_dataclass(each) and not inspect.isabstract(each)


def secrets_of(each: type[Any]) -> dict[str, bytes]:
    """Return a value to look for, for each field that may hold a secret."""
    return {
        field.name: f"secret in {field.name}".encode()
        for field in dataclasses.fields(each)
        if MAY_BE_SECRET.search(type_of(each, field))
    }


def type_of(each: type[Any], field: dataclasses.Field[Any]) -> str:
    """Return the type of a field, whose annotation a module may keep as text."""
    if not isinstance(field.type, str):
        return str(field.type)
    for cls in each.__mro__:
        if field.name in vars(cls).get("__annotations__", {}):
            # a name that only type checkers import cannot be resolved, and is not an array
            with contextlib.suppress(NameError):
                return str(eval(field.type, vars(sys.modules[cls.__module__])))
    return field.type


def test_no_dataclass_prints_what_may_be_secret() -> None:
    shown, own = set(), set()
    for each in made():
        values, one = secrets_of(each), object.__new__(each)
        for field in dataclasses.fields(each):
            object.__setattr__(one, field.name, values.get(field.name))
        try:
            text = repr(one)
        except (AttributeError, TypeError):
            # its own `__repr__`, which looks into what it has
            own.add(each.__name__)
            continue
        shown |= {f"{each.__name__}.{name}" for name, value in values.items() if str(value) in text}
    assert shown - set(REASONS) == set(), "hide them (`repr=False`), or give a reason in SHOWN"
    assert set(REASONS) - shown == set(), "these are hidden, or gone"
    assert own == {"Message"}, "test these below"


def test_values_are_not_printed_through_what_holds_them() -> None:
    """Neither by name, nor in what is nested, however numbers are written."""
    rng, coin = np.random.default_rng(2), b"the coin of a ro"
    halves = split(rng.integers(0, 2**64, (1, 4), np.uint64), 64)
    party = make_parties()[0][0]
    delta = getattr(party.pool.ends.sender, "delta")  # noqa: B009
    params: Any = None
    given = [1, 1], (), params, 2, 2, 0, 4, 4, coin, None, b"the noise of one"
    chunk = Chunk(list(halves), *given)
    held: list[tuple[Any, list[Any]]] = [
        (chunk, [coin, b"the noise of one", halves[0].seed, halves[1].packed]),
        (RoundInput(params, list(halves), [1], [], coin, coin), [coin, halves[0].seed]),
        (Tossed(coin, b"a token"), [coin, b"a token"]),
        (Check("1-3fa9c1d2", ["key"], coin), [coin]),
        (wire.Message("upload", {"seed": coin}, {"share": halves[1].packed}), [coin]),
        (party, [delta]),
        (party.pool, [delta]),
    ]
    for holder, secrets in held:
        for secret in secrets:
            for text in written(secret):
                assert text not in repr(holder) and text not in repr([holder]), type(holder)


def written(secret: Any) -> list[str]:
    """Return how a value may be printed."""
    if isinstance(secret, bytes):
        return [repr(secret)[2:-1], secret.hex()]
    return [str(int(one)) for one in np.asarray(secret).reshape(-1) if int(one) > 1 << 32]
