"""Random rounds of zoom over two daemons, whose servers restart and whose clients go away.

`python -m tests.zoom_rounds --count 2000` plays them and prints a line per round; --first S begins
with another seed, and tests/test_zoom_clients.py plays a few. Results are compared with sorted
words.
"""

import argparse
import signal
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.client import Client
from securemedian.clients.policy import ClientPolicy
from securemedian.mpc.rounds.methods.zoom import Zoom
from securemedian.mpc.rounds.params import RoundParams
from tests.daemons import Pair, in_background, running, wait_until

LIMIT_S = 60.0


class Away(BaseException):
    """A client's process ends, once it has kept a vote and before it sends it."""


def method_of(rng: np.random.Generator, clients: int) -> Zoom:
    """Return a method with random options."""
    encoding = str(rng.choice(["float32", "bfloat16", "fixed"]))
    options: dict[str, Any] = {"encoding": encoding, "slots": int(rng.choice([4, 8, 16]))}
    if encoding == "fixed":
        bits = int(rng.integers(5, 33))
        options |= {"word_bits": bits, "fraction_bits": bits // 2}
    if rng.random() < 0.3:
        options["ranks"] = [int(rank) for rank in rng.integers(1, clients + 1, rng.integers(1, 3))]
    if rng.random() < 0.3:
        options["security"] = "malicious"
    return Zoom(**options)


def values_of(rng: np.random.Generator, method: Zoom, shape: tuple[int, int]) -> NDArray[Any]:
    """Return updates with ties and extremes, of which no two rounds have the same."""
    top = (
        2.0 ** (method.word_bits - 2 - method.fraction_bits) if method.encoding == "fixed" else 1e3
    )
    values = rng.uniform(-top, top, shape)
    few = rng.random(shape) < 0.5
    values[few] = rng.choice([-0.0, 0.0, top / 2, -top / 2], int(few.sum()))
    if method.encoding != "fixed":
        some = rng.random(shape) < 0.1
        values[some] = rng.choice([np.inf, -np.inf, 3e38, 1e-40], int(some.sum()))
    # a client refuses to vote again on an update of a round before
    values[:, 0] = rng.uniform(-top, top, len(values))
    return values.astype(np.float32)


def play(pair: Pair, seed: int) -> str:
    """Play a round, compare its results with the sorted words, and return what it was."""
    rng = np.random.default_rng([seed, 20])
    clients, dim = int(rng.integers(2, 4)), int(rng.integers(1, 60))
    method = method_of(rng, clients)
    params = RoundParams(method, dim=dim, max_clients=clients)
    updates = values_of(rng, method, (clients, dim))
    votes, names = params.form.votes, pair.names[:clients]
    away = [{int(vote) for vote in rng.integers(1, votes, rng.integers(0, 3))} for _ in names]
    planned = [sorted(each) for each in away]
    killed = str(rng.choice(["", "", "s0", "s1"]))
    round_id = str(pair.open(np.zeros(dim, np.float32), **params.to_dict()))
    found: list[Any] = [None] * clients

    def run(place: int) -> None:
        found[place] = take_part(pair, names[place], updates[place], round_id, away[place])

    joins = [in_background(partial(run, place)) for place in range(clients)]
    if killed:
        level = int(rng.integers(1, votes + 1))
        wait_until(lambda: past(pair.status(), round_id, level), LIMIT_S)
        pair.stop(killed, signal.SIGKILL)
        pair.start(killed)
        pair.link()
    for join in joins:
        join()
    words = np.sort([method.words(update) for update in updates], axis=0)
    expected = words[[rank - 1 for rank in method.ranks_of(clients)]]
    for results in found:
        got = np.stack([method.words(one) for one in results])
        assert np.array_equal(got, expected), (seed, params.to_dict())
    return f"{method.label}, {clients} clients, d = {dim}, {votes} votes, away {planned}, {killed}"


def past(status: dict[str, Any], round_id: str, level: int) -> bool:
    """Return whether a round, or another one by now, is at a level."""
    over = status["round"] != round_id or status["state"] in ("published", "failed")
    return over or status.get("level", 0) >= level


def take_part(
    pair: Pair, name: str, update: NDArray[np.float32], round_id: str, away: set[int]
) -> list[Any]:
    """Return the results of a client whose process ends after these votes, and starts again."""
    config = pair.config(name, policy=ClientPolicy.unlimited())
    while True:
        with Client(config) as client:
            with_vote = client._journal.vote

            def vote(*given: Any, keep: Any = with_vote) -> None:
                keep(*given)
                if (votes := given[-1].path.votes) in away:
                    away.discard(votes)
                    raise Away

            vars(client._journal)["vote"] = vote
            try:
                if round_id not in client._journal.upheld and not client._journal.confirmed(
                    round_id
                ):
                    client.submit(update, round_id)
                return client.results(round_id, LIMIT_S)
            except Away:
                # until it is waited for
                wait_until(lambda: name in client.status(round_id).lacking, LIMIT_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running(Pair(Path(folder) / "keys")) as pair:
        for seed in range(options.first, options.first + options.count):
            began = time.monotonic()
            print(seed, play(pair, seed), f"{time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
