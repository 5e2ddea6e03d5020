"""Correlations: what they must satisfy, and that each is made and handed out once."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols import boolean, ring
from securemedian.mpc.protocols.correlations.base import Demand, Ends, Half, Kind
from securemedian.mpc.protocols.correlations.kinds import (
    DaBits,
    PlaneOts,
    RandomOts,
    Tables,
    Triples,
)
from securemedian.mpc.protocols.ot.extension import BLOCK
from securemedian.mpc.protocols.ot.softspoken import SoftSpokenReceiver, SoftSpokenSender
from securemedian.mpc.protocols.party import Party, Session
from securemedian.mpc.protocols.protocol import OT_EXTENSIONS, ProtocolParams
from tests.parties import make_parties, run_both


def pair(extension: str = "softspoken") -> list[Party]:
    return [lanes[0] for lanes in make_parties(extension=extension)]


def test_triples_are_taken_in_both_roles_alike() -> None:
    """Else a single word would be stretched over the others of the other role."""
    parties = pair()
    with pytest.raises(LocalProtocolError, match="words taken as the sender"):
        run_both(lambda j: parties[j].pool.take(Triples(1), *((1, 4) if j == 0 else (4, 1))))


@dataclass(frozen=True)
class Products(Kind[tuple[Half, Half]]):
    """A kind of this test's own, with a correction.

    Its halves are XOR shares of the product of a receiver's bits and words that the sender chooses,
    all of them `value`.
    """

    value: int

    ots = 1
    corrected = True

    @property
    def memory(self) -> tuple[int, int]:
        return 8, 8

    def send(self, ends: Ends, items: int) -> Half:
        keys0, keys1 = ends.sender.extend(items)
        return keys0[:, 0].copy(), keys1[:, 0].copy()

    def correct(self, ends: Ends, half: Half) -> Half:
        keys0, keys1 = half
        ends.channel.send("products", keys0 ^ keys1 ^ np.uint64(self.value))
        return (keys0,)

    def receive(self, ends: Ends, items: int) -> Half:
        choices, keys = ends.receiver.extend(items)
        return boolean.unpack_bits(choices, items), keys[:, 0].copy()

    def finish(self, ends: Ends, half: Half) -> Half:
        choices, keys = half
        return choices, keys ^ choices * ends.channel.recv("products", np.uint64, keys.shape)

    def hand_out(self, party_id: int, sent: Half, received: Half) -> tuple[Half, Half]:
        return sent, received


@pytest.mark.parametrize("extension", OT_EXTENSIONS)
def test_a_kind_of_ones_own_needs_nothing_but_its_class(extension: str) -> None:
    """The pool makes it among others, over several blocks, and hands it out."""
    parties = pair(extension)
    demand = Demand({Products(5): (BLOCK + 1, 300), DaBits(8): (200, 200), Triples(1): (3, 3)})
    run_both(lambda j: parties[j].pool.reserve(demand))
    assert parties[0].pool.fingerprint == parties[1].pool.fingerprint
    made = parties[0].pool.ots
    ((sent,), _), (_, (choices, received)) = run_both(
        lambda j: parties[j].pool.take(
            Products(5), *((BLOCK + 1, 300) if j == 0 else (300, BLOCK + 1))
        )
    )
    assert (sent ^ received == choices * np.uint64(5)).all() and 0.4 < choices.mean() < 0.6
    bits = run_both(lambda j: parties[j].pool.take(DaBits(8), 200, 200))
    assert (ring.reduce(bits[0][1] + bits[1][1], 8) == bits[0][0] ^ bits[1][0]).all()
    assert parties[0].pool.ots == made


def test_kinds_are_made_in_the_order_of_their_names_and_numbers() -> None:
    """Both parties must agree on it, so it is part of the protocol."""
    kinds: list[Kind[Any]] = [
        *(Triples(1), Tables(4, 2), Tables(4, 1), Tables(3, 1)),
        *(RandomOts(8), PlaneOts(4), DaBits(64), DaBits(5)),
    ]
    ordered = sorted(kinds, key=lambda kind: kind.rank)
    assert ordered == [DaBits(5), DaBits(64), PlaneOts(4), RandomOts(8), *reversed(kinds[:4])]


def test_a_table_too_large_to_stock_is_our_own_mistake() -> None:
    parties = pair()
    with pytest.raises(LocalProtocolError, match="at most 64 bits"):
        run_both(lambda j: parties[j].pool.take(Tables(6, 2), 1, 1))


@pytest.mark.parametrize("extension", OT_EXTENSIONS)
def test_the_pool_is_filled_ahead_and_topped_up_on_the_spot(extension: str) -> None:
    parties = pair(extension)
    demand = Demand({Triples(1): (10, 10), Tables(3, 1): (200, 100)})
    run_both(lambda j: parties[j].pool.reserve(demand))
    made = parties[0].pool.ots
    run_both(lambda j: parties[j].pool.reserve(demand))
    # nothing was missing
    assert parties[0].pool.ots == parties[1].pool.ots == made
    run_both(lambda j: parties[j].pool.take(Triples(1), 10, 10))
    # taken from stock
    assert parties[0].pool.ots == made
    one, other = run_both(lambda j: parties[j].pool.take(Triples(1), 5000, 5000))
    assert parties[0].pool.ots > made
    assert ((one[2] ^ other[2]) == ((one[0] ^ other[0]) & (one[1] ^ other[1]))).all()


def test_no_tweak_is_ever_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every hash input of a session has its own (index, stream), and is consumed once.

    So it is over lanes, directions and kinds.
    """
    used: dict[str, set[tuple[int, int]]] = {"sender": set(), "receiver": set()}

    def record(role: str, index: int, stream: int, count: int) -> None:
        fresh = {(index + i, stream) for i in range(count)}
        assert not fresh & used[role]
        used[role] |= fresh

    def recording(role: str, original: Any) -> Any:
        def extend(self: Any, count: int, *width: int) -> Any:
            record(role, self.index, int(self.tweaks), count)
            return original(self, count, *width)

        return extend

    for role, cls in (("sender", SoftSpokenSender), ("receiver", SoftSpokenReceiver)):
        for name in ("extend", "extend_planes"):
            monkeypatch.setattr(cls, name, recording(role, getattr(cls, name)))
    # of a session of their own: its streams are counted from 0
    sides = make_parties(lanes=2, session_id=bytes(16))
    demands = [
        Demand({Triples(2): (9, 9), Tables(4, 2): (130, 40), DaBits(5): (10, 10)}),
        Demand({RandomOts(8): (300, 300)}),
    ]
    for lane in range(2):
        for demand in demands * 2:
            run_both(lambda j: sides[j][lane].pool.reserve(demand))  # noqa: B023
            run_both(lambda j: sides[j][lane].pool.take(Triples(2), 9, 9))  # noqa: B023
    assert (
        used["sender"] == used["receiver"]
        and len(used["sender"]) == sides[0][0].pool.ots + sides[0][1].pool.ots
    )
    assert {stream for _, stream in used["sender"]} == {0, 1, 2, 3}


@pytest.mark.parametrize("extension", OT_EXTENSIONS)
def test_stock_hands_nothing_out_twice(extension: str) -> None:
    parties = pair(extension)
    first, second = (
        run_both(lambda j: parties[j].pool.take(RandomOts(64), 100, 100)) for _ in range(2)
    )
    assert not set(first[0][0].keys0.tolist()) & set(second[0][0].keys0.tolist())


def test_a_lane_is_made_once() -> None:
    sides = make_parties(lanes=1)
    channels = [sides[j][0].channel for j in (0, 1)]
    sessions = run_both(lambda j: Session.establish(j, channels[j], bytes(16), ProtocolParams()))
    sessions[0].party(0, channels[0])
    with pytest.raises(LocalProtocolError, match="lane 0 was made before"):
        sessions[0].party(0, channels[0])
    assert "secrets" in repr(sessions[0])
