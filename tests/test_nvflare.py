"""The plug-in for NVFlare, with real daemons and NVFlare's own controllers, in process.

The runs of its simulator are in tests/test_nvflare_runs.py.
"""

import copy
import json
import re
from array import array
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")

from nvflare.apis.client import Client as Site
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.filter import Filter, FilterChainType, FilterContextKey
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.utils.event import fire_event_to_components
from nvflare.apis.wf_comm_spec import WFCommSpec
from nvflare.apis.workspace import Workspace
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import ModelLearnable, make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import (
    FullModelShareableGenerator,
)
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.fuel.utils import fobs
from nvflare.private.fed.app.fl_conf import create_privacy_manager
from nvflare.private.fed.client.client_engine_executor_spec import TaskAssignment
from nvflare.private.fed.client.client_runner import (
    ClientRunner,
    ClientRunnerConfig,
    TaskRouter,
)
from nvflare.private.fed.utils.fed_utils import fobs_initialize
from nvflare.private.privacy_manager import Scope

from securemedian.mpc.errors import ConfigError
from securemedian.mpc.rounds.ranges.uniform import MeanRange
from securemedian.nvflare import SecureMedian, SecureMedianFilter, tasks
from securemedian.plugins.rounds import Arrays
from tests.daemons import ROOT, Pair
from tests.plugin_contract import (
    START,
    Contract,
    Ran,
    Train,
    fails_on,
    included,
    nothing_is_open,
    noting,
    shifted,
)

pytestmark = pytest.mark.slow

JOB = "job"


def median_of(train: Train, model: Arrays, sites: tuple[int, ...] = (1, 2, 3)) -> Arrays:
    """Return numpy's median of what sites train."""
    trained = [train(site, model) for site in sites]
    return {name: np.median([one[name] for one in trained], axis=0) for name in ("w", "b")}


class Trainer(Executor):
    """The training of a site, as users of NVFlare write it."""

    def __init__(self, site: int, train: Train, kind: str) -> None:
        super().__init__()
        self.site, self.train, self.kind = site, train, kind
        self.seen: list[str] = []

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        self.seen.append(task_name)
        model = from_shareable(shareable).data
        trained = self.train(self.site, copy.deepcopy(model))
        if self.kind == DataKind.WEIGHT_DIFF:
            # as NVFlare's own learners do, whole numbers too
            trained = {
                name: (array - model[name]).astype(np.float32) for name, array in trained.items()
            }
        # in place, as many trainers do
        model["w"] *= 0
        meta = {
            MetaKey.NUM_STEPS_CURRENT_ROUND: self.site,
            MetaKey.INITIAL_METRICS: {"loss": float(self.site), "epoch": np.float32(2)},
        }
        return DXO(self.kind, trained, meta).to_shareable()


class Persistor(ModelPersistor):
    """A component that keeps the model at the server."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[Arrays] = []
        self.metrics: list[Any] = []

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        super().handle_event(event_type, fl_ctx)
        if event_type == AppEventType.AFTER_AGGREGATION:
            result = fl_ctx.get_prop(AppConstants.AGGREGATION_RESULT)
            self.metrics.append(getattr(result, "metrics", None))

    def load_model(self, fl_ctx: FLContext) -> ModelLearnable:
        return make_model_learnable(copy.deepcopy(START), {})

    def save_model(self, model: ModelLearnable, fl_ctx: FLContext) -> None:
        self.saved.append(copy.deepcopy(model["weights"]))


class Engine:
    """The contexts, events and files that NVFlare's server or a site gives its components."""

    def __init__(self, name: str, folder: Path, handlers: list[FLComponent]) -> None:
        self.handlers = handlers
        self.components: dict[str, Any] = {}
        self.sites: list[Site] = []
        self.reasons: list[str] = []
        self.abort = Signal()
        # of the site's own privacy policy
        self.scope: Scope | None = None
        for kind in ("startup", "local"):
            (folder / kind).mkdir(parents=True, exist_ok=True)
        self._workspace = Workspace(str(folder), name)
        self._contexts = FLContextManager(self, name, JOB)

    def new_context(self) -> FLContext:
        return self._contexts.new_context()

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.FATAL_SYSTEM_ERROR:
            self.reasons.append(fl_ctx.get_prop(FLContextKey.EVENT_DATA))
            self.abort.trigger(True)
        fire_event_to_components(event_type, self.handlers, fl_ctx)

    def get_workspace(self) -> Workspace:
        return self._workspace

    def get_clients(self) -> list[Site]:
        return self.sites

    def get_component(self, name: str) -> Any:
        return self.components.get(name)

    def persist_components(self, *_: Any, **__: Any) -> None: ...

    def register_aux_message_handler(self, *_: Any, **__: Any) -> None: ...


