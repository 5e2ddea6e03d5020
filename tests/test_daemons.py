"""Two real daemons: whole rounds, the rules of rounds, and what bad input gets."""

import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from securemedian.common.keys import KeyPair
from securemedian.mpc.errors import (
    BadUpload,
    ConfigError,
    FrameError,
    InputError,
    NotAllowed,
    ParametersDiffer,
    PeerUnavailable,
    RoundBusy,
    RoundClosed,
    RoundFailed,
    UnknownRound,
)
from securemedian.mpc.protocols import share, wire
from securemedian.mpc.protocols.kernels.native import processor
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.encode import UniformBuckets
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.uniform import CoordinateRange
from securemedian.servers.rounds.register import ENVELOPE_BYTES
from tests.daemons import SETTINGS, START_S, Pair, free_ports, running, wait_until

pytestmark = pytest.mark.slow

DIM = 1000
MODEL = np.linspace(-0.2, 0.2, DIM, dtype=np.float32)
BUCKETED: dict[str, Any] = {
    "method": "bucketed",
    "buckets": 8,
    "schedule": "scan",
    "dim": DIM,
    "max_clients": 3,
}
# the buckets of these tests: evenly over B = 0.1, and 8 of them
EVEN: dict[str, Any] = {"bucket_range": {"policy": "coordinate"}}
PAIRWISE: dict[str, Any] = {"method": "pairwise", "dim": DIM, "max_clients": 3}
MAX_MESSAGE_BYTES = 1 << 24


def updates(count: int = 3, seed: int = 1) -> list[np.ndarray]:
    return [
        MODEL + np.random.default_rng((seed, i)).normal(0, 0.05, DIM).astype(np.float32)
        for i in range(count)
    ]


def bucketed_in_the_clear(values: Sequence[np.ndarray], model: Any, width: Any) -> np.ndarray:
    lying = UniformBuckets(width, 8)
    index = np.sort([lying.bucketize(value, model) for value in values], axis=0)[
        (len(values) - 1) // 2
    ]
    return lying.quantize(index, model).astype(np.float32)


def exact_in_the_clear(values: Sequence[np.ndarray]) -> np.ndarray:
    fixed = np.sort([encode.to_fixed(value, 64, 24).view(np.int64) for value in values], axis=0)[
        (len(values) - 1) // 2
    ]
    return encode.from_fixed(fixed.view(np.uint64), 64, 24).astype(np.float32)


def in_state(pair: Pair, server: str, state: str) -> dict[str, Any]:
    """Return a server's status if it is in this state, else nothing."""
    status = pair.status(server)
    return status if status["state"] == state else {}


