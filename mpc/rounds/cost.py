"""The cost of a round: OTs, bytes, rounds and seconds, counted over all lanes of a party."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.party import Party

T = TypeVar("T")


@dataclass(frozen=True)
class Cost:
    """The counts of one party over all its lanes.

    Fields named `preprocessing_` count the making of correlations, which needs no input. Fields
    named `checking_` count the check of the clients' uploads, including the correlations made for
    it. The rest is online. Bytes, messages and rounds are those of all three; `seconds` are those
    of the round's run alone, before which `fill` and the checks are done.
    """

    # in both directions together
    ots: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    messages: int = 0
    # of the lane that has most
    rounds: int = 0
    preprocessing_bytes_sent: int = 0
    preprocessing_bytes_received: int = 0
    preprocessing_rounds: int = 0
    checking_bytes_sent: int = 0
    checking_bytes_received: int = 0
    checking_rounds: int = 0
    # part of `seconds`: mean over the lanes
    preprocessing_seconds: float = 0.0
    # the rest of `seconds`
    online_seconds: float = 0.0
    # part of `online_seconds`: reading and adding the uploads, which needs no peer; mean over lanes
    uploads_seconds: float = 0.0
    # from the start of the round's run to its end
    seconds: float = 0.0
    # the cost of `fill` before that
    ahead_seconds: float = 0.0
    # the cost of the checks of uploads before that
    checking_seconds: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        """Return the cost of what was done one after the other."""
        return Cost(**{name: value + getattr(other, name) for name, value in asdict(self).items()})

    def after(self, earlier: "Cost") -> "Cost":
        """Return the cost with what was done before: by `fill`, or by checks of the uploads."""
        sums = {
            name: value + getattr(self, name)
            for name, value in asdict(earlier).items()
            if type(value) is int or name in ("ahead_seconds", "checking_seconds")
        }
        return replace(self, **sums)

    def as_checking(self) -> "Cost":
        """Return what was counted, all of it, as the cost of a check."""
        return Cost(
            ots=self.ots,
            bytes_sent=self.bytes_sent,
            bytes_received=self.bytes_received,
            messages=self.messages,
            rounds=self.rounds,
            checking_bytes_sent=self.bytes_sent,
            checking_bytes_received=self.bytes_received,
            checking_rounds=self.rounds,
            checking_seconds=self.seconds,
        )

    def as_ahead(self) -> "Cost":
        """Return what was counted, all of it, as the cost of preprocessing ahead of a round."""
        return replace(
            self,
            preprocessing_bytes_sent=self.bytes_sent,
            preprocessing_bytes_received=self.bytes_received,
            preprocessing_rounds=self.rounds,
            preprocessing_seconds=0.0,
            online_seconds=0.0,
            seconds=0.0,
            ahead_seconds=self.seconds,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all counts by name, and those of the online part."""
        online = {
            f"online_{name}": getattr(self, name)
            - getattr(self, f"preprocessing_{name}")
            - getattr(self, f"checking_{name}")
            for name in ("bytes_sent", "bytes_received", "rounds")
        }
        return asdict(self) | online


def joined(costs: Sequence[Cost]) -> Cost:
    """Return the cost of parallel work: the most rounds and seconds, and sums of all else."""
    return Cost(
        **{
            name: (sum if type(value) is int and "rounds" not in name else max)(
                getattr(cost, name) for cost in costs
            )
            for name, value in asdict(costs[0]).items()
        }
    )


class Meter:
    """A meter of what a party's lanes do, which both parties make before either of them sends."""

    def __init__(self, parties: Sequence[Party]) -> None:
        self._parties = parties
        for party in parties:
            party.channel.restart_rounds()
        self._before = [_counters(party) for party in parties]
        self._start = time.perf_counter()

    def read(self) -> Cost:
        """Return the cost of all lanes so far."""
        seconds = time.perf_counter() - self._start
        lanes = [
            {name: now - old[name] for name, now in _counters(party).items()}
            for party, old in zip(self._parties, self._before, strict=True)
        ]
        total = {name: sum(lane[name] for lane in lanes) for name in lanes[0]}
        for name in ("preprocessing_seconds", "uploads_seconds"):
            total[name] /= len(lanes)
        longest = max(lanes, key=lambda lane: lane["rounds"])
        total |= {name: longest[name] for name in ("rounds", "preprocessing_rounds")}
        return Cost(
            **total, online_seconds=seconds - total["preprocessing_seconds"], seconds=seconds
        )


def _counters(party: Party) -> dict[str, Any]:
    traffic, spent = party.channel.traffic, party.pool.spent
    return {
        "ots": party.pool.ots,
        "bytes_sent": traffic.bytes_sent,
        "bytes_received": traffic.bytes_received,
        "messages": traffic.messages_sent,
        "rounds": traffic.rounds,
        "uploads_seconds": party.uploads_seconds,
        **{f"preprocessing_{name}": value for name, value in vars(spent).items()},
    }


def counted(channel: Channel, work: Callable[[], T]) -> tuple[T, Cost]:
    """Return what `work` returns, and what it did on a channel, which counts rounds from 0."""
    start, before = time.perf_counter(), replace(channel.traffic)
    channel.restart_rounds()
    found, traffic = work(), channel.traffic
    return found, Cost(
        bytes_sent=traffic.bytes_sent - before.bytes_sent,
        bytes_received=traffic.bytes_received - before.bytes_received,
        messages=traffic.messages_sent - before.messages_sent,
        rounds=traffic.rounds,
        seconds=time.perf_counter() - start,
    )
