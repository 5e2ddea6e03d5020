"""Updates in two shares, and results from two shares (docs/protocols.md, section 2)."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from securemedian.clients import update as updates
from securemedian.common.model_form import ModelForm
from securemedian.mpc.arrays import RingShare
from securemedian.mpc.errors import ConfigError, InputError, PeerProtocolError, quoted
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.protocols.share import SeedUpload, WordsUpload
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.base import RangePolicy

# A client warns if more than this part of its values lies in the outermost buckets. Half: then not
# even the middle one of its values counts with its size. With the default policy it was at most
# 35 % of evenly divided images (in the second round) and 31 % of unevenly divided ones.
MOST_BEYOND = 0.5

T = TypeVar("T")


def number_of(round_id: str) -> int:
    """Return the number with which a round's id begins. Raises PeerProtocolError if none."""
    number = round_id.partition("-")[0]
    if not (number.isascii() and number.isdecimal()):
        raise PeerProtocolError(f"invalid round id: {quoted(round_id)}; ask who runs S0")
    return int(number)


def check_group(round_id: str, groups: int, group: int) -> None:
    """Raise InputError if a round of so many groups has no such group, 0-based."""
    if not 0 <= group < groups:
        raise InputError(
            f"round {round_id} has no such group: {group}; choose one from 0 to {groups - 1}"
        )


class RangeWarning(UserWarning):
    """The warning that a round takes less of an update than it is.

    Most of it lies beyond the buckets, or it is longer than the norm bound.
    """


