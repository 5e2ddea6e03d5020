"""The coordinator's verbs; what they need is imported when they run, not for --help."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securemedian.clients import files
from securemedian.clients.cli import add_receipt, kept_at_servers, say_result, tell
from securemedian.clients.flags import (
    add_cohort,
    add_methods,
    add_optimiser,
    add_public,
    add_range,
    optimiser_table,
    range_table,
    round_table,
)
from securemedian.common import terminal
from securemedian.common.terminal import Paragraphs
from securemedian.mpc.errors import UnknownRound

if TYPE_CHECKING:
    from rich.table import Table

    from securemedian.common.status import RoundStatus
    from securemedian.coordinator.coordinator import Coordinator
    from securemedian.coordinator.round_plan import RoundPlan

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]


# `round open` warns of a round of fewer clients
FEW_CLIENTS = 5
# the words of `round status` for the parts of a cost, which are those of S0
_COST = {
    "seconds": "s in the run",
    "ahead_seconds": "s ahead",
    "checking_seconds": "s to check uploads",
    "ots": "OTs",
    "bytes_sent": "bytes to S1",
    "bytes_received": "bytes from S1",
    "rounds": "rounds of messages",
}


def add_verbs(subparsers: "Verbs") -> None:
    _add_round(subparsers)
    _add_coordinate(subparsers)
    _add_dashboard(subparsers)


def _add_round(subparsers: "Verbs") -> None:
    verb = subparsers.add_parser(
        "round",
        description="Open, watch and end rounds, as the coordinator.",
    )
    actions = verb.add_subparsers(required=True, metavar="ACTION")
    _add_open(actions)
    for name, act, summary in (
        ("status", _status, "print a round's state, clients and cost"),
        ("metrics", _metrics, "print the public metrics that clients have sent, as JSON"),
        ("close", _close, "close a round now and compute with the complete uploads"),
        ("abort", _abort, "fail a round on purpose"),
        ("result", _result, "wait for a round's result and write it"),
    ):
        action = actions.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        action.add_argument("config", metavar="CONFIG", help="coordinator.toml")
        add_cohort(action)
        action.add_argument(
            "--round", default="", metavar="ID", help="name a round (default: the latest)"
        )
        action.set_defaults(run=_as_coordinator(act))
        if name == "abort":
            action.add_argument(
                "--reason",
                default="aborted by the coordinator",
                help="the reason that everybody is told (default: %(default)s)",
            )
        elif name == "status":
            action.add_argument(
                "--json",
                action="store_true",
                help="print JSON on a terminal, too, as into a pipe or a file",
            )
        elif name == "result":
            action.add_argument(
                "result",
                type=Path,
                metavar="FILE",
                help="the .npy file to write: the model as one float32 vector, or one row per rank "
                "or group",
            )
            add_receipt(action)


def _add_open(actions: "Verbs") -> None:
    action = actions.add_parser(
        "open",
        help="open a round",
        description="Open a round and print its id. Options that you omit keep their defaults.",
        usage="securemedian round open CONFIG [OPTION ..] [METHOD [OPTION ..]]",
    )
    action.add_argument("config", metavar="CONFIG", help="coordinator.toml")
    add_methods(action, _add_round_options)
    action.set_defaults(run=_open)


def _add_round_options(action: argparse.ArgumentParser) -> None:
    add_cohort(action)
    action.add_argument(
        "--params",
        type=Path,
        metavar="FILE.toml",
        help="read the round from a file: [round], [range], [optimiser], participants, model and "
        "public as in docs/samples/run.toml; flags replace what it says",
    )
    action.add_argument(
        "--model",
        type=Path,
        metavar="FILE",
        help="start a new run from this model (default: go on with the last run). All clients' "
        "models must have the names and shapes of an .npz or .safetensors; a flat .npy has a row "
        "per group",
    )
    action.add_argument(
        "--reset", action="store_true", help="start a new run from the model that S0 has"
    )
    action.add_argument(
        "--release",
        action="store_true",
        help="let others take part than in a failed attempt that may have opened values",
    )
    action.add_argument(
        "--keep-range",
        action="store_true",
        help="go on with the last run, its range and its number, from --model",
    )
    action.add_argument(
        "--dim", type=int, metavar="D", help="values of an update (default: those of the model)"
    )
    action.add_argument(
        "--max-clients",
        type=int,
        metavar="N",
        help="close the round when so many uploads are complete",
    )
    action.add_argument(
        "--min-clients",
        type=int,
        metavar="N",
        help="the servers refuse to compute with fewer (default: 2)",
    )
    action.add_argument(
        "--deadline-s",
        type=float,
        metavar="SECONDS",
        help="close the round after so long (default: 600)",
    )
    action.add_argument(
        "--participants",
        type=lambda text: text.split(","),
        metavar="NAME,..",
        help="only these clients take part (default: all)",
    )
    add_public(action)
    action.add_argument("--classes", type=int, metavar="C", help="classes of a prediction")
    add_range(action)
    add_optimiser(action)


def _as_coordinator(
    act: Callable[["Coordinator", argparse.Namespace], None],
) -> Callable[[argparse.Namespace], None]:
    """Return a function that connects as the coordinator of `options.config`, and then acts."""

    def run(options: argparse.Namespace) -> None:
        from securemedian.coordinator.coordinator import Coordinator

        with Coordinator.from_config(options.config, options.cohort, report=tell) as coordinator:
            act(coordinator, options)

    return run


def _open(options: argparse.Namespace) -> None:
    """Open a round. Mistakes in its options are reported before anything connects."""
    plan = _plan(options)
    plan.asked()

    def act(coordinator: "Coordinator", _: argparse.Namespace) -> None:
        given = plan.asked(lambda: coordinator.dim())
        asked = given["params"]
        round_id = coordinator.open_round(
            reset=options.reset, keep_range=options.keep_range, release=options.release, **given
        )
        if taken := asked.value_range:
            tell(f"{asked.method.name} takes {taken}: clients refuse to send others")
        most = min(asked.max_clients, len(plan.participants) or asked.max_clients)
        if most < FEW_CLIENTS:
            tell(
                f"warning: the result of at most {most} clients tells "
                f"much about single updates: take {FEW_CLIENTS} or more where you can"
            )
        print(round_id)

    _as_coordinator(act)(options)


def _plan(options: argparse.Namespace) -> "RoundPlan":
    """Return the round that the file and the flags describe, which replace what the file says."""
    from securemedian.coordinator.round_plan import RoundPlan

    plan = RoundPlan.load(options.params) if options.params else RoundPlan()
    given = {
        "range": range_table(options),
        "optimiser": optimiser_table(options),
        "participants": options.participants,
        "model": str(options.model or ""),
        "public": str(options.public or ""),
    }
    return replace(
        plan,
        round=plan.round | round_table(options),
        **{name: value for name, value in given.items() if value},
    )


def _status(coordinator: "Coordinator", options: argparse.Namespace) -> None:
    status = coordinator.status(options.round)
    if options.json or not sys.stdout.isatty():
        print(json.dumps(status.to_dict(), indent=2))
    else:
        terminal.console().print(_table(status))


def _table(status: "RoundStatus") -> "Table":
    """Return what a person asks of a round: a line per fact that there is, and per client."""
    from rich.table import Table

    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    if not status.round:
        made.add_row("round", f"cohort {status.cohort} has had none")
    done, total = status.progress
    left_s = f"{status.deadline_in_s:,.0f} s" if status.state == "open" else ""
    cost, options = status.cost, dict(status.params)
    method, dim = options.pop("method", ""), options.pop("dim", "")
    least, most = options.pop("min_clients", ""), options.pop("max_clients", "")
    facts = {
        "round": status.round,
        "number, cohort": f"{status.number}, {status.cohort}" if status.round else "",
        "state": status.state,
        "reason": status.reason,
        "votes": status.of_levels,
        "deadline in": left_s,
        "method": method,
        "coordinates": _short(dim),
        "clients": f"{least} to {most}" if most else "",
        # by the names of flags and files; empty ones say nothing
        "options": ", ".join(f"{key} {_short(one)}" for key, one in options.items() if one),
        "opened": status.opened,
        "runs, and left": f"{status.attempt}, {status.attempts_left}" if status.round else "",
        "at work": f"{status.phase} {done:,} of {total:,}" if status.phase else "",
        "cost": ", ".join(f"{_short(cost[key])} {it}" for key, it in _COST.items() if key in cost),
        "servers": "connected" if status.peer_linked else status.peer_problem,
    }
    for name, value in facts.items():
        if value:
            made.add_row(name, value)
    for name, where in status.clients.items():
        dealt = f", dealing at {status.dealt[name]}" if name in status.dealt else ""
        out = f"; left out: {status.left_out[name]}" if name in status.left_out else ""
        made.add_row(f"client {name}", f"upload at {where}{dealt}{out}")
    return made


def _short(value: Any) -> str:
    if type(value) is float:
        return f"{value:.3g}"
    return f"{value:,}" if type(value) is int else str(value)


def _metrics(coordinator: "Coordinator", options: argparse.Namespace) -> None:
    print(json.dumps(coordinator.public_metrics(_round(coordinator, options)), indent=2))


def _close(coordinator: "Coordinator", options: argparse.Namespace) -> None:
    round_id = _round(coordinator, options)
    coordinator.close_round(round_id)
    tell(f"round {round_id} is closed: `securemedian round result` waits for its result")


def _abort(coordinator: "Coordinator", options: argparse.Namespace) -> None:
    round_id = _round(coordinator, options)
    coordinator.abort_round(round_id, options.reason)
    tell(f"round {round_id} is aborted, without a result")


def _result(coordinator: "Coordinator", options: argparse.Namespace) -> None:
    for path in (options.result, options.receipt):
        if path:
            files.check_writable(path)
    round_id = _round(coordinator, options)
    results = coordinator.results(round_id)
    with kept_at_servers(round_id):
        files.write(options.result, results if len(results) > 1 else results[0])
        say_result(coordinator, round_id, options)


def _round(coordinator: "Coordinator", options: argparse.Namespace) -> str:
    round_id = options.round or coordinator.status().round
    if not round_id:
        raise UnknownRound("no round so far: S0 has none; open one with `securemedian round open`")
    return round_id


_COORDINATE = """Lead a run unattended, from its first round to its last: open each round, close
it with its quorum, try failed ones again, and write the results. RUN.toml is the plan
(docs/samples/run.toml). The folder that it names gets, for each published round,
receipt-NUMBER.json and model-NUMBER.npy, the model that the next round starts from. With an
optimiser or several ranks it also gets result-NUMBER.npy. rounds.jsonl has a line per attempt at a
round.

