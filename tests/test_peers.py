"""`bench peers` without any peer: programs stand in for them, and some of them fail."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from securemedian import cli
from securemedian.benchmarks import settings
from securemedian.benchmarks.peers import cli as peers
from securemedian.benchmarks.peers.cli import Framework, PeerFailed
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


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Framework]:
    """Return what makes a peer whose parties run a text, in this very environment."""
    monkeypatch.setattr(peers, "HERE", tmp_path)
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path)

    def made(text: str, parties: int) -> Framework:
        (tmp_path / "some" / "bin").mkdir(parents=True)
        (tmp_path / "some" / "bin" / "python").symlink_to(sys.executable)
        (tmp_path / "some_party.py").write_text(text)
        return Framework("some", "Some", parties, 64, ())

    return made


def test_every_party_gets_its_job_and_is_heard(peer: Callable[..., Framework]) -> None:
    results = peers.parties_results(peer(WRITES, 3), TASKS, 2)
    assert [party[0]["seconds"] for party in results] == [[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]


def test_one_that_stops_ends_the_others_and_is_quoted(peer: Callable[..., Framework]) -> None:
    text = (
        "import json, sys, time\n"
        "if json.load(sys.stdin)['rank'] == 1: sys.exit('no such card')\n"
        "time.sleep(1000)"
    )
    # in less than the test's own limit
    with pytest.raises(PeerFailed, match="stopped with 1: no such card"):
        peers.parties_results(peer(text, 2), TASKS, 1)


def test_one_that_never_ends_is_ended(
    peer: Callable[..., Framework], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "LIMIT_S", 0.5)
    with pytest.raises(PeerFailed, match="not done within 0.5 s: lower --count"):
        peers.parties_results(peer("import time; time.sleep(1000)", 2), TASKS, 1)


def test_results_that_are_missing_are_a_failure(peer: Callable[..., Framework]) -> None:
    with pytest.raises(PeerFailed, match="0 of 1 results: hello"):
        peers.parties_results(peer("print('hello')", 1), TASKS, 1)


def test_one_that_is_not_there_is_told_how_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path)
    with pytest.raises(PeerFailed, match=r"python3\.11 -m venv .*/spu && .*requirements-spu\.txt"):
        peers.parties_results(peers.PEERS[0], TASKS, 1)


def test_an_installation_has_no_peers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "securemedian.benchmarks.peers", None)
    assert cli.main(["bench", "peers"]) == 2
    assert "in a checkout" in capsys.readouterr().err


def test_ratios_stand_beside_ours_and_a_failed_peer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(points: list[Point], *_: object) -> list[dict[str, Any]]:
        return [{"seconds": 0.5, "bytes_s0_to_s1": 10, "bytes_s1_to_s0": 30} for _ in points]

    def results(peer: Framework, tasks: list[Any], repetitions: int) -> list[list[dict[str, Any]]]:
        if peer.name == "mpyc":
            raise PeerFailed("no network")
        return [
            [{"seconds": [1.0, slow, 9.0], "bytes_sent": [30, 30, 60]} for _ in tasks]
            for slow in (2.0, 3.0)
        ]

    monkeypatch.setattr(settings, "measure", measure)
    monkeypatch.setattr(peers, "parties_results", results)
    assert cli.main(["bench", "peers", "--count", "4", "--dim", "40", "--out", str(tmp_path)]) == 0
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