class Loopback(WFCommSpec):
    """Sites that are function calls; what goes to them and comes from them is kept in bytes."""

    def __init__(self, server: Engine, sites: dict[int, tuple[ClientRunner, Engine]]) -> None:
        super().__init__()
        self.server, self.sites = server, sites
        self.replies: list[bytes] = []

    def broadcast(self, task: Task, fl_ctx: FLContext, *_: Any, **__: Any) -> None:
        sent = None
        for number, (runner, engine) in self.sites.items():
            if self.server.abort.triggered:
                return
            client_task = ClientTask(self.server.sites[number - 1], task)
            context = self.server.new_context()
            task.before_task_sent_cb(client_task=client_task, fl_ctx=context)
            # as NVFlare does, the first site's copy is everybody's
            sent = sent or fobs.dumps(task.data)
            at_site = engine.new_context()
            at_site.set_peer_context(context)
            at_site.set_prop(FLContextKey.SCOPE_OBJECT, engine.scope, private=True, sticky=False)
            assignment = TaskAssignment(task.name, client_task.id, fobs.loads(sent))
            self.replies.append(fobs.dumps(runner._process_task(assignment, at_site)))
            client_task.result = fobs.loads(self.replies[-1])
            task.result_received_cb(client_task=client_task, fl_ctx=context)

    def broadcast_and_wait(self, *arguments: Any, **options: Any) -> None:
        options.pop("abort_signal", None)
        self.broadcast(*arguments, **options)

    def get_num_standing_tasks(self) -> int:
        return 0


class Job:
    """A job of NVFlare's: a controller of its own, and three sites with its own runner."""

    def __init__(
        self,
        pair: Pair,
        folder: Path,
        train: Train = shifted,
        kind: str = DataKind.WEIGHTS,
        filters: tuple[str, ...] = ("data", "result"),
        sites: int = 3,
        extra: tuple[Filter, ...] = (),
    ) -> None:
        self.folder, self.trainers, self.engines = folder, {}, {}
        runners = {}
        for number in range(1, sites + 1):
            config = str(pair.folder / "client-{client}.toml")
            engine = Engine(f"site-{number}", folder / f"site-{number}", [])
            chains: dict[str, list[Filter]] = {"data": [], "result": list(extra)}
            for chain, name in (
                ("data", FilterChainType.TASK_DATA_CHAIN),
                ("result", FilterChainType.TASK_RESULT_CHAIN),
            ):
                if chain in filters:
                    one = SecureMedianFilter(config)
                    one.set_prop(FilterContextKey.CHAIN_TYPE, name)
                    chains[chain].append(one)
            router = TaskRouter()
            trainer = Trainer(number, train, kind)
            router.add_executor(["*"], trainer)
            runner = ClientRunner(
                {},
                ClientRunnerConfig(
                    router,
                    {f"{task}/in": chains["data"] for task in ("train", "submit_model")},
                    {f"{task}/out": chains["result"] for task in ("train", "submit_model")},
                ),
                JOB,
                engine,
            )
            runners[number] = (runner, engine)
            self.trainers[number], self.engines[number] = trainer, engine
        self.server = Engine("server", folder / "server", [])
        self.server.sites = [Site(f"site-{n}", f"token-{n}") for n in runners]
        self.loop = Loopback(self.server, runners)
        self.persistor = Persistor()

    def filters(self, site: int) -> list[Filter]:
        runner, _ = self.loop.sites[site]
        return [*runner.task_data_filters["train/in"], *runner.task_result_filters["train/out"]]

    def run(self, aggregator: Any, rounds: int = 1, workflow: type[Controller] = FedAvg) -> Arrays:
        """Run the job and return the last model that was kept, or the one to start from."""
        server = self.server
        server.components = {
            "persistor": self.persistor,
            "aggregator": aggregator,
            "shareable_generator": FullModelShareableGenerator(),
        }
        if issubclass(workflow, FedAvg):
            controller = workflow(
                num_clients=len(server.sites),
                num_rounds=rounds,
                aggregator=aggregator,
                ignore_result_error=True,
                task_check_period=0.01,
            )
        else:
            controller = ScatterAndGather(
                min_clients=1,
                num_rounds=rounds,
                persistor_id="persistor",
                ignore_result_error=True,
                task_check_period=0.01,
            )
        controller.set_communicator(self.loop)
        parts = (aggregator, self.persistor, controller)
        server.handlers = [part for part in parts if part is not None]
        context = server.new_context()
        try:
            server.fire_event(EventType.START_RUN, context)
            controller.initialize(context)
            controller.control_flow(server.abort, context)
        finally:
            server.fire_event(EventType.END_RUN, server.new_context())
        return self.persistor.saved[-1] if self.persistor.saved else START

    @property
    def reason(self) -> str:
        """Why the job was ended, or "" if it was not."""
        return "\n".join(self.server.reasons)

    @property
    def left(self) -> list[Shareable]:
        """Everything that has left a site."""
        return [fobs.loads(reply) for reply in self.loop.replies]


