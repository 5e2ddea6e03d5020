"""An attack (docs/extending.md)."""

import numpy as np

from securemedian.laboratory.attacks import ATTACKS, Attack


class Mimic(Attack):
    """All attackers send what the first honest client sends.

    This biases what is learnt from the other clients (Karimireddy, He and Jaggi, ICLR 2022).
    """

    name = "mimic"
    sees_honest = True

    def corrupt(self, trained, start, honest, rng):
        return np.repeat(honest[:1], len(trained), axis=0)


ATTACKS[Mimic.name] = Mimic
