"""Each attack against its paper's formula, on the differences from the round's start."""

import argparse
import math
from dataclasses import replace
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian.laboratory import worker_options
from securemedian.laboratory.attacks import ATTACKS, FAR, Aggregate, Optimised, z_max
from securemedian.mpc.errors import ConfigError, InputError

RNG = np.random.default_rng(1)
DIM, HONEST = 300, 7
START = RNG.normal(size=DIM).astype(np.float32)
NONE = np.empty((0, DIM), np.float32)
LABELS = np.arange(10)


def near(count: int) -> NDArray[np.float32]:
    return (START + RNG.normal(0.1, 0.05, (count, DIM))).astype(np.float32)


def sent(
    name: str, trained: NDArray[np.float32], honest: NDArray[np.float32] = NONE
) -> NDArray[np.float32]:
    attack = ATTACKS[name]()
    if isinstance(attack, Optimised):
        attack = replace(attack, aggregate=lambda updates: updates.mean(axis=0))
    return attack.corrupt(trained, START, honest, np.random.default_rng(1))


def test_the_registry() -> None:
    alone = {"none", "bitflip", "negate", "labelflip", "gaussian"}
    scaled = {f"sign-flip-{scale}" for scale in (10, 30, 100)}
    colluding = {"lie", "paf", "ofom", "fall-of-empires", "lie-optimised", "fall-optimised"}
    assert set(ATTACKS) == alone | scaled | colluding
    assert {name for name, attack in ATTACKS.items() if attack.sees_honest} == colluding
    assert all(attack.__doc__ for attack in ATTACKS.values())


@pytest.mark.parametrize(("name", "attackers"), list(product(ATTACKS, (2, 3))))
def test_what_attacks_have_in_common(name: str, attackers: int) -> None:
    trained, honest = near(attackers), near(HONEST)
    kept = trained.copy(), honest.copy(), START.copy()
    updates = sent(name, trained, honest)
    assert updates.shape == trained.shape
    assert updates.dtype == np.float32
    assert all(map(np.array_equal, (trained, honest, START), kept))
    assert np.array_equal(updates, sent(name, trained, honest))
    if not ATTACKS[name].sees_honest:
        assert np.array_equal(updates, sent(name, trained))
    else:
        with pytest.raises(InputError, match=f"{name} is made from the honest updates"):
            sent(name, trained)


def test_bitflip_and_sign_flips_turn_the_step_round() -> None:
    trained = near(2)
    assert np.array_equal(sent("bitflip", trained), 2 * START - trained)
    assert np.array_equal(sent("negate", trained), -trained)
    for scale in (10, 30, 100):
        turned = sent(f"sign-flip-{scale}", trained).astype(np.float64) - START
        assert np.allclose(
            turned, -scale * (trained.astype(np.float64) - START), rtol=1e-3, atol=1e-4
        )


def test_labelflip_changes_labels_alone() -> None:
    attack = ATTACKS["labelflip"]()
    assert attack.labels(LABELS, 10).tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert attack.labels(np.array([0, 2]), 3).tolist() == [2, 0]
    trained = near(2)
    assert np.array_equal(sent("labelflip", trained), trained)


def test_gaussian_sends_noise_of_the_papers_size() -> None:
    noise = sent("gaussian", np.zeros((1, 2000), np.float32))
    assert abs(noise.mean()) < 30
    assert 180 < noise.std() < 220
    two = sent("gaussian", near(2))
    assert not np.array_equal(two[0], two[1])


def test_fall_of_empires_takes_half_a_step_back() -> None:
    honest = near(HONEST)
    step = honest.mean(axis=0, dtype=np.float64) - START
    back = sent("fall-of-empires", near(3), honest) - START
    assert np.allclose(back, -0.5 * step, atol=1e-6)
    assert (back @ step < 0).all()


