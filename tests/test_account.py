"""The account of differential privacy: what epsilon is, who keeps it, and who refuses for it."""

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.clients.policy import ClientPolicy
from securemedian.common.policy import Policy
from securemedian.common.status import RoundStatus
from securemedian.mpc.canonical import build
from securemedian.mpc.errors import ChannelTimeout, ConfigError, PolicyRefused
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.privacy import epsilon_of, rho_of
from securemedian.servers.network.control import Check, Close, Compute, Failed, Open, Opened, Resume
from tests.daemons import Pair, running
from tests.servers_alone import DIM, PARAMS, START, Server, held

# (noise multiplier, rounds, epsilon) by dp-accounting 0.6.0, whose pins are older than ours:
#     `a = RdpAccountant([1 + 2 ** (i / 50) for i in range(-300, 2000)])`
#     `a.compose(GaussianDpEvent(z), rounds).get_epsilon(1e-5)`
EPSILONS = [
    (0.3, 1, 20.3918),
    (0.3, 1000, 6057.2517),
    (1, 1, 4.72845),
    (1, 10, 19.04729),
    (1.1, 1, 4.23947),
    (4, 1, 1.012291),
    (4, 10, 3.617008),
    (4, 1000, 67.42334),
    (20, 100, 2.165728),
    (1000, 1, 0.00231782),
    (1000, 1000, 0.1081122),
]


@pytest.mark.parametrize(("multiplier", "rounds", "epsilon"), EPSILONS)
def test_epsilon_is_that_of_dp_accounting(multiplier: float, rounds: int, epsilon: float) -> None:
    assert epsilon_of(rounds * rho_of(multiplier)) == pytest.approx(epsilon, rel=1e-4)


def test_epsilon_grows_with_the_rounds_and_falls_with_delta() -> None:
    found = [epsilon_of(rounds * rho_of(3)) for rounds in range(100)]
    assert found[0] == 0 and found == sorted(found) and len(set(found)) == 100
    assert epsilon_of(1, 1e-3) < epsilon_of(1) < epsilon_of(1, 1e-9)


# At the servers


NOISY = RoundParams(Mean(norm_bound=1.0, noise_multiplier=4.0), dim=DIM, max_clients=3)
RHO = NOISY.method.noise.rho
_ids = itertools.count()


def asked(number: int, params: RoundParams = NOISY, spent: float = 0.0) -> Open:
    """Return S0's message about a round."""
    name = f"{number}-{next(_ids):08x}"
    return Open(name, number, params.to_dict(), bytes(16), True, False, START, spent=spent)


def run(s1: Server, number: int, params: RoundParams = NOISY, spent: float = 0.0) -> None:
    """Let S1 begin to run a round of all its clients."""
    s1.params = params
    s1.hear(asked(number, params, spent))
    assert isinstance(s1.sent[-1], Opened), s1.sent[-1]
    round_id = s1.latest.server_round.round_id
    s1.upload_all(round_id)
    s1.hear(Close(round_id, held(s1.keys)))
    if params.form.checks:
        s1.hear(Check(round_id, s1.keys))
        s1.engine.end_check()
        s1.rounds.engine_ended()
    s1.hear(Compute(round_id, s1.latest.server_round.digest, 1, bytes(16), False))
    assert s1.state[0] == "running", s1.state


def test_the_account_grows_when_the_protocol_begins_and_outlasts_a_restart(tmp_path: Path) -> None:
    s1 = Server(1, tmp_path)
    for number in (1, 2):
        s1.hear(asked(number))
        assert s1.sent[-1].spent == (number - 1) * RHO
        # a round that never ran costs nothing
        round_id = s1.latest.server_round.round_id
        s1.hear(Failed(round_id, "round-failed", "the test goes on"))
        run(s1, number)
        assert s1.rounds.register.spent("default") == number * RHO
        told = s1.ask(s1.coordinator, "status").fields["epsilon"]
        assert told == epsilon_of(number * RHO) == s1.rounds.register.epsilons["default"]
        # one that ran costs it, whatever becomes of it
        s1.fail()
        s1.restart()
        assert s1.rounds.register.spent("default") == number * RHO


