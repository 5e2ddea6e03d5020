"""Faults in a run of either plug-in: updates of a site, and options of a run.

The updates are made of the model that the tests of both plug-ins train: `w`, `b` and `steps`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from securemedian.plugins.rounds import Arrays

# a site's change of the model, and the words of the refusal
UPDATES: list[tuple[Callable[[Arrays], Arrays], str]] = [
    (lambda m: m | {"w": m["w"] * np.float32(np.nan)}, "the update has 6 NaN"),
    (lambda m: m | {"w": m["w"].T}, r"'w' was sent as float32 \(2, 3\) and came back as"),
    (lambda m: m | {"w": m["w"].astype(np.float64)}, r"came back as float64 \(2, 3\)"),
    (lambda m: {"w": m["w"], "b": m["b"]}, "the update lacks steps"),
    (lambda m: m | {"bias": m["b"]}, "the update has bias, which the model has not"),
]

# options of a run, and what the refusal says
OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"method": "median"}, "invalid method: .*; take one of"),
    ({"options": {"buckets": 8, "trim": 0.1}}, "trim is an option of trimmed-mean"),
    ({"on_failure": "retry"}, "invalid on_failure: .*; take one of stop, skip"),
    ({"min_clients": 1}, "invalid min_clients: 1; give 2"),
    (
        {"method": "pairwise", "options": {"result_to": "clients"}},
        "the training needs the result here",
    ),
    ({"wait_s": 0}, "invalid wait_s: 0; give more than 0"),
    ({"deadline_s": 0}, "invalid deadline_s: 0; give more than 0"),
    ({"options": {"dim": 5}}, "these options: dim; leave"),
]
