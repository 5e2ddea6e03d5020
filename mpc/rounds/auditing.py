"""The audit of a round: each server proves that the other was told the right result.

An `Auditor` takes a round of `bucketed` through four steps, which both servers do at the same time:

    bind     Before the round is computed, each commits to its share X of the summed histogram, and
             to the sum R of the masks that the clients gave it (`audit.binding`).
    toss     A coin is tossed. Clients send folds of their shares under it, each to the server that
             does not hold the share.
    compare  The servers compare these with the folds of what they are bound to.
    prove    After the round, each proves with the shares that it is bound to that the published
             buckets are those of the ranks (`audit.comparing`): H(M) >= k > H(M - 1).

A published bucket that is not the right one passes with a chance of about 2^-40: PeerDeviated. The
audit proves nothing of the questions that led to it. A server that asks another one must make the
other server see the bit of the right one, and it has committed to its share by then
(`Channel.open`). Each bit that it wants beyond the result is found with a chance of one half, if it
does not break the run off instead. Nothing of the clients is opened, and nothing of the round is
changed.

The audit has base OTs of its own, which end with it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from securemedian.mpc.arrays import PublicValues, Ring, RingShare, Words
from securemedian.mpc.errors import ConfigError, InputError, LocalProtocolError, PeerDeviated
from securemedian.mpc.protocols import dealing, ring
from securemedian.mpc.protocols.audit import ands, binding, comparing, macs
from securemedian.mpc.protocols.audit.ands import AndMaker, AuthenticatedTriples
from securemedian.mpc.protocols.audit.binding import Binder, Bound
from securemedian.mpc.protocols.audit.comparing import SignProver, around, carries, centring
from securemedian.mpc.protocols.audit.equality import Equality, settling
from securemedian.mpc.protocols.audit.macs import Prover, Verifier
from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.dealing import Dealing, DealtUpload
from securemedian.mpc.protocols.party import Party, Session
from securemedian.mpc.protocols.prg import Entropy, os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.cost import Cost, Meter
from securemedian.mpc.rounds.cutting import cut_audit
from securemedian.mpc.rounds.lanes import SIZE_WORDS, Progress, Report, agree_on_sizes, run_lanes
from securemedian.mpc.rounds.params import RoundParams

# The fewest ANDs that are made at once, where a lane needs as many: the more there are, the smaller
# are their buckets, and the chance to deviate unnoticed. Of so many, buckets have three.
POOL = 3 << 17
# Bytes of an AND while it is made: three leaky ones, and what comes of them.
AND_BYTES = 280
# Whether a message is sent or received, its label, dtype and shape.
Message = tuple[bool, str, DTypeLike, tuple[int, ...]]


class _Lane:
    """One lane of a party: what it is bound to, chunk by chunk."""

    def __init__(self, session: Session, number: int, channel: Channel, shape: Dealing) -> None:
        self.party = session.party(number, channel)
        self.prover = Prover(session, number, channel)
        self.verifier = Verifier(session, number, channel)
        self.binder = Binder(self.prover, self.verifier, shape)
        self.ands = AndMaker(self.party, session.entropy)
        # X of each chunk, packed
        self.sums: list[Words] = []


class Auditor:
    """One server's end of the audit of one round. `binding` is its id, which clients are told."""

    def __init__(
        self,
        lanes: Sequence[_Lane],
        params: RoundParams,
        uploads: Sequence[DealtUpload],
        weights: Sequence[int],
        masks: Sequence[bytes],
        session_id: bytes,
        entropy: Entropy,
    ) -> None:
        self.binding, self.cost = session_id, Cost()
        self._lanes, self._params = lanes, params
        self._uploads, self._weights, self._masks = uploads, weights, masks
        self._shape, self._entropy = check_audited(params), entropy
        self._number = lanes[0].party.number
        self._coin = b""
        # the next steps that are allowed
        self._next = "toss"

    def __repr__(self) -> str:
        return f"Auditor({self.binding.hex()}, before {self._next or 'nothing'})"

    @classmethod
    def bind(
        cls,
        parties: Sequence[Party],
        params: RoundParams,
        protocol: ProtocolParams,
        uploads: Sequence[DealtUpload],
        weights: Sequence[int] | None,
        masks: Sequence[bytes],
        session_id: bytes,
        entropy: Entropy = os_entropy,
        progress: Progress | None = None,
    ) -> Self:
        """Make a session, and commit to the sums of what the clients have sent.

        `parties` are the lanes of the round, whose channels are used while nobody else does.
        `uploads`, `weights` and `masks` are those of all included clients, in the order that both
        servers agreed on. `masks` are the seeds of 16 bytes that the clients gave to this server.
        `session_id` is 16 bytes that both agreed on and that no other audit has. Raises ConfigError
        for a round that cannot be audited.
        """
        shape, channels = check_audited(params), [party.channel for party in parties]
        if not len(uploads) == len(masks) > 0:
            raise InputError(
                f"one mask per upload is needed: {len(masks)} masks for {len(uploads)} clients; "
                "give as many of both"
            )
        protocol = replace(
            protocol,
            lanes=len(parties),
            ot_field_bits=macs.TREE_BITS,
            ot_extension="softspoken",
        )
        given = channels[0], session_id, protocol, entropy, True
        session = Session.establish(parties[0].number, *given)
        lanes = [_Lane(session, i, channel, shape) for i, channel in enumerate(channels)]
        weights = [1] * len(uploads) if weights is None else weights
        auditor = cls(lanes, params, uploads, weights, masks, session_id, entropy)
        auditor._bind(protocol, progress)
        return auditor

    def _bind(self, protocol: ProtocolParams, progress: Progress | None) -> None:
        parties = [lane.party for lane in self._lanes]
        meter = Meter(parties)
        protocol, _ = agree_on_sizes(parties, protocol)
        chunks = cut_audit(self._params, ring.count_bits(self._total), protocol)
        report = Report(self._params.dim, progress)

        def work(number: int) -> None:
            lane = self._lanes[number]
            for begin, end in chunks[number :: len(self._lanes)]:
                given = self._number, self._uploads, self._weights, self._shape.bits
                with lane.party.reading_uploads():
                    total = dealing.histogram(*given, begin, end, cumulative=False)
                lane.binder.commit(begin, total)
                lane.sums.append(ring.pack(total, self._shape.bits))
                report.add(end - begin)
            if number == 0:
                seeds = [binding.masks(seed, self.binding, self._shape) for seed in self._masks]
                lane.binder.commit_masks(binding.weighted(seeds, self._weights, self._shape))

        self._run(work)
        self.cost += meter.read()

    def toss(self) -> bytes:
        """Return the coin for the clients' folds, 16 bytes, which neither server chose."""
        self._begin("toss", "compare")
        lane = self._lanes[0].party
        meter = Meter([lane])
        self._coin = dealing.toss(lane.channel, self._number, self._entropy)
        self.cost += meter.read()
        return self._coin

    def compare(self, folds: Sequence[Words]) -> list[bool]:
        """Return whose folds agree with what the servers hold; both servers get the same list.

        `folds` are what the clients sent to this server, packed (`binding.fold`), in the order of
        the uploads. If any client's is False, this audit has ended: the others are bound again, and
        nothing of them was opened. Raises PeerDeviated if all clients agree with both servers, and
        the sums do not. Raises InputError for other folds than one for each client.
        """
        words = (binding.fold_words(self._shape),)
        if [fold.shape for fold in folds] != [words] * len(self._uploads):
            raise InputError(
                f"one fold per client is compared: {len(self._uploads)} folds of {words[0]} "
                "words; give as many"
            )
        self._begin("compare", "prove")
        meter = Meter([lane.party for lane in self._lanes])
        found: dict[int, tuple[Ring, Ring]] = {}

        def work(number: int) -> None:
            found[number] = self._lanes[number].binder.folds(self._coin)

        self._run(work)
        lane = self._lanes[0]
        equality = Equality(lane.party.channel, self._number, self._entropy)
        theirs = binding.weighted(folds, self._weights, self._shape)
        both = [found[number] for number in range(len(self._lanes))]
        binding.compare(equality, self._number, lane.verifier, both, theirs, self._shape.bits)
        agree = [True] * len(folds)
        try:
            equality.settle("the sums of the clients' shares")
        except PeerDeviated:
            self._next = ""
            agree = self._who_agrees(lane.party.channel, folds)
            if all(agree):
                raise
        self.cost += meter.read()
        return agree

    def _who_agrees(self, channel: Channel, folds: Sequence[Words]) -> list[bool]:
        """Return whose folds are those of both servers, client by client.

        Each tells its own, which the clients should have sent to the other: they are hidden by
        masks that the other does not know.
        """
        verdicts = np.empty(len(folds), np.uint8)
        told = zip(self._uploads, self._masks, folds, strict=True)
        for place, (upload, mask, fold) in enumerate(told):
            own = binding.fold(self._number, upload, self.binding, self._coin, mask)
            verdicts[place] = (channel.exchange("audit.fold", own) == fold).all()
        return [bool(one) for one in verdicts & channel.exchange("audit.verdicts", verdicts) & 1]

    def prove(self, values: PublicValues, progress: Progress | None = None) -> None:
        """Prove that `values` (dim,) are the buckets of the medians, and see the other's proof.

        Raises PeerDeviated if they are not, or if the other server deviates now, and InputError for
        invalid buckets.
        """
        params, buckets = self._params, self._buckets
        if values.shape != (params.dim,) or (values >= buckets).any():
            raise InputError(
                f"one bucket per coordinate is proved: {params.dim} buckets below {buckets}; "
                "give as many"
            )
        self._begin("prove", "")
        meter = Meter([lane.party for lane in self._lanes])
        report = Report(params.dim, progress)

        def work(number: int) -> None:
            lane = self._lanes[number]
            signs = SignProver(
                lane.party, lane.prover, lane.verifier, lane.ands, entropy=self._entropy
            )
            chunks = list(zip(lane.binder.chunks, lane.sums, strict=True))
            for pool in pools([bound.dim for bound, _ in chunks], self._total):
                some = chunks[pool]
                count = ands_of(sum(bound.dim for bound, _ in some), self._total)
                triples = lane.ands.triples(count)
                for bound, total in some:
                    found = values[bound.start : bound.start + bound.dim].astype(np.uint16)
                    self._prove(lane, signs, triples, bound, total, found)
                    report.add(bound.dim)

        self._run(work)
        self.cost += meter.read()

    def _prove(
        self,
        lane: _Lane,
        signs: SignProver,
        triples: AuthenticatedTriples,
        bound: Bound,
        total: Words,
        found: NDArray[np.uint16],
    ) -> None:
        """Prove the buckets of one chunk, whose X is `total`."""
        rank, bits = ring.median_rank(self._total), ring.count_bits(self._total)
        rows = self._shape.slots - 1
        entries = ring.unpack(total, self._shape.bits, rows * bound.dim).reshape(rows, -1)
        shares = around(entries, found, self._buckets)
        tags, keys = lane.binder.around(bound, found, self._buckets - 1, bits)
        public = centring(found, self._buckets, self._total, rank, bits)
        # H(M) - k is not, and H(M - 1) - k is
        negative = np.repeat(np.array([0, 1], np.uint8), found.size)
        signs.prove(RingShare(shares), tags, keys, public, bits, negative, triples)

    @property
    def _total(self) -> int:
        return sum(self._weights)

    @property
    def _buckets(self) -> int:
        return self._shape.buckets

    def _begin(self, step: str, following: str) -> None:
        """Go on to a step. Raises LocalProtocolError if another is next."""
        if self._next != step:
            raise LocalProtocolError(f"{step} is not the next step of an audit: {self!r}")
        self._next = following

    def _run(self, work: Callable[[int], None]) -> None:
        run_lanes([lane.party.channel for lane in self._lanes], work)


