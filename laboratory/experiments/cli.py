"""The verb `experiment`, which reproduces the paper's figures and compares methods, by name."""

import argparse
import hashlib
import importlib.util
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securemedian.clients.flags import add_optimiser, optimiser
from securemedian.laboratory.processes import unwind_on_sigterm
from securemedian.mpc.errors import ConfigError, InputError

if TYPE_CHECKING:
    from rich.console import Console

    from securemedian.laboratory.experiments.catalogue import Design, Experiment
    from securemedian.laboratory.experiments.progress import ExperimentBoard
    from securemedian.laboratory.experiments.runs import Run, RunRecord

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

# the options that replace an experiment's defaults
CHOSEN = (
    "model",
    "split",
    "clients",
    "images",
    "rounds",
    "seeds",
    "methods",
    "attacks",
    "attackers",
    "first",
    "rate",
    "epochs",
    "test_images",
    "samples",
    "warm_up",
    "groups",
    "dims",
)
# columns; a narrower terminal folds the lines, which reads better than figures that are cut off
TABLE_WIDTH = 120


def add_verbs(verbs: "Verbs") -> None:
    """Add `experiment` to the `securemedian` command."""
    verb = verbs.add_parser(
        "experiment",
        help="reproduce the paper's figures, and compare methods under attack",
        description=(
            "Train with several ways to combine updates, through the real S0 and S1 or in the "
            "clear, and plot the test accuracy. Every finished run and round is saved: after an "
            "interruption, the same command goes on where it was."
        ),
    )
    verb.add_argument("name", nargs="?", metavar="NAME", help="the experiment: see --list")
    verb.add_argument(
        "--list",
        action="store_true",
        help="list the experiments, methods, attacks and models to choose from",
    )
    verb.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="the folder of MNIST or CIFAR-10 (default: scikit-learn's 8x8 digits)",
    )
    verb.add_argument(
        "--dataset",
        metavar="NAME",
        help="the data set, by its name in --list; digits and clinic need no files (default: "
        "recognised by the files in DIR)",
    )
    how = verb.add_mutually_exclusive_group()
    how.add_argument(
        "--secure",
        action="store_true",
        default=None,
        help="compute the medians with S0 and S1 (default, but not of ranges)",
    )
    how.add_argument(
        "--plain",
        dest="secure",
        action="store_false",
        help="compute the same medians in the clear, equal bit by bit: for sweeps",
    )
    verb.add_argument("--rounds", type=int, metavar="T", help="how many rounds to train")
    verb.add_argument("--images", type=int, metavar="N", help="training images per client")
    verb.add_argument(
        "--seeds",
        type=_list_of(int),
        metavar="S,..",
        help="seeds of start model, split and training, with one run per seed",
    )
    verb.add_argument("--clients", type=int, metavar="N", help="how many clients take part")
    verb.add_argument(
        "--methods", type=_list_of(str), metavar="M,..", help="ways to combine updates"
    )
    verb.add_argument(
        "--attacks", "--faults", type=_list_of(str), metavar="A,..", help="what attackers do"
    )
    verb.add_argument("--attackers", type=int, metavar="F", help="how many clients attack")
    verb.add_argument(
        "--from", dest="first", type=int, metavar="T", help="the first round of the attack"
    )
    verb.add_argument(
        "--model", metavar="NAME", help="the network (default: the figure's, or the data set's)"
    )
    verb.add_argument(
        "--rate", type=float, metavar="R", help="clients' learning rate (default: the network's)"
    )
    verb.add_argument(
        "--epochs",
        type=int,
        metavar="N",
        help="clients' epochs per round (default: the network's)",
    )
    verb.add_argument(
        "--test-images",
        type=int,
        metavar="N",
        help="test on so many of the test images, drawn at random (default: all)",
    )
    verb.add_argument(
        "--split",
        metavar="HOW",
        help="iid (default), blocks, dirichlet:ALPHA, or labels:C for C labels per client",
    )
    verb.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help="where predictions are exchanged: the public images (default: the experiment's)",
    )
    verb.add_argument(
        "--warm-up",
        type=int,
        metavar="N",
        help="and for how many rounds clients train alone before their first ones (default: 5)",
    )
    verb.add_argument(
        "--groups",
        type=_list_of(int),
        metavar="K,..",
        help="where clients are in groups: how many (default: the experiment's)",
    )
    verb.add_argument(
        "--dims",
        type=_list_of(int),
        metavar="D,..",
        help="and of which dimensions their models are (default: the experiment's)",
    )
    verb.add_argument(
        "--with",
        dest="extensions",
        type=Path,
        action="append",
        default=[],
        metavar="FILE.py",
        help="run this file first, which registers methods, attacks, models or data sets of your "
        "own (docs/extending.md)",
    )
    verb.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where results are saved (default: results/experiments/NAME-MODEL)",
    )
    verb.add_argument("--fresh", action="store_true", help="redo runs that are saved already")
    add_optimiser(verb)
    verb.set_defaults(run=_experiment)


def _list_of(kind: type[int] | type[str]) -> Callable[[str], list[Any]]:
    def parse(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",")]

    # argparse shows this name in its error message
    parse.__name__ = f"list of {kind.__name__}"
    return parse


