"""`bench parts`: clocks that count nothing twice, and parts that are the whole."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from securemedian import cli
from securemedian.benchmarks import parts, settings, yardstick
from securemedian.benchmarks.work import Point
from securemedian.mpc.protocols.kernels import extension
from securemedian.mpc.protocols.kernels.native import processor
from securemedian.mpc.protocols.ot import ferret, leaves
from securemedian.mpc.rounds.methods.registry import METHODS


def burn(seconds: float) -> None:
    """Take processor time, which is what the clocks count."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_time_inside_an_inner_clock_is_its_own() -> None:
    def outer() -> None:
        burn(0.02)
        module.inner(b"four")

    module = SimpleNamespace(inner=lambda data: burn(0.05), outer=outer)
    original, clocks = module.inner, parts.Clocks()
    with clocks.on([("a", module, "outer", None), ("b", module, "inner", len)]):
        module.outer()
        module.inner(b"xy")
    assert module.inner is original and module.outer is outer
    assert clocks.seconds.keys() == {"a", "a: b", "b"}
    # 0.02 s, and 0.05 s twice
    outside, within, alone = (clocks.seconds[name] for name in ("a", "a: b", "b"))
    assert 0 < 1.5 * outside < min(within, alone)
    assert clocks.byte_counts == {"a: b": 4, "b": 2}


def test_clocks_are_taken_away_after_an_error() -> None:
    """Nothing stays, not even an original in a class that only inherits it."""
    fold = extension.fold
    owners = [owner for _, owner, _, _ in parts.EXTENDING]
    before = [dict(vars(owner)) for owner in owners]
    with pytest.raises(KeyError), parts.Clocks().on(parts.EXTENDING):
        assert extension.fold is not fold and vars(leaves)["Stream"] is not parts.Stream
        raise KeyError
    assert [dict(vars(owner)) for owner in owners] == before


@pytest.mark.release
def test_the_parts_and_the_rest_are_the_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(points: Sequence[Point], *_: object) -> list[dict[str, float]]:
        return [{"per_second": 1e9, "bytes_each": 8.0}] * len(points)

    monkeypatch.setattr(settings, "measure", measure)
    small = [
        "--ots",
        "140000",
        "--comparisons",
        "5000",
        "--coordinates",
        "640",
        "--repeat",
        "1",
        "--extensions",
        "softspoken-8,silent",
    ]
    assert cli.main(["bench", "parts", *small, "--out", str(tmp_path)]) == 0
    found: dict[tuple[str, str], dict[str, float]] = {}
    for point in json.loads((tmp_path / "parts.json").read_text())["points"]:
        found.setdefault((point["table"], point["column"]), {})[point["row"]] = point["figure"]
    compared = {column: rows for (table, column), rows in found.items() if "comparison" in table}
    made = {key: rows for key, rows in found.items() if "random OT" in key[0]}
    per_client = f"coordinate of {parts.CLIENTS} clients"
    rounds = {column: rows for (table, column), rows in found.items() if per_client in table}
    ((_, sketched),) = ((key, rows) for key, rows in found.items() if "sketch" in key[0])
    assert sketched["sums"] > 0 and sketched["random signs"] > 0
    assert len(made) == 4 and compared.keys() == {"l = 32", "l = 64", "l = 4"}
    assert rounds.keys() == METHODS.keys()
    both = [*compared.values(), *rounds.values()]
    for prefix, rows in [("", rows) for rows in made.values()] + [
        (f"{phase}: ", rows) for phase in parts.PHASES for rows in both
    ]:
        assert rows[prefix + parts.WHOLE] == pytest.approx(
            rows[prefix + parts.SUM] + rows[prefix + parts.OTHER]
        )
        assert rows[prefix + parts.WHOLE] > 0
    # the features of the processor, and the AES of the same run
    saved = json.loads((tmp_path / "parts.json").read_text())["aes"]
    stick = yardstick.Yardstick(**saved)
    for rows in made.values():
        assert rows[parts.IN_AES] == pytest.approx(stick.bytes_in(rows[parts.WHOLE] / 1e9))
    for rows in both:
        spent = sum(rows[f"{phase}: {parts.WHOLE}"] for phase in parts.PHASES)
        assert rows[parts.IN_AES] == pytest.approx(stick.bytes_in(spent / 1e9))
    assert all(rows[parts.TWO] == 1 for rows in [*made.values(), *compared.values()])
    # what each extension encrypts for an OT: 16 trees of 256 leaves, and the hash
    assert made["ns per random OT, at the receiver", "softspoken-8"][
        parts.AES_BYTES
    ] == pytest.approx(16 * 256 / 8 + 16)
    assert made["ns per random OT, at the sender", "softspoken-8"][
        parts.AES_BYTES
    ] == pytest.approx(16 * 255 / 8 + 32)
    silent = made["ns per random OT, at the sender", "silent"]
    portable = {"trees: hash", "code: gather"}
    own = {"trees and code in one pass"} if processor.taken(True) else portable
    assert silent.keys() > own
    # a hash and 40 bytes of indices for each output, handed out or not, but for the groups that an
    # iteration's worth of OTs begins or ends in; and two keys
    a_leaf = (16 + 40) * ferret.CODE.outputs / ferret.CODE.yields
    assert silent[parts.AES_BYTES] == pytest.approx(a_leaf + 32, rel=0.06)
    # a nanosecond a byte: of 8 bytes 4 go in each direction
    assert all(rows[parts.LINK] == pytest.approx(4) for rows in made.values())
    assert compared["l = 64"][parts.LINK] == pytest.approx(4)
    online = {
        name: {row.removeprefix("online: ") for row in rows if row.startswith("online: ")}
        - {parts.SUM, parts.OTHER, parts.WHOLE}
        for name, rows in rounds.items()
    }
    compares = {"uploads", "bit planes", "comparisons", "opening"}
    selects = {*compares, "bits to numbers", "multiplexers"}
    equals = {"equality: bit planes", "equality: rest"}
    assert online == {
        "bucketed": compares,
        "pairwise": selects | equals,
        "trimmed-mean": selects,
        "mean": {"uploads", "opening"},
        "krum": selects | {"uploads", "sketches", "squares"},
        "zeno": selects | {"sketches", "squares"},
        "reclustered": selects | equals,
        "radix": compares | {"products"},
    }
    # 31-bit millionaires' has eight leaves and ANDs, 3-bit one leaf and none
    assert "online: ANDs" in compared["l = 32"] and "online: ANDs" not in compared["l = 4"]
    printed = capsys.readouterr().out
    transposing = "all in one pass" if processor.taken(True) else "transpose"
    assert str(stick) in printed
    assert transposing in printed and "AES-128 CTR, 65,536 B at a time" in printed
