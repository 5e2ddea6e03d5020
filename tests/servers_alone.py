"""One server without sockets and without an engine.

Events and requests go in, and its answers come out.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from securemedian.common.keys import SigningKey
from securemedian.common.policy import Policy
from securemedian.common.status import DEFAULT_COHORT
from securemedian.common.versions import own_versions
from securemedian.mpc.errors import SecureMedianError
from securemedian.mpc.protocols import wire
from securemedian.mpc.protocols.dealing import Dealing, Note, nothing
from securemedian.mpc.protocols.prg import SEED_BYTES
from securemedian.mpc.protocols.share import Upload
from securemedian.mpc.rounds.cost import Cost
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.zoom import Zoom
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Checked
from securemedian.servers import config
from securemedian.servers.computing.base import RoundInput
from securemedian.servers.computing.engine import Coin, Engine, Engines, Examine, Result
from securemedian.servers.computing.folds import Folds
from securemedian.servers.machine.events import Failure
from securemedian.servers.network import control
from securemedian.servers.network.control import Done, Hello, Message, Open, Opened, RoundMessage
from securemedian.servers.rounds.register import Entry
from securemedian.servers.rounds.requests import Requests
from securemedian.servers.rounds.rounds import Rounds
from securemedian.servers.storage import database
from securemedian.servers.storage.store import Store

# a machine does not crash within a test, and waiting for its disk takes most of the time
database.SYNCHRONOUS = "OFF"

SAMPLES = Path(__file__).parent.parent / "docs" / "samples"
DIM = 4
PARAMS = RoundParams(Mean(norm_bound="off"), dim=DIM, max_clients=3)
# a round in which clients deal
DEALT = RoundParams(Bucketed(uploads="dealt"), dim=DIM, max_clients=3)
AUDITED = RoundParams(Bucketed(security="malicious"), dim=DIM, max_clients=3)
# a round of three votes
VOTES = RoundParams(Zoom(encoding="fixed", word_bits=12, fraction_bits=4), dim=DIM, max_clients=3)
MODEL = np.zeros(DIM, np.float32)
# the digest of what a round starts from, of which S1 knows nothing else
START = "0" * 64
# with which S0 and S1 sign
SIGNING = SigningKey.new(), SigningKey.new()
ALIKE = config.load(SAMPLES / "s0.toml").agreement() | {
    "signing_keys": [key.public for key in SIGNING],
}

Arrays = Mapping[str, NDArray[Any]]


def held(keys: Iterable[str]) -> dict[str, bytes]:
    """Return what a message says of these clients' uploads, which are shares."""
    return dict.fromkeys(keys, b"")


def hello(instance: str = "one", **agreement: Any) -> Hello:
    """Return a sign of life of the other server."""
    return Hello(instance, "", 0, [], ALIKE | agreement, **own_versions())


