"""The benchmark: two real processes, counted costs, the JSON that others read."""

import json
from pathlib import Path

import pytest

from benchmarks import cli as bench
from scripts import cli

COUNTED = {
    "method", "clients", "dim", "buckets", "ring_bits", "schedule",
    "seconds", "preprocessing_seconds", "online_seconds",
    "ots", "bytes_s0_to_s1", "bytes_s1_to_s0", "rounds",
}  # fmt: skip


def run(tmp_path: Path, *arguments: str) -> list[dict[str, object]]:
    file = tmp_path / "points.json"
    assert cli.main(["bench", *arguments, "--repeat", "2", "--json", str(file)]) == 0
    points: list[dict[str, object]] = json.loads(file.read_text())
    for point in points:
        assert point.keys() >= COUNTED
        assert point["seconds"] == pytest.approx(point["preprocessing_seconds"] + point["online_seconds"])  # type: ignore[operator]
    return points


def test_ots_cost_what_the_extension_says(tmp_path: Path) -> None:
    (point,) = run(tmp_path, "ot", "--count", str(1 << 18))
    assert point["ots"] == 1 << 18 and point["rounds"] == 1 and point["bytes_s0_to_s1"] == 0
    assert 31 / 8 <= point["bytes_each"] < 31 / 8 + 0.01 and point["per_second"] > 0  # type: ignore[operator]


def test_comparisons_of_two_rings(tmp_path: Path) -> None:
    points = run(tmp_path, "compare", "--ring-bits", "32,64", "--count", "20000")
    assert [point["ring_bits"] for point in points] == [32, 64]
    assert 45 * 20000 <= points[0]["ots"] <= 47 * 20000  # type: ignore[operator]
    assert points[0]["bytes_each"] < points[1]["bytes_each"] and points[0]["per_second"] > 0  # type: ignore[operator]


def test_medians_of_all_methods(tmp_path: Path) -> None:
    methods = "bucketed,pairwise,radix,trimmed-mean"
    points = run(
        tmp_path, "median", "--method", methods, "--clients", "2,3", "--dim", "300", "--schedule", "scan,bisect"
    )
    assert [(point["method"], point["schedule"], point["clients"]) for point in points] == [
        ("bucketed", "scan", 2), ("bucketed", "bisect", 2), ("bucketed", "scan", 3), ("bucketed", "bisect", 3),
        ("pairwise", None, 2), ("pairwise", None, 3), ("radix", None, 2), ("radix", None, 3),
        ("trimmed-mean", None, 2), ("trimmed-mean", None, 3),
    ]  # fmt: skip
    assert points[0]["ots"] == points[2]["ots"]  # bucketed: constant in n
    assert points[4]["ots"] < points[5]["ots"]  # type: ignore[operator]


@pytest.mark.parametrize(
    "arguments", [["--method", "mean"], ["--clients", "two"], ["--schedule", "later"], ["--repeat", "0"]]
)
def test_bad_options_are_refused_by_name(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "median", *arguments])
    assert ended.value.code == 2 and arguments[0] in capsys.readouterr().err


def test_parameters_that_no_round_can_have_are_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["bench", "median", "--buckets", "2"]) == 2
    assert "buckets" in capsys.readouterr().err


def test_growth_is_the_exponent_of_the_clients() -> None:
    common = {"method": "radix", "dim": 10, "buckets": None, "schedule": None, "encoding": "float32"}
    points = [common | {"clients": n, "ots": 5 * n, "seconds": 0.1 * n * n} for n in (2, 4, 8)]
    assert bench.growth(points) == ["radix 10 float32: OTs grow as n^1.00, seconds as n^2.00"]
    assert bench.growth(points[:2]) == []
