"""S0 and S1 on this machine, as child processes of this one."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from securemedian.clients.client import Coordinator
from securemedian.clients.config import ClientConfig
from securemedian.mpc.errors import RoundFailed, ServerUnreachable
from securemedian.scripts.processes import Processes

START_LIMIT_S = 300.0  # for both servers: the first start compiles the kernels
PROBE_S = 2.0
POLL_S = 0.1

Watch = Callable[[dict[str, Any]], None]  # is shown S0's status while a round lasts


def start(processes: Processes, directory: Path) -> None:
    """Start both servers with the keys that `keygen` made in `directory`, and wait until they have found each other."""
    for server in ("s0", "s1"):
        processes.start(server, "serve", str(directory / f"{server}.toml"))
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
    """Whether both servers answer and have found each other."""
    with suppress(ServerUnreachable):
        return all(server.ask("info").fields["peer_linked"] for server in coordinator.servers)
    return False


def until_published(
    processes: Processes, coordinator: Coordinator, round_id: str, watch: Watch
) -> dict[str, Any]:
    """S0's last status of a round. RoundFailed says why there is no result."""
    while True:  # the servers end every round within its limits, and a dead server ends the loop
        processes.check()
        status = coordinator.status(round_id)
        watch(status)
        if status["state"] == "failed":
            raise RoundFailed(f"round {status['number']}: {status['reason']}")
        if status["state"] == "published":
            return status
        time.sleep(POLL_S)
