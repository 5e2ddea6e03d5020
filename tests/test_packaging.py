"""The contents of an installation: one import name, next to whatever folders a user has."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import securemedian

pytestmark = pytest.mark.release

ROOT = Path(__file__).resolve().parent.parent
# the folders that securemedian/ links to, by their import names
LINKS = {
    link.name: link.resolve().relative_to(ROOT)
    for link in (ROOT / "securemedian").iterdir()
    if link.is_symlink()
}
FOLDERS = {folder.parts[0] for folder in LINKS.values()}
LIMIT_S = 240.0

# A user's first steps in a folder of their own: both servers, two clients and a round.
PROGRAM = """
import subprocess, sys, time

import clients, scripts, servers
import numpy as np

assert clients.MINE and scripts.MINE and servers.MINE, "another folder's were imported"
from securemedian import Client, ClientConfig, Coordinator, RoundParams, SecureMedianError

command = [sys.executable, "-m", "securemedian"]
made = ["keys", "--clients", "2", "--min-clients", "2", "--no-one-malicious-server"]
subprocess.run([*command, "keygen", *made], check=True)
daemons = [
    subprocess.Popen([*command, "serve", f"keys/{name}.toml"])
    for name in ("s0", "s1")
]
try:
    params = RoundParams.from_dict({"method": "radix", "dim": 4, "max_clients": 2})
    with (
        Coordinator.from_config("keys/coordinator.toml") as coordinator,
        Client.from_config("keys/client-1.toml") as one,
        Client.from_config("keys/client-2.toml") as two,
    ):
        deadline = time.monotonic() + 200
        while True:
            try:
                coordinator.open_round(params)
                break
            except SecureMedianError:
                assert time.monotonic() < deadline and all(d.poll() is None for d in daemons)
                time.sleep(0.2)
        one.submit(np.float32([1, 2, 3, 4]))
        two.submit(np.float32([4, 3, 2, 1]))
        assert one.result(timeout_s=60).tolist() == [1, 2, 2, 1]
finally:
    for daemon in daemons:
        daemon.terminate()
    for daemon in daemons:
        daemon.wait(60)
"""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an sdist of a copy of the files that a release is made of, links included."""
    copy = tmp_path_factory.mktemp("sources") / "checkout"
    copy.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "results", "*.nbi", "*.nbc")
    for name in ("securemedian", *FOLDERS):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    return build("sdist", copy, tmp_path_factory.mktemp("sdist"))


def build(kind: str, source: Path, into: Path) -> Path:
    """Build a wheel or an sdist without the network, as pip does within its own environment."""
    program = f"from setuptools import build_meta as b; print(b.build_{kind}({str(into)!r}))"
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=source,
        check=True,
        timeout=LIMIT_S,
        capture_output=True,
    )
    (made,) = into.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel once for all tests, of the sdist alone, as a user without a wheel does."""
    folder = tmp_path_factory.mktemp("unpacked")
    shutil.unpack_archive(sdist, folder)
    (unpacked,) = folder.iterdir()
    return build("wheel", unpacked, tmp_path_factory.mktemp("wheel"))


def test_a_wheel_has_one_name_and_all_sources(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    roots = {name.split("/")[0] for name in names}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"securemedian"}
    ours = {
        f"securemedian/{name}/{path.relative_to(ROOT / folder).as_posix()}"
        for name, folder in LINKS.items()
        for path in (ROOT / folder).rglob("*.py")
        # the plug-ins are imported under their own names
        if name != "plugins" or path.parent == ROOT / folder
    }
    ours |= {f"securemedian/{path.name}" for path in (ROOT / "securemedian").glob("*.py")}
    assert {name for name in names if name.endswith(".py")} == ours
    samples = {path.name for path in (ROOT / "docs" / "samples").iterdir()}
    assert samples and {f"securemedian/operating/samples/{name}" for name in samples} <= names
    assert {"securemedian/py.typed", "securemedian/coordinator/dashboard/page.html"} <= names


def test_a_commit_is_built_to_the_same_bytes(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no commit")
    made = []
    for mask, zone in ((0o022, "UTC"), (0o077, "Asia/Tokyo")):
        into = tmp_path / zone.replace("/", "-")
        subprocess.run(
            [ROOT / "scripts" / "build", into],
            check=True,
            timeout=LIMIT_S,
            umask=mask,
            env=os.environ | {"PYTHON": sys.executable, "TZ": zone},
        )
        made.append({path.name: path.read_bytes() for path in into.iterdir()})
    first, second = made
    assert sorted(Path(name).suffix for name in first) == [".json", ".whl"]
    assert first == second
    wheel = next((tmp_path / "UTC").glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        # a page of an index has no link that leads nowhere
        assert not re.search(rb"\]\([A-Za-z][^:)]*\)", archive.read(about))
    bill = json.loads(first["sbom.json"])
    assert bill["bomFormat"] == "CycloneDX"
    assert {one["name"]: one["version"] for one in bill["components"]} == locked()


def locked() -> dict[str, str]:
    """Return the releases that a server runs with."""
    text = (ROOT / "deploy" / "requirements.txt").read_text("utf-8")
    entry = r"^([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n"
    assert not re.sub(rf"^#.*\n|{entry}", "", text, flags=re.MULTILINE), "something without a hash"
    return {name: version for name, version, _ in re.findall(entry, text, re.MULTILINE)}


def test_all_that_a_server_runs_with_is_locked_as_it_was_tested() -> None:
    pins = (line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines())
    tested: dict[str, str] = {
        canonicalize_name(name): version
        for name, _, version in (pin.partition("==") for pin in pins if not pin.startswith("#"))
    }
    assert locked().items() <= tested.items(), "renew deploy/requirements.txt as it says"
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg")
    asked = [
        *settings["options"]["install_requires"].splitlines(),
        *settings["options.extras_require"]["metrics"].splitlines(),
    ]
    wanted = [Requirement(line) for line in asked if line and not line.startswith("#")]
    needed = {"setuptools"}
    while wanted:
        one = wanted.pop()
        name = canonicalize_name(one.name)
        if name not in needed and (not one.marker or one.marker.evaluate({"extra": ""})):
            needed.add(name)
            wanted += map(Requirement, metadata.requires(name) or [])
    assert set(locked()) == needed
    build_system = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]
    assert build_system["requires"] == [f"setuptools=={tested['setuptools']}"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a user's folder that has packages of its own by the names of ours."""
    for name in (*FOLDERS, "scripts"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n")
    return tmp_path


def run(program: str, folder: Path, where: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in `folder`, with `where` on Python's path."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(where)},
        timeout=LIMIT_S,
        capture_output=True,
        text=True,
    )


def test_a_wheel_is_imported_next_to_a_users_own_folders(
    wheel: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    installed = tmp_path_factory.mktemp("site-packages")
    shutil.unpack_archive(wheel, installed, "zip")
    program = (
        "import clients, securemedian\n"
        "from securemedian import *\n"
        "import securemedian.cli, securemedian.servers.daemon, securemedian.mpc.protocols.ring\n"
        "assert clients.MINE\n"
        f"assert securemedian.mpc.protocols.ring.__file__.startswith({str(installed)!r})\n"
    )
    done = run(program, folder, installed)
    assert done.returncode == 0, done.stderr


def test_a_round_in_a_folder_with_clients_servers_and_scripts_of_its_own(folder: Path) -> None:
    done = run(PROGRAM, folder, ROOT)
    assert done.returncode == 0, done.stderr


def test_the_newest_release_has_its_notes() -> None:
    notes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"\n## [{securemedian.__version__}] - " in notes, "write its section before the release"
