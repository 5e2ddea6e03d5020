"""The runs of S0, from round to round, and the receipts of both servers.

docs/protocols.md, section 7.1; the paper's Algorithm 3.
"""

import re
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, cast

import numpy as np

from securemedian.common.keys import SigningKey
from securemedian.common.receipts import SERVICE, Receipt, Record, digest_of
from securemedian.common.status import DEFAULT_COHORT
from securemedian.common.versions import RECEIPT, VOTE
from securemedian.mpc.arrays import Float32s, PublicValues
from securemedian.mpc.errors import ConfigError, InputError, quoted
from securemedian.mpc.protocols import ring
from securemedian.mpc.rounds.optimiser import NoOptimiser, Optimiser, optimiser_from
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.path import Path
from securemedian.mpc.rounds.pipeline import Outcome
from securemedian.mpc.rounds.ranges.base import RangePolicy
from securemedian.mpc.rounds.ranges.registry import policy_from
from securemedian.mpc.rounds.run_state import RunState, finish
from securemedian.servers.machine.round import ServerRound
from securemedian.servers.storage.store import Result

_REQUEST = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True)
class Opening:
    """The fields with which a coordinator opens a round."""

    # `RoundParams.to_dict`, with clients' names
    params: dict[str, Any]
    # the range policy and its options; {} keeps the current one
    range: dict[str, Any]
    # whether a new run begins, from the model that S0 has
    reset: bool = False
    # whether the run goes on with the given model instead of its own, and with its range
    keep_range: bool = False
    # the optimiser and its options; {} keeps the current one
    optimiser: dict[str, Any] = field(default_factory=dict)
    # an id that the caller has drawn, 32 hex digits: a repeated request gets the same round
    request: str = ""
    # the name of the cohort
    cohort: str = DEFAULT_COHORT
    # the names of the clients that may take part; all of the cohort if it is empty
    participants: list[str] = field(default_factory=list)
    # whether other clients may take part than in an earlier attempt that may have opened values
    release: bool = False
    # the text of the form of clients' models (`common.model_form`); "" keeps that of the run
    model_form: str = ""

    def __post_init__(self) -> None:
        if self.request and not _REQUEST.fullmatch(self.request):
            raise ConfigError(
                f"invalid `request`: {quoted(self.request)}; draw 32 hex digits, or leave it empty"
            )


def begin(
    kept: RunState,
    params: RoundParams,
    range_options: dict[str, Any],
    reset: bool,
    model: Float32s | None,
    optimiser_options: dict[str, Any] | None = None,
) -> RunState:
    """Return the run that a round starts from.

    A given `model`, or `reset`, begins a new run: with the policy's first scale, no moments of the
    optimiser, and t = 1. Within a run t goes on; another policy may begin with its first scale
    (`take_over`), and another kind of optimiser begins without moments. A round that exchanges no
    parameters counts and changes nothing else. With several groups `model` has a row per group.
    Raises ConfigError if the range or the model that the round needs is missing or not usable, or
    is given where the round has none. It also does so if the optimiser would not learn the result.
    Raises InputError if the model does not fit the round.
    """
    if params.exchange.fixed is not None:
        if model is not None or range_options or optimiser_options:
            raise ConfigError(
                "a round of this exchange has no model, range or optimiser, because clients "
                f"keep models of their own: {params.exchange.name}; leave them out"
            )
        return RunState() if reset else kept
    groups = params.method.groups
    if groups == 1 and not (kept.groups and model is None):
        return _begin(kept, params, range_options, reset, model, optimiser_options)
    models = [None] * groups if model is None else list(model)
    if model is None and len(kept.groups) != groups:
        raise ConfigError(
            f"a round of groups = {groups} needs a model for each: {len(kept.models)} are kept "
            "here; give them when opening, or change groups"
        )
    if model is not None and (model.ndim != 2 or len(model) != groups):
        raise InputError(
            f"a round of {groups} groups needs the global models as float32 ({groups}, "
            f"{params.dim}): {model.dtype} {model.shape}; change them or groups"
        )
    before = kept.groups if model is None else [kept] * groups
    runs = [
        _begin(run, params, range_options, reset, one, optimiser_options)
        for run, one in zip(before, models, strict=True)
    ]
    if all(run is old for run, old in zip(runs, before, strict=True)):
        return kept
    return RunState.of_groups(runs)


