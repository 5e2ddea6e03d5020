"""The words of the strategy and the mod in Flower's messages, and the arrays in them.

A train message of `SecureMedian` has a record that names the round, and its arrays under a name of
ours. The mod gives them back their usual name. So a ClientApp without the mod finds no arrays to
train from, and a mod without the strategy finds no round to submit to.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from securemedian.mpc.errors import ConfigError
from securemedian.plugins.rounds import Arrays, local_part

# the record that names the round and the usual name of the arrays
ROUND = "securemedian.round"
# the arrays, on their way to the nodes
ARRAYS = "securemedian.arrays"
# a node's own layers, in the state that Flower keeps for it
LOCAL = "securemedian.local"
# the record of a reply that says which client the node is
CLIENT = "securemedian.client"


def address(
    content: RecordDict, arrays_key: str, round_id: str, keep_local: Sequence[str] = ()
) -> RecordDict:
    """Return the content of a train message for a round; `arrays_key` is the arrays' usual name.

    Layers that fit a pattern of `keep_local` are those of the node.
    """
    records = {ARRAYS if key == arrays_key else key: record for key, record in content.items()}
    about: dict[str, Any] = {"round": round_id, "arrays": arrays_key}
    if keep_local:
        about["keep-local"] = list(keep_local)
    records[ROUND] = ConfigRecord(about)
    return RecordDict(records)


def receive(content: RecordDict, state: RecordDict) -> tuple[RecordDict, Arrays, str, list[str]]:
    """Return the usual content, its arrays, the round's id and the patterns of local layers.

    The layers that the node has kept in its `state` are in their places. Raises ConfigError if the
    content names no round.
    """
    about, arrays = content.get(ROUND), content.get(ARRAYS)
    if not isinstance(about, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise ConfigError(
            f"this train message names no round to submit to, and nothing was trained: {ROUND}; "
            "use the strategy SecureMedian in the ServerApp"
        )
    usual, round_id = str(about["arrays"]), str(about["round"])
    kept = about.get("keep-local", [])
    keep_local = [str(pattern) for pattern in kept] if isinstance(kept, list) else []
    records = {usual if key == ARRAYS else key: record for key, record in content.items()}
    del records[ROUND]
    made = RecordDict(records)
    put_local(made, state)
    return made, to_arrays(made.array_records[usual]), round_id, keep_local


def keep(state: RecordDict, trained: Arrays, keep_local: Sequence[str]) -> None:
    """Keep a node's own layers of a trained model in its state, for its next messages."""
    if local := local_part(trained, keep_local):
        state[LOCAL] = to_record(local)


def put_local(content: RecordDict, state: RecordDict) -> None:
    """Put the layers that a node has kept into every model of a message."""
    local = state.get(LOCAL)
    if not isinstance(local, ArrayRecord):
        return
    for key, record in content.array_records.items():
        if all(name in record for name in local):
            content[key] = ArrayRecord({name: local.get(name, record[name]) for name in record})


def add_client(content: RecordDict, client: str) -> None:
    """Add to the content of a reply which client the node is, by its name at S0."""
    content[CLIENT] = ConfigRecord({"name": client})


def take_client(content: RecordDict) -> str:
    """Take the name of the node's client out of the content of a reply; "" if there is none."""
    about = content.pop(CLIENT, None)
    return str(about.get("name", "")) if isinstance(about, ConfigRecord) else ""


def to_arrays(record: ArrayRecord) -> Arrays:
    return {name: array.numpy() for name, array in record.items()}


def to_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
