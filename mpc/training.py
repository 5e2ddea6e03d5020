"""A training run: global model, range of the buckets, optimiser and number, from round to round.

S0 keeps it. Whoever has the one that a round starts from, and the round's opened values, computes
the next one for themselves, bit for bit. docs/protocols.md, section 7.1; the paper's Algorithm 3.
"""

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from securemedian.mpc import canonical
from securemedian.mpc.arrays import Float32s, PublicValues
from securemedian.mpc.methods.base import Published
from securemedian.mpc.optimiser import NoOptimiser, Optimiser
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

    def counted(self) -> "Training":
        """Return the training run after a round whose result the model does not follow.

        The clients alone learn it, or it is no model.
        """
        return replace(self, published=self.number)

    @cached_property
    def digest(self) -> bytes:
        """The digest of all of it, with which a round names what it starts from."""
        return canonical.digest(
            self.policy.to_dict(),
            self.optimiser.to_dict(),
            self.published,
            [_digest_of(array) for array in (self.model, self.scale, self.moments)],
        )

    def published_for(self, params: RoundParams) -> Published:
        """Return what the values of the next round lie around, which has these parameters.

        S0 publishes it, unless it is the same in every round.
        """
        if params.exchange.fixed is not None:
            return params.exchange.fixed
        if not params.uses_range:
            return Published(self.model)
        return Published(self.model, self.scale, self.policy)


def finish(
    before: Training, params: RoundParams, values: PublicValues, total: int
) -> tuple[Training, Float32s]:
    """Return the training run after a round that started from `before`, and the round's results.

    `values` are opened results (`Method.public`), `total` is the total weight of the
    clients. The results have shape (results, d), and the model follows the first one, unless the
    round has exchanged something that is no model.
    """
    numbers = params.method.decode(values, total, before.published_for(params))
    results = params.exchange.result(numbers).astype(np.float32)
    if params.exchange.fixed is not None:
        return before.counted(), results
    return before.after(results[0], params.method.range_buckets), results


def _digest_of(array: Float32s | None) -> list[object]:
    """Return the shape and the SHA-256 of an array's bytes, which tell its contents."""
    if array is None:
        return []
    data = np.ascontiguousarray(array, "<f4").view(np.uint8)
    return [list(array.shape), hashlib.sha256(data.data).digest()]
