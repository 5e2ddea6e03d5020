"""The unattended run: opens, closes and retries rounds from the first to the last.

Its output is in one folder. Each published round has receipt-NUMBER.json and model-NUMBER.npy, the
model that the next round starts from. With an optimiser or several ranks it also has
result-NUMBER.npy. If predictions are exchanged, it has predictions-NUMBER.npy instead of a model.
The file rounds.jsonl has a line of JSON per attempt at a round. While a round is under way,
open.json says where the next call goes on.
"""

import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.start import function_of, in_one_line
from securemedian.common.durable import lock_folder, replace_file
from securemedian.common.status import DEFAULT_COHORT, RoundStatus, check_cohort
from securemedian.coordinator.coordinator import Coordinator
from securemedian.coordinator.round_plan import RoundPlan
from securemedian.coordinator.rounds import Hooks, Note, Patience, Rounds
from securemedian.mpc.errors import ConfigError, RoundFailed

# the file of finished attempts at rounds in a run's folder
LINES = "rounds.jsonl"
# the fields of a round's last status that a line of it has
_KEPT = (
    *("number", "state", "reason", "included", "left_out", "opened", "outermost"),
    *("unchanged_groups", "epsilon", "cost"),
)


@dataclass(frozen=True, kw_only=True)
class RunPlan(RoundPlan):
    """A run as its file describes it. File names are relative to the file's folder."""

    # the coordinator's own configuration
    coordinator: str
    # the rounds to publish
    rounds: int
    # the cohort, as the servers call it
    cohort: str = DEFAULT_COHORT
    # the folder of what the run leaves
    output: str = "run"
    # with so many complete uploads a round is closed; 0: when all are there, or at its deadline
    quorum: int = 0
    # how often a round is tried before the run stops
    attempts: int = 3
    # the wait before the second attempt; each further one is twice as long
    retry_wait_s: float = 10.0
    # how long servers may be away before the run stops
    patience_s: float = 86400.0
    # a function package.module:function of the flat model, whose numbers go into rounds.jsonl
    evaluate: str = ""

    # the fields that are names of files
    FILES = (*RoundPlan.FILES, "coordinator", "output")

    def __post_init__(self) -> None:
        check_cohort(self.cohort)
        for name in ("rounds", "attempts"):
            if getattr(self, name) < 1:
                raise ConfigError(f"invalid {name}: {getattr(self, name)}; give 1 or more")
        for name in ("retry_wait_s", "patience_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(
                    f"invalid {name}: {getattr(self, name)}; give a finite number of 0 or more"
                )
        least = self.round.get("min_clients", 2)
        if self.quorum and type(least) is int and self.quorum < least:
            raise ConfigError(
                f"quorum is below the {least} clients that a round needs (min_clients): "
                f"{self.quorum}; raise it"
            )


def attempts(folder: Path) -> list[dict[str, Any]]:
    """Return a run's finished attempts; a last line cut by a crash is none. Raises ConfigError."""
    file = folder / LINES
    if not file.exists():
        return []
    whole = file.read_text("utf-8").split("\n")[:-1]
    try:
        return [dict(json.loads(line)) for line in whole]
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"a damaged file: {file}; correct it, or choose another `output`"
        ) from error


