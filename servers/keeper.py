"""The keeper of a server's training run: S0 keeps it on disk between rounds, S1 has none."""

from typing import Any

import securemedian
from securemedian.mpc import ring
from securemedian.mpc.arrays import Float32s
from securemedian.mpc.params import RoundParams
from securemedian.mpc.pipeline import Outcome
from securemedian.mpc.training import Training, finish
from securemedian.servers import training
from securemedian.servers.database import DEFAULT_TRAINING
from securemedian.servers.register import Entry
from securemedian.servers.results import Result
from securemedian.servers.round_state import ServerRound
from securemedian.servers.store import Store
from securemedian.settings.keys import SigningKey
from securemedian.settings.receipts import SERVICE, Receipt, Record, digest_of


class TrainingKeeper:
    """The current training run, and what rounds make of it."""

    def __init__(self, party: int, store: Store, signing: SigningKey) -> None:
        self._party, self._signing = party, signing
        self._kept = store.load_training() if party == 0 else Training()

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

    def finish(self, entry: Entry, outcome: Outcome) -> Result:
        """Return what the protocol's outcome leaves, with this server's signature.

        At S0 the entry gets the training run after the round.
        """
        server_round = entry.server_round
        params, before = server_round.params, entry.before
        packed, cost = ring.pack(outcome.values, params.opened_bits), outcome.cost.to_dict()
        if params.result_to == "clients":
            entry.after = before.counted()
            return Result(self._receipt(server_round, b""), packed, cost)
        opened = params.method.public(outcome.values)
        if self._party == 0:
            total = sum(params.weights_of(server_round.included))
            entry.after, _ = finish(before, params, opened, total)
        receipt = self._receipt(server_round, digest_of(packed))
        return Result(receipt, packed, cost, params.method.outermost(opened))

    def _receipt(self, server_round: ServerRound, opened: bytes) -> Receipt:
        """Return the record of a round that has opened values of this digest, signed."""
        record = Record(
            service=SERVICE,
            version=securemedian.__version__,
            training=DEFAULT_TRAINING,
            round=server_round.round_id,
            number=server_round.number,
            params=server_round.params.digest,
            included=server_round.included,
            left_out=server_round.excluded,
            start=bytes.fromhex(server_round.asked.start),
            opened=opened,
        )
        return Receipt(record.encode()).signed(f"s{self._party}", self._signing)
