"""One of the parties of MPyC, as a process over loopback: `python mpyc_party.py`.

Jobs and results are those of spu_party.py.
"""

import json
import os
import signal
import sys
import time
from typing import Any

job = json.load(sys.stdin)
# ends this process if whoever started it is gone
signal.alarm(job["limit_s"])
if job["core"] is not None:
    os.sched_setaffinity(0, {job["core"]})
# MPyC reads the command line on import
sys.argv += ["--no-log", "-I", str(job["rank"])]
for address in job["addresses"]:
    sys.argv += ["-P", address]

import numpy as np  # noqa: E402
from mpyc import statistics  # noqa: E402
from mpyc.runtime import mpc  # noqa: E402


async def main() -> None:
    """Run all tasks, and write what each took."""
    await mpc.start()
    for number, task in enumerate(job["tasks"]):
        measured = await run(task)
        print(json.dumps({"task": number} | measured), flush=True)
    await mpc.shutdown()


async def run(task: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds and bytes of each repetition of a task, whose result is checked."""
    function, inputs, expected = WORK[task["work"]](task)
    seconds, sent = [], []
    await mpc.gather(inputs)
    for _ in range(1 + job["repetitions"]):
        await mpc.barrier()
        start, before = time.perf_counter(), _bytes_sent()
        output = function(*inputs)
        await mpc.gather(output)
        seconds.append(time.perf_counter() - start)
        sent.append(_bytes_sent() - before)
    result = np.array(await mpc.output(output), float)
    # MPyC keeps 16 bits after the point
    if not np.allclose(result, expected, rtol=0, atol=1e-4):
        sys.exit(f"{task}: the result differs from numpy's")
    return {"seconds": seconds[1:], "bytes_sent": sent[1:]}


def compare(task: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return signed comparisons: the function, its inputs, and the result to expect."""
    bits, rng = task["ring_bits"], np.random.default_rng(1)
    x, y = rng.integers(-(1 << (bits - 3)), 1 << (bits - 3), (2, task["count"]))
    integers = mpc.SecInt(bits)
    inputs = [mpc.input(integers.array(values.astype(object)), 0) for values in (x, y)]
    return (lambda x, y: x < y), inputs, x < y


def median(task: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return medians by MPyC's function of this name, one coordinate after another.

    That function opens how many values lie below its pivots.
    """
    values, numbers = _updates(task), mpc.SecFxp(task["ring_bits"])
    inputs = [[mpc.input(numbers(value), 0) for value in column] for column in values.T.tolist()]
    return (
        (lambda *columns: [statistics.median_low(column) for column in columns]),
        inputs,
        _lower_median(values),
    )


def network(task: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return medians by MPyC's sorting network, for all coordinates at once."""
    values, numbers = _updates(task), mpc.SecFxp(task["ring_bits"])
    middle = (len(values) - 1) // 2
    inputs = [mpc.input(numbers.array(values), 0)]
    return (lambda x: mpc.np_sort(x, axis=0)[middle]), inputs, _lower_median(values)


WORK = {"compare": compare, "median": median, "sort": network}


def _updates(task: dict[str, Any]) -> Any:
    return np.random.default_rng(1).normal(size=(task["clients"], task["count"]))


def _lower_median(values: Any) -> Any:
    return np.sort(values, axis=0)[(len(values) - 1) // 2]


def _bytes_sent() -> int:
    return sum(party.protocol.nbytes_sent for party in mpc.parties if party.pid != mpc.pid)


if __name__ == "__main__":
    mpc.run(main())
