"""Both servers on this machine, with keys for clients and a coordinator, and rounds of them."""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.config import ClientConfig
from securemedian.clients.policy import ClientPolicy
from securemedian.common.policy import Policy, Security
from securemedian.common.status import RoundStatus
from securemedian.coordinator.coordinator import Coordinator
from securemedian.coordinator.rounds import Hooks, Rounds, nothing
from securemedian.laboratory import plaintext
from securemedian.laboratory.processes import Processes
from securemedian.mpc.errors import SecureMedianError, ServerUnreachable
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.params import RoundParams
from securemedian.operating import keygen

SERVERS = ("s0", "s1")
# for both servers to be ready: the first start compiles the kernels
START_LIMIT_S = 300.0
# for one answer while the servers start
PROBE_S = 2.0
# between two looks at a server's state
POLL_S = 0.1

# the module and first arguments of a server
SERVE = ("securemedian", "serve")
NO_PROGRAMS: Mapping[str, Sequence[str]] = MappingProxyType({})
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})

# gets S0's status again and again while a round lasts
ShowStatus = Callable[[RoundStatus], object]


def make(
    folder: Path,
    clients: int,
    security: str = Security.SEMI_HONEST,
    policy: Policy | None = None,
    host: str = keygen.LOOPBACK,
) -> list[str]:
    """Write the keys of both servers, a coordinator and so many clients; return the clients' names.

    These servers take part in every round, also of two clients: they see public data only. With
    `security = "bounded"` they and the clients refuse what that refuses.
    """
    names, net = keygen.client_names(clients), keygen.network(host, host, None)
    keygen.make(folder, names, net, policy or Policy.unlimited(), 2, security)
    return names


def configure(path: Path, settings: Mapping[str, Any], tables: str = "") -> None:
    """Change settings of a configuration, and add tables."""
    lines = path.read_text().splitlines()
    kept = "\n".join(line for line in lines if line.partition(" = ")[0] not in settings)
    # for these values JSON is TOML
    changed = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    path.write_text("\n".join([*changed, kept, tables]))


def client_config(
    folder: Path, name: str, poll_s: float, security: str = Security.SEMI_HONEST
) -> ClientConfig:
    """Return the configuration of a client of `make` that ends with this process, and trusts all.

    It asks for that `security` alone.
    """
    policy = replace(ClientPolicy.unlimited(), security=security)
    loaded = ClientConfig.load(folder / f"{name}.toml")
    return replace(loaded, poll_interval_s=poll_s, state_dir="", policy=policy)


@dataclass(frozen=True)
class Ended:
    """A round that was published, with what a comparison needs."""

    status: RoundStatus
    # the state that it started from
    before: Published
    # (results, d)
    results: NDArray[np.float32]
    # as computed: without the clients that were left out
    params: RoundParams
    seconds: float

    def clear(self, updates: NDArray[Any], groups: Sequence[int] | None = None) -> bool:
        """Return whether the round published what the included clients' updates (n, d) give.

        They are in the order of `status.included`, and `groups` in that of the updates.
        """
        included = self.status.included
        expected = plaintext.published(
            updates,
            self.params,
            self.before,
            self.params.method.weights_of(included),
            groups=groups,
            coin=bytes.fromhex(self.status.coin),
        )
        return plaintext.agrees(self.results, expected, self.params, len(included))


@dataclass(frozen=True)
class Service:
    """Both servers, which run in `folder`, and the coordinator that asks them for rounds."""

    folder: Path
    names: list[str]
    processes: Processes
    coordinator: Coordinator

    def start(self, programs: Mapping[str, Sequence[str]] = NO_PROGRAMS) -> None:
        """Start both servers; `programs` has the module and arguments of one that differs."""
        for server in SERVERS:
            path = str(self.folder / f"{server}.toml")
            self.processes.start(server, *programs.get(server, SERVE), path)

    def link(self) -> None:
        """Wait until both servers see each other.

        Raises ServerUnreachable if that takes longer than START_LIMIT_S, and SecureMedianError if a
        process ends by itself.
        """
        config = ClientConfig.load(self.folder / "coordinator.toml")
        deadline = time.monotonic() + START_LIMIT_S
        with Coordinator(replace(config, reply_timeout_s=PROBE_S)) as probing:
            while not _linked(probing):
                self.processes.check()
                if time.monotonic() > deadline:
                    raise ServerUnreachable(
                        f"the two servers were not ready: within {START_LIMIT_S:g} s; read the "
                        f"logs in {self.folder}"
                    )
                time.sleep(POLL_S)

    def round(
        self,
        params: RoundParams,
        play: Callable[[str, Published], object] = nothing,
        show: ShowStatus = nothing,
        **opening: Any,
    ) -> Ended:
        """Open a round, let this process play clients of it, and wait until it is published.

        `play` gets the round's id and what it starts from; an error there aborts the round.
        `opening` are further arguments of `Coordinator.open_round`. Raises RoundFailed if the round
        has no result.
        """
        began: list[Published] = []
        ended: list[RoundStatus] = []

        def opened(round_id: str) -> None:
            began.append(self.coordinator.model(round_id))
            play(round_id, began[0])

        hooks = Hooks(
            ask=lambda _: {"params": params, **opening},
            opened=opened,
            show=show,
            keep=lambda status, _: ended.append(status),
            alive=self.processes.check,
        )
        start = time.monotonic()
        Rounds(self.coordinator, hooks, poll_s=POLL_S).run(1)
        (status,), (before,) = ended, began
        results = self.coordinator.results(status.round)
        seconds = time.monotonic() - start
        return Ended(status, before, results, plaintext.computed(params, status), seconds)


def _linked(coordinator: Coordinator) -> bool:
    with suppress(ServerUnreachable):
        return all(server.ask("info").fields["peer_linked"] for server in coordinator.servers)
    return False


def differs(number: int) -> SecureMedianError:
    """Return the error of a round whose result is not that of the clear."""
    return SecureMedianError(
        "another result was published than the same round computes in the clear: round "
        f"{number}; this is a defect, please report it"
    )


@contextmanager
def new_folder(kind: str, what: str) -> Iterator[Path]:
    """Give a new folder. In the end it is removed, unless an error may need what is in it."""
    folder = Path(tempfile.mkdtemp(prefix=f"securemedian-{kind}-"))
    try:
        yield folder
    except (KeyboardInterrupt, SystemExit):
        # the folder has keys, and a user who interrupts needs nothing there
        shutil.rmtree(folder)
        raise
    except BaseException:
        print(f"{what} are left in {folder}", file=sys.stderr)
        raise
    shutil.rmtree(folder)


@contextmanager
def servers_here(
    folder: Path,
    clients: int,
    security: str = Security.SEMI_HONEST,
    settings: Mapping[str, Any] = NO_SETTINGS,
    tables: Mapping[str, str] = MappingProxyType({}),
    programs: Mapping[str, Sequence[str]] = NO_PROGRAMS,
) -> Iterator[Service]:
    """Make keys in a new folder, run both servers there, link them, and connect a coordinator.

    `settings` change the configurations of both servers, and `tables` are added to that of one.
    """
    names = make(folder, clients, security)
    for server in SERVERS:
        configure(folder / f"{server}.toml", settings, tables.get(server, ""))
    with ExitStack() as stack:
        processes = stack.enter_context(Processes(folder))
        config = folder / "coordinator.toml"
        coordinator = stack.enter_context(Coordinator.from_config(config))
        service = Service(folder, names, processes, coordinator)
        service.start(programs)
        service.link()
        yield service