def _begin(
    kept: RunState,
    params: RoundParams,
    range_options: dict[str, Any],
    reset: bool,
    model: Float32s | None,
    optimiser_options: dict[str, Any] | None = None,
) -> RunState:
    """Return the run of one model that a round starts from, as `begin` does."""
    fresh = reset or model is not None
    if model is None:
        model = kept.model
        if reset and not params.form.buckets and model is not None and model.size != params.dim:
            # a new run of another size: its first result becomes its model
            model = None
    policy = policy_from(range_options) if range_options or fresh else kept.policy
    scale = policy.start() if fresh else policy.take_over(kept.scale, kept.policy)
    _check_model(model, params)
    if params.form.buckets:
        _check_range(policy, scale, params.form.buckets)
    changed = optimiser_options or fresh
    optimiser = optimiser_from(optimiser_options or {}) if changed else kept.optimiser
    _check_optimiser(optimiser, params)
    if not fresh and (policy, optimiser) == (kept.policy, kept.optimiser):
        return kept
    goes_on = not fresh and type(optimiser) is type(kept.optimiser)
    return RunState(
        policy,
        model,
        scale,
        0 if fresh else kept.published,
        optimiser,
        kept.moments if goes_on else None,
        None if fresh else kept.bound,
    )


def _check_range(policy: RangePolicy, scale: Float32s, buckets: int) -> None:
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise ConfigError(
            f"the bucket range is not finite and above 0 in float32: policy {policy.name!r}; "
            "open with reset"
        )
    policy.buckets(scale, buckets)


def _check_optimiser(optimiser: Optimiser, params: RoundParams) -> None:
    if params.method.result_to == "clients" and not isinstance(optimiser, NoOptimiser):
        raise ConfigError(
            "the optimiser takes its step from the result, which only the clients learn: "
            f"{optimiser.name}; leave it out, or let the servers learn the result"
        )


def _check_model(model: Float32s | None, params: RoundParams) -> None:
    if model is None:
        if params.form.buckets:
            raise ConfigError(
                "a round on buckets needs a global model: S0 keeps none; give one when opening "
                "(--model FILE.npy, which `securemedian init` makes)"
            )
        return
    if model.dtype != np.float32 or model.shape != (params.dim,):
        raise InputError(
            f"the global model must be float32 ({params.dim},): {model.dtype} {model.shape}; "
            "change it or `dim`, or start over with `reset`"
        )
    if not np.isfinite(model).all():
        raise InputError("the global model is not finite: NaN or infinite values; give another one")


def begin_as_asked(
    kept: RunState, opening: Opening, params: RoundParams, model: Float32s | None
) -> RunState:
    """Return the run that S0 starts a new round from, where `kept` is the cohort's current one.

    Raises ConfigError if the range is to be kept without a model or with a `reset`. Raises
    InputError if it is that of a model of another size, and what `begin` raises.
    """
    if opening.keep_range:
        if model is None or opening.reset:
            raise ConfigError(
                "keeping the range goes with the model that the run continues with: keep_range "
                "with a reset or without a model; give that model, and no reset"
            )
        of = np.stack(kept.models) if kept.groups else kept.model
        if of is not None and of.shape != model.shape:
            raise InputError(
                f"the kept range is that of a model of shape {of.shape}: this one has shape "
                f"{model.shape}; open without keeping the range"
            )
        runs = [replace(run, model=row) for run, row in zip(kept.groups, model, strict=False)]
        kept, model = RunState.of_groups(runs) if runs else replace(kept, model=model), None
    return begin(kept, params, opening.range, opening.reset, model, opening.optimiser)


