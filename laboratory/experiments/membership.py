"""Membership inference by the gap of losses, which tells whether an image was trained on.

A network has a smaller loss on what it was trained on (Yeom, Giacomelli, Fredrikson and Jha,
"Privacy Risk in Machine Learning", CSF 2018). The attacker has an update or an aggregate: as
parameters, it computes losses with them; as predictions, it first trains a network on the public
set with these labels, as in Chang et al., "Cronus" (2019). What it reaches is given as the AUC: the
chance that a member has a smaller loss than another image, 1/2 for an attacker that knows nothing.
"""

import numpy as np
from numpy.typing import NDArray

from securemedian.laboratory import models
from securemedian.laboratory.data import Dataset
from securemedian.laboratory.models import Model
from securemedian.mpc.arrays import Float32s

# how long the attacker trains on predictions, in rounds' worth of training
TRAINING = 10
# what is attacked
UPDATE, AGGREGATE = "update", "aggregate"


def auc(members: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return the chance that a member's loss is below another's; ties count half."""
    ordered = np.sort(others)
    above = len(others) - np.searchsorted(ordered, members, side="right")
    ties = len(others) - np.searchsorted(ordered, members, side="left") - above
    return float((above + ties / 2).mean() / len(others))


def by_loss(
    model: Model, vector: Float32s, data: Dataset, members: tuple[Float32s, NDArray[np.int64]]
) -> float:
    """Return what an attacker with these parameters reaches.

    `members` are images and labels that were trained on; the others are the test images.
    """
    others = data.test_images, data.test_labels
    return auc(models.losses(model, vector, *members), models.losses(model, vector, *others))


def learnt_from(model: Model, inputs: Float32s, labels: NDArray[np.float32], seed: int) -> Float32s:
    """Return the parameters that an attacker trains on a public set with predictions of it."""
    vector = models.start(model, seed)
    rng = np.random.default_rng((seed, TRAINING))
    for _ in range(TRAINING):
        vector = models.train(model, vector, inputs, labels, rng)
    return vector
