"""Properties of every method and every range policy.

The registries are asked for them, so that a new one is tested too.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from securemedian.clients.upload import Round, encode_update
from securemedian.laboratory import plaintext
from securemedian.mpc.arrays import PublicValues
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import options_of
from securemedian.mpc.protocols import compare, ring
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.correlations.pool import Pool
from securemedian.mpc.protocols.prg import Entropy, os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.aggregators import AGGREGATORS
from securemedian.mpc.rounds.methods import bounded
from securemedian.mpc.rounds.methods.base import Method, Published, Weighted
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.krum import Krum
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.norms import NormCheck
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.reclustered import HIDDEN, Reclustered
from securemedian.mpc.rounds.methods.registry import DEFAULT_METHOD, METHODS
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean, dropped
from securemedian.mpc.rounds.methods.zeno import Zeno
from securemedian.mpc.rounds.methods.zoom import Zoom
from securemedian.mpc.rounds.params import MAX_RESULT_VALUES, ROUND_FIELDS, RoundParams
from securemedian.mpc.rounds.pipeline import fill, run_round
from securemedian.mpc.rounds.plan import predict
from securemedian.mpc.rounds.ranges.base import RangePolicy
from securemedian.mpc.rounds.ranges.uneven import FollowRange, LogRange
from securemedian.mpc.rounds.ranges.uniform import CoordinateRange
from securemedian.mpc.rounds.run_state import RunState, finish
from tests.parties import make_parties, played, run_both, shared, zoomed

MODEL_SEED = 5
# arguments that methods require: here the first client is the validator
GIVEN: dict[str, dict[str, Any]] = {"zeno": {"validator": "client-0", "clusters": 1}}
# and with weights: the third is the validator
WEIGHTED: dict[str, dict[str, Any]] = {
    "mean": {"norm_bound": 8.0},
    "zeno": {"validator": "c", "norm_bound": 8.0},
}
# arguments that choices require
OPENED = {"clustering": "opened", "accept_leak": True}
NEEDS: dict[tuple[str, str], dict[str, Any]] = {
    ("clustering", "opened"): OPENED,
    **{("aggregator", name): OPENED for name in AGGREGATORS if name not in HIDDEN},
}
# the fewest clients that a method takes
LEAST = {"krum": 3}
# these need more clients: tests/test_reclustered.py
OF_MANY = {"krum", "multi-krum", "bulyan"}


def variants() -> list[Method]:
    """Every method as it is by default, and with every choice that one of its options has."""
    found: list[Method] = []
    for cls in METHODS.values():
        given = GIVEN.get(cls.name, {})
        found.append(cls(**given))
        for name, option in options_of(cls).items():
            found += [
                cls(**given | {name: value} | NEEDS.get((name, value), {}))
                for value in option.choices
                if value != option.default and value not in OF_MANY
            ]
    return found


def published_round(
    params: RoundParams,
    updates: np.ndarray,
    protocol: ProtocolParams,
    policy: RangePolicy | None = None,
    entropy: Entropy = os_entropy,
) -> Any:
    """Run a round in process; return what S0 publishes and what it should publish."""
    policy = policy or CoordinateRange()
    dim = params.dim
    model = np.random.default_rng(MODEL_SEED).normal(size=dim).astype(np.float32)
    # most values lie within the buckets, and some beyond
    scale = np.full(dim, 8, np.float32)
    names = list(params.weights) or [f"client-{index}" for index in range(len(updates))]
    weights = params.method.weights_of(names[: len(updates)])
    halves = []
    for index, update in enumerate(updates):
        part = params.part_of(names[index])
        seen = Round("1-a", 1, params, index, model, scale, policy, part=part)
        halves.append(shared(params, encode_update(update, seen)))
    lanes = make_parties(protocol.lanes)
    before = RunState(policy, model, scale)
    clear = before.published_for(params)
    if isinstance(params.method, Zoom):
        words = [params.method.words(update) for update in updates]
        _, results = finish(
            before, params, zoomed(lanes, params, words, protocol).result, len(words)
        )
        return results, plaintext.published(updates, params, clear, weights)
    uploads = [[pair[j] for pair in halves] for j in (0, 1)]
    one, other = run_both(
        lambda j: run_round(
            lanes[j], params, protocol, uploads[j], weights=weights, entropy=entropy
        )
    )
    values = one.values
    if params.method.result_to == "clients":
        values = (values + other.values).astype(values.dtype)
    else:
        assert (one.values == other.values).all()
    assert one.coin == other.coin and bool(one.coin) == params.form.tosses
    _, results = finish(before, params, values, sum(weights))
    return results, plaintext.published(updates, params, clear, weights, coin=one.coin)


# clients cut the extreme values of some methods
@pytest.mark.filterwarnings("ignore:.*is not sent whole")
@pytest.mark.parametrize("clients", [2, 4, 11])
@pytest.mark.parametrize("method", variants(), ids=lambda m: f"{m.label} {m.result_to}")
def test_a_round_publishes_what_the_method_is_in_the_clear(method: Method, clients: int) -> None:
    if clients < LEAST.get(method.name, 2):
        with pytest.raises(ConfigError, match="needs at least"):
            method.check_round(clients)
        return
    rng = np.random.default_rng(clients)
    special = np.array([0.0, -0.0, 1e30, -1e30, 0.5, -0.5, np.inf, -np.inf, 1e-40, 1 + 2**-8])
    updates = np.concatenate(
        [
            rng.normal(size=(clients, 100)),
            np.round(rng.normal(size=(clients, 60)), 1),
            rng.choice(special, (clients, 60)),
        ],
        axis=1,
    )
    params = RoundParams(method, dim=updates.shape[1], max_clients=clients)
    got, want = published_round(params, updates, ProtocolParams(lanes=1, chunk=128))
    assert got.dtype == want.dtype == np.float32
    assert np.array_equal(got, want)


@pytest.mark.parametrize("policy", [FollowRange(), LogRange()], ids=lambda policy: policy.name)
@pytest.mark.parametrize("method", [Bucketed(), Radix(encoding="buckets")], ids=lambda m: m.name)
def test_rounds_on_uneven_buckets(method: Method, policy: RangePolicy) -> None:
    updates = np.random.default_rng(4).normal(size=(3, 200)) * 10.0 ** np.arange(-5, 5).repeat(20)
    got, want = published_round(
        RoundParams(method, dim=200, max_clients=3), updates, ProtocolParams(lanes=1), policy
    )
    assert np.array_equal(got, want)


# clients cut the extreme values of some methods
@pytest.mark.filterwarnings("ignore:.*is not sent whole")
@pytest.mark.parametrize(
    "method",
    [
        cls(**WEIGHTED.get(name, {}))
        for name, cls in METHODS.items()
        if "weights" in options_of(cls)
    ],
    ids=lambda m: m.name,
)
def test_a_weighted_round_too(method: Method) -> None:
    # counts of radix and bucketed then have 14 bits
    weights = {"a": 2903, "b": 1, "c": 4021, "d": 2000, "e": 3100}
    assert isinstance(method, Weighted)
    weighted = replace(method, weights=weights)
    updates = np.random.default_rng(3).normal(size=(5, 150))
    got, want = published_round(
        RoundParams(weighted, dim=150, max_clients=5), updates, ProtocolParams(lanes=1)
    )
    assert np.array_equal(got, want)
    if isinstance(method, Zeno):
        method = replace(method, validator="client-2")
    plain, _ = published_round(
        RoundParams(method, dim=150, max_clients=5), updates, ProtocolParams(lanes=1)
    )
    assert not np.array_equal(got, plain)


@pytest.mark.parametrize("method", METHODS)
def test_no_option_is_called_like_a_field_of_the_round(method: str) -> None:
    assert not set(options_of(METHODS[method])) & {*ROUND_FIELDS, "method"}


@pytest.mark.parametrize("method", variants(), ids=lambda m: f"{m.label} {m.result_to}")
def test_a_round_is_a_flat_map_of_its_own_options(method: Method) -> None:
    params = RoundParams(method, dim=10, max_clients=5)
    flat = params.to_dict()
    # those of later releases are left out at their defaults
    named = [
        name
        for name, about in options_of(type(method)).items()
        if about.since == 1 or getattr(method, name) != about.default
    ]
    assert set(flat) == {*ROUND_FIELDS, *named}
    assert flat["method"] == method.name
    assert RoundParams.from_dict(flat) == params
    assert RoundParams.from_dict(flat).digest == params.digest


def test_a_whole_number_for_a_float_is_the_same_round() -> None:
    assert (
        RoundParams(Radix(), dim=10, max_clients=5, deadline_s=60).digest
        == RoundParams(Radix(), dim=10, max_clients=5, deadline_s=60.0).digest
    )


def test_a_round_without_a_method_has_the_default_one() -> None:
    expected = RoundParams(METHODS[DEFAULT_METHOD](), dim=10, max_clients=5)
    assert RoundParams(dim=10, max_clients=5) == expected
    assert RoundParams.from_dict({"dim": 10, "max_clients": 5}) == expected


def test_an_option_of_another_method_says_whose_it_is() -> None:
    given = {"method": "bucketed", "dim": 10, "max_clients": 5}
    with pytest.raises(ConfigError, match="invalid option of b.*: ranks, which belongs to radix"):
        RoundParams.from_dict(given | {"ranks": [1]})
    with pytest.raises(ConfigError, match="unknown colour"):
        RoundParams.from_dict(given | {"colour": 1})
    with pytest.raises(ConfigError, match="invalid method: .*; take one of"):
        RoundParams.from_dict(given | {"method": ["bucketed"]})
    with pytest.raises(TypeError):
        TrimmedMean(buckets=4)  # type: ignore[call-arg]


def test_quantiles_are_exact_ranks() -> None:
    """ceil(0.07 * 100) is 8 in floating point; so are the ends of a trimmed mean."""
    for hundredths in range(1, 101):
        q = hundredths / 100
        method = Radix(quantiles=[q])
        for total in range(1, 201):
            assert method.ranks_of(total) == [-(-hundredths * total // 100)]
            if q < 0.5:
                assert dropped(total, q) == hundredths * total // 100


def test_results_that_no_server_should_decode_are_refused() -> None:
    most = MAX_RESULT_VALUES
    RoundParams(Radix(encoding="fixed", word_bits=2, fraction_bits=0), dim=most, max_clients=3)
    with pytest.raises(
        ConfigError, match="invalid dim: .*; give a whole number from 1 to 134217728"
    ):
        RoundParams(
            Radix(encoding="fixed", word_bits=2, fraction_bits=0), dim=1 << 30, max_clients=3
        )
    with pytest.raises(ConfigError, match="3 results of 100,000,000; ask for fewer ranks"):
        RoundParams(Radix(ranks=[1, 2], quantiles=[0.5]), dim=100_000_000, max_clients=3)
    with pytest.raises(ConfigError, match="2 results of"):
        RoundParams(Radix(midpoint=True), dim=most, max_clients=3)


# clients, whose 190 comparisons of 128 coordinates are 24,320
MANY = 20
BATCH = 4096


@pytest.mark.parametrize(
    "method",
    [
        Pairwise(ring_bits=32, fraction_bits=8),
        Pairwise(ring_bits=32, fraction_bits=8, selection="opened"),
        TrimmedMean(ring_bits=32, fraction_bits=8),
    ],
    ids=lambda m: m.label,
)
def test_batch_bounds_a_lane_however_many_clients_there_are(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once: list[int] = []
    reserved: list[Demand] = []
    greater, reserve = compare.greater, Pool.reserve

    def watched(party: Any, x: Any, y: Any, bits: int) -> Any:
        at_once.append(x.size)
        return greater(party, x, y, bits)

    def noted(pool: Pool, demand: Demand) -> None:
        reserved.append(demand)
        reserve(pool, demand)

    monkeypatch.setattr(compare, "greater", watched)
    monkeypatch.setattr(Pool, "reserve", noted)
    updates = np.random.default_rng(1).normal(size=(MANY, 130))
    params = RoundParams(method, dim=130, max_clients=MANY)
    small = ProtocolParams(lanes=1, batch=BATCH)
    got, want = published_round(params, updates, small)
    assert np.array_equal(got, want)
    assert max(at_once) <= BATCH and sum(at_once) == 2 * 190 * 130
    bound = compare.msb_demand(2 * BATCH, 32).memory
    assert max(demand.memory for demand in reserved) < bound
    assert method.demand([1] * MANY, 128, MANY).memory > bound


def test_a_round_whose_chunks_fit_is_not_cut() -> None:
    """Sizes below the bound are not cut into groups, however a chunk was rounded up."""
    params = RoundParams(Pairwise(), dim=1 << 20, max_clients=10)
    protocol = ProtocolParams()
    for dim in (1, 128, 11_776):
        chunk = params.chunk([], [1] * 10, 0, dim, protocol.batch)
        assert params.method.batch_limit(chunk) is None
    crowded = RoundParams(Pairwise(), dim=1 << 20, max_clients=92).chunk(
        [], [1] * 92, 0, 128, protocol.batch
    )
    assert params.method.batch_limit(crowded) == protocol.batch


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_filled_ahead_and_planned(method: str) -> None:
    params = RoundParams(METHODS[method](**GIVEN.get(method, {})), dim=300, max_clients=3)
    protocol = ProtocolParams(lanes=1)
    lanes = make_parties(1)
    ahead = run_both(lambda j: fill(lanes[j], params, protocol, 1 << 28))[0]
    predicted = predict(params, [1] * 3, protocol)
    assert predicted.memory > 0 and (ahead.ots > 0) == (predicted.cost.ots > 0)
    around = Published(*(np.ones(300, np.float32),) * 2, policy=CoordinateRange())
    assert played(lanes, params, np.zeros((3, 300)), around, protocol).cost.ots == 0


# Options that no round can have

ABC = dict.fromkeys("abc", 1)
SEEN: dict[str, Any] = {"groups": 2, "membership": "visible"}
BETA: dict[str, Any] = {"neighbours": 2, "trim": 0.1}
OPENS: dict[str, Any] = {"clustering": "opened", "max_clients": 12}
SUMS: dict[str, Any] = {"ring_bits": 16, "fraction_bits": 12, "reclusterings": 4}
OFF: dict[str, Any] = {"norm_bound": "off"}
NOISE: dict[str, Any] = {"norm_bound": 1.0, "noise_multiplier": 1.0}
NO_NUMBERS = (math.nan, True, "half")
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *(("mean", {"norm_bound": x}, "invalid norm_bound") for x in (0, -1.0, 1e9, math.inf)),
    *(("mean", {"norm_bound": x}, "invalid norm_bound") for x in NO_NUMBERS),
    ("mean", {"ring_bits": 32}, "lengths are checked in a ring of 64 bits only"),
    ("mean", {"norm_bound": 2.0, "fraction_bits": 24}, "1 to 16,777,216; leave fraction_bits"),
    ("mean", {"norm_bound": 1e-320}, "with fraction_bits 40 cannot be checked: 0 steps"),
    ("mean", OFF | {"quantile": 0.5}, "has no bound to adapt: .*; take a quantile below 1 with"),
    ("mean", {"quantile": 1}, "has no bound to adapt"),
    ("mean", {"quantile": 1.0, "norm_bound": 2.0}, "has no bound to adapt"),
    *(
        ("mean", {"quantile": x}, "invalid quantile: .*; give 0 or a number above 0 and below 1")
        for x in (-0.5, 1.5, math.nan)
    ),
    *(("mean", {"quantile": x}, "invalid quantile: .*; give a number") for x in (True, "half")),
    # headroom is for the clients: 23 fraction bits fit 28 bits
    (
        "mean",
        OFF | {"ring_bits": 28},
        "invalid fraction_bits: .*; give a whole number from 0 to 23",
    ),
    (
        "mean",
        OFF | {"ring_bits": 8, "fraction_bits": 0, "max_clients": 1000},
        "too small for mean with 1000 clients: .*; use 12 or more",
    ),
    ("mean", NOISE | {"norm_bound": "auto"}, "norm_bound does not limit: auto; give norm_bound a"),
    ("mean", NOISE | OFF, "norm_bound does not limit: off"),
    ("mean", NOISE | {"weights": ABC, "weight_cap": 0.5}, "takes no weights"),
    ("mean", NOISE | {"noise_multiplier": 1e-9}, "above 0.001"),
    *(
        ("mean", NOISE | {"noise_multiplier": x}, f"{x}; give .* at most 1000")
        for x in (-1.0, math.inf, math.nan)
    ),
    ("mean", NOISE | {"quantile": 0.5}, "noise_multiplier takes no quantile, because the count of"),
    ("krum", {"max_clients": 181}, "invalid max_clients of krum: 181; give .* from 2 to 180"),
    ("krum", {"max_clients": 2}, "krum with 0 faulty clients needs at least 3: max_clients is 2"),
    ("krum", {"faulty": 1, "max_clients": 3}, "needs at least 4"),
    ("krum", {"faulty": 4, "max_clients": 8}, "needs at least 9"),
    ("krum", {"faulty": 2, "chosen": 6}, "would average 6 clients: .* of whom 2 may be faulty"),
    ("krum", {"faulty": -2}, "invalid faulty: .*; give a whole number from 0"),
    ("krum", {"chosen": -1}, "invalid chosen: .*; give a whole number from 0"),
    ("krum", {"selection": "shown"}, "invalid selection: .*; take one of hidden, opened"),
    ("zeno", {"rho": 0}, "invalid rho: .*; give a number above 0"),
    ("zeno", {"epsilon": 0}, "invalid epsilon: .*; give a number above 0"),
    ("zeno", {"norm_bound": "off"}, "invalid norm_bound: .*; take one of auto"),
    ("zeno", {"norm_bound": 9e9}, "invalid norm_bound: .*; give auto.* or a number above 0"),
    ("zeno", {"rho": 1e-30}, "too much for scores of 128 bits: 1e.30 and 0.2; raise rho"),
    ("zeno", {"epsilon": 1e6, "rho": 1e-11, "eta": 1e6, "fraction_bits": 24}, "of 128 bits"),
    ("zeno", {"clusters": 257}, "a cluster may weigh .*: 513; ask for smaller clusters"),
    ("zeno", {"clusters": 7}, "those besides the validator are at most 6"),
    ("zeno", {"weights": ABC}, "the validator has no weight, .*: 'v'; name"),
    ("trimmed-mean", {"neighbours": 4}, "neighbours 4 needs more than 8 clients: max_clients is 7"),
    ("trimmed-mean", {"neighbours": -2}, "invalid neighbours: .*; give a whole number from 0"),
    ("trimmed-mean", {"neighbours": 2, "ring_bits": 32, "fraction_bits": 8}, "leave ring_bits out"),
    ("trimmed-mean", BETA | SEEN, "leave weights and groups"),
    ("trimmed-mean", BETA | {"max_clients": 129}, "invalid max_clients with neighbours: .* to 128"),
    ("radix", {"neighbours": 2, "encoding": "bfloat16"}, "leave encoding and"),
    ("pairwise", {"neighbours": 2, "result_to": "clients"}, "leave result_to out"),
    ("pairwise", {"neighbours": 2, "weights": ABC}, "leave w"),
    ("reclustered", {"clusters": 8}, "too few clients for a cluster of 8: max_clients is 7"),
    ("reclustered", {"clusters": 0}, "invalid clusters: .*; give a whole number from 1"),
    ("reclustered", {"reclusterings": 0}, "invalid reclusterings: .*; give a whole number from 1"),
    ("reclustered", {"reclusterings": 1025}, "invalid reclusterings: .*from 1 to 1024"),
    ("reclustered", {"aggregator": "krum"}, "this aggregator: krum; take clustering opened"),
    ("reclustered", {"aggregator": "mode"}, "aggregator: .* of median, trimmed-mean, mean, krum"),
    ("reclustered", OPENS | {"weights": ABC, "weight_cap": 1}, "takes no weights"),
    ("reclustered", OPENS | {"max_clients": 257}, "max_clients with clustering opened: .* to 256"),
    (
        "reclustered",
        OPENS | {"aggregator": "krum", "clusters": 3},
        r"clusters, 4, of 12 clients: .* Krum with f = 1 faulty clients: 4; give 2 f \+ 3",
    ),
    (
        "reclustered",
        OPENS | {"clusters": 3, "reclusterings": 4, "max_clients": 60},
        "whose matrix has rank 60, tell updates: those of 60 of 60 clients; ask for",
    ),
    (
        "reclustered",
        {"clusters": 2, "reclusterings": 4, "max_clients": 4},
        "max_clients is 4, of whom there are too few divisions .*: 3;",
    ),
    ("reclustered", {"trim": 0.5}, "more would leave nothing"),
    ("reclustered", {"eta": 0}, "invalid eta: .*; give a number above 0"),
    ("reclustered", SUMS | {"max_clients": 60}, "invalid fraction_bits"),
    ("radix", {"encoding": "float64"}, "invalid encoding"),
    ("radix", {"encoding": "fixed", "word_bits": 65}, "invalid word_bits: .* from 2 to 64"),
    ("radix", {"encoding": "unit", "word_bits": 33}, "invalid word_bits with encoding unit"),
    ("radix", {"encoding": "fixed", "fraction_bits": 31}, "invalid fraction_bits"),
    ("radix", {"ranks": [0]}, "invalid rank: 0; give"),
    ("radix", {"ranks": [8]}, "invalid rank: 8; give a whole number from 1 to 7"),
    ("radix", {"quantiles": [0.0]}, "invalid quantile: 0"),
    ("radix", {"quantiles": [1.5]}, "invalid quantile: 1.5"),
    ("radix", {"midpoint": True, "ranks": [1]}, "midpoint is for the unweighted median"),
    ("radix", {"weights": ABC, "ranks": [2]}, "ranks and quantiles with weights tell"),
    ("radix", {"ring_bits": 2}, "too few bits to count a total weight of 7: ring_bits 2; use"),
    ("radix", {"weight_cap": 0.0}, "invalid weight_cap"),
    ("trimmed-mean", {"trim": 0.5}, "invalid trim: 0.5; give"),
    ("bucketed", {"groups": 0}, "invalid groups: .*; give a whole number from 1"),
    ("bucketed", {"groups": 5}, "5 groups of 16 buckets are more than the 64 .* be dealt: 80"),
    ("bucketed", {"groups": 2, "ring_bits": 3}, "total weight of 7: ring_bits 3; use 4"),
    ("bucketed", {"groups": 2, "uploads": "unverified"}, "hidden groups need uploads dealt"),
    ("bucketed", {"groups": 2, "weights": ABC}, "several groups take no weights"),
    ("trimmed-mean", {"groups": 2}, "cannot hide the group that .* method trimmed-mean;"),
    ("radix", {"groups": 2}, "cannot hide the group that .* method radix;"),
    ("radix", SEEN | {"midpoint": True}, "leave out ranks, quantiles and midpoint"),
    ("radix", SEEN | {"weights": ABC}, "several groups take no weights"),
]


@pytest.mark.parametrize(("method", "options", "says"), REFUSED, ids=str)
def test_what_makes_no_sense_is_refused_when_the_round_is_opened(
    method: str, options: dict[str, Any], says: str
) -> None:
    given = {"method": method, "dim": 9, "max_clients": 7} | options
    with pytest.raises(ConfigError, match=says):
        RoundParams.from_dict(given | ({"validator": "v"} if method == "zeno" else {}))


@pytest.mark.parametrize(
    ("method", "least", "says"),
    [
        (Krum(faulty=2, chosen=4), 6, "those who take part are 5, of whom 2 may be faulty"),
        (Krum(faulty=2), 5, "needs at least 5: those who take part are 4"),
        (TrimmedMean(neighbours=2), 5, "more than 4 clients: those who take part are 4"),
        (Reclustered(clusters=4), 4, "a cluster of 4: those who take part are 3"),
        (Radix(ranks=[7]), 7, "beyond the total weight 6 .*: 7;"),
    ],
    ids=str,
)
def test_too_few_of_those_who_take_part_are_refused(method: Method, least: int, says: str) -> None:
    params = RoundParams(method, dim=9, max_clients=9)
    params.check_included([str(number) for number in range(least)])
    with pytest.raises(ConfigError, match=says):
        params.check_included([str(number) for number in range(least - 1)])


def test_published_buckets_need_a_model() -> None:
    with pytest.raises(ConfigError, match="needs a model and a range"):
        Published().bucketize(np.zeros(3), 16)


# Numbers that fixed point holds exactly

FIXED: list[tuple[type[Method], dict[str, Any]]] = [
    (Mean, {}),
    (Mean, {"norm_bound": float(1 << 24)}),
    (Mean, {"norm_bound": "off"}),
    (Krum, {}),
    (Zeno, {"validator": "a"}),
    (Pairwise, {}),
    (Pairwise, {"neighbours": 1}),
    (TrimmedMean, {}),
    (TrimmedMean, {"neighbours": 1}),
    (Radix, {"encoding": "fixed", "word_bits": 40}),
    (Radix, {"neighbours": 1}),
    (Reclustered, {}),
]


@pytest.mark.parametrize(("cls", "options"), FIXED, ids=lambda one: str(one))
@settings(max_examples=20, deadline=None)
@given(
    fraction=st.integers(0, 24),
    twice=st.lists(st.integers(-(1 << 16), 1 << 16), min_size=1, max_size=40),
    steps=st.integers(-(1 << 10), 1 << 10),
)
# of which a division by the largest and a multiplication lose one
@example(fraction=16, twice=list(range(2, 46, 2)), steps=0)
@example(fraction=24, twice=list(range(1, 200)), steps=3)
def test_what_fixed_point_holds_comes_back_as_it_is(
    cls: type[Method], options: dict[str, Any], fraction: int, twice: list[int], steps: int
) -> None:
    """Half steps, some of which are whole, around a model of whole steps."""
    made: Any = cls
    method = made(fraction_bits=fraction, **options)
    halves = np.array(twice)
    around = np.full(halves.size, steps / 2.0**fraction, np.float32)
    published = Published(around)
    update = (halves / 2 + steps) / 2.0**fraction
    shared_words, form = method.encode(update, 3, published)[0], method.form(halves.size, 3)
    if isinstance(method, Radix) and not method.neighbours:
        whole = method.values(PublicValues(shared_words)) * 2.0**fraction
    else:
        whole = ring.signed(shared_words, form.layout.bits).astype(np.float64)
    if not form.differences:
        whole = whole - steps
    # methods on bounded differences round toward 0, which makes none longer, and others down
    toward_zero = isinstance(form.check, NormCheck)
    want = np.trunc(halves / 2) if toward_zero else np.floor(halves / 2)
    if isinstance(method, Mean) and method.counts:
        # the lowest bit of the first value says whether the client was clipped
        want[0] = 2 * np.trunc(want[0] / 2)
    assert np.array_equal(whole, want)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(2, 3, 6), (1, 4, 8), (6, 6, 7), (3, 4), (1, 1, 1, 1), (2, 5, 14)]),
    st.integers(1, 1 << 18),
)
def test_a_difference_as_long_as_the_bound_is_not_cut(sides: tuple[int, ...], times: int) -> None:
    whole = np.array(sides) * times
    longest = round(float(np.sqrt((np.array(sides) ** 2).sum()))) * times
    exact = whole / 2.0**16
    assert np.array_equal(bounded.Cut(16, longest).whole(exact, Published()), whole)
    shorter = bounded.Cut(16, longest - 1).whole(exact, Published())
    assert (shorter <= whole).all() and (shorter**2).sum() < longest**2
