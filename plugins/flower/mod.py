"""The mod for a ClientApp: it submits the trained arrays in shares, and Flower gets the rest."""

from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable

from securemedian.clients.config import ClientConfig
from securemedian.flower import records
from securemedian.mpc.errors import ConfigError, InputError
from securemedian.plugins.rounds import check, same_form, submit

# the setting that names a node's own client.toml
CONFIG_KEY = "securemedian-config"


def securemedian_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Call the ClientApp, and submit what it has trained to S0 and S1 in shares.

    It belongs first among the ClientApp's mods: those after it, such as Flower's for differential
    privacy, then work on the arrays before they are shared. The reply keeps its metrics, loses its
    arrays, and says which client the node is. Layers that the strategy keeps local stay in the
    node's state, and are in the models that the ClientApp gets. Replies to messages other than
    `train` must have no arrays.

    Before anything is trained, raises ConfigError for a wrong or missing client.toml or round, and
    PolicyRefused for a round that this client's own policy refuses. Raises InputError for an update
    of another form, or NaN, and what `Client.submit` raises. Flower sends
    the text of an error to the SuperLink: names, shapes and counts, and no values.
    """
    if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
        if message.has_content():
            records.put_local(message.content, context.state)
        reply = call_next(message, context)
        if reply.has_content() and reply.content.array_records:
            raise InputError(
                "arrays that must not leave this node are in a reply: "
                f"{message.metadata.message_type!r}; return arrays from the ClientApp's train "
                "functions alone"
            )
        return reply
    # mistakes are found before hours of training
    config = ClientConfig.load(_config_file(context))
    content, sent, round_id, keep_local = records.receive(message.content, context.state)
    message.content = content
    check(config, round_id)
    reply = call_next(message, context)
    if not reply.has_content():
        return reply
    found = reply.content.array_records
    if len(found) != 1:
        raise InputError(
            "the reply needs one record of arrays, the trained parameters: it has "
            f"{len(found)}; return one"
        )
    ((key, trained),) = found.items()
    update = same_form(records.to_arrays(trained), sent)
    name = submit(config, update, round_id, keep_local)
    records.keep(context.state, update, keep_local)
    records.add_client(reply.content, name)
    del reply.content[key]
    return reply


def _config_file(context: Context) -> Path:
    """Return the path of this node's client.toml.

    The node's own configuration goes before the run's, which is for simulations: there `{client}`
    stands for the number of the simulated node, from 1 on. Raises ConfigError if neither names one.
    """
    named = context.node_config.get(CONFIG_KEY) or context.run_config.get(CONFIG_KEY)
    if not named:
        raise ConfigError(
            f"this node does not name its own client.toml: {CONFIG_KEY} is not set; start its "
            f"SuperNode with --node-config '{CONFIG_KEY}=\"/path/to/client.toml\"'"
        )
    partition = context.node_config.get("partition-id")
    if "{client}" in str(named) and not isinstance(partition, int):
        raise ConfigError(
            f"this node has no partition-id to put into {{client}}: {CONFIG_KEY} is {named}; "
            "name the file itself in the SuperNode's --node-config"
        )
    if isinstance(partition, int):
        named = str(named).replace("{client}", str(partition + 1))
    return Path(str(named)).expanduser()
