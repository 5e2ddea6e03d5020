"""The options of the whole test run."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from securemedian import Coordinator
    from tests.daemons import Pair
    from tests.parties import Lanes


def needs(*modules: str) -> None:
    """Skip the test, or the file, unless these modules are installed; import none of them."""
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed", allow_module_level=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-examples",
        type=int,
        default=30,
        metavar="N",
        help="inputs per property in tests/test_fuzz*.py, and a third as many where it holds for "
        "each state, message or method; 0: until stopped (default: %(default)s)",
    )
    parser.addoption(
        "--honest-rounds",
        type=int,
        default=60,
        metavar="N",
        help="rounds of honest servers in tests/test_bisect.py (default: %(default)s)",
    )
    parser.addoption(
        "--zooms",
        type=int,
        default=20,
        metavar="N",
        help="random rounds in tests/test_zoom.py (default: %(default)s)",
    )


@pytest.fixture(scope="session")
def fuzz_examples(pytestconfig: pytest.Config) -> int:
    """Return how many inputs a fuzzer tries."""
    return int(pytestconfig.getoption("--fuzz-examples")) or sys.maxsize


@pytest.fixture(scope="session")
def honest_rounds(pytestconfig: pytest.Config) -> int:
    """Return how many small rounds of honest servers must pass."""
    return int(pytestconfig.getoption("--honest-rounds"))


@pytest.fixture(scope="session")
def zooms(pytestconfig: pytest.Config) -> int:
    """Return how many random rounds of zoom must be sorted words."""
    return int(pytestconfig.getoption("--zooms"))


@pytest.fixture
def short() -> Iterator[Path]:
    """Make a folder whose path is short: the names of Ray's sockets have room for no other."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def lanes() -> "Lanes":
    """Return two lanes of both parties, for the tests of a module that has no others."""
    # kernels load with it, which many tests do without
    from tests.parties import make_parties

    return make_parties(lanes=2)


@pytest.fixture(scope="module")
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Pair"]:
    """Run S0 and S1 for the tests of a module, as its `PAIR` says."""
    from tests.daemons import Pair, running

    made = Pair(tmp_path_factory.mktemp("pair") / "keys", **getattr(request.module, "PAIR", {}))
    with running(made):
        yield made


@pytest.fixture
def opened(pair: "Pair") -> Iterator[ExitStack]:
    """Keep what a test opens, such as clients, and end it after the test, open rounds included."""
    with ExitStack() as stack:
        yield stack
    if (status := pair.status())["state"] == "open":
        pair.caller("coordinator", "s0").ask("abort", round=status["round"], reason="done")


@pytest.fixture
def coordinator(pair: "Pair", opened: ExitStack) -> "Coordinator":
    """Return the coordinator of the module's servers."""
    from securemedian import Coordinator

    return opened.enter_context(Coordinator(pair.config("coordinator")))
