"""Run both servers of securemedian on this machine, for trials: python servers.py [DIRECTORY].

The directory gets the keys of two servers, a coordinator and five clients, unless it has them.
"""

import signal
import sys
import time
from pathlib import Path

from securemedian import Coordinator
from securemedian.laboratory.processes import Processes
from securemedian.laboratory.servers import Service, make

CLIENTS = 5
CHECK_S = 1.0


def main() -> None:
    """Run both servers until Ctrl-C or SIGTERM."""
    named = sys.argv[1] if len(sys.argv) > 1 else "~/securemedian-example"
    directory = Path(named).expanduser().resolve()
    if not (directory / "s0.toml").exists():
        make(directory, CLIENTS)
    # SIGTERM unwinds the stack, so that both servers are ended
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with (
        Processes(directory) as processes,
        Coordinator.from_config(directory / "coordinator.toml") as coordinator,
    ):
        print(f"starting S0 and S1 with the keys in {directory} ...", flush=True)
        service = Service(directory, [], processes, coordinator)
        service.start()
        service.link()
        print("both servers are ready; Ctrl-C stops them", flush=True)
        while True:
            processes.check()
            time.sleep(CHECK_S)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
