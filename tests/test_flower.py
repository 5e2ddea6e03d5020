"""The plug-in for Flower, with real daemons and Flower's own strategies, in process.

The runs with Flower's simulation and with a SuperLink are at the end.
"""

import copy
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, MultiKrum, Strategy
from flwr.supercore.task_identity import TaskIdentity

from securemedian.clients.client import Client
from securemedian.flower import SecureMedian, securemedian_mod
from securemedian.flower.records import CLIENT, put_local
from securemedian.mpc.errors import ConfigError, InputError
from securemedian.plugins.rounds import Arrays
from tests.daemons import Pair, running
from tests.plugin_contract import (
    SHIFTS,
    START,
    Contract,
    Ran,
    Train,
    included,
    nothing_is_open,
    noting,
    shifted,
)

pytestmark = pytest.mark.slow


def record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def arrays_of(content: ArrayRecord) -> Arrays:
    return {name: array.numpy() for name, array in content.items()}


def client_app(train: Train = shifted, mods: Iterable[Any] = (securemedian_mod,)) -> ClientApp:
    """Return an app as Flower's users write it."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        model = arrays_of(message.content["arrays"])
        trained = train(context.node_id, model)
        metrics = MetricRecord({"loss": float(context.node_id), "num-examples": 10})
        content = RecordDict({"arrays": record(trained), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model = arrays_of(message.content["arrays"])
        metrics = MetricRecord({"mean": float(model["w"].mean()), "num-examples": 10})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


class InProcessGrid(Grid):
    """Nodes that are function calls; what goes to them and comes from them is copied and kept."""

    def __init__(self, app: ClientApp, configs: dict[int, dict[str, Any]]) -> None:
        self.app, self.configs = app, configs
        self.run_config: dict[str, Any] = {}
        self.sent: list[Message] = []
        self.replies: list[Message] = []
        self.seconds: list[float] = []
        # Flower's record of each node between messages
        self.states: dict[int, RecordDict] = {}
        # messages carry what flwr's own process would have set
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        begin = time.perf_counter()
        replies = [self._call(copy.deepcopy(message)) for message in messages]
        self.seconds.append(time.perf_counter() - begin)
        self.replies += copy.deepcopy(replies)
        return replies

    def _call(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        self.sent.append(copy.deepcopy(message))
        state = self.states.setdefault(node, RecordDict())
        context = Context(1, node, self.configs[node], state, self.run_config)
        try:
            return copy.deepcopy(self.app(copy.deepcopy(message), context))
        # as flwr's run_clientapp reports it
        except Exception as error:
            return Message(Error(0, f"{type(error)}:<'{error}'>"), reply_to=message)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.configs)

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def node_configs(pair: Pair, nodes: int = 3) -> dict[int, dict[str, Any]]:
    return {
        number: {"securemedian-config": pair.toml(f"client-{number}")}
        for number in range(1, nodes + 1)
    }


def grid_of(pair: Pair, train: Train = shifted, mods: Any = (securemedian_mod,)) -> InProcessGrid:
    return InProcessGrid(client_app(train, mods), node_configs(pair))


def secure(pair: Pair, inner: FedAvg | None = None, **options: Any) -> SecureMedian:
    # a node that is not there is not waited for
    given: dict[str, Any] = {"wait_s": 0.2, "method": "radix"}
    return SecureMedian(pair.toml("coordinator"), inner or FedAvg(), **given | options)


def run(strategy: Strategy, grid: Grid, rounds: int = 1) -> Any:
    return strategy.start(grid, record(START), num_rounds=rounds, timeout=60)


class TestContract(Contract):
    """Flower's strategy and mod keep the contract of plug-ins."""

    HINT = "among the ClientApp's mods"

    def secure(self, coordinator: str, **options: Any) -> SecureMedian:
        return SecureMedian(coordinator, FedAvg(), **options)

    def run(
        self,
        pair: Pair,
        folder: Path,
        train: Train = shifted,
        rounds: int = 1,
        of_third: str | None = None,
        coordinator: str = "",
        **options: Any,
    ) -> Ran:
        trained, noted = noting(train)
        grid = grid_of(pair, noted)
        if of_third is not None:
            grid.configs[3] = {"securemedian-config": of_third} if of_third else {}
        strategy = secure(pair, **options)
        if coordinator:
            strategy = SecureMedian(coordinator, **options)
        try:
            result = run(strategy, grid, rounds)
        except AggregationError as error:
            return Ran(START, str(error), trained)
        # a run without rounds has no result
        return Ran(arrays_of(result.arrays) or START, "", trained)


# Results


