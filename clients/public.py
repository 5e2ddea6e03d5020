"""The public set of rounds that exchange predictions: unlabelled samples that everybody has."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.clients import files
from securemedian.mpc.errors import ConfigError, InputError
from securemedian.mpc.rounds.exchange import Predictions, public_digest

# the file of a public set in its folder
INPUTS = "inputs.npy"


@dataclass(frozen=True)
class PublicSet:
    """The inputs (samples, ..) that every client predicts, in this order. Nobody changes them."""

    inputs: NDArray[Any] = field(repr=False)

    @property
    def samples(self) -> int:
        """The number of samples."""
        return len(self.inputs)

    @cached_property
    def digest(self) -> str:
        """The digest by which a round names its public set. Raises InputError if it is none."""
        return public_digest(self.inputs)

    def round(self, classes: int) -> dict[str, Any]:
        """Return what is special to the parameters of a round that predicts so many classes."""
        exchange = Predictions(self.digest, classes)
        return {"dim": self.samples * classes} | exchange.to_dict()

    def check(self, exchange: Predictions) -> None:
        """Raise ConfigError unless a round exchanges predictions on this set."""
        if exchange.public_set != self.digest:
            raise ConfigError(
                f"the round is about another public set than this client's {self.samples:,} "
                f"samples: its digest is {exchange.public_set}, and here is {self.digest}; get "
                "the set that the coordinator has"
            )

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the set in `inputs.npy` of a folder. Raises InputError unless it is one."""
        path = Path(folder) / INPUTS
        if not path.is_file():
            raise ConfigError(
                f"no samples of a public set ({INPUTS}) in the folder: {folder}; write one with "
                "`securemedian public`, or with numpy.save"
            )
        inputs = files.read(path)
        if not isinstance(inputs, np.ndarray):
            raise InputError(
                f"an archive, and a public set is one array: {path}; save it with numpy.save"
            )
        made = cls(inputs)
        # a set that is none is found here, and not at the first round
        _ = made.digest
        return made

    def save(self, folder: Path) -> None:
        """Write the set to a folder, which is made if it is not there."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot make the folder: {folder} ({error.strerror}); choose another"
            ) from error
        files.write(folder / INPUTS, self.inputs)
