"""The database of a server's state folder: rounds, uploads, verdicts and runs, in SQLite.

Shares and models are files beside it (`store`). A server stores each change before it acts on it,
so that it can go on after a crash at any moment.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from securemedian.common import versions
from securemedian.mpc.errors import ConfigError, NotStored

# makes a file of the version before (`common.versions.STORE`, in a file its
# `PRAGMA user_version`) one of this version: SQL by that version
UPGRADES: dict[int, str] = {}
SCHEMA = """
    CREATE TABLE cohorts (
        -- its name
        cohort TEXT PRIMARY KEY,
        -- the file of the current run at S0
        current TEXT,
        -- the latest number that ran, and the clients whose values may have been opened (JSON)
        bound_number INTEGER NOT NULL DEFAULT 0,
        bound_clients TEXT NOT NULL DEFAULT '[]',
        -- this server's opening when it tossed for that number, in hex digits
        bound_opening TEXT NOT NULL DEFAULT '',
        -- the digest of what it started from, in hex digits; '' once a round of it was published
        bound_start TEXT NOT NULL DEFAULT '',
        -- the cost of results that may have been opened, for each client: the rho of zCDP
        spent REAL NOT NULL DEFAULT 0
    ) STRICT;
    CREATE TABLE rounds (
        place INTEGER PRIMARY KEY,
        round TEXT NOT NULL UNIQUE,
        cohort TEXT NOT NULL,
        -- the id of the coordinator's request, or ''
        request TEXT NOT NULL,
        -- S0's request to S1, the clients' names, and those of an earlier attempt (JSON)
        asked TEXT NOT NULL,
        names TEXT NOT NULL,
        repeats TEXT NOT NULL,
        -- other values that survive a restart, and the times as seconds of the epoch (JSON)
        saved TEXT NOT NULL,
        times TEXT NOT NULL,
        -- the files of the runs before and after it, and of the result
        before TEXT,
        after TEXT,
        result TEXT
    ) STRICT;
    CREATE TABLE uploads (
        round TEXT NOT NULL,
        client TEXT NOT NULL,
        -- dealing or upload
        kind TEXT NOT NULL,
        form TEXT NOT NULL,
        -- the place of its words in the round's file, and their bytes
        begin INTEGER NOT NULL,
        size INTEGER NOT NULL,
        -- instead of words; beside the words of an audited upload, the seed of its masks
        seed BLOB,
        sha256 BLOB NOT NULL,
        -- when it was stored, in seconds of the epoch
        stored REAL NOT NULL,
        PRIMARY KEY (round, client, kind)
    ) STRICT;
    CREATE TABLE verdicts (
        round TEXT NOT NULL,
        client TEXT NOT NULL,
        -- the coin of the check of its dealing, and the other server's token of it
        coin BLOB,
        -- 1 if it has passed, 0 if it has failed, NULL while it is not known
        passed INTEGER,
        PRIMARY KEY (round, client)
    ) STRICT;
    CREATE TABLE public_metrics (
        round TEXT NOT NULL,
        client TEXT NOT NULL,
        -- numbers by name (JSON)
        metrics TEXT NOT NULL,
        PRIMARY KEY (round, client)
    ) STRICT;
"""
# a commit is on the disk when it returns
SYNCHRONOUS = "FULL"


@dataclass(frozen=True)
class Bound:
    """The constraints that a started round puts on later attempts at its number."""

    number: int
    # the clients whose values may have been opened
    clients: frozenset[str]
    # this server's opening when it tosses for the result, in hex digits
    opening: str
    # the digest of what it started from, in hex digits; empty once it was published
    start: str


UNBOUND = Bound(0, frozenset(), "", "")


@dataclass(frozen=True)
class Row:
    """A share that a client has sent. Its words are in the round's file, unless it is a seed."""

    client: str
    kind: str
    form: str
    begin: int
    size: int
    # and where groups are visible, with a byte for the client's group (`control.upload_digest`)
    sha256: bytes
    stored: float
    # instead of words; beside those of an audited upload the seed of its masks
    seed: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class SavedRound:
    """A round as the database has it."""

    round: str
    cohort: str
    request: str
    asked: dict[str, Any]
    names: dict[str, str]
    repeats: list[str]
    # as JSON, in which `register` compares it
    saved: str = field(repr=False)
    times: dict[str, float | None]
    before: str | None
    after: str | None = None
    result: str | None = None