def in_another_state(pair: Pair, server: str, state: str) -> bool:
    """Tell whether a server has left a state."""
    return not in_state(pair, server, state)


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One pair for all tests that leave both servers as they found them."""
    made = Pair(
        tmp_path_factory.mktemp("pair") / "keys",
        settings=SETTINGS | {"max_message_bytes": MAX_MESSAGE_BYTES},
    )
    file = made.folder / "s1.toml"
    lines = f"[peer]\naes_port = {free_ports(1)[0]}"
    file.write_text(file.read_text().replace("[peer]", lines, 1))
    with running(made):
        yield made


@pytest.fixture
def pair(daemons: Pair) -> Iterator[Pair]:
    yield daemons
    if (status := daemons.status())["state"] == "open":
        daemons.caller("coordinator", "s0").ask(
            "abort", round=status["round"], reason="the test is over"
        )
        wait_until(lambda: daemons.status("s1")["state"] == "failed")
    # a run cannot be aborted
    for server in ("s0", "s1"):
        wait_until(partial(in_another_state, daemons, server, "running"))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Pair]:
    """Give a test a pair of its own, not yet started."""
    made = Pair(tmp_path / "keys")
    try:
        yield made
    finally:
        made.close()


def run(pair: Pair, values: Sequence[np.ndarray], **params: Any) -> str:
    """Run an honest round of all clients, and return its id."""
    round_id = pair.play(values, **params)
    pair.wait("published")
    return round_id


# Whole rounds


def test_bucketed_rounds_follow_the_plaintext_and_share_one_session(pair: Pair) -> None:
    model, width = MODEL, np.asarray(0.1, np.float32)
    for number in (1, 2, 3):
        values = updates(seed=number)
        start: dict[str, Any] = {"model": MODEL, **EVEN} if number == 1 else {}
        round_id = run(pair, values, **start, **BUCKETED)
        published = pair.result(round_id)
        assert published.dtype == np.float32 and np.array_equal(
            published, bucketed_in_the_clear(values, model, width)
        )
        status = pair.status()
        assert (
            status["number"] == number and len(status["included"]) == 3 and status["left_out"] == {}
        )
        cost, cost_there = status["cost"], pair.wait("published", "s1")["cost"]
        assert cost["ots"] > 0 and cost["bytes_sent"] == cost_there["bytes_received"]
        assert cost["preprocessing_bytes_sent"] > cost["online_bytes_sent"] > 0
        width = CoordinateRange().next(width, model, published, number, 8)
        model = published
    for server in ("s0", "s1"):
        events = pair.events(server)
        (session,) = [event for event in events if event["event"] == "session-established"]
        # the lanes are sealed, by a port of S1's that its operator has named
        assert session["aes"] == (session["lanes"] if processor.use_native(True) else 0)
        assert not [event for event in events if event["event"] == "lanes-on-curve"]
        assert not list((pair.folder / f"{server}-state" / "spool").iterdir())


def test_correlations_are_made_before_the_uploads_come_and_counted_with_their_round(
    pair: Pair,
) -> None:
    def filled(server: str) -> list[int]:
        return [event["ots"] for event in pair.events(server) if event["event"] == "pool-filled"]

    def more_than(server: str, count: int) -> bool:
        return len(filled(server)) > count

    before = {server: len(filled(server)) for server in ("s0", "s1")}
    round_id = pair.open(**PAIRWISE, reset=True)
    for server, count in before.items():
        wait_until(partial(more_than, server, count))
    values = updates()
    for name, value in zip(pair.names, values, strict=True):
        pair.submit(name, value)
    cost = pair.wait("published")["cost"]
    # the run itself made none
    assert cost["ots"] == filled("s0")[-1] == filled("s1")[-1] > 0
    assert (
        cost["preprocessing_bytes_sent"] > cost["online_bytes_sent"] > 0
        and cost["ahead_seconds"] > 0
    )
    assert np.array_equal(pair.result(round_id), exact_in_the_clear(values))


def test_pairwise_gives_the_exact_median_to_servers_or_to_clients_alone(pair: Pair) -> None:
    values = updates()
    assert np.array_equal(pair.result(run(pair, values, **PAIRWISE)), exact_in_the_clear(values))
    round_id = run(pair, values, **PAIRWISE, result_to="clients")
    pair.wait("published", "s1")
    assert np.array_equal(pair.result(round_id).astype(np.float32), exact_in_the_clear(values))
    for server in ("s0", "s1"):
        with pytest.raises(NotAllowed, match="clients alone"):
            pair.caller("coordinator", server).ask("result", round=round_id)


def test_random_bytes_are_a_client_with_random_values(pair: Pair) -> None:
    """They complete a radix round, whose result stays within the honest values' range."""
    values = updates()[:2]
    params = RoundParams(Radix(), dim=DIM, max_clients=3)
    round_id = pair.open(**params.to_dict())
    for name, value in zip(("client-1", "client-2"), values, strict=True):
        pair.submit(name, value)
    for seed, server in enumerate(("s0", "s1")):
        rubbish = np.random.default_rng(seed).integers(
            0, 2**64, (1, params.form.layout.row_words), np.uint64
        )
        fields = {"round": round_id, "params": params.digest, "form": "words"}
        pair.caller("client-3", server).ask("upload", {"share": rubbish}, **fields)
    assert len(pair.wait("published")["included"]) == 3
    result = pair.result(round_id)
    assert (result >= np.min(values, axis=0)).all() and (result <= np.max(values, axis=0)).all()


# The rules of rounds


def test_a_second_round_waits_for_the_first_to_end(pair: Pair) -> None:
    first = pair.open(**PAIRWISE)
    with pytest.raises(RoundBusy, match=first):
        pair.open(**PAIRWISE)
    coordinator = pair.caller("coordinator", "s0")
    assert coordinator.ask("info").fields["state"] == "busy"
    pending = pair.caller("client-1", "s0").ask("result", round=first).fields
    assert (pending["form"], pending["state"]) == ("pending", "open")
    coordinator.ask("abort", round=first, reason="changed my mind")
    assert coordinator.ask("info").fields["state"] == "idle"
    for server in ("s0", "s1"):
        failed = wait_until(partial(in_state, pair, server, "failed"))
        assert "changed my mind" in failed["reason"]
    with pytest.raises(RoundFailed, match="changed my mind"):
        pair.result(first)
    run(pair, updates(), **PAIRWISE)


