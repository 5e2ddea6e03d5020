"""Two hosts with a slow line between them: what docs/deploying.md prints, and mishaps."""

import subprocess
import sys

import pytest

from tests import two_hosts
from tests.daemons import ROOT

# two quiet cores take a minute and a half of it
LIMIT_S = 600


def test_everything_that_the_page_prints_is_typed() -> None:
    """Type all lines of all blocks, in their order, and others' likewise."""
    install, rest = two_hosts.tutorial()
    assert "securemedian --version" in next(two_hosts.blocks(install))[1]
    printed = [line for _, lines in two_hosts.blocks(rest) for line in lines]
    assert all(line.startswith(("securemedian ", "python -c ")) for line in printed)
    typed = list(two_hosts.commands())
    assert [command for _, command in typed if command in printed] == printed
    likewise = [command for _, command in typed if command not in printed]
    assert len(likewise) == 3 and all("hospital-" in command for command in likewise)
    where = {command.split()[1]: host for host, command in typed if "securemedian" in command}
    assert (where["serve"], where["doctor"], where["submit"]) == ("s1", "clients", "clients")
    assert two_hosts.place("securemedian serve alpha/s0.toml") == "s0"


def test_the_rules_are_those_of_the_guide() -> None:
    s0, s1 = map(two_hosts.rules, ("s0", "s1"))
    assert "7002" not in s0 and f"ip saddr != {two_hosts.NETWORKS['s0']}.10 drop" in s1
    assert "ct count over 32" in s0


def test_what_is_held_of_the_unit_is_in_it() -> None:
    assert set(two_hosts.unit()) >= two_hosts.HELD


@pytest.mark.slow
@pytest.mark.release
@pytest.mark.timeout(LIMIT_S + 60)
def test_two_hosts() -> None:
    """Cut a line, move a server, and send packets that are too long for the way."""
    steps = ["rules", "cut", "s0-moves", "mtu", "--cut-s", "3", "--rounds", "1", "--dim", "5000"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.two_hosts", *steps],
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode == two_hosts.NOT_ALLOWED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    for what in ("both results", "s0 has another address", "an MTU of 1,400", "a round of 5,000"):
        assert what in done.stdout
