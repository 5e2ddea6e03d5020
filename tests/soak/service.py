"""The processes of a soak, each behind its proxies."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Self

from securemedian.clients.config import ClientConfig
from securemedian.common.policy import Policy
from securemedian.common.status import DEFAULT_COHORT
from securemedian.coordinator.coordinator import Coordinator
from securemedian.laboratory.servers import SERVE, SERVERS, configure
from securemedian.operating import keygen
from tests.soak.disk import Disk
from tests.soak.processes import Hear, Revivals
from tests.soak.proxy import Proxies

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
        keygen.make(folder, self.names, net, Policy.unlimited(), min_clients=2)
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
        configure(folder / "s0.toml", SERVER_SETTINGS, tables)
        _reroute(folder / "s0.toml", {net.s1_peer: self.link.port})
        configure(folder / "s1.toml", SERVER_SETTINGS, tables)
        for name in self.names:
            ways = {net.s0: self.ways[name, "s0"].port, net.s1: self.ways[name, "s1"].port}
            configure(folder / f"{name}.toml", CLIENT_SETTINGS)
            _reroute(folder / f"{name}.toml", ways)
        self._seed = seed
        self.processes = Revivals(folder, hear)
        self.disks = {
            server: Disk(folder / f"{server}-state", partial(self._pid, server))
            for server in SERVERS
        }

    def _pid(self, server: str) -> int | None:
        return self.processes[server].pid

    def start(self) -> None:
        """Start the servers, and the clients of each cohort."""
        for server in SERVERS:
            self.processes.start(server, *SERVE, str(self.folder / f"{server}.toml"))
        for cohort, clients in self.members.items():
            for name in clients:
                config = str(self.folder / f"{name}.toml")
                self.processes.start(name, "tests.soak.client", config, str(self._seed), cohort)

    def coordinator(self, cohort: str, reply_timeout_s: float) -> Coordinator:
        config = ClientConfig.load(self.folder / "coordinator.toml", cohort)
        brief = replace(config, reply_timeout_s=reply_timeout_s, retry_limit_s=reply_timeout_s)
        # servers are away all the time
        return Coordinator(brief, report=lambda text: None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.stop()
        self._proxies.close()
        for disk in self.disks.values():
            disk.close()


def _reroute(path: Path, ways: Mapping[int, int]) -> None:
    """Replace ports in a configuration."""
    text = path.read_text()
    for port, way in ways.items():
        text = text.replace(f':{port}"', f':{way}"')
    path.write_text(text)