@pytest.fixture(scope="module", autouse=True)
def formats() -> None:
    """Register what NVFlare's processes write and read messages with."""
    fobs_initialize()


def secure(pair: Pair, **options: Any) -> SecureMedian:
    # it does not wait for a missing server
    given: dict[str, Any] = {"wait_s": 0.2, "method": "radix"}
    return SecureMedian(str(pair.folder / "coordinator.toml"), **given | options)


def no_array_left(job: Job) -> None:
    """Look for arrays in everything that has left a site."""
    assert job.left
    for reply in job.left:
        assert list(tasks.arrays_in(reply)) == []
        # and by type, which finds a list of arrays as well
        assert b"ndarray" not in fobs.dumps(reply)


class TestContract(Contract):
    """NVFlare's aggregator and filter keep the contract of plug-ins, and no array leaves a site."""

    HINT = "is SecureMedianFilter among"

    def secure(self, coordinator: str, **options: Any) -> SecureMedian:
        return SecureMedian(coordinator, **options)

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
        job = Job(pair, folder, noted)
        for one in job.filters(3) if of_third is not None else ():
            one.config = of_third
        chosen = SecureMedian(coordinator, **options) if coordinator else secure(pair, **options)
        model = job.run(chosen, rounds)
        if job.left:
            no_array_left(job)
        return Ran(model, job.reason, trained)


# Results


@pytest.mark.parametrize(
    ("kind", "workflow"), [(DataKind.WEIGHTS, FedAvg), (DataKind.WEIGHT_DIFF, ScatterAndGather)]
)
def test_the_result_is_the_median_and_no_update_leaves_a_site(
    kind: str, workflow: type[Controller], pair: Pair, tmp_path: Path
) -> None:
    job = Job(pair, tmp_path, kind=kind)
    result = job.run(secure(pair), 2, workflow)
    assert not job.reason
    expected: Arrays = START
    for _ in range(2):
        expected = START | median_of(shifted, expected)
    for name in ("w", "b"):
        assert np.abs(result[name] - expected[name]).max() < 1e-5
        assert (result[name].dtype, result[name].shape) == (START[name].dtype, START[name].shape)
    # a counter has no median: it keeps its value, and its type
    assert (result["steps"].dtype, result["steps"].tolist()) == (np.dtype(np.int64), [7])
    assert included(pair) == ["client-1", "client-2", "client-3"]
    no_array_left(job)
    assert len(job.left) == 6
    for reply in job.left:
        dxo = from_shareable(reply)
        assert dxo.data_kind == kind
        assert list(dxo.data) == [tasks.ROUND]
        assert dxo.meta[MetaKey.INITIAL_METRICS]["epoch"] == 2
    assert nothing_is_open(pair)


