"""List every mask of `mpc`, what would leak without it, and the check that notices.

`MASKS` is the list, and a documentation of it. Each mask is removed alone, by editing the
expression that puts it on, in this process and for one check of tests/test_output_shares.py. The
check must then find bits that are not uniform (`Leak`): a wrong result, a crash or a pinned hash
does not count.

The scans below read off the sources that the list is complete. They find every draw of randomness,
every message and every place where a protocol takes a correlation. They also find every XOR, sum or
difference with something that is named like a mask. Each stands in `MASKS`, or in `NO_MASKS` with
the reason why it hides nothing. A new one fails until it does.
"""

import ast
import copy
import functools
import importlib
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NewType, cast

import pytest

from securemedian import mpc
from securemedian.mpc import arrays
from securemedian.mpc.protocols.correlations.kinds import Tables
from securemedian.mpc.protocols.kernels import jit
from securemedian.mpc.protocols.kernels.native import processor
from securemedian.mpc.protocols.ot.extension import ALIGN
from tests import test_ands as authenticated
from tests import test_binding as binding
from tests import test_bisect as bisecting
from tests import test_dealing as dealings
from tests import test_macs as macs
from tests import test_output_shares as shares
from tests.parties import use_small_codes
from tests.uniformity import Leak

ROOT = Path(mpc.__file__).parent
CLIENTS = 4
# `plan` and `rehearsal` run the protocol on nothing, and `prg` is where streams come from. `native`
# writes instructions, whose bytes tests/test_native.py holds to those of the kernels that are read.
NOT_READ = {"plan", "rehearsal", "prg", "native"}

Edit = tuple[str, str, str]
Check = tuple[Any, ...]


class Mask:
    """Say what a mask hides and how a test removes it.

    `leaks`: what somebody would learn without it. `caught_by`: a check and its arguments. `edits`:
    (function, expression or statement, replacement), all of which together remove it.
    """

    def __init__(self, leaks: str, caught_by: Check, *edits: Edit) -> None:
        self.leaks, self.caught_by, self.edits = leaks, caught_by, edits


