"""The training run of a server, from round to round: S0 keeps it on disk, S1 has none."""

import logging
from dataclasses import replace
from typing import Any

from securemedian.mpc import ring
from securemedian.mpc.params import RoundParams
from securemedian.mpc.pipeline import Outcome
from securemedian.servers import logs, training
from securemedian.servers.register import Entry
from securemedian.servers.store import Store
from securemedian.servers.training import Float32s, Training


class TrainingKeeper:
    """The training run in hand, and what a round makes of it."""

    def __init__(self, party: int, store: Store) -> None:
        self._party, self._store = party, store
        self._kept = store.load_training() if party == 0 else Training()

    def begin(
        self, params: RoundParams, range_: dict[str, Any], reset: bool, model: Float32s | None
    ) -> Training:
        """Return the training run that a new round starts from.

        It is kept once the round is open.
        """
        return training.begin(self._kept, params, range_, reset, model)

    def keep(self, changed: Training) -> None:
        """Make this the training run, on disk too if it has changed."""
        if self._party != 0 or changed is self._kept:
            return
        self._kept = changed
        try:
            self._store.save_training(changed)
        except OSError as error:
            # the round stands all the same; the next change tries again
            logs.event("training-not-saved", logging.ERROR, reason=str(error))

    def finish(self, entry: Entry, outcome: Outcome) -> None:
        """Put into the entry what the protocol gave, ready to be published."""
        params = entry.round.params
        entry.cost = outcome.cost.to_dict()
        if params.result_to == "clients":
            entry.share = ring.pack(outcome.values, params.ring_bits)
            entry.after = replace(entry.before, published=entry.before.number)
        elif self._party == 0:
            opened = params.method.public(outcome.values)
            total = sum(params.weights_of(entry.round.included))
            entry.after, entry.results = training.finish(entry.before, params, opened, total)
