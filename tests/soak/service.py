"""The processes of a soak, each behind its proxies."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Self

from securemedian.clients.config import ClientConfig
from securemedian.common.cohorts import DEFAULT_COHORT
from securemedian.common.policy import Policy
from securemedian.coordinator.coordinator import Coordinator
from securemedian.operating import keygen
from tests.soak.disk import Disk
from tests.soak.processes import Restarted
from tests.soak.proxy import Proxies, Proxy

SERVERS = ("s0", "s1")
# how many clients of its own each cohort has
COHORTS = {DEFAULT_COHORT: 5, "stroke": 3}
# Short limits, so that what happens at a limit happens often.
Settings = Mapping[str, float | str]
SERVER_SETTINGS: Settings = {
    "peer_wait_s": 300,
    "peer_timeout_s": 4,
    "channel_timeout_s": 6,
    "round_limit_s": 30,
}
CLIENT_SETTINGS: Settings = {"reply_timeout_s": 5, "retry_limit_s": 60, "poll_interval_s": 0.1}
# one JSON line that a process wrote: its name and the event
Hear = Callable[[str, dict[str, Any]], None]


class SoakService:
    """Two servers and the clients of `COHORTS` in `folder`, which must be new.

    `hear` gets what each of them logs, on a thread of that process's own.
    """

    def __init__(self, folder: Path, seed: int, hear: Hear) -> None:
        self.folder = folder
        self.names = keygen.client_names(sum(COHORTS.values()))
        names = iter(self.names)
        # the clients by cohort
        self.members = {name: list(islice(names, count)) for name, count in COHORTS.items()}
        net = keygen.network(keygen.LOOPBACK, keygen.LOOPBACK, None)
        keygen.make_all(folder, self.names, net, Policy.unlimited(), min_clients=2)
        self._proxies = Proxies()
        # S0's way to S1, and each client's to either server
        self.link = self._proxies.add(net.s1_peer)
        self.ways = {
            (name, server): self._proxies.add(port)
            for name in self.names
            for server, port in zip(SERVERS, (net.s0, net.s1), strict=True)
        }
        tables = "".join(
            f"\n[[cohorts]]\nname = {json.dumps(name)}\nclients = {json.dumps(clients)}\n"
            for name, clients in self.members.items()
        )
        _configure(folder / "s0.toml", SERVER_SETTINGS, {net.s1_peer: self.link}, tables)
        _configure(folder / "s1.toml", SERVER_SETTINGS, {}, tables)
        for name in self.names:
            ways = {net.s0: self.ways[name, "s0"], net.s1: self.ways[name, "s1"]}
            _configure(folder / f"{name}.toml", CLIENT_SETTINGS, ways)
        commands = {server: ["securemedian", "serve"] for server in SERVERS}
        commands |= {name: ["tests.soak.client"] for name in self.names}
        after = {
            name: [str(seed), cohort]
            for cohort, clients in self.members.items()
            for name in clients
        }
        self.processes = {
            name: Restarted(
                name,
                folder,
                [*command, str(folder / f"{name}.toml"), *after.get(name, [])],
                lambda event, name=name: hear(name, event),  # type: ignore[misc]
            )
            for name, command in commands.items()
        }
        self.disks = {
            server: Disk(folder / f"{server}-state", self.processes[server]) for server in SERVERS
        }

    def start(self) -> None:
        for process in self.processes.values():
            process.start()

    def coordinator(self, cohort: str, reply_timeout_s: float) -> Coordinator:
        config = ClientConfig.load(self.folder / "coordinator.toml", cohort)
        brief = replace(config, reply_timeout_s=reply_timeout_s, retry_limit_s=reply_timeout_s)
        # servers are away all the time
        return Coordinator(brief, report=lambda text: None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self.names, *SERVERS]:
            self.processes[name].stop()
        self._proxies.close()
        for disk in self.disks.values():
            disk.close()


def _configure(path: Path, settings: Settings, ways: Mapping[int, Proxy], tables: str = "") -> None:
    """Put settings before a configuration, tables after it, and proxies in place of addresses."""
    text = path.read_text()
    for port, proxy in ways.items():
        text = text.replace(f':{port}"', f':{proxy.port}"')
    # for these values JSON is TOML
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    path.write_text("\n".join([*lines, text + tables]))
