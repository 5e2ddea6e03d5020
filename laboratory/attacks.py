"""The attacks and faults of clients, by name.

A new attack is a subclass of `Attack`, and its place in `ATTACKS`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.errors import InputError

Labels = NDArray[np.int64]
Rng = np.random.Generator
Vectors = NDArray[np.float32]
# takes the updates (n, d) of all clients, and returns the model (d,) that a round makes of them
Aggregate = Callable[[Vectors], NDArray[np.float32]]


@dataclass(frozen=True)
class Attack:
    """The doings of one or several attackers from round `first` on.

    This class does nothing; an attack overrides one of its methods. An update of this service is
    the vector w of *trained parameters*, and the literature's attacks are on gradients. So they are
    carried out on the differences w - g, where g is the model that the round started from.
    """

    name: ClassVar[str] = "none"
    # whether `corrupt` needs the honest updates of the round
    sees_honest: ClassVar[bool] = False

    first: int = 1

    def active(self, number: int) -> bool:
        return number >= self.first

    def labels(self, labels: Labels, classes: int) -> Labels:
        return labels

    def corrupt(self, trained: Vectors, start: Vectors, honest: Vectors, rng: Rng) -> Vectors:
        """Return the updates (m, d) that the m attackers send.

        `trained` (m, d) is what they have trained, `start` (d,) the model that all started from,
        and `honest` (h, d) what the others send, which is empty unless `sees_honest`.
        """
        return trained


def mean_of(honest: Vectors, attack: Attack) -> NDArray[np.float64]:
    """Return the mean (d,) of the honest updates; raise InputError if `attack` sees none."""
    if not len(honest):
        raise InputError(
            f"{attack.name} is made from the honest updates of the round: 0 updates; have "
            "honest clients"
        )
    return honest.mean(axis=0, dtype=np.float64)


def _all_send(update: NDArray[np.float64], attackers: int) -> Vectors:
    """Return one update (d,) as what each of the attackers sends."""
    return np.repeat(update[None].astype(np.float32), attackers, axis=0)


# The faults of the paper's experiments (protocols.md 7), each of which a client has alone


class BitFlip(Attack):
    """The update with its sign turned: g - (w - g) = 2 g - w."""

    name: ClassVar[str] = "bitflip"

    def corrupt(self, trained: Vectors, start: Vectors, honest: Vectors, rng: Rng) -> Vectors:
        return 2 * start - trained


class Negate(Attack):
    """The parameters with their sign turned, -w: a harder reading of the paper's bit flip."""

    name: ClassVar[str] = "negate"

    def corrupt(self, trained: Vectors, start: Vectors, honest: Vectors, rng: Rng) -> Vectors:
        return -trained


class LabelFlip(Attack):
    """Training on classes - 1 - label: 9 - label for ten digits."""

    name: ClassVar[str] = "labelflip"

    def labels(self, labels: Labels, classes: int) -> Labels:
        return classes - 1 - labels


class Gaussian(Attack):
    """Noise from N(0, 200^2) instead of the parameters."""

    name: ClassVar[str] = "gaussian"

    def corrupt(self, trained: Vectors, start: Vectors, honest: Vectors, rng: Rng) -> Vectors:
        return rng.normal(0.0, 200.0, trained.shape).astype(np.float32)


class Malformed(Attack):
    """An upload that no honest client makes, which `laboratory.worker` carries out.

    Nothing of it shows in the update: experiments, which are played on updates, do not have it.
    """

    name: ClassVar[str] = "malformed"


# Attacks of the literature


class SignFlip(Attack):
    """The difference w - g times -scale: g - scale (w - g).

    Li, Xu, Chen, Giannakis and Ling, "RSA: Byzantine-Robust Stochastic Aggregation Methods for
    Distributed Learning from Heterogeneous Datasets" (AAAI 2019).
    """

    scale: ClassVar[float]

    def corrupt(self, trained: Vectors, start: Vectors, honest: Vectors, rng: Rng) -> Vectors:
        return start - np.float32(self.scale) * (trained - start)


class SignFlip10(SignFlip):
    """The difference w - g times -10."""

    name: ClassVar[str] = "sign-flip-10"
    scale: ClassVar[float] = 10.0


class SignFlip30(SignFlip):
    """The difference w - g times -30."""

    name: ClassVar[str] = "sign-flip-30"
    scale: ClassVar[float] = 30.0


class SignFlip100(SignFlip):
    """The difference w - g times -100."""

    name: ClassVar[str] = "sign-flip-100"
    scale: ClassVar[float] = 100.0


class FallOfEmpires(Attack):
    """The honest clients' mean step backwards, times epsilon: g - epsilon (mean(w) - g).

    All attackers send it. The smaller epsilon, the closer are they to the honest updates. Xie,
    Koyejo and Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
    Manipulation" (UAI 2019).
    """

    name: ClassVar[str] = "fall-of-empires"
    sees_honest: ClassVar[bool] = True
    epsilon: ClassVar[float] = 0.5

    def corrupt(self, trained: Vectors, start: Vectors, honest: Vectors, rng: Rng) -> Vectors:
        mean = mean_of(honest, self)
        return _all_send(start - self.epsilon * (mean - start), len(trained))


