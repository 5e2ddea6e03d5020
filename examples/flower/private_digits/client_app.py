"""The ClientApp: one line differs from an app without securemedian."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from private_digits import task
from securemedian.flower import securemedian_mod

app = ClientApp(mods=[securemedian_mod])


def _partition(context: Context) -> tuple[int, int]:
    return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])


def _model(message: Message) -> task.Arrays:
    # numpy's arrays of a message cannot be written to
    return {name: array.numpy().copy() for name, array in message.content["arrays"].items()}


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model on this node's images."""
    model = _model(message)
    partition, partitions = _partition(context)
    images, labels = task.load_data(partition, partitions)
    loss = task.train(
        model,
        images,
        labels,
        int(context.run_config["local-epochs"]),
        float(context.run_config["learning-rate"]),
        seed=partition,
    )
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(array) for name, array in model.items()}),
            "metrics": MetricRecord({"train-loss": loss, "num-examples": len(labels)}),
        }
    )
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure the model on this node's images."""
    images, labels = task.load_data(*_partition(context))
    metrics = {
        "accuracy": task.accuracy(_model(message), images, labels),
        "num-examples": len(labels),
    }
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