def test_the_search_for_arrays_finds_what_nvflare_itself_sends(pair: Pair, tmp_path: Path) -> None:
    job = Job(pair, tmp_path, filters=())
    job.run(None)
    for reply in job.left:
        assert sorted(tasks.arrays_in(reply)) == ["DXO.data.b", "DXO.data.steps", "DXO.data.w"]
        assert b"ndarray" in fobs.dumps(reply)


def test_metrics_are_averaged_by_steps_as_nvflare_does(pair: Pair, tmp_path: Path) -> None:
    private, plain = Job(pair, tmp_path / "private"), Job(pair, tmp_path / "plain", filters=())
    private.run(secure(pair))
    plain.run(None)
    assert private.persistor.metrics == plain.persistor.metrics
    assert private.persistor.metrics[0]["loss"] == pytest.approx((1 + 4 + 9) / 6)


class HalfSteps(FedAvg):
    """FedAvg with an optimiser at the server, as NVFlare's FedOpt is: a half step per round.

    Like that one it leaves the model in the context unchanged from the start.
    """

    def update_model(self, model: FLModel, aggr_result: FLModel) -> FLModel:
        assert aggr_result.params_type == ParamsType.DIFF
        model.params = {
            name: (array + aggr_result.params[name] / 2).astype(array.dtype)
            for name, array in model.params.items()
        }
        return model


def test_an_optimiser_at_the_server_steps_towards_the_median(pair: Pair, tmp_path: Path) -> None:
    job = Job(pair, tmp_path, kind=DataKind.WEIGHT_DIFF)
    result = job.run(secure(pair), 2, HalfSteps)
    assert not job.reason
    step = median_of(shifted, START)["w"] - START["w"]
    assert np.abs(result["w"] - START["w"] - step).max() < 1e-5


def test_filters_before_ours_work_on_the_weights(pair: Pair, tmp_path: Path) -> None:
    class Clip(Filter):
        """A filter as those for differential privacy are."""

        def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
            dxo = from_shareable(shareable)
            dxo.data["w"] = np.clip(dxo.data["w"], -0.5, 0.5)
            return dxo.update_shareable(shareable)

    job = Job(pair, tmp_path, extra=(Clip(),))
    result = job.run(secure(pair))
    assert np.array_equal(result["w"], np.clip(median_of(shifted, START)["w"], -0.5, 0.5))
    no_array_left(job)


@pytest.mark.parametrize("filters", [(), ("data", "result")])
def test_a_site_may_have_the_filter_of_its_own(
    filters: tuple[str, ...], pair: Pair, tmp_path: Path
) -> None:
    """A site's filters, in privacy.json as the page has it, run before those of the job."""
    page = (ROOT / "docs" / "nvflare.md").read_text("utf-8")
    policy = re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0]
    job = Job(pair, tmp_path, filters=filters)
    for number, engine in job.engines.items():
        local = tmp_path / f"site-{number}" / "local"
        (local / "privacy.json").write_text(policy)
        (local / "securemedian.toml").symlink_to(pair.folder / f"client-{number}.toml")
        engine.scope = create_privacy_manager(engine.get_workspace(), names_only=False).get_scope(
            None
        )
    result = job.run(secure(pair))
    assert np.array_equal(result["w"], median_of(shifted, START)["w"])
    assert included(pair) == ["client-1", "client-2", "client-3"]
    no_array_left(job)


# Failures in a round


