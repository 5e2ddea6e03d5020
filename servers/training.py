"""The training run that S0 keeps: global model, range of the buckets, optimiser and number.

docs/protocols.md, section 7.1; the paper's Algorithm 3.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from securemedian.mpc.arrays import Float32s, PublicValues
from securemedian.mpc.errors import ConfigError, InputError
from securemedian.mpc.methods.base import Published
from securemedian.mpc.optimiser import NoOptimiser, Optimiser, optimiser_from
from securemedian.mpc.params import RoundParams
from securemedian.mpc.ranges.base import RangePolicy
from securemedian.mpc.ranges.registry import policy_from


@dataclass(frozen=True)
class Training:
    """The state of a training run between two rounds.

    Model g and scale are float32 as published, so that everybody computes with the same bits.
    The arrays are never changed in place.
    """

    policy: RangePolicy = field(default_factory=lambda: policy_from({}))
    # g, shape (d,); None before the first result of a run that began without a model
    model: Float32s | None = None
    # the state of the policy, shape () or (d,)
    scale: Float32s = field(default_factory=lambda: policy_from({}).start())
    # the number of published rounds
    published: int = 0
    optimiser: Optimiser = field(default_factory=NoOptimiser)
    # what the optimiser keeps, (kept, d); None before the first result that it takes a step to
    moments: Float32s | None = None

    @property
    def number(self) -> int:
        """The number t of the next round; failed rounds do not count."""
        return self.published + 1

    def after(self, result: Float32s, buckets: int = 0) -> "Training":
        """Return the training run after the next round, of so many buckets, with this `result`.

        The scale follows the result, and the model is what the optimiser makes of it. `buckets` is
        0 for a round without.
        """
        if self.model is None:
            return replace(self, model=result, published=self.number)
        moments = self.optimiser.start(result.size) if self.moments is None else self.moments
        model, moments = self.optimiser.next(moments, self.model, result)
        return replace(
            self,
            model=model,
            scale=self.policy.next(self.scale, self.model, result, self.number, buckets),
            published=self.number,
            moments=moments,
        )

    def published_for(self, params: RoundParams) -> Published:
        """Return what S0 publishes for the next round, which has these parameters."""
        if not params.uses_range:
            return Published(self.model)
        return Published(self.model, self.scale, self.policy)


def begin(
    kept: Training,
    params: RoundParams,
    range_options: dict[str, Any],
    reset: bool,
    model: Float32s | None,
    optimiser_options: dict[str, Any] | None = None,
) -> Training:
    """Return the training run that a round starts from.

    A given `model`, or `reset`, begins a new training run: the scale is the policy's first, the
    optimiser has no moments, and t = 1. Another policy may begin with its first scale, too
    (`take_over`), and another kind of optimiser begins without moments, but t goes on. Raises
    ConfigError if the range or the model that the round needs is missing or not usable, or the
    optimiser would not learn the result, and InputError if the model does not fit the round.
    """
    fresh = reset or model is not None
    if model is None:
        model = kept.model
        if reset and not params.uses_range and model is not None and model.size != params.dim:
            # a training run of another size, whose first result becomes its model
            model = None
    policy = policy_from(range_options) if range_options or fresh else kept.policy
    scale = policy.start() if fresh else policy.take_over(kept.scale, kept.policy)
    _check_model(model, params)
    if params.uses_range:
        _check_range(policy, scale, params.method.range_buckets)
    changed = optimiser_options or fresh
    optimiser = optimiser_from(optimiser_options or {}) if changed else kept.optimiser
    _check_optimiser(optimiser, params)
    if not fresh and (policy, optimiser) == (kept.policy, kept.optimiser):
        return kept
    goes_on = not fresh and type(optimiser) is type(kept.optimiser)
    return Training(
        policy,
        model,
        scale,
        0 if fresh else kept.published,
        optimiser,
        kept.moments if goes_on else None,
    )


def _check_range(policy: RangePolicy, scale: Float32s, buckets: int) -> None:
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise ConfigError(
            f"the bucket range (policy {policy.name!r}) is not finite and above 0 in float32: "
            "open with reset"
        )
    policy.buckets(scale, buckets)


def _check_optimiser(optimiser: Optimiser, params: RoundParams) -> None:
    if params.result_to == "clients" and not isinstance(optimiser, NoOptimiser):
        raise ConfigError(
            f"the optimiser {optimiser.name} takes its step from the result, which only the "
            "clients learn: leave it out, or let the servers learn the result"
        )


def _check_model(model: Float32s | None, params: RoundParams) -> None:
    if model is None:
        if params.uses_range:
            raise ConfigError(
                "a round on buckets needs a global model, and none is kept here: "
                "give one when opening"
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
    before: Training, params: RoundParams, values: PublicValues, total: int
) -> tuple[Training, Float32s]:
    """Return the training run after a round that started from `before`, and the round's results.

    `values` are opened results (`Method.public`), `total` is the total weight of the
    clients. The results have shape (results, d), and the model follows the first one.
    """
    published = before.published_for(params)
    results = params.method.decode(values, total, published).astype(np.float32)
    return before.after(results[0], params.method.range_buckets), results
