"""The part that both plug-ins share: rounds that a framework leads, and updates for them.

The framework has a training of its own. At its server `FrameworkRounds` opens a round of the
service for each round of that training; at its clients `submit` takes the update there.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.clients.spent import UpdateSpent
from securemedian.clients.update import finite, flatten, unflatten
from securemedian.common.keys import load_keys
from securemedian.coordinator.coordinator import Coordinator
from securemedian.coordinator.lease import Lease
from securemedian.coordinator.round_plan import RoundPlan
from securemedian.coordinator.rounds import Hooks, Patience, Rounds
from securemedian.mpc.errors import (
    ChannelTimeout,
    ClientsDiffer,
    ConfigError,
    DuplicateUpload,
    InputError,
    NotFinite,
    PeerUnavailable,
    RoundBusy,
    RoundClosed,
    RoundFailed,
    SecureMedianError,
    ServerUnreachable,
    UnknownRound,
)
from securemedian.mpc.options import check_number, check_one_of
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.base import RangePolicy

Arrays = dict[str, NDArray[Any]]

# the errors that cost a run one round; any other error is one of every round
ROUND_LOST = (
    ChannelTimeout,
    ClientsDiffer,
    PeerUnavailable,
    RoundBusy,
    RoundClosed,
    RoundFailed,
    ServerUnreachable,
    UnknownRound,
)
# a week: the longest deadline that a round may have, and the longest wait for one
MAX_WAIT_S = 7 * 86400.0
# between two looks in other waits
POLL_S = 0.5
# between two looks for the result of a round
_RESULT_POLL_S = 0.05
# for a round that runs already to end, where an earlier run has left it
_END_LIMIT_S = 60.0
# how often the number of clients is doubled for which options are tried
_DOUBLED = 8
# names or reasons in one message
_MAX_LISTED = 5


@dataclass(frozen=True, kw_only=True)
class TrainingPlan(RoundPlan):
    """The plan of all rounds of a training that a framework leads."""

    # the effect of a round without a result: "stop" the run, or "skip" the round and keep the model
    on_failure: str = "stop"
    # how long to wait for servers that are away, and for the end of another's round
    wait_s: float = 600.0
    # patterns of the names of layers that each client keeps for itself
    keep_local: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_one_of("on_failure", self.on_failure, ("stop", "skip"))
        check_number("wait_s", self.wait_s, 0, MAX_WAIT_S, "more than 0 seconds and at most a week")
        if given := {"dim", "max_clients"} & set(self.round):
            raise ConfigError(
                f"the model and the nodes decide these options: {' and '.join(sorted(given))}; "
                "leave them out"
            )
        if self._for_some_clients().method.result_to != "servers":
            raise ConfigError(
                "the training needs the result here: result_to is 'clients'; leave result_to out"
            )

    @classmethod
    def of(
        cls,
        method: str,
        min_clients: int,
        deadline_s: float,
        range_policy: RangePolicy | None,
        options: Mapping[str, Any] | None,
        **others: Any,
    ) -> Self:
        """Return the plan that a plug-in's user has chosen. Raises ConfigError."""
        chosen = {"method": method, "min_clients": min_clients, "deadline_s": deadline_s}
        table = range_policy.to_dict() if range_policy else {}
        return cls(round={**(options or {}), **chosen}, range=table, **others)

    def _for_some_clients(self) -> RoundParams:
        """Return the parameters of a round of as many clients as the options need.

        Raises ConfigError if no number will do: how many take part is not known yet.
        """
        least, refused = max(2, self.min_clients), None
        for times in range(_DOUBLED):
            try:
                return self.params(dim=1, max_clients=least << times)
            except ConfigError as error:
                refused = refused or error
        assert refused
        raise refused

    @property
    def min_clients(self) -> int:
        """With fewer uploads the servers refuse to compute."""
        return int(self.round["min_clients"])

    @property
    def skips(self) -> bool:
        """Whether the training goes on without the result of a round."""
        return self.on_failure == "skip"