def test_the_result_is_flowers_own_median_and_no_update_leaves_a_node(pair: Pair) -> None:
    grid, plain = grid_of(pair), InProcessGrid(client_app(mods=[]), node_configs(pair))
    result = run(secure(pair), grid, rounds=2)
    expected = run(FedMedian(), plain, rounds=2)
    ours, theirs = arrays_of(result.arrays), arrays_of(expected.arrays)
    for name in ("w", "b"):
        assert np.array_equal(ours[name], theirs[name].astype(np.float32))
        assert (ours[name].dtype, ours[name].shape) == (START[name].dtype, START[name].shape)
    # a counter has no median: it keeps its value, and its type
    assert (ours["steps"].dtype, ours["steps"].item()) == (np.dtype(np.int64), 7)
    # metrics and evaluation are as usual
    assert result.train_metrics_clientapp[2]["loss"] == pytest.approx(2)
    assert result.evaluate_metrics_clientapp == expected.evaluate_metrics_clientapp
    # a node sends only metrics and, if it has trained, who it is
    assert len(grid.replies) == 12
    for reply in grid.replies:
        trained = reply.metadata.message_type == MessageType.TRAIN
        assert set(reply.content) == {"metrics", CLIENT} if trained else {"metrics"}
        assert not reply.content.array_records
        if trained:
            node = reply.metadata.src_node_id
            assert dict(reply.content.config_records[CLIENT]) == {"name": f"client-{node}"}
        assert all(isinstance(value, int | float) for value in reply.content["metrics"].values())
    # the same search finds the arrays that Flower's own strategy asks for
    assert any(reply.content.array_records for reply in plain.replies)
    assert nothing_is_open(pair)


def test_multi_krum_is_flowers_own(tmp_path: Path) -> None:
    """Five nodes; a faulty one sends the opposite of what it has trained, which is as long."""

    def train(node: int, model: Arrays) -> Arrays:
        # so uneven that no two nodes are as far from the others
        step = np.float32(0.1 + 0.004 * node**2)
        sign = -1 if node == 4 else 1
        return model | {name: model[name] + sign * step for name in ("w", "b")}

    with running(Pair(tmp_path / "keys", clients=5)) as five:
        configs = node_configs(five, 5)
        strategy = SecureMedian(
            five.toml("coordinator"), FedAvg(), method="krum", options={"faulty": 1}
        )
        ours = run(strategy, InProcessGrid(client_app(train), configs), rounds=2)
    plain = InProcessGrid(client_app(train, mods=[]), configs)
    theirs = run(MultiKrum(num_malicious_nodes=1, num_nodes_to_select=4), plain, rounds=2)
    for name in ("w", "b"):
        one, other = ours.arrays[name].numpy(), theirs.arrays[name].numpy()
        # in fixed point
        assert np.abs(one - other).max() < 1e-4
        assert np.abs(one - START[name]).min() > 0.1


def test_an_optimiser_at_the_server_steps_towards_the_median(pair: Pair) -> None:
    ours = run(secure(pair, FedAdam(eta=0.1)), grid_of(pair), rounds=2)

    class AdamOnTheMedian(FedAdam):
        """FedAdam whose average is the median in the clear."""

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            replies = list(replies)
            names = replies[0].content["arrays"].keys()
            median = {
                name: np.median(
                    [reply.content["arrays"][name].numpy() for reply in replies], axis=0
                )
                for name in names
            }
            for reply in replies:
                reply.content["arrays"] = record(median)
            return super().aggregate_train(server_round, replies)

    plain = InProcessGrid(client_app(mods=[]), node_configs(pair))
    theirs = run(AdamOnTheMedian(eta=0.1), plain, rounds=2)
    for name in ("w", "b"):
        one, other = ours.arrays[name].numpy(), theirs.arrays[name].numpy()
        assert np.allclose(one, other, rtol=1e-5)
        assert not np.allclose(one, START[name])
        assert one.dtype == START[name].dtype


# Failures in a round


