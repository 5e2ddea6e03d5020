"""The mean: against numpy at its edges, what is opened, and through real daemons."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.clients.policy import ClientPolicy
from securemedian.laboratory import plaintext
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import run_round
from tests.daemons import Pair
from tests.parties import Lanes, make_parties, run_both
from tests.test_privacy import looks_uniform, recorders

PAIR = {"clients": 4}


def opened_sum(lanes: Lanes, params: RoundParams, values: np.ndarray) -> np.ndarray:
    """Return what both servers open of the clients' values (n, d), signed."""
    names = list(params.weights) or [""] * len(values)
    weights = params.method.weights_of(names)
    uploads = []
    for name, row in zip(names, values, strict=True):
        published = Published(part=params.part_of(name))
        whole = params.method.encode(row, params.max_clients, published)
        uploads.append(share.split(whole, params.form.layout.bits))
    one, other = run_both(
        lambda j: run_round(
            lanes[j], params, ProtocolParams(), [pair[j] for pair in uploads], weights=weights
        )
    )
    assert (one.values == other.values).all()
    assert one.cost.ots == 0 and one.cost.preprocessing_bytes_sent == 0
    return ring.signed(one.values, params.form.ring_bits)[0]


@pytest.mark.parametrize("bits", [5, 16, 31, 32, 33, 64])
@pytest.mark.parametrize("clients", [1, 2, 8])
def test_the_sum_is_exact_and_keeps_its_sign(lanes: Lanes, clients: int, bits: int) -> None:
    """Random values, all the largest, all the smallest, and what saturates."""
    rng = np.random.default_rng(bits)
    params = RoundParams(
        Mean(norm_bound="off", ring_bits=bits, fraction_bits=0),
        dim=250,
        max_clients=max(2, clients),
    )
    top = 2 ** (bits - 2 - (params.max_clients - 1).bit_length())
    inside = rng.integers(-top, top, (clients, 100)).astype(float)
    inside[:, :2] = [top - 1 if top < 2**53 else 0, -top]
    beyond = rng.choice([np.inf, -np.inf, 4.0 * top, -4.0 * top], (clients, 150))
    values = np.concatenate([inside, beyond], axis=1)
    want = [
        sum(
            int(min(max(value, -top), top - 1))
            if np.isfinite(value)
            else (top - 1 if value > 0 else -top)
            for value in column
        )
        for column in values.T
    ]
    assert opened_sum(lanes, params, values).tolist() == want


def test_the_ring_holds_the_sum_of_all() -> None:
    """Headroom is for the clients: 8 of 24 fraction bits fit 31 bits."""
    RoundParams(Mean(norm_bound="off", ring_bits=31), dim=10, max_clients=8)
    # the same with any weights
    heavy = {"a": 1 << 30, "b": 1 << 30, "c": 1 << 30}
    tight = Mean(norm_bound="off", ring_bits=32, fraction_bits=28, weights=heavy)
    RoundParams(tight, dim=10, max_clients=3)


def test_the_sum_alone_is_opened() -> None:
    """Each server hears the sizes and the other's share of the sum, which is uniform."""
    pair = recorders()
    params = RoundParams(Mean(norm_bound="off"), dim=4096, max_clients=4)
    opened_sum(make_parties(pairs=[pair]), params, np.zeros((4, 4096)))
    for end in pair:
        heard = [(label, array) for label, array in end.received if label[:3] not in ("bas", "ggm")]
        assert [label for label, _ in heard] == ["sizes", "commit.ring", "open.ring"]
        assert looks_uniform(heard[2][1])


@pytest.mark.slow
def test_a_client_takes_part_with_the_weight_that_it_states_alone(pair: Pair) -> None:
    """Check that it scales its values by that weight, with no word of the caller's."""
    shares = dict(zip(pair.names, [3, 1, 2, 3], strict=True))
    given: dict[str, Any] = {"method": "mean", "dim": 20, "max_clients": 4, "weights": shares}
    lowered = RoundParams.from_dict(given | {"norm_bound": 64.0, "weight_cap": 0.3})
    round_id = pair.open(reset=True, **lowered.to_dict())
    updates = np.random.default_rng(3).normal(size=(4, 20)).astype(np.float32)
    for name, update in zip(pair.names, updates, strict=True):
        config = replace(ClientConfig.load(pair.folder / f"{name}.toml"), state_dir="")
        config = replace(config, policy=ClientPolicy.unlimited(), weight=shares[name])
        with Client(config) as client:
            client.submit(update, round_id)
    pair.wait("published")
    weights = lowered.method.weights_of(pair.names)
    assert weights == [2, 1, 2, 2]
    (want,) = plaintext.published(updates, lowered, Published(), weights)
    assert np.array_equal(pair.result(round_id), want)
