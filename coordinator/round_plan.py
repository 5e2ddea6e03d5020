"""The plan of a round in a file: `round open --params FILE`, and RUN.toml of `coordinate`."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.clients import files
from securemedian.clients.public import PublicSet
from securemedian.common.model_form import ModelForm
from securemedian.common.toml import read_toml
from securemedian.mpc.canonical import build
from securemedian.mpc.rounds.optimiser import optimiser_from
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.base import RangePolicy
from securemedian.mpc.rounds.ranges.registry import policy_from


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """A round as a file describes it. File names are relative to the file's folder."""

    # the parameters of the round; `dim` may be left out where there is a model
    round: dict[str, Any] = field(default_factory=dict)
    # the range policy and the optimiser with their options; {} for those of the run
    range: dict[str, Any] = field(default_factory=dict)
    optimiser: dict[str, Any] = field(default_factory=dict)
    # the names of the clients that take part; [] for all of the cohort
    participants: list[str] = field(default_factory=list)
    # the .npy, .npz or .safetensors file of the model to start from; "" where S0 keeps one or the
    # method needs none
    model: str = ""
    # the folder of the public set, whose digest and size become parameters of the round (which then
    # says `classes`); "" where parameters are exchanged
    public: str = ""

    # the fields that are names of files
    FILES: ClassVar[tuple[str, ...]] = ("model", "public")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read and check a plan. Raises ConfigError, which names the file."""
        plan = build(cls, read_toml(path), str(path))
        named = {key: getattr(plan, key) for key in cls.FILES if getattr(plan, key)}
        found: dict[str, Any] = {key: str(path.parent / name) for key, name in named.items()}
        return replace(plan, **found)

    def asked(self, dim: Callable[[], int] = lambda: 1) -> dict[str, Any]:
        """Return the arguments of `Coordinator.open_round` for a first round of the plan.

        `dim` returns the size of S0's model, where nothing here says how large an update is.
        """
        model, form = self.start
        given = (self.round | self.exchange).get("dim")
        size = given or (dim() if model is None else model.shape[-1])
        return {
            "params": self.params(size),
            "model": model,
            "range_policy": self.policy,
            "optimiser": optimiser_from(self.optimiser) if self.optimiser else None,
            "participants": self.participants or None,
            "form": form,
        }

    @cached_property
    def start(self) -> tuple[NDArray[np.float32] | None, ModelForm | None]:
        """The model to start from, or one per group, and its form if the file has names."""
        return files.read_start(Path(self.model)) if self.model else (None, None)

    def params(self, dim: int, **others: Any) -> RoundParams:
        """Return the parameters of the round, for updates of `dim` values unless it says so.

        `others` are parameters that the file leaves to the caller.
        """
        return RoundParams.from_dict({"dim": dim} | self.round | self.exchange | others)

    @cached_property
    def exchange(self) -> dict[str, Any]:
        """The parameters that only rounds on a public set have; {} without one."""
        if not self.public:
            return {}
        return PublicSet.load(self.public).round(self.round.get("classes", 0))

    @property
    def policy(self) -> RangePolicy | None:
        """Return the range policy, if there is a table for it."""
        return policy_from(self.range) if self.range else None
