"""Both servers under requests and messages that nobody should send, in each state of a round.

Whatever comes, nothing leaves the server's methods, no defect is logged and each request has an
answer that fits a frame. Nothing is written outside the state folder, and nothing piles up. Inputs
are those of tests/fuzzing.py.
"""

import itertools
import logging
import re
import shutil
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from securemedian.mpc import errors
from securemedian.mpc.arrays import PublicValues
from securemedian.mpc.errors import SecureMedianError
from securemedian.mpc.protocols import wire
from securemedian.mpc.protocols.audit.binding import fold_words
from securemedian.mpc.rounds.cost import Cost
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.optimiser import OPTIMISERS, optimiser_from
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Outcome
from securemedian.mpc.rounds.ranges.registry import POLICIES, policy_from
from securemedian.servers.network import control
from securemedian.servers.network.control import (
    LOAD_BYTES,
    Again,
    Bye,
    Check,
    Close,
    Compute,
    Dealt,
    Done,
    Failed,
    Held,
    Load,
    Open,
    Opened,
    Ready,
    Resume,
    Uploaded,
    Verdicts,
)
from securemedian.servers.rounds.register import ROUNDS_RETAINED
from securemedian.servers.rounds.requests import OPS
from tests.fuzzing import LONGEST_TEXT, VALUES, frames, fuzz
from tests.servers_alone import AUDITED, DEALT, DIM, PARAMS, START, VOTES, Server, held, hello

pytestmark = pytest.mark.slow

ROUND = "1-0000000a"
# the question to clients of an audited round
BINDING, COIN = bytes([1] * 16), bytes([2] * 16)
# A server logs these when its own code is at fault.
DEFECTS = {"request-error", "control-error", "action-error", "action-failed", "answer-lost"}
CODES = {
    error.code
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, SecureMedianError)
}

# Endings that may follow the number of a round, and must not name a folder.
NO_IDS = ["../../escaped", "0000000b/../..", "/escaped", "", "0000000B", "0000000b\n", "x" * 2000]

STATES = {
    0: (
        "none",
        "opening",
        "open",
        "closing",
        "starting",
        "running",
        "queued",
        "published",
        "failed",
    ),
    1: ("none", "open", "queued", "running", "published", "failed"),
}
# in rounds in which clients deal
DEALT_STATES = ("dealt", "checking")
# in audited ones: a client is asked for its fold
AUDITED_STATES = ("folding",)
PLACES = [
    (party, state)
    for party, states in STATES.items()
    for state in (*states, *DEALT_STATES, *AUDITED_STATES, "voting")
]
PARAMS_OF = dict.fromkeys(DEALT_STATES, DEALT) | dict.fromkeys(AUDITED_STATES, AUDITED)
PARAMS_OF |= {"voting": VOTES}


def bring(server: Server, state: str) -> None:
    """Bring a new server's first round to a state."""
    if server.params.form.dealing:
        steps = _dealt(server)
    else:
        steps = _leading(server) if server.config.party == 0 else _following(server)
    if state == "none":
        return
    for reached in steps:
        if reached == ("open" if state == "failed" else state):
            break
    if state == "failed":
        server.fail()
    assert server.state[0] == {"dealt": "open", "folding": "checking"}.get(state, state)


def _leading(s0: Server) -> Iterator[str]:
    s0.ask_to_open()
    yield "opening"
    round_id = s0.latest.server_round.round_id
    s0.hear(Opened(round_id, s0.sent[-1].session))
    yield "open"
    s0.upload_all(round_id)
    s0.hear(*(Uploaded(round_id, key) for key in s0.keys))
    yield "closing"
    s0.hear(Held(round_id, held(s0.keys)))
    yield "starting"
    s0.hear(Ready(round_id, 1))
    yield "running"
    s0.hear(Again(round_id, 1, "timeout", "why"))
    yield "queued"
    s0.now += 1.0
    s0.hear(hello())
    s0.rounds.tick()
    s0.hear(Ready(round_id, 2))
    yield _published(s0)


