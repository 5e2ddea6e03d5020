"""The verb `experiment`, which reproduces the paper's figures and compares methods, by name."""

import argparse
import hashlib
import importlib.util
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securemedian.clients import files
from securemedian.clients.flags import add_optimiser, list_of, optimiser_table
from securemedian.common import terminal
from securemedian.laboratory.processes import unwind_on_sigterm
from securemedian.mpc.errors import ConfigError, InputError
from securemedian.mpc.rounds.optimiser import optimiser_from

if TYPE_CHECKING:
    from rich.console import Console, Group

    from securemedian.common.status import RoundStatus
    from securemedian.laboratory.experiments.catalogue import Experiment
    from securemedian.laboratory.experiments.runs import Design, Run, RunRecord
    from securemedian.laboratory.plots import Picture


# the JSON, the picture and the table of an experiment
Carried = tuple[dict[str, Any], "Picture", "Group"]
# columns; a narrower terminal folds the lines, which reads better than figures that are cut off
TABLE_WIDTH = 120
# the fields of Design in `--list`
FIELDS = ("model", "clients", "rounds", "methods", "attacks")


_INTS, _NAMES = list_of(int), list_of(str)
# the options that replace an experiment's defaults: the field of Design, its type and its help
CHOSEN: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "rounds": (int, "T", "rounds to train"),
    "images": (int, "N", "training images per client"),
    "seeds": (_INTS, "S,..", "of start model, split and training: one run per seed"),
    "clients": (int, "N", "clients that take part"),
    "methods": (_NAMES, "M,..", "ways to combine updates"),
    "attacks": (_NAMES, "A,..", "the attackers' doings"),
    "attackers": (int, "F", "clients that attack"),
    "first": (int, "T", "the first round of the attack"),
    "model": (str, "NAME", "the network"),
    "rate": (float, "R", "clients' learning rate"),
    "epochs": (int, "N", "clients' epochs per round"),
    "test_images": (int, "N", "test on so many images, drawn at random"),
    "split": (str, "HOW", "iid, blocks, dirichlet:ALPHA, or labels:C per client"),
    "samples": (int, "N", "public images, where predictions are exchanged"),
    "warm_up": (int, "N", "and rounds in which clients train alone before"),
    "groups": (_INTS, "K,..", "groups of clients"),
    "dims": (_INTS, "D,..", "and dimensions of their models"),
}
# options that are not called as the field is
CALLED = {"first": ["--from"], "attacks": ["--attacks", "--faults"]}


def add_verbs(verbs: Any) -> None:
    verb = verbs.add_parser(
        "experiment",
        description=(
            "Train with several ways to combine updates, through the real S0 and S1 or in the "
            "clear, and plot the test accuracy. Every finished run is saved: after an "
            "interruption, the same command goes on with the next one."
        ),
        usage="securemedian experiment [NAME] [OPTION ..]",
    )
    verb.add_argument("name", nargs="?", metavar="NAME", help="the experiment: see --list")
    verb.add_argument(
        "--list", action="store_true", help="list experiments, methods, attacks and models"
    )
    verb.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="the folder of the data set (default: scikit-learn's 8x8 digits)",
    )
    verb.add_argument(
        "--dataset", metavar="NAME", help="the data set (default: recognised by its files)"
    )
    how = verb.add_mutually_exclusive_group()
    how.add_argument(
        "--secure", action="store_true", default=None, help="compute the medians with S0 and S1"
    )
    how.add_argument(
        "--plain",
        dest="secure",
        action="store_false",
        help="compute the same medians in the clear, equal bit by bit",
    )
    group = verb.add_argument_group("instead of the experiment's defaults")
    for name, (kind, metavar, text) in CHOSEN.items():
        flags = CALLED.get(name, [f"--{name.replace('_', '-')}"])
        group.add_argument(*flags, dest=name, type=kind, metavar=metavar, help=text)
    add_optimiser(group)
    verb.add_argument(
        "--with",
        dest="extensions",
        type=Path,
        action="append",
        default=[],
        metavar="FILE.py",
        help="run this file first, which registers methods, attacks, .. of your own",
    )
    verb.add_argument(
        "--out", type=Path, metavar="DIR", help="default: results/experiments/NAME-MODEL"
    )
    verb.add_argument(
        "--json", type=Path, metavar="FILE", help="write the rows of an analysis to FILE as well"
    )
    verb.add_argument("--fresh", action="store_true", help="redo runs that are saved already")
    verb.set_defaults(run=_experiment, compiles=True)


