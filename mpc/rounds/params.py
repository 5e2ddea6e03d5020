"""The parameters of a round: who may take part, until when, how many values, and the method."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicValues, Words
from securemedian.mpc.canonical import build, digest, flat, newer
from securemedian.mpc.errors import (
    ConfigError,
    InputError,
    PeerProtocolError,
    TooFewClients,
    quoted,
)
from securemedian.mpc.options import (
    check_one_of,
    check_whole,
    named,
    options_of,
    refuse_foreign,
)
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.share import Upload
from securemedian.mpc.rounds.exchange import EXCHANGE_FIELDS, EXCHANGES, Exchange, Parameters
from securemedian.mpc.rounds.methods.base import Chunk, Form, Method, ValueRange, effective
from securemedian.mpc.rounds.methods.registry import DEFAULT_METHOD, METHODS

# The most values of all results together: 1 GiB where S0 decodes them in float64.
MAX_RESULT_VALUES = 1 << 27
# The most clients of a round.
MAX_CLIENTS = 1 << 16
# The wire version from which on clients scale what they share by their weights.
WEIGHTS_SINCE = 3


@dataclass(frozen=True)
class RoundParams:
    """The parameters of one round, on which both servers agree, hashed into its handshake.

    As a map (`to_dict`, `from_dict`: on the wire, in JSON and TOML) it is flat. It has the name of
    the method, the fields of the round itself and exactly the options of that method. If clients
    exchange something other than parameters, it also has the name of that and its options.
    """

    method: Method = field(default_factory=lambda: METHODS[DEFAULT_METHOD]())
    _: KW_ONLY
    # values of an update
    dim: int
    # rings are sized for this many, and the round closes by itself when all of them have uploaded
    max_clients: int
    # with fewer uploads both servers refuse to compute
    min_clients: int = 2
    # seconds from opening to closing
    deadline_s: float = 600.0
    # the kind of update
    exchange: Exchange = Parameters()

    def __post_init__(self) -> None:
        self._take_method()
        check_whole("dim", self.dim, 1, MAX_RESULT_VALUES)
        check_whole("max_clients", self.max_clients, 2, MAX_CLIENTS)
        if type(self.min_clients) is not int or not 2 <= self.min_clients <= self.max_clients:
            raise ConfigError(
                f"invalid min_clients: {quoted(self.min_clients)}; give 2 to max_clients "
                f"({self.max_clients}), for the median of a single client is that client's "
                "update"
            )
        if type(self.deadline_s) not in (int, float) or not 0 < self.deadline_s <= 7 * 86400:
            raise ConfigError(
                f"invalid deadline_s: {quoted(self.deadline_s)}; give more than 0 and at most a "
                "week"
            )
        self.method.check_round(self.max_clients)
        results = self.form.most_results
        if results * self.dim > MAX_RESULT_VALUES:
            raise ConfigError(
                f"more values than the {MAX_RESULT_VALUES:,} that a server decodes: {results} "
                f"results of {self.dim:,}; ask for fewer ranks, or cut the update into several "
                "rounds"
            )
        self.exchange.check_round(self.dim)
        if self.method.groups > 1 and self.exchange.fixed is not None:
            raise ConfigError(
                f"a round of {self.exchange.name} has no models to choose from: "
                f"{self.method.groups} groups; leave groups out"
            )

    def _take_method(self) -> None:
        """Take a method that is given by its name. Raises ConfigError for anything else."""
        given: Any = self.method
        like = "RoundParams(Radix(), dim=1000, max_clients=3)"
        if isinstance(given, str):
            check_one_of("method", given, list(METHODS))
            try:
                object.__setattr__(self, "method", METHODS[given]())
            except TypeError as error:
                raise ConfigError(
                    f"a method without its options: {given!r}; write "
                    f"{METHODS[given].__name__}(..), as in {like}"
                ) from error
        elif not isinstance(given, Method):
            raise ConfigError(f"invalid method: {quoted(given)}; write it as in {like}")

    @cached_property
    def form(self) -> Form:
        """Return the sizes of the round. It is made once."""
        return self.method.form(self.dim, self.max_clients)

    @property
    def weights(self) -> Mapping[str, int]:
        """Return the weight of each client by its public key. It is empty where all weigh 1."""
        return self.method.weighing.named

    @property
    def value_range(self) -> ValueRange | None:
        """Return the values that clients share whole, None where the round cuts on purpose."""
        return None if self.exchange.fixed is not None else self.form.value_range

    def check_start(self, models: NDArray[Any]) -> None:
        """Raise InputError if start models, shape (d,) or (groups, d), are beyond `value_range`."""
        taken = self.value_range
        if taken is None or taken.differences or models.shape[-1] != self.dim:
            return
        outside = taken.outside(models.reshape(-1), None)
        if outside.any():
            first = int(np.flatnonzero(outside)[0])
            raise InputError(
                f"the start model leaves the range of {self.method.name} in "
                f"{int(outside.sum()):,} values: the first is {models.reshape(-1)[first]:g} at "
                f"index {first % self.dim}. With {self.dim:,} values and {self.max_clients} "
                f"clients it takes {taken}; take another method or fewer fraction_bits, or keep "
                "that layer local"
            )

    @property
    def max_total(self) -> int:
        """Return the total weight of a round in which everybody takes part."""
        return self.method.weighing.most(self.max_clients)

    def part_of(self, client: str) -> float:
        """Return how much a client counts, of 1 for the heaviest."""
        return self.method.weighing.one(client) / self.method.weighing.heaviest

    def without(self, caught: int) -> Self:
        """Return the parameters for those who remain after `caught` faulty clients were left out.

        They are what is computed and decoded with; the round is known by those it was opened with.
        """
        method = self.method.without(caught)
        return self if method is self.method else replace(self, method=method)

    def check_included(self, clients: Sequence[str], least: int = 0) -> None:
        """Raise ConfigError if one of these weighs too much, or a rank is beyond their total.

        With weights it raises TooFewClients, too, if they count as much as fewer than `least`
        (default: `min_clients`) clients of equal weight do.
        """
        weights, least = self.method.weights_of(clients), least or self.min_clients
        if self.weights and (counted := effective(weights)) < least:
            raise TooFewClients(
                "by their weights too few clients take part, and nothing was opened: "
                f"{len(clients)} count as {float(counted):.3g} of equal weight, below "
                f"{least}; wait for more clients, or set a lower weight_cap"
            )
        self.method.check_total(sum(weights))

    def chunk(
        self,
        uploads: Sequence[Upload],
        weights: Sequence[int],
        begin: int,
        end: int,
        batch: int,
        *,
        groups: Sequence[int] = (),
        coin: bytes = b"",
        noise: bytes = b"",
    ) -> Chunk:
        """Return coordinates [begin, end) of a round; `groups` is given if they are visible."""
        sizes = self.form, self.max_clients, self.min_clients
        return Chunk(uploads, weights, groups, *sizes, begin, end, batch, coin, noise=noise)

    def published_groups(self, values: PublicValues, groups: Sequence[int]) -> list[int]:
        """Return the groups, 0-based, with a result; `groups` are the clients', if visible."""
        if self.form.hidden:
            # a group without a result has what is not a bucket
            return [group for group, row in enumerate(values) if (row != self.form.buckets).any()]
        if not self.method.visible:
            return [0]
        sizes = [groups.count(group) for group in range(self.method.groups)]
        return [group for group, size in enumerate(sizes) if size >= self.min_clients]

    def unpack_opened(self, words: Words, total: int) -> PublicValues:
        """Return the opened values, shape (results, d), of a round whose clients weigh `total`.

        Raises PeerProtocolError if there are more or fewer packed words than these take.
        """
        rows = self.method.opened_rows(total)
        expected = ring.packed_words(rows * self.dim, self.form.opened_bits)
        if words.shape != (expected,):
            raise PeerProtocolError(
                f"the opened values are {words.shape} words, and {expected} were expected"
            )
        values = ring.unpack(words, self.form.opened_bits, rows * self.dim)
        return PublicValues(values.reshape(rows, self.dim))

    # As a map

    def to_dict(self) -> dict[str, Any]:
        """Return the flat map."""
        values = flat(self) | {"method": self.method.name} | flat(self.method)
        del values["exchange"]
        return values | self.exchange.to_dict()

    @property
    def since(self) -> dict[str, int]:
        """Return what `to_dict` has that is newer than wire version 1, by name: since which."""
        own = newer(self) | newer(self.method) | newer(self.exchange)
        if self.method.since > 1:
            own[f"method {self.method.name}"] = self.method.since
        return own | ({"weights": WEIGHTS_SINCE} if self.weights else {})

    @property
    def wire(self) -> int:
        """Return the wire version that all who take part in the round have to speak."""
        return max(self.since.values(), default=1)

    @property
    def digest(self) -> bytes:
        """Return the digest that uploads name, as they may be encoded for other parameters."""
        return digest(self.to_dict())

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Build the parameters from a flat map that came from outside.

        Without a method it is the default one. Raises ConfigError, which says what is wrong.
        """
        where = "round parameters"
        if not isinstance(values, dict):
            raise ConfigError(
                f"{where}: not a table of settings but {type(values).__name__}; write name = "
                "value lines"
            )
        name = values.get("method", DEFAULT_METHOD)
        try:
            check_one_of("method", name, list(METHODS))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        known = options_of(METHODS[name])
        own = {key: value for key, value in values.items() if key in known}
        asked = {key: value for key, value in values.items() if key in EXCHANGE_FIELDS}
        exchange = named(asked, "exchange", EXCHANGES, what="exchange", where=where)
        used = {*known, *EXCHANGE_FIELDS, "method"}
        rest = {key: value for key, value in values.items() if key not in used}
        refuse_foreign(name, rest, METHODS, f"{where}: ")
        method = build(METHODS[name], own, where)
        return build(cls, rest, where, method=method, exchange=exchange)


# The keys of a map besides the options of methods and of what is exchanged: no such option has one
# of these names (tests/test_methods.py).
ROUND_FIELDS = tuple(f.name for f in fields(RoundParams) if f.name != "exchange")
