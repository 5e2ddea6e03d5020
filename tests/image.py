"""The image of deploy/, built, and a round in it by the words of deploy/compose.yaml.

scripts/image runs it, and says what it needs. Without them it ends with status `MISSING`.
"""

import ast
import ctypes
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
COMPOSE = (DEPLOY / "compose.yaml").read_text("utf-8")
IMAGE, UID = "securemedian", 10001
# the base for where no registry can be reached, made by debootstrap
DEBIAN, SUITE = "securemedian-base", "bookworm"
# an exit status: the machine has not got what is needed
MISSING = 77
BUILD_S, STEP_S = 480, 60
# ten times what is needed; servers that compile at their first start take longer
LINK_S, ROUND_S = 50, 120
INSTALL = "apt-get install --no-install-recommends buildah debootstrap"

# the contents of a container, told by itself
CONTENTS = """
import importlib.metadata, importlib.util, json, os, shutil
from pathlib import Path

def megabytes(pattern):
    return round(sum(path.lstat().st_size for path in Path("/opt").rglob(pattern)) / 1e6)

def others(path):
    about = os.lstat(path)
    return about.st_uid or not os.path.islink(path) and about.st_mode & 0o022

opt = ["/opt", *map(str, Path("/opt").rglob("*"))]
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "uid": os.getuid(),
    "capabilities": int(status["CapEff"], 16),
    "gains no privileges": status["NoNewPrivs"].strip() == "1",
    "read-only": bool(os.statvfs("/").f_flag & os.ST_RDONLY),
    "not for root alone to write": [p for p in opt if others(p)],
    "compilers": list(filter(shutil.which, "cc c++ gcc g++ clang tcc as ld make".split())),
    "torch": importlib.util.find_spec("torch") is not None,
    "packages": sorted(
        each.name.lower().replace("_", "-") + "==" + each.version
        for each in importlib.metadata.distributions()
    ),
    "megabytes": [megabytes("*"), megabytes("*.nb[ic]")],
}))
"""


class Missing(Exception):
    """Raised where the machine has not got what the image is built with or run in."""


