"""The steps of a round on one lane, each after it has made the correlations that it lacks."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from securemedian.mpc.arrays import Result, RingShare, XorBits
from securemedian.mpc.errors import PeerProtocolError
from securemedian.mpc.protocols import dealing, ring, share
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.prg import Entropy, os_entropy
from securemedian.mpc.rounds.cutting import Does, Step
from securemedian.mpc.rounds.lanes import exchange_verdicts
from securemedian.mpc.rounds.methods.base import Chunk, Survey
from securemedian.mpc.rounds.methods.reveal import open_bits
from securemedian.mpc.rounds.params import RoundParams


@dataclass
class Work:
    """The inputs of a round's steps at one party, and all that they have found so far."""

    params: RoundParams
    # of all clients, with their public weights, and their groups where these are visible
    uploads: Sequence[share.Upload] = field(repr=False)
    weights: Sequence[int]
    # the most comparisons that a lane runs at once
    batch: int
    groups: Sequence[int] = ()
    # for tosses
    entropy: Entropy = os_entropy
    # the seed of this party's noise
    noise: bytes = field(default=b"", repr=False)
    # the coin of the round, the sum of all surveys, and shares of what is judged of it
    coin: bytes = field(default=b"", repr=False)
    surveyed: RingShare | None = field(default=None, repr=False)
    verdicts: XorBits | None = field(default=None, repr=False)
    # whether all is as the client's encoding makes it, per client
    passed: list[bool] = field(default_factory=list)
    # (results, dim)
    values: Result | None = field(default=None, repr=False)

    def do(self, party: Party, step: Step) -> Any:
        """Do a step on a lane. Those that lanes do in turns are for `gather`."""
        match step.does:
            case Does.TOSS:
                self.coin = dealing.toss(party.channel, party.number, self.entropy)
            case Does.SURVEY:
                return _surveyor(self.params, step.checking).survey(party, self._chunk(step))
            case Does.JUDGE:
                judges = _surveyor(self.params, step.checking)
                party.pool.reserve(judges.judge_demand(self.weights, self.params.max_clients))
                assert self.surveyed is not None
                self.verdicts = judges.judge(party, self.surveyed, self._chunk(step))
            case Does.OPEN:
                assert self.verdicts is not None
                opened = open_bits(party, self.verdicts, len(self.weights))
                self.passed = [bool(bit) for bit in opened]
            case Does.CHECK:
                check = self.params.form.values
                assert check is not None
                party.pool.reserve(check.demand(step.clients * step.dim))
                uploads = self.uploads[step.first : step.first + step.clients]
                ends, weights = (step.begin, step.end), [1] * step.clients
                chunk = self.params.chunk(uploads, weights, *ends, self.batch)
                return check.outside(party, chunk)
            case Does.CONFIRM:
                mine, theirs = exchange_verdicts(party, self.passed)
                if (mine != theirs).any():
                    raise PeerProtocolError(
                        "the two servers disagree on which clients' values are in range: no "
                        "result was opened"
                    )
            case Does.COMPUTE:
                return self._compute(party, self._chunk(step))

    def gather(self, steps: Sequence[Step], found: Sequence[Any]) -> None:
        """Take what all steps of a kind have found, which lanes did in turns."""
        match steps[0].does:
            case Does.SURVEY:
                self.surveyed = RingShare(np.stack(found).sum(axis=0, dtype=np.uint64))
            case Does.CHECK:
                failed = np.zeros(len(self.uploads), np.bool_)
                for step, outside in zip(steps, found, strict=True):
                    failed[step.first : step.first + step.clients] |= outside
                self.passed = [not client for client in failed]
            case Does.COMPUTE:
                # numpy forgets which of the two the chunks were; they are all the same
                self.values = cast(Result, np.concatenate(found, axis=1))

    def _chunk(self, step: Step) -> Chunk:
        given = self.uploads, self.weights, step.begin, step.end, self.batch
        chunk = self.params.chunk(*given, groups=self.groups, coin=self.coin, noise=self.noise)
        return replace(chunk, verdicts=self.verdicts)

    def _compute(self, party: Party, chunk: Chunk) -> Result:
        """Return the result of a chunk; if groups are visible, that of each group as a row.

        The row of a group of fewer than `min_clients` is zeros, and nothing is computed for it.
        """
        method = self.params.method
        if not method.visible:
            return self._computed(party, chunk)
        dtype = ring.dtype(self.params.form.opened_bits)
        results = np.zeros((method.groups, chunk.dim), dtype)
        for group in range(method.groups):
            members = [place for place, own in enumerate(chunk.groups) if own == group]
            if len(members) >= chunk.min_clients:
                part = replace(
                    chunk,
                    uploads=[chunk.uploads[place] for place in members],
                    weights=[chunk.weights[place] for place in members],
                    groups=(),
                )
                (results[group],) = method.public(self._computed(party, part))
        return cast(Result, results)

    def _computed(self, party: Party, chunk: Chunk) -> Result:
        """Return the result of clients who are one group.

        If their comparisons are cut into batches (`Method.batch_limit`), each batch makes its own
        correlations, so that the memory of a lane stays bounded.
        """
        method = self.params.method
        if method.batch_limit(chunk) is None:
            party.pool.reserve(method.demand(chunk.weights, chunk.dim, chunk.max_clients))
        return method.compute(party, chunk)


def _surveyor(params: RoundParams, checking: bool) -> Survey:
    """Return what is asked for surveys: the check of whole uploads, or the method."""
    found = params.form.check if checking else params.form.survey
    assert found is not None
    return found


def evenly(params: RoundParams, clients: int) -> list[int]:
    """Return visible groups of about the same size, for what is made or predicted beforehand."""
    return [client % params.method.groups for client in range(clients)]


def demand(params: RoundParams, weights: Sequence[int], dim: int) -> Demand:
    """Return the correlations that `dim` coordinates of clients with these weights need.

    If groups are visible, they are those of groups of about the same size.
    """
    if not params.method.visible:
        return params.method.demand(weights, dim, params.max_clients)
    total, groups = Demand(), params.method.groups
    for group in range(groups):
        if len(members := weights[group::groups]) >= params.min_clients:
            total = total + params.method.demand(members, dim, params.max_clients)
    return total


def step_demand(params: RoundParams, weights: Sequence[int], step: Step) -> Demand:
    """Return the correlations that a step needs for clients with these weights."""
    match step.does:
        case Does.CHECK:
            assert params.form.values is not None
            return params.form.values.demand(step.clients * step.dim)
        case Does.JUDGE:
            judge = _surveyor(params, step.checking)
            return judge.judge_demand(weights, params.max_clients)
        case Does.COMPUTE:
            return demand(params, weights, step.dim)
        case _:
            return Demand()


def round_demand(params: RoundParams, weights: Sequence[int], dim: int) -> Demand:
    """Return the correlations that a round of `dim` coordinates needs, and the check before it."""
    total = demand(params, weights, dim)
    for survey in (params.form.survey, params.form.check):
        if survey:
            total = total + survey.judge_demand(weights, params.max_clients)
    if params.form.values:
        total = total + params.form.values.demand(len(weights) * dim)
    return total
