"""A vote on dealt uploads in which a server that deviates learns nothing beyond the result.

A `Bisection` takes a round of `bucketed`, or a vote of `zoom`, through these phases. Both servers
do them at the same time:

    prepare  Ahead of time: all that needs no upload (`protocols.bisect`), in a session of its own.
    bind     The set of clients is fixed. Each server tells its share of the cumulative histogram,
             and the sum of the masks of the clients, both less what was drawn ahead.
    toss     A coin is tossed, when both servers have told. Clients send folds of their shares under
             it, each to the server that does not hold the share.
    compare  Each server sends a digest of the tags of its fold, which the other one compares.
    run      The digits are opened, step by step.

SECURITY: a bisection ends with the first error, or when a client's fold is not that of the servers.
Nothing of it may be used after that: the next one has a session of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from hashlib import sha256
from typing import Self

import numpy as np

from securemedian.mpc.arrays import PublicValues, Ring, RingShare, Words
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import (
    ConfigError,
    InputError,
    LocalProtocolError,
    PeerDeviated,
    PeerProtocolError,
)
from securemedian.mpc.protocols import bisect, dealing, ring, share
from securemedian.mpc.protocols.audit import binding, macs
from securemedian.mpc.protocols.audit.macs import unpacked
from securemedian.mpc.protocols.audit.opening import DIGEST_WORDS
from securemedian.mpc.protocols.bisect import Lane, Mark
from securemedian.mpc.protocols.channel import Channel, Planned, both_ways
from securemedian.mpc.protocols.dealing import Dealing, DealtUpload
from securemedian.mpc.protocols.party import Session
from securemedian.mpc.protocols.prg import SEED_BYTES, SESSION_BYTES, os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.cost import Cost, Meter
from securemedian.mpc.rounds.cutting import cut_evenly
from securemedian.mpc.rounds.lanes import Progress, Report, run_lanes
from securemedian.mpc.rounds.params import RoundParams

Chunks = Sequence[tuple[int, int]]


class Bisection:
    """One server's end of one session. `session_id` is its id, which clients are told."""

    def __init__(
        self, session: Session, channels: Sequence[Channel], shape: Dealing, session_id: bytes
    ) -> None:
        """Take the session of an audit that has no lanes yet: each gets one of the channels.

        `session_id` is 16 bytes that both agreed on and no other session has.
        """
        self.session_id, self._shape, self._entropy = session_id, shape, session.entropy
        self._number, self._channel = session.party_id, channels[0]
        self._lanes: Sequence[Lane] = [
            Lane(session, i, channel, shape) for i, channel in enumerate(channels)
        ]
        self._uploads: Sequence[DealtUpload] = ()
        self._masks: Sequence[bytes] = ()
        self._coin = b""
        # the rank that a vote of so many clients asks for, and that of the clients that are bound
        self._rank_of: Callable[[int, int], int] = lambda _, clients: ring.median_rank(clients)
        self._rank = 0
        # the cost of `prepare`, of the phases up to `compare`, and of `run`
        self.ahead = self.checked = self.ran = Cost()
        # the next phase that is allowed
        self._next = "prepare"

    def __repr__(self) -> str:
        return f"Bisection({self.session_id.hex()}, before {self._next or 'nothing'})"

    @classmethod
    def establish(
        cls,
        number: int,
        channels: Sequence[Channel],
        params: RoundParams,
        protocol: ProtocolParams,
        progress: Progress | None = None,
    ) -> Self:
        """Agree on an id, make base OTs of its own, and `prepare` a round of these parameters.

        Lanes have the channels, which nobody else uses. `protocol.chunk` is the smaller one of both
        servers. Raises ConfigError for a round that cannot be bisected, and as `prepare` does.
        """
        shape = dealing_of(params)
        given = replace(
            protocol, lanes=len(channels), ot_field_bits=macs.TREE_BITS, ot_extension="softspoken"
        )
        session_id = _new_id(channels[0], number)
        with accusing("prepare"):
            session = Session.establish(number, channels[0], session_id, given, audit=True)
            mine = np.array([protocol.chunk], np.uint64)
            chunk = int(np.minimum(mine, channels[0].exchange("bisect.sizes", mine))[0])
            if chunk < share.SLICE_ALIGN:
                raise PeerProtocolError(f"chunks of {chunk} coordinates are too small")
        found = cls(session, channels, shape, session_id)
        found._rank_of = params.method.rank_of
        found.prepare(cut_evenly(params.dim, replace(given, chunk=chunk)), progress)
        return found

    def prepare(self, chunks: Chunks, progress: Progress | None = None) -> None:
        """Make all that needs no upload, of `chunks` [start, stop) that both servers agreed on.

        Lanes take turns at them. Raises PeerDeviated if the peer did not follow the protocol.
        """
        # coordinates are done when their bits are made, and their ANDs
        report = Report(2 * sum(stop - start for start, stop in chunks), progress)

        def work(i: int) -> None:
            self._lanes[i].prepare(chunks[i :: len(self._lanes)], i == 0, report.add)

        with self._phase("prepare", "bind"):
            self._run(work)

    def bind(self, uploads: Sequence[DealtUpload], masks: Sequence[bytes], used: Mark) -> None:
        """Fix the set: the `uploads` of all included clients, in the order that both agreed on.

        `masks` are the seeds of 16 bytes that the clients gave to this server. `used` stores, for
        good, that this session has been used. It is called before anything is sent.
        """
        if not len(uploads) == len(masks) > 0:
            raise InputError(
                f"one mask per upload is needed: {len(masks)} masks for {len(uploads)} clients; "
                "give as many of both"
            )
        with self._phase("bind", "toss"):
            self._uploads, self._masks = uploads, masks
            self._rank = self._rank_of(uploads[0].vote, len(uploads))
            seeds = [binding.masks(seed, self.session_id, self._shape) for seed in masks]
            total = binding.total(seeds, self._shape)
            used()
            self._run(lambda i: self._lanes[i].bind(self._sums, None if i else total))

    def _sums(self, start: int, stop: int) -> RingShare:
        """Return this server's share of the cumulative histogram: (W-1, stop - start)."""
        ones = [1] * len(self._uploads)
        given = self._number, self._uploads, ones, self._shape.bits, start, stop
        # of all slots, not of buckets alone: clients fold them all
        total = dealing.histogram(*given, cumulative=False)
        return RingShare(np.cumsum(total, axis=0, dtype=total.dtype))

    def toss(self) -> bytes:
        """Return the coin for the clients' folds, 16 bytes, which neither server chose.

        SECURITY: all changes of both servers are in before it begins.
        """
        with self._phase("toss", "compare"):
            self._coin = dealing.toss(self._channel, self._number, self._entropy)
        return self._coin

    def compare(self, folds: Sequence[Words]) -> list[bool]:
        """Return whose folds agree with what the servers hold; both servers get the same list.

        `folds` are what the clients sent to this server (`binding.fold`), in the order of the
        uploads. If any client's is False, this session has ended. Raises PeerDeviated if all
        clients agree with both servers, and the sums do not, and InputError for other folds than
        one for each client.
        """
        words = (binding.fold_words(self._shape),)
        if [fold.shape for fold in folds] != [words] * len(self._uploads):
            raise InputError(
                f"one fold per client is compared: {len(self._uploads)} folds of {words[0]} "
                "words; give as many"
            )
        with self._phase("compare", "run"):
            if self._sums_agree(folds):
                return [True] * len(folds)
            agree = self._who_agrees(folds)
            if all(agree):
                raise PeerDeviated("the sums of the clients' shares do not agree")
            self._drop()
            return agree

    def _sums_agree(self, folds: Sequence[Words]) -> bool:
        """Return whether both servers' sums are those of the clients, as both say."""
        parts: dict[int, tuple[Words, Words]] = {}

        def work(i: int) -> None:
            parts[i] = self._lanes[i].folds(self._coin)

        self._run(work)
        bits, lane = self._shape.bits, self._lanes[0]
        tags, keys = (
            np.stack([unpacked(words, bits) for words in each]).sum(axis=0, dtype=ring.dtype(bits))
            for each in zip(*parts.values(), strict=True)
        )
        theirs = binding.total(folds, self._shape)
        keys -= lane.verifier.constant(theirs.reshape(-1))
        coin = np.frombuffer(self._coin, np.uint64)
        wanted = hashed(ring.reduce(keys, bits))
        lane.opener.begin(coin, [hashed(ring.reduce(tags, bits))])
        # the coin names the fold, and both send it along
        named, right = lane.opener.tell("bisect.folds", coin, lambda _: [wanted])
        right &= bool((named == coin).all())
        theirs_right = self._channel.exchange("bisect.answer", np.array([right], np.uint8))
        return right and theirs_right[0] == 1

    def _who_agrees(self, folds: Sequence[Words]) -> list[bool]:
        """Return whose folds are those of both servers, client by client.

        Each tells its own, which the clients should have sent to the other: they are hidden by
        masks that the other does not know.
        """
        verdicts = np.empty(len(folds), np.uint8)
        told = zip(self._uploads, self._masks, folds, strict=True)
        for place, (upload, mask, theirs) in enumerate(told):
            own = binding.fold(self._number, upload, self.session_id, self._coin, mask)
            verdicts[place] = (self._channel.exchange("bisect.fold", own) == theirs).all()
        found = verdicts & self._channel.exchange("bisect.verdicts", verdicts)
        return [one == 1 for one in found.tolist()]

    def run(self, opened: Mark, progress: Progress | None = None) -> PublicValues:
        """Return the buckets of the medians (dim,), or of the vote's rank, opened.

        `opened` stores, for good, that a share of a sign has been sent. It is called before one is,
        on any lane. Raises PeerDeviated if the other server deviates.
        """
        once, found = cache(opened), np.empty(self._shape.dim, np.uint16)
        report = Report(found.size * self._shape.slot_bits, progress)

        def work(i: int) -> None:
            mine, at = self._lanes[i].run(self._rank, once, report.add), 0
            for start, stop in self._lanes[i].ends:
                found[start:stop] = mine[at : at + stop - start]
                at += stop - start

        with self._phase("run"):
            self._run(work)
            self._drop()
        return PublicValues(found)

    @contextmanager
    def _phase(self, name: str, then: str = "") -> Iterator[None]:
        """Begin a phase, count its cost, and drop all if it fails. Another one comes `then`.

        Raises LocalProtocolError, and drops nothing, if this phase is not the next.
        """
        if self._next != name:
            raise LocalProtocolError(f"{name} is not the next phase of a session: {self!r}")
        # whatever happens, it is not begun again
        self._next = then
        meter = Meter([lane.party for lane in self._lanes])
        try:
            with accusing(name):
                yield
        except BaseException:
            self._drop()
            raise
        cost = meter.read()
        match name:
            case "prepare":
                self.ahead = cost.as_ahead()
            case "run":
                self.ran = cost
            case _:
                self.checked = cost.as_checking().after(self.checked)

    def _drop(self) -> None:
        """Forget all that was made, and what was bound to it: no phase is next."""
        self._next = ""
        self._lanes, self._uploads, self._masks = (), (), ()

    def _run(self, work: Callable[[int], None]) -> None:
        run_lanes([lane.party.channel for lane in self._lanes], work)


