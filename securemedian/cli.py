"""The command `securemedian VERB ...`; what a verb needs is imported when it runs."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module

from securemedian import __version__
from securemedian.mpc.errors import SecureMedianError, printable

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

    It is 0, 2 after an error with a message, 130 after Ctrl-C, 141 if nobody reads what is printed
    (`| head`), and 1 after any other error. Such an error is one line too, except in Python's
    development mode and for a verb that sets `traceback`.
    """
    try:
        return _run(arguments)
    finally:
        # not after this function, where Python would print what it met
        _drop_unread()


def _run(arguments: Sequence[str] | None) -> int:
    options, unknown = _parser().parse_known_args(arguments)
    if unknown:
        # with the usage of the verb, not with that of the command
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        options.run(options)
    except SecureMedianError as error:
        print(f"securemedian: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 141
    # an error of a library, or a defect of ours
    except Exception as error:
        if options.traceback:
            raise
        text = printable(" ".join(f"{type(error).__name__}: {error}".split()))
        print(f"securemedian: {text} (PYTHONDEVMODE=1 shows where it comes from)", file=sys.stderr)
        return 1
    return 0


def _drop_unread() -> None:
    """Write out what is printed, or drop it where nobody reads it any more."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def helps() -> dict[str, str]:
    """Return what --help prints: of the command, its verbs, their actions and their methods."""
    return {each.prog: each.format_help() for each in _with_all_below(_parser())}


def _with_all_below(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Return a parser and those of its sub-commands, and theirs."""
    yield parser
    # argparse has no public way to them
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _with_all_below(each)


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command, which has all verbs."""
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
    for each in _with_all_below(parser):
        each.set_defaults(parser=each)
        # the start of an option would mean another one as soon as a verb has a second such option
        each.allow_abbrev = False
    return parser
