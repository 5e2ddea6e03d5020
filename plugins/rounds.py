"""What the plug-ins share: rounds of the service that a framework leads, and updates for them.

The framework has a training of its own. At its server `FrameworkRounds` opens a round of the
service for each round of that training; at its clients `submit` takes the update there.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.clients.update import flatten, unflatten
from securemedian.common.keys import load_keys
from securemedian.coordinator.coordinator import Coordinator
from securemedian.coordinator.lease import Lease
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

T = TypeVar("T")
Arrays = dict[str, NDArray[Any]]

# what costs a run one round; everything else is wrong in every round
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
# what may pass by itself
_PASSES = (PeerUnavailable, RoundBusy, ServerUnreachable)
# between two looks at what is waited for otherwise
_POLL_S = 0.5
# between two looks for the result of a round
_RESULT_POLL_S = 0.05
# for a round that runs already to end, where an earlier run has left it
_END_LIMIT_S = 60.0
# how often the number of clients is doubled for which options are tried
_DOUBLED = 8
# names or reasons in one message
_MAX_LISTED = 5


@dataclass(frozen=True)
class RoundOptions:
    """What a user chooses for all rounds of a training that a framework leads."""

    method: str
    # with fewer uploads the servers refuse to compute
    min_clients: int
    # when a round closes at the latest
    deadline_s: float
    range_policy: RangePolicy | None
    # what a round without a result does: "stop" the run, or "skip" the round and keep the model
    on_failure: str
    # how long to wait for servers that are away, and for the end of another's round
    wait_s: float
    # other parameters of a round, by name
    others: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_one_of("on_failure", self.on_failure, ("stop", "skip"))
        check_number("wait_s", self.wait_s, 0, MAX_WAIT_S, "more than 0 seconds and at most a week")
        if given := {"dim", "max_clients"} & set(self.others):
            raise ConfigError(
                f"{' and '.join(sorted(given))}: the model and the nodes decide that, leave it out"
            )
        if self._for_some_clients().result_to != "servers":
            raise ConfigError("result_to is 'clients', but the training needs the result here")

    def _for_some_clients(self) -> RoundParams:
        """Return the parameters of a round of as many clients as the options need.

        Raises ConfigError if there is no such number: how many take part is not known yet.
        """
        least, refused = max(2, self.min_clients), None
        for times in range(_DOUBLED):
            try:
                return self.params(dim=1, clients=least << times)
            except ConfigError as error:
                refused = refused or error
        assert refused
        raise refused

    @property
    def skips(self) -> bool:
        """Whether the training goes on without the result of a round."""
        return self.on_failure == "skip"

    def params(self, dim: int, clients: int) -> RoundParams:
        """Return the parameters of a round for a model of `dim` values and so many clients."""
        return RoundParams.from_dict(
            {
                "method": self.method,
                **self.others,
                "dim": dim,
                "max_clients": clients,
                "min_clients": self.min_clients,
                "deadline_s": self.deadline_s,
            }
        )


class FrameworkRounds:
    """Rounds of the service that a framework leads with a coordinator's key, one at a time."""

    def __init__(
        self,
        coordinator: str | Path,
        options: RoundOptions,
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
        self.options = options
        self._log, self._stop, self._lease_file = log, stop, path.with_suffix(".round")
        self._lease: Lease | None = None
        # the model that S0 keeps, shape (d,), as far as this run knows
        self._kept: NDArray[np.float32] | None = None
        # the names of the clients whose uploads both servers had in the latest round with a result
        self.submitted: frozenset[str] = frozenset()

    def open(self, model: Arrays, clients: int, participants: list[str] | None = None) -> str:
        """Open a round for updates of the form of `model`, which clients train, and return its id.

        It is for so many clients, or the `participants` alone. What may pass is waited for, for
        `wait_s`. Raises one of ROUND_LOST if no round can be opened now, and another error if none
        ever can.
        """
        return self.wait(lambda: self._open(model, clients, participants), _PASSES)

    def _open(self, model: Arrays, clients: int, participants: list[str] | None) -> str:
        vector, _ = flatten(model)
        start = vector.astype(np.float32)
        params = self.options.params(start.size, clients)
        if self._lease is None:
            self._lease = Lease(self._lease_file, self._stop)
        self._end_round_left_open("a new run has replaced the one that opened it")
        first = self._kept is None
        kept = self._kept is not None and np.array_equal(start, self._kept)
        # Buckets lie around the model that S0 keeps, and differences are to it. Other rounds need
        # none.
        given = start if params.uses_model and not kept else None
        with Coordinator(self.config) as coordinator:
            round_id = coordinator.open_round(
                params,
                given,
                self.options.range_policy,
                reset=first and given is None,
                # a model that an optimiser has changed
                keep_range=given is not None and not first,
                participants=participants,
            )
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
        result: Arrays = unflatten(vector, flatten(model)[1])
        # in float16 it is S0's model as far as that form can say
        self._kept = flatten(result)[0].astype(np.float32)
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
                    raise RoundBusy(f"round {round_id} of an earlier run has not ended yet")
                time.sleep(_POLL_S)
        self._lease.round_id = ""

    def wait(self, attempt: Callable[[], T], passes: tuple[type[Exception], ...]) -> T:
        """Return the result of `attempt`. Raises the error it keeps failing with after `wait_s`."""
        deadline, said = time.monotonic() + self.options.wait_s, ""
        while True:
            try:
                return attempt()
            except passes as error:
                if time.monotonic() > deadline:
                    waited = f"{error} (waited for {self.options.wait_s:g} s)"
                    raise type(error)(waited) from error
                if str(error) != said:
                    self._log.warning("securemedian: waiting, because %s", error)
                said = str(error)
            time.sleep(_POLL_S)


def check(config: ClientConfig, round_id: str) -> None:
    """Check, before it trains, a client and that it takes part in a round. Raises as `submit`.

    A round that could not be opened has no id.
    """
    with Client(config) as client:
        if round_id:
            client.check_round(round_id)


def submit(config: ClientConfig, update: Arrays, round_id: str) -> str:
    """Submit an update in shares, and return this client's name. Raises as `Client.submit`."""
    with Client(config) as client:
        try:
            client.submit(update, round_id)
            client.attend()
            return client.name()
        except NotFinite as error:
            # nobody is to wait for this client
            client.decline(round_id, error.code)
            raise
        except DuplicateUpload as error:
            raise DuplicateUpload(f"{error}. Do two nodes use {config.name}'s keys?") from error


def same_form(given: Mapping[str, NDArray[Any]], expected: Arrays) -> Arrays:
    """Return the arrays in the order expected. Raises InputError if names or forms differ."""
    if missing := [name for name in expected if name not in given]:
        raise InputError(f"the update lacks {', '.join(missing)}, which the model has")
    if unknown := [name for name in given if name not in expected]:
        raise InputError(f"the update has {', '.join(unknown)}, which the model has not")
    for name, array in expected.items():
        if (given[name].shape, given[name].dtype) != (array.shape, array.dtype):
            raise InputError(
                f"{name!r} was sent as {array.dtype} {array.shape} and came back as "
                f"{given[name].dtype} {given[name].shape}: training has to keep names, shapes "
                "and dtypes"
            )
    return {name: given[name] for name in expected}


def listed(texts: list[str]) -> str:
    """Return a few of the texts, and how many more there are."""
    more = len(texts) - _MAX_LISTED
    return ", ".join(texts[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
