"""The words of the aggregator and the filter in NVFlare's tasks and their results.

A task of `SecureMedian`'s names the round, and its content is of a type of ours. The filter gives
it its usual type back. So a site without the filter finds no model to train from, and one with the
filter but without the aggregator finds no round to submit to. A result has a token instead of the
weights.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import ReservedHeaderKey, Shareable

from securemedian.plugins.rounds import Arrays

# the header of a task with the id of its round, "" if none could be opened; the token in a result
ROUND = "securemedian.round"
# the header with the patterns of weights that each site keeps for itself
KEEP_LOCAL = "securemedian.keep_local"
# the weights that a site keeps for itself, in its context
LOCAL = "securemedian.local"
# the type that a site without the filter reads in NVFlare's error
_CONTENT_TYPE = "DXO for SecureMedianFilter"
_USUAL_CONTENT_TYPE = "DXO"
# the kinds of an update
KINDS = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]


def address(task: Shareable, round_id: str, keep_local: Sequence[str] = ()) -> Arrays | None:
    """Address a task with weights to the clients of a round, and return its model.

    Weights that fit a pattern of `keep_local` are those of the site.
    """
    if task.get_header(ReservedHeaderKey.CONTENT_TYPE) != _USUAL_CONTENT_TYPE:
        return None
    dxo = from_shareable(task)
    if dxo.data_kind != DataKind.WEIGHTS:
        return None
    task.set_header(ROUND, round_id)
    task.set_header(KEEP_LOCAL, list(keep_local))
    task.set_header(ReservedHeaderKey.CONTENT_TYPE, _CONTENT_TYPE)
    return in_order(dxo.data)


def receive(task: Shareable, local: Mapping[str, Any]) -> tuple[Arrays, str, list[str]] | None:
    """Give a task of `SecureMedian`'s its usual form; return its model, round id and patterns.

    The site's own weights, `local`, are put into the model of the task.
    """
    if task.get_header(ReservedHeaderKey.CONTENT_TYPE) != _CONTENT_TYPE:
        return None
    task.set_header(ReservedHeaderKey.CONTENT_TYPE, _USUAL_CONTENT_TYPE)
    dxo = from_shareable(task)
    if local and {*local} <= {*dxo.data}:
        # other sites of this process may have the same message
        dxo.data = {**dxo.data, **{name: array.copy() for name, array in local.items()}}
        dxo.update_shareable(task)
    keep_local = [str(pattern) for pattern in task.get_header(KEEP_LOCAL) or []]
    return in_order(dxo.data), str(task.get_header(ROUND)), keep_local


def token(dxo: DXO, round_id: str) -> DXO:
    """Return the token that leaves a site instead of its weights, with the metrics."""
    return DXO(dxo.data_kind, {ROUND: round_id}, dxo.meta)


def in_order(weights: Mapping[str, Any]) -> Arrays:
    """Return weights in the order of their names, the same at the server and at every site."""
    return dict(sorted(weights.items()))


def arrays_in(value: Any, path: str = "") -> Iterator[str]:
    """Return the keys in a message at which arrays, tensors or lists of numbers are."""
    if isinstance(value, DXO):
        value = value.to_dict()
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from arrays_in(inner, f"{path}.{key}" if path else str(key))
    # a number of numpy's has a shape as well
    elif hasattr(value, "shape") and not isinstance(value, np.generic):
        yield path
    elif isinstance(value, Collection) and not isinstance(value, str):
        if any(isinstance(one, Number | np.generic) for one in value):
            yield path
        for number, inner in enumerate(value):
            yield from arrays_in(inner, f"{path}.{number}")
