"""The arrows of the architecture: who may import what, and the order in which mpc is read."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mpc

ROOT = Path(__file__).resolve().parent.parent
PEOPLE = {"servers", "clients", "benchmarks", "scripts"}
FORBIDDEN = {
    "mpc": PEOPLE | {"tests", "zmq", "argparse", "tomllib", "torch", "rich", "sklearn", "pickle"},
    "servers": {"clients", "benchmarks", "scripts", "tests", "torch", "sklearn", "pickle"},
    "clients": {"benchmarks", "scripts", "tests", "pickle"},
    "benchmarks": {"scripts", "tests", "torch", "pickle"},
    "scripts": {"tests", "pickle"},
}


def imports(path: Path) -> set[str]:
    """Dotted names of everything a file imports, at any depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return names


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_imports_go_down_only(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        roots = {name.split(".")[0] for name in imports(path)}
        assert not roots & FORBIDDEN[package], f"{path.relative_to(ROOT)} imports {sorted(roots & FORBIDDEN[package])}"


def test_mpc_is_documented_in_dependency_order() -> None:
    """Each module imports only those named before it, and every module is named."""
    assert mpc.__doc__
    order = re.findall(r"`([a-z_.]+)`", mpc.__doc__)
    files = {
        path.relative_to(ROOT / "mpc").with_suffix("").as_posix().replace("/", "."): path
        for path in (ROOT / "mpc").rglob("*.py")
    }
    modules = {
        name: path for name, path in files.items() if not name.endswith("__init__") and not name.startswith("kernels.")
    }
    assert sorted(order) == sorted([*modules, "kernels"])
    for position, name in enumerate(order):
        paths = (ROOT / "mpc" / "kernels").glob("*.py") if name == "kernels" else [modules[name]]
        for path in paths:
            for imported in imports(path):
                inner = imported.removeprefix("mpc.")
                later = [other for other in order[position + 1 :] if inner == other or inner.startswith(other + ".")]
                assert not (imported.startswith("mpc.") and later), f"{name} imports {later}, which stands after it"


def test_the_service_needs_no_torch() -> None:
    """Importing the command, the servers and the client library loads neither torch nor scikit-learn."""
    program = (
        "import sys, scripts.cli, servers.daemon, clients.client\n"
        "sys.exit(bool({'torch', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60).returncode == 0