def _following(s1: Server) -> Iterator[str]:
    s1.hear(Open(ROUND, 1, PARAMS.to_dict(), bytes(16), True, False, START))
    yield "open"
    s1.upload_all(ROUND)
    s1.hear(Close(ROUND, held(s1.keys)))
    yield "queued"
    s1.hear(Compute(ROUND, s1.latest.server_round.digest, 1, bytes(16), False))
    yield "running"
    yield _published(s1)


def _dealt(server: Server) -> Iterator[str]:
    if server.config.party == 0:
        round_id = server.open()
    else:
        round_id = ROUND
        server.hear(Open(ROUND, 1, server.params.to_dict(), bytes(16), True, False, START))
    server.deal(server.keys[0], round_id)
    server.hear(Dealt(round_id, server.keys[0]))
    if server.config.party == 1:
        server.hear(Check(round_id, server.keys[:1]))
    server.rounds.engine_ended()
    assert server.engine.checked
    yield "dealt"
    server.upload_all(round_id)
    server.hear(*(Dealt(round_id, key) for key in server.keys))
    alike = server.latest.server_round.here
    if server.config.party == 0:
        server.ask(server.coordinator, "close", round=round_id)
        server.hear(Held(round_id, alike))
    else:
        server.hear(Close(round_id, alike))
    yield "checking"
    server.engine.end_check()
    server.rounds.engine_ended()
    if server.config.party == 0:
        server.hear(Verdicts(round_id, server.keys[:1], []))
    else:
        server.hear(Check(round_id, server.keys[1:]))
    server.rounds.engine_ended()
    server.engine.end_check()
    server.rounds.engine_ended()
    if server.config.party == 0:
        server.hear(Verdicts(round_id, server.keys[1:], []))
    if not server.params.form.audited:
        yield _voting(server)
        return
    if server.config.party == 1:
        server.hear(Check(round_id, server.keys))
    assert server.engine.folds
    server.engine.folds.ask(BINDING, COIN)
    yield "folding"


def _voting(server: Server) -> str:
    here = server.latest.server_round
    if server.config.party == 0:
        server.hear(Ready(here.round_id, 1))
    else:
        server.hear(Compute(here.round_id, here.digest, 1, bytes(16), False))
    _computed(server)
    return "voting"


def _published(server: Server) -> str:
    _computed(server)
    return "published"


def _computed(server: Server) -> None:
    server.engine.result = Outcome(PublicValues(np.zeros((1, DIM), np.uint64)), Cost())
    server.rounds.engine_ended()
    server.hear(server.done())


class Watching(logging.Handler):
    """Notes the events of a server, and how long the texts are that they carry."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.names: list[str] = []
        self.longest = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Note one event."""
        self.names.append(record.getMessage())
        fields = vars(record).get("fields", {})
        self.longest = max([self.longest, *(len(str(value)) for value in fields.values())])


_numbers = itertools.count()


@contextmanager
def a_server(party: int, state: str, folder: Path) -> Iterator[Server]:
    """Give a server in a state; afterwards look at its log, its folder and what it keeps."""
    own = folder / f"s{next(_numbers)}"
    logger, watching = logging.getLogger("securemedian"), Watching()
    level, propagates = logger.level, logger.propagate
    server = Server(party, own, PARAMS_OF.get(state, PARAMS))
    try:
        bring(server, state)
        logger.addHandler(watching)
        logger.setLevel(logging.INFO)
        # a terminal would print this; nobody looks at it, and it is slow
        logger.propagate = False
        yield server
        assert not DEFECTS & set(watching.names)
        assert watching.longest < LONGEST_TEXT, "a log quotes all it was given"
        assert [path.name for path in folder.iterdir()] == [own.name]
        assert {path.name for path in own.iterdir()} <= {
            "kept",
            "lock",
            "reserve",
            "spool",
            "state.db",
            "state.db-shm",
            "state.db-wal",
        }
        check_what_is_kept(server)
    finally:
        logger.removeHandler(watching)
        logger.propagate = propagates
        logger.setLevel(level)
        server.store.close()
        shutil.rmtree(own)