def _experiment(options: argparse.Namespace) -> None:
    console = terminal.console()
    extensions = _extend(options.extensions)
    if options.list:
        _list(min(console.width, TABLE_WIDTH))
        return
    console.width = max(console.width, TABLE_WIDTH)

    from securemedian.laboratory import data, models, plots, report
    from securemedian.laboratory.experiments import catalogue

    experiment = catalogue.EXPERIMENTS.get(options.name)
    if experiment is None:
        raise ConfigError(
            f"no experiment: NAME; name one of {', '.join(catalogue.EXPERIMENTS)}. "
            "`securemedian experiment --list` describes them"
        )
    if options.json:
        if experiment.analysis is None:
            raise ConfigError(
                f"--json is for analyses, and this experiment is of runs: {experiment.name}; "
                "leave it out"
            )
        files.check_writable(options.json)
    plots.check()
    models.use_one_thread()
    chosen = {name: getattr(options, name) for name in (*CHOSEN, "secure")}
    chosen["optimiser"] = optimiser_from(given) if (given := optimiser_table(options)) else None
    usual = None if options.data else experiment.dataset
    images = data.load(options.data, options.dataset or usual)
    design = experiment.design(images, extensions, chosen)
    folder = options.out or Path("results", "experiments", design.stem(experiment.name))
    report.check_writable(folder / "runs" / "writable")
    unwind_on_sigterm()
    title = f"{experiment.figure}: {design.subject}"
    if experiment.analysis:
        title = f"{experiment.figure}, {len(design.seeds)} seeds"
        carried = _analysed(experiment, design, console)
        if options.json:
            report.write_json(options.json, carried[0]["results"])
    else:
        carried = _run(experiment, design, folder / "runs", options.fresh, console)
    summary, picture, table = carried
    # a split like dirichlet:0.3 has a dot, which begins no suffix
    stem = folder / design.stem(experiment.name)
    report.write_json(folder / f"{stem.name}.json", summary)
    drawn = plots.save(stem, title, picture)
    console.print(table)
    rest = "" if experiment.analysis else ", and runs/"
    console.print(f"in {folder}: {stem.name}.json, {drawn.name}{rest}")


def _extend(paths: Sequence[Path]) -> dict[str, str]:
    """Run the files that register something, and return their digests by file name.

    The digests become part of each run's id: a run with another version of a file is another run.
    """
    digests = {}
    for path in paths:
        try:
            digests[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        except OSError as error:
            raise InputError(
                f"cannot read the file: {path} ({error.strerror}); name one that you may read"
            ) from error
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"--with takes Python files: {path}; name one that ends in .py")
        module = importlib.util.module_from_spec(spec)
        # dataclasses look up the module that defines them
        sys.modules[path.stem] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise ConfigError(
                f"the file cannot be run: {path} ({type(error).__name__}: {error}); correct it"
            ) from error
    return digests


def _list(width: int) -> None:
    from securemedian.laboratory.attacks import ATTACKS
    from securemedian.laboratory.data import SOURCES
    from securemedian.laboratory.experiments import aggregation, catalogue
    from securemedian.laboratory.models import MODELS

    def show(text: str, indent: str) -> None:
        further = f"{indent}  "
        print(
            textwrap.fill(
                text,
                width,
                initial_indent=indent,
                subsequent_indent=further,
                break_on_hyphens=False,
            )
        )

    for one in catalogue.EXPERIMENTS.values():
        paper = f"{one.figure} of the paper" if one.figure.startswith("Figure") else "analysis"
        defaults = [one.defaults.get(name, one.default(name)) for name in FIELDS]
        # as a text: None is the data set's own model, or all methods or attacks there are
        shown = [
            ", ".join(value) if isinstance(value, tuple | list) else str(value or "any")
            for value in defaults
        ]
        data = f"--data {one.needs}" if one.needs else "no --data"
        show(f"{one.name}: {paper}, {data}, takes {one.duration}", "")
        show("; ".join(f"{name}: {value}" for name, value in zip(FIELDS, shown, strict=True)), "  ")
    for what, names in (
        ("methods", aggregation.names()),
        ("attacks", ATTACKS),
        ("models", MODELS),
        ("data sets", SOURCES),
    ):
        show(f"{what}: {', '.join(names)}", "")


