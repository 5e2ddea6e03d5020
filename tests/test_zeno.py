"""SHARE with Zeno++: against exact arithmetic, what is opened, and through real daemons."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.clients.upload import Round
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.methods import zeno
from securemedian.mpc.rounds.methods.base import Clear, Published
from securemedian.mpc.rounds.methods.zeno import Zeno
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Outcome, check_values, fill, run_round
from securemedian.mpc.rounds.plan import predict
from securemedian.operating import keygen
from tests.daemons import Pair, running
from tests.parties import make_parties, run_both
from tests.test_privacy import looks_uniform, recorders

Lanes = tuple[list[Party], list[Party]]
DIM = 300
SMALL = ProtocolParams(lanes=2, chunk=128)


@pytest.fixture(scope="module")
def lanes() -> Lanes:
    return make_parties(lanes=2)


def names(clients: int) -> list[str]:
    return [f"client-{index}" for index in range(clients)]


def run(
    lanes: Lanes, params: RoundParams, updates: np.ndarray, protocol: ProtocolParams = SMALL
) -> Outcome:
    """Run a round on the updates (n, d) of clients by their names, and return what both have."""
    weights = params.weights_of(names(len(updates)))
    uploads = [
        share.split(params.method.encode(row, params.max_clients, Published()), params.share_bits)
        for row in updates
    ]
    one, other = run_both(
        lambda j: run_round(
            lanes[j], params, protocol, [pair[j] for pair in uploads], weights=weights
        )
    )
    assert (one.values == other.values).all() and one.coin == other.coin
    return Outcome(one.values, one.cost, one.coin)


def passing(method: Zeno, updates: np.ndarray, weights: list[int], coin: bytes) -> list[list[bool]]:
    """Return which clusters pass, by the paper's score of their means in exact fractions."""
    scale = 1 << method.fraction_bits
    whole = [[int(value) for value in np.floor(row * scale)] for row in updates]
    place = weights.index(0)
    others = [other for other in range(len(updates)) if other != place]
    clusters, total = max(1, len(others) // method.clusters), sum(weights)
    eta, rho, epsilon = (Fraction(str(x)) for x in (method.eta, method.rho, method.epsilon))
    step = [Fraction(value, scale) for value in whole[place]]
    verdicts = []
    for members in method.members(coin, len(others)):
        own = []
        for those in members:
            chosen = [others[index] for index in those]
            mean = [
                Fraction(clusters * sum(weights[i] * whole[i][k] for i in chosen), total * scale)
                for k in range(updates.shape[1])
            ]
            product = sum(a * b for a, b in zip(step, mean, strict=True))
            score = eta * product - rho * sum(value * value for value in mean)
            own.append(score >= -eta * epsilon)
        verdicts.append(own)
    return verdicts


# a is whole and so exact with these
EXACT: dict[str, Any] = {"rho": 0.01, "epsilon": 0.02, "eta": 0.5, "fraction_bits": 10}


@pytest.mark.parametrize(("clients", "size", "reclusterings"), [(13, 3, 3), (7, 1, 1), (4, 3, 2)])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_clusters_that_pass_are_those_of_the_paper(
    lanes: Lanes, clients: int, size: int, reclusterings: int, weighted: bool
) -> None:
    """Honest clients, some that go backwards and some that are much too long."""
    rng = np.random.default_rng(clients)
    direction = rng.normal(size=DIM) * 0.1
    updates = direction + rng.normal(size=(clients, DIM)) * 0.02
    updates[::3] *= -1
    updates[1::5] *= 30
    updates[2] = direction
    weights = dict(zip(names(clients), range(4, 4 + clients), strict=True)) if weighted else {}
    method = Zeno(
        validator="client-2",
        clusters=size,
        reclusterings=reclusterings,
        weights=weights,
        weight_cap=1,
        **EXACT,
    )
    params = RoundParams(method, dim=DIM, max_clients=clients)
    outcome = run(lanes, params, updates)
    given = params.weights_of(names(clients))
    verdicts = passing(method, updates, given, outcome.coin)
    whole = np.floor(updates * 2.0**10)
    others = [other for other in range(clients) if other != 2]
    movement = np.zeros(DIM)
    for members, own in zip(method.members(outcome.coin, clients - 1), verdicts, strict=True):
        for those, passed in zip(members, own, strict=True):
            for index in those:
                movement += passed * given[others[index]] * whole[others[index]]
    want = 0.5 * (movement / 2.0**10 / (reclusterings * sum(given)))
    got = method.decode(method.public(outcome.values), sum(given), Published())
    assert np.array_equal(got[0], want)
    clear = method.in_the_clear(Clear(updates, given, Published(coin=outcome.coin), clients))
    assert np.array_equal(clear, got)
    if clients > 4:
        assert 0 < sum(map(sum, verdicts)) < sum(map(len, verdicts))


def test_a_score_of_exactly_the_bound_passes(lanes: Lanes) -> None:
    """-rho |g|^2 = -eta epsilon, and one step of the fixed point beyond."""
    updates = np.zeros((4, DIM))
    updates[1, 0] = 1.0
    updates[2, 0] = 1.0 + 2**-10
    updates[3, 0] = 1.0 - 2**-10
    method = Zeno(
        validator="client-0", clusters=1, rho=0.01, epsilon=0.01, fraction_bits=10, whole_bits=4
    )
    outcome = run(lanes, RoundParams(method, dim=DIM, max_clients=4), updates)
    got = method.decode(method.public(outcome.values), 3, Published())[0]
    assert got[0] == (1.0 + 1.0 - 2**-10) / 3


def test_faulty_clients_are_left_out_wherever_they_are_drawn(lanes: Lanes) -> None:
    """Sign flips of 10 times the length in 6 of 18 clients: without the check they win."""
    rng = np.random.default_rng(4)
    direction = rng.normal(size=DIM) * 0.1
    updates = direction + rng.normal(size=(19, DIM)) * 0.01
    updates[-6:] *= -10
    method = Zeno(validator="client-0", clusters=1, epsilon=0.01)
    outcome = run(lanes, RoundParams(method, dim=DIM, max_clients=19), updates)
    (got,) = method.decode(method.public(outcome.values), 18, Published())
    assert np.allclose(got, updates[1:13].sum(axis=0) / 18, atol=1e-3)


def test_opened_are_the_validators_update_and_the_result_alone() -> None:
    pair = recorders()
    method = Zeno(validator="client-0", clusters=2, reclusterings=2)
    params = RoundParams(method, dim=2048, max_clients=7)
    updates = np.repeat(np.linspace(-1, 1, 7)[:, None], 2048, axis=1)
    run(make_parties(pairs=[pair]), params, updates, ProtocolParams(lanes=1))
    for end in pair:
        opened = [array for label, array in end.received if label.startswith("open")]
        # |D|_1 follows from D
        assert [array.size for array in opened] == [2048, 1, 2048]
        labels = {label for label, _ in end.received if label[:3] not in ("bas", "ggm", "ot.")}
        assert {"square.request", "square.reply", "mux.reply", "leaf.reply"} <= labels
        for label in labels - {"sizes", "toss.commit", "toss.open", "leaf.request", "leaf.reply"}:
            seen = end.of(label).view(np.uint8)
            # of the comparisons there are too few to judge
            assert seen.size < 1000 or looks_uniform(seen), label


def test_a_plan_is_what_a_round_counts() -> None:
    params = RoundParams(
        Zeno(validator="client-0", clusters=2, reclusterings=2), dim=700, max_clients=7
    )
    protocol = ProtocolParams(lanes=2, chunk=256)
    lanes = make_parties(lanes=2)
    zeros = np.zeros((1, 700), np.uint64)
    halves = [share.split(zeros, 64) for _ in range(7)]

    def counted(j: int) -> Any:
        uploads = [half[j] for half in halves]
        checked = check_values(lanes[j], params, protocol, uploads)
        weights = [1] * 6 + [0]
        outcome = run_round(lanes[j], params, protocol, uploads, weights=weights)
        return outcome.cost.after(checked.cost)

    for planned, cost in zip(
        predict(params, [1] * 7, protocol).costs, run_both(counted), strict=True
    ):
        assert (planned.ots, planned.bytes_sent, planned.messages, planned.rounds) == (
            cost.ots,
            cost.bytes_sent,
            cost.messages,
            cost.rounds,
        )


def test_a_filled_pool_is_what_a_round_takes(lanes: Lanes) -> None:
    params = RoundParams(Zeno(validator="client-0", clusters=2), dim=DIM, max_clients=5)
    fresh = make_parties(lanes=2)
    ahead = run_both(lambda j: fill(fresh[j], params, SMALL, 1 << 30))
    assert ahead[0].ots > 0
    outcome = run(fresh, params, np.zeros((5, DIM)))
    made = predict(params, [1] * 5, SMALL).costs[0].ots
    assert outcome.cost.ots == 0 and ahead[0].ots == made


@pytest.mark.parametrize(
    ("options", "dim", "says"),
    [
        ({"rho": 0}, 9, "rho must be above 0"),
        ({"epsilon": 0}, 9, "epsilon must be above 0"),
        ({"whole_bits": 0}, 9, "whole_bits must be a whole number from 1"),
        ({"ring_bits": 32}, 9, "ring_bits is an option of .*: leave it out for zeno"),
        ({"fraction_bits": 24, "whole_bits": 10}, 9_000, "the squares of 9,000 coordinates"),
        ({"fraction_bits": 24, "whole_bits": 32, "reclusterings": 99}, 9, "lower one of them"),
        ({"clusters": 7}, 9, "those besides the validator are at most 6"),
        ({"weights": {"a": 1, "b": 1, "c": 1, "d": 1}}, 9, "the validator takes no part"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], dim: int, says: str) -> None:
    given = {"method": "zeno", "dim": dim, "max_clients": 7, "validator": "v"}
    with pytest.raises(ConfigError, match=says):
        RoundParams.from_dict(given | options)


def test_nobody_is_judged_without_the_validator(lanes: Lanes) -> None:
    method = Zeno(validator="client-3")
    with pytest.raises(ConfigError, match="the validator takes no part"):
        method.weights_of(names(3))
    with pytest.raises(ConfigError, match="'client-3' is none of the clients"):
        method.check_members(names(3))
    method.check_members(names(4))
    assert method.weights_of(names(5)) == [1, 1, 1, 0, 1]


def test_a_validator_that_is_too_long_fails_the_round(lanes: Lanes) -> None:
    method = Zeno(validator="client-0", clusters=1, rho=1e-6, whole_bits=8, fraction_bits=16)
    params, updates = RoundParams(method, dim=DIM, max_clients=3), np.zeros((3, DIM))
    run(make_parties(lanes=2), params, updates)
    updates[0] = 200
    with pytest.raises(ConfigError, match="the validator's update is too long"):
        run(make_parties(lanes=2), params, updates)


# Through daemons


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running(Pair(tmp_path_factory.mktemp("zeno"), clients=5)) as started:
        yield started


@pytest.mark.slow
def test_through_real_daemons(pair: Pair) -> None:
    given: dict[str, Any] = {"method": "zeno", "dim": 200, "max_clients": 5, "reclusterings": 2}
    with pytest.raises(ConfigError, match="'nobody' is none of the clients"):
        pair.open(**given, validator="nobody")
    rng = np.random.default_rng(3)
    updates = (np.linspace(0, 0.2, 200) + rng.normal(size=(5, 200)) * 0.01).astype(np.float32)
    updates[4] *= -20
    round_id = pair.open(**given, validator="client-2")
    for name, update in zip(pair.names, updates, strict=True):
        pair.submit(name, update)
    status = pair.wait("published")
    included = status["included"]
    placed = updates[[pair.names.index(name) for name in included]]
    method = RoundParams.from_dict(given).method
    weights = [0 if name == "client-2" else 1 for name in included]
    published = Published(coin=bytes.fromhex(status["coin"]))
    (want,) = method.in_the_clear(Clear(placed, weights, published, 5))
    assert np.array_equal(pair.result(round_id), want.astype(np.float32))
    assert 0 < np.abs(want).sum() < np.abs(updates[:4].mean(axis=0)).sum() + 1


def test_a_client_is_no_validator_unless_its_own_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"client-{number}" for number in range(1, 6)]
    keygen.make_all(tmp_path, names, keygen.network("127.0.0.1", "127.0.0.1", None))
    config = ClientConfig.load(tmp_path / "client-1.toml")
    given: dict[str, Any] = {"method": "zeno", "dim": 4, "max_clients": 5}
    with Client(config) as client:
        own = client.service.keys.public.decode()

        def round_(key: str) -> Round:
            params = RoundParams.from_dict(given | {"validator": key})
            return Round("1-0000000a", 1, params, 0)

        made: list[Any] = []
        monkeypatch.setattr(client._sender, "make", lambda *args: made.append(args))
        monkeypatch.setattr(client, "_send", lambda *args, **named: None)
        monkeypatch.setattr(client._lookup, "new", lambda seen: round_(own))
        with pytest.raises(ConfigError, match="validator = true"):
            client.wait_for_round(1)
        monkeypatch.setattr(client._lookup, "named", lambda round_id: round_(own))
        with pytest.raises(ConfigError, match="validator = true"):
            client.submit(np.zeros(4), "1-0000000a")
        assert not made
        monkeypatch.setattr(client._lookup, "named", lambda round_id: round_("another"))
        client.submit(np.zeros(4), "1-0000000a")
        client.config = replace(config, validator=True)
        monkeypatch.setattr(client._lookup, "named", lambda round_id: round_(own))
        client.submit(np.zeros(4), "1-0000000a")
        assert len(made) == 2


def test_the_ring_is_that_of_squares() -> None:
    assert zeno.BITS == ring.MAX_BITS
