"""The program behind `scripts/rogue`: what each deviation tells, and who notices."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from securemedian.clients.files import check_writable
from securemedian.common import terminal
from securemedian.laboratory.experiments import summaries
from securemedian.laboratory.processes import unwind_on_sigterm
from securemedian.mpc.errors import SecureMedianError
from securemedian.operating import compiling
from tests.rogue import attacks


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every deviation through real daemons, and print a row for each."""
    parser = argparse.ArgumentParser("rogue", description="Measure what a rogue server learns.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE as well")
    options = parser.parse_args(arguments)
    try:
        if options.json:
            check_writable(options.json)
        compiling.compile_all()
        unwind_on_sigterm()
        console = terminal.console(width=terminal.TABLE_WIDTH)
        with terminal.console(stderr=True).status("rogue servers"):
            found = attacks.by_attack()
    except SecureMedianError as error:
        sys.exit(f"rogue: {error}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    console.print(summaries.rows("Rogue servers", found))


if __name__ == "__main__":
    main()
