"""mypy tells shares from public values: every misuse below is an error, and nothing else is.

The snippets, the copies of mpc's methods from which an opening was taken, and a program of the
public names are checked by one run of mypy, with a copy of the cache of `scripts/test`.
"""

import ast
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from securemedian import mpc
from securemedian.mpc.arrays import RingShare
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from tests.test_face import PROGRAM, WANTED

ROOT = Path(__file__).resolve().parent.parent
MPC = Path(mpc.__file__).parent
METHODS = MPC / "rounds" / "methods"
# Functions that turn shares into something public.
OPENS = {"open_bits", "open_ring", "open_rows"}
PUBLIC = {"PublicBits", "PublicValues", "PublicWords"}
SHARES = {"RingShare", "XorWords", "XorBits", "UnpackedXorBits", "Result"}
# Through these a function reaches shares that its parameters do not name.
HOLDERS = {"Party", "Chunk", "Upload"}

SETTING = """\
from securemedian.mpc.protocols import boolean, compare, share
from securemedian.mpc.arrays import PublicBits, PublicValues, RingShare, XorBits, XorWords
from securemedian.mpc.rounds.methods import radix
from securemedian.mpc.rounds.methods.base import Method, Published
from securemedian.mpc.rounds.methods.reveal import open_bits, open_ring
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds.pipeline import Outcome

def shown(values: PublicValues) -> str:
    return f"{values}"

def any_chosen(bits: PublicBits) -> bool:
    return bool(bits.any())

"""
# Lines that end in "# error" must be errors, all others must not be.
SNIPPETS = {
    "used_rightly": """
def right(party: Party, method: Method, x: RingShare, y: RingShare, published: Published) -> None:
    bits = compare.greater(party, x, y, 16)
    if any_chosen(open_bits(party, boolean.invert(party, bits), x.size)):
        larger = boolean.multiplex(party, bits, RingShare(x - y), 16)
        opened = open_ring(party, larger, 16)
        shown(opened)
        method.decode(opened, 3, published)

def clients(method: Method, one: RingShare, other: RingShare, published: Published) -> None:
    method.decode(share.combine(one, other, 16), 3, published)

def server(method: Method, outcome: Outcome, published: Published) -> None:
    method.decode(method.public(outcome.values), 3, published)
""",
    "decoded_without_opening": """
def wrong(method: Method, x: RingShare, w: XorWords, published: Published) -> None:
    method.decode(x, 3, published)  # error
    method.decode(w, 3, published)  # error
    method.decode(RingShare(x + x), 3, published)  # error
    method.decode(x + x, 3, published)  # error

def server(method: Method, outcome: Outcome, published: Published) -> None:
    method.decode(outcome.values, 3, published)  # error
""",
    "shown_without_opening": """
def wrong(party: Party, x: RingShare, outcome: Outcome) -> None:
    shown(x)  # error
    shown(outcome.values)  # error
    shown(open_ring(party, x, 16))
""",
    "branched_on_without_opening": """
def wrong(party: Party, x: RingShare, y: RingShare) -> bool:
    bits = compare.greater(party, x, y, 16)
    if any_chosen(bits):  # error
        return True
    if any_chosen(boolean.unpack_bits(bits, x.size)):  # error
        return True
    return any_chosen(open_bits(party, bits, x.size))
""",
    "xor_for_additive": """
def wrong(party: Party, words: XorWords, bits: XorBits, x: RingShare) -> None:
    compare.msb(party, words, 16)  # error
    compare.greater(party, x, bits, 16)  # error
    compare.is_zero(party, words, 16)  # error
    boolean.multiplex(party, bits, words, 16)  # error
    open_ring(party, words, 16)  # error
    share.combine(words, words, 16)  # error
""",
    "additive_for_xor": """
def wrong(party: Party, x: RingShare, words: XorWords) -> None:
    boolean.to_ring(party, x, x.size, 16)  # error
    boolean.multiplex(party, x, x, 16)  # error
    open_bits(party, x, x.size)  # error
    open_bits(party, words, words.size)  # error
    radix.select(party, x, 16, 8, [1], [1])  # error
""",
    "a_plain_array_for_a_share": """
def wrong(party: Party, x: RingShare, y: RingShare, b: XorBits) -> None:
    compare.msb(party, x - y, 16)  # error
    open_bits(party, b ^ b, 64)  # error
    boolean.to_ring(party, open_bits(party, b, 64), 64, 16)  # error
    share.combine(x + y, y, 16)  # error
""",
}


