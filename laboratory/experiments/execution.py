"""One run, carried out from its start to its end."""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from securemedian.clients.client import Client
from securemedian.clients.public import PublicSet
from securemedian.common.status import RoundStatus
from securemedian.laboratory import plaintext
from securemedian.laboratory.data import Dataset
from securemedian.laboratory.experiments import aggregation
from securemedian.laboratory.experiments.players import Collaborators, Players
from securemedian.laboratory.experiments.runs import Figures, Run, RunRecord, ServerCost
from securemedian.laboratory.servers import (
    Service,
    ShowStatus,
    client_config,
    differs,
    new_folder,
    servers_here,
)
from securemedian.mpc import canonical
from securemedian.mpc.arrays import Float32s
from securemedian.mpc.errors import SecureMedianError
from securemedian.mpc.protocols.prg import SEED_BYTES
from securemedian.mpc.rounds.exchange import Predictions
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.run_state import RunState

# called with the record so far, first and after every round
ShowRecord = Callable[[RunRecord], None]


class Diverged(SecureMedianError):
    """The error of a run with a value that is not a number: no round can follow."""

    code = "diverged"


# returns what all clients send for a published model (d,): updates (n, d) or predictions
Play = Callable[[Float32s], Float32s]

# returns the state after a round of these updates (n, d)
Combine = Callable[[RunState, Float32s], RunState]

# between two questions of a client to a server
POLL_S = 0.02


@dataclass(frozen=True)
class ExperimentServers:
    """Both servers, and the clients that this process plays."""

    service: Service
    clients: Sequence[Client]
    show: ShowStatus

    @classmethod
    @contextmanager
    def here(cls, clients: int, show: ShowStatus) -> Iterator[Self]:
        """Run both servers for so many clients while the context is open."""
        show(RoundStatus(phase="being started (the first start compiles)"))
        with (
            new_folder("experiment", "the servers' keys and logs") as folder,
            servers_here(folder, clients) as service,
            ExitStack() as stack,
        ):
            configs = [client_config(folder, name, POLL_S) for name in service.names]
            yield cls(service, [stack.enter_context(Client(one)) for one in configs], show)

    def round(
        self, params: RoundParams, play: Play, public: PublicSet | None = None, **opening: Any
    ) -> tuple[Float32s, ServerCost]:
        """Run a round that all clients submit to; return its first result (d,) and its cost.

        `opening` are further arguments of `Coordinator.open_round`. The published result is
        compared with the one computed in the clear: raises SecureMedianError if they differ. An
        error of `play` aborts the round and is raised again.
        """
        sent: dict[str, Float32s] = {}

        def submit(round_id: str, before: Published) -> None:
            # rounds of experiments are opened with a model, or need none
            assert before.model is not None
            updates = play(before.model)
            for client, update in zip(self.clients, updates, strict=True):
                client.public = public
                # attacks send what is beyond every range
                client.submit(update, round_id, saturate=True)
                sent[client.config.name] = update.reshape(-1)

        ended = self.service.round(params, submit, self.show, **opening)
        # the order in which the servers drew clients for clusters
        placed = np.stack([sent[name] for name in ended.status.included])
        if not ended.clear(placed):
            raise differs(ended.status.number)
        cost = ended.status.cost
        return ended.results[0], ServerCost(
            cost["seconds"], cost["ots"], cost["bytes_sent"], cost["bytes_received"]
        )


def carry_out(
    run: Run,
    rounds: int,
    data: Dataset,
    service: ExperimentServers | None = None,
    show: ShowRecord = lambda _: None,
    combine: Combine | None = None,
) -> RunRecord:
    """Train for `rounds` rounds, and return the record.

    Only runs that are `secure` need `service`. Others combine updates by `combine`, which is by
    default `combined`.
    """
    players = Collaborators(run, data) if run.collaboration else Players(run, data)
    state = RunState(run.policy, players.start(), run.policy.start(), optimiser=run.optimiser)
    record = RunRecord()
    show(record)
    while not record.covers(rounds):
        began = time.monotonic()
        try:
            if isinstance(players, Collaborators):
                state, cost, inference = _collaborate(run, state, players, service)
            else:
                state, cost, inference = _round(run, state, players, service, combine)
            model = _model(state)
            accuracy, networks = players.accuracy(model)
            digest, seconds = hashlib.sha256(model.data).hexdigest(), time.monotonic() - began
            figures = Figures(accuracy, digest, seconds, cost, networks, inference)
            record = replace(record, rounds=[*record.rounds, figures])
        except Diverged:
            record = replace(record, diverged=True)
        show(record)
    return record


