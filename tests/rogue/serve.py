"""The program of a rogue server: see the package."""

import sys
from functools import partial
from pathlib import Path

from securemedian.servers import config
from securemedian.servers.daemon import serve
from tests.rogue.deviations import DEVIATIONS, spy
from tests.rogue.hooks import Spoils


def main(deviation: str, path: Path) -> None:
    """Serve as the configuration says, with a deviation."""
    read = partial(config.load, path)
    settings = read()
    spoils = Spoils(path.with_name("spoils.npz"))
    spy(deviation, spoils)
    DEVIATIONS[deviation](settings, spoils)
    serve(settings, read)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
