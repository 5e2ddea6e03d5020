"""The training run that S0 keeps: global model, bucket range and number. protocols.md 7.1; the paper's Algorithm 3."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpc import encode
from mpc.errors import ConfigError, InputError
from mpc.params import RangePolicy, RoundParams, build

Float32s = NDArray[np.float32]


@dataclass(frozen=True)
class Training:
    """Model g and range B as published, float32, so that all compute with the same bits. Never changed in place."""

    policy: RangePolicy = field(default_factory=RangePolicy)
    model: Float32s | None = None
    width: Float32s = field(default_factory=lambda: np.array(RangePolicy().initial, np.float32))  # B: shape () or (d,)
    published: int = 0

    @property
    def number(self) -> int:
        """t of the round that comes next. A failed round does not count."""
        return self.published + 1


def begin(kept: Training, params: RoundParams, range_: dict[str, Any], reset: bool, model: Float32s | None) -> Training:
    """What a round starts from. A given `model`, or `reset`, starts a new training run: B = p0 and t = 1."""
    fresh = reset or model is not None
    policy = build(RangePolicy, range_, "range") if range_ or fresh else kept.policy
    model = kept.model if model is None else model
    if (
        reset
        and params.method == "pairwise"
        and model is kept.model
        and model is not None
        and model.shape != (params.dim,)
    ):
        model = None  # the first result becomes the model
    if model is not None:
        if model.dtype != np.float32 or model.shape != (params.dim,):
            raise InputError(
                f"the global model must be float32 ({params.dim},), not {model.dtype} {model.shape}: change it or `dim`"
            )
        if not np.isfinite(model).all():
            raise InputError("the global model has NaN or infinite values: give another one")
    elif params.method == "bucketed":
        raise ConfigError("a bucketed round needs a global model, and none is kept here: give one when opening")
    width = np.array(policy.initial, np.float32) if fresh else kept.width
    if not (np.isfinite(width) & (width > 0)).all():
        raise ConfigError(
            f"the bucket range B (policy {policy.policy!r}) is not finite and above 0 in float32: open with reset"
        )
    if not fresh and policy == kept.policy:
        return kept
    return Training(policy, model, width, 0 if fresh else kept.published)


def finish(before: Training, params: RoundParams, values: NDArray[Any]) -> Training:
    """What the round that started from `before` ends with; `values` is the opened result (mpc.pipeline.Outcome)."""
    if params.result_to == "clients":
        return replace(before, published=before.number)
    if params.method == "bucketed":
        assert before.model is not None  # `begin` saw to it
        real = encode.quantize(values, before.model, before.width, params.buckets)
    else:
        real = encode.from_fixed(values, params.ring_bits, params.fraction_bits)
    model, width = real.astype(np.float32), before.width
    if before.model is not None:
        width = encode.next_range(before.policy, before.width, before.model, model, before.number).astype(np.float32)
    return Training(before.policy, model, width, before.number)
