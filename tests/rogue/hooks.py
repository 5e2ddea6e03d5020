"""The parts of deviations: functions replaced in this process, and messages changed."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.protocols.channel import Channel

Array = NDArray[Any]
# given the label, what this server sends and what the peer does, return what to send instead
# and what to believe that the peer has sent
Rush = Callable[[str, Array, Array], tuple[Array, Array]]


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function of a module or class by what `make` makes of it."""
    setattr(owner, name, make(getattr(owner, name)))


def on_send(label: str, change: Callable[[Array], Array]) -> None:
    """Change all messages with a label that this server sends."""

    def make(true: Any) -> Any:
        def send(channel: Channel, given: str, array: Array) -> None:
            true(channel, given, change(array.copy()) if given == label else array)

        return send

    replace(Channel, "send", make)


def on_recv(label: str, change: Callable[[Array], Array]) -> None:
    """Change all messages with a label that this server receives."""

    def make(true: Any) -> Any:
        def recv(channel: Channel, given: str, dtype: Any, shape: tuple[int, ...]) -> Array:
            array: Array = true(channel, given, dtype, shape)
            return change(array.copy()) if given == label else array

        return recv

    replace(Channel, "recv", make)


def rushing(labels: tuple[str, ...], rush: Rush) -> None:
    """Wait for the peer's half of exchanges with these labels before sending the own one.

    Shares that are opened were committed to before: the peer finds any others.
    The peer is believed here.
    """

    def make(true: Any) -> Any:
        def exchange(
            channel: Channel, label: str, array: Array, shape: tuple[int, ...] | None = None
        ) -> Array:
            if label not in labels:
                return np.asarray(true(channel, label, array, shape))
            theirs = channel.recv(label, array.dtype, array.shape if shape is None else shape)
            sent, believed = rush(label, array, theirs)
            channel.send(label, sent)
            return believed

        return exchange

    replace(Channel, "exchange", make)
    replace(Channel, "check_opening", lambda true: lambda *given: None)


class Spoils:
    """The spoils of this server: arrays by name, in a file that is always complete."""

    def __init__(self, path: Path) -> None:
        self._path, self._arrays, self._lock = path, dict[str, Array](), threading.Lock()

    def keep(self, **arrays: Array) -> None:
        with self._lock:
            self._arrays |= arrays
            part = self._path.with_name("part.npz")
            np.savez(part, allow_pickle=False, **self._arrays)
            os.replace(part, self._path)
