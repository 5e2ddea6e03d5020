"""The keeper of a server's training run: S0 keeps it on disk between rounds, S1 has none."""

from dataclasses import replace
from typing import Any

from securemedian.mpc import ring
from securemedian.mpc.arrays import Float32s
from securemedian.mpc.params import RoundParams
from securemedian.mpc.pipeline import Outcome
from securemedian.servers import training
from securemedian.servers.register import Entry
from securemedian.servers.results import Result
from securemedian.servers.store import Store
from securemedian.servers.training import Training


class TrainingKeeper:
    """The current training run, and what rounds make of it."""

    def __init__(self, party: int, store: Store) -> None:
        self._party = party
        self._kept = _current(store) if party == 0 else Training()

    @property
    def model(self) -> Float32s | None:
        """The global model of the current training run, shape (d,), if there is one."""
        return self._kept.model

    def begin(
        self,
        params: RoundParams,
        range_options: dict[str, Any],
        reset: bool,
        model: Float32s | None,
        optimiser_options: dict[str, Any],
    ) -> Training:
        """Return the training run that a new round starts from.

        Once the round is open, `keep` makes it the current one.
        """
        return training.begin(self._kept, params, range_options, reset, model, optimiser_options)

    def keep(self, changed: Training) -> None:
        """Make `changed` the current training run, once `Register.commit` has stored it as such."""
        self._kept = changed

    def finish(self, entry: Entry, outcome: Outcome) -> None:
        """Put the protocol's outcome into the entry, ready to be published."""
        params = entry.server_round.params
        result = Result(outcome.cost.to_dict())
        packed = ring.pack(outcome.values, params.opened_bits)
        if params.result_to == "clients":
            entry.after = replace(entry.before, published=entry.before.number)
            entry.result = replace(result, share=packed)
            return
        opened = params.method.public(outcome.values)
        result = replace(result, opened=packed, outermost=params.method.outermost(opened))
        if self._party == 0:
            total = sum(params.weights_of(entry.server_round.included))
            entry.after, results = training.finish(entry.before, params, opened, total)
            result = replace(result, results=results)
        entry.result = result


def _current(store: Store) -> Training:
    """Return the current training run, also that of a release that had no database."""
    database = store.database
    if name := database.current_training():
        return store.load_training(name)
    if old := store.load_old_training():
        name = store.save_training(old)
        with database.transaction():
            database.set_current_training(name)
        store.forget_old_training()
        return old
    return Training()