@dataclass(frozen=True)
class Verdict:
    """The knowledge of one client's check."""

    # with the other server's token behind it
    coin: bytes | None = field(repr=False)
    passed: bool | None


class Database:
    """One SQLite file, for one process and one thread at a time.

    Raises ConfigError if the file cannot be used, or is of another release.
    """

    def __init__(self, path: Path) -> None:
        # Python begins no transactions by itself: `transaction` does
        self._connection = sqlite3.connect(path, isolation_level=None)
        try:
            self._set_up()
            self._create(path)
        except (sqlite3.Error, ConfigError) as error:
            self._connection.close()
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"cannot use the database: {path} ({error}); if it is damaged, restore the "
                "state folder from a backup, or remove it to start without rounds and model"
            ) from error

    def _set_up(self) -> None:
        for pragma in (
            "journal_mode = WAL",
            f"synchronous = {SYNCHRONOUS}",
            # a seed that is deleted is overwritten here, but not in the log beside it
            "secure_delete = ON",
            "temp_store = MEMORY",
        ):
            self._connection.execute(f"PRAGMA {pragma}")

    def _create(self, path: Path) -> None:
        """Create the tables in a new file, and bring those of the version before up to date.

        Raises ConfigError for a file of any other version; it stays as it is.
        """
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        tables = self._connection.execute("SELECT name FROM sqlite_master").fetchall()
        if not version and not tables:
            script = SCHEMA
        elif ("cohorts",) in tables:
            versions.check_store(str(path), version)
            script = "".join(UPGRADES[older] for older in range(version, versions.STORE))
        else:
            raise ConfigError(
                f"not a database of a server: {path}; set another state_dir, or remove the file "
                "to start without rounds and model"
            )
        if version != versions.STORE:
            number = f"PRAGMA user_version = {versions.STORE}"
            self._connection.executescript(f"BEGIN IMMEDIATE; {script} {number}; COMMIT;")

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write all of a `with` block or nothing. Raises NotStored if it cannot be written."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield
            self._connection.execute("COMMIT")
        except BaseException as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise _not_stored(error) from error
            raise

    def erase(self) -> None:
        """Empty the log of the database; the disk may keep its bytes. Raises NotStored."""
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise _not_stored(error) from error

    # Runs

    def current_runs(self) -> dict[str, str]:
        rows = self._connection.execute("SELECT cohort, current FROM cohorts")
        return {cohort: name for cohort, name in rows if name}

    def set_current_run(self, cohort: str, name: str) -> None:
        self._set_cohort("current", name, cohort)

    def bound(self, cohort: str) -> Bound:
        """Return what the latest number that ran binds other attempts at it to."""
        row = self._cohort("bound_number, bound_clients, bound_opening, bound_start", cohort)
        return Bound(row[0], frozenset(json.loads(row[1])), *row[2:]) if row else UNBOUND

    def bind(self, cohort: str, bound: Bound) -> None:
        self._set_cohort("bound_number", bound.number, cohort)
        self._set_cohort("bound_clients", json.dumps(sorted(bound.clients)), cohort)
        self._set_cohort("bound_opening", bound.opening, cohort)
        self._set_cohort("bound_start", bound.start, cohort)

    def spent(self, cohort: str) -> float:
        """Return what the results of a cohort have cost each client."""
        row = self._cohort("spent", cohort)
        return float(row[0]) if row else 0.0

    def spend(self, cohort: str, spent: float) -> None:
        """Let the results of a cohort have cost each client no less than this."""
        self._set_cohort("spent", max(spent, self.spent(cohort)), cohort)

    def _cohort(self, columns: str, cohort: str) -> Any:
        return self._connection.execute(
            f"SELECT {columns} FROM cohorts WHERE cohort = ?", (cohort,)
        ).fetchone()

    def _set_cohort(self, column: str, value: Any, cohort: str) -> None:
        self._connection.execute(
            f"INSERT INTO cohorts (cohort, {column}) VALUES (?, ?) "
            f"ON CONFLICT (cohort) DO UPDATE SET {column} = excluded.{column}",
            (cohort, value),
        )

    # Rounds

    def rounds(self) -> list[SavedRound]:
        """Return all rounds, the earliest first."""
        rows = self._connection.execute(f"SELECT {_columns(SavedRound)} FROM rounds ORDER BY place")
        return [
            SavedRound(
                *(json.loads(one) if at in (3, 4, 5, 7) else one for at, one in enumerate(row))
            )
            for row in rows
        ]

    def add_round(self, made: SavedRound) -> None:
        self._add("rounds", **vars(made))

    def update_round(
        self,
        round_id: str,
        saved: str,
        times: Mapping[str, float | None],
        after: str | None,
        result: str | None,
    ) -> None:
        self._connection.execute(
            "UPDATE rounds SET saved = ?, times = ?, after = ?, result = ? WHERE round = ?",
            (saved, json.dumps(times), after, result, round_id),
        )

    def set_asked(self, round_id: str, asked: Mapping[str, Any]) -> None:
        self._connection.execute(
            "UPDATE rounds SET asked = ? WHERE round = ?", (json.dumps(asked), round_id)
        )

    def forget_round(self, round_id: str) -> None:
        """Delete a round and what its clients have sent."""
        self.drop_uploads(round_id)
        self._connection.execute("DELETE FROM public_metrics WHERE round = ?", (round_id,))
        self._connection.execute("DELETE FROM rounds WHERE round = ?", (round_id,))

    # Clients' uploads and metrics

    def uploads(self, round_id: str) -> list[Row]:
        rows = self._connection.execute(
            f"SELECT {_columns(Row)} FROM uploads WHERE round = ? ORDER BY rowid", (round_id,)
        )
        return [Row(*row) for row in rows]

    def add_uploads(self, round_id: str, rows: Iterable[Row]) -> None:
        for row in rows:
            self._add("uploads", round=round_id, **vars(row))

    def drop_uploads(self, round_id: str) -> None:
        """Delete what the clients of a round have sent, with the verdicts."""
        self._connection.execute("DELETE FROM uploads WHERE round = ?", (round_id,))
        self._connection.execute("DELETE FROM verdicts WHERE round = ?", (round_id,))

    def public_metrics(self, round_id: str) -> dict[str, dict[str, float]]:
        rows = self._connection.execute(
            "SELECT client, metrics FROM public_metrics WHERE round = ? ORDER BY rowid", (round_id,)
        )
        return {client: json.loads(metrics) for client, metrics in rows}

    def add_public_metrics(self, round_id: str, client: str, metrics: dict[str, float]) -> None:
        self._add("public_metrics", round=round_id, client=client, metrics=metrics)

    def verdicts(self, round_id: str) -> dict[str, Verdict]:
        rows = self._connection.execute(
            "SELECT client, coin, passed FROM verdicts WHERE round = ?", (round_id,)
        )
        return {
            client: Verdict(coin, None if passed is None else bool(passed))
            for client, coin, passed in rows
        }

    def set_verdicts(self, round_id: str, verdicts: Mapping[str, Verdict]) -> None:
        """Replace what is known of these clients' checks."""
        for client, one in verdicts.items():
            self._add("verdicts", "INSERT OR REPLACE", round=round_id, client=client, **vars(one))

    def _add(self, table: str, verb: str = "INSERT", /, **values: Any) -> None:
        """Write a row, with lists and tables as JSON."""
        marks = ", ".join("?" * len(values))
        self._connection.execute(
            f"{verb} INTO {table} ({', '.join(values)}) VALUES ({marks})",
            [json.dumps(one) if isinstance(one, dict | list) else one for one in values.values()],
        )


def _not_stored(error: sqlite3.Error) -> NotStored:
    return NotStored(
        f"this server cannot write to its database: {error}. Its operator must see to the disk of "
        "its state_dir; then send it again"
    )


def _columns(kind: type) -> str:
    """Return the columns of a table, which have the names of a dataclass's fields."""
    return ", ".join(each.name for each in fields(kind))
