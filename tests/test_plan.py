"""Plans: what `predict` tells beforehand is what a real round counts, to the byte."""

import json
import math
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from securemedian import cli
from securemedian.benchmarks import forecast
from securemedian.benchmarks.link import LinkShape
from securemedian.clients.client import Client
from securemedian.common import terminal
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols import dealing, share
from securemedian.mpc.protocols.channel import Planned, frame_size
from securemedian.mpc.protocols.dealing import DealtUpload
from securemedian.mpc.protocols.ot import ferret
from securemedian.mpc.protocols.prg import SEED_BYTES
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.chunks import evenly
from securemedian.mpc.rounds.cost import Cost, Meter
from securemedian.mpc.rounds.cutting import Shard, shards
from securemedian.mpc.rounds.lanes import SIZE_WORDS
from securemedian.mpc.rounds.methods.base import Method
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.krum import Krum
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.reclustered import Reclustered
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.methods.zeno import Zeno
from securemedian.mpc.rounds.methods.zoom import Zoom
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import check_values, judge_surveys, run_round, survey_shard
from securemedian.mpc.rounds.plan import Plan, predict, predict_shards
from securemedian.mpc.rounds.privacy import epsilon_of
from securemedian.servers.network.control import SHA256_BYTES
from tests.daemons import SETTINGS, Pair, in_background, running
from tests.parties import make_parties, run_both
from tests.test_groups import VISIBLE

pytestmark = pytest.mark.slow

# several chunks from a few thousand coordinates on
SMALL: dict[str, Any] = {"chunk": 1280, "batch": 1 << 14}

ROUNDS: dict[str, Method] = {
    "scan": Bucketed(buckets=8, schedule="scan", uploads="dealt"),
    "scan-wide": Bucketed(buckets=3, schedule="scan", uploads="dealt", ring_bits=16),
    "bisect": Bucketed(buckets=11, schedule="bisect", uploads="dealt"),
    "unverified": Bucketed(schedule="scan", uploads="unverified"),
    "pairwise": Pairwise(),
    "pairwise-opened": Pairwise(selection="opened", ring_bits=32, fraction_bits=16),
    "pairwise-clients": Pairwise(result_to="clients", ring_bits=20, fraction_bits=8),
    "float32": Radix(),
    "bfloat16": Radix(encoding="bfloat16"),
    "fixed": Radix(encoding="fixed", word_bits=11, fraction_bits=4),
    "buckets": Radix(encoding="buckets"),
    "zoom": Zoom(encoding="bfloat16"),
    "zoom-quartiles": Zoom(
        encoding="fixed", word_bits=8, fraction_bits=2, slots=8, quantiles=[0.25, 0.75]
    ),
    "ranks": Radix(encoding="bfloat16", ranks=[1, 2], quantiles=[0.9]),
    "midpoint": Radix(encoding="bfloat16", midpoint=True),
    "trimmed-mean": TrimmedMean(trim=0.3),
    "untrimmed": TrimmedMean(trim=0.0),
    "mean": Mean(),
    "bounded": Mean(norm_bound=2.0),
    "unbounded": Mean(norm_bound="off"),
    "reclustered": Reclustered(reclusterings=3),
    "reclustered-radix": Reclustered(clusters=1, median_by="radix", ring_bits=32, fraction_bits=8),
    "reclustered-trimmed": Reclustered(clusters=1, aggregator="trimmed-mean", trim=0.3),
}

WEIGHTS = [3, 1, 4, 2, 5]
CHECKING = ("checking_bytes_sent", "checking_bytes_received", "checking_rounds")


