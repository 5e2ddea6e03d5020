"""settings.durable: the folders that one process at a time has."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from securemedian.clients.journal import Journal
from securemedian.common.durable import is_locked
from securemedian.coordinator.unattended import RunLog
from securemedian.mpc.errors import ConfigError
from securemedian.servers.storage.store import Store


class Closable(Protocol):
    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("kind", "refusal"),
    [
        (Store, "another server is running on the state folder"),
        (Journal, "another process runs on the state folder"),
        (RunLog, "another process coordinates the run"),
    ],
)
def test_one_process_at_a_time_has_a_folder(
    tmp_path: Path, kind: Callable[[Path], Closable], refusal: str
) -> None:
    folder = tmp_path / "state"
    assert not is_locked(folder)
    for _ in range(2):
        first = kind(folder)
        with pytest.raises(ConfigError, match=f"{refusal}.* {folder}"):
            kind(folder)
        # a process that only looks takes nothing away
        assert is_locked(folder) and is_locked(folder)
        first.close()
        assert not is_locked(folder)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for kind in (Store, Journal, RunLog):
        with pytest.raises(ConfigError, match=f"cannot use the .*{tmp_path / 'file'}"):
            kind(tmp_path / "file")