@dataclass(frozen=True)
class Round:
    """An open round, as a client sees it."""

    round_id: str
    # the round's number in its run
    number: int
    params: RoundParams
    # this client's position in S0's list of clients
    index: int
    # the published global model g, shape (d,); some rounds without buckets have none, and those
    # that do not exchange parameters
    model: NDArray[np.float32] | None = field(default=None, repr=False)
    # the published scale of the buckets, shape () or (d,), and the policy of their places and of
    # the next scale; only rounds on buckets around a model have them
    scale: NDArray[np.float32] | None = field(default=None, repr=False)
    policy: RangePolicy | None = None
    # in a round of several groups, what was published for each; model, scale and policy are None
    groups: tuple[Published, ...] = ()
    # the digest of the run that the round starts from
    start: bytes = b""
    # the form of the models, which says in which order their entries are sent; None if no form is
    # known yet, or S0 is of release 1.0 (`has_form` is False)
    form: ModelForm | None = None
    has_form: bool = False
    # how much this client counts, of 1 for the heaviest
    part: float = 1.0
    # whether S0 has an upload of this client already, for example from before a restart
    submitted: bool = False
    # whether S0 has a dealing of this client from before a restart, and no upload: its secrets are
    # lost, and so this client is left out of this round
    dealing_lost: bool = False

    @property
    def published(self) -> Published:
        """Return what the values of the round lie around."""
        around = self.params.exchange.fixed
        around = around or Published(self.model, self.scale, self.policy, self.groups)
        return replace(around, part=self.part)

    @property
    def models(self) -> list[NDArray[np.float32]]:
        """Return the published global models (d,): one per group, one, or none."""
        each = self.groups or (self.published,)
        return [published.model for published in each if published.model is not None]

    def of_group(self, group: int) -> "Round":
        """Return the round as a client of a group, 0-based, sees it. Raises InputError."""
        check_group(self.round_id, self.params.method.groups, group)
        published = self.published.of_group(group)
        return replace(
            self,
            model=published.model,
            scale=published.scale,
            policy=published.policy,
            groups=(),
        )

    def choose(self, loss: Callable[[NDArray[np.float32]], float]) -> int:
        """Return the group, 0-based, whose model has the smallest loss: the first of equals.

        `loss` gets each of `models` and returns its loss on this client's own data; NaN counts as
        the greatest. Raises ConfigError if the round publishes no model.
        """
        if not self.models:
            raise ConfigError(
                f"the round publishes no models to choose from: {self.round_id}; leave the "
                "group out"
            )
        losses = [float(loss(model)) for model in self.models]
        return int(np.argmin(np.nan_to_num(losses, nan=np.inf)))

    def next_scale(self, result: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the scale that S0 publishes for the next round, once this one had `result`.

        `result` is the first result as published, flat. Raises ConfigError if the round is not on
        buckets.
        """
        if self.policy is None or self.scale is None or self.model is None:
            raise ConfigError(
                f"only rounds on buckets have a scale: {self.round_id}; do not ask for it"
            )
        buckets = self.params.form.buckets
        return self.policy.next(self.scale, self.model, result, self.number, buckets)

    def load_into(self, model: Any, keep_local: Sequence[str] = ()) -> None:
        """Put the published model into one of yours, in place. Raises InputError or ConfigError.

        Entries that fit a pattern of `keep_local` keep their values.
        """
        if self.model is None:
            raise ConfigError(
                f"the round of {self.params.exchange.name} publishes no model to train from: "
                f"{self.round_id}; have the coordinator open it with one, or train from your own"
            )
        try:
            updates.load(self.model, model, keep_local, self.form)
        except InputError as error:
            raise InputError(
                f"the model of round {self.round_id} does not fit yours: {error}"
            ) from error


@dataclass(frozen=True)
class ShareHalf:
    """One server's half of an upload."""

    # "seed", 16 bytes which the server expands; "words", packed ring elements; or "rotations",
    # which both servers get alike
    form: str
    share: NDArray[Any] = field(repr=False)


def encode_update(vector: NDArray[Any], current: Round) -> NDArray[Any]:
    """Return what the round's method shares of an update: ring elements or words, shape (rows, d).

    If clients deal, these are the indices of buckets. Raises InputError if the round takes no
    such values.
    """
    params = current.params
    if vector.shape != (params.dim,):
        raise InputError(
            f"round {current.round_id} takes updates of {params.dim:,} values: this one has "
            f"shape {vector.shape}; send the same model"
        )
    params.exchange.check_values(vector)
    values = params.method.encode(vector, params.max_clients, current.published)
    if shortened := params.method.shortened(vector, current.published):
        warnings.warn(
            f"the update for round {current.round_id} is not sent whole: {shortened}",
            RangeWarning,
            stacklevel=4,
        )
    if params.form.buckets and params.exchange.fixed is None:
        _warn_of_range(values, current)
    return values


def check_range(
    vector: NDArray[Any], current: Round, name_at: Callable[[int], Any], saturate: bool
) -> None:
    """Raise InputError if the round would cut a value of an update, or warn if it may (`saturate`).

    `name_at` returns the name of the entry that a value belongs to. Values beyond the
    outer buckets or a norm bound are cut on purpose: `encode_update` warns of that.
    """
    params = current.params
    if (taken := params.value_range) is None or vector.shape != (params.dim,):
        return
    beyond = np.flatnonzero(taken.outside(vector, current.model))
    if not beyond.size:
        return
    first = int(beyond[0])
    said = (
        f"{beyond.size:,} values are beyond the range of round {current.round_id}: the first "
        f"is {vector[first]:g} in {name_at(first)!r}, and {params.method.name} takes {taken}, with "
        f"{params.dim:,} values and {params.max_clients} clients"
    )
    if not saturate:
        raise InputError(
            f"{said}; keep that entry local (keep_local), scale it, ask the coordinator for "
            "another method, or set saturate to have the values cut"
        )
    warnings.warn(f"{said}; they are cut to it", RangeWarning, stacklevel=3)


def _warn_of_range(values: NDArray[Any], current: Round) -> None:
    """Warn if most of these indices, or cumulative values, lie in the outermost buckets."""
    if len(values) == 1:
        outermost = encode.outermost(values[0], current.params.form.buckets)
    else:
        outermost = (values[0] == 1) | (values[-1] == 0)
    beyond = int(outermost.sum())
    if beyond > MOST_BEYOND * outermost.size:
        warnings.warn(
            f"{beyond:,} of the {outermost.size:,} values lie in the outermost buckets of round "
            f"{current.round_id}, and the result reaches no further. Is it a trained model, and "
            "not its difference to that of the round? If this lasts for rounds, take another "
            "range policy",
            RangeWarning,
            stacklevel=5,
        )


def split(values: NDArray[Any], current: Round) -> tuple[ShareHalf, ShareHalf]:
    """Return the halves of an upload for S0 and for S1."""
    return halves(
        *share.split(values, current.params.form.layout.bits, xor=current.params.form.xor), current
    )


def halves(seeded: SeedUpload, words: WordsUpload, current: Round) -> tuple[ShareHalf, ShareHalf]:
    """Return the halves for S0 and S1: the seed goes to S0 for even indices, else to S1."""
    one = ShareHalf("seed", np.frombuffer(seeded.seed, np.uint8))
    other = ShareHalf("words", words.packed)
    return by_server(one, other, current.index)


def by_server(seeded: T, words: T, index: int) -> tuple[T, T]:
    """Return what S0 and S1 have of the half that is a seed and the one that is words."""
    return (seeded, words) if index % 2 == 0 else (words, seeded)


def combine(
    one: NDArray[np.uint64], other: NDArray[np.uint64], params: RoundParams
) -> NDArray[np.float64]:
    """Return a result's values from the servers' packed shares. Raises PeerProtocolError."""
    expected = ring.packed_words(params.dim, params.form.ring_bits)
    for server, words in enumerate((one, other)):
        if words.shape != (expected,) or words.dtype != np.uint64:
            raise PeerProtocolError(
                f"S{server}'s share of the result is {words.dtype} {words.shape}, "
                f"not {expected} words of 64 bits"
            )
    first, second = (
        RingShare(ring.unpack(words, params.form.ring_bits, params.dim)) for words in (one, other)
    )
    values = share.combine(first, second, params.form.ring_bits)
    return params.exchange.result(params.method.decode(values, params.max_total, Published()))