MASKS: dict[str, Mask] = {
    # The leaves of a comparison
    "leaf shares": Mask(
        "the receiver's share of a leaf is the secret bit itself",
        (shares.output_share, "greater-3"),
        (
            "_leaf_shares",
            "party.randomness.words(leaf.kind.width * sent)",
            "np.zeros(leaf.kind.width * sent, np.uint64)",
        ),
    ),
    "a leaf share of its own for each leaf": Mask(
        "the receiver of 64 leaves sees how the secret bits of the next 64 differ from them",
        (shares.output_share, "greater-3"),
        (
            "_leaf_shares",
            "party.randomness.words(leaf.kind.width * sent)",
            "np.full(leaf.kind.width * sent, party.randomness.words(1)[0])",
        ),
    ),
    "leaf share of a table of 1-bit messages": Mask(
        "the receiver reads 1{a > c} or 1{a = c} of its leaf in the clear",
        (shares.output_share, "greater-3"),
        ("reply_leaves", "above[i] ^ share[i] ^ pad[i]", "above[i] ^ pad[i]"),
    ),
    "leaf shares of a table of 2-bit messages": Mask(
        "the receiver reads 1{a > c} and 1{a = c} of its leaf in the clear",
        (shares.output_share, "leaves-of-greater"),
        ("reply_leaves", "above[i] ^ share[i] ^ pad[i]", "above[i] ^ pad[i]"),
        ("reply_leaves", "its[i] ^ share[i] ^ pad[i]", "its[i] ^ pad[i]"),
    ),
    "pads of leaf tables": Mask(
        "the receiver reads all positions of a leaf, and so the sender's bits",
        (shares.received, "greater-3"),
        ("reply_leaves", "above[i] ^ share[i] ^ pad[i]", "above[i] ^ share[i]"),
        ("reply_leaves", "its[i] ^ share[i] ^ pad[i]", "its[i] ^ share[i]"),
        ("finish_leaves", "near[k, i] ^ pad[i]", "near[k, i]"),
    ),
    "pads of a table of 2-bit messages": Mask(
        "the receiver reads all positions of a leaf, and so the sender's 4 bits",
        (shares.received, "greater-8"),
        ("reply_leaves", "above[i] ^ share[i] ^ pad[i]", "above[i] ^ share[i]"),
        ("reply_leaves", "its[i] ^ share[i] ^ pad[i]", "its[i] ^ share[i]"),
    ),
    "leaf positions": Mask(
        "the sender reads the receiver's bits of a leaf from the request",
        (shares.received, "equal-4"),
        ("_leaf_shares", "positions ^ as_receiver", "as_receiver"),
    ),
    # ANDs, conversions, multiplexers
    "a of a triple": Mask(
        "the other party reads the share of x that is opened as d",
        (shares.received, "conjunction"),
        ("conjunctions", "x ^ a", "x"),
    ),
    "b of a triple": Mask(
        "the other party reads the share of y that is opened as e",
        (shares.received, "conjunction"),
        ("conjunctions", "y ^ b_k", "y"),
    ),
    "c of a triple": Mask(
        "an output share is a function of what was opened and is 0 three times of four",
        (shares.output_share, "conjunctions"),
        ("conjunctions", "c[k] ^ (d & b[k]) ^ (e & a)", "(d & b[k]) ^ (e & a)"),
    ),
    "the bit of a DaBit": Mask(
        "the other party reads the share of the bit that becomes a number",
        (shares.received, "to-ring-5"),
        ("to_ring", "shares ^ pack_bits(random)", "shares"),
    ),
    "the ring share of a DaBit": Mask(
        "the number's share is the opened bit",
        (shares.output_share, "to-ring-5"),
        (
            "to_ring",
            "np.where(opened.astype(bool), one - in_ring, in_ring)",
            "np.where(opened.astype(bool), one, one - one)",
        ),
    ),
    "both shares of the products of a multiplexer": Mask(
        "a party's output share is its own s_j x_j, and so nothing of the product is shared",
        (shares.output_share, "multiplex-4"),
        (
            "multiplex",
            "np.where(chosen, values, 0) + sent_share + received_share",
            "np.where(chosen, values, 0)",
        ),
    ),
    # Multiplexers of whole rows
    "choices of the OT of a row": Mask(
        "the sender reads the receiver's share of the bit that keeps the row",
        (shares.received, "multiplex-rows-4"),
        ("multiplex_rows", "choices ^ shares", "shares"),
    ),
    "pads on the reply of a row": Mask(
        "the receiver reads (1 - 2 s) x of the sender's shares",
        (shares.received, "multiplex-rows-4"),
        ("multiplex_rows", "deltas + pads0 - pads1", "deltas"),
    ),
    "the sender's share of a row": Mask(
        "the sender's share of the product is 0, and its output share what the reply makes of it",
        (shares.output_share, "multiplex-rows-4"),
        (
            "multiplex_rows",
            "np.where(chosen, rows, 0) + received - pads0",
            "np.where(chosen, rows, 0)",
        ),
    ),
    # 1-of-2 OT online
    "choices of a 1-of-2 OT": Mask(
        "the sender reads the receiver's share of the multiplexer's bit",
        (shares.received, "multiplex-4"),
        ("OtReceiver.request", "self.choices ^ choices", "choices"),
    ),
    "keys on a correlated reply": Mask(
        "the receiver reads (1 - 2 s) x of the sender's shares",
        (shares.received, "multiplex-4"),
        ("OtSender.correlated", "deltas + pad0 - pad1", "deltas"),
    ),
    "the sender's share of a correlated OT": Mask(
        "the sender's share of x delta is 0, and so the receiver's is x delta",
        (shares.correlated_messages,),
        ("OtSender.correlated", "np.zeros_like(pad0) - pad0", "np.zeros_like(pad0)"),
    ),
    "the receiver's key of a correlated OT": Mask(
        "the receiver's share is x times the reply, 0 where x is 0",
        (shares.correlated_messages,),
        (
            "OtReceiver.finish_correlated",
            "self.keys + choices * ring.unpack(reply, self.bits, choices.size)",
            "choices * ring.unpack(reply, self.bits, choices.size)",
        ),
    ),
    # A step of the radix median
    "choices of a step": Mask(
        "the sender reads the receiver's shares of all bits of all clients",
        (shares.received, "radix-products-4"),
        ("Selection.__init__", "zeros ^ choices", "zeros"),
    ),
    "keys on a reply of a step": Mask(
        "the receiver reads (1 - 2 z) c of the sender's shares",
        (shares.received, "radix-products-4"),
        ("reply", "_sum(delta, pad0, first[i])", "delta"),
        ("reply", "_sum(masked, ~pad1, second[i])", "masked"),
    ),
    "both shares of the products of a step": Mask(
        "a party's share of a product is 0 where its share of the bit is",
        (shares.output_share, "radix-products-4"),
        ("finish", "_sum(own, key[i], second[i])", "own"),
        ("finish", "_sum(both, ~pad0, third[i])", "both"),
    ),
    # Correlations
    "products of a triple": Mask(
        "a party's c is a & b of its own bits, and says so of every output share",
        (shares.triples_handed_out, 1),
        ("Triples.hand_out", "(a & b) ^ product_sent ^ product_received", "a & b"),
    ),
    "b of a triple, as the sender's two keys": Mask(
        "b is the key that the other party may have received",
        (shares.triples_handed_out, 1),
        ("Triples.send", "planes0 ^ planes1", "planes0"),
    ),
    "the sender's bit of a DaBit": Mask(
        "a DaBit is the receiver's choice alone, which then reads every bit converted",
        (shares.dabits_handed_out, 5),
        (
            "DaBits.correct",
            "ends.randomness.words(keys0.size // 64)",
            "np.zeros(keys0.size // 64, np.uint64)",
        ),
    ),
    "keys on a DaBit's correction": Mask(
        "the receiver reads the sender's bit",
        (shares.dabit_corrections,),
        ("DaBits.correct", "keys0 - keys1 + chosen", "keys0 - keys0 + chosen"),
    ),
    "key in the sender's ring share of a DaBit": Mask(
        "the sender's ring share is its bit, and the receiver's the rest",
        (shares.dabits_handed_out, 5),
        ("DaBits.correct", "chosen + keys0 + keys0", "chosen + keys0 - keys0"),
    ),
    "key in the receiver's ring share of a DaBit": Mask(
        "the receiver's ring share is a function of the message and its choice: 0 where that is 0",
        (shares.dabits_handed_out, 5),
        (
            "DaBits.finish",
            "keys + choices * ring.unpack(correction, self.bits, keys.size)",
            "choices * ring.unpack(correction, self.bits, keys.size)",
        ),
    ),
    # Tables, made of keys
    "the keys of a table's other half": Mask(
        "a pad that is not chosen is made of keys that the receiver has",
        (shares.unread_messages, Tables(1, 1)),
        ("combine_keys", "keys1 if chunk >> j & 1 else keys0", "keys0"),
    ),
    "a chunk of its own for each position": Mask(
        "the pads of four positions add up to 0, so three reveal the fourth",
        (shares.tables_handed_out, Tables(3, 1)),
        (
            "combine_keys",
            "keys[plane, j * words : (j + 1) * words]",
            "keys[plane % width, j * words : (j + 1) * words]",
        ),
    ),
    # OT extension
    "the hash of OT extension": Mask(
        "the two keys of every OT differ by the same Delta, which one opened pair reveals",
        (shares.extension_keys,),
        ("Hash.finish", "self._pi(as_bytes(blocks), as_bytes(images))", "images[:] = 0"),
    ),
    "u_i on a correction": Mask(
        "the sender reads the receiver's choices",
        (shares.extension_corrections,),
        (
            "PortableLeaves.rows",
            "np.bitwise_xor(leaves[0], choices, out=corrections[block - 1])",
            "corrections[block - 1] = choices",
        ),
    ),
    "the expansion of leaves": Mask(
        "all choices are 0 and known, and the keys with them",
        (shares.extension_keys,),
        ("PortableLeaves.rows", "stream.xor(zeros, view)", "view[:] = bytes(len(view))"),
    ),
    "a nonce per lane": Mask(
        "all lanes of a session make the same choices",
        (shares.lanes_apart,),
        ("PortableLeaves.__init__", "Stream(leaf, nonce=nonce)", "Stream(leaf)"),
    ),
    # MACs of the audit
    "u on a committed value": Mask(
        "the verifier reads the value",
        (macs.what_is_sent_hides_values,),
        (
            "PortableExpander.commit",
            "np.subtract(values[some], total, out=f[block, some])",
            "f[block, some] = values[some]",
        ),
    ),
    "leaves under MACs": Mask(
        "u is 0, and the verifier reads the value",
        (macs.what_is_sent_hides_values,),
        (
            "PortableExpander._folded",
            "stream.xor(ZEROS[: 8 * words], as_bytes(leaf))",
            "leaf[:] = 0",
        ),
    ),
    "positions and lanes of MACs": Mask(
        "two lanes, or two calls, hide their values behind the same u",
        (macs.what_is_sent_hides_values,),
        (
            "PortableExpander._folded",
            "Stream(leaf or bytes(SEED_BYTES), self._nonce, at)",
            "Stream(leaf or bytes(SEED_BYTES))",
        ),
    ),
    "masks of a client's folds": Mask(
        "a server reads sums of the other's share, and so of what it hides",
        (binding.what_a_client_sends_is_uniform,),
        (
            "fold",
            "packing.add_packed(masks(mask, session_id, shape), ring.top_bits(shape.bits), folded)",
            "pass",
        ),
    ),
    "expanded masks of folds": Mask(
        "all masks are 0",
        (binding.what_a_client_sends_is_uniform,),
        (
            "masks",
            "return Stream(digest('audit masks', seed, session_id)[:SEED_BYTES])"
            ".words(fold_words(shape))",
            "return np.zeros(fold_words(shape), np.uint64)",
        ),
    ),
    "masks of each session": Mask(
        "folds under two tosses differ by what is folded",
        (binding.what_a_client_sends_is_uniform,),
        (
            "masks",
            'Stream(digest("audit masks", seed, session_id)[:SEED_BYTES])',
            'Stream(digest("audit masks", seed)[:SEED_BYTES])',
        ),
    ),
    # Set-up
    "Delta": Mask(
        "the receiver of OT extension knows Delta, and so every key",
        (shares.sessions_apart,),
        ("sender_trees", "entropy(SECURITY_BITS // 8)", "bytes(SECURITY_BITS // 8)"),
    ),
    "roots of the trees": Mask(
        "the sender of OT extension knows every leaf, and so every choice",
        (shares.sessions_apart,),
        ("receiver_trees", "entropy(SEED_BYTES)", "bytes(SEED_BYTES)"),
    ),
    "two children that differ": Mask(
        "the sender knows the leaf that it must miss from its sibling",
        (shares.tree_sums, 4),
        ("_double", "expand(node, 0, 4, native_aes).tobytes()", "node + node"),
    ),
    "base keys on the sums of a level": Mask(
        "the sum of the path's side gives the sender the missing leaf",
        (shares.tree_sums, 1),
        ("receiver_trees", "_xor([*nodes[side::2], key])", "_xor(nodes[side::2])"),
        (
            "sender_trees",
            "_xor([*same_side, sums[position, side].tobytes(), keys[position]])",
            "_xor([*same_side, sums[position, side].tobytes()])",
        ),
    ),
    "a scalar per base OT": Mask(
        "the receiver's points are two, one for either choice, and tell Delta",
        (shares.base_ots,),
        (
            "BaseOtReceiver.keys",
            "[scalar(self._entropy) for _ in choices]",
            "[scalar(self._entropy)] * len(choices)",
        ),
    ),
    "a point that is not chosen per base OT": Mask(
        "the receiver's other points are all the same, and tell Delta",
        (shares.base_ots,),
        (
            "BaseOtReceiver.keys",
            "sodium.crypto_scalarmult_ed25519_base_noclamp(scalar(self._entropy))",
            "sodium.crypto_scalarmult_ed25519_base_noclamp(bytes([1] + 31 * [0]))",
        ),
    ),
    "OTs that are never used": Mask(
        "the sender reads a sum of the receiver's choices off what proves its corrections",
        (shares.proofs,),
        ("Weighing.coefficients", "found[-1] = 1", "found[:] = 0"),
    ),
    "scalars from the operating system": Mask(
        "whoever knows the scalar computes both keys of every base OT",
        (shares.announced_points,),
        (
            "scalar",
            "entropy(sodium.crypto_core_ed25519_NONREDUCEDSCALARBYTES)",
            "bytes([1]) * sodium.crypto_core_ed25519_NONREDUCEDSCALARBYTES",
        ),
    ),
    "the Diffie-Hellman value in a base key": Mask(
        "both keys are the same, and anyone who sees the points computes them",
        (shares.base_ots,),
        (
            "_key",
            "b'securemedian base OT' + name + transcript + shared",
            "b'securemedian base OT' + session + transcript",
        ),
    ),
    "a party's own stream": Mask(
        "both parties know all leaf shares and DaBits of each other",
        (shares.streams_apart,),
        ("Session.party", "Stream(self.entropy(16))", "Stream(bytes(16))"),
    ),
    # Silent OT
    "seeds on the sums of silent OT": Mask(
        "the receiver has the sums of either side of a level, and so Delta",
        (shares.silent_sums, 100 * ALIGN),
        ("FerretSender.make", "grow(outputs, None) ^ masks[:, 1:]", "grow(outputs, None)"),
    ),
    "the code on silent OT's leaves": Mask(
        "the choices are the noise, 1 in 2048, and so mostly 0",
        (shares.extension_keys, "silent", ALIGN * 16),
        ("encode", "low ^= secrets[at, 0]", "low ^= np.uint64(0)"),
        ("encode", "high ^= secrets[at, 1]", "high ^= np.uint64(0)"),
    ),
    # Uploads and openings
    "the mask of an additive upload": Mask(
        "the server that is sent the packed half reads the client's values",
        (shares.upload_shares, 5),
        ("split", "plain - mask", "plain"),
    ),
    "the mask of an XOR upload": Mask(
        "the server that is sent the packed half reads the client's words",
        (shares.upload_shares, 5, True),
        ("split", "plain ^ mask", "plain"),
    ),
    "a seed per upload": Mask(
        "the server that is sent the packed half knows the mask, or differences of two uploads",
        (shares.upload_shares, 5),
        ("split", "entropy(16)", "bytes(16)"),
    ),
    "a part of the stream per row": Mask(
        "all rows of an upload have the same mask, and show how they differ",
        (shares.upload_shares, 5),
        ("SeedUpload.words", "first // BLOCK_WORDS", "0"),
    ),
    "bits beyond an opened batch": Mask(
        "shares that pad a batch to whole words are opened with it",
        (shares.opened_bits_alone,),
        ("_first", "words[:, -1] &= np.uint64((1 << count % 64) - 1)", "pass"),
    ),
    # Dealings
    "the mask of a dealing": Mask(
        "the server that is sent words reads the slots, and with the rotations the update",
        (dealings.words_half,),
        (
            "deal",
            "kernels.packing.subtract_packed(seeded.words(0, first, stop), tops, section)",
            "pass",
        ),
    ),
    "a seed per dealing": Mask(
        "the server that is sent words knows the mask, or how two dealings differ",
        (dealings.words_half,),
        (
            "deal",
            "SeedUpload(shape.layout, entropy(SEED_BYTES))",
            "SeedUpload(shape.layout, bytes(SEED_BYTES))",
        ),
    ),
    "slots of dealt vectors": Mask(
        "every rotation is the bucket itself",
        (dealings.opened_and_rotations, 0),
        (
            "_slots",
            "drawn.words(ring.packed_words(count, shape.slot_bits))",
            "np.zeros(ring.packed_words(count, shape.slot_bits), np.uint64)",
        ),
    ),
    "a secret of its own for the slots": Mask(
        "the server that is sent the seed expands it to the slots",
        (dealings.slots_beside_the_seed,),
        ("deal", "secret = entropy(SEED_BYTES)", "secret = seeded.seed"),
    ),
    "slots on rotations": Mask(
        "both servers read the buckets",
        (dealings.opened_and_rotations, 0),
        ("OwnDealing.rotations", "index.astype(np.uint8) - slots", "index.astype(np.uint8)"),
    ),
    "partners' positions on turns": Mask(
        "the slots of the kept vectors are opened",
        (dealings.opened_and_rotations, 1),
        (
            "_Pairs.send",
            "np.subtract(slots, self._turns, out=self._turns)",
            "np.copyto(self._turns, slots)",
        ),
    ),
    # ANDs of authenticated bits
    "hashes on a leaky AND's G": Mask(
        "the other party reads C, and with what it holds of y this party's share and Delta",
        (authenticated.tables_received,),
        ("garble", "hash0[i] ^ hash1[i] ^ c", "c"),
    ),
    "r on the top of S": Mask(
        "both parties learn x y",
        (authenticated.tops_opened,),
        ("mask_tops", "s[i] >> np.uint64(63) ^ np.uint64(r[i])", "s[i] >> np.uint64(63)"),
    ),
    "y of the others in a bucket": Mask(
        "the other party reads the share of y of every AND",
        (authenticated.buckets_received,),
        ("AndMaker.combined", "y[0] ^ y[1:]", "y[0] ^ 0 * y[1:]"),
    ),
    "y of an AND on what differs from its x": Mask(
        "the other party reads this party's random bits, and so the share of every count",
        (authenticated.buckets_received,),
        (
            "AndMaker.combined",
            "given.bits ^ first[:count] ^ y[0, :count]",
            "given.bits ^ first[:count]",
        ),
    ),
    "x of an AND on a": Mask(
        "the other party reads party 0's random bits, and so the share of every count",
        (authenticated.buckets_received,),
        ("AndMaker.combined", "a ^ first[:known]", "a"),
    ),
    "x of an AND on a carry": Mask(
        "the other party reads the shares of carries",
        (authenticated.openings_received,),
        ("AndMaker.opened", "carry.bits ^ x.bits", "carry.bits.copy()"),
    ),
    # The authenticated bisect
    "a of what is bound": Mask(
        "the other party reads the share of every count, and the sum of the masks of folds",
        (bisecting.what_is_received_is_uniform,),
        ("Binder.shift", "values - bound.values", "values"),
    ),
    "random bits on the bits of a share": Mask(
        "the other party reads the bits of the share of every count that is asked",
        (bisecting.what_is_received_is_uniform,),
        ("Lane._masked", "z ^ np.concatenate(masks)", "z"),
    ),
    "drawn random bits": Mask(
        "the random bits on the bits of a share are 0",
        (bisecting.what_is_received_is_uniform,),
        (
            "Lane._make",
            "self.party.randomness.words(-(-steps * width * ring.dtype(bits).itemsize // 8))",
            "np.zeros(-(-steps * width * ring.dtype(bits).itemsize // 8), np.uint64)",
        ),
    ),
    "partners on random bits": Mask(
        "the other party reads the random bits, and later what they hide",
        (bisecting.what_is_received_is_uniform,),
        (
            "Lane._prove_bits",
            "self.party.randomness.words(ring.packed_words(each * length, 1))",
            "np.zeros(ring.packed_words(each * length, 1), np.uint64)",
        ),
    ),
    # Commitments and digests
    "the nonce of a commitment": Mask(
        "a party that waits guesses the other's share, and chooses its own by it",
        (shares.commitments_hide,),
        ("_theirs", "randomness.words(NONCE_WORDS)", "np.zeros(NONCE_WORDS, np.uint64)"),
    ),
    "a scalar on a digest": Mask(
        "a server that deviates tries guesses of the other's digest, and so of what it holds",
        (shares.digests_are_hidden,),
        ("settle", "scalar(entropy)", "bytes([1] + 31 * [0])"),
    ),
    # Selections that stay shared: what hides them is that nobody opens them
    "which sum is opened by the mean": Mask(
        "both servers learn every client's value",
        (shares.opens_the_sum_alone,),
        (
            "Mean.compute",
            "chunk.plain_sum(party)",
            "(open_ring(party, chunk.rows(party).reshape(-1),"
            " chunk.form.ring_bits), chunk.plain_sum(party))[1]",
        ),
    ),
    "the sums of clusters": Mask(
        "from a few reclusterings both servers learn every client's update, by linear equations",
        (shares.opens_one_aggregate,),
        (
            "Reclustered.compute",
            "sums.reshape(len(sums), -1)",
            "(sums.reshape(len(sums), -1), open_ring(party, sums, bits))[0]",
        ),
    ),
    "the aggregate of each reclustering": Mask(
        "both servers learn R functions of the updates in place of one",
        (shares.opens_one_aggregate,),
        (
            "Reclustered.compute",
            "summed(found, self.reclusterings)",
            "(summed(found, self.reclusterings), open_ring(party, found, bits))[0]",
        ),
    ),
    "which clusters pass": Mask(
        "both servers learn the clusters' lengths, and how far they go the validator's way",
        (shares.opens_the_sum_of_clusters_alone,),
        (
            "Zeno.judge",
            "negative(party, terms, [slope, -2], ROWS * start)",
            "(open_ring(party, terms, BITS), negative(party, terms, [slope, -2], ROWS * start))[1]",
        ),
    ),
    "both shares of the products of a square": Mask(
        "a party's output share is the square of its own share",
        (shares.output_share, "square-5"),
        (
            "square",
            "total[part] += products.reshape(bits - 1, -1).sum(axis=0, dtype=total.dtype)",
            "pass",
        ),
    ),
    "who holds the median": Mask(
        "both servers learn whose value is the median of each coordinate",
        (shares.output_share, "pairwise-median"),
        ("median", "selection != 'opened'", "selection == 'opened'"),
    ),
    "the bits of a descent": Mask(
        "both servers learn the aggregate of each reclustering",
        (shares.output_share, "descent"),
        (
            "_descended",
            "found[bit] = one",
            "found[bit] = (one, party.channel.exchange('open.bits', one))[0]",
        ),
    ),
    "who is kept by the trimmed mean": Mask(
        "both servers learn whose values are dropped",
        (shares.output_share, "trimmed-sum"),
        (
            "kept_sum",
            "multiplex(party, kept, RingShare(values.reshape(-1)), bits)",
            "values.reshape(-1) * np.unpackbits("
            "(kept ^ party.channel.exchange('open.bits', kept)).view(np.uint8),"
            " bitorder='little')[:values.size]",
        ),
    ),
}

