"""The strategy for a ServerApp: its aggregate is a round of the service."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from flwr.serverapp.strategy.strategy_utils import validate_message_reply_consistency

from securemedian.flower import records
from securemedian.mpc.errors import ConfigError, SecureMedianError
from securemedian.mpc.rounds.methods.registry import DEFAULT_METHOD
from securemedian.mpc.rounds.ranges.base import RangePolicy
from securemedian.plugins.rounds import (
    MAX_WAIT_S,
    POLL_S,
    ROUND_LOST,
    Arrays,
    FrameworkRounds,
    TrainingPlan,
    listed,
)

# Flower's own logger, whose lines people read
log = logging.getLogger("flwr")

# the default `timeout` of `Strategy.start`
_TIMEOUT_S = 3600.0
# nodes' reasons in one message
_MAX_REASONS = 5


def _unweighted(record: logging.LogRecord) -> bool:
    """Leave out what Flower says of its own weights: a round counts clients as its options say."""
    return "Weighted by" not in record.getMessage()


class SecureMedian(Strategy):
    """A strategy whose aggregate S0 and S1 compute, without anybody seeing an update.

    Each training round opens a round of the service, which closes when all sampled nodes have
    submitted or replied. `strategy`, one of Flower's, samples the nodes, aggregates metrics,
    configures the evaluation, and makes the next model from the aggregate. FedAvg takes the
    aggregate itself, FedAdam and the like make a step towards it.

    `method` and its `options` are those of a round (`securemedian round open .. METHOD --help`).
    The number of clients and the size of the model come from Flower.
    """

    def __init__(
        self,
        coordinator: str | Path,
        strategy: FedAvg | None = None,
        *,
        method: str = DEFAULT_METHOD,
        min_clients: int = 2,
        deadline_s: float | None = None,
        range_policy: RangePolicy | None = None,
        on_failure: str = "stop",
        wait_s: float = 600.0,
        options: dict[str, Any] | None = None,
        keep_local: Sequence[str] = (),
    ) -> None:
        """Check the coordinator's configuration and the options of the rounds.

        `coordinator` is the path of coordinator.toml. With fewer uploads than `min_clients` the
        servers refuse to compute. A round closes after `deadline_s`, by default the `timeout` of
        `start`. Without a result, `on_failure` says "stop" the run or "skip" the round and keep
        the model. In each round `wait_s` is waited for nodes, servers and the end of another's
        round. `options` are the method's. Layers whose names fit a pattern of `keep_local`
        (`fnmatch`) are not sent: each node keeps its own, and the model here keeps the first ones.

        Raises ConfigError, which says what is wrong.
        """
        # until `start` says how long it waits for replies
        self._timed = deadline_s is None
        limit_s = _TIMEOUT_S if deadline_s is None else deadline_s
        chosen = TrainingPlan.of(
            method,
            min_clients,
            limit_s,
            range_policy,
            options,
            on_failure=on_failure,
            wait_s=wait_s,
            keep_local=keep_local,
        )
        self._rounds = FrameworkRounds(coordinator, chosen, log, "flwr stop")
        self._strategy = FedAvg() if strategy is None else strategy
        if not isinstance(self._strategy, FedAvg):
            raise ConfigError(
                f"not a strategy that works on an average: {type(strategy).__name__}; take one "
                "such as FedAvg, FedProx or FedAdam"
            )
        # the id of the round that nodes are training for
        self._round_id = ""
        # the model of that round
        self._sent: Arrays = {}
        # the name at S0 of a node's client, by the node's id; of those in the latest rounds
        self._clients: dict[int, str] = {}

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
        if self._timed:
            limit_s = min(timeout, MAX_WAIT_S)
            plan = self._rounds.plan
            self._rounds.plan = replace(plan, round=plan.round | {"deadline_s": limit_s})
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
            self._rounds.end()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Open a round and send the nodes its id with the model. Raises AggregationError."""
        inner = self._strategy
        self._round_id = ""
        least = self._rounds.plan.min_clients
        needed = max(inner.min_available_nodes, inner.min_train_nodes, least)
        if inner.fraction_train and not self._nodes_connect(grid, needed):
            return []
        messages = list(inner.configure_train(server_round, arrays, config, grid))
        if not messages:
            return []
        if len(messages) < least:
            raise ConfigError(
                f"{type(inner).__name__} has sampled fewer nodes than min_clients ({least}): "
                f"{len(messages)}; raise its min_train_nodes or fraction_train"
            )
        self._sent = records.to_arrays(arrays)
        try:
            nodes = [message.metadata.dst_node_id for message in messages]
            clients = self._clients_of(nodes)
            self._round_id = self._rounds.open(self._sent, len(messages), clients)
        except ROUND_LOST as error:
            self._lose(f"no round could be opened: {error}", error)
            return []
        for message in messages:
            message.content = records.address(
                message.content,
                inner.arrayrecord_key,
                self._round_id,
                self._rounds.plan.keep_local,
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
            reply.metadata.src_node_id: records.take_client(reply.content)
            for reply in replies
            if reply.has_content()
        }
        for reply in replies:
            self._clients.pop(reply.metadata.src_node_id, None)
        try:
            result = self._rounds.result(round_id, self._sent)
        except ROUND_LOST as error:
            self._lose(self._why(error, round_id, errors), error)
            return None, None
        # a node's word on itself counts if S0 has an upload of that client
        submitted = self._rounds.submitted
        self._clients |= {node: name for node, name in clients.items() if name in submitted}
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
        config, plan = self._rounds.config, self._rounds.plan
        log.info("\t│\t├── Servers: %s and %s", config.s0.address, config.s1.address)
        log.info("\t│\t├── Round: %s", plan.round)
        log.info("\t│\t├── Minimum uploads: %d", plan.min_clients)
        log.info("\t│\t├── On failure: %s", plan.on_failure)
        log.info("\t│\t└── Next model by: %s", type(self._strategy).__name__)
        log.addFilter(_unweighted)
        try:
            self._strategy.summary()
        finally:
            log.removeFilter(_unweighted)

    def _nodes_connect(self, grid: Grid, needed: int) -> bool:
        """Return whether enough nodes connect in time; `strategy` itself would wait for ever."""
        wait_s = self._rounds.plan.wait_s
        deadline = time.monotonic() + wait_s
        while (number := len(list(grid.get_node_ids()))) < needed:
            if time.monotonic() > deadline:
                said = f"{number} of the {needed} nodes needed are connected"
                self._lose(f"{said} (waited for {wait_s:g} s)")
                return False
            time.sleep(POLL_S)
        return True

    def _clients_of(self, nodes: list[int]) -> list[str] | None:
        """Return the names of the nodes' clients, or None while it is not known of each node."""
        names = {self._clients[node] for node in nodes if node in self._clients}
        return sorted(names) if len(names) == len(nodes) else None

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
                f"nodes sent arrays to this ServerApp in the clear: {listed(nodes)}; put "
                "securemedian_mod first among the ClientApp's mods"
            )

    def _why(self, error: SecureMedianError, round_id: str, errors: list[str]) -> str:
        """Return why a round has no result: the servers' reason, and what the nodes say."""
        reasons = [f"{error}", *errors]
        # errors of the mod have the name of our package in them
        silent = not any("securemedian" in text for text in errors)
        if silent and self._rounds.nobody_submitted(round_id):
            reasons.append("is securemedian_mod among the ClientApp's mods?")
        return "; ".join(reasons[: _MAX_REASONS + 2])

    def _lose(self, why: str, error: Exception | None = None) -> None:
        """Raise AggregationError, which ends the run, unless `on_failure` is "skip"."""
        if not self._rounds.plan.skips:
            # Flower prints a traceback, whose first line is a file
            log.error("securemedian: %s", why)
            raise AggregationError(f"securemedian: {why}") from error
        log.warning("securemedian: the model stays as it is: %s", why)
