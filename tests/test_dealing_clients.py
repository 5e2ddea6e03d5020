"""Clients that deal, through real daemons: `clients.client` and the laboratory's malformed one."""

import threading
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.laboratory import plaintext
from securemedian.laboratory.attacks import Malformed
from securemedian.laboratory.worker import MalformedClient, check_malleable
from securemedian.mpc.errors import (
    ConfigError,
    DuplicateUpload,
    InputError,
    NotAllowed,
    SecureMedianError,
)
from securemedian.mpc.rounds.params import RoundParams
from tests.daemons import Pair, wait_until

pytestmark = pytest.mark.slow

DIM = 500
MODEL = np.zeros(DIM, np.float32)
DEALT: dict[str, Any] = {"method": "bucketed", "uploads": "dealt"}
PAIR = {"clients": 11}


def config(pair: Pair, number: int) -> ClientConfig:
    return pair.config(pair.names[number], state_dir="")


def update(number: int) -> NDArray[np.float32]:
    return np.random.default_rng(number).normal(0, 0.01, DIM).astype(np.float32)


def open_round(pair: Pair, clients: int, **params: Any) -> str:
    kind = {} if "method" in params else DEALT
    return pair.open(model=MODEL, **{"max_clients": clients, "dim": DIM, **kind, **params})


def expected(pair: Pair, round_id: str, numbers: list[int]) -> NDArray[np.float32]:
    params = RoundParams.from_dict(pair.status(round_id=round_id)["params"])
    updates = np.stack([update(number) for number in numbers])
    return plaintext.published(updates, params, pair.published("client-1", round_id))[0]


@pytest.mark.parametrize(("clients", "wrong", "method"), [(11, 3, "bucketed"), (3, 1, "pairwise")])
def test_malformed_clients_change_no_bit_of_the_result(
    pair: Pair, opened: ExitStack, clients: int, wrong: int, method: str
) -> None:
    round_id = open_round(pair, clients, **(DEALT if method == "bucketed" else {"method": method}))
    honest = clients - wrong
    members = [
        opened.enter_context(
            Client(config(pair, number))
            if number < honest
            else MalformedClient(config(pair, number), Malformed())
        )
        for number in range(clients)
    ]
    for member in members:
        member.wait_for_round()
    why = (
        "its dealing failed the check"
        if method == "bucketed"
        else "a value of its update is out of range"
    )
    # the malformed ones first: nobody is to be waited for whose dealing has failed
    for number, member in reversed(list(enumerate(members))):
        try:
            member.submit(update(number))
        except NotAllowed as error:
            assert number >= honest and "failed the check" in str(error)
    # the lists of this pair have eleven clients, and the round takes fewer
    if pair.status()["state"] == "open":
        pair.caller("coordinator", "s0").ask("close", round=round_id)
    status = pair.wait("published")
    assert sorted(status["included"]) == sorted(pair.names[:honest])
    assert {name: status["left_out"][name] for name in pair.names[honest:clients]} == dict.fromkeys(
        pair.names[honest:clients], why
    )
    for member in members[:2]:
        assert np.array_equal(member.result(round_id), expected(pair, round_id, [*range(honest)]))
    checked = next(
        event for event in pair.events("s1")[::-1] if event["event"] == "round-published"
    )
    assert checked["left_out"][pair.names[clients - 1]] == why


def test_what_cannot_be_malformed_is_said() -> None:
    for method in (
        {"method": "radix"},
        {"method": "mean", "norm_bound": "off"},
        {**DEALT, "uploads": "unverified"},
    ):
        with pytest.raises(ConfigError, match="check no uploads of"):
            check_malleable(RoundParams.from_dict({"dim": 5, "max_clients": 3, **method}))
    for method in (DEALT, {"method": "pairwise"}, {"method": "mean"}):
        check_malleable(RoundParams.from_dict({"dim": 5, "max_clients": 3, **method}))