def hashed(rows: Ring) -> Words:
    """Return SHA-256 of the MACs of folds.

    SECURITY: clients know the key of the opener's hash when they choose their folds. Errors that
    cancel in it would be folds that fit whatever a server has committed to.
    """
    return np.frombuffer(sha256(rows.tobytes()).digest(), np.uint64)


def _new_id(channel: Channel, number: int) -> bytes:
    """Return an id that no session had before, if one of the servers has drawn its half.

    SECURITY: the masks of clients' folds are made of it.
    """
    mine = np.frombuffer(os_entropy(SESSION_BYTES), np.uint64)
    theirs = channel.exchange("bisect.session", mine)
    halves = (mine, theirs) if number == 0 else (theirs, mine)
    return digest("binding", *(half.tobytes() for half in halves))[:SESSION_BYTES]


def dealing_of(params: RoundParams) -> Dealing:
    """Return the dealing of a round that can be bisected. Raises ConfigError for any other."""
    shape = params.form.dealing
    if shape is None or params.method.groups > 1 or params.weights or shape.bits > macs.MAX_BITS:
        raise ConfigError(
            "security malicious takes zoom, or bucketed with uploads dealt, without groups and "
            f"weights, and at most {macs.MAX_BITS} ring_bits: {params.method.label}; take that, or "
            "another security"
        )
    return shape


