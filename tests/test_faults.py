"""The faults of the demo's clients."""

import numpy as np
import pytest

from clients.faults import FAULTS, NO_FAULT, Fault
from mpc.errors import ConfigError

START, TRAINED = np.zeros(2000, np.float32) + np.float32(0.5), np.linspace(-1, 1, 2000).astype(np.float32)
LABELS = np.arange(10)


def sent(fault: Fault, number: int) -> np.ndarray:
    return fault.update(TRAINED, START, number, np.random.default_rng(1))


@pytest.mark.parametrize("kind", FAULTS)
def test_all_is_well_before_the_first_faulty_round(kind: str) -> None:
    fault = Fault(kind, first=3)
    assert np.array_equal(sent(fault, 2), TRAINED)
    assert np.array_equal(fault.labels(LABELS, 2), LABELS)


def test_bitflip_turns_the_step_round() -> None:
    assert np.array_equal(sent(Fault("bitflip", 3), 3), 2 * START - TRAINED)


def test_labelflip_changes_labels_alone() -> None:
    fault = Fault("labelflip", 3)
    assert fault.labels(LABELS, 3).tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert np.array_equal(sent(fault, 4), TRAINED)


def test_gaussian_sends_noise_of_the_papers_size() -> None:
    noise = sent(Fault("gaussian", 3), 3)
    assert noise.dtype == np.float32
    assert abs(noise.mean()) < 30
    assert 180 < noise.std() < 220


def test_no_fault_and_unknown_ones() -> None:
    assert np.array_equal(sent(NO_FAULT, 9), TRAINED)
    with pytest.raises(ConfigError, match="bitflip"):
        Fault("bitflop")
