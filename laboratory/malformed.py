"""A client whose uploads are malformed, to see what the servers' checks do about it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.clients.public import PublicSet
from securemedian.clients.upload import Round
from securemedian.laboratory.attacks import Attack
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols.dealing import Dealing, OwnDealing
from securemedian.mpc.protocols.prg import Entropy
from securemedian.mpc.protocols.share import WordsUpload
from securemedian.mpc.rounds.params import RoundParams


class MalformedClient(Client):
    """A client that deals wrong vectors, or shares values out of range, as `fault` says when."""

    def __init__(
        self, config: ClientConfig, fault: Attack, public: PublicSet | None = None
    ) -> None:
        super().__init__(config, public)
        self._fault = fault

    def deal(self, shape: Dealing, current: Round, entropy: Entropy) -> OwnDealing:
        """Return a dealing whose vectors are not one-hot."""
        dealt = super().deal(shape, current, entropy)
        if self._fault.active(current.number):
            dealt.words = WordsUpload(shape.layout, dealt.words.packed ^ np.uint64(1))
        return dealt

    def encode(self, vector: NDArray[Any], current: Round) -> NDArray[Any]:
        """Return values that are as large as the ring allows, where values have a range."""
        values = super().encode(vector, current)
        if self._fault.active(current.number) and current.params.method.checks_values:
            values = np.full_like(values, (1 << (current.params.share_bits - 1)) - 1)
        return values


def check_malleable(params: RoundParams) -> None:
    """Raise ConfigError if no upload of such a round is found to be malformed."""
    if params.dealing is None and not params.method.checks_values:
        raise ConfigError(
            f"--fault malformed: the servers check no uploads of {params.method.label}. Every word "
            "of radix is the upload of some update; the other rounds in which nothing is checked "
            "are for comparison. Take bucketed with dealt uploads, pairwise or trimmed-mean"
        )
