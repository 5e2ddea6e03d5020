"""What stays of runs on disk: ID.json of a finished one; ID.npz of one in progress, with all it needs to go on."""

import io
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from securemedian.laboratory.experiments.runs import Record, Run
from securemedian.mpc.errors import ConfigError
from securemedian.servers.training import Training


def prepare(folder: Path) -> None:
    """Make the folder. ConfigError if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / "writable", b"")
        (folder / "writable").unlink()
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}") from error


def load(folder: Path, run: Run) -> Record | None:
    """What a finished run has left."""
    path = folder / f"{run.id}.json"
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text("utf-8"))
        if values["run"] != _as_read(asdict(run)):
            raise ConfigError(
                f"{path} is of another run: move it away, or choose another folder with --out"
            )
        return Record.from_json(values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is damaged: remove it, or redo everything with --fresh"
        ) from error


def finish(folder: Path, run: Run, record: Record) -> None:
    write_json(folder / f"{run.id}.json", {"run": asdict(run)} | record.to_json())
    _checkpoint(folder, run).unlink(missing_ok=True)


def load_checkpoint(folder: Path, run: Run) -> tuple[Record, Training] | None:
    """Where an unfinished run was interrupted."""
    path = _checkpoint(folder, run)
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            values = json.loads(str(arrays["record"]))
            training = Training(
                run.range, arrays["model"], arrays["width"], int(arrays["published"])
            )
        return Record.from_json(values), training
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is damaged: remove it, or redo everything with --fresh"
        ) from error


def save_checkpoint(folder: Path, run: Run, record: Record, training: Training) -> None:
    """Figures and state in one file, so that they are of the same round."""
    content = io.BytesIO()
    np.savez(
        content,
        record=np.array(json.dumps(record.to_json())),
        model=training.model,  # type: ignore[arg-type]
        width=training.width,
        published=np.array(training.published),
    )
    _replace(_checkpoint(folder, run), content.getvalue())


def forget(folder: Path, run: Run) -> None:
    """Remove what is there of a run."""
    for path in (folder / f"{run.id}.json", _checkpoint(folder, run)):
        with suppress(FileNotFoundError):
            path.unlink()


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    _replace(path, (json.dumps(values, indent=1) + "\n").encode())


def _checkpoint(folder: Path, run: Run) -> Path:
    return folder / f"{run.id}.npz"


def _as_read(values: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(values))


def _replace(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    os.replace(new, path)
