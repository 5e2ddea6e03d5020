"""Rounds of zoom of real clients through two real servers."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian import cli
from securemedian.clients import files
from securemedian.clients.client import Client
from securemedian.clients.policy import ClientPolicy
from securemedian.mpc.errors import InputError, PolicyRefused, RoundClosed, RoundFailed
from securemedian.plugins import rounds as plugin
from tests import zoom_rounds
from tests.daemons import Pair, client_of, in_background, results_of

pytestmark = pytest.mark.slow

DIM = 200


@pytest.fixture(autouse=True)
def ended(pair: Pair) -> Iterator[None]:
    """End a round that a failed test leaves: nobody else may abort it."""
    yield
    if (status := pair.status())["state"] == "voting":
        pair.caller("client-1", "s0").ask("decline", round=status["round"])


def open_round(pair: Pair, malicious: bool = False, **params: Any) -> str:
    given: dict[str, Any] = {"method": "zoom", "dim": DIM, "max_clients": 3, "min_clients": 2}
    given |= {"security": "malicious"} if malicious else {}
    return str(pair.open(**given | params))


def update(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(DIM).astype(np.float32)


def median(*updates: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.sort(updates, axis=0)[(len(updates) - 1) // 2]


@pytest.mark.parametrize("malicious", [False, True])
def test_clients_vote_on_while_they_wait_for_the_result(
    pair: Pair, opened: ExitStack, malicious: bool
) -> None:
    clients = [opened.enter_context(client_of(pair, number)) for number in (1, 2, 3)]
    said: list[str] = []
    clients[0].report = said.append
    round_id, base = open_round(pair, malicious), 10 * malicious
    for seed, client in enumerate(clients, base):
        client.submit(update(seed), round_id)
    for one in results_of(clients, round_id):
        assert np.array_equal(one, median(*map(update, range(base, base + 3))))
    assert said == [f"round {round_id}: level {level} of 8" for level in range(2, 9)]
    record = clients[0].receipt(round_id).record
    assert len(record.included) == 3 and not clients[0]._journal.upheld


def test_all_clients_restart_before_each_vote_is_sent(pair: Pair) -> None:
    """Each vote is made by a process that has read the journal of the one before."""
    round_id, base = open_round(pair, malicious=True), 210

    def take_part(number: int) -> None:
        with client_of(pair, number) as first:
            first.submit(update(base + number), round_id)
        for _ in range(2, 9):
            with client_of(pair, number) as then:
                tends_once(then)
        with client_of(pair, number) as last:
            found = last.result(round_id, timeout_s=60)
        assert np.array_equal(found, median(*(update(base + each) for each in (1, 2, 3))))

    for join in [in_background(partial(take_part, number)) for number in (1, 2, 3)]:
        join()


def tends_once(client: Client) -> None:
    """Let a client vote once, and no more."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        voted = client._journal.vote

        def vote(*given: Any) -> None:
            voted(*given)
            # before a byte of it is sent
            raise KeyboardInterrupt

        patch.setattr(client._journal, "vote", vote)
        while client._journal.upheld:
            client._tend()


@pytest.mark.parametrize(("server", "malicious"), [("s0", False), ("s1", True)])
def test_a_server_that_is_killed_between_votes_costs_nothing(
    pair: Pair, opened: ExitStack, server: str, malicious: bool
) -> None:
    clients = [opened.enter_context(client_of(pair, number)) for number in (1, 2, 3)]
    base = 30 + 10 * malicious
    round_id = open_round(pair, malicious)
    for seed, client in enumerate(clients, base):
        client.submit(update(seed), round_id)
    join = in_background(lambda: results_of(clients[:2], round_id))
    for _ in range(2):
        # the others wait for its vote
        tends_once(clients[2])
        pair.stop(server, signal.SIGKILL)
        pair.start(server)
        pair.link()
    found = clients[2].result(round_id, 60)
    assert np.array_equal(found, median(*map(update, range(base, base + 3))))
    join()


def test_an_update_that_was_voted_on_is_refused_in_another_round_of_votes(
    pair: Pair, opened: ExitStack
) -> None:
    clients = [opened.enter_context(client_of(pair, number)) for number in (1, 2, 3)]
    round_id = open_round(pair)
    for seed, client in enumerate(clients, 50):
        client.submit(update(seed), round_id)
    results_of(clients, round_id)
    later = open_round(pair)
    with pytest.raises(InputError, match=f"voted on in another round: {round_id}; train again"):
        clients[0].submit(update(50), later)
    for seed, client in enumerate(clients, 60):
        client.submit(update(seed), later)
    results_of(clients, later)
    # a round of one vote takes it
    plain = str(pair.open(method="radix", dim=DIM, max_clients=3, min_clients=2))
    for seed, client in enumerate(clients, 50):
        client.submit(update(seed), plain)
    results_of(clients, plain)


def test_an_update_whose_first_digit_was_opened_is_never_voted_on_again(
    pair: Pair, opened: ExitStack
) -> None:
    """Also if the round ends before a second vote, which a coordinator may bring about."""
    clients = [opened.enter_context(client_of(pair, number)) for number in (1, 2, 3)]
    round_id = open_round(pair, limit_s=1e-6)
    for seed, client in enumerate(clients, 170):
        client.submit(update(seed), round_id)
    for client in clients:
        with pytest.raises(RoundFailed, match="vote 2 of 8 did not come in time"):
            client.result(round_id, timeout_s=60)
    later = open_round(pair)
    for seed, client in enumerate(clients, 170):
        with pytest.raises(InputError, match=f"voted on in another round: {round_id}; train again"):
            client.submit(update(seed), later)
    # nothing is opened of a round that fails before
    pair.caller("coordinator", "s0").ask("abort", round=later, reason="the test is over")
    plain = open_round(pair)
    clients[0].submit(update(180), plain)
    pair.caller("coordinator", "s0").ask("abort", round=plain, reason="the test is over")
    with pytest.raises(RoundFailed):
        clients[0].result(plain, timeout_s=60)
    later = open_round(pair)
    for seed, client in enumerate(clients, 180):
        client.submit(update(seed), later)
    results_of(clients, later)


