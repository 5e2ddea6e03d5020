"""The benchmark: two real processes, counted costs, the JSON that others read."""

import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import zmq

from securemedian import cli
from securemedian.benchmarks import by_clients, harness, points, yardstick
from securemedian.benchmarks.link import BUFFER_BYTES, LOOPBACK, LinkShape, ShapedLink, Shaper
from securemedian.benchmarks.work import Point, Repetition, run_point, weight
from securemedian.laboratory import report
from securemedian.mpc.errors import ConfigError, PeerProtocolError
from securemedian.mpc.protocols.kernels.native import processor
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.servers.network.transport import ZmqLink
from tests.parties import make_parties, run_both

COUNTED = {
    *("method", "verified", "clients", "dim", "ots", "bytes_s0_to_s1", "bytes_s1_to_s0", "rounds"),
    *("seconds", "checking_seconds", "preprocessing_seconds", "online_seconds"),
}


def run(tmp_path: Path, *arguments: str) -> list[dict[str, Any]]:
    file = tmp_path / "points.json"
    assert cli.main(["bench", *arguments, "--repeat", "2", "--json", str(file)]) == 0
    results: list[dict[str, Any]] = json.loads(file.read_text())
    for point in results:
        assert point.keys() >= COUNTED
        assert point["seconds"] == pytest.approx(
            point["preprocessing_seconds"] + point["online_seconds"]
        )
    return results


def figure(tmp_path: Path, name: str, *arguments: str) -> Any:
    """Return what a figure's command saves, beside its picture."""
    typed = ["securemedian", "bench", name, *arguments, "--repeat", "2", "--out", str(tmp_path)]
    with patch.object(sys, "argv", typed):
        assert cli.main() == 0
    if name != "table1":
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    saved = json.loads((tmp_path / f"{name}.json").read_text())
    assert saved["command"] == shlex.join(typed) and saved["settings"]["repeat"] == 2
    assert saved["machine"]["cpu"] and saved["machine"]["cores"] > 0
    assert all(point.keys() >= COUNTED for point in saved["points"])
    return saved


