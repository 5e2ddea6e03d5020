"""What the plug-ins share: the lease, and pages whose messages and commands are the code's."""

import ast
import os
import re
from pathlib import Path

import pytest

from securemedian.clients.lease import Lease
from securemedian.mpc.errors import ConfigError, RoundBusy
from tests.daemons import ROOT

SHARED = ("clients/plugins.py", "clients/lease.py", "mpc/encode.py")


def literals(source: str) -> str:
    """Return the texts in a module, without what f-strings put into them."""
    texts = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            texts += [
                "".join(str(v.value) if isinstance(v, ast.Constant) else "|" for v in node.values)
            ]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
    return "\n".join(texts)


@pytest.mark.parametrize(("page", "folder"), [("flower.md", "flower"), ("nvflare.md", "flare")])
def test_the_messages_of_a_page_are_those_of_the_code(page: str, folder: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    rows = re.findall(r"^\| (`.*?`) \| ", text.partition("goes wrong")[2], re.MULTILINE)
    assert len(rows) > 10
    said = "\n".join(
        literals(path.read_text("utf-8"))
        for path in [*ROOT.glob(f"{folder}/*.py"), *(ROOT / name for name in SHARED)]
    )
    for message in re.findall("`(.+?)`", " ".join(rows)):
        # words in capitals, N, M and I stand for what varies
        for part in re.split(r"\.\.\.|'?\b(?:[A-Z]{2,}|[NMI])\b'?|NaN", message):
            assert part.strip(" ,:()") in said, message


@pytest.mark.parametrize("name", ["flower", "nvflare"])
def test_a_page_and_its_example_have_the_same_commands(name: str) -> None:
    blocks = [
        re.findall(r"```bash\n(.*?)```", (ROOT / path).read_text("utf-8"), re.DOTALL)[0]
        for path in (f"docs/{name}.md", f"examples/{name}/README.md")
    ]
    assert blocks[0] == blocks[1]
    assert len(blocks[0].replace("\\\n", "").splitlines()) == 3


def test_a_lease_is_for_one(tmp_path: Path) -> None:
    one = Lease(tmp_path / "coordinator.round", "flwr stop")
    one.round_id = "12-0123abcd"
    one.round_id = "1-0123abcd"
    with pytest.raises(RoundBusy, match="another run"):
        Lease(tmp_path / "coordinator.round", "flwr stop")
    one.release()
    assert Lease(tmp_path / "coordinator.round", "flwr stop").round_id == "1-0123abcd"
    with pytest.raises(ConfigError, match="cannot write"):
        Lease(tmp_path / "missing" / "coordinator.round", "flwr stop")
    assert os.stat(tmp_path / "coordinator.round").st_mode & 0o777 == 0o600