def main() -> None:
    """Build the image, look at what is in it and run a round."""
    # end the processes started here, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    tool = Docker if Docker.there() else Buildah
    if tool is Buildah and not shutil.which("buildah"):
        raise Missing(f"neither docker (with its plug-in compose) nor buildah is here: {INSTALL}")
    if tool is Buildah and os.geteuid():
        os.execvp(
            "buildah", ["buildah", "unshare", sys.executable, "-m", "tests.image", *sys.argv[1:]]
        )
    with tempfile.TemporaryDirectory(prefix="securemedian-image-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        with closing(tool(folder)) as containers:
            start = time.monotonic()
            containers.build(sys.argv[1] if len(sys.argv) > 1 else None)
            seconds = time.monotonic() - start
            _say(f"built by {tool.__name__.lower()} in {seconds:.0f} s: {containers.size()}")
            _prepare(containers, folder)
            _examine(containers)
            _start(containers)
            _round(containers, folder)
            _stop(containers)


def _prepare(containers: "Docker | Buildah", folder: Path) -> None:
    """Run the commands of the first lines of compose.yaml, except `build` and `up`."""
    shutil.copy(DEPLOY / "run.toml", folder)
    for line in re.findall(r"^# +(mkdir .*)", COMPOSE, re.M):
        _run(["sh", "-c", line], cwd=folder)
    if not os.geteuid():
        for path in folder.iterdir():
            os.chown(path, UID, UID)
    for line in re.findall(r"^# +docker compose run (.*)", COMPOSE, re.M):
        containers.run(shlex.split(line))


def _examine(containers: "Docker | Buildah") -> None:
    """Check what the image has, and has not."""
    words = ["--rm", "--entrypoint", "python", "keygen", "-c", CONTENTS]
    has = json.loads(containers.run(words))
    opt, kernels = has.pop("megabytes")
    packages = has.pop("packages")
    locked = re.findall(r"^[\w-]+==\S+", (DEPLOY / "requirements.txt").read_text(), re.M)
    more = {package.partition("==")[0] for package in set(packages) - set(locked)}
    _same("packages that are not locked", more, {"pip", "securemedian"})
    expected = {
        "uid": containers.uid,
        "capabilities": 0,
        "gains no privileges": True,
        "read-only": True,
        "not for root alone to write": [],
        "compilers": [],
        "torch": False,
    }
    for what, value in expected.items():
        _same(what, has[what], value)
    _same("user of the image", containers.user(), str(UID))
    _say(f"/opt has {opt} MB, {kernels} of them kernels: {', '.join(packages)}")
    _say(f"neither torch nor a compiler is in it, and user {UID} can write nothing")


def _start(containers: "Docker | Buildah") -> None:
    """Start both servers and wait for their link."""
    start = time.monotonic()
    containers.up(["s0", "s1"])
    linked = re.compile(r'"event": "peer-linked".*"problem": ""')
    while not all(linked.search(containers.log(name)) for name in ("s0", "s1")):
        if time.monotonic() - start > LINK_S:
            raise AssertionError(f"no link after {LINK_S} s:\n{containers.log('s0')}")
        time.sleep(0.05)
    seconds = time.monotonic() - start
    _say(f"both servers are linked {seconds:.1f} s after their start")
    for service in ("s0", "coordinator"):
        said = containers.run(["--rm", service, "doctor", f"/etc/securemedian/{service}.toml"])
        # the image has the kernels for this processor
        amiss = re.findall(r"^(?:wait|wrong|warning .*not compiled).*", said, re.M)
        _same(f"what doctor finds at {service}", amiss, [])


def _round(containers: "Docker | Buildah", folder: Path) -> None:
    """Run the other containers, and compare what they leave with the median."""
    parties = ["coordinator", "client-1", "client-2"]
    containers.up(parties)
    for party in parties:
        try:
            status: int | str = containers.wait(party)
        except subprocess.TimeoutExpired:
            status = f"not after {ROUND_S} s"
        if status:
            logs = "\n".join(f"{each}:\n{containers.log(each)}" for each in (*parties, "s0", "s1"))
            raise AssertionError(f"{party} ended {status}:\n{logs}")
    # of two values the lower median is the smaller one
    median = np.minimum(*(np.load(folder / name / "update.npy") for name in parties[1:]))
    for path in ("run/model-1.npy", "client-1/median.npy", "client-2/median.npy"):
        _same(path, np.load(folder / path).tolist(), median.tolist())
    _say("a round ran: coordinator and clients have the median")


def _stop(containers: "Docker | Buildah") -> None:
    """End both servers, as docker does, and see that they end well."""
    start = time.monotonic()
    servers = ["s0", "s1"]
    containers.stop(servers)
    _same("status of the servers", [containers.wait(server) for server in servers], [0, 0])
    _say(f"both servers ended {time.monotonic() - start:.1f} s after SIGTERM")


def _same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"{what}: {found}, and not {expected}")


def _say(text: str) -> None:
    print(text, flush=True)


def _run(command: Sequence[str], limit_s: float = STEP_S, **options: Any) -> str:
    """Run a command and return what it printed; what else it says goes to our stderr."""
    options = {"stdout": subprocess.PIPE} | options
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            said, _ = process.communicate(timeout=limit_s)
        except BaseException:
            # a build takes its containers away
            _end(process)
            raise
    if process.returncode:
        print(said or "", file=sys.stderr)
        raise subprocess.CalledProcessError(process.returncode, command)
    return str(said)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STEP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STEP_S)


def _build_words(folder: Path, base: str | None) -> list[str]:
    """Return the words of a build: on a base, with what pip is told on this machine."""
    said = _run([sys.executable, "-m", "pip", "config", "list"])
    # in the order of strength: the environment's come last
    lines = sorted(said.splitlines(), key=lambda line: line.startswith(":env:"))
    told = {}
    for line in lines:
        key, _, value = line.partition("=")
        told[key.rpartition(".")[2]] = str(ast.literal_eval(value))
    kept: dict[str, str] = {
        name: told[name] for name in ("index-url", "trusted-host", "proxy") if name in told
    }
    words = []
    if certificates := told.get("cert", os.environ.get("SSL_CERT_FILE")):
        kept["cert"] = "/run/secrets/certificates"
        words += ["--secret", f"id=certificates,src={certificates}"]
    settings = folder / "pip.conf"
    settings.write_text("\n".join(["[global]", *(f"{k} = {v}" for k, v in kept.items()), ""]))
    words += ["--secret", f"id=pip.conf,src={settings}"]
    words += ["--build-arg", f"BASE={base}"] if base else []
    return ["build", "-f", str(DEPLOY / "Dockerfile"), "-t", IMAGE, *words, str(ROOT)]