@pytest.mark.slow
def test_ots_and_comparisons_cost_what_they_should(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (point,) = run(tmp_path, "ot", "--count", str(1 << 18))
    # the features of the processor, and the AES of the same run in the time of an OT
    stick = yardstick.measured(True)
    printed = capsys.readouterr().out
    assert point["aes_bytes_per_second"] == stick.bytes_per_second
    assert str(stick) in printed and stick.made_by in str(stick)
    # corrections, the challenge, and the proof
    assert point["ots"] == 1 << 18 and point["rounds"] == 3
    assert point["bytes_s0_to_s1"] == point["bytes_s1_to_s0"]
    assert 31 / 8 <= point["bytes_each"] < 31 / 8 + 0.02 and point["per_second"] > 0
    assert point["native"] is processor.use_native(True)
    few = ["--ring-bits", "32", "--count", "20000"]
    (point,) = run(tmp_path, "compare", "--no-native", *few)
    assert point["native"] is False and point["ring_bits"] == 32
    assert 45 * 20000 <= point["ots"] <= 47 * 20000 and point["per_second"] > 0


@pytest.mark.release
def test_figure_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = figure(tmp_path, "fig3", "--clients", "2,3,5", "--dim", "200")
    assert [(point["method"], point["clients"]) for point in saved["points"]] == [
        (method, n) for method in ("bucketed", "pairwise", "radix") for n in (2, 3, 5)
    ]
    printed = capsys.readouterr().out
    # another's figure, and ours
    assert "57.8" in printed and "OTs grow as" in printed
    assert "its line is flat by construction" in " ".join(printed.split())


@pytest.mark.release
def test_figure_12_tells_the_mpc_part_from_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = figure(tmp_path, "fig12", "--clients", "3,40", "--dim", "3000")
    few, many = saved["points"]
    # enough for 40 clients
    assert few["ring_bits"] == many["ring_bits"] == 6
    for what in ("ots", "bytes_s0_to_s1", "rounds"):
        assert few[what] == many[what]
    for point in (few, many):
        assert (
            point["ahead_seconds"] > 0
            and point["uploads_seconds"] > 0
            and point["publish_seconds"] > 0
        )
        assert point["preprocessing_bytes_s0_to_s1"] < point["bytes_s0_to_s1"]
    assert saved["growth_of_mpc"] == many["mpc_seconds"] / few["mpc_seconds"] - 1
    assert "the MPC part changes by" in capsys.readouterr().out


@pytest.mark.release
def test_table_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = figure(tmp_path, "table1", "--clients", "3", "--dim", "2000")
    timed = [
        (point["method"], point.get("buckets"), point["verified"]) for point in saved["points"]
    ]
    assert timed == [("bucketed", b, verified) for b in (8, 16) for verified in (True, False)]
    phases = {(phase["setting"], phase["name"].strip()): phase for phase in saved["phases"]}
    assert len(phases) == len(saved["phases"])
    median = phases["", "numpy.median"]["seconds"]
    names = ("preprocessing, while clients train", "checking, while clients train", "online")
    for setting, reached in zip(("b=8 scan", "b=16 bisect"), saved["reached"], strict=True):
        ahead, checking, online = (phases[setting, name] for name in names)
        unverified = phases[f"{setting}, unverified", names[0]]
        for what in ("seconds", "megabytes"):
            parts = sum(part[what] for part in (ahead, checking, online))
            assert phases[setting, "secure median"][what] == pytest.approx(parts)
        assert reached["setting"] == setting
        assert reached["online_to_numpy_median"] == pytest.approx(online["seconds"] / median)
        assert reached["ahead_to_unverified"] == pytest.approx(
            (ahead["seconds"] + checking["seconds"]) / unverified["seconds"]
        )
        assert all(50 < mib < 4096 for mib in reached["peak_mib"])
        assert (f"{setting}, unverified", names[1]) not in phases
        # a client sends a vector of 15 or 30 bytes per coordinate ahead, and w bits afterwards
        assert phases[setting, "deal, before it has trained"]["megabytes"] > 0.02
        assert phases[setting, "rotate"]["megabytes"] < 0.01
    assert all(phase["seconds"] > 0 for phase in phases.values())
    printed = capsys.readouterr().out
    assert "training is left out" in printed
    stick = yardstick.Yardstick(**saved["aes"])
    assert str(stick) in printed


@pytest.mark.parametrize(
    ("flags", "verified"),
    [
        ([], [True]),
        (["--verify"], [True]),
        (["--no-verify"], [False]),
        (["--no-verify", "--verify"], [False, True]),
    ],
)
def test_what_is_verified_is_what_was_asked_for(
    flags: list[str], verified: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verify a method whose uploads can be malformed, and one whose uploads cannot."""
    points = asked_of("median", monkeypatch, "--clients", "3", *flags, "bucketed")
    assert [point.verified for point in points] == verified
    points = asked_of("median", monkeypatch, *flags, "radix")
    assert [point.verified for point in points] == [True] * 5


@pytest.mark.slow
def test_whole_rounds_by_the_number_of_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = figure(tmp_path, "clients", "--clients", "2,3,5", "--dim", "300", "bucketed", "mean")
    printed = capsys.readouterr().out
    rows = saved["points"]
    of = {label: [one for one in rows if one["label"] == label] for label in saved["exponents"]}
    assert tuple(of) == ("bucketed b=16 bisect", "mean")
    for label, of_label in of.items():
        assert [one["clients"] for one in of_label] == [2, 3, 5]
        assert f"{label}: d = 300, softspoken-4, loopback" in printed
        for one in of_label:
            # each figure is one of the same round
            spent = one["before_seconds"] + one["after_seconds"]
            whole = one["seconds"] + one["checking_seconds"]
            assert spent == pytest.approx(whole, rel=0.5) and one["ahead_seconds"] == 0
            assert one["after_seconds"] > 0 and 0 < one["client_seconds"] < 1
        fitted = saved["exponents"][label]
        assert fitted["MB"] == by_clients.exponent(
            (one["clients"], report.megabytes(one)) for one in of_label
        )
        assert set(fitted) == {"before", "after", "MB"} and None not in fitted.values()
    # checks are part of it: of dealings before the last upload, of values after it
    dealt, values = of["bucketed b=16 bisect"][-1], of["mean"][-1]
    assert dealt["before_seconds"] > dealt["checking_seconds"] > 0
    assert values["checking_bytes_s0_to_s1"] > 0.9 * values["bytes_s0_to_s1"]
    assert dealt["client_bytes_ahead"] > 0 == values["client_bytes_ahead"]


@pytest.mark.parametrize("method", ["bucketed", "mean"])
def test_dealings_are_checked_before_the_last_upload_and_values_after_it(method: str) -> None:
    protocol = ProtocolParams(lanes=2)
    lanes = make_parties(protocol.lanes)

    def run(j: int) -> Repetition:
        def meet() -> None:
            lanes[j][0].channel.exchange("ready", np.zeros(1, np.uint8))

        return run_point(Point("median", method, None, 4, 300), lanes[j], protocol, meet)

    for parties, spent in zip(lanes, run_both(run), strict=True):
        assert spent.cost.checking_seconds > 0
        made = max(party.pool.spent.seconds for party in parties)
        checked = spent.cost.checking_seconds if method != "mean" else 0.0
        assert spent.early_seconds == pytest.approx(made + checked)


def test_several_methods_have_their_own_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take a method's name as an option's value, too, and shared options anywhere."""
    given = ["reclustered", "--median-by", "radix", "--clients", "8,4,8", "radix", "--encoding"]
    more = ["bfloat16", "bucketed", "--audit", "radix", "bucketed"]
    asked = asked_of("clients", monkeypatch, *given, *more, "--out", str(tmp_path))
    assert [(point.method, point.options) for point in asked[::2]] == [
        ("reclustered", {"median_by": "radix"}),
        ("radix", {"encoding": "bfloat16"}),
        ("bucketed", {"audit": True}),
        ("radix", {}),
        ("bucketed", {}),
    ]
    assert [point.clients for point in asked] == [4, 8] * 5
    assert all(point.verified and point.dim == 1000 for point in asked)
    asked = asked_of("clients", monkeypatch, "--out", str(tmp_path))
    assert [point.method for point in asked[::5]] == ["bucketed", "radix", "pairwise", "mean"]
    # longer points weigh more in the progress bar
    heavy, light = asked[14], asked[0]
    assert (heavy.method, heavy.clients) == ("pairwise", 64)
    assert 1000 * weight(light) > weight(heavy) > 100 * weight(light)


def asked_of(kind: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> list[Point]:
    """Return the points that a kind of `bench` would measure."""
    asked: list[Point] = []

    def measure(points: list[Point], chosen: Any) -> list[Any]:
        asked.extend(points)
        raise ConfigError("enough")

    monkeypatch.setattr(harness, "measure", measure)
    assert cli.main(["bench", kind, *options]) == 2
    return asked


def test_options_may_stand_before_and_after_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = ["--clients", "60"], ["--clusters", "3", "--dim", "20000"]
    (point,) = asked_of("median", monkeypatch, *before, "reclustered", *after)
    assert (point.method, point.clients, point.dim) == ("reclustered", 60, 20_000)
    assert point.options == {"clusters": 3}
    (default,) = asked_of("median", monkeypatch, *before)
    assert (default.method, default.options) == ("bucketed", {})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("clients radix nobody", "invalid choice: 'nobody'"),
        ("clients radix mean --encoding bfloat16", "--encoding"),
        ("clients --clients 4,few", "few"),
        ("median --clients two", "--clients"),
        ("median bucketed --schedule later", "--schedule"),
        ("median bucketed --buckets 2", "buckets"),
        ("median --repeat 0", "--repeat"),
        ("median --extension loud", "--extension"),
        ("median --link slow", "--link"),
        ("fig12 --clients 1,10", "clients"),
        ("table1 --clients 1", "clients"),
        ("fig3 --dim 0", "dim"),
        ("fig3 --out file", "cannot write"),
    ],
)
def test_mistakes_are_told_before_anything_starts(
    arguments: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    try:
        assert cli.main(["bench", *arguments.split()]) == 2
    except SystemExit as ended:
        assert ended.code == 2
    assert said in capsys.readouterr().err


def test_links_are_read_with_their_units() -> None:
    for text, bits_per_second, rtt_s in (
        ("377MB/s", 3016e6, 0.0),
        ("100Mbit/s,40ms", 100e6, 0.04),
        ("2.5Gbit/s,0.1s", 2.5e9, 0.1),
        ("800bit/s", 800.0, 0.0),
    ):
        link = LinkShape.parse(text)
        assert (link.bits_per_second, link.rtt_s) == pytest.approx((bits_per_second, rtt_s))
    assert LinkShape.parse("loopback") == LOOPBACK
    wrong = ["", "100", "100Mb/s", "0MB/s", "1.2.3MB/s", "100Mbit/s,40", "100Mbit/s,-1ms", "40ms"]
    for text in wrong:
        with pytest.raises(ConfigError, match="not a link"):
            LinkShape.parse(text)


@pytest.fixture
def sockets() -> Any:
    """Pairs of connected sockets, made on demand."""
    context = zmq.Context()
    made: list[Any] = []

    def pair(name: str) -> tuple[Any, Any]:
        one, other = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        one.bind(f"inproc://{name}")
        other.connect(f"inproc://{name}")
        made.extend((one, other))
        return one, other

    yield pair
    for socket in made:
        socket.close(linger=0)
    context.term()


def test_a_shaped_link_takes_its_time_over_all_lanes_together(sockets: Any) -> None:
    out = Shaper(LinkShape(bits_per_second=8e6, rtt_s=0.1))
    lanes = []
    for number in range(2):
        one, other = sockets(str(number))
        unshaped = ZmqLink(one, 5)
        lanes.append((ShapedLink(one, 5, out), ShapedLink(other, 5, Shaper(LOOPBACK))))
    start = time.monotonic()
    for one, _ in lanes:
        one.send([b"header", bytes(100_000)])
    for number, (_, other) in enumerate(lanes, 1):
        assert other.recv() == [b"header", bytes(100_000)]
        # 100,006 bytes each at 1 MB/s, and half of the round trip
        assert time.monotonic() - start >= 0.100006 * number + 0.05
    # the other direction waits for nothing of this one
    one, other = lanes[0]
    other.send([b"back"])
    assert one.recv() == [b"back"]
    # both ends have to be shaped
    unshaped.send([b"header", b"no time at all"])
    with pytest.raises(PeerProtocolError, match="due"):
        lanes[1][1].recv()


def test_a_sender_waits_only_when_the_buffer_is_full() -> None:
    now = 100.0
    shaper = Shaper(LinkShape(bits_per_second=8e6, rtt_s=0.04), clock=lambda: now)
    seconds = BUFFER_BYTES / 1e6
    assert shaper.book(BUFFER_BYTES) == pytest.approx((0.0, now + seconds + 0.02))
    assert shaper.book(1_000_000) == pytest.approx((0.0, now + seconds + 1.02))
    # the surplus has left by then
    assert shaper.book(1) == pytest.approx((1.0, now + seconds + 1.020001))
    # the link has been idle: nothing is saved up
    now += 1000
    assert shaper.book(1_000_000) == pytest.approx((0.0, now + 1.02))


def test_growth_is_the_exponent_of_the_clients() -> None:
    common = {"method": "radix", "dim": 10, "encoding": "float32", "verified": True}
    results = [common | {"clients": n, "ots": 5 * n, "seconds": 0.1 * n * n} for n in (2, 4, 8)]
    assert points.growth(results) == ["radix 10 float32: OTs grow as n^1.00, seconds as n^2.00"]
    assert points.growth(results[:2]) == []
    assert by_clients.exponent([(4, 0.0), (8, 32.0), (16, 128.0)]) is None