def test_another_attempt_at_a_round_costs_nothing_and_has_the_same_noise(tmp_path: Path) -> None:
    s1 = Server(1, tmp_path)
    run(s1, 1, spent=5.0)
    noise, round_id = s1.engine.noises[0], s1.latest.server_round.round_id
    for attempt, restarts in ((2, False), (3, True)):
        if restarts:
            s1.restart()
            s1.hear(Resume(round_id, bytes(16), "queued", 2, b"", {}, [], [], [], {}))
        else:
            s1.engine.result = ChannelTimeout("nothing for 60 s")
            s1.rounds.engine_ended()
        digest = s1.latest.server_round.digest
        s1.hear(Compute(round_id, digest, attempt, s1.latest.server_round.session, True))
        assert s1.state[0] == "running"
        assert s1.engine.noises[-1] == noise and len(noise) == 16
        assert s1.latest.server_round.spent_after == 5.0 + RHO
    assert s1.rounds.register.spent("default") == 5.0 + RHO
    # the same clients in another round, or others in the same one, have another noise
    facts = s1.latest.server_round
    others = replace(facts, included=facts.included[:-1])
    assert others.noise != noise
    s1.fail()
    assert s1.latest.server_round.saved()["noise_secret"] == ""
    run(s1, 1)
    assert s1.engine.noises[-1] != noise
    assert s1.rounds.register.spent("default") == 5.0 + RHO + RHO


def test_both_servers_take_the_larger_account(tmp_path: Path) -> None:
    s1 = Server(1, tmp_path / "s1")
    run(s1, 1, spent=5.0)
    assert s1.sent[-2:] and s1.rounds.register.spent("default") == 5.0 + RHO
    s0 = Server(0, tmp_path / "s0", params=NOISY)
    s0.ask_to_open()
    s0.hear(Opened(s0.sent[-1].round, s0.sent[-1].session, 3.0))
    assert s0.ask(s0.coordinator, "status").fields["epsilon"] == epsilon_of(3.0 + RHO)


def test_a_result_without_noise_ends_the_account(tmp_path: Path) -> None:
    s1 = Server(1, tmp_path)
    run(s1, 1, PARAMS)
    s1.fail()
    assert s1.rounds.register.spent("default") == math.inf
    run(s1, 2)
    assert s1.ask(s1.coordinator, "status").fields["epsilon"] is None
    assert not s1.rounds.register.epsilons


def test_a_server_refuses_the_round_that_would_pass_its_epsilon_also_after_a_restart(
    tmp_path: Path,
) -> None:
    limit = epsilon_of(2 * RHO) + 1e-9
    s1 = Server(1, tmp_path, policy=replace(Policy.unlimited(), max_epsilon=limit))
    for number in (1, 2):
        run(s1, number)
        s1.fail()
    s1.restart()
    s1.hear(asked(3))
    said = "refuses epsilon 1.8.* at delta 1e-05, of all results of the cohort: its .policy."
    assert isinstance(s1.sent[-1], Failed) and re.search(said, s1.sent[-1].reason)
    # whatever the other server says of it
    s1.hear(asked(4, spent=0.0))
    assert isinstance(s1.sent[-1], Failed)
    s1.hear(asked(5, PARAMS))
    assert "refuses a result without noise" in s1.sent[-1].reason


def test_a_client_goes_by_the_larger_epsilon_that_a_server_tells() -> None:
    policy = build(ClientPolicy, {"methods": ["mean"], "max_epsilon": 2.0}, "[policy]")

    def told(*epsilons: float | None) -> list[RoundStatus]:
        return [RoundStatus(epsilon=each) for each in epsilons]

    policy.check_round(NOISY, 0, "client-1", told(2.0, 1.0))
    for epsilon in (2.1, math.inf, math.nan, None):
        for statuses in (told(1.0, epsilon), told(epsilon, 1.0), []):
            with pytest.raises(PolicyRefused, match="max_epsilon 2"):
                policy.check_round(NOISY, 0, "client-1", statuses)
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="invalid max_epsilon: .*; give a number above 0"):
            build(ClientPolicy, {"max_epsilon": wrong}, "[policy]")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*not sent whole")
def test_epsilon_through_real_daemons(tmp_path: Path) -> None:
    """One round fits into the epsilon of a client, and no second; receipts and status tell it."""
    limit = epsilon_of(RHO) + 1e-9
    pair = Pair(tmp_path / "keys")
    client = tmp_path / "keys" / "client-1.toml"
    with running(pair):
        for number in (1, 2):
            round_id = pair.open(reset=number == 1, **NOISY.to_dict() | {"deadline_s": 60.0})
            config = ClientConfig.load(client)
            config = replace(config, policy=replace(config.policy, max_epsilon=limit))
            with Client(config) as one:
                if number == 2:
                    with pytest.raises(PolicyRefused, match="refuses epsilon 1.4"):
                        one.submit(np.zeros(DIM), round_id)
                    break
                one.submit(np.zeros(DIM), round_id)
                for name in pair.names[1:]:
                    pair.submit(name, np.zeros(DIM, np.float32))
                pair.wait("published")
                receipt = one.receipt(round_id)
                assert receipt.record.zcdp_rho == number * RHO
            for server in ("s0", "s1"):
                status = pair.caller("coordinator", server).ask("status").fields
                assert status["epsilon"] == epsilon_of(number * RHO)
