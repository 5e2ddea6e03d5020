"""The command `securemedian VERB ...`; what a verb needs is imported when it runs."""

import argparse
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from io import TextIOWrapper

from securemedian import __version__
from securemedian.common.durable import unsaid
from securemedian.common.terminal import folded
from securemedian.mpc.errors import SecureMedianError, printable

# The verbs with their help, by group and by the module whose add_verbs(subparsers) adds them. They
# set `run`, a function of the parsed options. They set `compiles` if it would otherwise compile in
# silence, and `unwinds` if SIGTERM must not end it before its folders are removed. A module is
# imported for its verbs alone.
VERBS = {
    "the service": {
        "securemedian.operating.keygen": {"keygen": "make keys and configurations"},
        "securemedian.operating.compiling": {
            "compile": "compile for this processor, once after an installation",
        },
        "securemedian.operating.doctor": {
            "doctor": "examine a configuration and what it needs",
        },
        "securemedian.servers.cli": {"serve": "run one of the two servers"},
        "securemedian.clients.cli": {
            "submit": "submit one update from a file",
            "receipt": "show or verify what both servers have signed",
        },
        "securemedian.coordinator.cli": {
            "round": "open, watch and end rounds (coordinator)",
            "coordinate": "lead a run, unattended to its last round (coordinator)",
            "dashboard": "show the service in a browser (coordinator)",
        },
        "securemedian.laboratory.cli": {
            "init": "write a start model",
            "public-set": "write a public set, for rounds that exchange predictions",
            "train": "take part in every round with a PyTorch worker",
        },
        "securemedian.benchmarks.forecast": {
            "plan": "tell what a round will cost, and the cheapest method for a link",
        },
    },
    "the laboratory, on one machine and with no private data": {
        "securemedian.laboratory.demo": {"demo": "see the whole service at work on this machine"},
        "securemedian.laboratory.experiments.cli": {
            "experiment": "reproduce the paper's figures, and compare methods under attack",
        },
        "securemedian.benchmarks.cli": {
            "bench": "time the protocols between two processes",
        },
    },
}


# a disk without room, or a device that takes nothing
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO) if hasattr(errno, "EDQUOT") else (errno.ENOSPC,)


# more characters of choices stand in the help of an option, and not in its usage
LONGEST_CHOICES = 40


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status.

    It is 0, 2 after an error with a message, 130 after Ctrl-C, 141 if nobody reads what is printed
    (`| head`), and 1 after any other error. Such an error is one line too, except in Python's
    development mode and for a verb that sets `traceback`.
    """
    _open_closed()
    # an earlier command of this process has told its own failures to print
    unsaid.clear()
    for stream in (sys.stdout, sys.stderr):
        # one that cannot write a name, such as that of a client, writes its code
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    status = 1
    try:
        status = _run(arguments)
    finally:
        # not after this function, where Python would print what it met
        unwritten = _drop_unwritten()
    if unwritten:
        print(
            f"securemedian: cannot write the output: {unwritten}; make room, or choose another "
            "place for it",
            file=sys.stderr,
        )
        status = status or 1
    return status


def _run(arguments: Sequence[str] | None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    # the options before the verb take no values
    verb = next((each for each in given if not each.startswith("-")), "")
    try:
        parser = _parser(verb)
    # there may be no folder for compiled kernels
    except SecureMedianError as error:
        return _refused(error)
    options, unknown = parser.parse_known_args(given)
    if unknown:
        # with the usage of the verb, not with that of the command
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        if options.compiles:
            import_module("securemedian.operating.compiling").compile_all()
        if options.unwinds:
            import_module("securemedian.laboratory.processes").unwind_on_sigterm()
        options.run(options)
    except SecureMedianError as error:
        return _refused(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 141
    # an error of a library, or a defect of ours
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL and not error.filename:
            unsaid[:] = [error]
            return 1
        if options.traceback:
            raise
        text = printable(" ".join(f"{type(error).__name__}: {error}".split()))
        print(f"securemedian: {text} (PYTHONDEVMODE=1 shows where it comes from)", file=sys.stderr)
        return 1
    return 0


def _refused(error: SecureMedianError) -> int:
    print(folded(f"securemedian: {printable(str(error))}", sys.stderr), file=sys.stderr)
    return 2


def _open_closed() -> None:
    """Open what the caller has closed of standard input, output and error, to nowhere.

    Otherwise the next file or socket gets that number, and is written to by whoever prints.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # the lowest free number
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _drop_unwritten() -> str:
    """Write out what is printed, or drop it and return why it cannot be written.

    A reader that has left is not an error.
    """
    errors: list[OSError] = list(unsaid)
    try:
        sys.stdout.flush()
    except OSError as error:
        errors.append(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    unsaid.clear()
    told = [each for each in errors if not isinstance(each, BrokenPipeError)]
    return told[0].strerror or str(told[0]) if told else ""


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


def _parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command: with the options of all verbs, or of one alone.

    Modules of other verbs are not imported then.
    """
    parser = argparse.ArgumentParser(
        prog="securemedian",
        usage="securemedian [-h] [--version] VERB ...",
        description=(
            "Compute coordinate-wise medians of many clients' updates with two servers,\n"
            "of which neither learns anything but the result."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(traceback=sys.flags.dev_mode, compiles=False, unwinds=False)
    parser.add_argument("--version", action="version", version=f"securemedian {__version__}")
    # the help of the verbs themselves is suppressed, because they are listed below by group
    verbs = parser.add_subparsers(
        required=True, metavar="VERB", prog="securemedian", help=argparse.SUPPRESS
    )
    listed = []
    for title, modules in VERBS.items():
        listed.append(f"{title}:")
        for module, helps_of in modules.items():
            listed += [f"  {verb:<12}{text}" for verb, text in helps_of.items()]
            if only is None or only in helps_of:
                import_module(module).add_verbs(verbs)
            else:
                for verb in helps_of:
                    verbs.add_parser(verb)
        listed.append("")
    parser.epilog = "\n".join([*listed, "`securemedian VERB --help` explains a verb."])
    for each in _with_all_below(parser):
        each.set_defaults(parser=each)
        # the start of an option would mean another one as soon as a verb has a second such option
        each.allow_abbrev = False
        _list_choices(each)
    return parser


def _list_choices(parser: argparse.ArgumentParser) -> None:
    """Let the help of an option list its choices, where they are too long for one line."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) or action.metavar or not action.choices:
            continue
        choices = ", ".join(map(str, action.choices))
        if len(choices) > LONGEST_CHOICES:
            action.metavar = "NAME"
            action.help = f"{action.help or ''}: {choices}".removeprefix(": ")