# Messages, and what hides what they carry: names of `MASKS`, or why nothing need.
MESSAGES: dict[str, tuple[str, ...] | str] = {
    "leaf.request": ("leaf positions",),
    "leaf.reply": (
        "leaf shares",
        "leaf share of a table of 1-bit messages",
        "leaf shares of a table of 2-bit messages",
        "pads of leaf tables",
        "pads of a table of 2-bit messages",
    ),
    "and": ("a of a triple", "b of a triple"),
    "b2a": ("the bit of a DaBit",),
    "mux.request": ("choices of a 1-of-2 OT",),
    "rows.request": ("choices of the OT of a row",),
    "rows.reply": ("pads on the reply of a row",),
    "square.request": ("choices of a 1-of-2 OT",),
    "square.reply": ("keys on a correlated reply",),
    "mux.reply": ("keys on a correlated reply",),
    "select.request": ("choices of a step",),
    "select.reply": ("keys on a reply of a step",),
    "dabits": ("keys on a DaBit's correction",),
    "ot.corrections": ("u_i on a correction", "the expansion of leaves"),
    "mac.values": ("u on a committed value", "leaves under MACs"),
    "ferret.sums": ("seeds on the sums of silent OT",),
    "ggm.sums": ("base keys on the sums of a level",),
    "base.A": ("scalars from the operating system",),
    "base.B": ("a scalar per base OT", "a point that is not chosen per base OT"),
    "ggm.checks": "a sum and a digest of bits of leaves that no stream is made of",
    "ggm.coin": "a coin, which is public and drawn after the leaves",
    "ot.challenge": "a seed that is public, and told when all corrections are in",
    "ot.proof": ("OTs that are never used",),
    "open.bits": "the result: tests/test_privacy.py says which bits of it each method opens",
    "open.ring": "the result, or the sum of the kept values",
    "commit.bits": ("the nonce of a commitment",),
    "commit.ring": ("the nonce of a commitment",),
    "toss.commit": "a hash of what is opened next",
    "toss.open": "half of a seed that is public, and chosen after the dealings or the uploads",
    "audit.hidden": ("a scalar on a digest",),
    "audit.proof": "a hash of a point that the peer computes too, if the digests are the same",
    "mac.random": ("u on a committed value", "leaves under MACs"),
    "bisect.session": "half of a public id",
    "bisect.sizes": "a size, which is public",
    "bisect.claims": ("partners on random bits",),
    "bisect.change": ("a of what is bound",),
    "bisect.folds": "the coin, and a digest that the peer computes too, if the clients are honest",
    "bisect.answer": "whether a digest is right, which nothing but deviations and folds decides",
    "bisect.fold": ("masks of a client's folds",),
    "bisect.verdicts": "whose folds are not those of the servers, which both find",
    "bisect.masked": ("random bits on the bits of a share", "drawn random bits"),
    "bisect.sign": "a bit of the result, and a digest that the peer computes by itself",
    "opening.digest": "a digest that the peer computes by itself",
    "toss.tokens": "digests of a secret and of a coin that both know",
    "dealing.guards": "vectors that are thrown away",
    "dealing.turns": ("partners' positions on turns", "slots of dealt vectors"),
    "dealing.digests": "a digest that the peer computes too, if the client is honest",
    "fill": "whether to go on making correlations, which no input has a part in",
    "verdicts": "a digest of who was found to have values out of range, which both found",
    "and.tables": ("hashes on a leaky AND's G",),
    "and.tops": ("r on the top of S",),
    "and.buckets": (
        "y of the others in a bucket",
        "y of an AND on what differs from its x",
        "x of an AND on a",
    ),
    "and.openings": ("x of an AND on a carry",),
    "sizes": "sizes, which are public, and digests of counts",
}

