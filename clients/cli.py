"""The verbs `submit`, `round`, `init` and `train`. What a verb needs is imported when it runs: --help needs nothing."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clients import files
from clients.attacks import ATTACKS, Attack
from clients.data import SOURCES, SPLITS
from clients.models import MODELS
from mpc.errors import ConfigError, UnknownRound
from mpc.params import ENCODINGS, METHODS, RANGE_POLICIES, RESULTS, SCHEDULES, SELECTIONS, RangePolicy, RoundParams

if TYPE_CHECKING:
    from clients.client import Coordinator
    from clients.data import Dataset
    from clients.models import Model

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]


def add_verbs(subparsers: "Verbs") -> None:
    """Add this package's verbs to the `securemedian` command."""
    _add_submit(subparsers)
    _add_round(subparsers)
    _add_init(subparsers)
    _add_train(subparsers)


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
        "--buckets", type=int, metavar="B", help="bucketed, radix on buckets: buckets a coordinate (default: 8)"
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
        "--range", choices=RANGE_POLICIES, help="how the bucket range follows the model (default: coordinate)"
    )
    parser.add_argument("--range-initial", type=float, metavar="P0", help="the first bucket range (default: 0.1)")
    parser.add_argument(
        "--range-decay", type=float, metavar="P1", help="P1/t is added to the range after round t (default: 0.1)"
    )


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """What a client trains, on what and from which seed."""
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="the folder of MNIST's IDX files, plain or .gz, or of CIFAR-10's binary files "
        "(default: scikit-learn's 8x8 digits)",
    )
    parser.add_argument("--network", choices=MODELS, help="the model that is trained (default: the data's own)")
    parser.add_argument(
        "--images", type=int, metavar="N", help="training images of each client (default: all, divided evenly)"
    )
    parser.add_argument(
        "--split",
        default="iid",
        metavar="HOW",
        help=f"how the images are divided among the clients: {SPLITS} (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="of the start model, the split and the training (default: %(default)s)"
    )
    parser.add_argument(
        "--fault", choices=ATTACKS, default="none", help="misbehave, to see what a median does about it (default: none)"
    )
    parser.add_argument(
        "--fault-from", type=int, default=3, metavar="T", help="the first round of the fault (default: %(default)s)"
    )


def fault(options: argparse.Namespace) -> Attack:
    """The attack that the options name. ConfigError if one client alone cannot carry it out."""
    attack = ATTACKS[options.fault]
    if attack.sees_honest:
        alone = ", ".join(name for name, other in ATTACKS.items() if not other.sees_honest)
        raise ConfigError(
            f"--fault {attack.name} needs the updates of the honest clients, which no client of a real round sees: "
            f"`securemedian experiment` simulates it. Here choose one of {alone}"
        )
    return attack(options.fault_from)


def network(options: argparse.Namespace, data: "Dataset") -> "Model":
    """The model that the options name, or the one of the data set."""
    return MODELS[options.network or SOURCES[data.name].model]


def range_policy(options: argparse.Namespace) -> RangePolicy | None:
    """The range policy that the options name; None if they name nothing."""
    chosen = {"policy": options.range, "initial": options.range_initial, "decay": options.range_decay}
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
    verb.add_argument("--result", type=Path, metavar="FILE", help="wait for the median and write it in the same form")
    verb.set_defaults(run=_submit)


def _submit(options: argparse.Namespace) -> None:
    from clients.client import Client

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
        "round", help="open, watch and end rounds (coordinator)", description="What the coordinator does with rounds."
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
                "--reason", default="aborted by the coordinator", help="told to everybody (default: %(default)s)"
            )
        elif name == "result":
            action.add_argument(
                "file", type=Path, help="the .npy file to write: the model as one float32 vector, or a row a rank"
            )