class Lie(Attack):
    """The mean of the honest updates less z times their deviation, in each coordinate.

    All attackers send it, so close to the mean that they look honest: z is `z_max`. For n = 3,
    m = 1 and for n = 10, m = 2 it is 0, and for fewer attackers negative. Baruch, Baruch and
    Goldberg, "A Little Is Enough" (NeurIPS 2019).
    """

    name: ClassVar[str] = "lie"
    sees_honest: ClassVar[bool] = True

    def corrupt(self, trained: Vectors, start: Vectors, honest: Vectors, rng: Rng) -> Vectors:
        mean, deviation = mean_of(honest, self), honest.std(axis=0, dtype=np.float64)
        sent = mean - z_max(len(trained) + len(honest), len(trained)) * deviation
        return _all_send(sent, len(trained))


def z_max(clients: int, attackers: int) -> float:
    """Return how many standard deviations from the mean the attackers can go (Algorithm 3).

    With s = floor(n / 2 + 1) - m honest clients wanted as supporters, it is the largest z with
    Phi(z) <= (n - m - s) / (n - m). Then s honest clients can be expected farther out than the
    attackers, and together they are a majority. Raises InputError unless there are 3 clients or
    more and the attackers are a minority.
    """
    honest = clients - attackers
    supporters = math.floor(clients / 2 + 1) - attackers
    if not 0 < supporters < honest:
        raise InputError(
            "a little is enough needs 3 clients or more and a minority of attackers: "
            f"{attackers} of {clients}; change one"
        )
    return NormalDist().inv_cdf((honest - supporters) / honest)


@dataclass(frozen=True)
class Optimised(Attack):
    """An attack by as much as hurts most: the attackers know the aggregator, and try it out.

    Of `FACTORS`, they take the one that moves the aggregate farthest from the mean of the honest
    updates. So do ByzFL's optimised attacks (Gonzalez, Rizk, Stephan and Guerraoui, 2025), with a
    search of their own. The attackers cannot know the coin that the servers toss: they guess it.
    """

    sees_honest: ClassVar[bool] = True
    FACTORS: ClassVar[NDArray[np.float64]] = np.geomspace(0.1, 25.6, 9)

    aggregate: Aggregate | None = field(default=None, repr=False)

    def sent(self, honest: Vectors, start: Vectors, factor: float) -> NDArray[np.float64]:
        """Return the update (d,) that all attackers send at a factor."""
        raise NotImplementedError

    def corrupt(self, trained: Vectors, start: Vectors, honest: Vectors, rng: Rng) -> Vectors:
        if self.aggregate is None:
            raise InputError(
                f"an attack of experiments, which know the aggregator: {self.name}; choose another"
            )
        mean = mean_of(honest, self)

        def moved(factor: float) -> float:
            sent = _all_send(self.sent(honest, start, factor), len(trained))
            assert self.aggregate is not None
            distance = float(np.linalg.norm(self.aggregate(np.concatenate([honest, sent])) - mean))
            return distance if math.isfinite(distance) else math.inf

        worst = max(map(float, self.FACTORS), key=moved)
        return _all_send(self.sent(honest, start, worst), len(trained))


class OptimisedLie(Optimised):
    """All send the mean of the honest updates less the worst multiple of their deviation."""

    name: ClassVar[str] = "lie-optimised"

    def sent(self, honest: Vectors, start: Vectors, factor: float) -> NDArray[np.float64]:
        return mean_of(honest, self) - factor * honest.std(axis=0, dtype=np.float64)


class OptimisedFall(Optimised):
    """All send the mean step of the honest updates backwards, times the worst factor."""

    name: ClassVar[str] = "fall-optimised"

    def sent(self, honest: Vectors, start: Vectors, factor: float) -> NDArray[np.float64]:
        return start - factor * (mean_of(honest, self) - start)


# The "significantly large vector" of PAF and OFOM (Chang, Shejwalkar, Shokri and Houmansadr,
# "Cronus", 2019), which the paper does not fix: the deviation of the Gaussian fault everywhere.
FAR = 200.0


class Paf(Attack):
    """All attackers send the mean of the honest updates plus the large vector."""

    name: ClassVar[str] = "paf"
    sees_honest: ClassVar[bool] = True

    def corrupt(self, trained: Vectors, start: Vectors, honest: Vectors, rng: Rng) -> Vectors:
        return _all_send(mean_of(honest, self) + FAR, len(trained))


class Ofom(Attack):
    """One far, one mean: some attackers send far updates, others the mean that results from them.

    Of m attackers, the first floor(m / 2) send the honest mean plus the large vector. The others
    send the mean of the honest and the far updates: an aggregate that starts from the mean trusts
    that point most.
    """

    name: ClassVar[str] = "ofom"
    sees_honest: ClassVar[bool] = True

    def corrupt(self, trained: Vectors, start: Vectors, honest: Vectors, rng: Rng) -> Vectors:
        if len(trained) < 2:
            raise InputError(
                f"one far, one mean takes 2 attackers or more: {len(trained)}; give more"
            )
        mean = mean_of(honest, self)
        far = len(trained) // 2
        # of the far updates among all those whose mean the other attackers send
        share = far / (len(honest) + far)
        distance = np.repeat([FAR, FAR * share], [far, len(trained) - far])
        return (mean + distance[:, None]).astype(np.float32)


_ALL = (Attack, BitFlip, Negate, LabelFlip, Gaussian, Lie, Paf, Ofom, FallOfEmpires)
_SCALED = (SignFlip10, SignFlip30, SignFlip100, OptimisedLie, OptimisedFall)
ATTACKS: dict[str, type[Attack]] = {attack.name: attack for attack in (*_ALL, *_SCALED)}
NO_ATTACK = Attack()