def check_audited(params: RoundParams) -> Dealing:
    """Return the dealing of a round that can be audited. Raises ConfigError for any other."""
    shape = params.form.dealing
    if shape is None or params.method.groups > 1 or shape.bits > macs.MAX_BITS:
        raise ConfigError(
            f"audit takes bucketed with uploads dealt, one group and at most {macs.MAX_BITS} "
            f"ring_bits: {params.method.label}; take that, or leave audit out"
        )
    return shape


def ands_of(dim: int, total: int) -> int:
    """Return how many ANDs prove `dim` coordinates: of two signs each."""
    return 2 * dim * carries(ring.count_bits(total))


def pools(sizes: Sequence[int], total: int) -> list[slice]:
    """Return which of a lane's chunks, of these sizes, have their ANDs made together."""
    if not sizes:
        return []
    each = -(-POOL // ands_of(sizes[0], total))
    count = max(1, len(sizes) // each)
    return [slice(first, None, count) for first in range(count)]


def messages(
    params: RoundParams, weights: Sequence[int], protocol: ProtocolParams
) -> Iterator[list[list[Message]]]:
    """Yield what each party sends (True) and receives (False) on each lane, step by step.

    It is for `plan`. Base OTs are left out.
    """
    shape, total = check_audited(params), sum(weights)
    entries, sizes = shape.slots - 1, _sizes(params, total, protocol)
    committed = [[binding.padded(size) for size in its] for its in sizes]
    committed[0].append(binding.fold_shape(shape)[1])
    agreed = [(sent, "sizes", np.uint64, (SIZE_WORDS,)) for sent in (True, False)]
    yield [
        [
            *(() if lane else agreed),
            *(
                (sent, *macs.message(entries * count, shape.bits))
                for count in committed[lane]
                for sent in (True, False)
            ),
        ]
        for lane in range(protocol.lanes)
    ]
    yield [list(dealing.toss_messages())]
    yield [list(settling())]
    yield [list(_proofs(its, total)) for its in sizes]


def _sizes(params: RoundParams, total: int, protocol: ProtocolParams) -> list[list[int]]:
    """Return the coordinates of each chunk, lane by lane."""
    chunks = cut_audit(params, ring.count_bits(total), protocol)
    dims = [end - begin for begin, end in chunks]
    return [dims[lane :: protocol.lanes] for lane in range(protocol.lanes)]


def _proofs(sizes: Sequence[int], total: int) -> Iterator[Message]:
    """Yield what one lane sends and receives for the proofs of its chunks, of these sizes."""
    for pool in pools(sizes, total):
        yield from ands.messages(ands_of(sum(sizes[pool]), total))
        for size in sizes[pool]:
            yield from comparing.messages(2 * size, ring.count_bits(total))


def ots(params: RoundParams, weights: Sequence[int], protocol: ProtocolParams) -> int:
    """Return how many OTs an audit takes, of both directions and all lanes."""
    total = sum(weights)
    return sum(
        ands.ots_of(ands_of(sum(sizes[pool]), total))
        for sizes in _sizes(params, total, protocol)
        for pool in pools(sizes, total)
    )


def memory(params: RoundParams, weights: Sequence[int], protocol: ProtocolParams) -> int:
    """Return about how many bytes an audit takes at one party: what is kept, and lanes at work.

    It keeps X and the peer's f of each entry. A lane has the ANDs of a pool, and then f of a
    chunk's entries and the tags and keys of its halves and their partners.
    """
    shape, total = check_audited(params), sum(weights)
    busy = [sizes for sizes in _sizes(params, total, protocol) if sizes]
    entries = shape.slots - 1
    kept = (macs.MAC_BITS // macs.TREE_BITS + 1) * entries * params.dim * shape.bits // 8
    numbers, bits = 2 * busy[0][0], ring.count_bits(total)
    tagged = numbers * bits + math.prod(comparing.partners_of(numbers)) * (bits - 1)
    opened = macs.MAC_BITS // macs.TREE_BITS * entries * busy[0][0]
    rows = opened * ring.dtype(shape.bits).itemsize
    rows += 2 * 8 * macs.words_of(macs.MAC_BITS, macs.slot_of(bits)) * tagged
    most = [max(ands_of(sum(sizes[pool]), total) for pool in pools(sizes, total)) for sizes in busy]
    return kept + sum(AND_BYTES * count + rows for count in most)