def counted(
    params: RoundParams,
    weights: list[int],
    protocol: ProtocolParams,
    shard: Shard | None = None,
) -> tuple[Cost, Cost]:
    """Return what a real round of a new session counts, or a shard of it."""
    # the coin that others tossed before
    coin = bytes(SEED_BYTES) if shard else None
    parties = make_parties(protocol.lanes, protocol.ot_field_bits, extension=protocol.ot_extension)

    def uploads(layout: share.Layout) -> list[share.Upload]:
        return [share.SeedUpload(layout, bytes([client] * 16)) for client in range(len(weights))]

    def run(j: int) -> Cost:
        given, dealt = uploads(params.form.layout), params.form.dealing
        if params.form.check and shard:
            agreed = replace(shard, coin=coin or b"")
            sizes = parties[j], params, protocol
            surveyed, cost = survey_shard(*sizes, given, weights, agreed, checking=True)
            checked = cost.as_checking()
            if shard.number == 0:
                cost = judge_surveys(parties[j], params, surveyed, weights, agreed, True)[1]
                checked = cost.as_checking().after(checked)
        elif dealt is None:
            checked = check_values(parties[j], params, protocol, given, shard=shard).cost
        else:
            halves = uploads(dealt.layout)
            meter = Meter(parties[j][:1])
            parts = shard.parts(dealt) if shard else None
            if parts is None or parts:
                channel = parties[j][0].channel
                tossed = coin if shard else dealing.toss(channel, j)
                opened = dealing.open_pairs(channel, j, dealt, halves, tossed or b"", parts)
                dealing.compare(channel, opened)
            checked = meter.read().as_checking()
            pairs = list(zip(halves, given, strict=True))
            given = [DealtUpload(dealt, half, rotations) for half, rotations in pairs]
        used = replace(shard, coin=coin) if shard and coin else shard
        if params.form.survey and used:
            sizes = parties[j], params, protocol
            surveyed, cost = survey_shard(*sizes, given, weights, used)
            checked = cost.after(checked)
            if used.number == 0:
                found, cost = judge_surveys(parties[j], params, surveyed, weights, used)
                used, checked = replace(used, verdicts=found), cost.after(checked)
        groups = evenly(params, len(weights)) if params.method.visible else []
        ran = Cost()
        for vote in range(params.form.votes):
            if vote and dealt:
                given = [DealtUpload(dealt, half, rotated, vote) for half, rotated in pairs]
            sizes = parties[j], params, protocol
            ran += run_round(*sizes, given, None, weights, groups, shard=used).cost
        return ran.after(checked)

    return run_both(run)


def totals(cost: Cost) -> Cost:
    """Return a cost without its seconds, and not split except for the checks."""
    return replace(
        Cost(cost.ots, cost.bytes_sent, cost.bytes_received, cost.messages, cost.rounds),
        **{name: value for name, value in asdict(cost).items() if name in CHECKING},
    )


def check(params: RoundParams, weights: list[int], protocol: ProtocolParams) -> None:
    predicted = predict(params, weights, protocol)
    check_cost(predicted, counted(params, weights, protocol))
    assert predicted.memory > 0
    verified = params.form.checks or params.form.dealing is not None
    assert (predicted.cost.checking_bytes_sent > 0) == verified


def check_cost(predicted: Plan, real: tuple[Cost, Cost]) -> None:
    """Check a plan against both parties, of whom each receives what the other sends."""
    one, other = (totals(cost) for cost in real)
    assert predicted.cost == one
    reverse = replace(
        other,
        messages=one.messages,
        bytes_sent=other.bytes_received,
        bytes_received=other.bytes_sent,
        checking_bytes_sent=other.checking_bytes_received,
        checking_bytes_received=other.checking_bytes_sent,
    )
    assert predicted.cost == reverse


@pytest.mark.parametrize(
    "name", ["scan", "pairwise-opened", "float32", "trimmed-mean", "mean", "reclustered"]
)
def test_the_cost_of_each_shard_is_predicted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "PART", 256)
    params = RoundParams(ROUNDS[name], dim=1000, max_clients=4)
    protocol = ProtocolParams(lanes=2, chunk=256)
    plans = predict_shards(params, [1] * 4, protocol, 3)
    cut = shards(params.dim, 3)
    assert len(plans) == len(cut) == 3 and cut[2].dim < cut[0].dim
    for shard, plan in zip(cut, plans, strict=True):
        check_cost(plan, counted(params, [1] * 4, protocol, shard))
    if params.form.dealing:
        assert len(params.form.dealing.parts) == 3


