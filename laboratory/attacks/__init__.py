"""The attacks and faults of clients, by name.

A new attack is one file with a subclass of `Attack`, and its place in `ATTACKS`.
"""

from securemedian.laboratory.attacks.base import Attack
from securemedian.laboratory.attacks.empires import FallOfEmpires
from securemedian.laboratory.attacks.far import Ofom, Paf
from securemedian.laboratory.attacks.faults import BitFlip, Gaussian, LabelFlip, Negate
from securemedian.laboratory.attacks.lie import Lie
from securemedian.laboratory.attacks.sign_flip import SignFlip10, SignFlip100

ATTACKS: dict[str, type[Attack]] = {
    attack.name: attack
    for attack in (
        Attack,
        BitFlip,
        Negate,
        LabelFlip,
        Gaussian,
        Lie,
        Paf,
        Ofom,
        FallOfEmpires,
        SignFlip10,
        SignFlip100,
    )
}
NO_ATTACK = Attack()
