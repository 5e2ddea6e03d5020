"""Kernels: each is compiled for the types that it names, and all of them before the first round."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.protocols.kernels.jit import KERNELS, kernel
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.methods.base import Method
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.params import RoundParams
from tests.daemons import SETTINGS, START_S, Pair
from tests.parties import make_parties, run_rounds, shared
from tests.test_methods import published_round, variants

# a server that logs what it compiles or loads from the cache on disk
RECORDER = """
import sys
from numba.core.dispatcher import Dispatcher
from securemedian import cli
from securemedian.servers import logs
add_overload = Dispatcher.add_overload
def add_and_log(self, compiled):
    logs.event("kernel", function=self.py_func.__qualname__, types=str(compiled.signature))
    add_overload(self, compiled)
Dispatcher.add_overload = add_and_log
sys.exit(cli.main())
"""
PROTOCOL = """
[protocol]
native_aes = {native}
ot_extension = "{extension}"
"""


@pytest.mark.skipif(not KERNELS, reason="nothing is compiled")
def test_a_kernel_is_compiled_for_the_types_that_it_names_and_no_others() -> None:
    @kernel("u8[1] u8[1]!", "u4[1] u4[1]!")
    def double(values: Any, out: Any) -> None:
        for i in range(out.size):
            out[i] = 2 * values[i]

    made: Any = double
    given, out = np.arange(5, dtype=np.uint64), np.empty(5, np.uint64)
    double(given, out)
    assert list(out) == [0, 2, 4, 6, 8] and len(made.signatures) == 2
    given.flags.writeable = False
    double(given, out)
    double(given.astype(np.uint32), out.astype(np.uint32))
    assert len(made.signatures) == 2
    given.flags.writeable = True
    out.flags.writeable = False
    for wrong in ((given, out), (given[::2], given[:3]), (given.view(np.int64), given), (1, given)):
        with pytest.raises(TypeError, match="No matching definition"):
            double(*wrong)
    assert len(made.signatures) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("native", "extension"), [(True, "softspoken"), (False, "silent")])
def test_no_round_compiles_after_its_server_has_said_compiled(
    tmp_path: Path, native: bool, extension: str
) -> None:
    """Of any method: what the cache on disk gives would be compiled where there is none."""
    settings = SETTINGS | {"channel_timeout_s": START_S}
    pair, servers = Pair(tmp_path / "keys", settings=settings), ("s0", "s1")
    for server in servers:
        pair.configure(server, PROTOCOL.format(native=str(native).lower(), extension=extension))
    try:
        pair.start(*servers, program=("-c", RECORDER))
        pair.link()
        for method in variants():
            given = method.to_dict()
            if "validator" in given:
                given["validator"] = pair.names[0]
            model = np.zeros(300, np.float32)
            pair.open(model, dim=300, max_clients=len(pair.names), **given)
            for name in pair.names:
                pair.submit(name, model)
            pair.wait("published")
        for server in servers:
            events = pair.events(server)
            (compiled,) = (i for i, each in enumerate(events) if each["event"] == "compiled")
            kernels = [each["event"] == "kernel" for each in events]
            assert any(kernels[:compiled])
            assert not any(kernels[compiled:]), [
                each for each in events[compiled:] if each["event"] == "kernel"
            ]
    finally:
        pair.close()


@pytest.mark.parametrize("method", [*variants(), Radix(ranks=[1, 2, 3])], ids=lambda m: m.label)
def test_a_round_of_one_coordinate_takes_the_types_that_kernels_name(method: Method) -> None:
    """Where it has several ranks or groups, numpy sees other orders than C in its arrays."""
    params = RoundParams(method, dim=1, max_clients=4)
    results, expected = published_round(params, np.ones((4, 1), np.float32), ProtocolParams())
    assert np.array_equal(results, expected)


@pytest.mark.parametrize("schedule", ["bisect", "scan"])
def test_groups_of_one_coordinate_take_the_types_that_kernels_name(schedule: str) -> None:
    params = RoundParams(Bucketed(buckets=4, groups=2, schedule=schedule), dim=1, max_clients=6)
    # of each group, slots of its own
    halves = [shared(params, np.array([[slot]])) for slot in (0, 1, 1, 5, 6, 7)]
    outcome, _ = run_rounds(make_parties(), params, halves)
    assert outcome.values.tolist() == [[1], [2]]