def test_plan_tells_what_workers_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["plan", "--dim", "20000", "--clients", "4", "radix", "--json"]
    rows = {}
    for workers in (0, 4):
        file = tmp_path / f"{workers}.json"
        more = ["--workers", str(workers)] if workers else []
        assert cli.main([*given, str(file), *more]) == 0
        rows[workers] = json.loads(file.read_text())[0]
    one, four = rows[0], rows[4]
    assert four["workers"] == 4 and one["workers"] == one["door_seconds"] == 0
    assert four["door_seconds"] > 0
    # the same OTs, except that shards round up, each in a fourth of the time
    assert one["ots"] <= four["ots"] <= 1.1 * one["ots"]
    printed = capsys.readouterr().out
    assert "4 workers per server" in printed and "s for its workers" in printed
    with pytest.raises(SystemExit):
        cli.main([*given, str(tmp_path / "no.json"), "--workers", "-1"])


# dim, clients, field bits, lanes; all but the first for one round of each kind
SIZES = [(129, 5, 4, 3), (3001, 4, 2, 2), (1, 5, 4, 1), (127, 2, 2, 2)]
KINDS = {"scan", "bisect", "pairwise", "fixed", "trimmed-mean", "zoom", "mean", "reclustered"}


@pytest.mark.parametrize(
    ("name", "dim", "clients", "field_bits", "lanes"),
    [(name, *size) for name in ROUNDS for size in SIZES[: 4 if name in KINDS else 1]],
)
def test_predicted_is_counted(
    name: str, dim: int, clients: int, field_bits: int, lanes: int
) -> None:
    params = RoundParams(ROUNDS[name], dim=dim, max_clients=clients)
    check(params, [1] * clients, ProtocolParams(field_bits, lanes, **SMALL))