# Bad input: a typed error, and nothing lost


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        (BUCKETED | {"buckets": 2}, ConfigError, "buckets"),
        (BUCKETED | {"dim": DIM + 1}, InputError, "global model"),
        (
            PAIRWISE | {"method": "radix", "weights": dict.fromkeys(["client-1", "nobody"], 1)},
            ConfigError,
            "nobody",
        ),
        (
            PAIRWISE | {"method": "radix", "weights": {"client-1": 2, "client-2": 1}},
            ConfigError,
            "too few clients with weights, .*: 2; name 3 or more",
        ),
        (
            PAIRWISE | {"method": "zeno", "clusters": 1, "validator": "nobody"},
            ConfigError,
            "not a client of the round: 'nobody'",
        ),
    ],
)
def test_a_round_with_bad_parameters_is_not_opened(
    pair: Pair, params: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        pair.open(model=MODEL, **params)
    assert pair.status()["state"] != "open"


def test_a_round_whose_uploads_would_be_too_long_is_not_opened(pair: Pair) -> None:
    """Check that the longest upload of an open round arrives, too."""
    words = (MAX_MESSAGE_BYTES - ENVELOPE_BYTES) // 8
    with pytest.raises(ConfigError, match="max_message_bytes"):
        pair.open(**PAIRWISE | {"dim": words + 1}, reset=True)
    with pytest.raises(ConfigError, match="max_message_bytes"):
        pair.open(**PAIRWISE | {"dim": MAX_MESSAGE_BYTES // 8}, reset=True)
    params = RoundParams.from_dict(PAIRWISE | {"dim": words})
    round_id = pair.open(**params.to_dict(), reset=True)
    share_ = {"share": np.zeros((params.form.layout.rows, params.form.layout.row_words), np.uint64)}
    assert share_["share"].nbytes + ENVELOPE_BYTES == MAX_MESSAGE_BYTES
    for server in ("s0", "s1"):
        pair.caller("client-1", server).ask(
            "upload", share_, round=round_id, params=params.digest, form="words"
        )
    wait_until(lambda: pair.status()["clients"]["client-1"] == "both")


def test_an_upload_that_is_not_the_rounds_is_refused_and_a_good_one_still_taken(pair: Pair) -> None:
    round_id = pair.open(model=MODEL, **EVEN, **BUCKETED)
    values = updates()
    params = RoundParams.from_dict(BUCKETED)
    layout, digest = params.form.layout, params.digest
    words = np.zeros((layout.rows, layout.row_words), np.uint64)
    wrong_dim = share.Layout(layout.rows, DIM * 2, layout.bits)
    wrong_ring = share.Layout(layout.rows, DIM, layout.bits * 2)
    uploads: list[tuple[str, np.ndarray]] = [
        ("words", np.zeros((layout.rows, wrong_dim.row_words), np.uint64)),
        ("words", np.zeros((layout.rows, wrong_ring.row_words), np.uint64)),
        ("words", words[:-1]),
        ("words", words.astype(np.int64)),
        ("words", words.astype(np.float32)),
        ("seed", np.zeros(17, np.uint8)),
        ("seed", words),
        ("clear", words),
    ]
    for server in ("s0", "s1"):
        client = pair.caller("client-1", server)
        for form, array in uploads:
            with pytest.raises(BadUpload):
                client.ask("upload", {"share": array}, round=round_id, params=digest, form=form)
        # of the same size on the wire, some of them
        for other in ({"ring_bits": 5}, {"max_clients": 4}, {"buckets": 9}):
            with pytest.raises(BadUpload, match="other parameters"):
                wrong = RoundParams.from_dict(BUCKETED | other).digest
                client.ask("upload", {"share": words}, round=round_id, params=wrong, form="words")
        with pytest.raises(FrameError, match="share"):
            client.ask("upload", round=round_id, params=digest, form="words")
        with pytest.raises(FrameError, match="more"):
            more = {"share": words, "more": words}
            client.ask("upload", more, round=round_id, params=digest, form="words")
        with pytest.raises(ConfigError, match="form"):
            client.ask("upload", {"share": words}, round=round_id, params=digest)
        with pytest.raises(ConfigError, match="invalid round: .*; give text"):
            client.ask("upload", {"share": words}, round=7, params=digest, form="words")
    for name, value in zip(pair.names, values, strict=True):
        pair.submit(name, value)
    pair.wait("published")
    assert np.array_equal(
        pair.result(round_id), bucketed_in_the_clear(values, MODEL, np.float32(0.1))
    )


def test_frames_that_are_none_get_a_typed_error(pair: Pair) -> None:
    header, array = wire.pack(
        "upload", {"id": 9, "round": "", "form": "words"}, {"share": np.zeros(4, np.uint64)}
    )
    # tests/test_wire.py has more that are none
    frames: dict[str, Sequence[wire.Part]] = {
        "empty": [b""],
        "truncated array": [header, array[:-1]],
        "no id": wire.pack("info"),
        "an id that is no number": wire.pack("info", {"id": "one"}),
    }
    for server in ("s0", "s1"):
        for what, parts in frames.items():
            reply = pair.caller("client-1", server).send(parts)
            assert (reply.type, reply.fields["code"], reply.fields["id"]) == (
                "error",
                FrameError.code,
                0,
            ), what
        with pytest.raises(FrameError, match="no request is called 'guess'"):
            pair.caller("client-1", server).ask("guess")
        with pytest.raises(ConfigError, match="unknown more"):
            pair.caller("client-1", server).ask("info", more=1)


def logged(pair: Pair, server: str, fields: dict[str, Any]) -> bool:
    """Tell whether a server has logged an event with these fields."""
    return any(fields.items() <= event.items() for event in pair.events(server))


def test_a_key_that_is_not_on_the_list_gets_no_answer(pair: Pair) -> None:
    keys = KeyPair(*zmq.curve_keypair())
    for server in ("s0", "s1"):
        stranger = pair.stranger(keys, server)
        assert stranger.is_ignored(wire.pack("info", {"id": 1}))
        stranger.close()
        refused = {"event": "key-refused", "port": "clients", "key": keys.public.decode()}
        wait_until(partial(logged, pair, server, refused))


def test_a_clients_key_is_no_peers_and_no_coordinators(pair: Pair) -> None:
    client = pair.caller("client-1", "s0")
    with pytest.raises(NotAllowed, match="coordinator"):
        client.ask("open", params=PAIRWISE, range={}, reset=False)
    round_id = pair.open(**PAIRWISE)
    asked: list[tuple[str, dict[str, Any]]] = [("close", {}), ("abort", {"reason": "mine"})]
    for op, fields in asked:
        with pytest.raises(NotAllowed, match="coordinator"):
            client.ask(op, round=round_id, **fields)
    with pytest.raises(NotAllowed, match="client"):
        pair.caller("coordinator", "s0").ask(
            "upload", {"share": np.zeros(16, np.uint8)}, round=round_id, params=b"", form="seed"
        )
    asked = [
        ("open", {"params": PAIRWISE, "range": {}}),
        ("close", {"round": round_id}),
        ("abort", {"round": round_id, "reason": ""}),
    ]
    for op, fields in asked:
        with pytest.raises(NotAllowed, match="s0"):
            pair.caller("coordinator", "s1").ask(op, **fields)
    # at the peer's port, in the peer's place
    intruder = pair.intruder("client-1")
    assert intruder.is_ignored(
        wire.pack("failed", {"round": round_id, "code": "closed", "reason": "mine"})
    )
    intruder.close()
    wait_until(
        lambda: any(
            event["event"] == "key-refused" and event["port"] == "peer"
            for event in pair.events("s1")
        )
    )
    assert pair.status("s0")["state"] == pair.status("s1")["state"] == "open"


# Servers that are not there, not alike, or stop


def test_s0_waits_for_s1_says_so_and_gives_up(alone: Pair) -> None:
    alone.configure("s0", peer_wait_s=6)
    alone.start("s0")
    coordinator = alone.caller("coordinator", "s0")
    info, status = coordinator.ask("info").fields, coordinator.ask("status").fields
    assert (
        info["peer_linked"] is False
        and "s1 has not appeared" in info["peer_problem"]
        and info["role"] == "coordinator"
    )
    assert (status["state"], status["peer_linked"]) == ("none", False)
    with pytest.raises(PeerUnavailable, match="not appeared"):
        alone.open(**PAIRWISE)
    with pytest.raises(UnknownRound):
        alone.caller("client-1", "s0").ask("round")
    assert any(event["event"] == "peer-awaited" for event in alone.events("s0"))
    assert alone.ended("s0") == 2
    last = alone.output("s0").splitlines()[-1]
    assert (
        last.startswith("securemedian: ")
        and "s1 has not appeared" in last
        and "Traceback" not in alone.output("s0")
    )


def test_servers_that_are_configured_differently_say_how(alone: Pair) -> None:
    alone.configure("s1", text="\n[protocol]\nlanes = 3\not_field_bits = 2\n")
    alone.start("s0", "s1")
    alone.link()
    with pytest.raises(
        ParametersDiffer, match=r"lanes: 2 here, 3 there; ot_field_bits: 4 here, 2 there"
    ):
        alone.open(**PAIRWISE)
    assert "lanes" in alone.status()["peer_problem"]
    for server in ("s0", "s1"):
        linked = next(event for event in alone.events(server) if event["event"] == "peer-linked")
        assert "lanes: " in linked["problem"] and "ot_field_bits: " in linked["problem"]
        assert alone.stop(server) == 0


# Seconds of protocol, in many chunks.
LONG: dict[str, Any] = {"method": "pairwise", "dim": 75_000, "max_clients": 3}


def has_begun(pair: Pair, server: str) -> bool:
    """Tell whether a server has computed a chunk of a round."""
    return bool(in_state(pair, server, "running").get("progress", [0])[0])


def start_long_round(pair: Pair) -> str:
    round_id = pair.open(**LONG, reset=True)
    values = np.zeros(LONG["dim"], np.float32)
    for name in pair.names:
        pair.submit(name, values)
    for server in ("s0", "s1"):
        wait_until(partial(has_begun, pair, server))
    return round_id


def test_s1_killed_in_mid_protocol_is_waited_for_and_the_run_made_again(alone: Pair) -> None:
    # nowhere else over real daemons
    silent = '\n[protocol]\not_extension = "silent"\n'
    # a busy machine is silent for seconds, and lanes wait for ten times as long
    limit: dict[str, float] = {"peer_timeout_s": 10, "channel_timeout_s": 100}
    limit |= {"stop_limit_s": START_S, "round_limit_s": START_S}
    alone.configure("s0", text=f"{silent}chunk = 4096\n", **limit)
    alone.configure("s1", text=silent, **limit)
    alone.start("s0", "s1")
    alone.link()
    round_id = start_long_round(alone)
    with pytest.raises(RoundClosed, match="may have opened values"):
        alone.caller("coordinator", "s0").ask("abort", round=round_id, reason="too slow")
    start = time.monotonic()
    assert alone.stop("s1", signal.SIGKILL) == -signal.SIGKILL
    status = wait_until(lambda: (now := alone.status())["state"] == "queued" and now)
    # by the peer's silence, before the lanes' own limit
    assert time.monotonic() - start < limit["channel_timeout_s"]
    assert "s1" in status["reason"] and not status["peer_linked"]
    assert (status["attempt"], status["attempts_left"]) == (1, 4) and status["opened"] == "maybe"
    with pytest.raises(PeerUnavailable):
        alone.open(**PAIRWISE, reset=True)
    # not even now
    with pytest.raises(RoundClosed, match="may have opened values"):
        alone.caller("coordinator", "s0").ask("abort", round=round_id, reason="too slow")
    alone.start("s1")
    status = alone.wait("published")
    assert status["round"] == round_id and status["attempt"] == 2
    assert sorted(status["included"]) == alone.names and not alone.result(round_id).any()
    alone.wait("published", "s1")
    for server in ("s0", "s1"):
        assert not list((alone.folder / f"{server}-state" / "spool").iterdir())

    # and a SIGTERM lets a run finish, at either server, with what is kept taken up again
    values = updates()
    round_id = start_long_round(alone)
    assert alone.stop("s1") == 0
    assert alone.status()["state"] == "published" and "stopped" in alone.status()["peer_problem"]
    alone.start("s1")
    alone.link()
    assert alone.status("s1")["state"] == "published"
    run(alone, values, **PAIRWISE, **EVEN, reset=True)
    assert alone.stop("s0") == 0
    alone.start("s0")
    alone.link()
    assert not alone.result(round_id).any()
    round_id = run(alone, values, **BUCKETED)
    assert alone.status()["number"] == 2
    width = CoordinateRange().initial
    expected = bucketed_in_the_clear(values, exact_in_the_clear(values), np.float32(width))
    assert np.array_equal(alone.result(round_id), expected)

    # an open round goes on after both were killed, and after S0 was stopped
    round_id = alone.open(**PAIRWISE, reset=True)
    alone.submit("client-1", values[0])
    for server in ("s0", "s1"):
        assert alone.stop(server, signal.SIGKILL) == -signal.SIGKILL
    alone.start("s0", "s1")
    alone.submit("client-2", values[1])
    assert alone.stop("s0") == 0
    alone.start("s0")
    alone.link()
    assert alone.status()["round"] == round_id and alone.status()["state"] == "open"
    alone.submit("client-3", values[2])
    assert len(alone.wait("published")["included"]) == 3
    assert np.array_equal(alone.result(round_id), exact_in_the_clear(values))
    for server in ("s0", "s1"):
        assert alone.stop(server) == 0
