"""The verb `demo`, which trains a real model on this machine and checks every result.

Both servers and several clients are processes of their own.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securemedian.clients import files
from securemedian.clients.flags import add_methods, add_range, range_table, round_table
from securemedian.common import terminal
from securemedian.laboratory.attacks import NO_ATTACK, SignFlip30
from securemedian.laboratory.data.hospitals import HEART, HOSPITALS
from securemedian.laboratory.processes import unwind_on_sigterm
from securemedian.laboratory.worker_options import (
    add_data_options,
    add_fault_options,
    fault,
    network,
)
from securemedian.mpc.errors import ConfigError, SecureMedianError
from securemedian.mpc.rounds.methods.bucketed import MALICIOUS
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.registry import policy_from

if TYPE_CHECKING:
    from rich.console import Console

    from securemedian.laboratory.training_run import Scenario


# Options that methods have here not: all clients weigh the same, S0 publishes the result to be
# compared, and `security` may stand without a method.
LEFT_OUT = "weights", "weight_cap", "result_to", "security", "audit"
# for all uploads of a round
ROUND_LIMIT_S = 300.0


def add_verbs(verbs: Any) -> None:
    verb = verbs.add_parser(
        "demo",
        description=(
            "Start S0, S1 and the clients' workers as processes here, train a model with secure "
            "medians, and compare every result with that in the clear. Four hospitals learn to "
            "recognise heart disease from their own patients; one is broken from round 3 on. On "
            "--dataset digits or --data DIR three clients train."
        ),
        usage="securemedian demo [OPTION ..] [METHOD [OPTION ..]]",
    )
    add_methods(verb, _add_options, leave_out=LEFT_OUT)
    verb.set_defaults(run=_demo)


def _add_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--clients",
        type=int,
        metavar="N",
        help="how many clients take part (default: the four hospitals, or 3 on images)",
    )
    verb.add_argument(
        "--rounds",
        type=int,
        default=8,
        metavar="T",
        help="how many rounds to train (default: %(default)s)",
    )
    verb.add_argument(
        "--security",
        choices=[MALICIOUS],
        metavar="WORD",
        help=f"{MALICIOUS}: of bucketed or zoom, and all parties",
    )
    add_range(verb)
    add_data_options(verb)
    add_fault_options(verb, fault=None)
    verb.add_argument(
        "--fault-clients",
        type=int,
        default=1,
        metavar="K",
        help="how many clients misbehave (default: %(default)s)",
    )
    verb.add_argument(
        "--baselines",
        action="store_true",
        help="also train with mean and median; hospitals always do",
    )
    verb.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw the accuracy round by round"
    )
    verb.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")


def _demo(options: argparse.Namespace) -> None:
    from securemedian.laboratory import models, plots
    from securemedian.laboratory.servers import new_folder
    from securemedian.laboratory.show import picture, summary
    from securemedian.operating.compiling import compile_all

    models.use_one_thread()
    for path in (options.json, options.plot):
        if path:
            files.check_writable(path)
    if options.plot:
        plots.check()
    _choose(options)
    scenario, console = _scenario(options), terminal.console()
    # once all that may be missing is there
    compile_all()
    unwind_on_sigterm()
    with new_folder("demo", "keys, updates and the logs of all processes") as directory:
        report = _run(scenario, options.rounds, options.baselines, directory, console)
    console.print(summary(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    if options.plot:
        print(f"drawn: {picture(report, options.plot)}")
    if not report["matches_plaintext"]:
        raise SecureMedianError(
            "some results differ from those computed in the clear: DIFFER above; this is a "
            "defect, please report it"
        )


def _choose(options: argparse.Namespace) -> None:
    """Set what was left open: the story of the hospitals, unless other data are named."""
    if options.data is None and options.dataset is None:
        options.dataset = HEART.name
    hospitals = options.dataset == HEART.name
    if options.clients is None:
        options.clients = len(HOSPITALS) if hospitals else 3
    if options.fault is None:
        options.fault = SignFlip30.name if hospitals else NO_ATTACK.name
    options.baselines = options.baselines or hospitals


def _scenario(options: argparse.Namespace) -> "Scenario":
    from securemedian.laboratory import data, models
    from securemedian.laboratory.training_run import Scenario

    if options.rounds < 1:
        raise ConfigError(f"invalid --rounds: {options.rounds}; give 1 or more")
    images = data.load(options.data, options.dataset)
    model = network(options, images)
    dim, given = models.start(model, options.seed).size, range_table(options)
    chosen = {"dim": dim, "max_clients": options.clients, "deadline_s": ROUND_LIMIT_S}
    return Scenario(
        data=images,
        directory=options.data,
        clients=options.clients,
        images=options.images,
        seed=options.seed,
        params=RoundParams.from_dict(round_table(options) | chosen),
        policy=policy_from(given) if given else None,
        fault=fault(options),
        faulty=options.fault_clients,
        model=model,
        split=options.split,
    )


def _run(
    scenario: "Scenario", rounds: int, baselines: bool, directory: Path, console: "Console"
) -> dict[str, Any]:
    from securemedian.laboratory import plaintext, training_run
    from securemedian.laboratory.show import DemoBoard

    curves = {}
    for name, combine in (
        {"mean": plaintext.mean, "median": plaintext.median}.items() if baselines else ()
    ):
        with console.status(f"training with the plain {name}, for comparison"):
            curves[name] = training_run.baseline(scenario, rounds, combine)
    with (
        DemoBoard(console, scenario, rounds, curves.get("mean")) as board,
        training_run.running(scenario, directory) as running,
    ):
        running.measure(board.watch)
        measured = []
        for _ in range(rounds):
            measured.append(running.run_round(board.watch))
            board.add(measured[-1])
    return _report(scenario, measured, curves)


def _report(
    scenario: "Scenario", rounds: list[dict[str, Any]], curves: dict[str, list[float]]
) -> dict[str, Any]:
    to_s1 = sum(one["bytes_s0_to_s1"] for one in rounds)
    to_s0 = sum(one["bytes_s1_to_s0"] for one in rounds)
    learnt = f"the result ({scenario.params.method.opened}), and nothing else"
    return {
        "settings": {
            "data": scenario.data.name,
            "clients": scenario.clients,
            "holders": list(scenario.data.holders),
            "images": len(scenario.trainer(0).labels),
            "seed": scenario.seed,
            "model": scenario.model.name,
            "split": scenario.split,
            "fault": scenario.fault.name,
            "fault_from": scenario.fault.first,
            "faulty": scenario.faulty,
            "params": scenario.params.to_dict(),
            "security": scenario.security,
            "range": (scenario.policy or policy_from({})).to_dict(),
        },
        "rounds": rounds,
        "final": {
            "secure": rounds[-1]["accuracy"],
            **{name: rounds[-1][name] for name in ("plain_mean", "plain_median")},
        },
        "matches_plaintext": all(one["matches_plaintext"] for one in rounds),
        "baselines": curves,
        "servers": {
            "s0": {"bytes_sent": to_s1, "bytes_received": to_s0, "learnt": learnt},
            "s1": {"bytes_sent": to_s0, "bytes_received": to_s1, "learnt": learnt},
        },
    }