class Sampling(FedAvg):
    """A strategy that trains on all three nodes in the first round, and on two from then on."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.fraction_train = 1.0 if server_round == 1 else 0.5
        return super().configure_train(server_round, arrays, config, grid)


def clients_by_round(
    pair: Pair, strategy: SecureMedian, grid: Grid, rounds: int
) -> list[tuple[list[str], list[str]]]:
    """Run a training; return the clients of each round that S0 names, and those left out."""
    seen: list[tuple[list[str], list[str]]] = []

    def look(server_round: int, _: ArrayRecord) -> None:
        if server_round:
            status = pair.status()
            seen.append((sorted(status["clients"]), sorted(status["left_out"])))

    start = record(START)
    strategy.start(grid, start, num_rounds=rounds, timeout=60, evaluate_fn=look)
    return seen


def test_a_round_is_for_the_sampled_nodes_once_they_are_known(pair: Pair) -> None:
    grid = grid_of(pair)
    seen = clients_by_round(pair, secure(pair, Sampling(fraction_evaluate=0.0)), grid, 3)
    trained = [message.metadata.dst_node_id for message in grid.sent]
    assert seen[0] == (pair.names, [])
    for number, sampled in ((1, trained[3:5]), (2, trained[5:])):
        assert seen[number] == (sorted(f"client-{node}" for node in sampled), [])


@pytest.mark.parametrize("claimed", ["client-1", "mallory"])
def test_a_node_that_says_that_it_is_another_keeps_nobody_out(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, claimed: str
) -> None:
    name = Client.name
    says = {"client-2": claimed}
    monkeypatch.setattr(Client, "name", lambda self: says.get(name(self), name(self)))
    strategy = secure(pair, FedAvg(fraction_evaluate=0.0))
    seen = clients_by_round(pair, strategy, grid_of(pair), 2)
    assert seen == [(pair.names, [])] * 2


def test_a_node_that_has_failed_counts_as_unknown(pair: Pair) -> None:
    calls: list[int] = []

    def train(node: int, model: Arrays) -> Arrays:
        calls.append(node)
        if node == 3 and calls.count(3) == 2:
            raise ValueError("out of memory")
        return shifted(node, model)

    strategy = secure(pair, FedAvg(fraction_evaluate=0.0))
    seen = clients_by_round(pair, strategy, grid_of(pair, train), 2)
    assert seen[1] == (pair.names, ["client-3"])
    assert strategy._clients == {1: "client-1", 2: "client-2"}


def test_a_node_that_is_gone_is_not_waited_for_without_end(pair: Pair) -> None:
    """Flower itself waits for ever for the nodes that its strategy needs."""

    class Losing(InProcessGrid):
        def send_and_receive(self, messages: Iterable[Message], **_: Any) -> Iterable[Message]:
            messages = list(messages)
            # killed in training: SuperLink answers for it
            if messages and messages[0].metadata.message_type == MessageType.TRAIN:
                self.configs.pop(3, None)
            alive = [m for m in messages if m.metadata.dst_node_id in self.configs]
            return super().send_and_receive(alive)

    needs_three = {"min_train_nodes": 3, "min_available_nodes": 3}
    grid = Losing(client_app(), node_configs(pair))
    with pytest.raises(
        AggregationError, match=r"2 of the 3 nodes needed are connected \(waited for 0.2 s"
    ):
        run(secure(pair, FedAvg(**needs_three)), grid, rounds=2)
    # the round in which it was lost has a result
    assert included(pair) == ["client-1", "client-2"]
    grid = Losing(client_app(), node_configs(pair))
    result = run(secure(pair, FedAvg(**needs_three), on_failure="skip"), grid, rounds=2)
    assert list(result.train_metrics_clientapp) == [1]


def test_nodes_evaluate_with_the_layers_that_they_keep(pair: Pair) -> None:
    evaluated: list[float] = []

    class Looking(InProcessGrid):
        def _call(self, message: Message) -> Message:
            reply = super()._call(message)
            if message.metadata.message_type == MessageType.EVALUATE:
                content = copy.deepcopy(message.content)
                put_local(content, self.states[message.metadata.dst_node_id])
                evaluated.append(float(content["arrays"]["b"].numpy()[0]))
            return reply

    run(secure(pair, keep_local=["b"]), Looking(client_app(), node_configs(pair)), rounds=2)
    assert sorted(evaluated[3:]) == sorted(-2 * shift for shift in SHIFTS.values())


# Faults in the apps


def test_a_strategy_without_the_mod_trains_nothing(pair: Pair) -> None:
    grid = grid_of(pair, mods=())
    with pytest.raises(AggregationError, match="is securemedian_mod among the ClientApp's mods"):
        run(secure(pair), grid)
    assert all(reply.has_error() for reply in grid.replies)
    assert nothing_is_open(pair)


def test_an_update_in_the_clear_ends_the_run(pair: Pair) -> None:
    """A ClientApp without the mod may take any record of arrays that it finds."""
    app = ClientApp()

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        (arrays,) = message.content.array_records.values()
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    with pytest.raises(AggregationError, match="in the clear: .*; put securemedian_mod first"):
        run(secure(pair, on_failure="skip"), InProcessGrid(app, node_configs(pair)))
    assert nothing_is_open(pair)


def test_a_mod_without_the_strategy_refuses(pair: Pair) -> None:
    trained: list[int] = []

    def train(node: int, model: Arrays) -> Arrays:
        trained.append(node)
        return model

    grid = grid_of(pair, train)
    run(FedAvg(fraction_evaluate=0.0), grid)
    assert trained == []
    assert all("use the strategy SecureMedian" in reply.error.reason for reply in grid.replies)


def test_arrays_may_leave_in_no_other_reply(pair: Pair) -> None:
    app = client_app()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict({"arrays": record(START)}), reply_to=message)

    grid = InProcessGrid(app, node_configs(pair))
    grid.send_and_receive([Message(RecordDict(), 1, MessageType.QUERY)])
    assert (
        "arrays that must not leave this node are in a reply: 'query'"
        in grid.replies[0].error.reason
    )


def test_other_train_functions_and_mods_are_covered(pair: Pair) -> None:
    """A message type may be `train.NAME`, and mods after ours see the arrays."""
    app = ClientApp(mods=[securemedian_mod])
    seen: list[list[str]] = []

    def look(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        seen.append(sorted(reply.content))
        return reply

    @app.train("other", mods=[look])
    def other(message: Message, context: Context) -> Message:
        content = {"a": message.content["arrays"], "m": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    class Other(FedAvg):
        def configure_train(self, *arguments: Any) -> Iterable[Message]:
            for message in super().configure_train(*arguments):
                message.metadata.message_type = "train.other"
                yield message

    grid = InProcessGrid(app, node_configs(pair))
    run(secure(pair, Other(fraction_evaluate=0.0)), grid)
    assert seen == [["a", "m"]] * 3
    assert [list(reply.content) for reply in grid.replies] == [["m", CLIENT]] * 3


# Faults in configurations


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "start its SuperNode with --node-config 'securemedian-config="),
        ({"securemedian-config": "keys/client-{client}.toml"}, "has no partition-id"),
    ],
)
def test_a_nodes_mistake_is_one_message(
    config: dict[str, Any], said: str, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    grid = grid_of(pair)
    grid.configs[3] = config
    run(secure(pair), grid)
    (refused,) = [reply.error.reason for reply in grid.replies if reply.has_error()]
    assert said in refused
    assert f": {refused}" in caplog.text
    assert included(pair) == ["client-1", "client-2"]


def test_a_nodes_own_configuration_goes_before_the_runs(pair: Pair) -> None:
    grid = grid_of(pair)
    grid.run_config = {"securemedian-config": f"{pair.folder}/client-{{client}}.toml"}
    grid.configs = {1: {"partition-id": 1}, 2: {"partition-id": 0}, 3: grid.configs[3]}
    grid.configs[3]["partition-id"] = 0
    run(secure(pair), grid)
    assert included(pair) == ["client-1", "client-2", "client-3"]


def test_a_wrong_coordinator_or_strategy_is_refused_before_the_run(pair: Pair) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        SecureMedian("/nowhere/coordinator.toml")
    with pytest.raises(ConfigError, match="works on an average: SecureMedian"):
        SecureMedian(pair.toml("coordinator"), secure(pair))
    with pytest.raises(ConfigError, match="has sampled fewer nodes than min_clients .3.: 2"):
        run(secure(pair, FedAvg(fraction_train=0.5), min_clients=3), grid_of(pair))
    with pytest.raises(InputError, match="without real-valued entries"):
        secure(pair).start(grid_of(pair), record({"steps": np.arange(3)}))
    assert nothing_is_open(pair)


# Servers that are away, runs that are stopped


def test_nodes_evaluate_where_no_round_opens(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    coordinator, grid = pair.away("coordinator"), grid_of(pair)
    result = run(SecureMedian(coordinator, on_failure="skip", wait_s=0.1), grid, rounds=2)
    assert caplog.text.count("the model stays as it is: no round could be opened") == 2
    # nobody trained, and the evaluation was as usual
    assert list(result.evaluate_metrics_clientapp) == [1, 2]
    assert {m.metadata.message_type for m in grid.sent} == {MessageType.EVALUATE}


def test_an_interrupted_run_ends_its_round(pair: Pair) -> None:
    class Interrupted(InProcessGrid):
        def send_and_receive(self, messages: Iterable[Message], **_: Any) -> Iterable[Message]:
            assert list(messages)
            assert pair.status()["state"] == "open"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(secure(pair), Interrupted(client_app(), node_configs(pair)))
    status = pair.status()
    assert (status["state"], status["opened"]) == ("failed", "nothing")
    assert "the run was stopped" in status["reason"]
