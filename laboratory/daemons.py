"""Both servers as child processes on this machine: start them, and wait for their results."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from securemedian.clients.config import ClientConfig
from securemedian.clients.policy import ClientPolicy
from securemedian.common.policy import Policy
from securemedian.common.security import Security
from securemedian.common.status import RoundStatus
from securemedian.coordinator.coordinator import Coordinator
from securemedian.laboratory.processes import Processes
from securemedian.mpc.errors import RoundFailed, ServerUnreachable
from securemedian.operating import keygen

# for both servers to be ready: the first start compiles the kernels
START_LIMIT_S = 300.0
# for one answer while the servers start
PROBE_S = 2.0
# between two looks at a server's state
POLL_S = 0.1

# the module and first arguments of a server
SERVE = ("securemedian", "serve")

# called with S0's status again and again while a round lasts
ShowStatus = Callable[[RoundStatus], None]


def make(directory: Path, clients: int, security: str = Security.SEMI_HONEST) -> list[str]:
    """Write the keys of both servers and so many clients, and return the clients' names.

    These servers take part in every round, also of two clients: they see public data only. With
    `security = "bounded"` they, and the clients, refuse what that refuses.
    """
    names = keygen.client_names(clients)
    net = keygen.network(keygen.LOOPBACK, keygen.LOOPBACK, None)
    policy = Policy.unlimited()
    keygen.make_all(directory, names, net, policy, 2, security)
    return names


def client_config(
    directory: Path, name: str, poll_s: float, security: str = Security.SEMI_HONEST
) -> ClientConfig:
    """Return the configuration of a client of `make` that ends with this process, and trusts all.

    It asks for that `security` alone.
    """
    policy = replace(ClientPolicy.unlimited(), security=security)
    loaded = ClientConfig.load(directory / f"{name}.toml")
    return replace(loaded, poll_interval_s=poll_s, state_dir="", policy=policy)


@contextmanager
def running(directory: Path) -> Iterator[tuple[Processes, Coordinator]]:
    """Run both servers with what `make` wrote to `directory`, and connect the coordinator."""
    with (
        Processes(directory) as processes,
        Coordinator.from_config(directory / "coordinator.toml") as coordinator,
    ):
        start(processes, directory)
        yield processes, coordinator


def start(
    processes: Processes,
    directory: Path,
    programs: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Start both servers with what `keygen` wrote to `directory`, and wait until they are linked.

    `programs` has the module and first arguments of a server that runs another program.

    Raises ServerUnreachable if that takes longer than START_LIMIT_S, and SecureMedianError if a
    process ends by itself.
    """
    for server in ("s0", "s1"):
        processes.start(server, *programs.get(server, SERVE), str(directory / f"{server}.toml"))
    config = ClientConfig.load(directory / "coordinator.toml")
    deadline = time.monotonic() + START_LIMIT_S
    with Coordinator(replace(config, reply_timeout_s=PROBE_S)) as coordinator:
        while not _linked(coordinator):
            processes.check()
            if time.monotonic() > deadline:
                raise ServerUnreachable(
                    f"the two servers were not ready within {START_LIMIT_S:g} s"
                )
            time.sleep(POLL_S)


def _linked(coordinator: Coordinator) -> bool:
    with suppress(ServerUnreachable):
        return all(server.ask("info").fields["peer_linked"] for server in coordinator.servers)
    return False


def until_published(
    processes: Processes, coordinator: Coordinator, round_id: str, show: ShowStatus
) -> RoundStatus:
    """Wait until a round is published, and return S0's last status of it.

    Raises RoundFailed, with the servers' reason, if the round has no result.
    """
    # bounded: the servers end every round within its limits, and a dead server ends the loop
    while True:
        processes.check()
        status = coordinator.status(round_id, 0.0)
        show(status)
        if status.state == "failed":
            raise RoundFailed(f"round {status.number}: {status.reason}")
        if status.state == "published":
            return status
        time.sleep(POLL_S)
