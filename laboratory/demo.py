"""The verb `demo`: both servers and several clients train a real model on this machine, and every
result is checked.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securemedian.clients import files
from securemedian.clients.options import (
    add_method,
    add_method_options,
    add_range_options,
    range_policy,
    round_params,
)
from securemedian.laboratory.options import (
    add_data_options,
    add_fault_options,
    fault,
    network,
)
from securemedian.mpc.errors import ConfigError, SecureMedianError
from securemedian.mpc.ranges.registry import policy_from

if TYPE_CHECKING:
    from rich.console import Console

    from securemedian.laboratory.training_run import Figures, Scenario

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

ROUND_LIMIT_S = 300.0  # for all uploads of a round


def add_verbs(verbs: "Verbs") -> None:
    """Add `demo` to the `securemedian` command."""
    verb = verbs.add_parser(
        "demo",
        help="see all of it at work on this machine",
        description=(
            "Start S0, S1 and the clients' workers as separate processes on this machine, train a model with secure "
            "medians, and compare every result with the same computation in the clear. Trains on MNIST or CIFAR-10 "
            "with --data, else on scikit-learn's 8x8 digits."
        ),
    )
    verb.add_argument("--clients", type=int, default=3, metavar="N", help="(default: %(default)s)")
    verb.add_argument("--rounds", type=int, default=8, metavar="T", help="(default: %(default)s)")
    add_method(verb)
    # the demo compares the servers' result with that of clients who weigh the same
    add_method_options(verb, leave_out=("weights", "weight_cap", "result_to"))
    add_range_options(verb)
    add_data_options(verb)
    add_fault_options(verb)
    verb.add_argument(
        "--faulty",
        type=int,
        default=1,
        metavar="K",
        help="how many clients misbehave (default: %(default)s)",
    )
    verb.add_argument(
        "--baselines",
        action="store_true",
        help="train the plain mean and the plain median on trajectories of their own, too",
    )
    verb.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    verb.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> None:
    from rich.console import Console

    from securemedian.laboratory import models
    from securemedian.laboratory.show import summary

    models.use_one_thread()
    if options.json:
        files.check_writable(options.json)
    plan, console = _plan(options), Console()
    # unwinds, so that the processes started here are ended then, too
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    directory = Path(tempfile.mkdtemp(prefix="securemedian-demo-"))
    try:
        report = _run(plan, options.rounds, options.baselines, directory, console)
    except BaseException:
        print(
            f"keys, updates and the logs of all processes are left in {directory}", file=sys.stderr
        )
        raise
    shutil.rmtree(directory)
    console.print(summary(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if not report["matches_plaintext"]:
        raise SecureMedianError(
            "some results DIFFER from the ones computed in the clear: this is a defect, please report it"
        )


def _plan(options: argparse.Namespace) -> "Scenario":
    from securemedian.laboratory import data, models
    from securemedian.laboratory.training_run import Scenario

    if options.rounds < 1:
        raise ConfigError(f"--rounds must be 1 or more, not {options.rounds}")
    images = data.load(options.data)
    model = network(options, images)
    dim = models.start(model, options.seed).size
    return Scenario(
        data=images,
        directory=options.data,
        clients=options.clients,
        images=options.images,
        seed=options.seed,
        params=round_params(
            options, dim=dim, max_clients=options.clients, deadline_s=ROUND_LIMIT_S
        ),
        range=range_policy(options),
        fault=fault(options),
        faulty=options.faulty,
        model=model,
        split=options.split,
    )


def _run(
    plan: "Scenario", rounds: int, baselines: bool, directory: Path, console: "Console"
) -> dict[str, Any]:
    """All rounds and, if wanted, the baselines."""
    from securemedian.laboratory import plaintext, training_run
    from securemedian.laboratory.show import Board

    with Board(console, plan, rounds) as board, training_run.running(plan, directory) as running:
        figures = []
        for _ in range(rounds):
            figures.append(running.round(board.watch))
            board.add(figures[-1])
    curves = {}
    for name, combine in (
        {"mean": plaintext.mean, "median": plaintext.median}.items() if baselines else ()
    ):
        with console.status(f"training with the plain {name}, for comparison"):
            curves[name] = training_run.baseline(plan, rounds, combine)
    return _report(plan, figures, curves)


def _report(
    plan: "Scenario", figures: "list[Figures]", curves: dict[str, list[float]]
) -> dict[str, Any]:
    """Everything measured, as the JSON has it."""
    last = figures[-1]
    to_s1, to_s0 = sum(f.bytes_s0_to_s1 for f in figures), sum(f.bytes_s1_to_s0 for f in figures)
    learnt = f"the result ({plan.params.method.opened}), and nothing else"
    return {
        "settings": {
            "data": plan.data.name,
            "clients": plan.clients,
            "images": len(plan.trainer(0).labels),
            "seed": plan.seed,
            "model": plan.model.name,
            "split": plan.split,
            "fault": plan.fault.name,
            "fault_from": plan.fault.first,
            "faulty": plan.faulty,
            "params": plan.params.to_dict(),
            "range": (plan.range or policy_from({})).to_dict(),
        },
        "rounds": [asdict(f) for f in figures],
        "final": {
            "secure": last.accuracy,
            "plain_mean": last.plain_mean,
            "plain_median": last.plain_median,
        },
        "matches_plaintext": all(f.matches_plaintext for f in figures),
        "baselines": curves,
        "servers": {
            "s0": {"bytes_sent": to_s1, "bytes_received": to_s0, "learnt": learnt},
            "s1": {"bytes_sent": to_s0, "bytes_received": to_s1, "learnt": learnt},
        },
    }