class RunLog(Note):
    """The log of a run on disk, and the note of its round. One process uses it at a time."""

    def __init__(self, folder: Path) -> None:
        """Open or make a log in a folder. Raises ConfigError if another process uses it."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            refusal = f"another process coordinates the run in {folder}"
            self._lock = lock_folder(folder, refusal)
        except OSError as error:
            raise ConfigError(
                f"cannot use the folder: {folder} ({error.strerror}); choose another"
            ) from error
        self.folder = folder
        self._open = folder / "open.json"

    def close(self) -> None:
        self._lock.close()

    def under_way(self) -> tuple[str, str]:
        if not self._open.exists():
            return "", ""
        try:
            found = json.loads(self._open.read_text("utf-8"))
            request, round_id = str(found["request"]), str(found["round"])
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"a damaged file: {self._open}; remove it, and abort the round that is open"
            ) from error
        # an end that was cut short between its two steps
        ended = any(line["round"] == round_id for line in attempts(self.folder))
        return ("", "") if ended else (request, round_id)

    def begin(self, request: str, round_id: str = "") -> None:
        found = json.dumps({"request": request, "round": round_id})
        replace_file(self._open, [found.encode()])

    def withdraw(self) -> None:
        self._open.unlink(missing_ok=True)

    def end(self, line: Mapping[str, Any]) -> None:
        """Append what became of the round under way."""
        whole = "".join(f"{json.dumps(each)}\n" for each in [*attempts(self.folder), line])
        replace_file(self.folder / LINES, [whole.encode()])
        self.withdraw()


class UnattendedRun:
    """A run that goes on from its log's end; `show` gets what the round does at the moment."""

    def __init__(
        self,
        plan: RunPlan,
        coordinator: Coordinator,
        report: Callable[[str], object],
        show: Callable[[str], object] = lambda text: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan, self._coordinator, self._sleep = plan, coordinator, sleep
        self._report, self._show = report, show
        # Mistakes are found before anything is asked. The result may be for the clients alone, and
        # then so is every model.
        self._private = plan.asked()["params"].method.result_to == "clients"
        if self._private and plan.evaluate:
            raise ConfigError(
                "the result is for the clients alone, and this would have nothing to measure: "
                f"{plan.evaluate}; leave `evaluate` out"
            )
        self._measure = function_of(plan.evaluate) if plan.evaluate else None
        self._log = RunLog(Path(plan.output))
        # the round that is asked for, counted from 1
        self._which = 0
        hooks = Hooks(
            ask=self._ask,
            opened=lambda round_id: report(f"round {round_id} is open ({self._of})"),
            show=lambda status: show(_progress(self._of, status)),
            ready=lambda status: bool(plan.quorum) and len(status.complete) >= plan.quorum,
            keep=self._keep,
            lost=self._lost,
            report=report,
        )
        self._rounds = Rounds(coordinator, hooks, Patience(plan.patience_s), self._log, sleep=sleep)

    def close(self) -> None:
        self._log.close()

    def run(self) -> int:
        """Run all rounds still to be published, and return how many were published before.

        Raises RoundFailed if a round fails as often as the plan allows, and what the servers
        refuse.
        """
        before = self._published
        self._which = before + 1
        if before:
            self._report(f"{before} of {self._plan.rounds} rounds are published already")
        self._rounds.run(self._plan.rounds, before)
        self._report(f"all {self._plan.rounds} rounds are published: {self._log.folder}")
        return before

    @property
    def _published(self) -> int:
        return sum(line["state"] == "published" for line in attempts(self._log.folder))

    @property
    def _of(self) -> str:
        return f"{self._which} of {self._plan.rounds}"

    def _ask(self, which: int) -> dict[str, Any]:
        """Return what is asked for: the first round begins a run, which S0 then goes on with."""
        self._which, plan = which, self._plan
        self._show(f"round {self._of}: opening")
        asked = plan.asked(lambda: self._rounds.patiently(self._coordinator.dim))
        later = ("params", "participants")
        return {name: asked[name] for name in later} if self._published else asked

    def _lost(self, status: RoundStatus, seconds: float, attempt: int) -> bool:
        """Note that a round has failed, and wait before it is tried again."""
        self._log.end(_line(status, seconds))
        plan, said = self._plan, f"round {status.round} failed: {status.reason}"
        if attempt == plan.attempts:
            self._report(said)
            raise RoundFailed(
                f"round {self._of} failed {attempt} times: {status.reason}; mend that, and run "
                "the same command to go on"
            )
        wait_s = plan.retry_wait_s * 2 ** (attempt - 1)
        self._report(f"{said}; attempt {attempt + 1} in {wait_s:g} s")
        self._sleep(wait_s)
        return True

    def _keep(self, status: RoundStatus, seconds: float) -> None:
        """Note that a round is published, once all is written that it leaves."""
        line = _line(status, seconds) | self._kept(status.round)
        self._log.end(line)
        self._report(_sentence(self._of, line))
        self._which += 1

    def _kept(self, round_id: str) -> dict[str, Any]:
        """Write what a published round leaves, and return what its line says of that."""
        number = round_id.partition("-")[0]
        receipt = self._rounds.patiently(lambda: self._coordinator.receipt(round_id))
        self._write(f"receipt-{number}.json", receipt.to_json().encode())
        metrics = self._rounds.patiently(lambda: self._coordinator.public_metrics(round_id))
        kept: dict[str, Any] = {"public_metrics": metrics} if metrics else {}
        if self._private:
            return kept
        if self._plan.public:
            predictions = self._rounds.patiently(lambda: self._coordinator.result(round_id))
            kept["predictions"] = self._write(f"predictions-{number}.npy", _npy(predictions))
            return kept | self._evaluation(predictions)
        model, found = self._rounds.patiently(lambda: self._coordinator.outcome(round_id))
        kept["model"] = self._write(f"model-{number}.npy", _npy(model))
        result = found if len(found) > 1 else found[0]
        if not np.array_equal(result, model):
            kept["result"] = self._write(f"result-{number}.npy", _npy(result))
        return kept | self._evaluation(model)

    def _write(self, name: str, data: bytes | memoryview) -> str:
        """Write a file of the folder so that a crash leaves all of it or none; return its name."""
        try:
            replace_file(self._log.folder / name, [data])
        except OSError as error:
            raise ConfigError(
                f"cannot write the file: {self._log.folder / name} ({error.strerror}); mend "
                "that, and run the same command to go on"
            ) from error
        return name

    def _evaluation(self, model: NDArray[np.float32]) -> dict[str, Any]:
        """Return what the user's function measures of a model, or by group of one per group."""
        if (measure := self._measure) is None:
            return {}
        try:
            if model.ndim == 1:
                return {"evaluation": _numbers(measure(model))}
            by_group = [_numbers(measure(one)) for one in model]
        # it is the user's code, and may raise anything; the run goes on without a figure
        except Exception as error:
            self._report(f"{self._plan.evaluate} failed: {in_one_line(error)}")
            return {"evaluation": {"error": in_one_line(error)}}
        named = {
            f"{name}.{i}": value for i, one in enumerate(by_group) for name, value in one.items()
        }
        return {"evaluation": named}


def _npy(array: NDArray[np.float32]) -> memoryview:
    file = io.BytesIO()
    np.save(file, array)
    return file.getbuffer()


def _line(status: RoundStatus, seconds: float) -> dict[str, Any]:
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "round": status.round,
        "seconds": round(seconds, 3),
    } | {name: getattr(status, name) for name in _KEPT}