def test_little_is_enough_shifts_each_coordinate_by_z_deviations() -> None:
    honest = near(6)
    updates = sent("lie", near(4), honest)
    # n = 10, m = 4: s = 6 - 4 supporters, (10 - 4 - 2) / (10 - 4)
    z = NormalDist().inv_cdf(4 / 6)
    for i in range(DIM):
        values = honest[:, i].astype(np.float64).tolist()
        mean = sum(values) / 6
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / 6)
        assert updates[:, i] == pytest.approx([mean - z * deviation] * 4, abs=1e-6)
    # it looks honest
    assert ((updates > honest.min(axis=0)) | np.isclose(updates, honest.min(axis=0))).mean() > 0.99


def test_little_is_enoughs_z() -> None:
    # 2 supporters; Phi(1.43) = 24 / 26
    assert z_max(50, 24) == pytest.approx(1.43, abs=0.005)
    assert z_max(3, 1) == z_max(10, 2) == 0
    assert z_max(10, 1) < 0 < z_max(10, 3)
    for clients, attackers in ((2, 1), (4, 3), (10, 6), (1, 1)):
        with pytest.raises(InputError, match=f": {attackers} of {clients};"):
            z_max(clients, attackers)


def test_paf_is_the_mean_and_a_large_vector() -> None:
    honest = near(HONEST)
    assert np.allclose(sent("paf", near(2), honest), honest.mean(axis=0) + FAR)


@pytest.mark.parametrize(("attackers", "far"), [(2, 1), (3, 1), (4, 2), (5, 2)])
def test_ofom_hides_at_the_mean_of_all(attackers: int, far: int) -> None:
    honest = near(HONEST)
    updates = sent("ofom", near(attackers), honest)
    assert np.allclose(updates[:far], honest.mean(axis=0) + FAR)
    rest = np.concatenate([honest, updates[:far]]).mean(axis=0, dtype=np.float64)
    assert np.allclose(updates[far:], rest, atol=1e-4)
    assert np.allclose(
        updates[far:], np.concatenate([honest, updates]).mean(axis=0, dtype=np.float64), atol=1e-4
    )


def test_ofom_is_an_attack_of_two() -> None:
    with pytest.raises(InputError, match="2 attackers or more: 1"):
        sent("ofom", near(1), near(HONEST))


def test_who_sees_no_other_update_cannot_collude() -> None:
    for name, attack in ATTACKS.items():
        asked = argparse.Namespace(fault=name, fault_from=2)
        if attack.sees_honest:
            with pytest.raises(ConfigError, match="securemedian experiment.* bitflip"):
                worker_options.fault(asked)
        else:
            assert (worker_options.fault(asked).name, worker_options.fault(asked).first) == (
                name,
                2,
            )


def test_optimised_attacks_take_the_factor_that_moves_the_aggregate_farthest() -> None:
    """The mean follows the largest, and what drops far updates only one that is not dropped."""
    honest, attackers = near(HONEST), 3
    mean, deviation = honest.mean(axis=0, dtype=np.float64), honest.std(axis=0, dtype=np.float64)
    lengths = np.linalg.norm(honest - mean, axis=1)

    def dropping(updates: NDArray[np.float32]) -> NDArray[np.float32]:
        near_enough = np.linalg.norm(updates - mean, axis=1) <= 2 * lengths.max()
        return np.asarray(updates[near_enough].mean(axis=0), np.float32)

    def taken(name: str, aggregate: Aggregate) -> float:
        attack = replace(ATTACKS[name](), aggregate=aggregate)  # type: ignore[call-arg]
        made = attack.corrupt(near(attackers), START, honest, RNG)
        assert made.shape == (attackers, DIM)
        assert (made == made[0]).all()
        step = mean - made[0] if name == "lie-optimised" else START - made[0].astype(np.float64)
        unit = deviation if name == "lie-optimised" else mean - START
        return float(np.median(step / unit))

    factors = Optimised.FACTORS
    for name in ("lie-optimised", "fall-optimised"):
        assert taken(name, lambda updates: updates.mean(axis=0)) == pytest.approx(factors[-1], 0.01)
        least = taken(name, dropping)
        assert factors[0] < least < factors[-1]


def test_optimised_attacks_need_the_aggregator() -> None:
    with pytest.raises(
        InputError, match="an attack of experiments, which know the aggregator: lie-optimised"
    ):
        ATTACKS["lie-optimised"]().corrupt(near(2), START, near(HONEST), RNG)
