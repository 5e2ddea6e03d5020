"""What the strategy and the mod say to each other in Flower's messages, and the arrays in them.

A train message of `SecureMedian` has a record that names the round, and its arrays under a name of
ours. The mod gives them back their usual name. So a ClientApp without the mod finds no arrays to
train from, and a mod without the strategy finds no round to submit to.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from securemedian.mpc.errors import ConfigError
from securemedian.plugins.rounds import Arrays

# the record that names the round and the usual name of the arrays
ROUND = "securemedian.round"
# the arrays, on their way to the nodes
ARRAYS = "securemedian.arrays"
# the record of a reply that says which client the node is
CLIENT = "securemedian.client"


def address(content: RecordDict, arrays_key: str, round_id: str) -> RecordDict:
    """Return the content of a train message for a round; `arrays_key` is the arrays' usual name."""
    records = {ARRAYS if key == arrays_key else key: record for key, record in content.items()}
    records[ROUND] = ConfigRecord({"round": round_id, "arrays": arrays_key})
    return RecordDict(records)


def receive(content: RecordDict) -> tuple[RecordDict, Arrays, str]:
    """Return the usual content, its arrays and the round's id. Raises ConfigError if none."""
    about, arrays = content.get(ROUND), content.get(ARRAYS)
    if not isinstance(about, ConfigRecord) or not isinstance(arrays, ArrayRecord):
        raise ConfigError(
            "this train message names no round to submit to, so nothing was trained: "
            "securemedian_mod needs the strategy SecureMedian in the ServerApp"
        )
    usual, round_id = str(about["arrays"]), str(about["round"])
    records = {usual if key == ARRAYS else key: record for key, record in content.items()}
    del records[ROUND]
    return RecordDict(records), to_arrays(arrays), round_id


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