def without_openings(source: str) -> tuple[str, set[int]]:
    """Return the source with a share wherever it opens one, and the lines where it did."""
    lines, changed = source.splitlines(keepends=True), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in OPENS:
            assert node.lineno == node.end_lineno, "write an opening on one line"
            at = node.lineno - 1
            call, opened = (ast.get_source_segment(source, each) for each in (node, node.args[1]))
            assert call and opened and lines[at].count(call) == 1
            lines[at] = lines[at].replace(call, opened)
            changed.add(node.lineno)
    return "".join(lines), changed


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[int]]:
    """Return the lines with errors, by the name of a snippet or of one of mpc's methods."""
    folder = tmp_path_factory.mktemp("types")
    if (ROOT / ".mypy_cache").exists():
        # warm, so that mypy reads the snippets and few modules of ours
        shutil.copytree(ROOT / ".mypy_cache", folder / "cache")
    command = [sys.executable, "-m", "mypy", f"--cache-dir={folder}/cache"]
    sources = []
    for path in METHODS.glob("*.py"):
        changed = folder / f"without_openings_{path.name}"
        changed.write_text(without_openings(path.read_text("utf-8"))[0], "utf-8")
        command += ["--shadow-file", str(path), str(changed)]
        sources.append(path)
    for name, snippet in SNIPPETS.items():
        sources.append(folder / f"{name}.py")
        sources[-1].write_text(SETTING + snippet, "utf-8")
    sources.append(folder / "public_names.py")
    sources[-1].write_text(PROGRAM, "utf-8")
    checked = subprocess.run(
        [*command, *sources],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    print(checked.stdout, checked.stderr)
    assert checked.returncode == 1, "mypy could not check"
    found: defaultdict[str, set[int]] = defaultdict(set)
    for line in checked.stdout.splitlines():
        place, *rest = line.split(": ")
        if rest and rest[0] == "error":
            source, number = place.rsplit(":", 1)
            found[Path(source).stem].add(int(number))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", SNIPPETS)
def test_a_misused_share_is_an_error(name: str, errors: dict[str, set[int]]) -> None:
    lines = (SETTING + SNIPPETS[name]).splitlines()
    wanted = {number for number, line in enumerate(lines, 1) if line.endswith("# error")}
    assert errors.get(name, set()) == wanted


@pytest.mark.slow
def test_the_public_names_are_known(errors: dict[str, set[int]]) -> None:
    assert errors.get("public_names", set()) == WANTED


@pytest.mark.slow
def test_an_opening_that_a_method_forgets_is_an_error(errors: dict[str, set[int]]) -> None:
    opens = set()
    for path in METHODS.glob("*.py"):
        changed = without_openings(path.read_text("utf-8"))[1]
        assert errors.get(path.stem, set()) == changed, path
        opens |= {path.stem} if changed else set()
    assert opens == {
        "bucketed",
        "fixed",
        "krum",
        "mean",
        "mixing",
        "pairwise",
        "radix",
        "reclustered",
        "trimmed_mean",
        "zeno",
    }


def makes_public(node: ast.AST) -> bool:
    """Return whether an expression names an array public, or casts it to that."""
    match node:
        case ast.Call(func=ast.Name(id="cast"), args=[ast.Name(id=name), *_]):
            return name in PUBLIC
        case ast.Call(func=ast.Name(id=name)):
            return name in PUBLIC
    return False


def makers(source: str) -> set[str]:
    """Return the functions that make something public although they reach shares."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            given = ast.unparse(node.args)
            if any(name in given for name in SHARES | HOLDERS):
                found |= {node.name for part in ast.walk(node) if makes_public(part)}
    return found


def test_only_openings_make_something_public_of_shares() -> None:
    """Mypy does not object to `PublicBits(share)`, so it may stand in few places."""
    found = {
        (path.relative_to(MPC).with_suffix("").as_posix(), name)
        for path in MPC.rglob("*.py")
        for name in makers(path.read_text("utf-8"))
    }
    assert found == {
        ("rounds/methods/reveal", "open_verdicts"),
        ("rounds/methods/reveal", "open_ring"),
        ("rounds/methods/reveal", "open_rows"),
        ("rounds/methods/base", "public"),
        ("protocols/share", "combine"),
    }


def test_results_for_the_clients_are_not_public() -> None:
    values = RingShare(np.zeros((1, 3), np.uint64))
    assert Bucketed().public(values) is values
    with pytest.raises(LocalProtocolError, match="shares"):
        Pairwise(result_to="clients").public(values)
