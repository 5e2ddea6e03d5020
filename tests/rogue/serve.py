"""The program of a rogue server: see the package."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from securemedian.laboratory.servers import SERVERS
from securemedian.servers import config
from securemedian.servers.daemon import serve
from tests.daemons import Pair
from tests.rogue.deviations import DEVIATIONS, spy
from tests.rogue.hooks import Spoils


@contextmanager
def serving(pair: Pair, rogue: str, deviation: str) -> Iterator[Pair]:
    """Run both servers of a pair, one of which deviates, and close everything at the end."""
    (pair.folder / f"{rogue}.deviation").write_text(deviation)
    try:
        for server in SERVERS:
            pair.start(server, module=__name__ if server == rogue else "securemedian.cli")
        pair.link()
        yield pair
    finally:
        pair.close()


def main(arguments: Sequence[str]) -> int:
    """Serve as a configuration says, with the deviation that the file beside it names."""
    path = Path(arguments[-1])
    read = partial(config.load, path)
    settings, deviation = read(), path.with_suffix(".deviation").read_text()
    spoils = Spoils(path.with_name("spoils.npz"))
    spy(deviation, spoils)
    DEVIATIONS[deviation](settings, spoils)
    serve(settings, read)
    return 0