def test_a_client_deals_while_it_trains_or_when_it_submits(pair: Pair, opened: ExitStack) -> None:
    round_id = open_round(pair, 2)
    early = opened.enter_context(Client(config(pair, 0)))
    early.wait_for_round()
    wait_until(lambda: pair.status()["dealt"]["client-1"] == "both")
    # a mistake in the update costs nothing
    with pytest.raises(InputError, match="same model"):
        early.submit(update(0)[:-1])
    early.submit(update(0))
    # both have it, and S1 tells S0 so
    wait_until(lambda: pair.status()["clients"]["client-1"] == "both")
    late = opened.enter_context(Client(config(pair, 1)))
    late.submit(update(1))
    pair.wait("published")
    assert np.array_equal(late.result(), expected(pair, round_id, [0, 1]))
    # in pieces that the servers' limit allows
    assert early.result().shape == (DIM,)


def test_a_client_that_is_restarted_after_dealing_is_told_that_it_is_left_out(
    pair: Pair, opened: ExitStack
) -> None:
    round_id = open_round(pair, 3)
    with Client(config(pair, 0)) as first:
        first.wait_for_round()
        wait_until(lambda: pair.status()["dealt"]["client-1"] == "both")
    second = opened.enter_context(Client(config(pair, 0)))
    current = second.wait_for_round()
    assert current.dealing_lost and not current.submitted
    with pytest.raises(DuplicateUpload, match="before a restart.*wait for the next"):
        second.submit(update(0))
    with pytest.raises(DuplicateUpload, match="before a restart"):
        second.submit(update(0), round_id)
    pair.caller("coordinator", "s0").ask("abort", round=round_id, reason="enough seen")
    # and `fit` does not train in vain, but goes on to the next round
    open_round(pair, 3)
    with Client(config(pair, 0)) as third:
        third.wait_for_round()
        wait_until(lambda: pair.status()["dealt"]["client-1"] == "both")
    said: list[str] = []

    def tell(text: str) -> None:
        said.append(text)
        if "goes on without you" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        second.fit(np.zeros(DIM, np.float32), lambda model: pytest.fail("trained"), 1, 20.0, tell)
    pair.caller("coordinator", "s0").ask("abort", round=pair.status()["round"], reason="enough")


def test_a_dealing_is_for_one_round_and_is_never_used_again(pair: Pair, opened: ExitStack) -> None:
    made: list[Any] = []

    class Noting(Client):
        def deal(self, *given: Any) -> Any:
            made.append(super().deal(*given))
            return made[-1]

    member = opened.enter_context(Noting(config(pair, 0)))
    first = open_round(pair, 2)
    member.wait_for_round()
    wait_until(lambda: pair.status()["dealt"]["client-1"] == "both")
    pair.caller("coordinator", "s0").ask("abort", round=first, reason="enough seen")
    second = open_round(pair, 2)
    # the round that was waited for is over, and its dealing with it
    with pytest.raises(SecureMedianError):
        member.submit(update(0))
    member.wait_for_round()
    member.submit(update(0))
    opened.enter_context(Client(config(pair, 1))).submit(update(1))
    pair.wait("published")
    assert len(made) == 2 and made[0].seeded.seed != made[1].seeded.seed
    assert np.array_equal(pair.result(second), expected(pair, second, [0, 1]))


def test_closing_a_client_ends_its_dealing_at_once(pair: Pair) -> None:
    round_id = open_round(pair, 2)
    dealing, go_on = threading.Event(), threading.Event()

    class Slow(Client):
        def deal(self, *given: Any) -> Any:
            dealing.set()
            go_on.wait(20)
            return super().deal(*given)

    before = threading.active_count()
    member = Slow(config(pair, 0))
    member.wait_for_round()
    assert dealing.wait(20)
    threading.Timer(0.2, go_on.set).start()
    member.close()
    wait_until(lambda: threading.active_count() <= before)
    # it was not sent any more
    assert pair.status()["dealt"]["client-1"] == "none"
    pair.caller("coordinator", "s0").ask("abort", round=round_id, reason="enough seen")


def test_an_error_of_the_dealing_is_raised_by_submit(pair: Pair, opened: ExitStack) -> None:
    round_id = open_round(pair, 2)

    class Failing(Client):
        def deal(self, *given: Any) -> Any:
            raise InputError("no randomness here")

    member = opened.enter_context(Failing(config(pair, 0)))
    member.wait_for_round()
    # nothing was sent, and so it can be tried again
    for _ in range(2):
        with pytest.raises(InputError, match="no randomness"):
            member.submit(update(0), round_id)
    pair.caller("coordinator", "s0").ask("abort", round=round_id, reason="enough seen")
