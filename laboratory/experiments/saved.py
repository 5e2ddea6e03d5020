"""The files of runs: ID.json of a finished run, ID.npz of a run in progress.

The latter holds everything that the run needs to go on.
"""

import io
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from securemedian.laboratory.experiments.runs import Run, RunRecord
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.rounds.run_state import RunState


def prepare(folder: Path) -> None:
    """Make the folder; raise ConfigError if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / "writable", b"")
        (folder / "writable").unlink()
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}") from error


def load(folder: Path, run: Run) -> RunRecord | None:
    """Return the record of a finished run, or None if there is none.

    Raises ConfigError if the file is damaged or of another run.
    """
    path = folder / f"{run.run_id}.json"
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text("utf-8"))
        if values["run"] != _as_read(run.to_dict()):
            raise ConfigError(
                f"{path} is of another run: move it away, or choose another folder with --out"
            )
        return RunRecord.from_dict(values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is damaged: remove it, or redo everything with --fresh"
        ) from error


def finish(folder: Path, run: Run, record: RunRecord) -> None:
    """Save the record of a finished run, and remove its checkpoint."""
    write_json(folder / f"{run.run_id}.json", {"run": run.to_dict()} | record.to_dict())
    _checkpoint(folder, run).unlink(missing_ok=True)


def load_checkpoint(folder: Path, run: Run) -> tuple[RunRecord, RunState] | None:
    """Return the record and state of an interrupted run, or None if there is no checkpoint.

    Raises ConfigError if the checkpoint is damaged.
    """
    path = _checkpoint(folder, run)
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            values = json.loads(str(arrays["record"]))
            state = RunState(
                run.policy,
                arrays["model"],
                arrays["scale"],
                int(arrays["published"]),
                run.optimiser,
                arrays.get("moments"),
            )
        return RunRecord.from_dict(values), state
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is damaged: remove it, or redo everything with --fresh"
        ) from error


def save_checkpoint(folder: Path, run: Run, record: RunRecord, state: RunState) -> None:
    """Save the record and state of an unfinished run in one file, so that both are of one round."""
    content = io.BytesIO()
    arrays = {
        "record": np.array(json.dumps(record.to_dict())),
        "model": state.model,
        "scale": state.scale,
        "published": np.array(state.published),
    }
    if state.moments is not None:
        arrays["moments"] = state.moments
    np.savez(content, **arrays)  # type: ignore[arg-type]
    _replace(_checkpoint(folder, run), content.getvalue())


def forget(folder: Path, run: Run) -> None:
    """Remove the files of a run."""
    for path in (folder / f"{run.run_id}.json", _checkpoint(folder, run)):
        with suppress(FileNotFoundError):
            path.unlink()


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write values as JSON to a file, whole or not at all."""
    _replace(path, (json.dumps(values, indent=1) + "\n").encode())


def _checkpoint(folder: Path, run: Run) -> Path:
    return folder / f"{run.run_id}.npz"


def _as_read(values: Mapping[str, Any]) -> Any:
    """Return values as they are after they have been written and read."""
    return json.loads(json.dumps(values))


def _replace(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    os.replace(new, path)
