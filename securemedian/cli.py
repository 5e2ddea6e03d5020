"""The entry point `securemedian VERB ...`. A verb's module is imported for its options alone; what the verb needs is
imported when it runs.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from securemedian import __version__
from securemedian.mpc.errors import SecureMedianError

# each has add_verbs(subparsers), whose verbs set `run`, a function of the parsed options
VERB_MODULES = (
    "securemedian.scripts.keygen",
    "securemedian.servers.cli",
    "securemedian.clients.cli",
    "securemedian.laboratory.cli",
    "securemedian.laboratory.demo",
    "securemedian.laboratory.experiments.cli",
    "securemedian.benchmarks.cli",
    "securemedian.benchmarks.plan",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Returns the exit status: 0, 2 after an error with a message, 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except SecureMedianError as error:
        print(f"securemedian: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="securemedian",
        description=(
            "Coordinate-wise medians of many clients' updates, computed by two servers "
            "of which neither learns anything but the result."
        ),
        epilog="`securemedian demo` shows it at work on this machine. `securemedian VERB --help` explains a verb.",
    )
    parser.add_argument("--version", action="version", version=f"securemedian {__version__}")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for module in VERB_MODULES:
        import_module(module).add_verbs(verbs)
    return parser
