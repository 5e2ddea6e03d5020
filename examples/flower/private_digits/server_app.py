"""The ServerApp: the strategy is wrapped in SecureMedian, and nothing else differs."""

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from private_digits import task
from securemedian.flower import SecureMedian

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for a number of rounds, and measure each model on the test set."""
    strategy = SecureMedian(context.run_config["coordinator"], FedAvg(), method="radix")
    strategy.start(
        grid,
        ArrayRecord({name: Array(array) for name, array in task.start_model().items()}),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=_test,
    )


def _test(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = {name: array.numpy() for name, array in arrays.items()}
    return MetricRecord({"test-accuracy": task.accuracy(model, *task.load_data(-1, 1))})