def _sentence(which: str, line: Mapping[str, Any]) -> str:
    left_out = [f"{name}: {why}" for name, why in line["left_out"].items()]
    measured = [
        f"{name} {value:g}"
        for name, value in line.get("evaluation", {}).items()
        if not isinstance(value, str)
    ]
    parts = [f"{len(line['included'])} clients", f"{line['seconds']:.1f} s", *measured]
    sentence = f"round {line['round']} is published ({which}): {', '.join(parts)}"
    if kept := line.get("unchanged_groups"):
        numbers = ", ".join(map(str, kept))
        sentence += f"; too few chose group {numbers}, whose model stays"
    return f"{sentence}; left out: {'; '.join(left_out)}" if left_out else sentence


def _progress(which: str, status: RoundStatus) -> str:
    done, total = status.progress
    text = f"round {which}: {status.state}"
    if status.state == "open":
        return (
            f"{text}, complete uploads: {len(status.complete)}, {status.deadline_in_s:.0f} s to go"
        )
    if status.levels:
        text += f", {status.of_levels}"
    if not total:
        return text
    return f"{text}, {status.phase} {100 * done // total} %"


def _numbers(measured: Any) -> dict[str, float]:
    """Return what a user's function measured: numbers by name, or one number."""
    named = measured if isinstance(measured, Mapping) else {"value": measured}
    return {str(name): float(value) for name, value in named.items()}
