"""The aggregator for a server: its aggregate is a round of the service."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.aggregators.weighted_aggregation_helper import (
    WeightedAggregationHelper,
    filter_aggregatable_metrics,
)
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

from securemedian.mpc.errors import ConfigError, InputError, RoundFailed, SecureMedianError
from securemedian.mpc.rounds.methods.registry import DEFAULT_METHOD
from securemedian.mpc.rounds.ranges.base import RangePolicy
from securemedian.nvflare import tasks
from securemedian.plugins.rounds import ROUND_LOST, Arrays, FrameworkRounds, TrainingPlan


class SecureMedian(ModelAggregator):
    """An aggregator whose aggregate S0 and S1 compute, without anybody seeing an update.

    It is for NVFlare's controllers of the form FedAvg or ScatterAndGather, with a persistor. Each
    round of theirs opens a round of the service, which closes when all sites have submitted, or
    when the controller waits no longer. The aggregate is weights where sites return weights, and
    weight differences where they return those; metrics are averaged, as FedAvg does.

    `method` and its `options` are those of a round (`securemedian round open .. METHOD --help`).
    The number of clients and the size of the model come from NVFlare.
    """

    def __init__(
        self,
        coordinator: str,
        *,
        method: str = DEFAULT_METHOD,
        min_clients: int = 2,
        deadline_s: float = 3600.0,
        range_policy: RangePolicy | None = None,
        on_failure: str = "stop",
        wait_s: float = 600.0,
        options: dict[str, Any] | None = None,
        keep_local: Sequence[str] = (),
    ) -> None:
        """Check the options of the rounds.

        `coordinator` is the path of coordinator.toml at the server. With fewer uploads than
        `min_clients` the servers refuse to compute. A round closes after `deadline_s`. Without a
        result, `on_failure` says "stop" the job or "skip" the round and keep the model. In each
        round `wait_s` is waited for servers and the end of another's round. `options` are the
        method's. Weights whose names fit a pattern of `keep_local` (`fnmatch`) are not sent: each
        site keeps its own while the job runs, and the model here keeps the first ones. Raises
        ConfigError.
        """
        super().__init__()
        # NVFlare writes an argument into the job from the attribute of its name
        self.coordinator = coordinator
        self.method, self.min_clients, self.deadline_s = method, min_clients, deadline_s
        self.range_policy, self.on_failure, self.wait_s = range_policy, on_failure, wait_s
        self.options, self.keep_local = options or {}, list(keep_local)
        self._checked = TrainingPlan.of(
            method,
            min_clients,
            deadline_s,
            range_policy,
            self.options,
            on_failure=on_failure,
            wait_s=wait_s,
            keep_local=self.keep_local,
        )
        # from the start of the run to its end
        self._rounds: FrameworkRounds | None = None
        # the id of the round that sites train for, "" if it could not be opened; None between
        # two rounds
        self._round_id: str | None = None
        # the model that they train
        self._sent: Arrays = {}
        self.reset_stats()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Open rounds, name them in the tasks, and leave none open."""
        super().handle_event(event_type, fl_ctx)
        if event_type == AppEventType.ROUND_STARTED:
            self._open(fl_ctx)
        elif event_type == AppEventType.BEFORE_TRAIN_TASK and self._round_id is not None:
            task = fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE)
            sent = tasks.address(task, self._round_id, self.keep_local)
            self._sent = sent or self._sent
        elif event_type == EventType.END_RUN and self._rounds:
            if self._round_id and self._rounds.nobody_submitted(self._round_id):
                self.log_error(fl_ctx, f"securemedian: {_NOBODY}")
            self._rounds.end()
            self._rounds = None

    def accept_model(self, model: FLModel) -> None:
        """Note the metrics and the kind of a site's result, whose weights are with S0 and S1."""
        params = model.params or {}
        if next(tasks.arrays_in(params), ""):
            name = model.meta.get("client_name", "a site")
            self.system_panic(
                f"securemedian: {name} sent its weights to this server, in the clear: "
                "SecureMedianFilter must be the last of the clients' filters",
                self.fl_ctx,
            )
            raise InputError(
                "weights in the clear: the result of a client; put SecureMedianFilter before it"
            )
        if params.get(tasks.ROUND) != self._round_id:
            # late, from a round that is over
            return
        self._kinds.add(model.params_type)
        self._metrics.append((model.metrics, model.meta.get(FLMetaKey.NUM_STEPS_CURRENT_ROUND, 1)))

    def aggregate_model(self) -> FLModel:
        """Close the round, and return its result with the mean metrics. Raises RoundFailed."""
        result = self._result()
        differences = self._kinds == {ParamsType.DIFF}
        if differences:
            result = {
                name: (array - self._sent[name]).astype(array.dtype)
                for name, array in result.items()
            }
        return FLModel(
            params_type=ParamsType.DIFF if differences else ParamsType.FULL,
            params=result,
            metrics=self._mean_metrics(),
        )

    def reset_stats(self) -> None:
        self._kinds: set[ParamsType] = set()
        self._metrics: list[tuple[dict[str, Any] | None, float]] = []

    def _open(self, fl_ctx: FLContext) -> None:
        """Open a round for the model to be sent; if none can be, end the job, or "skip" it."""
        # sites get no model without a round
        self._round_id, self._sent = "", {}
        try:
            if self._rounds is None:
                self._rounds = FrameworkRounds(
                    self.coordinator, self._checked, self.logger, "nvflare job abort"
                )
            model = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
            if not model:
                raise ConfigError(
                    f"the controller has no persistor for the model: {model!r}; give the recipe "
                    "a model"
                )
            clients = len(fl_ctx.get_engine().get_clients())
            if clients < self.min_clients:
                raise ConfigError(
                    f"fewer connected clients than min_clients ({self.min_clients}): {clients}; "
                    "connect more, or lower it"
                )
            self._sent = tasks.in_order(model[ModelLearnableKey.WEIGHTS])
            other = [name for name, one in self._sent.items() if not isinstance(one, np.ndarray)]
            if other:
                raise ConfigError(
                    f"the model has weights that are not numpy's arrays: {other[0]!r}; give the "
                    "recipe server_expected_format=ExchangeFormat.NUMPY"
                )
            self._round_id = self._rounds.open(self._sent, clients)
        except ROUND_LOST as error:
            why = f"securemedian: no round could be opened: {error}"
            if self._checked.skips:
                self.log_warning(fl_ctx, why)
            else:
                self.system_panic(why, fl_ctx)
        except SecureMedianError as error:
            self.system_panic(f"securemedian: {error}", fl_ctx)

    def _result(self) -> Arrays:
        """Return the result of the round, or the model as it is if there is none."""
        round_id, self._round_id = self._round_id, None
        try:
            if not round_id or self._rounds is None:
                raise RoundFailed("no result: there was no round; see why none was opened")
            return self._rounds.result(round_id, self._sent)
        except ROUND_LOST as error:
            why = f"securemedian: {error}"
            if round_id and self._rounds and self._rounds.nobody_submitted(round_id):
                why += f"; {_NOBODY}"
            if not self._checked.skips:
                raise RoundFailed(why) from error
            self.warning(f"{why}: the model stays as it is")
            return self._sent

    def _mean_metrics(self) -> dict[str, Any] | None:
        """Return the mean of the metrics, weighted by steps, if all sites have sent some."""
        if not self._metrics or not all(metrics for metrics, _ in self._metrics):
            return None
        mean = WeightedAggregationHelper()
        for number, (metrics, steps) in enumerate(self._metrics):
            mean.add(filter_aggregatable_metrics(metrics), steps, str(number), 0)
        return dict(mean.get_result()) or None


_NOBODY = (
    "no client has submitted: is SecureMedianFilter among the clients' filters? Otherwise their "
    "own logs say why"
)