# The places where protocols take correlations, and the masks these become.
TAKEN: dict[str, tuple[str, ...]] = {
    "_leaf_shares": ("leaf positions", "pads of leaf tables"),
    "conjunctions": ("a of a triple", "b of a triple", "c of a triple"),
    "to_ring": ("the bit of a DaBit", "the ring share of a DaBit"),
    "multiplex": ("choices of a 1-of-2 OT", "keys on a correlated reply"),
    "multiplex_rows": (
        "choices of the OT of a row",
        "pads on the reply of a row",
        "the sender's share of a row",
    ),
    "square": ("choices of a 1-of-2 OT", "keys on a correlated reply"),
    "Selection.__init__": ("choices of a step", "keys on a reply of a step"),
}

NOISE = "noise on what is opened, not a mask: tests/test_private_mean.py finds it missing"

# Expressions that look like a mask to the scans below and hide nothing: (function, expression) ->
# why. "*" is the whole function.
NO_MASKS: dict[tuple[str, str], str] = {
    ("Radix.encode", "self.words(vector, published)"): "a client's own values as words",
    ("Zoom.encode", "self.words(vector)"): "a client's own values as words",
    ("Zoom.words", "self._radix.words(values)"): "a client's own values as words",
    ("_Ferret._grow", "Stream(self._matrix, self._iteration, block)"): "a public matrix",
    ("_Ferret._grow", "matrix.fill(words)"): "a public matrix",
    ("split", "seeded.words(row, 0, layout.row_words)"): "the mask that `split` puts on",
    ("read", "upload.words(row, first, last)"): "reads a share",
    ("weighted_sum", "members[0].words(row, first, last)"): "reads a share",
    ("weighted_sum", "member.words(row, first, last)"): "reads a share",
    ("open_pairs", "Stream(coin, nonce=index)"): "a public permutation",
    ("OwnDealing.opened", "Stream(coin, nonce=number)"): "a public permutation",
    ("_slots", "Stream(secret)"): "the secret of a dealing, which `deal` draws",
    (
        "places",
        "Stream(coin, nonce=table, block=start // 8).words(-(-out.size // 4))",
    ): "public places",
    (
        "Bisection._sums_agree",
        "keys -= lane.verifier.constant(theirs.reshape(-1))",
    ): "keys of a verifier",
    ("Lane.ask", "*"): "keys of a verifier, for what was opened",
    ("Lane._sign", "*"): "sums of one's own halves",
    (
        "Lane.ask.expect_sign",
        "sign.keys ^ masks_of(its_bits) & self._ands.delta",
    ): "keys of a verifier",
    ("_new_id", "os_entropy(SESSION_BYTES)"): "half of a public id",
    ("toss", "entropy(OPENING_BYTES)"): "half of a public seed",
    (
        "open_passed",
        "Stream(os_entropy(SEED_BYTES))",
    ): "the nonces' stream, 'the nonce of a commitment'",
    ("sender_setup", "entropy(SEED_BYTES)"): "a public coin",
    ("SoftSpokenSender.__init__", "*"): "what public seeds are drawn from",
    ("SoftSpokenSender._make", "self._randomness.words(SEED_BYTES // 8)"): "a public seed",
    ("Weighing.begin", "Stream(seed)"): "public coefficients",
    ("Weighing.coefficients", "self._stream.words(words)"): "public coefficients",
    ("PortableExpander.keys", "(sums ^ ~mask) - ~mask"): "keys of a verifier, of its own leaves",
    (
        "PortableExpander.keys",
        "rows[_rows_of(block), some] += f[block, first:][some] & mask",
    ): "keys of a verifier, of its own leaves",
    ("Permutation.uniform", "stream.words(-(-count // 8))"): "a public permutation",
    ("Permutation.uniform", "stream.words(DRAWS)"): "a public permutation",
    ("draw", "Stream(seed, nonce=number)"): "a public partition",
    (
        "_chunks",
        "half.words(0, begin, begin + ring.packed_words(stop - start, packed_bits))",
    ): "reads a share",
    ("DealtUpload.words", "self.rotations.words(row, start, stop)"): "reads rotations",
    ("turned_sum", "upload.half.words(0, first, last)"): "reads a share",
    ("turned_sum", "upload.rotations.words(0, first_turn, last_turn)"): "reads rotations",
    ("discrete_gaussian", "Stream(seed, nonce=block)"): NOISE,
    ("_block", "stream.words(_WORDS)"): NOISE,
    ("run_round", "os_entropy(SEED_BYTES)"): NOISE,
    ("Mean.compute", "shares + noise.view(np.uint64)"): NOISE,
    (
        "Mean.compute",
        "shares[:1, :1] += chunk.verdicts[:1] << np.uint64(COUNT_AT)",
    ): "adds up one's own shares",
    ("opposed", "np.zeros_like(shares) - shares"): "minus one's own share",
    ("msb_of_planes", "carry(party, shares[:-1]) ^ shares[-1]"): "shares of a carry and of a bit",
    ("_tabulate", "*"): "adds up one's own shares",
    ("_eight_rows", "*"): "adds up one's own shares",
    ("within", "positions[None] - bounds"): "a public number off one's own share",
    ("holders", "found - found.dtype.type(rank - 1)"): "a public number off one's own share",
    ("open_ring", "shares + theirs"): "opens",
    (
        "sigma_and_tweak",
        "*",
    ): "a permutation and a public tweak: pi hides, 'the hash of OT extension'",
    ("combine_keys", "out[i] ^= key[i]"): "the sender's pads, of its keys",
    ("choose_chunks", "out[i] ^= key[i]"): "the receiver's pad, of its keys",
    ("finish_leaves", "*"): "the receiver takes its pad off",
    ("FerretReceiver.make", "*"): "the receiver takes its seeds off",
    ("FerretSender.make", "masks[:, 0] ^ self._delta"): "the other node of the first level",
    (
        "DaBits.finish",
        "choices - product - product",
    ): "the receiver's ring share, of what is masked",
    ("rotations", "*"): "public rotations",
    ("AuthenticatedBits.plus", "*"): "a public bit on one's own half",
    ("authenticate", "*"): "the MACs of what was opened",
    ("mask_products", "*"): "the MACs of what was opened",
    ("unmask_products", "*"): "the MACs of what was opened",
    (
        "garble",
        "_spread(y[i]) & delta ^ macs[i] ^ keys[i]",
    ): "C, which 'hashes on a leaky AND's G' hide",
    ("unmask", "*"): "what was opened, on one's own halves, and T, of which digests are compared",
    ("_add_row", "*"): "sums of one's own halves, and MACs of what was opened",
    ("equal_demand", "*"): "counts",
    ("Code.seeds", "*"): "counts",
}


