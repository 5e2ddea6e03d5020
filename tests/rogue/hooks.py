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


def replace(
    owner: Any,
    name: str,
    deviate: Callable[..., Any],
    put: Callable[[Any, str, Any], None] = setattr,
) -> None:
    """Let a function of a module or class run `deviate`, whose first argument is the true one."""
    true = getattr(owner, name)

    def other(*given: Any, **named: Any) -> Any:
        return deviate(true, *given, **named)

    put(owner, name, other)


def on_send(label: str, change: Callable[[Array], Array]) -> None:
    """Change all messages with a label that this server sends."""

    def send(true: Any, channel: Channel, given: str, array: Array) -> None:
        true(channel, given, change(array.copy()) if given == label else array)

    replace(Channel, "send", send)


def on_recv(label: str, change: Callable[[Array], Array]) -> None:
    """Change all messages with a label that this server receives."""

    def recv(true: Any, channel: Channel, given: str, dtype: Any, shape: tuple[int, ...]) -> Array:
        array: Array = true(channel, given, dtype, shape)
        return change(array.copy()) if given == label else array

    replace(Channel, "recv", recv)


def rushing(labels: tuple[str, ...], rush: Rush) -> None:
    """Wait for the peer's half of exchanges with these labels before sending the own one.

    Shares that are opened were committed to before: the peer finds any others.
    The peer is believed here.
    """

    def exchange(
        true: Any, channel: Channel, label: str, array: Array, shape: tuple[int, ...] | None = None
    ) -> Array:
        if label not in labels:
            return np.asarray(true(channel, label, array, shape))
        theirs = channel.recv(label, array.dtype, array.shape if shape is None else shape)
        sent, believed = rush(label, array, theirs)
        channel.send(label, sent)
        return believed

    replace(Channel, "exchange", exchange)
    replace(Channel, "check_opening", lambda *given: None)


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
