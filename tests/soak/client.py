"""The program of each client: it takes part in a cohort, and says what it was told.

    python -m tests.soak.client CONFIG SEED COHORT

Its update is a function of the seed, its name and the round: a restarted client sends it again.
"""

import hashlib
import json
import sys
import time
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.client import Client
from securemedian.clients.upload import RangeWarning, Round
from securemedian.mpc.errors import RoundFailed, SecureMedianError

# for the next round, and for the result of one: as long as a soak waits for it
WAIT_S = 600.0
# before a client that got an error goes on
PAUSE_S = 0.2
# A client trains for up to so long, so that uploads are far apart and many faults strike between.
TRAINING_S = 1.5


def update(seed: int, name: str, round_id: str, dim: int) -> NDArray[np.float32]:
    """Return what a client submits to a round, shape (dim,)."""
    return _rng(seed, name, round_id).normal(0.0, 0.1, dim).astype(np.float32)


def _rng(seed: int, name: str, round_id: str) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed}/{name}/{round_id}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest))


def digest_of(result: NDArray[Any]) -> str:
    """Return the SHA-256 by which results are compared."""
    return hashlib.sha256(np.ascontiguousarray(result, np.float32).tobytes()).hexdigest()


def main(path: str, seed: int, cohort: str) -> None:
    """Take part in the rounds of a cohort until the process is ended."""
    warnings.simplefilter("ignore", RangeWarning)
    while True:
        try:
            with Client.from_config(path, cohort) as client:
                while True:
                    _take_part(client, seed)
        except SecureMedianError as error:
            _say("trouble", reason=str(error))
            time.sleep(PAUSE_S)


def _take_part(client: Client, seed: int) -> None:
    current = client.wait_for_round(WAIT_S)
    try:
        _submit(client, current, seed)
        result = np.asarray(client.result(current.round_id, WAIT_S))
        _say("result", round=current.round_id, digest=digest_of(result))
    except RoundFailed as error:
        _say("no-result", round=current.round_id, reason=str(error))
    except SecureMedianError as error:
        _say("trouble", round=current.round_id, reason=str(error))
        time.sleep(PAUSE_S)


def _submit(client: Client, current: Round, seed: int) -> None:
    if current.submitted or current.dealing_lost:
        _say("found", round=current.round_id, submitted=current.submitted)
        return
    name = client.config.name
    time.sleep(_rng(seed, name, current.round_id).uniform(0.0, TRAINING_S))
    values = update(seed, name, current.round_id, current.params.dim)
    client.submit(values, current.round_id)
    _say("acknowledged", round=current.round_id)


def _say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