class Docker:
    """Docker, whose plug-in reads compose.yaml."""

    def __init__(self, folder: Path) -> None:
        shutil.copy(DEPLOY / "compose.yaml", folder)
        self.uid = os.getuid() or UID
        who = {"UID": str(self.uid), "GID": str(self.uid)}
        self._options: dict[str, Any] = {"cwd": folder, "env": os.environ | who}
        self._folder = folder
        self._compose = ["docker", "compose", "--project-name", folder.name.lower()]

    @staticmethod
    def there() -> bool:
        """Return whether docker runs, and has its plug-in."""
        try:
            for command in (["docker", "info"], ["docker", "compose", "version"]):
                _run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError):
            return False
        return True

    def build(self, base: str | None) -> None:
        _run(["docker", *_build_words(self._folder, base)], BUILD_S, stdout=sys.stderr)

    def size(self) -> str:
        return _run(["docker", "images", "--format", "{{.Size}}", IMAGE]).strip()

    def user(self) -> str:
        return _run(["docker", "inspect", "--format", "{{.Config.User}}", IMAGE]).strip()

    def run(self, words: Sequence[str]) -> str:
        return _run([*self._compose, "run", "-T", *words], **self._options)

    def up(self, services: Sequence[str]) -> None:
        _run([*self._compose, "up", "--detach", "--no-deps", *services], **self._options)

    def stop(self, services: Sequence[str]) -> None:
        _run([*self._compose, "stop", *services], ROUND_S, **self._options)

    def log(self, service: str) -> str:
        return _run([*self._compose, "logs", "--no-log-prefix", service], **self._options)

    def wait(self, service: str) -> int:
        container = _run([*self._compose, "ps", "--all", "--quiet", service], **self._options)
        return int(_run(["docker", "wait", container.strip()], ROUND_S))

    def close(self) -> None:
        _run([*self._compose, "down", "--volumes"], 2 * STEP_S, **self._options)


