"""`bench peers` without any peer: programs stand in for them, and some of them fail."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from securemedian import cli
from securemedian.benchmarks import settings
from securemedian.benchmarks.peers import processes
from securemedian.benchmarks.work import Point, run_point
from securemedian.mpc.protocols.protocol import ProtocolParams
from tests.parties import make_parties, run_both

pytestmark = pytest.mark.slow

TASKS = [{"work": "compare", "count": 10, "ring_bits": 32}]
# each party writes what its job says and takes as many seconds as its rank is high
WRITES = """
import json, sys
job = json.load(sys.stdin)
print("talks much")
for number, task in enumerate(job["tasks"]):
    seconds = [job["rank"] + repetition + 1.0 for repetition in range(job["repetitions"])]
    sent = [100, 300][: job["repetitions"]]
    print(json.dumps({"task": number, "seconds": seconds, "bytes_sent": sent}))
"""


def program(tmp_path: Path, text: str) -> list[str]:
    """Return a command whose Python has a folder for logs two above it, as one of a venv has."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    script = tmp_path / "program.py"
    script.write_text(text)
    return [str(python), "-I", str(script)]


def test_every_party_gets_its_job_and_is_heard(tmp_path: Path) -> None:
    results = processes.run(program(tmp_path, WRITES), 3, TASKS, 2, pin=True, limit_s=120)
    assert [party[0]["seconds"] for party in results] == [[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]


def test_one_that_stops_ends_the_others_and_is_quoted(tmp_path: Path) -> None:
    text = (
        "import json, sys, time\n"
        "if json.load(sys.stdin)['rank'] == 1: sys.exit('no such card')\n"
        "time.sleep(300)"
    )
    start = time.monotonic()
    with pytest.raises(processes.PeerFailed, match="stopped with 1: no such card"):
        processes.run(program(tmp_path, text), 2, TASKS, 1, pin=False, limit_s=250)
    assert time.monotonic() - start < 120


def test_one_that_never_ends_is_ended(tmp_path: Path) -> None:
    with pytest.raises(processes.PeerFailed, match="not done within 0.5 s: raise --limit-s"):
        processes.run(
            program(tmp_path, "import time; time.sleep(60)"), 2, TASKS, 1, pin=False, limit_s=0.5
        )


def test_results_that_are_missing_are_a_failure(tmp_path: Path) -> None:
    with pytest.raises(processes.PeerFailed, match="0 of 1 results: hello"):
        processes.run(program(tmp_path, "print('hello')"), 1, TASKS, 1, pin=False, limit_s=120)


def test_what_is_installed_is_kept_while_its_pins_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []

    def call(command: list[str], limit_s: float) -> None:
        commands.append(command[3])
        (tmp_path / "mpyc").mkdir(exist_ok=True)

    monkeypatch.setattr(processes, "_call", call)
    monkeypatch.setattr(processes, "PYTHON", sys.version_info[:2])
    for _ in range(2):
        assert processes.install("mpyc", tmp_path, 10) == tmp_path / "mpyc" / "bin" / "python"
    assert commands == ["--clear", "pip"]
    (tmp_path / "mpyc" / "requirements-mpyc.txt").write_text("mpyc==0.10\n")
    processes.install("mpyc", tmp_path, 10)
    assert len(commands) == 4


def test_a_python_that_is_not_there_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PYTHON", (3, 99))
    with pytest.raises(processes.PeerFailed, match=r"install python3\.99"):
        processes.install("spu", tmp_path, 10)


def test_ratios_stand_beside_ours_and_a_failed_peer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(points: list[Point], *_: object) -> list[dict[str, Any]]:
        return [{"seconds": 0.5, "bytes_s0_to_s1": 10, "bytes_s1_to_s0": 30} for _ in points]

    def install(name: str, *_: object) -> Path:
        if name == "mpyc":
            raise processes.PeerFailed("no network")
        return Path("python")

    def run(
        command: list[str], parties: int, tasks: list[dict[str, Any]], *_: object
    ) -> list[list[dict[str, Any]]]:
        assert command[-1].endswith("spu_party.py") and parties == 2
        return [
            [{"seconds": [1.0, slow, 9.0], "bytes_sent": [30, 30, 60]} for _ in tasks]
            for slow in (2.0, 3.0)
        ]

    monkeypatch.setattr(settings, "measure", measure)
    monkeypatch.setattr(processes, "install", install)
    monkeypatch.setattr(processes, "run", run)
    arguments = [
        "--count",
        "4",
        "--dim",
        "40",
        "--env",
        str(tmp_path / "env"),
        "--out",
        str(tmp_path),
    ]
    assert cli.main(["bench", "peers", *arguments]) == 0
    saved = json.loads((tmp_path / "peers.json").read_text())
    assert saved["failed"] == {"mpyc": "no network"} and saved["versions"]["spu"]["spu"] == "0.9.5"
    ours, theirs = (row for row in saved["points"] if row["what"] == "signed comparison, l = 32")
    assert (ours["system"], ours["per_second"], ours["bytes_each"], ours["ratio"]) == (
        "securemedian",
        8,
        10,
        1,
    )
    # the slower party's seconds, the median repetition's; bytes of both parties
    assert (theirs["system"], theirs["seconds"], theirs["bytes_each"]) == ("SPU 0.9.5", 3, 20)
    assert theirs["ratio"] == pytest.approx(6)
    medians = [row for row in saved["points"] if row["what"] == "median of 8 floats"]
    assert [row["batch"] for row in medians] == [40, 40, 40, 40, 2]
    assert "mpyc gave no result: no network" in capsys.readouterr().out


@pytest.mark.parametrize(("ways", "sent"), [("one way", (3, 0)), ("both ways", (3, 3))])
def test_bytes_are_what_crosses_the_link(ways: str, sent: tuple[int, int]) -> None:
    message, lanes = 31 * 255 * 512 // 8, make_parties()
    point = Point("bytes", ways, count=2 * message + 1)
    costs = run_both(
        lambda party: run_point(point, lanes[party], ProtocolParams(lanes=1), lambda: None).cost
    )
    for cost, messages in zip(costs, sent, strict=True):
        assert messages * message <= cost.bytes_sent < messages * message + 500