# Removing a mask


def sources() -> dict[str, Path]:
    """Return the files of mpc by the names of their modules."""
    return {
        "securemedian.mpc."
        + path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."): path
        for path in sorted(ROOT.rglob("*.py"))
        if not {"__init__", *NOT_READ} & {path.stem, path.parent.name}
    }


def functions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield every function with its qualified name, outermost first."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = f"{inside}{node.name}"
            if isinstance(node, ast.FunctionDef):
                yield name, node
            yield from functions(node, f"{name}.")
        else:
            yield from functions(node, inside)


class _Untyped(ast.NodeTransformer):
    """Leave out the calls of NewTypes: they say what a value is, and return it."""

    names = {name for name, value in vars(arrays).items() if isinstance(value, NewType)}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.args[0] if called(node) in self.names else node


def parsed(source: str) -> ast.Module:
    """Return the tree of a source without its NewTypes."""
    tree: ast.Module = _Untyped().visit(ast.parse(source))
    return tree


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Return the trees of all sources by the names of their modules."""
    return {name: parsed(path.read_text("utf-8")) for name, path in sources().items()}


def normal(source: str) -> str:
    """Return an expression or a statement as `ast` writes it."""
    return ast.unparse(parsed(source).body[0])


class _Replace(ast.NodeTransformer):
    """Replace an expression, or a statement, by another."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new, self.count = normal(old), ast.parse(new).body[0], 0

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr | ast.stmt) and ast.unparse(node) == self._old:
            self.count += 1
            whole = isinstance(node, ast.stmt) or not isinstance(self._new, ast.Expr)
            return self._new if whole else cast(ast.Expr, self._new).value
        return self.generic_visit(node)