@pytest.mark.parametrize(
    ("name", "lanes"),
    [("scan", 1), ("bisect", 2), ("pairwise", 2), ("bfloat16", 1), ("trimmed-mean", 2)],
)
def test_predicted_is_counted_of_silent_ots(
    name: str, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many iterations of a code for tests alone, whose ends fall anywhere in a chunk."""
    for code, bins in (("SETUP", 70), ("CODE", 100)):
        monkeypatch.setattr(ferret, code, ferret.Code(secrets=3000, bins=bins, depth=7))
    params = RoundParams(ROUNDS[name], dim=5000, max_clients=3)
    check(params, [1] * 3, ProtocolParams(2, lanes, "silent", **SMALL))


# a method, the coordinates, the clients' weights, and the protocol
Case = tuple[Method, int, list[int], ProtocolParams]
TWO = ProtocolParams(lanes=2, chunk=256)
ZENO = Zeno(validator="client-0", clusters=2, reclusterings=2)
FEW = Pairwise(ring_bits=16, fraction_bits=4)
CASES: dict[str, Case] = {
    "the validator weighs nothing": (ZENO, 700, [1] * 6 + [0], TWO),
    "comparisons are cut into batches": (FEW, 130, [1] * 20, replace(TWO, batch=4096)),
}
for _grouped in (Bucketed(buckets=8, groups=4), VISIBLE[0], VISIBLE[3]):
    CASES[_grouped.label] = _grouped, 700, [1] * 12, TWO
for _name in ("scan", "pairwise", "bfloat16"):
    _named: Any = {"weights": {str(client): weight for client, weight in enumerate(WEIGHTS)}}
    _weighted = replace(ROUNDS[_name], **_named)
    CASES[f"{_name} by weights"] = _weighted, 1400, WEIGHTS, ProtocolParams(lanes=2, **SMALL)
for _extension in ("softspoken", "silent"):
    _whole = ProtocolParams(ot_extension=_extension)
    CASES[f"{_extension}, chunks as they are"] = ROUNDS["scan"], 150_001, [1] * 8, _whole
for _selection in ("hidden", "opened"):
    for _clients in (3, 10):
        _krum = Krum(selection=_selection)
        CASES[f"krum {_selection} {_clients}"] = _krum, 700, [1] * _clients, TWO
for _mixed in (
    Pairwise(neighbours=2),
    TrimmedMean(neighbours=2, selection="opened"),
    Radix(neighbours=2),
):
    CASES[f"{_mixed.label} mixed"] = _mixed, 700, [1] * 6, TWO


@pytest.mark.parametrize("case", CASES)
def test_predicted_is_counted_in_special_cases(case: str) -> None:
    method, dim, weights, protocol = CASES[case]
    check(RoundParams(method, dim=dim, max_clients=len(weights)), weights, protocol)


def test_predicted_is_counted_where_some_stay_away() -> None:
    params = RoundParams(ROUNDS["bfloat16"], dim=700, max_clients=30)
    check(params, [1] * 4, ProtocolParams(**SMALL))


@pytest.mark.parametrize("clients", [2, 3, 4, 9])
def test_predicted_is_counted_of_dealings_in_parts(
    clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealing, "PART", 1000)
    params = RoundParams(ROUNDS["scan"], dim=3500, max_clients=9)
    assert params.form.dealing is not None and len(params.form.dealing.parts) == 3
    check(params, [1] * clients, ProtocolParams(lanes=1, **SMALL))


# the variants that `plan` compares by default
VARIANT = {
    "bucketed": ["--schedule", "bisect"],
    "radix": ["--encoding", "float32"],
    "reclustered": ["--median-by", "pairwise"],
}


def planned(tmp_path: Path, clients: str, dim: int, method: str) -> list[dict[str, Any]]:
    """Return the rows of `plan` for one variant of a method."""
    file = tmp_path / f"{method}.json"
    given = ["plan", "--clients", clients, "--dim", str(dim), "--json", str(file)]
    assert cli.main([*given, method, *VARIANT.get(method, [])]) == 0
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    return rows


TOLD = ("ots", "bytes_s0_to_s1", "bytes_s1_to_s0")
CLIENTS = ("client_bytes_ahead", "client_bytes_after")


def test_plan_and_bench_clients_agree_for_all_methods(tmp_path: Path) -> None:
    given = ["bench", "clients", "--clients", "9,8", "--dim", "300", "--repeat", "1"]
    methods = [word for method in METHODS for word in (method, *VARIANT.get(method, []))]
    assert cli.main([*given, "--out", str(tmp_path), *methods]) == 0
    points = json.loads((tmp_path / "clients.json").read_text())["points"]
    assert [(one["method"], one["clients"]) for one in points] == [
        (method, n) for method in METHODS for n in (8, 9)
    ]
    measured = [tuple(one[name] for name in (*TOLD, "rounds", *CLIENTS)) for one in points]
    rows = [row for method in METHODS for row in planned(tmp_path, "9,8", 300, method)]
    assert measured == [tuple(row[name] for name in (*TOLD, "rounds", *CLIENTS)) for row in rows]


def size_of(said: Iterable[Planned]) -> int:
    """Return the bytes of the messages that each party sends."""
    return sum(frame_size(label, np.dtype(kind), of) for sent, label, kind, of in said if sent)


# one of each kind: with dealings, with checks of values, with neither, and of several votes
@pytest.mark.parametrize("method", ["bucketed", "mean", "radix", "zoom"])
def test_plan_agrees_with_a_round_between_daemons(method: str, tmp_path: Path) -> None:
    """To the byte: what daemons say beside it is wishes before filling the pools, and checks.

    Dealings are checked as they come, and not all at once, and servers vouch for each coin.
    """
    clients, dim = 8, 300
    (row,) = planned(tmp_path, str(clients), dim, method)
    model = np.zeros(dim, np.float32)
    updates = np.random.default_rng(1).normal(0, 0.01, (clients, dim)).astype(np.float32)
    # nothing is made ahead, because that ends when the last upload is there
    made = Pair(tmp_path / "keys", clients, SETTINGS | {"pool_limit_bytes": 0})
    with running(made) as pair:
        pair.open(model, reset=True, **row["round"])
        ways = [partial(_take_part, pair, *one) for one in zip(pair.names, updates, strict=True)]
        for join in [in_background(way) for way in ways]:
            join()
        status = pair.wait("published")
        checks = [event for event in pair.events("s0") if event["event"] == "check-begun"]
    assert len(status["included"]) == clients
    form = RoundParams.from_dict(row["round"]).form
    beside = form.votes * size_of([(True, "sizes", np.uint64, (SIZE_WORDS,))])
    if shape := form.dealing:
        several = [len(event["clients"]) for event in checks]
        assert sum(several) == clients
        for count in several:
            beside += size_of([*dealing.toss_messages(), *dealing.messages(shape, count)])
            beside += size_of([(True, "toss.tokens", np.uint64, (count * SHA256_BYTES // 8,))])
        beside -= size_of([*dealing.toss_messages(), *dealing.messages(shape, clients)])
    cost = status["cost"]
    assert cost["ots"] == row["ots"]
    assert cost["bytes_sent"] == row["bytes_s0_to_s1"] + beside
    assert cost["bytes_received"] == row["bytes_s1_to_s0"] + beside


def _take_part(pair: Pair, name: str, update: Any) -> None:
    with Client(pair.config(name)) as client:
        client.submit(update)
        client.attend()


@pytest.mark.parametrize("name", ["bisect", "float32"])
def test_a_large_model_is_planned_in_seconds(name: str) -> None:
    params = RoundParams(ROUNDS[name], dim=1_663_370, max_clients=8)
    # compiles
    predict(replace(params, dim=200), [1] * 8, ProtocolParams())
    # processor time, so that other users of the machine are not in it
    start = time.process_time()
    large = predict(params, [1] * 8, ProtocolParams())
    assert time.process_time() - start < 10
    assert large.cost.bytes_sent > 10e6 and large.memory < 1 << 30


def test_memory_is_of_the_chunks_in_hand() -> None:
    """It grows with the lanes, and with the dimension by the result alone."""
    one, two = (
        predict(
            RoundParams(Pairwise(), dim=6000, max_clients=5),
            [1] * 5,
            ProtocolParams(lanes=n, **SMALL),
        )
        for n in (1, 2)
    )
    assert 1.8 < two.memory / one.memory < 2.2
    long = predict(
        RoundParams(Pairwise(), dim=60_000, max_clients=5),
        [1] * 5,
        ProtocolParams(lanes=1, **SMALL),
    )
    assert abs(long.memory - one.memory - 8 * 54_000) < 0.1 * one.memory


def test_what_no_memory_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match="use radix"):
        predict(RoundParams(Pairwise(), dim=1000, max_clients=2000), [1] * 2000, ProtocolParams())


def test_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = Cost(ots=1000, bytes_sent=2_000_000, bytes_received=1_000_000, rounds=10)
    plan = Plan(cost, checking_seconds=0.1, online_seconds=1, memory=0)
    monkeypatch.setattr(forecast, "predict", lambda *_: plan)
    monkeypatch.setattr(forecast, "seconds_per_ot", lambda *_: 1e-3)
    params = RoundParams(Bucketed(buckets=8, uploads="unverified"), dim=100, max_clients=3)
    for shape, seconds in ((LinkShape(math.inf, 0), 2.4), (LinkShape(1e6, 0.1), 16 + 10 * 0.05)):
        row = forecast.forecast(params, ProtocolParams(), shape, byte=1e-7)
        assert row["compute_seconds"] == pytest.approx(1 + 0.1 + 1 + 0.3)
        assert row["seconds"] == pytest.approx(seconds + 10 * forecast.HOP_S)


@pytest.mark.parametrize("extension", ["softspoken", "silent"])
def test_rates_are_measured(extension: str) -> None:
    params = RoundParams(Radix(encoding="bfloat16"), dim=10_000, max_clients=5)
    protocol = ProtocolParams(ot_extension=extension)
    assert 1e-9 < forecast.seconds_per_ot(params, [1] * 5, protocol) < 1e-5
    assert 1e-11 < forecast.seconds_per_byte() < 1e-7
    # a mean that checks nothing takes no OTs
    plain = RoundParams(Mean(norm_bound="off"), dim=10_000, max_clients=5)
    assert forecast.seconds_per_ot(plain, [1] * 5, protocol) == 0
    found = predict(params, [1] * 5, protocol)
    assert 1e-4 < found.online_seconds < 100 and found.checking_seconds == 0


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    options = ["--clients", "4", "--dim", "300", "--json", str(file)]
    assert cli.main(["plan", *options, "--bandwidth", "100", "--rtt", "40"]) == 0
    said = capsys.readouterr()
    printed, folded = said.out, " ".join(said.out.split())
    # it takes seconds
    assert "measuring this machine" in said.err
    assert all(len(line) <= 80 for line in printed.split("saved to")[0].splitlines())
    # `0.0…`
    assert "…" not in printed
    rows = json.loads(file.read_text())
    names = [row["name"] for row in rows]
    compared = {"bucketed": 2, "radix": 3, "reclustered": 2}
    assert [name.split()[0] for name in names] == [
        name for name in METHODS for _ in range(compared.get(name, 1))
    ]
    for row in rows:
        cost = predict(RoundParams.from_dict(row["round"]), [1] * 4, ProtocolParams()).cost
        assert (row["ots"], row["bytes_s0_to_s1"], row["rounds"]) == (
            cost.ots,
            cost.bytes_sent,
            cost.rounds,
        )
        # a long name is folded
        assert all(word in printed for word in row["name"].split())
        params = RoundParams.from_dict(row["round"])
        assert row["client_bytes_ahead"] == params.form.bytes_ahead
        assert row["client_bytes_after"] == params.form.bytes_after
        verified = params.form.checks or params.form.dealing is not None
        assert (row["checking_seconds"] > 0) == verified
    for what in ("exact", "approximate"):
        best = min((row for row in rows if row["kind"] == what), key=lambda row: row["seconds"])
        assert f"the {what} median takes the least time with {best['name']}: about" in folded


def test_a_plan_of_several_votes_has_what_they_wait_for_and_fill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, file = ["plan", "--dim", "300", "--clients", "8", "zoom"], tmp_path / "zoom.json"
    assert cli.main([*given, "--rtt", "40", "--json", str(file)]) == 0
    (row,) = json.loads(file.read_text())
    printed = " ".join(capsys.readouterr().out.split())
    waited = row["rounds"] * (0.02 + forecast.HOP_S) + 7 * 4 * 0.04
    assert row["waiting_seconds"] == pytest.approx(waited)
    assert row["votes"] == 8 and f"keeps up to {row['disk_bytes'] / 1e6:.3g} MB" in printed
    assert row["disk_bytes"] > 8 * row["client_bytes_ahead"]
    assert cli.main([*given, "--workers", "2"]) == 2
    assert "a round of zoom takes no workers" in capsys.readouterr().err


def test_several_numbers_of_clients_are_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, picture = tmp_path / "plan.json", tmp_path / "cost.by.clients.png"
    given = ["plan", "--dim", "300", "--clients", "8,4,8,6", "--one-malicious-server"]
    saved = ["--json", str(file), "--plot", str(picture)]
    assert cli.main([*given, *saved]) == 0
    printed = capsys.readouterr().out
    assert all(len(line) <= 80 for line in printed.split("saved to")[0].splitlines())
    assert printed.count("\nmethod ") == 1
    rows = json.loads(file.read_text())
    names = [row["name"] for row in rows]
    assert names == sorted(names, key=names.index)
    assert [row["clients"] for row in rows] == [4, 6, 8] * len(set(names))
    for row in rows:
        figures = f" {row['clients']} ", f" {row['rounds']} "
        assert any(all(one in line for one in figures) for line in printed.splitlines())
    for n in (4, 6, 8):
        rows_of = [row for row in rows if row["clients"] == n and row["kind"] == "approximate"]
        best = min(rows_of, key=lambda row: float(row["seconds"]))["name"]
        assert f"n = {n}: On this link the approximate median takes the least time with {best}" in (
            " ".join(printed.split())
        )
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_range_that_several_numbers_of_clients_have_is_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["plan", "--dim", "300", "--clients", "4,6,8", "trimmed-mean"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count(" n = 6, 8: trimmed-mean 0.1: values from ") == 1
    assert printed.count(" trimmed-mean 0.1: values from ") == 2


def test_a_plot_needs_several_numbers_of_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["plan", "--dim", "300", "--clients", "4,4", "mean", "--plot"]
    assert cli.main([*given, str(tmp_path / "cost.png")]) == 2
    assert "--plot draws several numbers of clients: 4 alone; give" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main([*given, str(tmp_path / "cost.pdf")])
    assert "not the name of a PNG file: " in capsys.readouterr().err


def test_no_figure_is_cut_where_there_is_little_room() -> None:
    figures = ["1,234,567.8", "9,876,543.2"]
    columns = ["a method with a long name", *(f"heading-{i}" for i in range(6))]
    console = Console(file=StringIO(), width=60)
    with console.capture() as printed:
        console.print(terminal.table("", columns, [["words " * 4, *figures * 3]]), crop=False)
    for text in (*figures, *columns[1:]):
        assert text in printed.get()


def test_a_plan_counts_the_check_of_dealings() -> None:
    """Its time grows with the clients, and its memory is that of a part."""
    one, other = (
        RoundParams(
            Bucketed(uploads="dealt", check_bits=bits), dim=20_000, max_clients=4
        ).form.dealing
        for bits in (40, 128)
    )
    assert one is not None and other is not None
    few, many = forecast.time_check(one), forecast.time_check(other)
    assert few[0] > 0
    # a vector of 15 entries of 4 bits takes 8 bytes, and there are B of them per coordinate
    for found, shape in ((few, one), (many, other)):
        assert 8 * 20_000 * (shape.partners(20_000) + 1) < found[1] < 1 << 27
    assert few[1] < many[1]


def test_an_audited_round_takes_its_ots_ahead() -> None:
    params = RoundParams(Bucketed(security="malicious"), dim=3000, max_clients=4)
    row = forecast.forecast(params, ProtocolParams(), LinkShape(1e9, 0), 0.0)
    ot = row["ahead_seconds"] / row["ots"] / forecast.AHEAD
    assert 1e-9 < ot < 1e-5
    assert row["online_seconds"] == pytest.approx(forecast.AFTER * row["ots"] * ot)
    cost = predict(params, [1] * 4, ProtocolParams()).cost
    assert cost.preprocessing_bytes_sent > 0.9 * cost.bytes_sent
    # the cipher's time is ahead for the bytes that are
    byte = 1e-3
    slow = forecast.forecast(params, ProtocolParams(), LinkShape(1e9, 0), byte)
    early = cost.preprocessing_bytes_sent + cost.preprocessing_bytes_received
    assert 0.9 < slow["ahead_seconds"] / (early * byte) < 1.1
    late = cost.bytes_sent + cost.bytes_received - early
    assert 0.9 < slow["online_seconds"] / (late * byte) < 1.1


def test_one_method_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["plan", "--clients", "3", "--dim", "200"]
    assert (
        cli.main([*given, "radix", "--encoding", "fixed", "--field-bits", "2", "--lanes", "1"]) == 0
    )
    assert "radix fixed" in capsys.readouterr().out
    assert cli.main([*given, "bucketed", "--schedule", "bisect", "--buckets", "5"]) == 0
    printed = capsys.readouterr().out
    assert "bucketed b=5 bisect" in printed and "scan" not in printed and "exact" not in printed
    assert cli.main([*given, "bucketed", "--buckets", "40"]) == 2
    assert "take radix with encoding buckets" in capsys.readouterr().err
    assert cli.main(["plan", "--dim", "200"]) == 2
    assert "lacks its sizes: --clients, and --dim or --model" in capsys.readouterr().err
    assert cli.main(["plan", "--clients", "1", "--dim", "200"]) == 2
    assert "max_clients" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main([*given, "radix", "--rtt", "-1"])


@pytest.mark.parametrize(("clients", "dim", "drowns"), [(10, 555, False), (10, 556, True)])
def test_plan_says_what_noise_gives_and_whether_it_drowns_the_model(
    clients: int, dim: int, drowns: bool
) -> None:
    def asked(method: Mean) -> RoundParams:
        return RoundParams(method, dim=dim, max_clients=clients)

    noisy = asked(Mean(norm_bound=1.0, noise_multiplier=1.0))
    epsilon, ratio, *warning = forecast.of_noise([noisy])
    assert "1: 4.73, 10: 19, 100: 96" in epsilon and "0.3 times as long as its noise" in ratio
    assert [line.startswith("The noise drowns the model") for line in warning] == (
        [True] if drowns else []
    )
    assert not forecast.of_noise([asked(Mean(norm_bound=1.0))])
    for params, told in ((noisy, epsilon_of(0.5)), (asked(Mean()), None)):
        row = forecast.forecast(params, ProtocolParams(), LinkShape(1e9, 0), 0.0)
        assert row["epsilon"] == told
