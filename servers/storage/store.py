"""A server's state folder: the database, clients' shares, runs and results.

One process uses it at a time. The words of a round's shares are in one file, and the database names
their owners. A share counts once it is on the disk and its row is committed. Runs and results are
files named by their SHA-256, which are written under another name, synchronised and renamed.
"""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.common.durable import lock_folder, replace_file, sync_folder
from securemedian.common.receipts import Receipt
from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import ConfigError, SecureMedianError, quoted
from securemedian.mpc.protocols.dealing import Dealing
from securemedian.mpc.protocols.share import Layout
from securemedian.mpc.rounds.optimiser import optimiser_from
from securemedian.mpc.rounds.ranges.registry import policy_from
from securemedian.mpc.rounds.run_state import RunState
from securemedian.servers.network.control import is_round_id
from securemedian.servers.storage.database import Database, Row
from securemedian.servers.storage.files import Reserve, storing
from securemedian.servers.storage.spool import Opening, Spool

# the file of the database
DATABASE = "state.db"
# the name of a file's plain fields, which no array has
_FIELDS = "fields"


@dataclass(frozen=True)
class Result:
    """All that a round leaves at one server, besides S0's run."""

    # the record of the round, signed by this server, and once the round is published by both
    receipt: Receipt
    # the opened values, packed, or where the result is for the clients alone this server's share
    values: Words = field(repr=False)
    # the work done for the round (`mpc.rounds.cost.Cost`)
    cost: Mapping[str, Any]
    # the coordinates whose result is in an outermost bucket
    outermost: int = 0
    # the groups, 0-based, whose model stays because they have fewer than `min_clients`
    unchanged_groups: Sequence[int] = ()
    # the coin of the result, in hex digits; empty if the method tosses none
    coin: str = ""


class Store:
    """The state folder of one server.

    Raises ConfigError if the folder cannot be used or another process uses it.
    """

    def __init__(
        self, folder: Path, opening: Opening = nullcontext, native_aes: bool = False
    ) -> None:
        self._opening, self._native_aes = opening, native_aes
        self._folder, self._spools, self._kept = folder, folder / "spool", folder / "kept"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            refusal = f"another server is running on the state folder {folder}"
            self._lock = lock_folder(folder, refusal)
            for inner in (self._spools, self._kept):
                inner.mkdir(mode=0o700, exist_ok=True)
            # SQLite gives the files beside the database its mode
            os.close(os.open(folder / DATABASE, os.O_RDWR | os.O_CREAT, 0o600))
            self.reserve = Reserve(folder / "reserve")
            sync_folder(folder)
        except OSError as error:
            raise ConfigError(
                f"cannot use the state folder: {folder} ({error.strerror}); choose one that "
                "this user may write to"
            ) from error
        self.database = Database(folder / DATABASE)

    def close(self) -> None:
        """Give the folder up, so that another process can use it."""
        self.database.close()
        self.reserve.close()
        self._lock.close()

    @property
    def free_bytes(self) -> int:
        """The bytes that the disk of the folder has left."""
        return shutil.disk_usage(self._folder).free

    def spool(
        self,
        round_id: str,
        layout: Layout,
        shape: Dealing | None = None,
        rows: Iterable[Row] = (),
        leaves: int = 0,
    ) -> Spool:
        """Return the spool of a round, in a folder that is named after it; `rows` are in it.

        Until it is dropped, uploads leave room for the files of so many bytes that the round
        `leaves`.
        """
        if not is_round_id(round_id):
            raise SecureMedianError(
                f"invalid round id, which cannot name a folder: {quoted(round_id)}; write "
                "NUMBER-HEX8"
            )
        spool = self._spools / round_id
        made = Spool(spool, self.reserve, layout, shape, self._opening, rows, self._native_aes)
        self.reserve.add(spool, leaves)
        return made

    def tidy(self, live: Container[str], kept: Container[str]) -> None:
        """Delete the spools of rounds that are not `live`, and files that are not `kept`."""
        with self._opening():
            for folder in self._spools.iterdir():
                if folder.name not in live:
                    shutil.rmtree(folder, ignore_errors=True)
            for file in self._kept.iterdir():
                if file.name not in kept:
                    file.unlink(missing_ok=True)

    # Runs and results

    def write_run(self, run: RunState) -> str:
        """Keep a run, and return the name of its file. Raises NotStored."""
        return self._keep(
            {
                "policy": run.policy.to_dict(),
                "published": run.published,
                "optimiser": run.optimiser.to_dict(),
            },
            run.arrays,
        )

    def read_run(self, name: str) -> RunState:
        """Return a run by the name of its file. Raises ConfigError if it is damaged."""
        fields, arrays = self._load(name)
        return RunState.of_arrays(
            policy_from(fields["policy"]),
            fields["published"],
            optimiser_from(fields["optimiser"]),
            arrays,
        )

    def write_result(self, result: Result) -> str:
        """Keep a result, and return the name of its file. Raises NotStored."""
        fields = vars(result) | {"receipt": result.receipt.to_dict()}
        return self._keep(fields, {"values": fields.pop("values")})

    def read_result(self, name: str) -> Result:
        """Return a result by the name of its file. Raises ConfigError if it is damaged."""
        fields, arrays = self._load(name)
        fields |= {"receipt": Receipt.from_dict(fields["receipt"])} | arrays
        return Result(**fields)

    def _keep(self, fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
        """Write a file of fields and arrays in one step, and return its name."""
        content = io.BytesIO()
        np.savez(content, **{_FIELDS: np.array(json.dumps(fields))}, **arrays)  # type: ignore[arg-type]
        data = content.getbuffer()
        name = hashlib.sha256(data).hexdigest()
        path = self._kept / name
        if path.exists():
            return name
        with storing("a model or a result"), self._opening():
            replace_file(path, [data])
        return name

    def _load(self, name: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        path = self._kept / name
        try:
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() != name:
                raise ValueError
            with np.load(io.BytesIO(data), allow_pickle=False) as saved:
                arrays = dict(saved.items())
            return json.loads(str(arrays.pop(_FIELDS))), arrays
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"a missing or damaged file: {path}; restore the state folder from a backup, or "
                "remove it to start without a model"
            ) from error
