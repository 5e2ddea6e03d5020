"""The files that one update passes through: `python -m tests.trace_update` lists them.

`sys.setprofile` notes every function of ours that runs in a bucketed round. It does so at a client
from `from_config` to `result`, and at S0 from the client's connection to the end of the round.
"""

import json
import signal
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from securemedian import cli
from securemedian.clients.client import Client
from securemedian.laboratory.servers import Service, servers_here
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.params import RoundParams
from tests.daemons import ROOT, wait_until

CLIENTS, DIM = 3, 100


class Trace:
    """The files of the functions that this process calls, on threads that begin later, too."""

    def __init__(self) -> None:
        self._called: set[str] = set()
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def begin(self) -> None:
        """Forget the calls so far."""
        self._called.clear()

    def files(self) -> set[str]:
        """Return the files of this repository, without those of environments within it."""
        found = {Path(name).resolve() for name in set(self._called) if name.endswith(".py")}
        ours = {str(path.relative_to(ROOT)) for path in found if ROOT in path.parents}
        return {name for name in ours if not name.startswith(".")}

    def end(self) -> None:
        threading.setprofile(None)
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        # a module's own code runs when it is imported
        if event == "call" and frame.f_code.co_name != "<module>":
            self._called.add(frame.f_code.co_filename)


def serve(out: str, config: str) -> None:
    """Run a server; SIGUSR1 begins its trace, and SIGUSR2 writes the files to `out`."""
    trace = Trace()
    signal.signal(signal.SIGUSR1, lambda *_: trace.begin())
    signal.signal(signal.SIGUSR2, lambda *_: _write(Path(out), trace))
    cli.main(["serve", config])


def _write(out: Path, trace: Trace) -> None:
    written = out.with_suffix(".new")
    written.write_text(json.dumps(sorted(trace.files())))
    written.rename(out)


def traced() -> set[str]:
    """Run a round, and return the files that the first client's update has passed through."""
    with tempfile.TemporaryDirectory(prefix="securemedian-trace-") as made:
        folder = Path(made)
        out = folder / "s0.json"
        programs = {"s0": ("tests.trace_update", str(out))}
        with servers_here(folder / "here", CLIENTS, programs=programs) as service:
            at_client = _round(service)
            service.processes["s0"].send(signal.SIGUSR2)
            wait_until(out.exists)
        return {*at_client, *json.loads(out.read_text())} - {"tests/trace_update.py"}


def _round(service: Service) -> set[str]:
    params = RoundParams(Bucketed(), dim=DIM, max_clients=CLIENTS)
    round_id = service.coordinator.open_round(params, np.zeros(DIM, np.float32))
    first, *others = (str(service.folder / f"{name}.toml") for name in service.names)
    updates = np.random.default_rng(1).normal(0, 0.01, (CLIENTS, DIM)).astype(np.float32)
    for config, update in zip(others, updates[1:], strict=True):
        with Client.from_config(config) as client:
            client.submit(update, round_id)
    service.processes["s0"].send(signal.SIGUSR1)
    trace = Trace()
    try:
        with Client.from_config(first) as client:
            client.submit(updates[0], round_id)
            client.result(round_id)
        return trace.files()
    finally:
        trace.end()


def main() -> None:
    """Print the files, and how many each package has."""
    found = traced()
    print("\n".join(sorted(found)))
    for package, count in sorted(Counter(name.partition("/")[0] for name in found).items()):
        print(f"{package}: {count}")
    print(f"in all: {len(found)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(*sys.argv[1:])
    else:
        main()
