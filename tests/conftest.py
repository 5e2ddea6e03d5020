"""The options of the whole test run."""

import sys

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-examples",
        type=int,
        default=30,
        metavar="N",
        help="inputs per property in tests/test_fuzz*.py; 0: until stopped (default: %(default)s)",
    )


@pytest.fixture(scope="session")
def fuzz_examples(pytestconfig: pytest.Config) -> int:
    """Return how many inputs a fuzzer tries."""
    return int(pytestconfig.getoption("--fuzz-examples")) or sys.maxsize
