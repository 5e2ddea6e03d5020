"""The verb `securemedian serve`."""

import argparse
from functools import partial
from pathlib import Path

from securemedian.common.terminal import Paragraphs
from securemedian.servers import config

_DESCRIPTION = """Run one of the two servers until SIGTERM or Ctrl-C. A running protocol may then
finish (within stop_limit_s). A round in another state is taken up again at the next start.
After SIGHUP the server reads its lists of clients and coordinators and its limits again
(docs/operating.md). It logs one line per event to standard error, as JSON unless that is
a terminal.

Exit codes: 0 after SIGTERM or Ctrl-C, 2 after an error. Errors are a wrong configuration, a port
or state folder in use, no other server within peer_wait_s, and computations that do not stop."""


def add_verbs(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    serve = verbs.add_parser("serve", description=_DESCRIPTION, formatter_class=Paragraphs)
    serve.add_argument(
        "config",
        type=Path,
        metavar="CONFIG",
        help="the server's TOML file (see docs/samples/s0.toml)",
    )
    # nobody is there to start it again in development mode
    serve.set_defaults(run=_serve, traceback=True)


def _serve(args: argparse.Namespace) -> None:
    # before the import of the protocol code, so that a mistake in the file is reported at once
    read = partial(config.load, args.config)
    settings = read()
    from securemedian.servers.daemon import serve

    serve(settings, read)
