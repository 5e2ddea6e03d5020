"""The runs of S0's cohorts between rounds, and the receipts of both servers."""

from dataclasses import replace
from math import isfinite

import numpy as np

from securemedian.common.keys import SigningKey
from securemedian.common.receipts import SERVICE, Receipt, Record, digest_of
from securemedian.common.versions import RECEIPT
from securemedian.mpc.arrays import Float32s, PublicValues
from securemedian.mpc.errors import ConfigError, InputError
from securemedian.mpc.protocols import ring
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Outcome
from securemedian.mpc.rounds.run_state import RunState, finish
from securemedian.servers.machine.round import ServerRound
from securemedian.servers.rounds.register import Entry
from securemedian.servers.rounds.run_start import Opening, begin
from securemedian.servers.storage.store import Result, Store


class RunKeeper:
    """Keeps the current run of each cohort, and finishes rounds. S1 has no runs."""

    def __init__(self, party: int, store: Store, signing: SigningKey) -> None:
        self._party, self._signing = party, signing
        self._kept: dict[str, RunState] = {}
        if party == 0:
            for cohort, name in store.database.current_runs().items():
                self._kept[cohort] = store.read_run(name)

    def current(self, cohort: str) -> RunState:
        return self._kept.get(cohort, RunState())

    def begin(self, opening: Opening, params: RoundParams, model: Float32s | None) -> RunState:
        """Return the run that a new round starts from; once it is open, `keep` makes it current.

        Raises ConfigError if the range is to be kept without a model or with a `reset`, InputError
        if it is that of a model of another size, and what `run_start.begin` raises.
        """
        kept, reset = self.current(opening.cohort), opening.reset
        if opening.keep_range:
            kept, model = _with_model(kept, model, reset), None
        return begin(kept, params, opening.range, reset, model, opening.optimiser)

    def keep(self, cohort: str, changed: RunState) -> None:
        """Make `changed` the current run, once `Register.commit` has stored it as such."""
        self._kept[cohort] = changed

    def finish(self, entry: Entry, outcome: Outcome) -> Result:
        """Return the round's result, signed by this server, and set the entry's next run at S0."""
        server_round = entry.server_round
        params, before = server_round.params, entry.before
        packed, cost = ring.pack(outcome.values, params.opened_bits), outcome.cost.to_dict()
        if params.result_to == "clients":
            entry.after = before.counted()
            return Result(self._receipt(server_round, b""), packed, cost)
        opened, groups = params.method.public(outcome.values), server_round.groups
        if self._party == 0:
            total = sum(params.weights_of(server_round.included))
            after, _ = finish(before, server_round.computed, opened, total, groups)
            clipped = params.method.clipped(opened)
            entry.after = after.adapted(before, params.method, clipped, len(server_round.included))
        receipt = self._receipt(server_round, digest_of(packed))
        method, published = params.method, params.published_groups(opened, groups)
        kept = [group for group in range(method.groups) if group not in published]
        with_result = PublicValues(opened[published]) if method.groups > 1 else opened
        outermost = method.outermost(with_result)
        return Result(
            receipt, packed, cost, outermost, unchanged_groups=kept, coin=outcome.coin.hex()
        )

    def _receipt(self, server_round: ServerRound, opened: bytes) -> Receipt:
        """Return the record of a round that has opened values of this digest, signed."""
        record = Record(
            service=SERVICE,
            version=RECEIPT,
            cohort=server_round.cohort,
            round=server_round.round_id,
            number=server_round.number,
            params=server_round.params.to_dict(),
            included=server_round.included,
            groups=server_round.groups,
            left_out=server_round.excluded,
            start=bytes.fromhex(server_round.asked.start),
            opened=opened,
            participants=server_round.asked.participants,
            released=server_round.asked.release,
            one_malicious_server=server_round.asked.one_malicious_server,
            runs=server_round.runs,
            zcdp_rho=server_round.spent_after if isfinite(server_round.spent_after) else None,
        )
        return Receipt(record.encode()).signed(f"s{self._party}", self._signing)


def _with_model(kept: RunState, model: Float32s | None, reset: bool) -> RunState:
    if model is None or reset:
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
    if kept.groups:
        runs = zip(kept.groups, model, strict=True)
        return RunState.of_groups([replace(run, model=row) for run, row in runs])
    return replace(kept, model=model)