def _analysed(experiment: "Experiment", design: "Design", console: "Console") -> Carried:
    from securemedian.laboratory import report
    from securemedian.laboratory.experiments import summaries

    with console.status(experiment.name):
        found = experiment.analysis.find(design)
    summary = summaries.summary(experiment, design, [], {}, report.command())
    picture = experiment.analysis.picture(design, found)
    return summary | {"results": found}, picture, summaries.rows(experiment.figure, found)


def _run(
    experiment: "Experiment", design: "Design", folder: Path, fresh: bool, console: "Console"
) -> Carried:
    from securemedian.laboratory import report
    from securemedian.laboratory.experiments import summaries
    from securemedian.laboratory.experiments.catalogue import CurveResult

    shape = experiment.shape
    curves = shape.curves(design)
    wanted = {run.run_id: run for curve in curves for run in curve.runs}
    records = _records(wanted, design, folder, fresh, console)

    def percent(run: "Run", shown: str) -> list[float]:
        accuracies = records[run.run_id].accuracies(design.rounds, design.data.classes, shown)
        return [100 * one for one in accuracies]

    results = [
        CurveResult(curve, [percent(run, curve.shown) for run in curve.runs]) for curve in curves
    ]
    summary = summaries.summary(experiment, design, results, records, report.command())
    table = summaries.table(summary)
    if shape.rows:
        table = summaries.rows(experiment.figure, shape.rows(results))
    return summary, shape.picture(design, results, shape.measured), table


def _records(
    wanted: "dict[str, Run]", design: "Design", folder: Path, fresh: bool, console: "Console"
) -> "dict[str, RunRecord]":
    """Return the records of all runs: those that are saved, and those that are carried out now."""
    from securemedian.laboratory.experiments import execution
    from securemedian.laboratory.experiments.execution import ExperimentServers
    from securemedian.laboratory.experiments.runs import RunRecord

    found = {} if fresh else {one: RunRecord.load(folder, run) for one, run in wanted.items()}
    done = {one: record for one, record in found.items() if record and record.covers(design.rounds)}
    if done:
        console.print(f"{len(done)} of {len(wanted)} runs are there already")
    missing = {one: run for one, run in wanted.items() if one not in done}
    columns = ("MofNCompleteColumn", "rounds", "TimeElapsedColumn", "remaining")
    bar = terminal.bar(
        "{task.description}",
        *(*columns, "TimeRemainingColumn"),
        console=console,
        # the remaining time is estimated from the rounds of the last so many seconds
        speed_estimate_period=7200.0,
    )
    task, line = bar.add_task("starting", total=len(missing) * design.rounds), ""

    def servers(status: "RoundStatus") -> None:
        now, total = status.progress
        share = f" {now / total:.0%}" if total else ""
        bar.update(task, description=f"{line}; servers: {status.phase or status.state}{share}")

    with bar, ExitStack() as stack:
        service = None
        if any(run.secure for run in missing.values()):
            service = stack.enter_context(ExperimentServers.here(design.clients, servers))
        for number, (one, run) in enumerate(missing.items()):
            title = f"run {len(done) + 1} of {len(wanted)}: {run.name}"

            def show(record: "RunRecord", title: str = title, number: int = number) -> None:
                nonlocal line
                rounds = record.rounds
                line = f"{title}: round {len(rounds) + 1} of {design.rounds}{_accuracy(record)}"
                completed = number * design.rounds + len(rounds)
                bar.update(task, completed=completed, description=line)

            record = execution.carry_out(run, design.rounds, design.data, service, show)
            record.save(folder, run)
            after = f", diverged after round {len(record.rounds)}" if record.diverged else ""
            seconds = sum(figures.seconds for figures in record.rounds)
            told = f"{title}{_accuracy(record)}{after}, {seconds:.0f} s"
            console.print(told, highlight=False)
            done[one] = record
    return done


def _accuracy(record: "RunRecord") -> str:
    return f", accuracy {record.rounds[-1].accuracy:.2%}" if record.rounds else ""