def check_what_is_kept(server: Server) -> None:
    """Check that the server keeps no more than its latest rounds, and uploads of a live one."""
    register = server.rounds.register
    spooled = [path.name for path in (server.folder / "spool").iterdir()]
    assert spooled == [entry.server_round.round_id for entry in register.live]
    entries = list(register._entries.values())
    assert len(entries) <= ROUNDS_RETAINED
    for entry in entries:
        assert re.fullmatch(r"[1-9][0-9]{0,17}-[0-9a-f]{8}", entry.server_round.round_id)
        assert entry.server_round.here.keys() | entry.server_round.there.keys() <= set(server.keys)
        assert len(entry.server_round.reason) < LONGEST_TEXT


def check_answers(server: Server, before: int) -> None:
    """Check the answers since `before`: each is an answer, or a typed error of bounded length."""
    for answer in server.replies[before:]:
        assert answer.type in {*OPS, "error"}
        if answer.type == "error":
            assert answer.fields["code"] in CODES
            assert len(answer.fields["message"]) < LONGEST_TEXT
    assert server.ask(server.keys[0], "info").type == "info"


# Requests

assert DEALT.form.dealing
DEALING_WORDS = DEALT.form.dealing.layout.words
ARRAYS: list[NDArray[Any]] = [
    np.zeros(16, np.uint8),
    np.zeros((PARAMS.form.layout.rows, PARAMS.form.layout.row_words), np.uint64),
    np.zeros((PARAMS.form.layout.rows, PARAMS.form.layout.row_words + 1), np.uint64),
    np.zeros((1, DEALT.form.layout.row_words), np.uint64),
    *(np.zeros(DEALING_WORDS // pieces, np.uint64) for pieces in (1, 2)),
    np.zeros(fold_words(DEALT.form.dealing), np.uint64),
    np.zeros(DIM, np.float32),
    np.full(DIM, np.nan, np.float32),
    np.full(DIM, np.float32(3e38)),
    np.zeros((DIM, 1), np.float32),
    np.zeros(DIM + 1, np.float64),
    np.zeros(0, np.uint8),
    np.zeros((0, 1 << 40), np.uint64),
    np.zeros((1,) * 8, np.int32),
]
# Every method and every range policy, each with all its options.
ROUNDS = [
    RoundParams.from_dict({"method": name, "dim": DIM, "max_clients": 3}).to_dict()
    for name in METHODS
]
RANGES: list[dict[str, Any]] = [{}, *(policy_from({"policy": name}).to_dict() for name in POLICIES)]
# likewise every optimiser
CHOSEN: list[dict[str, Any]] = [
    {},
    *(optimiser_from({"optimiser": name}).to_dict() for name in OPTIMISERS),
]


@st.composite
def requests(draw: st.DrawFn, server: Server) -> tuple[str, list[bytes]]:
    """Draw a caller and a request, which is nearly right."""
    latest = server.rounds.register.latest("default")
    params = draw(st.sampled_from(ROUNDS))
    fields = {
        "round": latest.server_round.round_id if latest else ROUND,
        "params": latest.server_round.params.digest if latest else bytes(32),
        "start": bytes.fromhex(latest.server_round.asked.start) if latest else bytes(32),
        "form": draw(st.sampled_from(["seed", "words", "rotations"])),
        "piece": draw(st.sampled_from([0, 1, 2, -1, 1 << 63])),
        "pieces": draw(st.sampled_from([1, 2, 3, 0, -1, 1 << 63])),
        "reason": "why",
        "cohort": draw(st.sampled_from(["default", "default", "another", ""])),
        "range": draw(st.sampled_from(RANGES)),
        "optimiser": draw(st.sampled_from(CHOSEN)),
        "reset": draw(st.booleans()),
        "keep_range": draw(st.booleans()),
        "release": draw(st.booleans()),
        "participants": draw(st.sampled_from([[], ["client-1", "client-2"], ["nobody"], [1]])),
        "group": draw(st.sampled_from([0, 1, -1, 1 << 63])),
        "values": draw(st.booleans()),
        "failed": draw(st.booleans()),
        "after": draw(st.sampled_from([0, 1, -1, 1 << 63])),
        "level": draw(st.sampled_from([0, 0, 1, -1, 1 << 63])),
        "path": draw(st.sampled_from([b"", bytes(32)])),
        "request": draw(st.sampled_from(["", "0123456789abcdef" * 2])),
        "binding": draw(st.sampled_from([BINDING, BINDING, COIN, b""])),
        "model_form": draw(st.sampled_from(["", f'[["a","float32",[{DIM}]]]', "[]", "[" * 999])),
        "metrics": draw(st.sampled_from([{}, {"loss": 0.5}, {"loss": 1}, {"": 1}, {"loss": "x"}])),
    }
    op = draw(st.sampled_from(sorted(OPS)))
    takes = {name: fields[name] for name in get_type_hints(OPS[op].fields)}
    if op == "open":
        inner = draw(st.sampled_from(sorted(params)))
        takes |= {"params": draw(st.sampled_from([params, params | {inner: draw(VALUES)}]))}
        takes |= {"range": draw(st.sampled_from([takes["range"], {"policy": draw(VALUES)}]))}
        mistaken = {"optimiser": "momentum", "rate": draw(VALUES)}
        takes |= {"optimiser": draw(st.sampled_from([takes["optimiser"], mistaken]))}
    names = draw(st.sets(st.sampled_from([*OPS[op].arrays, "x"]), max_size=2))
    arrays = {name: draw(st.sampled_from(ARRAYS)) for name in sorted(names)}
    key = draw(st.sampled_from([server.keys[0], server.keys[-1], server.coordinator]))
    return key, draw(frames(op, takes | {"id": 1}, arrays))


@pytest.mark.parametrize("party, state", PLACES)
def test_requests(party: int, state: str, tmp_path: Path, fuzz_examples: int) -> None:
    @fuzz(fuzz_examples // 3 + 1, st.data())
    def check(data: st.DataObject) -> None:
        with a_server(party, state, tmp_path) as server:
            for _ in range(data.draw(st.integers(1, 3))):
                before = len(server.replies)
                key, parts = data.draw(requests(server))
                server.requests.request(b"", key, parts)
                server.rounds.flush()
                # an `open` is answered when S1 has spoken, and so is `link`; `level` is held
                waits = bool(server.rounds.live) and server.latest.server_round.state == "opening"
                waits = waits or any(isinstance(message, Load) for message in server.sent)
                waits = waits or bool(server.requests._held)
                assert waits or len(server.replies) > before
                check_answers(server, before)


# Messages between the servers


def all_messages(server: Server) -> list[control.Message]:
    """Return a message of every kind, which fits the server's latest round or opens another."""
    latest = server.rounds.register.latest("default")
    round_id = latest.server_round.round_id if latest else ROUND
    digest = latest.server_round.digest if latest else bytes(32)
    attempt = latest.server_round.attempt if latest else 0
    held_there, keys, none = held(server.keys), server.keys, list[str]()
    coins = dict.fromkeys(server.keys, bytes(48))
    another = Open("2-0000000b", 2, PARAMS.to_dict(), bytes(16), True, False, START)
    signature = bytes(64)
    return [
        hello(),
        hello("two"),
        Bye(),
        Load(1, bytes(LOAD_BYTES)),
        another,
        *(Open("3-0000000c", 3, params, bytes(16), True, True, START) for params in ROUNDS),
        Opened(round_id, bytes(16)),
        *(
            Resume(
                round_id, bytes(16), state, attempt, signature, held_there, keys, keys, none, coins
            )
            for state in ("open", "running", "published")
        ),
        Resume(
            *(round_id, bytes(16), "voting", attempt, signature),
            *(held_there, keys, keys, none, coins),
            level=1,
        ),
        *(Dealt(round_id, key) for key in server.keys),
        *(Uploaded(round_id, key) for key in server.keys),
        Check(round_id, server.keys),
        Verdicts(round_id, server.keys, []),
        Close(round_id, held(server.keys)),
        Held(round_id, held(server.keys)),
        Compute(round_id, digest, attempt + 1, bytes(16), True),
        Ready(round_id, attempt),
        Done(round_id, attempt, signature),
        Again(round_id, attempt, "timeout", "why"),
        Failed(round_id, "timeout", "why"),
    ]


@st.composite
def messages(draw: st.DrawFn, server: Server) -> list[bytes]:
    """Draw a message of the other server, which is nearly right."""
    message = server.next(draw(st.sampled_from(all_messages(server))))
    valid = wire.unpack(control.encode(message))
    fields = valid.fields
    if "number" in fields and draw(st.booleans()):
        fields = fields | {"round": f"{fields['number']}-{draw(st.sampled_from(NO_IDS))}"}
    if "params" in fields and draw(st.booleans()):
        params = fields["params"]
        fields = fields | {"params": params | {draw(st.sampled_from(sorted(params))): draw(VALUES)}}
    return draw(frames(valid.type, fields))


def test_every_kind_of_message_is_tried(tmp_path: Path) -> None:
    with a_server(0, "none", tmp_path) as server:
        kinds = {type(message) for message in all_messages(server)}
    assert kinds == set(control.KINDS.values())


@pytest.mark.parametrize("party, state", PLACES)
def test_messages_of_the_peer(party: int, state: str, tmp_path: Path, fuzz_examples: int) -> None:
    @fuzz(fuzz_examples // 3 + 1, st.data())
    def check(data: st.DataObject) -> None:
        with a_server(party, state, tmp_path) as server:
            for _ in range(data.draw(st.integers(1, 3))):
                before = len(server.replies)
                server.rounds.control(data.draw(messages(server)))
                server.rounds.tick()
                check_answers(server, before)
                for message in server.sent:
                    assert sum(map(len, control.encode(message))) < wire.MAX_HEADER_BYTES


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("state", ["none", "open", "running", "published", "checking", "voting"])
def test_nothing_piles_up(party: int, state: str, tmp_path: Path) -> None:
    """A server that is told the longest things again and again keeps none of them."""
    text = "x" * 20_000
    with a_server(party, state, tmp_path) as server:
        rounds = [
            entry.server_round.round_id for entry in server.rounds.register._entries.values()
        ] or [ROUND]

        def tell(number: int) -> None:
            own = f"{text}{number}"
            for message in (
                Uploaded(rounds[0], own),
                Dealt(rounds[0], own),
                Check(rounds[0], [own]),
                Verdicts(rounds[0], [own], [own]),
                Close(rounds[0], {own: own.encode()}),
                Held(rounds[0], {own: own.encode()}),
                Failed(rounds[0], own, own),
                hello(**{own: own}),
                Resume(rounds[0], bytes(16), own, 0, b"", {own: b""}, [own], [own], [own], {}),
                Open(f"{number}-0000000b", number, {own: own}, bytes(16), True, False, START),
            ):
                server.hear(message)
                server.sent.clear()
            server.requests.request(
                b"", server.keys[0], wire.pack("status", {"id": 1, "round": own})
            )
            server.replies.clear()

        # the first of a kind may be kept: the last instance of the peer, the reason of a failure
        tell(1)
        tracemalloc.start()
        for number in range(2, 22):
            tell(number)
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert kept < 10 * len(text)
