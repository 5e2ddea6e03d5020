"""`securemedian bench flower`: how much longer a round of a Flower app takes when it is private.

Three nodes in this process train for a given time, under Flower's own FedMedian and then under
`SecureMedian` around it, with two real servers.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from securemedian.benchmarks import settings
from securemedian.laboratory import daemons, report
from securemedian.mpc.errors import ConfigError

NODES = 3


def add_kinds(kinds: Any) -> None:
    flower = kinds.add_parser(
        "flower",
        help="a private round of a Flower app beside a plain one (needs the extra [flower])",
        description=f"Let {NODES} nodes in this process train for a while under Flower's FedMedian "
        "and under SecureMedian around it, and print how many times as long a round takes.",
    )
    settings.add_counts(
        flower,
        ("--dim", 199_210, "values of an update"),
        ("--rounds", 3, "rounds of each"),
        ("--train-ms", 2000, "how long each node trains"),
    )
    flower.add_argument("--method", default="bucketed", help="the method (default: %(default)s)")
    flower.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Run both, and print the median seconds per round and their ratio."""
    try:
        from flwr.serverapp.strategy import FedMedian
    except ImportError as error:
        raise ConfigError("Flower is not here: pip install '.[flower]' in a clone") from error
    from securemedian.flower import SecureMedian, securemedian_mod

    console = report.console()
    with tempfile.TemporaryDirectory() as made:
        names = daemons.make(Path(made), NODES)
        files = [str(Path(made) / f"{name}.toml") for name in names]
        coordinator = str(Path(made) / "coordinator.toml")
        with console.status("starting the servers"), daemons.running(Path(made)):
            plain = _seconds(FedMedian(fraction_evaluate=0.0), [], files, options)
            private = SecureMedian(
                coordinator, FedMedian(fraction_evaluate=0.0), method=options.method
            )
            secure = _seconds(private, [securemedian_mod], files, options)
    rows = [
        ["FedMedian", report.figure(plain), "1"],
        [options.method, report.figure(secure), report.figure(secure / plain)],
    ]
    title = f"Seconds per round: {NODES} nodes, d = {options.dim:,}, {options.train_ms} ms each"
    console.print(report.table(title, ["aggregate", "seconds", "times"], rows))


def _seconds(strategy: Any, mods: list[Any], files: list[str], options: Any) -> float:
    """Return the median seconds of a round of this strategy."""
    from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity

    app, ends = ClientApp(mods=mods), []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        time.sleep(options.train_ms / 1000)
        model = message.content["arrays"]["w"].numpy() + np.float32(0.01 * context.node_id)
        content = {"arrays": ArrayRecord({"w": Array(model)})}
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict(content | {"metrics": metrics}), reply_to=message)

    class Nodes(Grid):
        """Nodes that are function calls, one after another."""

        run = None
        create_message = push_messages = pull_messages = set_run = None

        def get_node_ids(self) -> list[int]:
            return list(range(1, NODES + 1))

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Any]:
            return [self._call(message) for message in messages]

        def _call(self, message: Any) -> Any:
            node = message.metadata.dst_node_id
            config = {"securemedian-config": files[node - 1]}
            return app(message, Context(1, node, config, RecordDict(), {}))

    # messages carry what Flower's own process would have set
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    model = ArrayRecord({"w": Array(np.zeros(options.dim, np.float32))})
    note = lambda number, arrays: ends.append(time.perf_counter())  # noqa: E731
    strategy.start(Nodes(), model, num_rounds=options.rounds, evaluate_fn=note)
    return float(median(np.diff(ends)))