def _add_open(actions: "Verbs") -> None:
    action = actions.add_parser(
        "open", help="open a round", description="Open a round and print its id. Options not given keep their defaults."
    )
    action.add_argument("config", help="coordinator.toml")
    action.add_argument(
        "--model",
        type=Path,
        metavar="FILE.npy",
        help="start a new training run from this flat model (default: go on with the last)",
    )
    action.add_argument("--reset", action="store_true", help="start a new training run from the model that S0 has")
    action.add_argument("--dim", type=int, help="values of an update (default: the model's)")
    action.add_argument(
        "--max-clients", type=int, required=True, help="the round closes by itself when this many are complete"
    )
    action.add_argument("--min-clients", type=int, help="the servers refuse to compute with fewer (default: 2)")
    action.add_argument(
        "--deadline-s", type=float, metavar="SECONDS", help="when the round closes at the latest (default: 600)"
    )
    add_round_options(action)
    action.add_argument(
        "--schedule",
        choices=SCHEDULES,
        help="bucketed only: all thresholds at once, or fewer one after another (default: scan)",
    )
    action.add_argument(
        "--ring-bits", type=int, help="bits of a shared value (default: bucketed, the fewest that count; pairwise, 64)"
    )
    action.add_argument("--fraction-bits", type=int, help="of the fixed point, where it is used (default: 24)")
    action.add_argument("--word-bits", type=int, metavar="W", help="radix on fixed point: bits of a word (default: 32)")
    action.add_argument(
        "--ranks", type=_list_of(int), metavar="R,..", help="radix only: these ranks, 1 the smallest, not the median"
    )
    action.add_argument(
        "--quantiles", type=_list_of(float), metavar="Q,..", help="radix only: quartiles, say, are 0.25,0.5,0.75"
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
        "--result-to", choices=RESULTS, help="who learns the median; clients: pairwise only (default: servers)"
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
        raise argparse.ArgumentTypeError(f"{text!r} is not like hospital-a=600,hospital-b=450,hospital-c=500")
    return {name: int(weight) for name, _, weight in pairs}


def _as_coordinator(act: Callable[["Coordinator", argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
    """A verb that connects as the coordinator of `options.config` and then acts."""

    def run(options: argparse.Namespace) -> None:
        from clients.client import Coordinator

        with Coordinator.from_config(options.config) as coordinator:
            act(coordinator, options)

    return run


def _open(coordinator: "Coordinator", options: argparse.Namespace) -> None:
    model = files.read_vector(options.model) if options.model else None
    dim = options.dim if options.dim is not None or model is None else model.size
    if dim is None:
        raise ConfigError("say how many values an update has: --dim, or --model FILE.npy")
    print(coordinator.open(round_params(options, dim=dim), model, range_policy(options), options.reset))


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


def _add_init(subparsers: "Verbs") -> None:
    verb = subparsers.add_parser(
        "init",
        help="write a start model for `train`",
        description="Write PyTorch's usual initialisation of a network that `train` knows, as one flat vector.",
    )
    verb.add_argument(
        "network",
        choices=list(dict.fromkeys([*MODELS, *SOURCES])),
        metavar="NETWORK",
        help=f"{', '.join(MODELS)}, or a data set for its own: "
        + ", ".join(f"{source.name} is {source.model}" for source in SOURCES.values() if source.name != source.model),
    )
    verb.add_argument("file", type=Path, help="the .npy file to write, for `round open --model`")
    verb.add_argument("--seed", type=int, default=1, help="of the initialisation (default: %(default)s)")
    verb.set_defaults(run=_init)


def _init(options: argparse.Namespace) -> None:
    from clients import models

    name = options.network if options.network in MODELS else SOURCES[options.network].model
    files.write(options.file, models.start(MODELS[name], options.seed))


def _add_train(subparsers: "Verbs") -> None:
    verb = subparsers.add_parser(
        "train",
        help="take part in every round with a PyTorch worker",
        description="Receive each round's model, train it on this client's images, submit, wait for the next.",
    )
    verb.add_argument("config", help="this client's client.toml")
    add_data_options(verb)
    verb.add_argument(
        "--part", type=_part, default=(0, 1), metavar="I/N", help="train on part I of N of the images (default: 1/1)"
    )
    verb.add_argument("--rounds", type=int, metavar="N", help="leave after N rounds (default: stay)")
    verb.add_argument(
        "--record",
        type=Path,
        metavar="DIR",
        help="for demos only: write every update there IN THE CLEAR, as round-NUMBER-NAME.npy",
    )
    verb.set_defaults(run=_train)


def _part(text: str) -> tuple[int, int]:
    index, _, parts = text.partition("/")
    if not (index.isdecimal() and parts.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not like 2/3")
    return int(index) - 1, int(parts)


def _train(options: argparse.Namespace) -> None:
    from clients import data, models, worker
    from clients.client import Client

    attack = fault(options)
    models.use_one_thread()
    if options.record:
        files.check_writable(options.record / "updates")
    images, (index, parts) = data.load(options.data), options.part
    trainer = worker.Trainer.of_part(
        images, index, parts, options.seed, options.images, attack, options.split, network(options, images)
    )
    with Client.from_config(options.config) as client:
        worker.run(client, trainer, options.rounds, options.record)