class FakeEngine:
    """An engine that computes nothing; the test says when it has ended and how."""

    def __init__(self) -> None:
        self.session_id: bytes | None = None
        self.result: Result | SecureMedianError | None = None
        # the uploads that are being checked
        self.checked: Sequence[Upload] = ()
        self.uploads: Sequence[Upload] | None = None
        self.dropped = 0
        self.refusal: Exception | None = None
        self.phase, self.progress, self.stopping = "", (0, 0), False
        self.computes = self.prepares = False
        # all sessions that were prepared, and what was tossed for the checks
        self.sessions: list[bytes] = []
        self.coins: list[bytes] = []
        # the hash that it opens of every dealing, and the function that notes that
        self.hashes = bytes(32)
        self.note: Note = nothing
        # the coin that each check of values and run of the protocol would toss, and the seeds of
        # the noise of each run
        self.openings: list[bytes] = []
        # the folds that clients of an audited round are asked for, under what the test gives to
        # `Folds.ask`
        self.folds: Folds | None = None
        self.noises: list[bytes] = []

    @property
    def opened_session(self) -> bytes | None:
        """The session."""
        return self.session_id

    def prepare(self, session_id: bytes, params: RoundParams) -> None:
        """Keep the session, or raise what the test wants."""
        if self.refusal:
            raise self.refusal
        self.session_id = session_id
        self.sessions.append(session_id)

    def toss(self, vouch: Callable[[bytes], bytes]) -> None:
        """Toss at once: in each session something else, and alike at both servers."""
        assert self.session_id
        coin = self.session_id[:SEED_BYTES]
        # as if both servers had one secret
        self.result = Coin(coin, vouch(coin))

    def check_dealings(
        self,
        shape: Dealing,
        halves: Sequence[Upload],
        coin: bytes,
        examine: Examine = lambda: None,
        note: Note = nothing,
    ) -> None:
        """Note the dealings and the coin."""
        assert self.session_id, "nothing was prepared"
        self.checked, self.examine, self.note = halves, examine, note
        self.coins.append(coin)

    def check_values(self, given: RoundInput, examine: Examine = lambda: None) -> None:
        """Note the uploads, and what this server would toss with."""
        self.openings.append(given.opening)
        self.checked, self.examine, self.note = given.uploads, examine, nothing
        self.computes = True

    def bind(
        self,
        given: RoundInput,
        folds: Folds,
        limit_s: float,
        examine: Examine = lambda: None,
    ) -> None:
        """Note the uploads, and what clients put into `folds`."""
        self.checked, self.examine, self.note = given.uploads, examine, nothing
        self.folds, self.bound, self.limit_s = folds, given, limit_s
        self.computes = True

    def end_check(self, *failed: int, silent: Sequence[int] = ()) -> None:
        """End the check; `failed` are places in its list, and so are those `silent` among them."""
        passed = [place not in failed for place in range(len(self.checked))]
        self.note([self.hashes] * len(passed))
        said_nothing = [place in silent for place in range(len(passed))]
        self.result, self.checked = Checked(passed, Cost(), said_nothing), ()

    def start(self, given: RoundInput, examine: Examine = lambda: None) -> None:
        """Note the uploads, and what this server would toss with."""
        # nothing of this server goes to workers with it
        assert given.params.form.audited or given.mark is nothing
        self.openings.append(given.opening)
        self.noises.append(given.noise)
        self.given, self.uploads, self.examine = given, given.uploads, examine
        self.computes = True

    def poll(self) -> Result | SecureMedianError | None:
        """Return what the test has put there, once."""
        result, self.result = self.result, None
        self.computes = self.computes and result is None
        return result

    def drop(self) -> None:
        """Forget the session."""
        self.session_id, self.result, self.checked, self.uploads = None, None, (), None
        self.folds, self.computes = None, False
        self.dropped += 1


@functools.cache
def _sample(party: int) -> config.ServerConfig:
    # without the sample's policy, so that tests may open whatever rounds they like
    loaded = config.load(SAMPLES / f"s{party}.toml")
    peer = replace(loaded.peer, signing_key=SIGNING[1 - party].public)
    return replace(loaded, policy=Policy.unlimited(), peer=peer)


