"""What faulty and malicious clients do, by name.

A new attack is one file with a subclass of `Attack`, and its place in `ATTACKS`.
"""

from clients.attacks.base import Attack
from clients.attacks.empires import FallOfEmpires
from clients.attacks.far import Ofom, Paf
from clients.attacks.faults import BitFlip, Gaussian, LabelFlip, Negate
from clients.attacks.lie import Lie
from clients.attacks.sign_flip import SignFlip10, SignFlip100

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
