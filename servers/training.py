"""The training run that S0 keeps: global model, bucket range and number. protocols.md 7.1; the
paper's Algorithm 3.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Result
from securemedian.mpc.errors import ConfigError, InputError
from securemedian.mpc.methods.base import Published
from securemedian.mpc.params import RoundParams
from securemedian.mpc.ranges.base import RangePolicy
from securemedian.mpc.ranges.registry import policy_from

Float32s = NDArray[np.float32]


@dataclass(frozen=True)
class Training:
    """Model g and range B as published, float32, so that all compute with the same bits. Never
    changed in place.
    """

    policy: RangePolicy = field(default_factory=lambda: policy_from({}))
    model: Float32s | None = None
    # B: shape () or (d,)
    width: Float32s = field(default_factory=lambda: np.array(policy_from({}).initial, np.float32))
    published: int = 0

    @property
    def number(self) -> int:
        """t of the round that comes next. A failed round does not count."""
        return self.published + 1

    def after(self, model: Float32s) -> "Training":
        """The run once the round in hand has published `model`."""
        width = self.width
        if self.model is not None:
            width = self.policy.next(width, self.model, model, self.number).astype(np.float32)
        return Training(self.policy, model, width, self.number)


def begin(
    kept: Training, params: RoundParams, range_: dict[str, Any], reset: bool, model: Float32s | None
) -> Training:
    """What a round starts from. A given `model`, or `reset`, starts a new training run: B = p0 and
    t = 1.
    """
    fresh = reset or model is not None
    if model is None:
        model = kept.model
        if reset and not params.uses_range and model is not None and model.size != params.dim:
            model = None  # a run of another size, whose first result becomes its model
    policy = policy_from(range_) if range_ or fresh else kept.policy
    width = np.array(policy.initial, np.float32) if fresh else kept.width
    _check_model(model, params)
    if not (np.isfinite(width) & (width > 0)).all():
        raise ConfigError(
            f"the bucket range B (policy {policy.name!r}) is not finite and above 0 in float32: open with reset"
        )
    if not fresh and policy == kept.policy:
        return kept
    return Training(policy, model, width, 0 if fresh else kept.published)


def _check_model(model: Float32s | None, params: RoundParams) -> None:
    if model is None:
        if params.uses_range:
            raise ConfigError(
                "a round on buckets needs a global model, and none is kept here: give one when opening"
            )
        return
    if model.dtype != np.float32 or model.shape != (params.dim,):
        raise InputError(
            f"the global model must be float32 ({params.dim},), not {model.dtype} {model.shape}: "
            "change it or `dim`, or start anew with `reset`"
        )
    if not np.isfinite(model).all():
        raise InputError("the global model has NaN or infinite values: give another one")


def finish(
    before: Training, params: RoundParams, values: Result, total: int
) -> tuple[Training, Float32s]:
    """Return what the round that started from `before` ends with, and its results (results, d).

    `values` are the opened ones (mpc.pipeline.Outcome) of clients who weigh `total`; the first
    result is the model.
    """
    published = Published(before.model, before.width)
    opened = params.method.public(values)
    results = params.method.decode(opened, total, published).astype(np.float32)
    return before.after(results[0]), results