@contextmanager
def accusing(name: str) -> Iterator[None]:
    """Call what the peer must not send a deviation.

    SECURITY: only where both servers are known to be at the same message of the same session. After
    a link that broke, an honest one may be at another.
    """
    try:
        yield
    except PeerDeviated:
        raise
    except PeerProtocolError as error:
        raise PeerDeviated(f"{name}: {error}") from error


def predict(
    params: RoundParams, protocol: ProtocolParams
) -> tuple[dict[str, list[list[Planned]]], int, int]:
    """Return what each party says on each lane, by phase, the OTs, and about how many bytes it has.

    For `plan`: all clients agree, and base OTs are left out. The OTs are those of both directions.
    """
    shape = dealing_of(params)
    dims = [stop - start for start, stop in cut_evenly(params.dim, protocol)]
    lanes = [dims[lane :: protocol.lanes] for lane in range(protocol.lanes)]
    phases: dict[str, list[list[Planned]]] = {
        "prepare": [[*bisect.prepare_messages(shape, its, i == 0)] for i, its in enumerate(lanes)],
        "bind": [[*bisect.bind_messages(shape, its, i == 0)] for i, its in enumerate(lanes)],
        "toss": [[*dealing.toss_messages()]],
        "compare": [
            [
                *both_ways("bisect.folds", SEED_BYTES // 8 + DIGEST_WORDS),
                *both_ways("bisect.answer", 1, np.uint8),
            ]
        ],
        "run": [[*bisect.run_messages(shape, sum(its))] for its in lanes],
    }
    ots, memory = zip(*(bisect.needs(shape, its) for its in lanes), strict=True)
    return phases, sum(ots), sum(memory)