def finish_round(
    server_round: ServerRound, before: RunState, outcome: Outcome, signing: SigningKey
) -> tuple[Result, RunState | None]:
    """Return the result of a round, signed by this server, and at S0 the run that it leaves."""
    params, method = server_round.params, server_round.params.method
    packed, cost = ring.pack(outcome.values, params.form.opened_bits), outcome.cost.to_dict()
    if params.method.result_to == "clients":
        return Result(receipt_of(server_round, b"", signing), packed, cost), before.counted()
    opened, groups, after = method.public(outcome.values), server_round.groups, None
    if server_round.party == 0:
        count = len(server_round.included)
        total = sum(params.method.weights_of(server_round.included))
        after, _ = finish(before, server_round.computed, opened, total, groups)
        if by := method.adapts:
            after = after.adapted(before, by, by.clipped(opened), count)
    published = params.published_groups(opened, groups)
    with_result = PublicValues(opened[published]) if method.groups > 1 else opened
    result = Result(
        receipt_of(server_round, digest_of(packed), signing),
        packed,
        cost,
        params.form.outermost(with_result),
        unchanged_groups=[one for one in range(method.groups) if one not in published],
        coin=outcome.coin.hex(),
    )
    return result, after


def finish_run(
    server_round: ServerRound,
    before: RunState,
    path: Path | None,
    earlier: Result | None,
    outcome: Outcome,
    signing: SigningKey,
) -> tuple[Result, RunState | None]:
    """Return what a run of the protocol leaves: the result of the round, or of one of its votes.

    In a round of several votes clients know the `path`, and the runs before have left `earlier`.
    The record of a vote has `Path.digest` where that of the round has the digest of its result.
    """
    if path is None:
        return finish_round(server_round, before, outcome, signing)
    path, cost = path.after(cast(PublicValues, outcome.values)), outcome.cost.to_dict()
    if earlier:
        cost = {name: count + earlier.cost[name] for name, count in cost.items()}
    if not path.done:
        receipt = receipt_of(server_round, path.digest, signing, VOTE)
        return Result(receipt, path.saved(), cost), None
    outcome = replace(outcome, values=path.result)
    result, after = finish_round(server_round, before, outcome, signing)
    return replace(result, cost=cost), after


def path_of(here: ServerRound, result: Result | None) -> Path:
    """Return the path that clients know, of what the latest run has left.

    Raises ConfigError if that has begun otherwise.
    """
    path = Path.begin(here.params)
    if here.level and result:
        # that of the vote under way has been computed, and is not told
        computed = bool(here.signed)
        path = Path.restored(here.params, here.level + computed, result.values)
        path = path.before() if computed else path
    if here.level and path.digest.hex() != here.path:
        raise ConfigError(
            f"the stored digits are not those that clients were told: {here.round_id}; restore "
            "the state folder from a backup"
        )
    return path


def receipt_of(
    server_round: ServerRound, opened: bytes, signing: SigningKey, version: int = RECEIPT
) -> Receipt:
    """Return the record of a round that has opened values of this digest, signed."""
    asked, spent = server_round.asked, server_round.spent_after
    record = Record(
        service=SERVICE,
        version=version,
        cohort=server_round.cohort,
        round=server_round.round_id,
        number=server_round.number,
        params=server_round.params.to_dict(),
        included=server_round.included,
        groups=server_round.groups,
        left_out=server_round.excluded,
        start=bytes.fromhex(asked.start),
        opened=opened,
        participants=asked.participants,
        released=asked.release,
        one_malicious_server=asked.one_malicious_server,
        runs=server_round.runs,
        zcdp_rho=spent if isfinite(spent) else None,
    )
    return Receipt(record.encode()).signed(f"s{server_round.party}", signing)
