"""What one party does for one point of a benchmark: the same function in both processes.

Inputs are uniform shares: what a round costs does not depend on them (tests/test_privacy.py), and what it computes on
them means nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpc import compare, ring, share
from mpc.ot.softspoken import ALIGN, BLOCK
from mpc.params import ProtocolParams, RoundParams
from mpc.party import Party
from mpc.pipeline import Cost, Meter, run_lanes, run_round
from mpc.prg import Stream, os_entropy

COMPARE_BATCH = 1 << 18  # comparisons a lane has in hand at once


@dataclass(frozen=True)
class Point:
    """One set of parameters to time. Fields that a benchmark has no use for stay None and are saved as such."""

    bench: str  # "ot", "compare" or "median"
    method: str
    count: int | None = None  # OTs or comparisons
    clients: int | None = None
    dim: int | None = None
    buckets: int | None = None
    ring_bits: int | None = None
    schedule: str | None = None
    encoding: str | None = None  # of radix


def run_point(point: Point, parties: Sequence[Party], protocol: ProtocolParams) -> Cost:
    """Do the work of one repetition. Both parties are in step when it is called."""
    if point.bench == "median":
        params = round_params(point)
        return run_round(parties, params, protocol, _uploads(params, parties[0].id, point.clients or 0)).cost
    meter = Meter(parties)
    if point.bench == "ot":
        _random_ots(parties[0], point.count or 0)
    else:
        _comparisons(parties, point.count or 0, point.ring_bits or 0)
    return meter.read()


def round_params(point: Point) -> RoundParams:
    """The round that a point of `bench median` times."""
    options: dict[str, Any] = {
        "method": point.method,
        "dim": point.dim,
        "max_clients": point.clients,
        "ring_bits": point.ring_bits or 0,
    }
    if point.method == "bucketed":
        options |= {"buckets": point.buckets, "schedule": point.schedule}
    elif point.method == "radix":
        options["encoding"] = point.encoding
        if point.encoding == "buckets" and point.buckets is not None:
            options["buckets"] = point.buckets
    elif point.ring_bits:
        options["fraction_bits"] = min(24, point.ring_bits // 2)
    return RoundParams.from_dict(options)


def _uploads(params: RoundParams, party_id: int, clients: int) -> list[share.Upload]:
    """Clients alternate in which server they send the seed to."""
    layout = params.layout
    stream = Stream(os_entropy(16))
    uploads: list[share.Upload] = []
    for client in range(clients):
        if client % 2 == party_id:
            uploads.append(share.SeedUpload(layout, os_entropy(16)))
        else:
            uploads.append(share.WordsUpload(layout, stream.words(layout.words).reshape(layout.rows, layout.row_words)))
    return uploads


def _random_ots(party: Party, count: int) -> None:
    """One direction, S0 the sender, hashed keys at both ends, kept nowhere."""
    for start in range(0, count, BLOCK):
        size = min(BLOCK, -(-(count - start) // ALIGN) * ALIGN)
        party.pool.random_keys(size, sending=party.id == 0)


def _comparisons(parties: Sequence[Party], count: int, bits: int) -> None:
    shares = Stream(os_entropy(16)).words(count)

    def lane(number: int) -> None:
        batches = range(0, count, COMPARE_BATCH)
        for start in batches[number :: len(parties)]:
            values = ring.reduce(shares[start : start + COMPARE_BATCH], bits)
            parties[number].pool.reserve(compare.msb_demand(values.size, bits))
            compare.msb(parties[number], values, bits)

    run_lanes(parties, lane)
