"""The attack on `reclustered` with clustering `opened`, by the opened sums of SHARE's clusters.

The clients train one round, whose two parties run in this process. The attacker is a server that
follows the protocol. With clustering `opened` it solves the sums of all clusters for the updates;
with `hidden` it has one aggregate, and can but guess that each client moved as much.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.laboratory.experiments.players import Players
from securemedian.laboratory.experiments.runs import Design
from securemedian.laboratory.plots import Line, Panel, Picture
from securemedian.mpc.arrays import Float32s
from securemedian.mpc.protocols import share
from securemedian.mpc.protocols.channel import Channel, local_pair
from securemedian.mpc.protocols.party import Session
from securemedian.mpc.protocols.prg import SESSION_BYTES, os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.clusters import Members, exposed
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.methods.reclustered import Reclustered
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Outcome, run_round

SIZE = 3
RECLUSTERINGS = range(1, 11)
# of an update, drawn at random: the equations are the same for all
COORDINATES = 128
Vectors = NDArray[np.float64]


def solved(sums: Vectors, partitions: Sequence[Members], clients: int) -> Vectors:
    """Return the updates (n, d) of least norm that have these sums (R c, d).

    It is the update itself if that follows from the sums.
    """
    matrix = np.zeros((len(sums), clients))
    rows = (those for members in partitions for those in members)
    for row, those in zip(matrix, rows, strict=True):
        row[those] = 1
    return np.asarray(np.linalg.lstsq(matrix, sums, rcond=None)[0], np.float64)


def errors(guesses: Vectors, updates: Vectors) -> Vectors:
    """Return |guess - update| / |update| of each client, shape (n,)."""
    found: Vectors = np.sqrt(((guesses - updates) ** 2).sum(axis=1) / (updates**2).sum(axis=1))
    return found


def attack(method: Reclustered, updates: Vectors) -> tuple[Vectors, bytes]:
    """Return the errors (n,) of a server that guesses the updates (n, d), and the coin."""
    clients, dim = updates.shape
    params = RoundParams(method, dim=dim, max_clients=clients)
    uploads = [
        share.split(method.encode(update, clients, Published()), params.form.layout.bits)
        for update in updates
    ]
    outcome = _run(params, [list(halves) for halves in zip(*uploads, strict=True)])
    opened = method.numbers(method.public(outcome.values))
    if method.clustering == "hidden":
        guesses = np.repeat(opened / (method.reclusterings * clients), clients, axis=0)
    else:
        guesses = solved(opened, method.members(outcome.coin, clients), clients)
    return errors(guesses, updates), outcome.coin


def find(design: Design) -> list[dict[str, Any]]:
    """Return per seed and R the rank, who is exposed, and the errors against both clusterings."""
    found = []
    for seed in design.seeds:
        updates = _updates(design, seed)
        for number in RECLUSTERINGS:
            hiding = Reclustered(clusters=SIZE, reclusterings=number)
            opening = replace(hiding, clustering="opened", accept_leak=True)
            (opened, coin), (hidden, _) = (attack(method, updates) for method in (opening, hiding))
            known = exposed(coin, len(updates), opening.clusters_among(len(updates)), number)
            found.append(
                {
                    "seed": seed,
                    "reclusterings": number,
                    "rank": known.rank,
                    "exposed": len(known.clients),
                    "opened": _of_clients(opened),
                    "hidden": _of_clients(hidden),
                }
            )
    return found


def picture(design: Design, found: Sequence[dict[str, Any]]) -> Picture:
    lines = [
        _line(label, [_at(found, clustering, number) for number in RECLUSTERINGS])
        for clustering, label in (
            ("opened", "opened: solved for"),
            ("hidden", "hidden: guessed from the result"),
        )
    ]
    panel = Panel(
        "", "reclusterings R", "|guess - update| / |update|, all clients", lines, log_y=True
    )
    return [panel]


def _updates(design: Design, seed: int) -> Vectors:
    """Return the differences (n, d) that the clients of a first round have, in some coordinates."""
    players = Players(design.run(seed, "mean"), design.data)
    start: Float32s = players.start()
    moved = players.updates(start, 1).astype(np.float64) - start
    rng = np.random.default_rng(seed)
    chosen = rng.choice(moved.shape[1], min(COORDINATES, moved.shape[1]), replace=False)
    return np.asarray(moved[:, np.sort(chosen)])


def _run(params: RoundParams, uploads: Sequence[list[share.Upload]]) -> Outcome:
    protocol, session_id = ProtocolParams(lanes=1), os_entropy(SESSION_BYTES)

    def party(number: int, channel: Channel) -> Outcome:
        try:
            session = Session.establish(number, channel, session_id, protocol)
            return run_round([session.party(0, channel)], params, protocol, uploads[number])
        except BaseException:
            # the other party waits no longer
            channel.close()
            raise

    with ThreadPoolExecutor(2) as pool:
        outcome, _ = pool.map(party, (0, 1), local_pair())
    return outcome


def _of_clients(values: Vectors) -> dict[str, float]:
    return {"mean": float(values.mean()), "min": float(values.min()), "max": float(values.max())}


def _at(
    found: Sequence[dict[str, Any]], clustering: str, reclusterings: int
) -> tuple[float, float, float]:
    """Return the mean error over the seeds, the least and the most, at R."""
    own = [one[clustering] for one in found if one["reclusterings"] == reclusterings]
    return (
        sum(one["mean"] for one in own) / len(own),
        min(one["min"] for one in own),
        max(one["max"] for one in own),
    )


def _line(label: str, points: Sequence[tuple[float, float, float]]) -> Line:
    means, least, most = zip(*points, strict=True)
    return Line(label, list(RECLUSTERINGS), means, least, most)