The same command goes on with a run that was interrupted, also with a round that is still
open."""


def _add_coordinate(subparsers: "Verbs") -> None:
    verb = subparsers.add_parser(
        "coordinate",
        description=_COORDINATE,
        formatter_class=Paragraphs,
    )
    verb.add_argument("plan", type=Path, metavar="RUN.toml", help="the plan of the run")
    verb.add_argument(
        "--evaluate",
        metavar="MODULE:FUNCTION",
        help=(
            "call this function of yours with each new model, a flat float32 vector: it returns a "
            "number or numbers by name, which go into rounds.jsonl"
        ),
    )
    verb.set_defaults(run=_coordinate)


def _coordinate(options: argparse.Namespace) -> None:
    from securemedian.coordinator.coordinator import Coordinator
    from securemedian.coordinator.unattended import RunPlan, UnattendedRun

    plan = RunPlan.load(options.plan)
    if options.evaluate:
        plan = replace(plan, evaluate=options.evaluate)
    with (
        Coordinator.from_config(plan.coordinator, plan.cohort) as coordinator,
        _narration() as (report, show),
        closing(UnattendedRun(plan, coordinator, report, show)) as run,
    ):
        run.run()


def _add_dashboard(subparsers: "Verbs") -> None:
    verb = subparsers.add_parser(
        "dashboard",
        description=(
            "Show in a browser what the two servers do: the round under way, who is in it, what "
            "rounds cost. It asks them with the coordinator's key, together once a second however "
            "many look, and can change nothing."
        ),
    )
    verb.add_argument("config", metavar="CONFIG", help="coordinator.toml")
    verb.add_argument(
        "--listen",
        default="127.0.0.1:8080",
        metavar="HOST:PORT",
        help="listen there for browsers (default: %(default)s, for this machine alone)",
    )
    verb.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name under which browsers ask for it, besides its address; once per name",
    )
    add_cohort(verb)
    verb.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="the `output` of `securemedian coordinate`: its earlier rounds, and what it measured",
    )
    verb.set_defaults(run=_dashboard)


def _dashboard(options: argparse.Namespace) -> None:
    from securemedian.clients.config import ClientConfig
    from securemedian.coordinator.dashboard.app import serve

    serve(
        ClientConfig.load(options.config, options.cohort),
        options.listen,
        options.host,
        options.output,
        lambda text: print(text, file=sys.stderr, flush=True),
    )


@contextmanager
def _narration() -> Iterator[tuple[Callable[[str], object], Callable[[str], object]]]:
    """Yield what prints a line, and what shows the state of things in place, on a terminal."""
    from rich.text import Text

    console = terminal.console(stderr=True)
    if not console.is_terminal:
        yield lambda text: print(text, flush=True), lambda text: None
        return
    with console.status("") as status:
        yield lambda text: console.print(Text(text)), lambda text: status.update(Text(text))
