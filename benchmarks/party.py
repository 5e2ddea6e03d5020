"""One of the two processes of a benchmark, which `benchmarks.harness` starts.

`python -m securemedian.benchmarks.party` reads one JSON object from standard input and writes one
JSON object per line to standard output. S1 first writes {"endpoint": ..}. Then both write, after
each repetition, {"point": i, "repetition": r, "publish_seconds": .., "early_seconds": ..,
"peak_bytes": .., "cost": {..}}. The sockets are those of the servers, CURVE included.
"""

import json
import os
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from securemedian.benchmarks.link import AES, LOOPBACK, LinkShape, ShapedLink, Shaper
from securemedian.benchmarks.work import Point, run_point
from securemedian.common.keys import KeyPair
from securemedian.mpc.protocols.compiling import compile_kernels
from securemedian.mpc.protocols.party import Session
from securemedian.mpc.protocols.prg import SESSION_BYTES
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.servers import allocator
from securemedian.servers.computing.threads import SWITCH_S, meet
from securemedian.servers.network.transport import PEER_DOMAIN, PeerPort, ZmqLink, authenticate

# for one message, and so long because the other process compiles its kernels first
TIMEOUT_S = 300.0


def main() -> None:
    """Read the job, run all repetitions of its points, and write what each took."""
    job = json.loads(sys.stdin.readline())
    party_id = job["party"]
    protocol = ProtocolParams(**job["protocol"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[party_id % len(cores)]})
    allocator.keep()
    sys.setswitchinterval(SWITCH_S)
    compile_kernels(protocol)
    context = zmq.Context()
    gate = authenticate(context, {PEER_DOMAIN: [job["peer_public"]]})
    keys = KeyPair(job["public"].encode(), job["secret"].encode())
    aes = job["link"] == AES
    port = PeerPort(context, party_id, keys, job["endpoint"], job["peer_public"], aes, 0)
    links = _lanes(port, LinkShape.parse(job["link"]), protocol.lanes)
    if party_id == 1:
        _say({"endpoint": port.endpoint})
    channels = meet(party_id, links)
    session = Session.establish(party_id, channels[0], bytes.fromhex(job["session"]), protocol)

    def wait() -> None:
        channels[0].exchange("ready", np.zeros(1, np.uint8))

    made = 0
    for i, point in enumerate(Point(**values) for values in job["points"]):
        for repetition in range(job["repetitions"]):
            # new lanes each time, so that nothing is in stock from the repetition before
            parties = [session.party(made + lane, channel) for lane, channel in enumerate(channels)]
            made += len(parties)
            spent = run_point(point, parties, protocol, wait)
            _say(
                {"point": i, "repetition": repetition, "peak_bytes": _peak_bytes()} | asdict(spent)
            )
    wait()
    for link in links:
        link.release()
    gate.stop()
    context.term()


def _lanes(port: PeerPort, link: LinkShape, count: int) -> list[ZmqLink]:
    if link == LOOPBACK:
        return [port.lane(bytes(SESSION_BYTES), lane, TIMEOUT_S) for lane in range(count)]
    out = Shaper(link)
    return [ShapedLink(port.stream(f"shaped/{lane}"), TIMEOUT_S, out) for lane in range(count)]


def _peak_bytes() -> int:
    # getrusage would also count what the process had that started this one
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
