"""Parties of this release with those of the release before, whose wheel is in tests/releases."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securemedian
from securemedian import Client, ConstantRange, Coordinator, RoundParams
from securemedian.common.policy import RELEASE, SINGLE_CLIENTS, SWITCH, Security
from securemedian.common.versions import WIRE
from securemedian.mpc.errors import VersionsDiffer
from tests import releases
from tests.daemons import Pair, wait_until
from tests.releases import COMPILED_S, WHEEL, Release

# the first test compiles the release before
pytestmark = pytest.mark.timeout(COMPILED_S + 60)

DIM = 6
MODEL = np.zeros(DIM, np.float32)
BUCKETED = RoundParams.from_dict({"method": "bucketed", "dim": DIM, "max_clients": 2})
RADIX = RoundParams.from_dict({"method": "radix", "dim": DIM, "max_clients": 2})
RANGE = ConstantRange(initial=1.0)
# lengths at which a share has more than the 4 MiB from which on parties of 1.0.0 send it in blocks:
# a dealing, and an upload that was not dealt
LONG = {"bucketed": 1 << 18, "mean": 1 << 20}
LIMIT_S = 60.0
BOTH = ("s0", "s1")
# the vectors of the two clients, and the lower median of both
ONE, OTHER = [-0.5, 0.5, 0.25, -0.25, 0.0, 0.75], [0.5, -0.5, 0.5, 0.25, 0.125, 0.0]
LOWER = [min(pair) for pair in zip(ONE, OTHER, strict=True)]

# S0's log line about a client that knows no form of models
LATER = "no-model-form"

# a client's part in a round: it submits the last argument, and prints its result
CLIENT = """
import json, numpy as np
from securemedian import Client
config, *rest = sys.argv[1:]
with Client.from_config(config) as client:
    current = client.wait_for_round(60)
    if rest:
        client.submit(np.array(json.loads(rest[0]), np.float32))
        print(json.dumps(client.result(timeout_s=60).tolist()))
    else:
        client._sender._dealer.join()
"""
# the coordinator opens a round of these parameters, from a model of zeros if there is a range
COORDINATOR = """
import json, numpy as np
from securemedian import ConstantRange, Coordinator, RoundParams
config, params, radius = sys.argv[1:]
params = RoundParams.from_dict(json.loads(params))
start = float(radius) and {
    "model": np.zeros(params.dim, np.float32), "range_policy": ConstantRange(initial=float(radius))
}
with Coordinator.from_config(config) as coordinator:
    print(coordinator.open_round(params, **(start or {})))
"""


@pytest.fixture(scope="module")
def older(request: pytest.FixtureRequest) -> Release:
    """Return the release before this one."""
    cache = request.config.cache
    assert cache
    return releases.unpacked(cache)


class Parties:
    """Two servers, two clients and a coordinator, each of either release."""

    def __init__(self, folder: Path, older: Release) -> None:
        self.older, self.pair = older, Pair(folder, clients=2)
        for path in folder.glob("*.toml"):
            # without what the older release does not know, and with its words for security: both
            # read the same files here
            lines = path.read_text().splitlines()
            newer = f"{SINGLE_CLIENTS} = ", f"{RELEASE} = "
            kept = [line for line in lines if not line.startswith(newer)]
            text = "\n".join(kept).replace('"zoom", ', "").replace(', "zoom"', "")
            path.write_text(text.replace(Security.SEMI_HONEST.line, f"{SWITCH} = false"))

    def start(self, *of_older: str) -> None:
        """Start the servers that do not run, of the older release or of this one."""
        left = {*BOTH} - self.pair.running
        # a server that may still have to compile comes first, because the other waits for it with a
        # limit
        for server in sorted(left, key=lambda server: (server in of_older, server)):
            self.pair.start(server, program=self.older.command if server in of_older else ())
        self.pair.link()

    def config(self, name: str) -> str:
        return str(self.pair.folder / f"{name}.toml")

    def open(self, params: RoundParams, anew: bool, by_older: bool) -> str:
        """Open a round, which starts from a model of zeros or goes on with the run."""
        if by_older:
            given = json.dumps(params.to_dict()), str(RANGE.initial if anew else 0.0)
            return self.older.run(COORDINATOR, self.config("coordinator"), *given).strip()
        with Coordinator.from_config(self.config("coordinator")) as coordinator:
            if anew:
                return coordinator.open_round(params, MODEL, RANGE)
            return coordinator.open_round(params)

    def take_part(self, name: str = "client-1") -> list[float]:
        """Let `name`, of the older release, and the other client submit, and return the result."""
        (other,) = set(self.pair.names) - {name}
        began = self.older.begin(CLIENT, self.config(name), json.dumps(ONE))
        try:
            with Client.from_config(self.config(other)) as client:
                client.wait_for_round(LIMIT_S)
                client.submit(np.array(OTHER, np.float32))
                ours: list[float] = client.result(timeout_s=LIMIT_S).tolist()
        finally:
            theirs = self.older.finish(began)
        assert json.loads(theirs) == ours
        return ours


@pytest.fixture
def parties(tmp_path: Path, older: Release) -> Iterator[Parties]:
    made = Parties(tmp_path, older)
    yield made
    made.pair.close()


def test_the_release_is_the_one_before(older: Release) -> None:
    text = "import securemedian\nfrom securemedian.common.versions import WIRE\n"
    release, wire = older.run(f"{text}print(securemedian.__version__, WIRE)").split()
    assert release in WHEEL.name and release != securemedian.__version__
    assert int(wire) in (WIRE - 1, WIRE) and WHEEL.stat().st_size < 1.5e6


@pytest.mark.slow
def test_a_round_with_one_client_of_the_release_before(parties: Parties) -> None:
    """The coordinator of that release has opened it."""
    parties.start()
    parties.open(RADIX, anew=False, by_older=True)
    assert parties.take_part() == LOWER


@pytest.mark.slow
def test_a_client_of_the_release_before_takes_no_part_with_security_malicious(
    parties: Parties,
) -> None:
    """Its folds would be those of the old audit."""
    parties.start()
    params = RoundParams.from_dict(BUCKETED.to_dict() | {"security": "malicious"})
    parties.open(params, anew=True, by_older=False)
    began = parties.older.begin(CLIENT, parties.config("client-1"), json.dumps(ONE))
    with pytest.raises(AssertionError, match=r"wire version 3\), and here is release 1\.0\.0"):
        parties.older.finish(began)


# a client's part in a long round: it submits its number in all coordinates, or only deals
LONG_CLIENT = """
import numpy as np
from securemedian import Client
config, dim, value = sys.argv[1:]
with Client.from_config(config) as client:
    client.wait_for_round(60)
    if value:
        client.submit(np.full(int(dim), float(value), np.float32))
        result = client.result(timeout_s=60)
        print(result.min(), result.max())
    else:
        client._sender._dealer.join()
