"""Methods for rounds of several groups of clients, each with a model and a result of its own.

In the Byzantine-robust IFCA of Tao, Yang and Kulkarni every client chooses one of k models, and the
model follows a robust result of the clients that chose it. The choice may be sensitive, and is
`hidden` by default, which only a method can do that counts clients without knowing who they are
(`bucketed`). With `visible` it is a public label, and the round is k rounds (`chunks`).
"""

from dataclasses import dataclass
from typing import ClassVar

from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import check_whole, option
from securemedian.mpc.rounds.methods.base import Method

MEMBERSHIPS = ("hidden", "visible")
# The most models of a training.
MAX_GROUPS = 64


@dataclass(frozen=True, kw_only=True)
class Grouped(Method):
    """A method whose clients may be in several groups."""

    # whether nobody needs to know who is in which group
    hides_groups: ClassVar[bool] = False

    groups: int = option(
        1,
        text="models, of which each client trains the one that fits its data best: a result per "
        "group of clients (default: 1)",
        metavar="K",
    )
    membership: str = option(
        "hidden",
        choices=MEMBERSHIPS,
        text="with groups, whether nobody learns which one a client chose (default: hidden, which "
        "only bucketed can), or both servers and all clients do",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("groups", self.groups, 1, MAX_GROUPS)
        if self.groups == 1:
            return
        if self.named_weights:
            raise ConfigError(
                "several groups take no weights, with which one client may decide a group "
                f"alone: {self.groups} groups; leave weights out"
            )
        if not (self.visible or self.hides_groups):
            raise ConfigError(
                f"cannot hide the group that a client chose: method {self.name}; take bucketed, "
                "or choose membership visible, with which everybody learns it"
            )

    @property
    def visible(self) -> bool:
        return self.groups > 1 and self.membership == "visible"

    def opened_rows(self, total: int) -> int:
        return self.groups

    @property
    def most_results(self) -> int:
        return self.groups

    @property
    def grouping(self) -> str:
        """Say in a word or two how many groups there are, if several, for `detail`."""
        if self.groups == 1:
            return ""
        return f" k={self.groups}" + (" visible" if self.visible else "")

    @property
    def hidden(self) -> bool:
        """Return whether there are several groups, and nobody learns who is in which."""
        return self.groups > 1 and self.membership == "hidden"
