"""The list of range policies: a new one is a class of this folder and a line here."""

from securemedian.mpc.options import named
from securemedian.mpc.rounds.ranges import uneven, uniform
from securemedian.mpc.rounds.ranges.base import RangePolicy

# By the names used in flags, messages and saved files. The first is the default.
POLICIES: dict[str, type[RangePolicy]] = {
    policy.name: policy
    for policy in (
        uneven.FollowRange,
        uneven.LogRange,
        uniform.CoordinateRange,
        uniform.MeanRange,
        uniform.LinfRange,
        uniform.L1Range,
        uniform.ConstantRange,
    )
}
DEFAULT_POLICY = next(iter(POLICIES))


def policy_from(values: object) -> RangePolicy:
    """Return the policy that `{"policy": name, **options}` names. Raises ConfigError."""
    return named(values, "policy", POLICIES, what="range policy", where="range")
