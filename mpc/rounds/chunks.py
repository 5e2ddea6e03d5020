"""The work of one lane on one chunk, after it has made the correlations that the chunk lacks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Result, RingShare, XorBits
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds.cutting import Does, Piece, Step, surveyor
from securemedian.mpc.rounds.methods.base import Chunk, Survey
from securemedian.mpc.rounds.params import RoundParams


def check_piece(
    party: Party,
    params: RoundParams,
    piece: Piece,
    uploads: Sequence[share.Upload],
    batch: int,
) -> NDArray[np.bool_]:
    """Return whose values in a piece are out of range, after making the correlations it lacks.

    `uploads` are those of all clients, of whom the piece has some.
    """
    chosen = uploads[piece.clients]
    assert params.form.values is not None
    party.pool.reserve(params.form.values.demand(len(chosen) * piece.dim))
    chunk = params.chunk(chosen, [1] * len(chosen), piece.begin, piece.end, batch)
    return params.form.values.outside(party, chunk)


def compute(party: Party, params: RoundParams, chunk: Chunk) -> Result:
    """Return the result of one chunk on one lane, after making the correlations that it lacks.

    If the comparisons of many clients are cut into batches (`Method.batch_limit`), each batch makes
    its own correlations, so that the memory of a lane stays bounded.
    """
    if params.method.visible:
        return _compute_groups(party, params, chunk)
    return _compute(party, params, chunk)


def _compute(party: Party, params: RoundParams, chunk: Chunk) -> Result:
    method = params.method
    if method.batch_limit(chunk) is None:
        party.pool.reserve(method.demand(chunk.weights, chunk.dim, chunk.max_clients))
    return method.compute(party, chunk)


def _compute_groups(party: Party, params: RoundParams, chunk: Chunk) -> Result:
    """Return the result of each group of a chunk, computed on its own clients, as a row.

    The row of a group of fewer than `min_clients` is zeros, and nothing is computed for it.
    """
    bits = params.form.opened_bits
    results = np.zeros((params.method.groups, chunk.dim), ring.dtype(bits))
    for group in range(params.method.groups):
        members = [place for place, own in enumerate(chunk.groups) if own == group]
        if len(members) >= chunk.min_clients:
            part = replace(
                chunk,
                uploads=[chunk.uploads[place] for place in members],
                weights=[chunk.weights[place] for place in members],
                groups=(),
            )
            (results[group],) = params.method.public(_compute(party, params, part))
    return cast(Result, results)


def evenly(params: RoundParams, clients: int) -> list[int]:
    """Return visible groups of about the same size, for what is made or predicted beforehand."""
    return [client % params.method.groups for client in range(clients)]


def judge(party: Party, judges: Survey, surveyed: RingShare, chunk: Chunk) -> XorBits:
    """Return the verdicts of a survey, after making the correlations that they lack."""
    party.pool.reserve(judges.judge_demand(chunk.weights, chunk.max_clients))
    return judges.judge(party, surveyed, chunk)


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
            judge = surveyor(params, step.checking)
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
