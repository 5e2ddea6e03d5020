"""The verbs `submit` and `round`. What a verb needs is imported when it runs: --help needs nothing."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securemedian.clients import files
from securemedian.mpc.errors import ConfigError, UnknownRound
from securemedian.mpc.params import (
    ENCODINGS,
    METHODS,
    RANGE_POLICIES,
    RESULTS,
    SCHEDULES,
    SELECTIONS,
    RangePolicy,
    RoundParams,
)

if TYPE_CHECKING:
    from securemedian.clients.client import Coordinator

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]


def add_verbs(subparsers: "Verbs") -> None:
    """Add this package's verbs to the `securemedian` command."""
    _add_submit(subparsers)
    _add_round(subparsers)


def add_round_options(parser: argparse.ArgumentParser) -> None:
    """What a round computes, as far as the demo lets it be chosen too."""
    parser.add_argument(
        "--method",
        choices=METHODS,
        default="bucketed",
        help="bucketed (default): cheapest, to within a bucket; radix: exact, linear in the clients; "
        "pairwise: exact, quadratic; trimmed-mean: the mean without the extremes, quadratic",
    )
    parser.add_argument(
        "--buckets",
        type=int,
        metavar="B",
        help="bucketed, radix on buckets: buckets a coordinate (default: 8)",
    )
    parser.add_argument(
        "--encoding",
        choices=ENCODINGS,
        help="radix only: float32 (default) or bfloat16 over their whole range, fixed point, or bucket indices",
    )
    parser.add_argument(
        "--trim",
        type=float,
        metavar="BETA",
        help="trimmed-mean only: floor(BETA n) of the n clients are dropped at either end, which is nobody where n is "
        "below 1/BETA (default: 0.1)",
    )
    parser.add_argument(
        "--range",
        choices=RANGE_POLICIES,
        help="how the bucket range follows the model (default: coordinate)",
    )
    parser.add_argument(
        "--range-initial", type=float, metavar="P0", help="the first bucket range (default: 0.1)"
    )
    parser.add_argument(
        "--range-decay",
        type=float,
        metavar="P1",
        help="P1/t is added to the range after round t (default: 0.1)",
    )


