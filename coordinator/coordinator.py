"""The coordinator's Python interface: `Coordinator` opens rounds, and watches and ends them."""

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.member import Member
from securemedian.clients.update import flat_models
from securemedian.common.model_form import ModelForm
from securemedian.common.status import COMPILING
from securemedian.common.versions import agree, check_known
from securemedian.mpc.errors import ConfigError, ServerUnreachable
from securemedian.mpc.rounds.optimiser import Optimiser
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.base import RangePolicy

# how long servers that have compiled may take to find each other
LINK_S = 60.0


class Coordinator(Member):
    """The coordinator's access to the service. It asks S0, which leads and tells S1."""

    def open_round(
        self,
        params: RoundParams,
        model: Any = None,
        range_policy: RangePolicy | None = None,
        reset: bool = False,
        optimiser: Optimiser | None = None,
        request: str = "",
        keep_range: bool = False,
        participants: Sequence[str] | None = None,
        release: bool = False,
        timeout_s: float | None = None,
        keep_local: Sequence[str] = (),
        form: ModelForm | None = None,
    ) -> str:
        """Open a round and return its id; S0 opens one round even if it is asked again.

        With a `request`, 32 hex digits that the caller keeps, the caller can repeat the call, even
        after its own restart: S0 answers with the same round.

        A `model` starts a new run, and so does `reset`; otherwise the last run goes on,
        with `keep_range` from the `model`. Without a `range_policy` or an `optimiser` the current
        one is kept.

        The `model` is flat, (d,) or (groups, d), or has any form of `clients.update`, in a list of
        one per group where there are several. Then its names, shapes and dtypes are the form that
        all clients' models must have, and entries that fit a pattern of `keep_local` are left out.
        With a flat model `form` gives it. Without a form the run keeps its own, and otherwise that
        of the first client counts. Servers of release 1.0 take none, which is reported.

        After an attempt that may have opened values, the same clients take part again, unless the
        `model` is another one or `release` is set. Both servers log a release, and receipts show
        it.

        Only the `participants`, names of clients, can take part, if they are given, and the round
        closes once all of them have uploaded. Raises ConfigError if S0 does not know all of them,
        or if they are fewer than the round or a server asks for. Raises InputError if the model
        does not fit the round or lies beyond the range of its method. Raises VersionsDiffer if S0
        does not work with this release, or a server does not know an option of the round.
        """
        if participants is not None and not participants:
            raise ConfigError(
                "nobody may take part: participants = []; leave it out for a round of all clients"
            )
        start, own = flat_models(model, params.method.groups, keep_local)
        form = form or own
        if start is not None:
            params.check_start(start)
        said = self.ask("info", timeout_s=timeout_s).fields
        check_known("S0", said, params)
        if not said.get("peer_linked", True):
            self._wait_for_compilers(timeout_s)
        arrays = {} if start is None else {"model": start}
        fields = {
            "params": params.to_dict(),
            "range": range_policy.to_dict() if range_policy else {},
            "optimiser": optimiser.to_dict() if optimiser else {},
            "reset": reset,
            "keep_range": keep_range,
            "request": request or os.urandom(16).hex(),
            "participants": list(participants or ()),
            "release": release,
        }
        if form and agree("S0", said) < 3:
            self.report("S0 is of a release that takes no form: entries go by their order")
        elif form:
            fields["model_form"] = form.text
        answer = self.ask("open", fields, arrays, timeout_s=timeout_s)
        return str(answer.fields["round"])

    def _wait_for_compilers(self, timeout_s: float | None) -> None:
        """Wait while a server compiles its kernels, and then until both have found each other."""
        problems, until = ["", ""], 0.0

        def look() -> bool | None:
            nonlocal until
            linked = []
            for party in (0, 1):
                try:
                    told = self.servers[party].ask("info").fields
                    problems[party] = str(told.get("peer_problem"))
                    linked.append(bool(told.get("peer_linked", True)))
                # S0 says what is wrong when it is asked to open the round
                except ServerUnreachable:
                    problems[party] = ""
            # one of them sees the other first
            if linked and all(linked):
                return True
            if any(problem.startswith(COMPILING) for problem in problems):
                until = time.monotonic() + LINK_S
            return None if time.monotonic() < until else True

        def waiting() -> str:
            compiling = [
                f"S{party} ({problem})"
                for party, problem in enumerate(problems)
                if problem.startswith(COMPILING)
            ]
            return " and ".join(compiling) or "S0 and S1, which connect to each other"

        limit = self.limit(timeout_s)
        self.wait(0, look, limit, "the servers have not compiled", waiting)

    def dim(self, timeout_s: float | None = None) -> int:
        """Return the size of S0's model or latest round. Raises ConfigError if it has neither."""
        dim = int(self.ask("info", timeout_s=timeout_s).fields["dim"])
        if not dim:
            raise ConfigError(
                "S0 keeps no model: dim is unknown; give --dim N, or the model to start from, "
                "--model FILE.npy"
            )
        return dim

    def close_round(self, round_id: str, timeout_s: float | None = None) -> None:
        """Close a round before its deadline, so that it runs with the complete uploads."""
        self.ask("close", {"round": round_id}, timeout_s=timeout_s)

    def abort_round(
        self,
        round_id: str,
        reason: str = "aborted by the coordinator",
        timeout_s: float | None = None,
    ) -> None:
        """Fail a round on purpose. Everybody is told the reason."""
        self.ask("abort", {"round": round_id, "reason": reason}, timeout_s=timeout_s)

    def result(self, round_id: str, timeout_s: float | None = None) -> NDArray[np.float32]:
        """Wait for a round and return its model, or one row per group. Raises RoundFailed."""
        limit = self.limit(timeout_s)
        params = self.params(round_id, limit.left_s)
        fetched = np.asarray(self.fetch(round_id, limit, params), np.float32)
        model: NDArray[np.float32] = fetched if params.method.groups > 1 else fetched[0]
        return model

    def results(self, round_id: str, timeout_s: float | None = None) -> NDArray[np.float32]:
        """Wait for all results of a round and return them, shape (ranks or groups, d)."""
        return np.asarray(self.fetch(round_id, self.limit(timeout_s)), np.float32)

    def outcome(
        self, round_id: str, timeout_s: float | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Wait for a round, and return the model that the next round starts from, and the results.

        The model has shape (d,), and the results (ranks, d); with several groups both have a row
        per group. Raises what `results` raises, and ConfigError where the round exchanges no
        parameters.
        """
        after, published = self.finish(round_id, self.limit(timeout_s))
        models = after.models
        if not models:
            raise ConfigError(f"the round has no model: {round_id}; ask for its results")
        return np.stack(models) if after.groups else models[0].copy(), published.copy()
