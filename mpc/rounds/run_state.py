"""The state of a run: global model, range of the buckets, optimiser and number of rounds.

S0 keeps it. Everybody with the state that a round starts from, and the round's opened values,
computes the next state bit for bit. See docs/protocols.md, section 7.1, and the paper's Algorithm
3. With several groups of clients each group has a state of its own, and all of them are kept as
one.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from securemedian.mpc import canonical
from securemedian.mpc.arrays import Float32s, PublicValues
from securemedian.mpc.rounds.methods.base import Adapting, Published
from securemedian.mpc.rounds.optimiser import NoOptimiser, Optimiser
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.base import RangePolicy
from securemedian.mpc.rounds.ranges.registry import policy_from

_ARRAYS = ("model", "scale", "moments", "bound")
# How far the logarithm of a norm bound moves per round, in shares of clients. The first such round
# moves it by FIRST_STEP, each later one by half as much, down to LEAST_STEP (Andrew et al., 2021).
FIRST_STEP, LEAST_STEP = 4.0, 0.2


@dataclass(frozen=True)
class RunState:
    """The state of a run between two rounds.

    Model g and scale are float32 as published, so that everybody computes with the same bits.
    Arrays are never changed in place.
    """

    policy: RangePolicy = field(default_factory=lambda: policy_from({}))
    # g, shape (d,); None before the first result of a run that began without a model
    model: Float32s | None = None
    # the state of the policy, shape () or (d,)
    scale: Float32s = field(default_factory=lambda: policy_from({}).start())
    # the number of published rounds
    published: int = 0
    optimiser: Optimiser = field(default_factory=NoOptimiser)
    # the optimiser's own state, (kept, d); None before the first result that it takes a step to
    moments: Float32s | None = None
    # B of the next round whose norm bound adapts, and the step after it, (2,); None before the
    # first. S0 alone keeps it: the parameters of a round have the number
    bound: Float32s | None = None
    # with several groups of clients, the run of each, whose model, scale and moments count then
    groups: "tuple[RunState, ...]" = ()

    @classmethod
    def of_groups(cls, runs: Sequence["RunState"]) -> Self:
        """Return the run of several groups from each one's, alike in policy, optimiser, number."""
        one = runs[0]
        return cls(
            one.policy, None, one.policy.start(), one.published, one.optimiser, groups=(*runs,)
        )

    @classmethod
    def of_arrays(
        cls,
        policy: RangePolicy,
        published: int,
        optimiser: Optimiser,
        arrays: Mapping[str, Float32s],
    ) -> "RunState":
        """Return the run that has these `arrays`. Raises KeyError if one is missing."""
        one = cls(policy, published=published, optimiser=optimiser)

        def run(suffix: str) -> "RunState":
            named = {name: arrays.get(name + suffix) for name in _ARRAYS}
            found: dict[str, Any] = named | {"scale": arrays[f"scale{suffix}"]}
            return replace(one, **found)

        count = 1 + max((int(name.partition(".")[2] or -1) for name in arrays), default=-1)
        if not count:
            return run("")
        return cls.of_groups([run(f".{group}") for group in range(count)])

    @property
    def arrays(self) -> dict[str, Float32s]:
        """Return the arrays that are set: model, scale, moments and bound, or model.0 and so on."""
        if self.groups:
            return {
                f"{name}.{number}": array
                for number, run in enumerate(self.groups)
                for name, array in run.arrays.items()
            }
        found = {name: getattr(self, name) for name in _ARRAYS}
        return {name: array for name, array in found.items() if array is not None}

    @property
    def models(self) -> list[Float32s]:
        """Return the models: one, one per group, or none."""
        runs = self.groups or (self,)
        return [run.model for run in runs if run.model is not None]

    @property
    def number(self) -> int:
        """Return the number t of the next round; failed rounds do not count."""
        return self.published + 1

    def after(self, result: Float32s, buckets: int = 0) -> "RunState":
        """Return the state after a round with this `result` and number of buckets (0: none).

        The scale follows the result, and the model is what the optimiser makes of it.
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

    def counted(self) -> "RunState":
        """Return the state after a round whose result is for the clients alone, or not a model."""
        return replace(self, published=self.number)

    @cached_property
    def digest(self) -> bytes:
        """Return the digest of the state, by which a round names the state that it starts from."""
        return canonical.digest(
            self.policy.to_dict(),
            self.optimiser.to_dict(),
            self.published,
            [_digest_of(array) for array in (self.model, self.scale, self.moments)],
            *(run.digest for run in self.groups),
        )

    def settled(self, params: RoundParams) -> RoundParams:
        """Return parameters with numbers for what S0 chooses before it opens the next round."""
        bound = None if self.bound is None else float(self.bound[0])
        return replace(params, method=params.method.settled(self.model, bound))

    def adapted(self, before: "RunState", by: Adapting, clipped: int, clients: int) -> "RunState":
        """Return this state, after a round from `before`, with a norm bound for the next round.

        `clipped` of the round's `clients` were clipped to its bound.
        """
        step = FIRST_STEP if before.bound is None else float(before.bound[1])
        bound = by.next_bound(min(1.0, clipped / clients), step)
        return replace(self, bound=np.array([bound, max(LEAST_STEP, step / 2)], np.float32))

    def published_for(self, params: RoundParams) -> Published:
        """Return the model and range around which the values of the next round lie.

        S0 publishes them, unless they are the same in every round (`Exchange.fixed`).
        """
        if params.exchange.fixed is not None:
            return params.exchange.fixed
        if self.groups:
            return Published(groups=tuple(run.published_for(params) for run in self.groups))
        if not params.form.buckets:
            return Published(self.model)
        return Published(self.model, self.scale, self.policy)


def finish(
    before: RunState,
    params: RoundParams,
    values: PublicValues,
    total: int,
    groups: Sequence[int] = (),
) -> tuple[RunState, Float32s]:
    """Return the state after a round that started from `before`, and the round's results.

    `values` are opened results (`Method.public`), `total` is the total weight of the clients. The
    results have shape (results, d). The model follows the first one, unless clients exchanged
    something else than models. With several groups the model of each follows the group's own
    result; the result of a group that has none is its unchanged model. `groups` are those of the
    clients, where they are visible.
    """
    if params.exchange.fixed is not None:
        return before.counted(), _decoded(before, params, values, total)
    if not before.groups:
        results = _decoded(before, params, values, total)
        return before.after(results[0], params.form.buckets), results
    runs, models = [], []
    published = params.published_groups(values, groups)
    for group, run in enumerate(before.groups):
        assert run.model is not None
        if group in published:
            weight = groups.count(group) if params.method.visible else total
            (model,) = _decoded(run, params, PublicValues(values[group][None]), weight)
            runs.append(run.after(model, params.form.buckets))
        else:
            model = run.model
            runs.append(run.counted())
        models.append(model)
    return RunState.of_groups(runs), np.stack(models)


def _decoded(run: RunState, params: RoundParams, values: PublicValues, total: int) -> Float32s:
    numbers = params.method.decode(values, total, run.published_for(params))
    return params.exchange.result(numbers).astype(np.float32)


def _digest_of(array: Float32s | None) -> list[object]:
    """Return the shape and the SHA-256 of an array's bytes, which tell its contents."""
    if array is None:
        return []
    data = np.ascontiguousarray(array, "<f4").view(np.uint8)
    return [list(array.shape), hashlib.sha256(data.data).digest()]