def range_policy(options: argparse.Namespace) -> RangePolicy | None:
    """The range policy that the options name; None if they name nothing."""
    chosen = {
        "policy": options.range,
        "initial": options.range_initial,
        "decay": options.range_decay,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    return RangePolicy(**given) if given else None


def round_params(options: argparse.Namespace, **others: Any) -> RoundParams:
    """RoundParams from `others` and the options of the same names; what is not given keeps its default."""
    named = {f.name: getattr(options, f.name, None) for f in fields(RoundParams)} | others
    return RoundParams(**{name: value for name, value in named.items() if value is not None})


def _add_submit(subparsers: "Verbs") -> None:
    verb = subparsers.add_parser(
        "submit",
        help="submit one update from a file",
        description="Wait for the next open round and submit the trained parameters in a .npy or .npz file.",
    )
    verb.add_argument("config", help="this client's client.toml")
    verb.add_argument("update", type=Path, help="the trained parameters: .npy or .npz")
    verb.add_argument(
        "--result",
        type=Path,
        metavar="FILE",
        help="wait for the median and write it in the same form",
    )
    verb.set_defaults(run=_submit)


def _submit(options: argparse.Namespace) -> None:
    from securemedian.clients.client import Client

    update = files.read(options.update)
    if options.result:
        files.check_writable(options.result)
    with Client.from_config(options.config) as client:
        print("waiting for a round to open ...", file=sys.stderr, flush=True)
        round = client.wait_for_round()
        client.submit(update)
        print(f"submitted to round {round.id}")
        if options.result:
            files.write(options.result, client.result())
            print(f"result in {options.result}")


def _add_round(subparsers: "Verbs") -> None:
    verb = subparsers.add_parser(
        "round",
        help="open, watch and end rounds (coordinator)",
        description="What the coordinator does with rounds.",
    )
    actions = verb.add_subparsers(required=True, metavar="ACTION")
    _add_open(actions)
    for name, act, help in (
        ("status", _status, "print a round's state, clients and cost as JSON"),
        ("close", _close, "close a round now and compute with the clients that are complete"),
        ("abort", _abort, "fail a round on purpose"),
        ("result", _result, "wait for a round's result and write it"),
    ):
        action = actions.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        action.add_argument("config", help="coordinator.toml")
        action.add_argument("--round", default="", metavar="ID", help="which (default: the latest)")
        action.set_defaults(run=_as_coordinator(act))
        if name == "abort":
            action.add_argument(
                "--reason",
                default="aborted by the coordinator",
                help="told to everybody (default: %(default)s)",
            )
        elif name == "result":
            action.add_argument(
                "file",
                type=Path,
                help="the .npy file to write: the model as one float32 vector, or a row a rank",
            )


def _add_open(actions: "Verbs") -> None:
    action = actions.add_parser(
        "open",
        help="open a round",
        description="Open a round and print its id. Options not given keep their defaults.",
    )
    action.add_argument("config", help="coordinator.toml")
    action.add_argument(
        "--model",
        type=Path,
        metavar="FILE.npy",
        help="start a new training run from this flat model (default: go on with the last)",
    )
    action.add_argument(
        "--reset", action="store_true", help="start a new training run from the model that S0 has"
    )
    action.add_argument("--dim", type=int, help="values of an update (default: the model's)")
    action.add_argument(
        "--max-clients",
        type=int,
        required=True,
        help="the round closes by itself when this many are complete",
    )
    action.add_argument(
        "--min-clients", type=int, help="the servers refuse to compute with fewer (default: 2)"
    )
    action.add_argument(
        "--deadline-s",
        type=float,
        metavar="SECONDS",
        help="when the round closes at the latest (default: 600)",
    )
    add_round_options(action)
    action.add_argument(
        "--schedule",
        choices=SCHEDULES,
        help="bucketed only: all thresholds at once, or fewer one after another (default: scan)",
    )
    action.add_argument(
        "--ring-bits",
        type=int,
        help="bits of a shared value (default: bucketed, the fewest that count; pairwise, 64)",
    )
    action.add_argument(
        "--fraction-bits", type=int, help="of the fixed point, where it is used (default: 24)"
    )
    action.add_argument(
        "--word-bits",
        type=int,
        metavar="W",
        help="radix on fixed point: bits of a word (default: 32)",
    )
    action.add_argument(
        "--ranks",
        type=_list_of(int),
        metavar="R,..",
        help="radix only: these ranks, 1 the smallest, not the median",
    )
    action.add_argument(
        "--quantiles",
        type=_list_of(float),
        metavar="Q,..",
        help="radix only: quartiles, say, are 0.25,0.5,0.75",
    )
    action.add_argument(
        "--midpoint",
        action="store_true",
        default=None,
        help="radix only: for an even number of clients the mean of both middle elements",
    )
    action.add_argument(
        "--weights",
        type=_weights,
        metavar="NAME=W,..",
        help="how much each client counts, sample counts say (default: all the same); not for trimmed-mean",
    )
    action.add_argument(
        "--weight-cap",
        type=float,
        metavar="SHARE",
        help="refuse if one client weighs more than this share of the total (default: 1/3)",
    )
    action.add_argument(
        "--selection",
        choices=SELECTIONS,
        help="pairwise only: opened tells the servers whose each median is (default: oblivious)",
    )
    action.add_argument(
        "--result-to",
        choices=RESULTS,
        help="who learns the median; clients: pairwise only (default: servers)",
    )
    action.set_defaults(run=_as_coordinator(_open))


def _list_of(kind: type[int] | type[float]) -> Callable[[str], list[Any]]:
    def parse(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",")]

    parse.__name__ = f"list of {kind.__name__}"  # argparse says it of what does not parse
    return parse


def _weights(text: str) -> dict[str, int]:
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and weight.isdecimal() for name, _, weight in pairs):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not like hospital-a=600,hospital-b=450,hospital-c=500"
        )
    return {name: int(weight) for name, _, weight in pairs}


def _as_coordinator(
    act: Callable[["Coordinator", argparse.Namespace], None],
) -> Callable[[argparse.Namespace], None]:
    """A verb that connects as the coordinator of `options.config` and then acts."""

    def run(options: argparse.Namespace) -> None:
        from securemedian.clients.client import Coordinator

        with Coordinator.from_config(options.config) as coordinator:
            act(coordinator, options)

    return run


def _open(coordinator: "Coordinator", options: argparse.Namespace) -> None:
    model = files.read_vector(options.model) if options.model else None
    dim = options.dim if options.dim is not None or model is None else model.size
    if dim is None:
        raise ConfigError("say how many values an update has: --dim, or --model FILE.npy")
    print(
        coordinator.open(
            round_params(options, dim=dim), model, range_policy(options), options.reset
        )
    )


def _status(coordinator: "Coordinator", options: argparse.Namespace) -> None:
    print(json.dumps(coordinator.status(options.round), indent=2))


def _close(coordinator: "Coordinator", options: argparse.Namespace) -> None:
    coordinator.close_round(_round(coordinator, options))


def _abort(coordinator: "Coordinator", options: argparse.Namespace) -> None:
    coordinator.abort(_round(coordinator, options), options.reason)


def _result(coordinator: "Coordinator", options: argparse.Namespace) -> None:
    files.check_writable(options.file)
    results = coordinator.results(_round(coordinator, options))
    files.write(options.file, results if len(results) > 1 else results[0])


def _round(coordinator: "Coordinator", options: argparse.Namespace) -> str:
    round_id = options.round or str(coordinator.status()["round"])
    if not round_id:
        raise UnknownRound("there has been no round yet: `securemedian round open` opens one")
    return round_id
