"""A table of made-up patients whose columns are left in their own units, which need no files.

The columns go from hundredths to hundreds of thousands, as laboratory values do, and nobody scales
them. A network has to begin with BatchNorm: its running means and variances are then as far apart
as the squares of these numbers.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securemedian.laboratory.data.base import Dataset, Source

# all patients, those to train on among them, and the seed that makes them
_PATIENTS, _TRAINING, _SEED = 8000, 6000, 7
# of the logarithm of the odds that the label is drawn from
_NOISE = 0.25


def _patients(rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the columns (patients, 7) and the labels: whether the patient is at risk."""
    age, creatinine, platelets, sodium, kinase, ejection, troponin = rng.normal(size=(7, _PATIENTS))
    creatinine = 0.6 * age + 0.8 * creatinine
    kinase = 0.5 * sodium + 0.87 * kinase
    columns = np.stack(
        [
            # years
            60 + 12 * age,
            # mg per dL
            np.exp(0.1 + 0.5 * creatinine),
            # per microlitre
            263_000 + 80_000 * platelets,
            # mmol per L
            136 + 4.4 * sodium,
            # creatine phosphokinase, units per L
            np.exp(5.5 + 0.8 * kinase),
            # ejection fraction, percent
            38 + 11 * ejection,
            # ng per mL
            0.02 * np.exp(0.7 * troponin),
        ],
        axis=1,
    )
    odds = (
        1.2 * age
        + 1.5 * creatinine
        - platelets
        - 0.8 * sodium
        + kinase
        - 1.6 * ejection
        + 1.1 * troponin
        + 0.8 * age * ejection
    )
    at_risk = odds + _NOISE * rng.logistic(size=_PATIENTS) > 0
    return columns.astype(np.float32), at_risk.astype(np.int64)


def _clinic(_: Path) -> Dataset:
    columns, labels = _patients(np.random.default_rng(_SEED))
    return Dataset(
        "clinic",
        columns[:_TRAINING],
        labels[:_TRAINING],
        columns[_TRAINING:],
        labels[_TRAINING:],
        classes=2,
    )


CLINIC = Source("clinic", _clinic, files=(), advice="it needs no files", model="clinic")
