"""Long shares on their way to a server's doors, block by block (`common.blocks`)."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from securemedian.clients.connection import Connection, pauses
from securemedian.clients.door import Door
from securemedian.clients.upload import ShareHalf
from securemedian.common.blocks import BLOCK_BYTES, block_digest, whole_digest
from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import BadUpload, NotStored, SecureMedianError, ServerUnreachable

BLOCK_WORDS = BLOCK_BYTES // 8
# what is longer goes in blocks
WHOLE_BYTES = BLOCK_BYTES
# a little less than the longest array that glibc learns from when it is freed
LEARNT_BYTES = 31 << 20
# errors of one block after which the server is asked again what is missing: a door has ended, or
# another one has taken over from it
_AGAIN = (ServerUnreachable, BadUpload, NotStored)


def takes_blocks(server: Connection, half: ShareHalf, patience_s: float) -> bool:
    """Return whether a half is long words, which go in blocks, and the server takes such."""
    if half.form != "words" or half.share.nbytes <= WHOLE_BYTES:
        return False
    # servers of wire version 1 have no doors
    return "doors" in server.ask("info", patience_s=patience_s).fields


def keep_freed() -> None:
    """Let the C library keep the memory of blocks that are sent, where it can, for the next ones.

    Otherwise it gives it back to the system while several doors are sent to, and takes it anew: a
    fifth of a client's work. Once it has freed an array of its own that long, it keeps twice as
    much. Nothing is written to this one, which therefore takes no memory.
    """
    np.empty(LEARNT_BYTES, np.uint8)


class Blocks:
    """A share that is sent to one server.

    `fields` are those of `store` but its digest, and `sent` gets the bytes that are stored.
    """

    def __init__(
        self,
        server: Connection,
        fields: Mapping[str, Any],
        share: Words,
        patience_s: float,
        sent: Callable[[int], object],
    ) -> None:
        self._server, self._share, self._patience_s = server, share.reshape(-1), patience_s
        self._sent = sent
        self._blocks = [
            self._share[at : at + BLOCK_WORDS] for at in range(0, share.size, BLOCK_WORDS)
        ]
        digest = whole_digest(block_digest(block.data) for block in self._blocks)
        self._fields = {**fields, "digest": digest}
        self._stored, self._lock = 0, threading.Lock()

    def send(self) -> None:
        """Send what is missing, to all doors at once, until nothing is.

        Raises what the server answers. If doors fail for `patience_s`, it raises their error.
        """
        keep_freed()
        deadline, before = time.monotonic() + self._patience_s, len(self._blocks) + 1
        for pause in pauses():
            said = self._server.ask("store", self._fields, patience_s=self._patience_s).fields
            missing: dict[str, list[int]] = said["missing"]
            left = sum(map(len, missing.values()))
            self._stored = self._share.nbytes - left * BLOCK_BYTES
            if not left:
                return
            if left < before:
                deadline, before = time.monotonic() + self._patience_s, left
            errors = self._send(missing, said["room"], said["key"])
            for error in errors:
                if not isinstance(error, _AGAIN):
                    raise error
            if len(errors) == len(missing):
                if time.monotonic() > deadline:
                    raise errors[0]
                self._server.pause(pause)

    def _send(
        self, missing: Mapping[str, Sequence[int]], room: int, key: bytes
    ) -> list[SecureMedianError]:
        """Send each door what it misses, and return the errors."""
        errors: list[SecureMedianError] = []

        def send(address: str, numbers: Sequence[int]) -> None:
            try:
                if address:
                    self._send_to(address, numbers, room, key)
                else:
                    self._send_to_server(numbers)
            except SecureMedianError as error:
                errors.append(error)

        threads = [
            threading.Thread(target=send, args=door, daemon=True) for door in missing.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return errors

    def _send_to(self, address: str, numbers: Sequence[int], room: int, key: bytes) -> None:
        try:
            door = Door(self._server, address, room, key)
        except ServerUnreachable:
            # a firewall lets only the server itself through
            self._fields["direct"] = True
            raise
        try:
            door.send(numbers, self._blocks, self._note)
        finally:
            door.close()

    def _send_to_server(self, numbers: Sequence[int]) -> None:
        about = {name: self._fields[name] for name in ("round", "kind")}
        for number in numbers:
            block = self._blocks[number]
            self._server.ask("block", {**about, "block": number}, {"share": block})
            self._note(block)

    def _note(self, block: Words) -> None:
        """Note that a block is stored."""
        with self._lock:
            self._stored += block.nbytes
            self._sent(self._stored)