class FrameworkRounds:
    """Rounds of the service that a framework leads with a coordinator's key, one at a time."""

    def __init__(
        self,
        coordinator: str | Path,
        plan: TrainingPlan,
        log: logging.Logger | logging.LoggerAdapter[Any],
        stop: str,
    ) -> None:
        """Read the coordinator's configuration, coordinator.toml, and its key. Raises ConfigError.

        `log` is the framework's own, which people read, and `stop` its command that ends a run.
        """
        path = Path(coordinator).expanduser()
        config = ClientConfig.load(path)
        # all clients wait while the framework's server does
        soon = min(config.poll_interval_s, _RESULT_POLL_S)
        self.config = replace(config, poll_interval_s=soon)
        load_keys(config.key_file)
        self.plan = plan
        self._log, self._stop, self._lease_file = log, stop, path.with_suffix(".round")
        self._hooks = Hooks(report=lambda text: log.warning("securemedian: %s", text))
        self._lease: Lease | None = None
        # the model that S0 keeps, shape (d,), as far as this run knows
        self._kept: NDArray[np.float32] | None = None
        # the names of the clients whose uploads both servers had in the latest round with a result
        self.submitted: frozenset[str] = frozenset()

    def open(self, model: Arrays, clients: int, participants: list[str] | None = None) -> str:
        """Open a round for updates of the form of `model`, which clients train, and return its id.

        It is for so many clients, or the `participants` alone. Errors that may pass are waited for,
        for `wait_s`. Raises one of ROUND_LOST if no round can be opened now, and another error if
        none ever can.
        """
        vector, spec = flatten(model, self.plan.keep_local)
        start = finite(vector, spec)
        params = self.plan.params(start.size, max_clients=clients)
        first = self._kept is None
        kept = self._kept is not None and np.array_equal(start, self._kept)
        # Buckets lie around the model that S0 keeps, and differences are to it. Other rounds need
        # none.
        given = start if params.form.uses_model and not kept else None
        patience = Patience(self.plan.wait_s, first_s=POLL_S, longest_s=POLL_S)
        with Coordinator(self.config) as coordinator:
            rounds = Rounds(coordinator, self._hooks, patience)
            rounds.patiently(self._take_over)
            round_id = rounds.open(
                params,
                given,
                range_policy=self.plan.policy,
                reset=first and given is None,
                # a model that an optimiser has changed
                keep_range=given is not None and not first,
                participants=participants,
                form=spec.form,
            )
        if first and self.plan.keep_local:
            self._log.info("%s", spec.summary)
        assert self._lease
        self._lease.round_id = round_id
        self._kept = start
        self._log.info("round %s is open for %d clients", round_id, clients)
        return round_id

    def result(self, round_id: str, model: Arrays) -> Arrays:
        """Close the round and return its result, formed as `model`. Raises one of ROUND_LOST."""
        with Coordinator(self.config) as coordinator:
            # it has closed by itself if all clients have submitted
            with suppress(RoundClosed):
                coordinator.close_round(round_id)
            vector = coordinator.result(round_id)
            status = coordinator.status(round_id)
        if self._lease:
            self._lease.round_id = ""
        self.submitted = frozenset(status.complete)
        keep_local = self.plan.keep_local
        result: Arrays = unflatten(vector, flatten(model, keep_local)[1])
        # in float16 it is S0's model as far as that form can say
        self._kept = flatten(result, keep_local)[0].astype(np.float32)
        left_out = [f"{name} ({reason})" for name, reason in status.left_out.items()]
        self._log.info(
            "round %s: the result of %d clients%s",
            round_id,
            len(status.included),
            f", without {listed(left_out)}" if left_out else "",
        )
        return result

    def nobody_submitted(self, round_id: str) -> bool:
        """Return whether S0 says that no client has submitted to a round."""
        with suppress(SecureMedianError), Coordinator(self.config) as coordinator:
            return set(coordinator.status(round_id).clients.values()) <= {"none"}
        return False

    def end(self) -> None:
        """Leave no round open, and let another run open rounds."""
        self._kept = None
        if not self._lease:
            return
        # a server that cannot be reached ends the round at its deadline
        with suppress(SecureMedianError):
            self._end_round_left_open("the run was stopped")
        self._lease.release()
        self._lease = None

    def _end_round_left_open(self, why: str) -> None:
        """End the round that the lease says is open, if it is, and wait for its end."""
        assert self._lease
        if not (round_id := self._lease.round_id):
            return
        deadline = time.monotonic() + _END_LIMIT_S
        with Coordinator(self.config) as coordinator, suppress(UnknownRound):
            while not coordinator.status(round_id).ended:
                # once it runs, it ends by itself
                with suppress(RoundClosed):
                    coordinator.abort_round(round_id, why)
                if time.monotonic() > deadline:
                    raise RoundBusy(
                        f"a round of an earlier run has not ended yet: {round_id}; wait for it, "
                        "or abort it"
                    )
                time.sleep(POLL_S)
        self._lease.round_id = ""

    def _take_over(self) -> None:
        """Take the lease, and end the round that an earlier run has left open."""
        if self._lease is None:
            self._lease = Lease(self._lease_file, self._stop)
        self._end_round_left_open("a new run has replaced the one that opened it")


def check(config: ClientConfig, round_id: str) -> None:
    """Check, before it trains, a client and that it takes part in a round. Raises as `submit`.

    A round that could not be opened has no id.
    """
    with Client(config) as client:
        if round_id:
            client.check_round(round_id)


def submit(
    config: ClientConfig, update: Arrays, round_id: str, keep_local: Sequence[str] = ()
) -> str:
    """Submit an update in shares, and return this client's name. Raises as `Client.submit`."""
    with Client(config) as client:
        try:
            client.submit(update, round_id, keep_local=keep_local)
            client.attend()
            return client.name()
        except (NotFinite, UpdateSpent) as error:
            # nobody is to wait for this client
            client.decline(round_id, error.code)
            raise
        except DuplicateUpload as error:
            raise DuplicateUpload(
                f"{error}. Two nodes may use the same keys: {config.name}; give each its own"
            ) from error


def local_part(arrays: Mapping[str, NDArray[Any]], keep_local: Sequence[str]) -> Arrays:
    """Return the arrays whose names fit one of the patterns: a client keeps them for itself."""
    return {
        name: np.array(array)
        for name, array in arrays.items()
        if any(fnmatchcase(name, pattern) for pattern in keep_local)
    }


def same_form(given: Mapping[str, NDArray[Any]], expected: Arrays) -> Arrays:
    """Return the arrays in the order expected. Raises InputError if names or forms differ."""
    if missing := [name for name in expected if name not in given]:
        raise InputError(f"the update lacks entries of the model: {', '.join(missing)}; send all")
    if unknown := [name for name in given if name not in expected]:
        raise InputError(
            f"the update has entries that the model has not: {', '.join(unknown)}; leave them out"
        )
    for name, array in expected.items():
        if (given[name].shape, given[name].dtype) != (array.shape, array.dtype):
            raise InputError(
                f"training has to keep names, shapes and dtypes: {name!r} was sent as "
                f"{array.dtype} {array.shape} and came back as {given[name].dtype} "
                f"{given[name].shape}; correct the training"
            )
    return {name: given[name] for name in expected}


def listed(texts: list[str]) -> str:
    """Return a few of the texts, and how many more there are."""
    more = len(texts) - _MAX_LISTED
    return ", ".join(texts[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