def edited(edits: Sequence[Edit]) -> list[tuple[str, types.CodeType, str]]:
    """Return module, code and qualified name of every function that the edits change."""
    changed: dict[tuple[str, str], None] = {}
    copies: dict[str, ast.Module] = {}
    for function, old, new in edits:
        found = []
        for module, tree in trees().items():
            if function not in (name for name, _ in functions(tree)):
                continue
            copied = copies.setdefault(module, copy.deepcopy(tree))
            for name, node in functions(copied):
                if name == function:
                    replace = _Replace(old, new)
                    node.body = [replace.visit(statement) for statement in node.body]
                    found += [(module, function)] * replace.count
        assert len(found) == 1, (
            f"{old!r} should stand once in one function {function}, and stands in {found}: "
            "adapt the entry of MASKS"
        )
        changed[found[0]] = None
    results = []
    for module, name in changed:
        whole = compile(ast.fix_missing_locations(copies[module]), module, "exec")
        results.append((module, code_of(whole, name), name))
    return results


def code_of(whole: types.CodeType, name: str) -> types.CodeType:
    """Return the code of the function with this qualified name in that of its module."""
    for constant in whole.co_consts:
        if isinstance(constant, types.CodeType):
            if constant.co_qualname == name:
                return constant
            if name.startswith(f"{constant.co_qualname}."):
                return code_of(constant, name)
    raise LookupError(name)