def test_a_round_of_differences_is_skipped_on_request(pair: Pair, tmp_path: Path) -> None:
    """And each site's own weights stay with it, whose differences are to them."""
    job = Job(pair, tmp_path, fails_on(3, until=1), DataKind.WEIGHT_DIFF)
    chosen = secure(pair, min_clients=3, on_failure="skip", keep_local=["b"])
    result = job.run(chosen, 2, ScatterAndGather)
    # the second round trained from the start model
    assert np.array_equal(job.persistor.saved[0]["w"], START["w"])
    assert np.array_equal(result["w"], shifted(1, START)["w"])
    assert np.array_equal(result["b"], START["b"])
    no_array_left(job)


# Faults in a job


@pytest.mark.parametrize("filters", [(), ("result",)])
def test_an_aggregator_without_the_filter_in_both_chains_gets_nothing(
    filters: tuple[str, ...], pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(pair, tmp_path, filters=filters)
    job.run(secure(pair))
    assert "is SecureMedianFilter among the clients' filters?" in job.reason
    # the line in a site's log
    assert "expect content_type DXO but got DXO for SecureMedianFilter" in caplog.text
    assert all(reply.get_return_code() != ReturnCode.OK for reply in job.left)
    no_array_left(job)
    assert nothing_is_open(pair)


def test_a_filter_without_the_aggregator_refuses_before_training(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(pair, tmp_path)
    job.run(None)
    assert "use the aggregator SecureMedian at the server" in caplog.text
    assert all(trainer.seen == [] for trainer in job.trainers.values())
    codes = {reply.get_return_code() for reply in job.left}
    assert codes == {ReturnCode.TASK_DATA_FILTER_ERROR}


def test_an_update_in_the_clear_ends_the_job(pair: Pair, tmp_path: Path) -> None:
    """A site's configuration, written by hand, may lack one of the two chains."""
    job = Job(pair, tmp_path, filters=("data",))
    job.run(secure(pair, on_failure="skip"), 2)
    assert "site-1 sent its weights to this server, in the clear" in job.reason
    assert len(job.left) == 1
    assert nothing_is_open(pair)


def test_arrays_may_leave_in_no_other_result(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The evaluation of sites' models by each other asks for them."""
    job = Job(pair, tmp_path)
    runner, engine = job.loop.sites[1]
    for name, said in (
        ("submit_model", "the task names no round to submit to: submit_model"),
        ("train", "the task names no round to submit to: train"),
    ):
        task = DXO(DataKind.WEIGHTS, START).to_shareable()
        context = engine.new_context()
        context.set_peer_context(job.server.new_context())
        reply = runner._process_task(TaskAssignment(name, "1", task), context)
        assert said in caplog.text
        assert list(tasks.arrays_in(reply)) == []
        assert reply.get_return_code() != ReturnCode.OK


@pytest.mark.parametrize(
    "numbers",
    [
        np.ones(2),
        [0.5, 1.5],
        (1, 2),
        {0.5},
        [np.float32(1)],
        [[0.5]],
        b"\0\1",
        bytearray(2),
        memoryview(b"ab"),
        array("f", [1, 2]),
        deque([0.5]),
        DXO(DataKind.METRICS, {"all": [0.5, 0.25]}),
    ],
    ids=repr,
)
def test_numbers_in_any_collection_are_arrays(numbers: Any) -> None:
    assert list(tasks.arrays_in({"a": [{"b": numbers}]}))
    assert not list(
        tasks.arrays_in({"a": ["text", {"loss": 0.5, "n": 3, "x": np.float32(1)}, [], b""]})
    )


def test_arrays_beside_the_weights_are_refused(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Gradients(Filter):
        """A site's own filter that adds something."""

        def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
            shareable["gradients"] = [{"of": np.ones(2)}]
            return shareable

    job = Job(pair, tmp_path, extra=(Gradients(),))
    job.run(secure(pair))
    assert "this site are in the result of 'train': gradients.0.of" in caplog.text
    no_array_left(job)


# Faults in configurations


def test_a_sites_own_configuration_goes_before_the_jobs(pair: Pair, tmp_path: Path) -> None:
    job = Job(pair, tmp_path)
    for number, mine in ((1, 2), (2, 1)):
        own = tmp_path / f"site-{number}" / "local" / "securemedian.toml"
        own.symlink_to(pair.folder / f"client-{mine}.toml")
        for one in job.filters(number):
            one.config = str(pair.folder / "client-3.toml")
    job.run(secure(pair))
    assert included(pair) == ["client-1", "client-2", "client-3"]


def test_a_site_without_a_number_needs_a_configuration_of_its_own(
    pair: Pair, tmp_path: Path
) -> None:
    one = SecureMedianFilter("client-{client}.toml")
    context = Engine("clinic", tmp_path, []).new_context()
    task = DXO(DataKind.WEIGHTS, dict(START)).to_shareable()
    tasks.address(task, "1-0123abcd")
    one.set_prop(FilterContextKey.CHAIN_TYPE, FilterChainType.TASK_DATA_CHAIN)
    with pytest.raises(ConfigError, match="'clinic' has no number at its end"):
        one.process(task, context)


def test_mistakes_at_the_server_end_the_job_before_training(pair: Pair, tmp_path: Path) -> None:
    job = Job(pair, tmp_path / "1")
    job.run(SecureMedian("/nowhere/coordinator.toml", on_failure="skip"))
    assert "securemedian: " in job.reason and "/nowhere/coordinator.toml" in job.reason
    assert job.left == []
    job = Job(pair, tmp_path / "2")
    job.run(secure(pair, min_clients=4))
    assert "fewer connected clients than min_clients (4): 3" in job.reason
    assert job.left == []
    assert nothing_is_open(pair)


# Servers that are away, jobs that are stopped


def test_a_job_that_is_stopped_ends_its_round(pair: Pair, tmp_path: Path) -> None:
    def train(site: int, model: Arrays) -> Arrays:
        assert pair.status()["state"] == "open"
        job.server.abort.trigger(True)
        return shifted(site, model)

    job = Job(pair, tmp_path, train)
    # an abort while sites train, before the aggregation
    aggregator = secure(pair)
    job.run(aggregator, 1, ScatterAndGather)
    status = pair.status()
    assert (status["state"], status["opened"]) == ("failed", "nothing")
    assert "the run was stopped" in status["reason"]


# The job as NVFlare writes it


def test_a_job_names_the_filter_in_both_chains_and_copies_no_source(tmp_path: Path) -> None:
    train = tmp_path / "client.py"
    train.write_text("import nvflare.client as flare\n")
    recipe = NumpyFedAvgRecipe(
        name="digits",
        min_clients=2,
        model=[0.0],
        train_script=str(train),
        aggregator=SecureMedian(
            "coordinator.toml", range_policy=MeanRange(decay=0.5), options={"buckets": 16}
        ),
    )
    recipe.add_client_output_filter(SecureMedianFilter("client-{client}.toml"))
    recipe.export(str(tmp_path / "job"))
    written = {
        name: json.loads(next((tmp_path / "job").rglob(f"config_fed_{name}.json")).read_text())
        for name in ("server", "client")
    }
    filters = [
        {
            "tasks": [task],
            "filters": [
                {
                    "path": "securemedian.nvflare.filter.SecureMedianFilter",
                    "args": {"config": "client-{client}.toml"},
                }
            ],
        }
        for task in ("train", "submit_model")
    ]
    assert written["client"]["task_data_filters"] == filters
    assert written["client"]["task_result_filters"] == filters
    aggregator = written["server"]["workflows"][0]["args"]["aggregator"]
    assert aggregator["path"] == "securemedian.nvflare.aggregator.SecureMedian"
    assert aggregator["args"]["options"] == {"buckets": 16}
    assert aggregator["args"]["range_policy"]["args"] == {"decay": 0.5}
    # the aggregator that a site builds of that
    again = SecureMedian(**aggregator["args"] | {"range_policy": MeanRange(decay=0.5)})
    assert again._checked == recipe.aggregator._checked
    assert [path.name for path in (tmp_path / "job").rglob("*.py")] == ["client.py"]
