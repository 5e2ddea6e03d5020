"""The attack by inner product manipulation.

It is that of Xie, Koyejo and Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner
Product Manipulation" (UAI 2019, PMLR 115).
"""

from typing import ClassVar

import numpy as np

from securemedian.laboratory.attacks.base import Attack, Vectors, mean_of


class FallOfEmpires(Attack):
    """All attackers send the honest clients' mean step backwards, scaled down by epsilon.

    They send g - epsilon (mean(w) - g) for the honest w. An aggregate that follows them has a
    negative inner product with the true step, and the model gets worse. The smaller epsilon, the
    closer are the attackers to the honest updates, and the smaller is the step back. A subclass
    with another `epsilon` is another attack.
    """

    name: ClassVar[str] = "fall-of-empires"
    sees_honest: ClassVar[bool] = True
    epsilon: ClassVar[float] = 0.5

    def corrupt(
        self, trained: Vectors, start: Vectors, honest: Vectors, rng: np.random.Generator
    ) -> Vectors:
        mean = mean_of(honest, self)
        sent = start - self.epsilon * (mean - start)
        return np.repeat(sent[None].astype(np.float32), len(trained), axis=0)
