"""The verb `securemedian serve`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from securemedian.servers import config

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

_DESCRIPTION = """Run one of the two servers until SIGTERM or Ctrl-C, which lets a run of the protocol in hand finish
(stop_limit_s) and fails any other round. Logs go to standard error, one line an event: JSON unless it is a terminal.

Exit codes: 0 after SIGTERM or Ctrl-C; 2 for a wrong configuration, a port or state folder in use,
when the other server did not appear within peer_wait_s, or when computations do not stop."""


def add_verbs(verbs: "Verbs") -> None:
    """Add `serve` to the `securemedian` command."""
    layout = argparse.RawDescriptionHelpFormatter
    serve = verbs.add_parser(
        "serve", help="run one of the two servers", description=_DESCRIPTION, formatter_class=layout
    )
    serve.add_argument(
        "config",
        type=Path,
        metavar="CONFIG",
        help="the server's TOML file (see docs/samples/s0.toml)",
    )
    serve.set_defaults(run=_serve)


def _serve(args: argparse.Namespace) -> None:
    settings = config.load(
        args.config
    )  # a mistake in it is told before the protocol code is loaded
    from securemedian.servers.daemon import serve

    serve(settings)
