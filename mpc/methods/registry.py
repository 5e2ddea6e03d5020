"""List the methods: a new one is a module beside this one and a line here."""

from securemedian.mpc.methods import bucketed, mean, pairwise, radix, trimmed_mean
from securemedian.mpc.methods.base import Method

# by the name that flags, messages and files have; the first is the default of flags
METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        bucketed.Bucketed,
        pairwise.Pairwise,
        radix.Radix,
        trimmed_mean.TrimmedMean,
        mean.Mean,
    )
}
DEFAULT_METHOD = next(iter(METHODS))
