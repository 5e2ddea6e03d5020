"""Receipts: what both servers sign, what clients check, and servers that lie."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from securemedian import cli
from securemedian.clients import outcomes, receipts
from securemedian.clients.client import Client
from securemedian.clients.connection import Limit
from securemedian.common.keys import SigningKey
from securemedian.common.receipts import Receipt, Record, differences, digest_of
from securemedian.common.versions import VOTE
from securemedian.coordinator.coordinator import Coordinator
from securemedian.laboratory import plaintext
from securemedian.mpc.arrays import PublicValues
from securemedian.mpc.errors import (
    BadUpload,
    ConfigError,
    PeerProtocolError,
    ReceiptInvalid,
    RoundFailed,
    TooFewClients,
)
from securemedian.mpc.protocols import ring, wire
from securemedian.mpc.rounds.methods.base import Method
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.optimiser import Adam, Momentum
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.uniform import CoordinateRange
from securemedian.mpc.rounds.run_state import RunState, finish
from tests.daemons import WAIT_S, Pair

SIGNING = SigningKey.new(), SigningKey.new()
PUBLIC = [key.public for key in SIGNING]
DIM = 50
START = np.linspace(-1, 1, DIM, dtype=np.float32)
PARAMS = RoundParams(Mean(norm_bound="off"), dim=DIM, max_clients=3)
RECORD = Record(
    "securemedian",
    1,
    "default",
    "7-3fa9c1d2",
    7,
    PARAMS.to_dict(),
    ["key-a", "key-b"],
    {"its upload reached only s0": ["key-c"]},
    RunState().digest,
    bytes(32),
)


def signed(record: Record = RECORD) -> Receipt:
    receipt = Receipt(record.encode())
    for party, key in enumerate(SIGNING):
        receipt = receipt.signed(f"s{party}", key)
    return receipt


# The record and its signatures


def test_every_field_of_a_record_is_signed() -> None:
    signed().check(PUBLIC)
    others: dict[type, Any] = {str: "x", int: 8, bytes: b"x", bool: True}
    others |= {list: ["key-x"], dict: {"x": ["y"]}, type(None): 0.5}
    for field in fields(Record):
        other: Any = others[type(getattr(RECORD, field.name))]
        if field.name == "groups":
            other = [1]
        changed = replace(RECORD, **{field.name: other})
        assert differences(RECORD, changed) == field.name
        forged = replace(signed(), encoded=changed.encode())
        assert not any(map(forged.is_signed, ("s0", "s1"), PUBLIC))
        with pytest.raises(ReceiptInvalid, match="not signed by s0 and s1|unknown version: 8"):
            forged.check(PUBLIC)


def test_a_receipt_tells_the_groups_of_clients_where_these_are_visible_and_nowhere_else() -> None:
    visible = RoundParams(Radix(groups=3, membership="visible"), dim=DIM, max_clients=3)
    hidden = RoundParams(Bucketed(groups=3), dim=DIM, max_clients=3)

    def check(params: RoundParams, groups: list[int]) -> None:
        record = replace(RECORD, params=params.to_dict(), groups=groups)
        outcomes.check_record(record, "default", record.round, params, None, "")

    for params, right, wrong in (
        (visible, [2, 0], ([], [1], [0, 3], [0, -1], [0, 1, 2])),
        (hidden, [], ([0, 0],)),
        (PARAMS, [], ([0, 0],)),
    ):
        check(params, right)
        for groups in wrong:
            with pytest.raises(ReceiptInvalid, match="too few or too many clients"):
                check(params, groups)


def test_a_record_has_all_its_fields_and_one_encoding() -> None:
    values = {f.name: getattr(RECORD, f.name) for f in fields(Record)}
    assert RECORD.encode() == msgpack.packb(values)
    for record in (RECORD, replace(RECORD, participants=["key-a", "key-b"])):
        assert Record.decode(record.encode()) == record
    del values["participants"]
    with pytest.raises(ReceiptInvalid, match="not canonical"):
        Record.decode(msgpack.packb(values))


def test_a_signature_of_one_server_is_not_enough() -> None:
    with pytest.raises(ReceiptInvalid, match="not signed by s1: round"):
        Receipt(RECORD.encode()).signed("s0", SIGNING[0]).check(PUBLIC)
    # nor is one server's signature in both places, or with its roles exchanged
    double = Receipt(RECORD.encode()).signed("s0", SIGNING[0]).signed("s1", SIGNING[0])
    with pytest.raises(ReceiptInvalid, match="not signed by s1: round"):
        double.check(PUBLIC)
    with pytest.raises(ReceiptInvalid, match="not signed by s0 and s1"):
        signed().check(PUBLIC[::-1])


def test_a_signature_of_the_same_bytes_for_another_purpose_does_not_count() -> None:
    receipt = signed().with_signature("s0", SIGNING[0].sign(RECORD.encode()))
    assert not receipt.is_signed("s0", SIGNING[0].public)


def test_a_receipt_goes_through_a_file() -> None:
    again = Receipt.from_json(signed().to_json())
    assert again == signed() and again.record == RECORD
    again.check(PUBLIC)
    shown = json.loads(signed().to_json())
    assert shown["record"]["included"] == ["key-a", "key-b"]
    assert shown["record"]["params"] == PARAMS.to_dict()
    # as in a file that somebody has edited
    shown["record"]["number"] = 8
    with pytest.raises(ReceiptInvalid, match="not signed by s0 and s1"):
        Receipt.from_json(json.dumps(shown)).check(PUBLIC)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"record": {}, "signatures": {}}',
        '{"record": 7, "signatures": {}}',
        signed().to_json().replace('"number": 7', '"number": "7"'),
        signed().to_json().replace('"number": 7', '"number": 7, "more": 1'),
        signed().to_json().replace('"number": 7', f'"number": {10**30}'),
        signed().to_json().replace('"key-a"', "3"),
        signed().to_json().replace('"key-c"', "3"),
        signed().to_json().replace('"key-c"', r'"\u001b[2J"'),
        json.dumps(signed().to_dict() | {"signatures": {"s0": 7}}),
        signed().to_json().replace(RECORD.start.hex(), "zz"),
        signed().to_json().replace('"s0": "', '"s0": "x'),
    ],
)
def test_what_is_no_receipt_is_said(text: str) -> None:
    with pytest.raises(ReceiptInvalid, match="invalid receipt"):
        Receipt.from_json(text)


@pytest.mark.parametrize("encoded", [b"", b"x", RECORD.encode() + b"x", RECORD.encode()[:-1]])
def test_what_is_no_record_is_said(encoded: bytes) -> None:
    with pytest.raises(ReceiptInvalid, match="invalid record"):
        _ = Receipt(encoded).record


# The opened values, packed


@pytest.mark.parametrize(
    ("method", "bits", "rows"),
    [
        (Bucketed(buckets=8), 3, 1),
        (Bucketed(buckets=16), 4, 1),
        (Radix(), 32, 1),
        (Radix(encoding="bfloat16"), 16, 1),
        (Radix(encoding="buckets", buckets=12), 4, 1),
        (Radix(ranks=[1, 3], quantiles=[0.5]), 32, 3),
        (Radix(midpoint=True), 32, 2),
        (Mean(norm_bound="off"), 64, 1),
        (TrimmedMean(ring_bits=40), 40, 1),
        (Pairwise(ring_bits=32, fraction_bits=16), 32, 1),
        (Pairwise(ring_bits=32, fraction_bits=16, result_to="clients"), 32, 1),
    ],
    ids=lambda value: value.label if isinstance(value, Method) else "",
)
def test_opened_values_take_as_few_bits_as_they_need(method: Method, bits: int, rows: int) -> None:
    params = RoundParams(method, dim=77, max_clients=4)
    assert params.form.opened_bits == bits
    rng = np.random.default_rng(1)
    values = rng.integers(0, 1 << bits, (rows, 77), np.uint64, endpoint=False)
    packed = ring.pack(values.astype(ring.dtype(bits)), bits)
    assert packed.size == -(-rows * 77 * bits // 64)
    assert np.array_equal(params.unpack_opened(packed, 4), values)
    with pytest.raises(PeerProtocolError, match="were expected"):
        params.unpack_opened(packed[1:], 4)


# The run that clients follow


@pytest.mark.parametrize("optimiser", [Momentum(), Adam()])
def test_who_starts_from_the_same_run_ends_with_the_same(
    optimiser: Momentum | Adam,
) -> None:
    params = RoundParams(Bucketed(buckets=8), dim=DIM, max_clients=3)
    served = RunState(CoordinateRange(), START, np.float32(0.1) + 0 * START, optimiser=optimiser)
    kept = outcomes.RecentRuns()
    rng = np.random.default_rng(2)
    for number in (1, 2, 3):
        followed = kept.find(served.digest)
        if number == 1:
            assert followed is None
            answer = wire.Message(
                "model",
                {
                    "number": served.number,
                    "policy": served.policy.to_dict(),
                    "optimiser": served.optimiser.to_dict(),
                },
                {"model": START, "scale": served.scale},
            )
            followed = outcomes.run_of(answer, "1-0000000a", served.digest)
        # the second and third are not downloaded
        assert followed is not None and followed.number == number
        opened = PublicValues(rng.integers(0, 8, (1, DIM)).astype(np.uint16))
        (served, one), (after, other) = (
            finish(state, params, opened, 3) for state in (served, followed)
        )
        assert np.array_equal(one, other) and after.digest == served.digest
        kept.keep(after)


def test_a_digest_is_of_all_of_a_run() -> None:
    one = RunState(model=START, scale=np.ones(DIM, np.float32), moments=np.ones((1, DIM), "f4"))
    moved = START.copy()
    moved[3] = np.nextafter(moved[3], np.float32(2))
    others = [
        replace(one, model=moved),
        replace(one, model=None),
        replace(one, scale=one.scale * 2),
        replace(one, scale=np.float32(1) * np.ones((), "f4")),
        replace(one, moments=None),
        replace(one, moments=np.zeros((1, DIM), "f4")),
        replace(one, policy=CoordinateRange()),
        replace(one, optimiser=Momentum()),
        replace(one, published=1),
    ]
    assert len({state.digest for state in [one, *others]}) == 10


# A client's checks


def answer_of(receipt: Receipt, **arrays: np.ndarray) -> wire.Message:
    said = {"form": "opened", "record": receipt.encoded, "signatures": dict(receipt.signatures)}
    return wire.Message("result", said, arrays)


def test_each_server_that_says_something_else_is_named() -> None:
    good, bad = answer_of(signed()), answer_of(replace(signed(), encoded=b"x"))
    assert outcomes.agreed({0: good, 1: good}, PUBLIC) == signed()
    for party, answers in ((0, {0: bad, 1: good}), (1, {1: bad}), (1, {0: good, 1: bad})):
        with pytest.raises(ReceiptInvalid, match=f"S{party}'s receipt is invalid"):
            outcomes.agreed(answers, PUBLIC)
    with pytest.raises(
        ReceiptInvalid, match="S1's receipt is invalid: an answer without its receipt"
    ):
        outcomes.agreed({1: wire.Message("result", {"form": "opened"})}, PUBLIC)
    another = answer_of(signed(replace(RECORD, opened=b"x")))
    with pytest.raises(ReceiptInvalid, match="two records .* differ in opened"):
        outcomes.agreed({0: good, 1: another}, PUBLIC)


def test_the_record_of_a_vote_is_no_receipt() -> None:
    """Both servers sign one after each vote, also of a round that has no result in the end."""
    told = signed(replace(RECORD, version=VOTE))
    told.check(PUBLIC, vote=True)
    signed().check(PUBLIC)
    assert Receipt.from_json(told.to_json()) == told
    for receipt, vote in ((told, False), (signed(), True)):
        with pytest.raises(
            ReceiptInvalid, match="the record of a vote stands for that of a result"
        ):
            receipt.check(PUBLIC, vote=vote)
    with pytest.raises(ReceiptInvalid, match="S1's receipt is invalid: the record of a vote"):
        outcomes.agreed({1: answer_of(told)}, PUBLIC)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"round": "7-00000000"}, "the receipt is not that of .*'7-00000000'"),
        ({"number": 8}, "is not that of round"),
        ({"service": "another"}, "is not that of round"),
        ({"cohort": "stroke"}, "is not of the cohort default: 'stroke'"),
        ({"params": bytes(32)}, "other parameters"),
        ({"start": bytes(32)}, "vouch for another model"),
        ({"included": ["key-b", "key-c"], "left_out": {}}, "does not say why"),
        (
            {
                "included": ["key-b", "key-c"],
                "left_out": {"its upload reached only s1": ["key-a"]},
            },
            "only s1'",
        ),
        ({"included": ["key-a"]}, "that its parameters ask for: 1;"),
    ],
)
def test_a_record_must_be_that_of_the_round_as_the_client_knows_it(
    changes: dict[str, Any], said: str
) -> None:
    known = RECORD.cohort, RECORD.round, PARAMS, RunState().digest, "key-a"
    outcomes.check_record(RECORD, *known)
    fits = {"its upload is complete, but max_clients is 3": ["key-c"]}
    outcomes.check_record(replace(RECORD, left_out=fits), *known[:4], "key-c")
    # a client that has not trained and not submitted knows less
    outcomes.check_record(replace(RECORD, start=bytes(32)), *known[:3], None, "")
    error = TooFewClients if "included" in changes and len(changes) == 1 else ReceiptInvalid
    with pytest.raises(error, match=said):
        outcomes.check_record(replace(RECORD, **changes), *known)


@pytest.mark.parametrize("failed", [0, 1])
def test_a_round_that_has_failed_at_one_server_alone_is_no_result(failed: int) -> None:
    class Says:
        def __init__(self, party: int) -> None:
            self.party = party

        def ask(self, op: str, *_: Any, **__: Any) -> wire.Message:
            if self.party == failed:
                raise RoundFailed("we give up")
            return answer_of(signed())

    member = object.__new__(Coordinator)
    servers = [Says(0), Says(1)]
    looks: Any = {"wait": lambda party, look, *_: look(), "limit": Limit}
    vars(member).update(servers=servers, source=0, **looks)
    with pytest.raises(ReceiptInvalid, match=f"S{failed} says that it has failed"):
        member.receipt(RECORD.round, 1)
    servers[1 - failed].party = failed
    with pytest.raises(RoundFailed, match="we give up"):
        member.receipt(RECORD.round, 1)


@pytest.mark.parametrize(
    ("result_to", "form", "arrays"),
    [
        ("servers", "share", ("share",)),
        ("servers", "share", ()),
        ("servers", None, ("opened",)),
        ("servers", "opened", ("opened", "share")),
        ("clients", "opened", ("opened",)),
        ("clients", "share", ("opened",)),
    ],
)
def test_an_answer_must_have_the_form_of_its_round(
    result_to: str, form: str | None, arrays: tuple[str, ...]
) -> None:
    params = RoundParams(Pairwise(result_to=result_to), dim=DIM, max_clients=3)
    right = "share" if result_to == "clients" else "opened"
    words = np.arange(DIM, dtype=np.uint64)
    for sent in ({}, {right: words}):
        outcomes.check_form(wire.Message("result", {"form": right}, sent), 1, "7-0000000a", params)
    said = wire.Message("result", {"form": form} if form else {}, dict.fromkeys(arrays, words))
    with pytest.raises(ReceiptInvalid, match=f"S1 gives .* in another form than {right}"):
        outcomes.check_form(said, 1, "7-0000000a", params)


def test_values_must_be_those_of_the_record() -> None:
    words = np.arange(DIM, dtype=np.uint64)
    record = replace(RECORD, opened=digest_of(words))
    given, total = answer_of(signed(record), opened=words), len(record.included)
    opened = outcomes.opened_of(given, 0, record, PARAMS, total)
    assert opened.tolist() == [words.tolist()]
    for wrong in (words + 1, words[1:], words.astype(np.int64), words[None], words[:0]):
        with pytest.raises(ReceiptInvalid, match="S1 sent other values"):
            outcomes.opened_of(answer_of(signed(record), opened=wrong), 1, record, PARAMS, total)


# Over real servers, of which S0 lies


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("receipts"))
    try:
        made.start("s0", program=("-m", "tests.lying", str(made.folder / "lie")))
        made.start("s1")
        made.link()
        yield made
    finally:
        made.close()


class Round:
    """The clients and the coordinator of a pair, and one round of theirs."""

    def __init__(self, pair: Pair, opened: ExitStack) -> None:
        self.pair = pair
        self.coordinator = opened.enter_context(
            Coordinator.from_config(pair.folder / "coordinator.toml")
        )
        self.clients = [
            opened.enter_context(Client.from_config(pair.folder / f"{name}.toml"))
            for name in pair.names
        ]
        # two ask S0 for values, and one S1
        for party, client in zip((0, 0, 1), self.clients, strict=True):
            client.source = party
        self.coordinator.source = 0

    def lie(self, what: str) -> None:
        (self.pair.folder / "lie").write_text(what)

    def run(self, method: Method, seed: int = 0, new: bool = True) -> str:
        """Open a round in which all submit, and return its id."""
        self.params = RoundParams(method, dim=DIM, max_clients=3)
        self.id = self.coordinator.open_round(self.params, START if new else None)
        rng = np.random.default_rng(seed)
        self.updates = (START + 0.1 * rng.normal(size=(3, DIM))).astype(np.float32)
        for client, update in zip(self.clients, self.updates, strict=True):
            client.submit(update, self.id)
        return self.id

    @property
    def members(self) -> Sequence[Client | Coordinator]:
        return [*self.clients, self.coordinator]


@pytest.fixture
def played(pair: Pair) -> Iterator[Round]:
    with ExitStack() as opened:
        made = Round(pair, opened)
        made.lie("")
        yield made


def downloads(member: Client | Coordinator, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list to which each request of this member is added from now on."""
    asked: list[str] = []
    for server in member.servers:
        ask = server.ask

        def noting(op: str, *given: Any, ask: Any = ask, **named: Any) -> wire.Message:
            asked.append(op)
            return ask(op, *given, **named)

        monkeypatch.setattr(server, "ask", noting)
    return asked