# the state after a round, what the round cost the servers, and what membership inference reaches
After = tuple[RunState, ServerCost | None, dict[str, float]]


def _round(
    run: Run,
    before: RunState,
    players: Players,
    service: ExperimentServers | None,
    combine: Combine | None,
) -> After:
    """Run one more round of parameters; raise Diverged if a value is no longer a number."""

    def guessed(updates: Float32s) -> Float32s:
        return _model(combined(run, before, updates, "the attackers' guess")[0])

    def play(model: Float32s) -> Float32s:
        updates = players.updates(model, before.number, guessed)
        # a client refuses to submit these
        if np.isnan(updates).any():
            raise Diverged(f"an update is not a number: round {before.number + 1}; lower the rate")
        return updates

    model, cost = _model(before), None
    # an overflow is found below
    with np.errstate(over="ignore", invalid="ignore"):
        if run.secure:
            assert service is not None
            params, first = run.params(model.size), dict[str, Any]()
            if before.published == 0:
                first = {
                    "model": model,
                    "range_policy": before.policy,
                    "optimiser": before.optimiser,
                }
            result, cost = service.round(params, play, **first)
            after = before.after(result, params.form.buckets)
        elif combine:
            after = combine(before, play(model))
        else:
            after, _ = combined(run, before, play(model))
    if not (np.isfinite(_model(after)).all() and np.isfinite(after.scale).all()):
        raise Diverged(
            f"the model or its range is not finite any more: round {after.number}; lower the rate"
        )
    inference = players.inference(model, _model(after), before.number) if run.inference else {}
    return after, cost, inference


def combined(
    run: Run, before: RunState, updates: Float32s, tossed: str = "coin"
) -> tuple[RunState, list[bool]]:
    """Return the state after a round in the clear, and whose updates (n, d) pass its check.

    Raises ConfigError if too few pass.
    """
    if run.method not in aggregation.SECURE:
        weights = run.options.get("weights", ())
        after = before.after(aggregation.combine(run.method, updates, run.attackers, weights))
        return after, [True] * len(updates)
    params = before.settled(run.params(updates.shape[1]))
    # as good as tossed, and the same when the run is carried out again
    coin = canonical.digest(tossed, run.seed, before.number)[:SEED_BYTES]
    published = before.published_for(params)
    passed = plaintext.passed(updates, params, published, coin, run.names)
    names = [name for name, ok in zip(run.names, passed, strict=True) if ok]
    params = params.without(len(updates) - len(names))
    params.check_included(names)
    weights = params.method.weights_of(names)
    results = plaintext.published(updates[passed], params, published, weights, coin=coin)
    shortened = [bool(params.method.shortened(one, published)) for one in updates[passed]]
    after = before.after(results[0], params.form.buckets)
    if by := params.method.adapts:
        after = after.adapted(before, by, sum(shortened), len(names))
    return after, passed


def _collaborate(
    run: Run, before: RunState, players: Collaborators, service: ExperimentServers | None
) -> After:
    """Run one more round of predictions, where the run's model stands for those of all clients."""
    state, cost = _model(before), None
    if run.method == aggregation.ALONE:
        after = players.alone(state, before.number)
        return replace(before, model=after, published=before.number), None, {}
    sent = players.predictions(state, before.number)
    clients, _, classes = sent.shape
    special = players.public.round(classes)
    flat = sent.reshape(clients, -1)
    if run.method in aggregation.PREDICTED:
        combined = aggregation.PREDICTED[run.method](flat, run.attackers, classes)
        exchange = Predictions(players.public.digest, classes)
        labels = exchange.result(combined).astype(np.float32)
    else:
        params = run.params(flat.shape[1], special)
        if run.secure:
            assert service is not None
            labels, cost = service.round(params, lambda _: sent, players.public)
        else:
            labels = plaintext.published(flat, params, before.published_for(params))[0]
    after = players.after(state, labels, before.number)
    inference = players.inferred(sent, labels) if run.inference else {}
    return replace(before, model=after, published=before.number), cost, inference


def _model(state: RunState) -> Float32s:
    # every run starts with a model
    assert state.model is not None
    return state.model
