"""Training that protects each record of a client: DP-SGD, with Opacus's gradients and account.

A step takes each record with the probability batch / n, cuts its gradient to length 1, adds noise
to the sum, and divides by the batch (Abadi et al., "Deep Learning with Differential Privacy", CCS
2016). What (epsilon, delta) all steps give is said by Opacus's Renyi accountant. Two data sets are
neighbours if one has a record more; n, the number of records, is taken to be known to everybody.

SECURITY: noise and choices come from the operating system, never from the seed of a run, because
who knows them can subtract the noise. torch's generator takes 32 bits of a seed.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.journal import Noised
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols.prg import Entropy, os_entropy
from securemedian.mpc.rounds.privacy import DELTA

if TYPE_CHECKING:
    from securemedian.laboratory.models.networks import Model

# the length to which the gradient of one record is cut
CLIP = 1.0
# The orders of Renyi divergence that the account tries: any gives a valid bound. Those between
# whole numbers take a long series each.
ORDERS = [1.25, 1.5, 2.5, 3.5, 4.5, 5.5, *range(2, 64), 96, 128, 256, 512, 1024]


@dataclass(frozen=True)
class RecordDP:
    """The epsilon that so many rounds of one client's training reach. Raises ConfigError."""

    epsilon: float
    rounds: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ConfigError(f"--record-dp takes an epsilon above 0, not {self.epsilon:g}")
        if self.rounds < 1:
            raise ConfigError(f"--record-dp takes 1 or more rounds, not {self.rounds}")


def delta_of(records: int) -> float:
    """Return the delta for so many records: 1e-5, or a tenth of 1 / n if that is less."""
    return min(DELTA, 1 / (10 * records))


def epsilon_of(history: Sequence[Noised], records: int) -> float:
    """Return the epsilon of all these steps together, by Opacus's Renyi accountant."""
    accountant = _opacus().accountants.RDPAccountant()
    accountant.history = [tuple(steps) for steps in history]
    return float(accountant.get_epsilon(delta_of(records), alphas=ORDERS))


def round_of(model: "Model", records: int) -> Noised:
    """Return the steps of one round, with the least noise that reaches epsilon after all rounds.

    Raises ConfigError if no noise can, or Opacus is missing.
    """
    privacy, batch = model.record_dp, min(model.batch, records)
    assert privacy is not None
    rate, count = batch / records, model.epochs * math.ceil(records / batch)
    total = privacy.rounds * count
    return Noised(_noise_multiplier(privacy.epsilon, delta_of(records), rate, total), rate, count)


@lru_cache
def _noise_multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    _opacus()
    from opacus.accountants.utils import get_noise_multiplier

    try:
        return float(
            get_noise_multiplier(
                target_epsilon=epsilon,
                target_delta=delta,
                sample_rate=rate,
                steps=steps,
                accountant="rdp",
                epsilon_tolerance=0.001 * epsilon,
                alphas=ORDERS,
            )
        )
    except ValueError as error:
        raise ConfigError(
            f"no noise reaches epsilon {epsilon:g} in {steps:,} steps: take a larger epsilon"
        ) from error


def check_trains(model: "Model") -> None:
    """Raise ConfigError unless the network computes a gradient per record."""
    opacus = _opacus()
    if wrong := opacus.validators.ModuleValidator.validate(model.build()):
        reasons = "; ".join(" ".join(str(error).split()) for error in wrong)
        raise ConfigError(f"{model.name} has no gradient of one record alone: {reasons}")


def train(
    model: "Model", network: Any, inputs: Any, targets: Any, entropy: Entropy = os_entropy
) -> None:
    """Train a network in place for one round (`round_of`)."""
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    class Optimiser(DPOptimizer):
        """Opacus's optimiser, with noise from `entropy`."""

        def add_noise(self) -> None:
            deviation = self.noise_multiplier * self.max_grad_norm
            for one in self.params:
                noise = torch.from_numpy(deviation * normals(one.numel(), entropy))
                one.grad = one.summed_grad + noise.to(one.dtype).view_as(one)

    # of a first layer, whose inputs are data
    warnings.filterwarnings("ignore", "Full backward hook is firing")
    noise, rate, count = round_of(model, len(targets))
    each = GradSampleModule(network, loss_reduction="sum")
    optimiser = Optimiser(
        torch.optim.SGD(each.parameters(), lr=model.rate),
        noise_multiplier=noise,
        max_grad_norm=CLIP,
        expected_batch_size=min(model.batch, len(targets)),
    )
    for _ in range(count):
        chosen = torch.from_numpy(uniforms(len(targets), entropy) < rate)
        optimiser.zero_grad()
        losses = torch.nn.functional.cross_entropy(
            each(inputs[chosen]), targets[chosen], reduction="sum"
        )
        losses.backward()
        optimiser.step()


def uniforms(count: int, entropy: Entropy) -> NDArray[np.float64]:
    """Return numbers of 52 random bits between 0 and 1, neither of which occurs."""
    words = np.frombuffer(entropy(8 * count), np.uint64)
    return np.asarray(((words >> np.uint64(12)) + 0.5) / 2.0**52, np.float64)


def normals(count: int, entropy: Entropy) -> NDArray[np.float64]:
    """Return samples of the standard normal distribution.

    Each is of four, as in Opacus's secure mode, so that the last bits of one tell nothing of it
    (Holohan and Braghin, "Secure Random Sampling in Differential Privacy", ESORICS 2021).
    """
    from scipy.special import ndtri

    four: NDArray[np.float64] = ndtri(uniforms(4 * count, entropy)).reshape(4, count)
    return four.sum(0) / 2


def _opacus() -> Any:
    try:
        import opacus
        import opacus.accountants
        import opacus.validators
    except ImportError as error:
        raise ConfigError(
            "--record-dp needs Opacus: pip install '.[record-dp]' in a clone"
        ) from error
    return opacus
