"""The command `securemedian VERB ...`.

The module of every verb is imported for its options alone. What a verb needs is imported when it
runs.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from securemedian import __version__
from securemedian.mpc.errors import SecureMedianError, printable

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

# Each module has add_verbs(subparsers), whose verbs set `run`, a function of the parsed options.
VERBS = {
    "the service": (
        "securemedian.operating.keygen",
        "securemedian.operating.doctor",
        "securemedian.servers.cli",
        "securemedian.clients.cli",
        "securemedian.coordinator.cli",
        "securemedian.laboratory.cli",
        "securemedian.benchmarks.forecast",
    ),
    "the laboratory, on one machine and with no private data": (
        "securemedian.laboratory.demo",
        "securemedian.laboratory.experiments.cli",
        "securemedian.benchmarks.cli",
        "securemedian.benchmarks.soak.cli",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status.

    It is 0, 2 after an error with a message, 130 after Ctrl-C, and 1 after any other error. Such an
    error is one line too, except in Python's development mode and for a verb that sets `traceback`.
    """
    options = _parser()[0].parse_args(arguments)
    try:
        options.run(options)
    except SecureMedianError as error:
        print(f"securemedian: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    # an error of a library, or a defect of ours
    except Exception as error:
        if options.traceback:
            raise
        text = printable(" ".join(f"{type(error).__name__}: {error}".split()))
        print(f"securemedian: {text} (PYTHONDEVMODE=1 shows where it comes from)", file=sys.stderr)
        return 1
    return 0


def helps() -> dict[str, str]:
    """Return what --help prints, of the command and of each of its verbs."""
    parser, verbs = _parser()
    texts = {parser.prog: parser.format_help()}
    return texts | {each.prog: each.format_help() for each in verbs.choices.values()}


def _parser() -> tuple[argparse.ArgumentParser, "Verbs"]:
    """Return the parser, and the verbs that it has."""
    parser = argparse.ArgumentParser(
        prog="securemedian",
        usage="securemedian [-h] [--version] VERB ...",
        description=(
            "Compute coordinate-wise medians of many clients' updates with two servers,\n"
            "of which neither learns anything but the result."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(traceback=sys.flags.dev_mode)
    parser.add_argument("--version", action="version", version=f"securemedian {__version__}")
    # the help of the verbs themselves is suppressed, because they are listed below by group
    verbs = parser.add_subparsers(
        required=True, metavar="VERB", prog="securemedian", help=argparse.SUPPRESS
    )
    listed = []
    for title, modules in VERBS.items():
        # argparse has no public way to the help of the verbs
        known = len(verbs._choices_actions)
        for module in modules:
            import_module(module).add_verbs(verbs)
        own = [f"  {verb.dest:<12}{verb.help}" for verb in verbs._choices_actions[known:]]
        listed.append("\n".join([f"{title}:", *own]))
    parser.epilog = "\n\n".join([*listed, "`securemedian VERB --help` explains a verb."])
    return parser, verbs