class Server:
    """One server and everything it says. It is linked from the start, if it is `ready`."""

    def __init__(
        self,
        party: int,
        folder: Path,
        params: RoundParams = PARAMS,
        ready: bool = True,
        **changes: Any,
    ) -> None:
        self.config = replace(_sample(party), **changes)
        self.params = params
        self.folder = folder
        self.now = 0.0
        # replies do not survive the process
        self.replies: list[wire.Message] = []
        self._start(ready)

    def _start(self, ready: bool) -> None:
        self.backend: Any = SimpleNamespace(ready_in_s=None)
        make = lambda _: cast(Engine, FakeEngine())  # noqa: E731
        self.engines = Engines(self.backend, make, lambda: None)
        self.engines.ready = ready
        # The test of a message looks at fields of the kind that it expects: Any.
        self.sent: list[Any] = []
        self.store = Store(self.folder)
        clock = lambda: self.now  # noqa: E731
        signing = SIGNING[self.config.party]
        self.rounds = Rounds(
            self.config, self.store, self.engines, signing, self.sent.append, clock, clock
        )
        self.requests = Requests(
            self.config,
            self.rounds,
            self.engines,
            lambda address, parts: self.replies.append(wire.unpack(parts)),
        )
        self.hear(hello())

    def restart(self) -> None:
        """Kill the server, start it again from its state folder, and link it."""
        self.store.close()
        self._start(ready=True)

    def fail(self) -> None:
        """Fail the live round for good."""
        self.rounds._runner.take(self.latest, Failure("closed", "had enough"))

    def done(self) -> Done:
        """Return what the other server says once it has the same result as this one."""
        receipt = self.latest.server_round.receipt
        assert receipt is not None, "there is no result here"
        other = f"s{1 - self.config.party}"
        signature = receipt.signed(other, SIGNING[1 - self.config.party]).signatures[other]
        server_round = self.latest.server_round
        return Done(server_round.round_id, server_round.attempt, signature)

    def hear(self, *messages: Message) -> None:
        """Take messages of the other server."""
        for message in messages:
            self.rounds.control(control.encode(self.next(message)))

    def next(self, message: Message) -> Message:
        """Return a message of the other server as none before it was lost."""
        if isinstance(message, RoundMessage):
            return replace(message, sent=self.rounds.peer._received)
        return message

    def ask(self, key: str, op: str, arrays: Arrays | None = None, **fields: Any) -> wire.Message:
        """Send a request and return its answer.

        `open` may have none yet: then the latest one that there is, or an empty message.
        """
        if op in ("deal", "upload"):
            entry = self.rounds.register.get(str(fields.get("round")))
            start = entry.server_round.asked.start if entry else START
            fields = {"start": bytes.fromhex(start)} | fields
        self.requests.request(
            b"", key, wire.pack(op, fields | {"id": len(self.replies) + 1}, arrays)
        )
        self.rounds.flush()
        return self.replies[-1] if self.replies else wire.Message("")

    def ask_to_open(
        self, arrays: Arrays | None = None, reset: bool = False, release: bool = False
    ) -> None:
        """Ask S0 for a round, which S1 has to agree to."""
        if self.params.form.buckets:
            arrays = {"model": MODEL} | dict(arrays or {})
        asked = self.params.to_dict()
        fields = {"params": asked, "range": {}, "reset": reset, "release": release}
        self.ask(self.coordinator, "open", arrays, **fields)

    def open(self, arrays: Arrays | None = None, reset: bool = False, release: bool = False) -> str:
        """Open a round at S0, with S1's consent, and return its id."""
        self.ask_to_open(arrays, reset, release)
        if not self.sent or not isinstance(self.sent[-1], Open):
            return ""
        round_id = str(self.sent[-1].round)
        self.hear(Opened(round_id, self.sent[-1].session))
        return round_id

    def upload(self, key: str, round_id: str) -> wire.Message:
        """Upload a client's share, all zeros."""
        layout = self.params.form.layout
        form, share = "seed", np.zeros(16, np.uint8)
        if self.params.form.dealing:
            form, share = "rotations", np.zeros((layout.rows, layout.row_words), np.uint64)
        fields = {"round": round_id, "params": self.params.digest, "form": form}
        masks = {"masks": np.arange(16, dtype=np.uint8)} if self.params.form.audited else {}
        return self.ask(key, "upload", {"share": share, **masks}, **fields)

    def deal(self, key: str, round_id: str, **changes: Any) -> wire.Message:
        """Deal for a client: a seed, all zeros."""
        fields: dict[str, Any] = {"round": round_id, "params": self.params.digest, "form": "seed"}
        fields |= {"piece": 0, "pieces": 1, "share": np.zeros(16, np.uint8)} | changes
        return self.ask(key, "deal", {"share": fields.pop("share")}, **fields)

    def upload_all(self, round_id: str) -> None:
        """Upload a share of each client, after its dealing if it deals."""
        for client in self.config.clients:
            if self.params.form.dealing:
                self.deal(client.public_key, round_id)
            self.upload(client.public_key, round_id)

    @property
    def engine(self) -> FakeEngine:
        """The engine of the default cohort."""
        return self.engine_of(DEFAULT_COHORT)

    def engine_of(self, cohort: str) -> FakeEngine:
        """Return the engine of a cohort."""
        return cast(FakeEngine, self.engines.of(cohort))

    @property
    def coordinator(self) -> str:
        """The key of the coordinator."""
        return self.config.coordinators[0].public_key

    @property
    def keys(self) -> list[str]:
        """The clients' keys, sorted."""
        return sorted(client.public_key for client in self.config.clients)

    @property
    def latest(self) -> Entry:
        """The latest round."""
        entries = self.rounds.register.entries
        assert entries, "no round so far"
        return entries[-1]

    @property
    def state(self) -> tuple[str, str]:
        """State and reason of the latest round."""
        return str(self.latest.server_round.state), self.latest.server_round.reason