def test_an_update_is_spent_though_a_server_says_that_it_has_none(
    pair: Pair, opened: ExitStack
) -> None:
    """S1 takes the first vote, answers that the round is closed, and goes on with it."""
    clients = [opened.enter_context(client_of(pair, number)) for number in (1, 2, 3)]
    round_id = open_round(pair, limit_s=5.0)
    for seed, client in enumerate(clients[1:], 201):
        client.submit(update(seed), round_id)
    asked = clients[0].servers[1].ask

    def lies(op: str, *given: Any, **options: Any) -> Any:
        answer = asked(op, *given, **options)
        if op == "upload":
            raise RoundClosed("the round takes no uploads")
        return answer

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RoundClosed):
        patch.setattr(clients[0].servers[1], "ask", lies)
        clients[0].submit(update(200), round_id)
    joins = [in_background(partial(client.result, round_id, 60)) for client in clients[1:]]
    for join in joins:
        with pytest.raises(RoundFailed, match="vote 2 of 8 did not come in time"):
            join()
    later = open_round(pair)
    with pytest.raises(InputError, match=f"voted on in another round: {round_id}; train again"):
        clients[0].submit(update(200), later)
    # with another one all go on
    for seed, client in enumerate(clients, 203):
        client.submit(update(seed), later)
    results_of(clients, later)


def test_a_client_without_a_journal_takes_no_part(pair: Pair, opened: ExitStack) -> None:
    round_id = open_round(pair, max_clients=3)
    with client_of(pair, 3, state_dir="") as forgetful:
        for take_part in (forgetful.wait_for_round, partial(forgetful.check_round, round_id)):
            with pytest.raises(PolicyRefused, match="without a state_dir"):
                take_part()
    clients = [opened.enter_context(client_of(pair, number)) for number in (1, 2)]
    for seed, client in enumerate(clients, 70):
        client.submit(update(seed), round_id)
    # nobody waits for it
    one, _ = results_of(clients, round_id)
    assert np.array_equal(one, median(update(70), update(71)))
    assert "its own policy refuses" in clients[0].left_out(round_id)["client-3"]


def test_who_submits_alone_stays_to_vote(
    pair: Pair, opened: ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Submit on the command line, and as a Flower node or an NVFlare site does."""
    round_id = open_round(pair)
    files.write(tmp_path / "update.npy", update(81))
    by_hand = ["submit", str(pair.folder / "client-1.toml"), str(tmp_path / "update.npy")]
    plugged = [pair.config(f"client-{number}") for number in (2, 3)]
    ways: list[Callable[[], object]] = [lambda: cli.main(by_hand)]
    ways += [
        partial(plugin.submit, config, {"w": update(80 + number)}, round_id)
        for number, config in enumerate(plugged, 2)
    ]
    for join in [in_background(way) for way in ways]:
        join()
    assert f"submitted to round {round_id}" in capsys.readouterr().out
    status = pair.status()
    assert status["state"] == "published" and len(status["included"]) == 3
    # a site that has trained the same update again, for which nobody is to wait
    again = open_round(pair)
    with pytest.raises(InputError, match="train again"):
        plugin.submit(plugged[0], {"w": update(82)}, again)
    assert "its own policy refuses" in str(pair.status()["left_out"]["client-2"])
    pair.caller("coordinator", "s0").ask("abort", round=again, reason="the test is over")


# It fails, which binds later rounds to their clients


def test_who_refuses_the_set_ends_the_round_and_is_named(pair: Pair, opened: ExitStack) -> None:
    """A round may go on without a client that another one asks for."""
    policy = ClientPolicy(with_clients=["client-3"])
    clients = [
        opened.enter_context(client_of(pair, 1)),
        opened.enter_context(client_of(pair, 2, policy=policy)),
    ]
    round_id = open_round(pair)
    for seed, client in enumerate(clients, 90):
        client.submit(update(seed), round_id)
    pair.caller("coordinator", "s0").ask("close", round=round_id)
    with pytest.raises(RoundFailed, match="client-2 votes no more: its own policy refuses"):
        clients[1].result(round_id, timeout_s=60)
    assert not clients[1]._journal.upheld
    # its first digit was told
    assert int(round_id.partition("-")[0]) in clients[1]._spent.numbers()
    # of its next attempt, with other clients, a policy says whether it takes part
    opened.close()
    with client_of(pair, 1, policy=ClientPolicy()) as default:
        again = str(
            pair.caller("coordinator", "s0")
            .ask(
                "open",
                params={"method": "zoom", "dim": DIM, "max_clients": 3, "min_clients": 2},
                range={},
                reset=False,
                release=True,
            )
            .fields["round"]
        )
        with pytest.raises(PolicyRefused, match="release True: its \\[policy\\] allows only False"):
            default.check_round(again)
    allows = ClientPolicy(allowed={"release": [False, True]})
    with client_of(pair, 2, policy=allows) as other:
        other.check_round(again)
    pair.caller("coordinator", "s0").ask("abort", round=again, reason="the test is over")


# Their models have other sizes, which ends what the round before has bound


@pytest.mark.parametrize("seed", range(3))
def test_random_rounds_have_the_sorted_words(pair: Pair, seed: int) -> None:
    """So have 2,000, by `python -m tests.zoom_rounds`."""
    zoom_rounds.play(pair, seed)
