"""The threat model has a row for all that a coordinator chooses, and for each of its acts."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from securemedian.common.policy import RISKS, RISKY_ABOVE, Policy
from securemedian.mpc.options import options_of
from securemedian.mpc.rounds.exchange import EXCHANGE_FIELDS
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import ROUND_FIELDS
from securemedian.servers.rounds.requests import COORDINATOR, OPS
from securemedian.servers.rounds.runs import Opening

PAGE = Path(__file__).parent.parent / "docs" / "threat-model.md"
# of `info` and others that every party may send, and what stands for `open` in the table
ROUND = {*ROUND_FIELDS, *EXCHANGE_FIELDS}
OPTIONS = {name for method in METHODS.values() for name in options_of(method)}
ACTS = {name for name, op in OPS.items() if COORDINATOR in op.roles}
OPENING = {field.name for field in fields(Opening)}


def rows() -> dict[str, str]:
    """Return the rows of the table by each name in their first cell."""
    page = PAGE.read_text("utf-8")
    table = page.partition("\n## Powers of the coordinator\n")[2].partition("\n## ")[0]
    found: dict[str, str] = {}
    for line in table.splitlines():
        if line.startswith("| ") and not line.startswith(("| ---", "| choice ")):
            first, _, rest = line[2:].partition(" | ")
            assert rest.endswith(" |") and " | " not in rest, line
            for name in re.findall(r"`(\w+)`", first):
                assert name not in found, name
                found[name] = rest
    return found


def test_everything_that_a_coordinator_chooses_has_a_row() -> None:
    assert set(rows()) == ROUND | OPTIONS | ACTS | OPENING


@pytest.mark.parametrize("name", [*RISKS, *RISKY_ABOVE])
def test_a_row_says_what_policies_refuse(name: str) -> None:
    assert Policy().allowed.get(name) or name in (*RISKY_ABOVE, "method")
    if name == "single_clients":
        said = [rest for rest in rows().values() if f"refused (`{name}`)" in rest]
        assert len(said) == 4
    else:
        assert "refused" in rows()[name]