"""


def open_long(parties: Parties, method: str) -> tuple[str, int]:
    """Open a round with shares of more than 4 MiB, and return its id and length."""
    dim = LONG[method]
    # a bound that adapts is new in 1.1
    options = {"norm_bound": float(dim)} if method == "mean" else {}
    params = RoundParams.from_dict({"method": method, "dim": dim, "max_clients": 2} | options)
    assert max(params.form.bytes_ahead, params.form.bytes_after) > 4 << 20
    with Coordinator.from_config(parties.config("coordinator")) as coordinator:
        return coordinator.open_round(params, np.zeros(dim, np.float32), RANGE), dim


@pytest.mark.slow
@pytest.mark.parametrize("of_older", [(), BOTH], ids=["our servers", "our client"])
@pytest.mark.parametrize("method", LONG)
def test_long_shares_go_whole_between_releases(
    parties: Parties, method: str, of_older: tuple[str, ...]
) -> None:
    """Parties of 1.0.0 send each other blocks, which this release neither sends nor takes."""
    parties.start(*of_older)
    round_id, dim = open_long(parties, method)
    theirs = parties.older.begin(LONG_CLIENT, parties.config("client-1"), str(dim), "-0.125")
    try:
        with Client.from_config(parties.config("client-2")) as client:
            client.wait_for_round(LIMIT_S)
            client.submit(np.full(dim, 0.125, np.float32))
            ours = client.result(timeout_s=LIMIT_S)
    finally:
        said = parties.older.finish(theirs)
    wanted = 0.0 if method == "mean" else -0.125
    assert [ours.min(), ours.max()] == pytest.approx([wanted, wanted], abs=0.1)
    assert [float(each) for each in said.split()] == [ours.min(), ours.max()]
    assert parties.pair.status("s0", round_id)["state"] == "published"


@pytest.mark.slow
@pytest.mark.parametrize("of_older", [(), BOTH], ids=["our servers", "our client"])
def test_a_client_of_the_release_before_is_matched_by_length(
    parties: Parties, of_older: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """It knows no form of models. A server that knows none takes none, and the round goes on."""
    parties.start(*of_older)
    model = {"a": np.zeros(2), "b": np.zeros(4)}
    with Coordinator.from_config(parties.config("coordinator")) as coordinator:
        coordinator.open_round(RADIX, model)
    assert ("takes no form" in caplog.text) == bool(of_older)
    said = parties.pair.caller("client-1", "s0").ask("round").fields
    assert bool(said.get("model_form")) == (not of_older)
    assert parties.take_part() == LOWER
    warned = [line["client"] for line in parties.pair.events("s0") if line["event"] == LATER]
    assert warned == ([] if of_older else ["client-1"])


@pytest.mark.release
def test_a_round_with_blocks_on_the_disk_fails_in_words(parties: Parties) -> None:
    """The servers are updated while they have long dealings, which 1.0.0 hashes in another way."""
    parties.start(*BOTH)
    round_id, dim = open_long(parties, "bucketed")
    # the seed goes to one server, and words to the other
    for name in parties.pair.names:
        parties.older.run(LONG_CLIENT, parties.config(name), str(dim), "")
    assert [parties.pair.stop(server) for server in BOTH] == [0, 0]
    parties.start()

    def said() -> list[Any]:
        return [parties.pair.status(each, round_id) for each in BOTH]

    wait_until(lambda: all(status["state"] == "failed" for status in said()))
    for status in said():
        assert "was updated while it had long shares" in status["reason"]
    # the next one has nothing to do with it
    parties.open(BUCKETED, anew=True, by_older=False)
    assert parties.take_part() == pytest.approx(LOWER, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("server", BOTH)
def test_a_server_of_the_release_before_is_refused_as_a_peer(parties: Parties, server: str) -> None:
    """Refuse it in words at both: they name both releases, and who is to be updated."""
    (later,) = set(BOTH) - {server}
    parties.start(server)
    problem = parties.pair.caller("client-1", server).ask("info").fields["peer_problem"]
    told = f"{later} runs release {securemedian.__version__} (wire version {WIRE}), and here is "
    assert problem.startswith(told) and problem.endswith("update this side")
    problem = parties.pair.caller("client-1", later).ask("info").fields["peer_problem"]
    assert f"{server} runs release " in problem and problem.endswith(f"update {server}")
    with pytest.raises(VersionsDiffer, match="runs release .*[:;] update "):
        parties.open(RADIX, anew=False, by_older=False)


@pytest.mark.release
def test_both_servers_are_updated_together_within_a_run(parties: Parties) -> None:
    """Go on from the older release's state; clients and coordinator stay unchanged."""
    parties.start(*BOTH)
    first = parties.open(BUCKETED, anew=True, by_older=True)
    assert parties.take_part("client-1") == pytest.approx(LOWER, abs=0.1)
    assert [parties.pair.stop(server) for server in BOTH] == [0, 0]
    parties.start()
    assert parties.pair.status("s0", first)["state"] == "published"
    assert parties.open(BUCKETED, anew=False, by_older=True).startswith("2-")
    assert parties.take_part("client-2") == pytest.approx(LOWER, abs=0.1)
    assert parties.open(BUCKETED, anew=False, by_older=False).startswith("3-")
    assert parties.take_part("client-1") == pytest.approx(LOWER, abs=0.1)


