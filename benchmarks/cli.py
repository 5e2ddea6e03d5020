"""The verb `bench`, which times the protocols on this machine; each kind is a module of its own."""

from typing import Any

from securemedian.benchmarks import by_clients, figures, points, scale

# each module has add_kinds(kinds)
KINDS = (by_clients, figures, points, scale)


def add_verbs(verbs: Any) -> None:
    bench = verbs.add_parser(
        "bench",
        description="Time the protocols between two processes on this machine, with the servers' "
        "own sockets and encryption, over loopback or a shaped link. Seconds, OTs, bytes each way "
        "and rounds are counted in the channel; the median of the repetitions is kept. Set-up "
        "(base OTs, compilation) is not counted.",
        epilog="All but ot, compare and median save JSON to --out DIR, with the machine and the "
        "command, and clients, fig3 and fig12 a plot beside it. Whatever else runs on the machine "
        "adds to all seconds: measure on a quiet one.",
    )
    # the folders of keys are removed
    bench.set_defaults(compiles=True, unwinds=True)
    kinds = bench.add_subparsers(required=True, metavar="KIND")
    for module in KINDS:
        module.add_kinds(kinds)
