"""The list of methods: a new one is a module next to this one and a line here."""

from securemedian.mpc.rounds.methods import (
    bucketed,
    krum,
    mean,
    pairwise,
    radix,
    reclustered,
    trimmed_mean,
    zeno,
)
from securemedian.mpc.rounds.methods.base import Method

# By the names used in flags, messages and files. The first is the default of flags.
METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        bucketed.Bucketed,
        pairwise.Pairwise,
        radix.Radix,
        trimmed_mean.TrimmedMean,
        mean.Mean,
        reclustered.Reclustered,
        zeno.Zeno,
        krum.Krum,
    )
}
DEFAULT_METHOD = next(iter(METHODS))
