"""The verbs `init` and `train`. What a verb needs is imported when it runs: --help needs nothing."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from securemedian.clients import files
from securemedian.laboratory.attacks import ATTACKS, Attack
from securemedian.laboratory.data import SOURCES, SPLITS
from securemedian.laboratory.models import MODELS
from securemedian.mpc.errors import ConfigError

if TYPE_CHECKING:
    from securemedian.laboratory.data import Dataset
    from securemedian.laboratory.models import Model

    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]


def add_verbs(subparsers: "Verbs") -> None:
    """Add this package's verbs to the `securemedian` command."""
    _add_init(subparsers)
    _add_train(subparsers)


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """What a client trains, on what and from which seed."""
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="the folder of MNIST's IDX files, plain or .gz, or of CIFAR-10's binary files "
        "(default: scikit-learn's 8x8 digits)",
    )
    parser.add_argument(
        "--network", choices=MODELS, help="the model that is trained (default: the data's own)"
    )
    parser.add_argument(
        "--images",
        type=int,
        metavar="N",
        help="training images of each client (default: all, divided evenly)",
    )
    parser.add_argument(
        "--split",
        default="iid",
        metavar="HOW",
        help=f"how the images are divided among the clients: {SPLITS} (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="of the start model, the split and the training (default: %(default)s)",
    )
    parser.add_argument(
        "--fault",
        choices=ATTACKS,
        default="none",
        help="misbehave, to see what a median does about it (default: none)",
    )
    parser.add_argument(
        "--fault-from",
        type=int,
        default=3,
        metavar="T",
        help="the first round of the fault (default: %(default)s)",
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
        + ", ".join(
            f"{source.name} is {source.model}"
            for source in SOURCES.values()
            if source.name != source.model
        ),
    )
    verb.add_argument("file", type=Path, help="the .npy file to write, for `round open --model`")
    verb.add_argument(
        "--seed", type=int, default=1, help="of the initialisation (default: %(default)s)"
    )
    verb.set_defaults(run=_init)


def _init(options: argparse.Namespace) -> None:
    from securemedian.laboratory import models

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
        "--part",
        type=_part,
        default=(0, 1),
        metavar="I/N",
        help="train on part I of N of the images (default: 1/1)",
    )
    verb.add_argument(
        "--rounds", type=int, metavar="N", help="leave after N rounds (default: stay)"
    )
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
    from securemedian.clients.client import Client
    from securemedian.laboratory import data, models, worker

    attack = fault(options)
    models.use_one_thread()
    if options.record:
        files.check_writable(options.record / "updates")
    images, (index, parts) = data.load(options.data), options.part
    trainer = worker.Trainer.of_part(
        images,
        index,
        parts,
        options.seed,
        options.images,
        attack,
        options.split,
        network(options, images),
    )
    with Client.from_config(options.config) as client:
        worker.run(client, trainer, options.rounds, options.record)
