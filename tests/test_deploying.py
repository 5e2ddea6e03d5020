"""The pages about deploying: what they quote and compute is what the servers do."""

import re
import tomllib
from pathlib import Path

import pytest

from securemedian.clients.policy import ClientPolicy
from securemedian.common.policy import Policy
from securemedian.common.receipts import DIFFERENT
from securemedian.common.states import State
from securemedian.common.status import DECLINED, RoundStatus
from securemedian.mpc.errors import PolicyRefused
from securemedian.mpc.rounds.methods.bounded import UNFIT
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import RoundParams
from securemedian.operating.keygen import policy_table
from securemedian.servers.network.peer import Change
from tests.prose import literals

ROOT = Path(__file__).parent.parent
SERVERS = {path.name: path.read_text("utf-8") for path in (ROOT / "servers").rglob("*.py")}


def read(page: str) -> str:
    return (ROOT / "docs" / page).read_text("utf-8")


def rows(page: str, header: str) -> list[list[str]]:
    """Return the cells of a page's table whose header begins like this, without the header."""
    text = read(page)
    table = text[text.index(header) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_table_of_events_has_all_that_a_server_logs_and_no_others() -> None:
    shown = [
        event for row in rows("maintaining.md", "| event | meaning |") for event in quoted(row[0])
    ]
    logged = {
        event
        for text in SERVERS.values()
        for event in re.findall(r'log\w*\.event\(\s*"([a-z-]+)"', text)
    }
    logged |= {str(change) for change in Change} | {f"round-{state}" for state in State}
    # the first lines of a start are shown as they stand, and no round is ever seen as new
    logged -= {"compiling", "compiled", "round-new"}
    assert len(shown) == len(set(shown)) and set(shown) == logged


def test_the_policy_that_it_shows() -> None:
    """It is stricter than the default, which keygen writes."""
    page = read("servers.md")
    tables = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]
    (stricter,) = (Policy(**table["policy"]) for table in tables if "policy" in table)
    assert Policy(**tomllib.loads(policy_table(Policy()))["policy"]) == Policy()
    bucketed = {"method": "bucketed", "dim": 1000, "max_clients": 10}
    unverified = RoundParams.from_dict(bucketed | {"uploads": "unverified"})
    for policy in (Policy(), stricter):
        policy.check(RoundParams.from_dict(bucketed), 0, "s1")
        with pytest.raises(PolicyRefused):
            policy.check(unverified, 0, "s1")


def test_the_policy_of_a_client_that_it_shows() -> None:
    """Every line is explained, and refuses what it says."""
    page = read("deploying.md")
    (table,) = [
        tomllib.loads(block)["policy"]
        for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
        if "[policy]" in block
    ]
    policy = ClientPolicy(**table)
    explained = page.partition("| line | takes part only |")[2]
    assert all(f"`{name}`" in explained for name in table)
    bucketed = {"method": "bucketed", "dim": 1000, "max_clients": 10, "min_clients": 5}
    listed = [RoundStatus(clients={"hospital-a": "none", "hospital-b": "none"})] * 2
    policy.check_round(RoundParams.from_dict(bucketed), 3, "hospital-a", listed)
    with pytest.raises(PolicyRefused) as caught:
        policy.check_round(
            RoundParams.from_dict(bucketed | {"min_clients": 4}),
            4,
            "a",
            [RoundStatus(clients={"university": "none"})],
        )
    assert str(caught.value).count("a refuses") == 4


@pytest.mark.parametrize("name", ["s0.toml", "s1.toml"])
def test_the_samples_take_part_in_a_round_by_default(name: str) -> None:
    """Their policy allowed radix and pairwise alone."""
    policy = Policy(**tomllib.loads(read(f"samples/{name}"))["policy"])
    policy.check(RoundParams(dim=1000, max_clients=10), 0, name.removesuffix(".toml"))


def test_what_a_dealing_takes_is_what_the_round_says() -> None:
    for cells in rows("servers.md", "| coordinates | `max_clients` | `dealt` |"):
        dim, clients, ahead, after, usual, most = (float(cell.replace(",", "")) for cell in cells)
        params = RoundParams.from_dict(
            {"method": "bucketed", "dim": int(dim), "max_clients": int(clients)}
        )
        exact = params.form.bytes_ahead / 1e6, params.form.bytes_after / 1e6
        assert (ahead, after) == pytest.approx(exact, rel=5e-3)
        halves = clients * (exact[0] / 2 + exact[1]), clients * sum(exact)
        assert (usual, most) == pytest.approx(halves, rel=5e-3)


def test_the_reasons_for_being_left_out_are_those_of_the_servers() -> None:
    code = SERVERS["members.py"]
    shown = [
        reason
        for row in rows("troubleshooting.md", "| reason | cause and remedy |")
        for reason in quoted(row[0])
    ]
    names = {
        "its dealing reached only s0": "its dealing reached {",
        "its upload reached only s0": "its upload reached {",
        "its dealing reached neither server": "neither server",
        "its upload reached neither server": "neither server",
        "its upload is complete, but max_clients is N": "its upload is complete, but max_clients",
        "s1": "only s",
    }
    faults = {method().form(10, 5).fault for method in METHODS.values()} | {UNFIT}
    for reason in shown:
        told = reason in {*faults, *DECLINED.values(), DIFFERENT}
        assert told or names.get(reason, reason) in code, reason
    assert faults | set(DECLINED.values()) <= set(shown)
    body = code[code.index("def _why_left_out") : code.index("def _differs")]
    for text in re.findall(r'"(it[^"{]+)', body):
        assert any(reason.startswith(text.strip()) for reason in shown), text


def test_the_messages_of_troubleshooting_are_those_of_the_code() -> None:
    """Readers search the page for the text that a command or a log has printed."""
    packages = ("clients", "common", "coordinator", "mpc", "servers")
    said = "\n".join(
        literals(path.read_text("utf-8"))
        for package in packages
        for path in (ROOT / package).rglob("*.py")
    )
    items = re.findall(r"^- ((?:`[^`]+`(?:, )?\s*)+)", read("troubleshooting.md"), re.MULTILINE)
    messages = [" ".join(message.split()) for item in items for message in quoted(item)]
    assert len(messages) > 30
    system = ("Address already in use", "Cannot assign requested address")
    varies = r"'?\b(?:[A-Z]{2,}|[NM]|[sS][01])\b'?|\.\.\."
    assert not [
        message
        for message in messages
        for part in re.split(varies, message)
        if part.strip(" :()") not in (*system, "") and part.strip(" :()") not in said
    ]
