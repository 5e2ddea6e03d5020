"""The strategy for a ServerApp: its aggregate is a round of the service."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.serverapp.strategy.strategy_utils import validate_message_reply_consistency
from numpy.typing import NDArray

from securemedian.clients.client import Coordinator
from securemedian.clients.config import ClientConfig
from securemedian.clients.update import flatten, unflatten
from securemedian.flower import records
from securemedian.flower.lease import Lease
from securemedian.flower.records import Arrays
from securemedian.mpc.errors import (
    ChannelTimeout,
    ClientsDiffer,
    ConfigError,
    PeerUnavailable,
    RoundBusy,
    RoundClosed,
    RoundFailed,
    SecureMedianError,
    ServerUnreachable,
    UnknownRound,
)
from securemedian.mpc.options import check_number, check_one_of
from securemedian.mpc.params import RoundParams
from securemedian.mpc.ranges.base import RangePolicy
from securemedian.settings.keys import load_keys

T = TypeVar("T")

# Flower's own logger, whose lines people read
log = logging.getLogger("flwr")


class _NotYet(Exception):
    """Fewer nodes are connected than a round needs."""


# what may pass by itself
_PASSES = (_NotYet, PeerUnavailable, RoundBusy, ServerUnreachable)
# what costs a run one round; everything else is wrong in every round
_ROUND_LOST = (
    ChannelTimeout,
    ClientsDiffer,
    PeerUnavailable,
    RoundBusy,
    RoundClosed,
    RoundFailed,
    ServerUnreachable,
    UnknownRound,
)
# between two looks at what is waited for otherwise
_POLL_S = 0.5
# between two looks for the result of a round
_RESULT_POLL_S = 0.1
# for a round that runs already to end, where an earlier run has left it
_END_LIMIT_S = 60.0
# a week: the longest deadline that a round may have, and the longest wait for one
_MAX_WAIT_S = 7 * 86400.0
# names or reasons in one message
_MAX_LISTED = 5


class SecureMedian(Strategy):
    """A strategy whose aggregate S0 and S1 compute, without anybody seeing an update.

    Each training round opens a round of the service, which closes when all sampled nodes have
    submitted or replied. `strategy`, one of Flower's, samples the nodes, aggregates metrics,
    configures the evaluation, and makes the next model from the aggregate: FedAvg takes it as it
    is, FedAdam and the like make a step towards it.

    `method` and `options` are those of a round (`securemedian round open --help`), by default the
    exact median. The number of clients and the size of the model come from Flower.
    """

    def __init__(
        self,
        coordinator: str | Path,
        strategy: FedAvg | None = None,
        *,
        method: str = "radix",
        min_clients: int = 2,
        deadline_s: float | None = None,
        range_policy: RangePolicy | None = None,
        on_failure: str = "stop",
        wait_s: float = 600.0,
        **options: Any,
    ) -> None:
        """Check the coordinator's configuration and the options of the rounds.

        `coordinator`: the path of coordinator.toml. `strategy`: by default FedAvg(). `min_clients`:
        with fewer uploads the servers refuse to compute. `deadline_s`: when a round closes at the
        latest, by default the `timeout` of `start`. `on_failure`: what a training round without a
        result does, "stop" the run or "skip" the round and keep the model. `wait_s`: how long to
        wait in each round for the nodes that `strategy` needs, for servers that are away, and for
        the end of another's round.

        Raises ConfigError, which says what is wrong.
        """
        config = ClientConfig.load(Path(coordinator).expanduser())
        # all nodes wait while the ServerApp does
        soon = min(config.poll_interval_s, _RESULT_POLL_S)
        self._config = replace(config, poll_interval_s=soon)
        load_keys(self._config.key_file)
        self._lease_file = Path(coordinator).expanduser().with_suffix(".round")
        self._strategy = FedAvg() if strategy is None else strategy
        if not isinstance(self._strategy, FedAvg):
            raise ConfigError(
                f"{type(strategy).__name__} is not a strategy that works on an average, such as "
                "FedAvg, FedProx or FedAdam"
            )
        check_one_of("on_failure", on_failure, ("stop", "skip"))
        check_number("wait_s", wait_s, 0, _MAX_WAIT_S, "more than 0 seconds and at most a week")
        if given := {"dim", "max_clients"} & set(options):
            raise ConfigError(f"{' and '.join(sorted(given))}: Flower decides that, leave it out")
        self._skips, self._wait_s = on_failure == "skip", wait_s
        self._policy, self._min_clients, self._deadline_s = range_policy, min_clients, deadline_s
        self._options = {"method": method, **options}
        # until `start` says how long it waits for replies
        self._timeout_s = 3600.0
        params = self._params(dim=1, clients=max(2, min_clients))
        if params.result_to != "servers":
            raise ConfigError("result_to is 'clients', but the ServerApp needs the result")
        self._lease: Lease | None = None
        # the id of the round that nodes are training for
        self._round_id = ""
        # the model of that round
        self._sent: Arrays = {}
        # the name at S0 of a node's client, by the node's id; of those in the latest rounds
        self._clients: dict[int, str] = {}
        # the model that S0 keeps, shape (d,), as far as this run knows
        self._kept: NDArray[np.float32] | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the training as `Strategy.start` does, and leave no round open, whatever happens."""
        self._timeout_s, self._kept = timeout, None
        try:
            return super().start(
                grid,
                initial_arrays,
                num_rounds,
                timeout,
                train_config,
                evaluate_config,
                evaluate_fn,
            )
        finally:
            # a server that cannot be reached ends the round at its deadline
            with suppress(SecureMedianError):
                if self._lease and self._lease.round_id:
                    self._end_round_left_open("the run was stopped")
            if self._lease:
                self._lease.release()
                self._lease = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Open a round and send the nodes its id with the model.

        Raises AggregationError if no round can be opened and `on_failure` is "stop".
        """
        inner = self._strategy
        self._round_id = ""
        needed = max(inner.min_available_nodes, inner.min_train_nodes, self._min_clients)
        if inner.fraction_train and not self._nodes_connect(grid, needed):
            return []
        messages = list(inner.configure_train(server_round, arrays, config, grid))
        if not messages:
            return []
        self._sent = records.to_arrays(arrays)
        try:
            nodes = [message.metadata.dst_node_id for message in messages]
            self._round_id = self._wait(lambda: self._open(nodes))
        except _ROUND_LOST as error:
            self._lose(f"no round could be opened: {error}", error)
            return []
        for message in messages:
            message.content = records.address(
                message.content, inner.arrayrecord_key, self._round_id
            )
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Close the round, wait for its result, and return the next model and the metrics.

        Raises AggregationError if the round has no result and `on_failure` is "stop", and always
        if a node has sent its update in the clear.
        """
        if not (round_id := self._round_id):
            return None, None
        replies = list(replies)
        contents = [reply.content for reply in replies if reply.has_content()]
        errors = [
            f"node {reply.metadata.src_node_id}: {reply.error.reason}"
            for reply in replies
            if reply.has_error()
        ]
        log.info("aggregate_train: Received %s results and %s failures", len(contents), len(errors))
        for error in errors:
            log.warning("\t> %s", error)
        self._refuse_updates_in_the_clear(replies)
        clients = {
            reply.metadata.src_node_id: records.take_signature(reply.content)
            for reply in replies
            if reply.has_content()
        }
        for reply in replies:
            self._clients.pop(reply.metadata.src_node_id, None)
        try:
            result = self._result(round_id, clients)
        except _ROUND_LOST as error:
            self._lose(self._why(error, round_id, errors), error)
            return None, None
        inner = self._strategy
        metrics = None
        if contents:
            validate_message_reply_consistency(
                contents, inner.weighted_by_key, check_arrayrecord=False
            )
            metrics = inner.train_metrics_aggr_fn(contents, inner.weighted_by_key)
        return self._next_model(server_round, result), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure the evaluation as `strategy` does, once its nodes are connected."""
        inner = self._strategy
        needed = max(inner.min_available_nodes, inner.min_evaluate_nodes)
        if inner.fraction_evaluate and not self._nodes_connect(grid, needed):
            return []
        return inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate the metrics of the evaluation as `strategy` does."""
        return self._strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log the settings of the rounds and of `strategy`."""
        log.info("\t├──> SecureMedian settings:")
        log.info("\t│\t├── Servers: %s and %s", self._config.s0.address, self._config.s1.address)
        log.info("\t│\t├── Round: %s", self._options)
        log.info("\t│\t├── Minimum uploads: %d", self._min_clients)
        log.info("\t│\t├── On failure: %s", "skip" if self._skips else "stop")
        log.info("\t│\t└── Next model by: %s", type(self._strategy).__name__)
        self._strategy.summary()

    def _params(self, dim: int, clients: int) -> RoundParams:
        deadline_s = self._deadline_s
        if deadline_s is None:
            deadline_s = min(self._timeout_s, _MAX_WAIT_S)
        return RoundParams.from_dict(
            self._options
            | {
                "dim": dim,
                "max_clients": clients,
                "min_clients": self._min_clients,
                "deadline_s": deadline_s,
            }
        )

    def _nodes_connect(self, grid: Grid, needed: int) -> bool:
        """Wait for as many nodes as `strategy` needs, and return whether they are connected.

        It would wait for them for ever by itself.
        """

        def connected() -> bool:
            if (number := len(list(grid.get_node_ids()))) < needed:
                raise _NotYet(f"{number} of the {needed} nodes needed are connected")
            return True

        try:
            return self._wait(connected)
        except _NotYet as error:
            self._lose(str(error), error)
            return False

    def _wait(self, attempt: Callable[[], T]) -> T:
        """Return the first result of `attempt` that is no error of those that may pass.

        Raises the last such error after `wait_s`.
        """
        deadline, said = time.monotonic() + self._wait_s, ""
        while True:
            try:
                return attempt()
            except _PASSES as error:
                if time.monotonic() > deadline:
                    raise type(error)(f"{error} (waited for {self._wait_s:g} s)") from error
                if str(error) != said:
                    log.warning("securemedian: waiting, because %s", error)
                said = str(error)
            time.sleep(_POLL_S)

    def _open(self, nodes: list[int]) -> str:
        """Open a round of these nodes for the model to be sent, and return its id."""
        vector, _ = flatten(self._sent)
        model = vector.astype(np.float32)
        if len(nodes) < self._min_clients:
            raise ConfigError(
                f"{type(self._strategy).__name__} has sampled {len(nodes)} nodes, fewer than "
                f"min_clients ({self._min_clients}): raise its min_train_nodes or fraction_train"
            )
        params = self._params(model.size, len(nodes))
        if self._lease is None:
            self._lease = Lease(self._lease_file)
        self._end_round_left_open("a new run has replaced the one that opened it")
        first = self._kept is None
        kept = self._kept is not None and np.array_equal(model, self._kept)
        # Buckets lie around the model that S0 keeps. Other rounds need none.
        given = model if params.uses_range and not kept else None
        with Coordinator(self._config) as coordinator:
            round_id = coordinator.open(
                params,
                given,
                self._policy,
                reset=first and given is None,
                # a model that an optimiser has changed
                keep_range=given is not None and not first,
                participants=self._clients_of(nodes),
            )
        self._lease.round_id = round_id
        self._kept = model
        log.info("round %s is open for %d nodes", round_id, len(nodes))
        return round_id

    def _clients_of(self, nodes: list[int]) -> list[str] | None:
        """Return the names of the nodes' clients, or None while it is not known of each node."""
        names = {self._clients[node] for node in nodes if node in self._clients}
        return sorted(names) if len(names) == len(nodes) else None

    def _end_round_left_open(self, why: str) -> None:
        """End the round that the lease says is open, if it is, and wait for its end."""
        assert self._lease
        if not (round_id := self._lease.round_id):
            return
        deadline = time.monotonic() + _END_LIMIT_S
        with Coordinator(self._config) as coordinator, suppress(UnknownRound):
            while coordinator.status(round_id)["state"] not in ("published", "failed"):
                # once it runs, it ends by itself
                with suppress(RoundClosed):
                    coordinator.abort(round_id, why)
                if time.monotonic() > deadline:
                    raise RoundBusy(f"round {round_id} of an earlier run has not ended yet")
                time.sleep(_POLL_S)
        self._lease.round_id = ""

    def _result(self, round_id: str, clients: Mapping[int, str]) -> Arrays:
        """Close the round, as no more nodes will submit, and return its result.

        `clients` are the names that nodes say they have. Those whose uploads S0 knows are kept.
        """
        with Coordinator(self._config) as coordinator:
            # it has closed by itself if all nodes have submitted
            with suppress(RoundClosed):
                coordinator.close_round(round_id)
            vector = coordinator.result(round_id)
            status = coordinator.status(round_id)
        self._clients |= {
            node: name for node, name in clients.items() if status["clients"].get(name) == "both"
        }
        self._forget()
        result: Arrays = unflatten(vector, flatten(self._sent)[1])
        # in float16 it is S0's model as far as that form can say
        self._kept = flatten(result)[0].astype(np.float32)
        left_out = [f"{name} ({reason})" for name, reason in status["left_out"].items()]
        log.info(
            "round %s: the result of %d clients%s",
            round_id,
            len(status["included"]),
            f", without {_listed(left_out)}" if left_out else "",
        )
        return result

    def _next_model(self, server_round: int, result: Arrays) -> ArrayRecord | None:
        """Return the model that `strategy` makes of the result, in the form of the last model."""
        inner = self._strategy
        # A single reply of weight 1: the average of copies would not be exact.
        content = RecordDict(
            {
                inner.arrayrecord_key: records.to_record(result),
                "metrics": MetricRecord({inner.weighted_by_key: 1.0}),
            }
        )
        reply = Message(content, dst_node_id=0, message_type=MessageType.TRAIN)
        arrays, _ = inner.aggregate_train(server_round, [reply])
        if arrays is None:
            return None
        # Flower's averages turn whole numbers, such as BatchNorm's counters, into float64.
        return records.to_record(
            {name: array.numpy().astype(self._sent[name].dtype) for name, array in arrays.items()}
        )

    def _refuse_updates_in_the_clear(self, replies: Iterable[Message]) -> None:
        nodes = [
            f"node {reply.metadata.src_node_id}"
            for reply in replies
            if reply.has_content() and reply.content.array_records
        ]
        if nodes:
            raise AggregationError(
                f"{_listed(nodes)} sent arrays to this ServerApp, in the clear: "
                "securemedian_mod must be the first of the ClientApp's mods"
            )

    def _why(self, error: SecureMedianError, round_id: str, errors: list[str]) -> str:
        """Return why a round has no result: the servers' reason, and what the nodes say."""
        reasons = [f"{error}", *errors]
        # errors of the mod have the name of our package in them
        if not any("securemedian" in text for text in errors):
            with suppress(SecureMedianError), Coordinator(self._config) as coordinator:
                uploads = coordinator.status(round_id)["clients"].values()
                if set(uploads) <= {"none"}:
                    reasons.append("is securemedian_mod among the ClientApp's mods?")
        return "; ".join(reasons[: _MAX_LISTED + 2])

    def _lose(self, why: str, error: Exception | None = None) -> None:
        """Go on without a round's result if `on_failure` is "skip".

        Otherwise raises AggregationError, which ends the run.
        """
        if not self._skips:
            raise AggregationError(f"securemedian: {why}") from error
        log.warning("securemedian: the model stays as it is: %s", why)

    def _forget(self) -> None:
        self._round_id = ""
        if self._lease:
            self._lease.round_id = ""


def _listed(texts: list[str]) -> str:
    more = len(texts) - _MAX_LISTED
    return ", ".join(texts[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