@contextmanager
def without(mask: Mask, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the edits of a mask in force: functions get another body, kernels are run as Python."""
    with monkeypatch.context() as patch:
        for module_name, code, name in edited(mask.edits):
            module = importlib.import_module(module_name)
            *classes, last = name.split(".")
            owner = functools.reduce(getattr, classes, module)
            own = vars(owner)[last]
            if module_name.startswith(jit.__name__.rpartition(".")[0]):
                patch.setattr(module, last, types.FunctionType(code, vars(module), last))
            else:
                patch.setattr(inspect.unwrap(getattr(own, "__func__", own)), "__code__", code)
        yield


@functools.cache
def passes(check: Check) -> bool:
    """Run a check once, with all masks on."""
    check[0](*check[1:])
    return True


@pytest.fixture
def portable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the kernels that a test can edit."""
    monkeypatch.setattr(processor, "FEATURES", frozenset())


@pytest.mark.slow
@pytest.mark.usefixtures("portable")
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its check passes with the mask, and finds a leak without it."""
    mask = MASKS[name]
    use_small_codes(monkeypatch)
    check, *arguments = mask.caught_by
    assert passes(mask.caught_by)
    with without(mask, monkeypatch), pytest.raises(Leak):
        check(*arguments)


# Nothing is left out


def scan(wanted: Callable[[ast.AST], bool]) -> list[tuple[str, str, str]]:
    """Return module, function and source of all outermost nodes that are wanted."""
    found = []

    def walk(node: ast.AST, module: str, inside: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                walk(child, module, f"{inside}.{child.name}".lstrip("."))
            elif wanted(child):
                found.append((module.removeprefix("securemedian.mpc."), inside, ast.unparse(child)))
            else:
                walk(child, module, inside)

    for module, tree in trees().items():
        walk(tree, module, "")
    assert found
    return found


def called(node: ast.AST) -> str:
    """Return the last name of what is called."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def names_in(node: ast.AST) -> set[str]:
    """Return the names of the operands of nested XORs, sums, differences and ANDs."""
    if isinstance(node, ast.BinOp) and isinstance(
        node.op, ast.BitXor | ast.Add | ast.Sub | ast.BitAnd
    ):
        return names_in(node.left) | names_in(node.right)
    if isinstance(node, ast.Subscript):
        return names_in(node.value)
    if isinstance(node, ast.UnaryOp):
        return names_in(node.operand)
    if isinstance(node, ast.Call):
        return {name for argument in node.args for name in names_in(argument)}
    if isinstance(node, ast.Name):
        return {node.id}
    return {node.attr} if isinstance(node, ast.Attribute) else set()


# these send a commitment, too
OPENS = {"open", "_theirs"}
DRAWS = {"entropy", "_entropy", "os_entropy", "urandom", "Stream", "words", "fill", "xor"}
LIKE_MASKS = {
    *("a", "b_k", "random", "in_ring", "secrets", "mask", "masks", "leaves", "key", "keys"),
    *("keys0", "keys1", "pad", "pads", "pad0", "pad1", "choices", "share", "shares", "greater"),
    *("equal", "tables", "table", "positions", "ring0", "ring1", "planes0", "product_sent"),
    *("product_received", "sent_share", "received_share", "delta"),
}


def unlisted(found: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Return entries that neither an edit of `MASKS` nor `NO_MASKS` names."""
    edits = [(function, normal(old)) for mask in MASKS.values() for function, old, _ in mask.edits]
    return [
        (module, function, source)
        for module, function, source in found
        if not {(function, source), (function, "*")} & set(NO_MASKS)
        and not any(function == own and (source in old or old in source) for own, old in edits)
    ]


def test_every_draw_of_randomness_is_listed() -> None:
    assert not unlisted(scan(lambda node: called(node) in DRAWS))


def test_every_masking_is_listed() -> None:
    def wanted(node: ast.AST) -> bool:
        masking = ast.BitXor | ast.Add | ast.Sub
        if isinstance(node, ast.AugAssign) and isinstance(node.op, masking):
            return bool((names_in(node.target) | names_in(node.value)) & LIKE_MASKS)
        # bit planes are added by a function
        if called(node) == "_sum":
            return bool(names_in(node) & LIKE_MASKS)
        return (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, masking)
            and bool(names_in(node) & LIKE_MASKS)
        )

    assert not unlisted(scan(wanted))


def test_every_message_is_listed() -> None:
    found = {
        (called(node), str(node.args[0].value))
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and called(node) in {"send", "exchange", "tell", *OPENS}
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and (called(node) not in OPENS or "open" in str(node.args[0].value))
    }
    labels = {label for _, label in found}
    labels |= {label.replace("open", "commit") for call, label in found if call in OPENS}
    assert labels == set(MESSAGES)
    assert {
        mask for masks in MESSAGES.values() if isinstance(masks, tuple) for mask in masks
    } <= set(MASKS)


def test_every_correlation_taken_is_listed() -> None:
    stocking = {"reserve", "keep_only"}

    def wanted(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value).endswith("pool")
            and node.func.attr not in stocking
        )

    # each once: a second one is another mask
    assert sorted(function for _, function, _ in scan(wanted)) == sorted(TAKEN)
    assert {mask for masks in TAKEN.values() for mask in masks} <= set(MASKS)


def test_nothing_listed_is_gone() -> None:
    """Find in the sources what `NO_MASKS` excuses."""
    named = {name for name, _ in NO_MASKS}
    there = {
        (name, source)
        for tree in trees().values()
        for name, function in functions(tree)
        if name in named
        for node in ast.walk(function)
        if isinstance(node, ast.expr | ast.stmt)
        for source in ("*", ast.unparse(node))
    }
    assert not set(NO_MASKS) - there