def _experiment(options: argparse.Namespace) -> None:
    from rich.console import Console

    console = Console()
    console.width = max(console.width, TABLE_WIDTH)
    extensions = _extend(options.extensions)
    if options.list:
        _list(console)
        return

    from securemedian.laboratory import data, models, plots
    from securemedian.laboratory.experiments import catalogue, saved

    experiment = catalogue.EXPERIMENTS.get(options.name)
    if experiment is None:
        raise ConfigError(
            f"name an experiment: {', '.join(catalogue.EXPERIMENTS)}. "
            "`securemedian experiment --list` describes them"
        )
    plots.check()
    models.use_one_thread()
    chosen = {name: getattr(options, name) for name in (*CHOSEN, "secure")}
    chosen["optimiser"] = optimiser(options)
    design = catalogue.design(
        experiment, data.load(options.data, options.dataset), extensions, chosen
    )
    folder = options.out or Path("results", "experiments", design.stem(experiment))
    saved.prepare(folder / "runs")
    unwind_on_sigterm()
    if experiment.analysis:
        _analyse(experiment, design, folder, console)
    else:
        _run(experiment, design, folder, options.fresh, console)


def _extend(paths: Sequence[Path]) -> dict[str, str]:
    """Run the files that register something, and return their digests by file name.

    The digests become part of each run's id: a run with another version of a file is another run.
    """
    digests = {}
    for path in paths:
        try:
            digests[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"--with takes Python files, whose names end in .py, not {path}")
        module = importlib.util.module_from_spec(spec)
        # dataclasses look up the module that defines them
        sys.modules[path.stem] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise ConfigError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    return digests


def _list(console: "Console") -> None:
    from rich.table import Table

    from securemedian.laboratory.attacks import ATTACKS
    from securemedian.laboratory.data import SOURCES
    from securemedian.laboratory.experiments import aggregation, catalogue
    from securemedian.laboratory.models import MODELS

    table = Table(title="experiments")
    for heading in (
        "name",
        "of the paper",
        "--data",
        "network",
        "clients",
        "rounds",
        "methods",
        "attacks",
        "takes",
    ):
        table.add_column(heading, no_wrap=heading == "name")
    for one in catalogue.EXPERIMENTS.values():
        table.add_row(
            one.name,
            one.figure if one.figure.startswith("Figure") else "-",
            one.needs,
            one.model or "the data's",
            str(one.clients),
            str(one.rounds),
            ", ".join(one.methods or ["all"]),
            ", ".join(one.attacks or ["all"]),
            one.duration,
        )
    console.print(table)
    for what, names in (
        ("methods", aggregation.names()),
        ("attacks", ATTACKS),
        ("models", MODELS),
        ("data sets", SOURCES),
    ):
        console.print(f"{what}: {', '.join(names)}")


def _analyse(experiment: "Experiment", design: "Design", folder: Path, console: "Console") -> None:
    """Carry out an analysis, then save, draw and print what it finds."""
    from securemedian.laboratory.experiments import saved, summaries

    assert experiment.analysis is not None
    with console.status(experiment.name):
        found = experiment.analysis.find(design)
    summary = summaries.summary(experiment, design, [], {}, _command()) | {"results": found}
    stem = folder / design.stem(experiment)
    saved.write_json(folder / f"{stem.name}.json", summary)
    path = experiment.analysis.draw(stem, experiment.figure, design, found)
    console.print(summaries.rows(experiment.figure, found))
    console.print(f"in {folder}: {stem.name}.json, {path.name}")


def _command() -> str:
    return shlex.join(["securemedian", *sys.argv[1:]])


def _run(
    experiment: "Experiment", design: "Design", folder: Path, fresh: bool, console: "Console"
) -> None:
    """Carry out all runs, then save, draw and print the results."""
    from securemedian.laboratory.experiments import saved, summaries
    from securemedian.laboratory.experiments.catalogue import CurveResult
    from securemedian.laboratory.experiments.progress import ExperimentBoard

    curves = experiment.curves(design)
    runs = {run.run_id: run for curve in curves for run in curve.runs}
    if fresh:
        for run in runs.values():
            saved.forget(folder / "runs", run)
    records = _records(
        runs, design, folder / "runs", ExperimentBoard(console, len(runs), design.rounds)
    )
    results = [
        CurveResult(
            curve,
            [
                [
                    100 * one
                    for one in records[run.run_id].accuracies(
                        design.rounds, design.data.classes, curve.shown
                    )
                ]
                for run in curve.runs
            ],
        )
        for curve in curves
    ]
    summary = summaries.summary(experiment, design, results, records, _command())
    stem = folder / design.stem(experiment)
    # a split like dirichlet:0.3 has a dot, which is no suffix
    saved.write_json(folder / f"{stem.name}.json", summary)
    path = experiment.draw(stem, experiment.figure, design, results)
    console.print(summaries.table(summary))
    console.print(f"in {folder}: {stem.name}.json, {path.name}, and runs/")


def _records(
    runs: "dict[str, Run]", design: "Design", folder: Path, board: "ExperimentBoard"
) -> "dict[str, RunRecord]":
    """Carry out the runs that are missing, and return the records of all."""
    from securemedian.laboratory.experiments import execution, saved
    from securemedian.laboratory.experiments.service import ExperimentServers

    done = {
        run_id: record
        for run_id, run in runs.items()
        if (record := saved.load(folder, run)) and record.covers(design.rounds)
    }
    missing = {run_id: run for run_id, run in runs.items() if run_id not in done}
    with board, ExitStack() as stack:
        board.found(done)
        service = None
        if any(run.secure for run in missing.values()):
            service = stack.enter_context(ExperimentServers(design.clients, board.servers))
        for run_id, run in missing.items():
            board.begin(run)
            done[run_id] = execution.carry_out(
                run, design.rounds, design.data, service, folder, board.advance
            )
            board.finished(done[run_id])
    return done