@pytest.mark.slow
def test_clients_follow_the_model_and_download_it_once(
    played: Round, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [downloads(member, monkeypatch) for member in played.members]
    model = START
    for number in (1, 2, 3):
        played.run(Bucketed(), seed=number, new=number == 1)
        published = played.coordinator.model(played.id)
        assert published.model is not None and np.array_equal(published.model, model)
        (expected,) = plaintext.published(played.updates, played.params, published)
        for member in played.members:
            assert np.array_equal(member.result(played.id, WAIT_S), expected)
            receipt = member.receipt(played.id)
            assert sorted(receipt.record.included) == receipt.record.included
            assert len(receipt.record.included) == 3 and receipt.record.number == number
        model = expected
        # a client that gets a result can write to it, and not to the model that the next round
        # starts from
        for member in played.members:
            member.result(played.id)[:] = 7
            assert not member.model(played.id).model.flags.writeable  # type: ignore[union-attr]
    assert [requests.count("model") for requests in asked] == [1, 1, 1, 1]


@pytest.mark.slow
def test_a_server_that_says_something_else_of_a_round_is_noticed(played: Round) -> None:
    """All who ask S0 for values find each lie, and a client that asks S1 those that it gets."""
    played.run(Radix())
    expected = np.sort(played.updates, axis=0)[1]
    played.coordinator.result(played.id, WAIT_S)
    unsigned = r"S0's receipt is invalid: .* not signed by s1"
    of_s0: list[Client | Coordinator] = [*played.clients[:2], played.coordinator]
    for lie, said, noticed in (
        ("values", "S0 sent other values", of_s0),
        # S0 also tells the true record to a client that asks S1 for values
        ("values and record", unsigned, of_s0),
        ("clients", unsigned, played.members),
        ("no signature", unsigned, played.members),
        ("form", r"S0 gives .* in another form than opened", played.members),
        ("no form", r"S0 gives .* in another form than opened", played.members),
    ):
        played.lie(lie)
        for member in noticed:
            with pytest.raises(ReceiptInvalid, match=said):
                member.result(played.id)
        if noticed is of_s0:
            assert np.array_equal(played.clients[2].result(played.id), expected)
    with pytest.raises(ReceiptInvalid, match=r"S0 gives .* in another form than opened"):
        played.coordinator.receipt(played.id)


@pytest.mark.slow
def test_a_server_that_hands_out_another_model_is_noticed(played: Round) -> None:
    played.lie("model")
    with pytest.raises(ReceiptInvalid, match="S0 sent another model or range"):
        played.run(Bucketed())
    played.coordinator.abort_round(played.id, "only a test")
    # one that also says so is found out by whoever asks S1, before anything is sent
    played.lie("model and digest")
    with pytest.raises(PeerProtocolError, match="another start"):
        played.run(Bucketed())
    played.coordinator.abort_round(played.id, "only a test")
    params = RoundParams(Radix(), dim=DIM, max_clients=3)
    with pytest.raises(PeerProtocolError, match="another start"):
        played.run(params.method)
    status = played.pair.status("s1")
    assert set(status["clients"].values()) == {"none"} and not any(status["dealt"].values())
    # nor does S1 take what a client makes that does not ask
    fields = {"round": played.id, "params": params.digest, "form": "seed", "start": bytes(32)}
    for op, more in (("upload", {}), ("deal", {"piece": 0, "pieces": 1})):
        with pytest.raises(BadUpload, match="another model or range"):
            caller = played.pair.caller("client-1", "s1")
            caller.ask(op, {"share": np.zeros(16, np.uint8)}, **fields, **more)
    played.coordinator.abort_round(played.id, "only a test")


@pytest.mark.slow
def test_one_server_is_enough_to_get_a_result(played: Round) -> None:
    played.run(Radix())
    result = played.clients[0].result(played.id, WAIT_S)
    played.pair.wait("published", "s1")
    for client, away in ((client, away) for client in played.clients for away in (0, 1)):
        # beside the client itself, which has its state folder
        with Client(replace(client.config, state_dir="")) as alone:
            alone.source = client.source
            alone.servers[away].cancel()
            if away == 1:
                assert np.array_equal(alone.result(played.id), result)
            elif client is played.clients[0]:
                # the model to start from is at S0, and this client has it
                client.servers[0].cancel()
                assert np.array_equal(client.result(), result)


# The verb


def test_a_receipt_is_shown_and_verified_without_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from securemedian.common.keys import load_signing_key

    keys = tmp_path / "keys"
    assert cli.main(["keygen", str(keys), "--clients", "3"]) == 0
    receipt = Receipt(RECORD.encode())
    for server in ("s0", "s1"):
        receipt = receipt.signed(server, load_signing_key(keys / f"{server}.key_secret"))
    file = tmp_path / "receipt.json"
    receipts.save(receipt, file)
    capsys.readouterr()
    for trusted in (["client-1.toml"], ["s0.toml"], ["s1.toml"], ["s1.key", "s0.key"]):
        given = [str(keys / name) for name in trusted]
        assert cli.main(["receipt", "verify", str(file), "--keys", *given]) == 0
        assert "both servers vouch for round 7-3fa9c1d2" in capsys.readouterr().out
    assert cli.main(["receipt", "show", str(file)]) == 0
    said = capsys.readouterr().out
    # a digest of them says nothing to an auditor
    assert re.search(r'method +"mean"', said) and re.search(f"coordinates +{DIM}\n", said)
    assert re.search(r"at least +2\nat most +3\n", said) and 'norm_bound "off"' in said
    for text in (RECORD.start.hex(), "key-a", "its upload reached only s0", "not verified"):
        assert text in said
    for trusted, why in (
        (["s0.key"], "0 signing keys of a server, and one is needed: s1"),
        (["client-1.key"], "0 signing"),
    ):
        given = [str(keys / name) for name in trusted]
        assert cli.main(["receipt", "verify", str(file), "--keys", *given]) == 2
        assert why in capsys.readouterr().err
    receipts.save(signed(), file)
    assert cli.main(["receipt", "verify", str(file), "--keys", str(keys / "s0.toml")]) == 2
    assert "not signed by s0 and s1" in capsys.readouterr().err
    assert cli.main(["receipt", "show", str(tmp_path / "none.json")]) == 2


def test_a_server_s_configuration_names_the_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from securemedian.common.keys import load_signing_key
    from securemedian.servers import config

    assert cli.main(["keygen", str(tmp_path), "--clients", "3"]) == 0
    listed = config.load(tmp_path / "s0.toml").clients
    record = replace(RECORD, included=sorted(client.public_key for client in listed))
    receipt = Receipt(record.encode())
    for server in ("s0", "s1"):
        receipt = receipt.signed(server, load_signing_key(tmp_path / f"{server}.key_secret"))
    receipts.save(receipt, tmp_path / "receipt.json")
    capsys.readouterr()
    command = ["receipt", "show", str(tmp_path / "receipt.json")]
    assert cli.main([*command, "--keys", str(tmp_path / "s0.toml")]) == 0
    said = capsys.readouterr().out
    for client in listed:
        assert f"  {client.public_key} {client.name}\n" in said
    assert "signed by s0 and s1, verified" in said


def test_signing_keys_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert cli.main(["keygen", str(tmp_path / name), "--clients", "3"]) == 0
    both = [tmp_path / name / "client-1.toml" for name in ("one", "two")]
    with pytest.raises(ConfigError, match="2 signing keys of a server, and one is needed: s0"):
        receipts.signing_keys(both)