class Buildah:
    """Buildah, and containers in namespaces made here, of what compose.yaml says.

    They have one network of their own, all on its loopback. Limits on memory are not set.
    """

    def __init__(self, folder: Path) -> None:
        self.uid = UID
        self._folder = folder
        who = {"UID": str(UID), "GID": str(UID)}
        text = re.sub(r"\$\{(\w+)[^}]*\}", lambda match: who[match[1]], COMPOSE)
        self._services: dict[str, Any] = yaml.safe_load(text)["services"]
        self._config: dict[str, Any] = {}
        self._container = ""
        self._root = Path()
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def build(self, base: str | None) -> None:
        words = _build_words(self._folder, base or self._base())
        words[1:1] = ["--isolation", "chroot"]
        _run(["buildah", *words], BUILD_S, stdout=sys.stderr)
        described = json.loads(_run(["buildah", "inspect", "--type", "image", IMAGE]))
        self._config = described["OCIv1"]["config"]
        self._container = _run(["buildah", "from", "--pull-never", IMAGE]).strip()
        self._root = Path(_run(["buildah", "mount", self._container]).strip())
        _own_network()
        (self._folder / "hosts").write_text("127.0.0.1 localhost s0 s1\n")

    def _base(self) -> str | None:
        """Return a base to use instead of the Dockerfile's, if no registry has that."""
        (named,) = re.findall(r"^ARG BASE=(.*)", (DEPLOY / "Dockerfile").read_text(), re.M)
        pulled = ["buildah", "pull", "--policy", "missing", named]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            _run(pulled, 2 * STEP_S, **quiet)
            return None
        except subprocess.SubprocessError:
            _say(f"no registry gives {named}: Debian's {SUITE} by debootstrap takes its place")
        try:
            _run(["buildah", "inspect", "--type", "image", DEBIAN], **quiet)
            return DEBIAN
        except subprocess.SubprocessError:
            pass
        if not shutil.which("debootstrap"):
            raise Missing(f"debootstrap is not here: {INSTALL}")
        made = self._folder / "base"
        words = ["--variant=minbase", "--include=python3,python3-venv", SUITE, str(made)]
        try:
            _run(["debootstrap", *words], 5 * STEP_S, stdout=sys.stderr)
        except subprocess.SubprocessError as error:
            raise Missing(f"debootstrap makes no base here ({error}): name one") from error
        recipe = self._folder / "base.Dockerfile"
        recipe.write_text("FROM scratch\nADD base /\n")
        words = ["build", "--isolation", "chroot", "-f", str(recipe), "-t", DEBIAN]
        _run(["buildah", *words, str(self._folder)], 2 * STEP_S, stdout=sys.stderr)
        shutil.rmtree(made)
        return DEBIAN

    def size(self) -> str:
        return _run(["buildah", "images", "--format", "{{.Size}}", IMAGE]).strip()

    def user(self) -> str:
        return str(self._config["User"])

    def run(self, words: Sequence[str]) -> str:
        words = [word for word in words if word != "--rm"]
        entry = self._config["Entrypoint"]
        if words[0] == "--entrypoint":
            entry, words = [words[1]], words[2:]
        service = words[0]
        given = words[1:] or shlex.split(self._services[service]["command"])
        return _run(self._words(service, [*entry, *given]))

    def up(self, services: Sequence[str]) -> None:
        for service in services:
            words = [*self._config["Entrypoint"], *shlex.split(self._services[service]["command"])]
            with (self._folder / f"{service}.log").open("w") as log:
                self._processes[service] = subprocess.Popen(
                    self._words(service, words), stdout=log, stderr=log, text=True
                )

    def stop(self, services: Sequence[str]) -> None:
        for service in services:
            self._processes[service].terminate()

    def log(self, service: str) -> str:
        return (self._folder / f"{service}.log").read_text()

    def wait(self, service: str) -> int:
        return self._processes[service].wait(ROUND_S)

    def close(self) -> None:
        self.stop(list(self._processes))
        for process in self._processes.values():
            _end(process)
        if self._container:
            _run(["buildah", "rm", self._container])

    def _words(self, service: str, words: Sequence[str]) -> list[str]:
        """Return the command that runs these words as a container of a service.

        All of it is one process, whose mounts nobody else sees and which go when it ends.
        """
        about, root = self._services[service], self._root
        steps = [
            f"mount --bind {root} {root}",
            f"mount --rbind /proc {root}/proc",
            f"mount -t tmpfs -o mode=755 tmpfs {root}/dev",
            f"mkdir -m 1777 {root}/dev/shm",
        ]
        for device in ("null", "zero", "random", "urandom"):
            steps.append(f"touch {root}/dev/{device}")
            steps.append(f"mount --bind /dev/{device} {root}/dev/{device}")
        for path in about["tmpfs"]:
            # it is root's, of the mode that the folder has in the image, as with docker
            mode = (root / path[1:]).stat().st_mode & 0o7777
            steps.append(f"mount -t tmpfs -o mode={mode:o} tmpfs {root}{path}")
        mounts = [f"{self._folder}/hosts:/etc/hosts:ro", *about["volumes"]]
        for source, inside, *how in (mount.split(":") for mount in mounts):
            there, here = root / inside[1:], self._folder / source
            there.parent.mkdir(parents=True, exist_ok=True)
            there.mkdir(exist_ok=True) if here.is_dir() else there.touch()
            steps.append(f"mount --bind {here} {there}")
            if "ro" in how:
                steps.append(f"mount -o remount,bind,ro {there}")
        if about["read_only"]:
            steps.append(f"mount -o remount,bind,ro {root}")
        for name, limit in about.get("ulimits", {}).items():
            steps.append(f"ulimit -{ {'nofile': 'n', 'core': 'c'}[name] } {limit}")
        # without the rights of root none of its capabilities is left
        rights = ["setpriv", "--no-new-privs", "chroot", f"--userspec={about['user']}", "--groups="]
        env = [*self._config["Env"], *(f"{name}={v}" for name, v in about["environment"].items())]
        place = ["env", "-i", f"--chdir={about['working_dir']}", *env]
        steps.append("exec " + shlex.join([*rights, str(root), *place, *words]))
        return ["unshare", "--mount", "sh", "-euc", "\n".join(steps)]


def _own_network() -> None:
    """Give this process, and what it starts, a network of its own, with a loopback alone."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):
        why = os.strerror(ctypes.get_errno())
        raise Missing(f"built, but not run: this machine allows no namespace of networks ({why})")
    up = struct.pack("16sh14x", b"lo", 0x41)
    with socket.socket() as probe:
        fcntl.ioctl(probe, 0x8914, up)


if __name__ == "__main__":
    try:
        main()
    except Missing as missing:
        _say(str(missing))
        sys.exit(MISSING)
