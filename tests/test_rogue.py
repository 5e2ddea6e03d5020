"""A rogue server, through real daemons: what it learns, as long as nothing stops it.

A protection changes these figures.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.common.policy import BOUNDED, PERMITTED, Security
from tests.rogue import attacks
from tests.rogue.__main__ import main
from tests.rogue.deviations import DEVIATIONS, OF_BISECTIONS

ROOT = Path(__file__).resolve().parent.parent
DIM = 1024


def row(deviation: str, method: str, security: Security = Security.SEMI_HONEST) -> dict[str, Any]:
    (attack,) = (
        one for one in attacks.attacks() if (one.deviation, one.method.name) == (deviation, method)
    )
    return attacks.run(attack, DIM, 1, security)


def test_told_bits_are_those_of_fano() -> None:
    assert attacks.told(1.0, 4.0) == 4
    assert attacks.told(1 / 16, 4.0) == pytest.approx(0)
    assert attacks.told(0.0, 1.0) == 0
    assert 0 < attacks.told(0.5, 4.0) < 2


def test_entropy_is_that_of_the_columns() -> None:
    assert attacks.entropy(np.array([[0, 0, 1, 1], [0, 1, 0, 1]])) == 2
    assert attacks.entropy(np.zeros((3, 5))) == 0


def test_nothing_that_serves_knows_of_a_rogue() -> None:
    folders = (
        "laboratory",
        "benchmarks",
        "mpc",
        "common",
        "servers",
        "clients",
        "coordinator",
        "plugins",
        "operating",
    )
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert sources
    assert not [path for path in sources if "rogue" in path.read_text("utf-8")]


def test_every_deviation_is_carried_out() -> None:
    assert {attack.deviation for attack in attacks.attacks()} == set(DEVIATIONS)


def test_the_rows_are_written_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(attack: attacks.Attack, *_: object, **__: object) -> dict[str, Any]:
        names = ("there_bits", "client_bits", "sum_bits", "learnt_bits")
        known: dict[str, Any] = {"attack": attack.deviation, "method": attack.method.name}
        known |= {"security": "semi-honest"}
        said = {"noticed": False, "when": "never", "bound_bits": None}
        return known | said | dict.fromkeys(names, 4.0)

    monkeypatch.setattr(attacks, "run", run)
    file = tmp_path / "rows.json"
    main(["--json", str(file)])
    rows = json.loads(file.read_text())
    every = attacks.attacks()
    others = [one for one in every if one.method not in (attacks.MALICIOUS, attacks.ZOOM)]
    bounded = sum(one.method.name in BOUNDED for one in others)
    malicious = sum(one.method.name in PERMITTED[Security.MALICIOUS] for one in every)
    assert len(rows) == len(others) + bounded + malicious
    assert all(
        {"attack", "method", "security", "noticed", "learnt_bits", "bound_bits"} <= one.keys()
        for one in rows
    )


@pytest.mark.release
def test_lowered_flags_open_a_whole_word_of_radix() -> None:
    found = row("flags", "radix")
    assert found["client_bits"] == found["there_bits"] == attacks.VALUE_BITS
    assert not found["noticed"]


@pytest.mark.release
def test_a_shifted_count_opens_the_minimum_of_buckets() -> None:
    found = row("rank", "bucketed")
    assert (found["client_bits"], found["sum_bits"], found["bound_bits"]) == (0, 4, 12)
    assert not found["noticed"]


@pytest.mark.slow
def test_another_opening_is_found_at_once_and_signed() -> None:
    """One bit is known by then, where four other ones were without commitments."""
    found = row("open-bits", "bucketed")
    assert found["sum_bits"] < 1 and found["client_bits"] == 0
    assert "the peer deviated: s0 has signed that s1" in found["when"]


@pytest.mark.release
def test_a_client_that_stands_out_is_not_hidden_by_a_bound_on_the_sum() -> None:
    found = row("outstanding", "bucketed", Security.BOUNDED)
    assert found["client_bits"] == 2 and not found["noticed"]


@pytest.mark.release
def test_a_verdict_tells_a_bit_that_no_noise_covers_and_shows() -> None:
    found = row("lengths", "mean", Security.BOUNDED)
    assert found["client_bits"] * DIM == 1 and found["noticed"]


@pytest.mark.release
@pytest.mark.parametrize(
    "deviation", ["rank", "tables", "open-bits", "outstanding", *OF_BISECTIONS]
)
def test_a_malicious_secure_round_opens_digits_of_the_median_alone(deviation: str) -> None:
    found = row(deviation, "bucketed", Security.MALICIOUS)
    assert found["learnt_bits"] == 0 and "the peer deviated" in found["when"]


@pytest.mark.release
def test_runs_of_a_malicious_secure_round_that_break_off_open_the_same_digits() -> None:
    found = row("rerun", "bucketed", Security.MALICIOUS)
    assert found["learnt_bits"] == 0 and not found["noticed"]


@pytest.mark.release
def test_a_client_that_helps_lets_a_rogue_ask_for_the_minimum_of_a_malicious_secure_round() -> None:
    found = row("malicious-helper", "bucketed", Security.MALICIOUS)
    assert found["client_bits"] == 0 and 1 < found["sum_bits"] <= found["bound_bits"]
    assert not found["noticed"]


@pytest.mark.release
@pytest.mark.parametrize(("deviation", "least"), [("outstanding", 22), ("steered", 4)])
def test_whole_words_of_zoom_are_read_unless_it_is_malicious_secure(
    deviation: str, least: float
) -> None:
    found = row(deviation, "zoom")
    assert found["client_bits"] >= least and not found["noticed"]
    found = row(deviation, "zoom", Security.MALICIOUS)
    assert found["learnt_bits"] == 0 and "the peer deviated" in found["when"]


@pytest.mark.release
def test_a_client_that_helps_lets_a_rogue_ask_for_the_minimum_at_each_level_of_zoom() -> None:
    found = row("malicious-helper", "zoom", Security.MALICIOUS)
    assert 16 < found["sum_bits"] <= 32 and not found["noticed"]


@pytest.mark.slow
@pytest.mark.parametrize("security", [Security.SEMI_HONEST, Security.BOUNDED])
def test_who_is_left_out_by_a_lie_bares_nobody_where_min_clients_counts_helpers(
    security: Security,
) -> None:
    found = row("digests", "bucketed", security)
    assert found["client_bits"] == (0 if security is Security.BOUNDED else 4)
    assert found["when"].startswith("a client when it submits: NotAllowed")


@pytest.mark.release
def test_runs_that_break_off_tell_what_the_claim_allows_and_no_more() -> None:
    found = row("rerun", "bucketed", Security.BOUNDED)
    assert found["client_bits"] == 0 and found["sum_bits"] == found["bound_bits"] == 12


@pytest.mark.slow
def test_bad_corrections_are_found_before_a_key_is_used() -> None:
    """Nothing is computed, where 93 of them gave all of Delta before."""
    found = row("corrections", "bucketed")
    assert found["learnt_bits"] == 0
    assert found["noticed"]


@pytest.mark.slow
@pytest.mark.parametrize("deviation", ["turns", "echo"])
def test_false_turns_are_noticed_by_clients_which_then_send_no_rotations(deviation: str) -> None:
    """`echo` gave the buckets of two coordinates of every client, and nobody noticed."""
    found = row(deviation, "bucketed")
    assert found["learnt_bits"] == 0
    assert found["when"].startswith("the victim when it submits: ")


@pytest.mark.release
def test_other_models_are_noticed_before_anything_is_uploaded() -> None:
    found = row("models", "bucketed")
    assert found["noticed"]
    assert found["when"].startswith("the victim when it submits")
    assert found["learnt_bits"] == 0
