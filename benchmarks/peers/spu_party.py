"""One of the two parties of SPU's Cheetah, as a process over loopback: `python spu_party.py`.

It reads one job (see processes.py) as JSON from standard input and writes one JSON object per task
to standard output: the seconds and the bytes sent of each repetition. SPU itself writes its log
there, too. Each task runs once before it is timed, which leaves out set-up and compilation. The
result is checked against numpy.
"""

import base64
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

job = json.load(sys.stdin)
# ends this process if whoever started it is gone
signal.alarm(job["limit_s"])
if job["core"] is not None:
    os.sched_setaffinity(0, {job["core"]})

import jax  # noqa: E402 - threads are counted, and started, on import
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import spu  # noqa: E402
from spu import libspu  # noqa: E402
from spu.utils import frontend  # noqa: E402

jax.config.update("jax_enable_x64", True)
RANK, LOG = job["rank"], Path(job["log"])
SECRET = libspu.Visibility.VIS_SECRET
FIELDS = {32: libspu.FieldType.FM32, 64: libspu.FieldType.FM64}


def main() -> None:
    """Run all tasks, and write what each took."""
    options = libspu.logging.LogOptions()
    options.enable_console_logger = False
    options.system_log_path = str(LOG)
    libspu.logging.setup_logging(options)
    desc = libspu.link.Desc()
    desc.recv_timeout_ms = job["limit_s"] * 1000
    for party, address in enumerate(job["addresses"]):
        desc.add_party(f"party-{party}", address)
    link = libspu.link.create_brpc(desc, RANK)
    # ring bits -> SPU, its input and output
    runtimes: dict[int, tuple[Any, Any]] = {}
    for number, task in enumerate(job["tasks"]):
        bits = task["ring_bits"]
        if bits not in runtimes:
            config = libspu.RuntimeConfig(protocol=libspu.ProtocolKind.CHEETAH, field=FIELDS[bits])
            # writes the bytes of a run to the log
            config.enable_pphlo_profile = True
            runtimes[bits] = spu.Runtime(link.spawn(), config), spu.Io(2, config)
        measured = run(link, *runtimes[bits], task)
        print(json.dumps({"task": number} | measured), flush=True)
    link.stop_link()


def run(link: Any, runtime: Any, io: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds and bytes of each repetition of a task.

    Rank 0 makes the shares of the inputs, puts the result together and checks it.
    """
    function, inputs, expected = WORK[task["work"]](task)
    names = [f"input-{i}" for i in range(len(inputs))]
    program, _ = frontend.compile(
        frontend.Kind.JAX,
        function,
        inputs,
        {},
        names,
        [SECRET] * len(inputs),
        lambda outputs: ["output"],
    )
    shares = [io.make_shares(array, SECRET) for array in inputs] if RANK == 0 else []
    mine = json.loads(
        link.scatter([json.dumps([_pack(pair[rank]) for pair in shares]) for rank in (0, 1)], 0)
    )
    for name, share in zip(names, mine, strict=True):
        runtime.set_var(name, _unpack(share))
    seconds = []
    for _ in range(1 + job["repetitions"]):
        link.barrier()
        start = time.perf_counter()
        runtime.run(program)
        seconds.append(time.perf_counter() - start)
    outputs = link.gather(json.dumps(_pack(runtime.get_var("output"))), 0)
    if RANK == 0:
        result = io.reconstruct([_unpack(json.loads(output)) for output in outputs])
        # SPU keeps 18 bits after the point
        if not np.allclose(result, expected, rtol=0, atol=1e-4):
            sys.exit(f"{task}: the result differs from numpy's")
    sent = [
        int(found) for found in re.findall(r"Link details: total send bytes (\d+)", LOG.read_text())
    ]
    return {"seconds": seconds[1:], "bytes_sent": sent[-job["repetitions"] :]}


def compare(task: dict[str, Any]) -> tuple[Any, tuple[Any, ...], Any]:
    """Return signed comparisons: the function, its inputs, and the result to expect."""
    bits, rng = task["ring_bits"], np.random.default_rng(1)
    x, y = rng.integers(-(1 << (bits - 3)), 1 << (bits - 3), (2, task["count"])).astype(
        f"int{bits}"
    )
    return (lambda x, y: x < y), (x, y), x < y


def median(task: dict[str, Any]) -> tuple[Any, tuple[Any, ...], Any]:
    """Return medians by SPU's function of this name."""
    values = _updates(task)
    return (lambda x: jnp.median(x, axis=0)), (values,), np.median(values, axis=0)


def network(task: dict[str, Any]) -> tuple[Any, tuple[Any, ...], Any]:
    """Return medians by a sorting network, for all coordinates at once.

    SPU's own sort would take one coordinate after another.
    """
    values = _updates(task)
    middle = (len(values) - 1) // 2

    def lower_median(x: Any) -> Any:
        rows = list(x)
        for layer in _merge_exchange(len(rows)):
            upper, lower = (jnp.stack([rows[pair[side]] for pair in layer]) for side in (0, 1))
            smaller = jnp.minimum(upper, lower)
            larger = upper + lower - smaller
            for k, (i, j) in enumerate(layer):
                rows[i], rows[j] = smaller[k], larger[k]
        return rows[middle]

    return lower_median, (values,), np.sort(values, axis=0)[middle]


def _merge_exchange(n: int) -> list[list[tuple[int, int]]]:
    """Return layers of comparators that sort n values.

    This is Batcher's merge exchange (Knuth, volume 3, Algorithm 5.2.2 M).
    """
    layers, top = [], 1 << (n - 1).bit_length() - 1
    p = top
    while p:
        d, q, r = p, top, 0
        while d:
            layers.append([(i, i + d) for i in range(n - d) if i & p == r])
            d, q, r = q - p, q >> 1, p
        p >>= 1
    return layers


WORK = {"compare": compare, "median": median, "sort": network}


def _updates(task: dict[str, Any]) -> Any:
    return np.random.default_rng(1).normal(size=(task["clients"], task["count"])).astype(np.float32)


def _pack(share: Any) -> list[Any]:
    return [
        base64.b64encode(share.meta).decode(),
        [base64.b64encode(chunk).decode() for chunk in share.share_chunks],
    ]


def _unpack(packed: list[Any]) -> Any:
    share = libspu.Share()
    share.meta, share.share_chunks = (
        base64.b64decode(packed[0]),
        [base64.b64decode(chunk) for chunk in packed[1]],
    )
    return share


if __name__ == "__main__":
    main()