@pytest.mark.release
def test_clients_are_updated_and_go_back_between_dealing_and_upload(parties: Parties) -> None:
    """Keep part of a dealing in one release, and go on with it in the other."""
    parties.start()
    parties.open(BUCKETED, anew=True, by_older=True)
    parties.older.run(CLIENT, parties.config("client-1"))
    with Client.from_config(parties.config("client-2")) as client:
        client.wait_for_round(LIMIT_S)
        dealer = client._sender._dealer
        assert dealer
        dealer.join()
    began = parties.older.begin(CLIENT, parties.config("client-2"), json.dumps(ONE))
    with Client.from_config(parties.config("client-1")) as client:
        assert not client.wait_for_round(LIMIT_S).dealing_lost
        client.submit(np.array(OTHER, np.float32))
        ours = client.result(timeout_s=LIMIT_S).tolist()
    assert json.loads(parties.older.finish(began)) == ours == pytest.approx(LOWER, abs=0.1)


@pytest.mark.release
@pytest.mark.parametrize("server", BOTH)
def test_a_server_two_releases_off_is_refused_in_words(parties: Parties, server: str) -> None:
    """Check this at both servers, whichever is the older one."""
    (later,) = set(BOTH) - {server}
    program = f"""
import sys
from securemedian import cli
from securemedian.common import versions
versions.WIRE, versions.LOWEST_WIRE = {WIRE + 2}, {WIRE + 1}
sys.exit(cli.main())
"""
    parties.pair.start(later, program=["-c", program])
    parties.pair.start(server, program=parties.older.command)
    parties.pair.link()
    for one, other, older in ((server, later, "this side"), (later, server, server)):
        problem = parties.pair.caller("client-1", one).ask("info").fields["peer_problem"]
        assert f"{other} runs release " in problem and problem.endswith(f"update {older}")
    who = "S0" if later == "s0" else "s1"
    with pytest.raises(VersionsDiffer, match=f"{who} runs release .*wire version {WIRE + 1} to"):
        parties.open(RADIX, anew=False, by_older=False)
