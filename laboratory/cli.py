"""The verbs `init` and `train`, which need the extra `[train]` for the networks known here.

A verb imports PyTorch when it runs, so that --help works without it.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from securemedian.clients import files
from securemedian.clients.flags import add_training
from securemedian.laboratory.data import SOURCES
from securemedian.laboratory.models import MODELS
from securemedian.laboratory.worker_options import add_worker_options
from securemedian.mpc.errors import ConfigError

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]


def add_verbs(subparsers: "Verbs") -> None:
    """Add `init` and `train` to the `securemedian` command."""
    _add_init(subparsers)
    _add_train(subparsers)


def _add_init(subparsers: "Verbs") -> None:
    verb = subparsers.add_parser(
        "init",
        help="write a start model",
        description=(
            "Write a start model as one flat vector: of a model of your own, "
            "or PyTorch's usual initialisation of a network that `train` knows."
        ),
    )
    verb.add_argument(
        "network",
        nargs="?",
        choices=list(dict.fromkeys([*MODELS, *SOURCES])),
        metavar="NETWORK",
        help=f"{', '.join(MODELS)}; or a data set, which stands for its own network: "
        + ", ".join(
            f"{source.name} is {source.model}"
            for source in SOURCES.values()
            if source.name != source.model
        ),
    )
    verb.add_argument("file", type=Path, help="the .npy file to write, for `round open --model`")
    verb.add_argument(
        "--from",
        dest="source",
        metavar="PACKAGE.MODULE:BUILD",
        help="in place of NETWORK: a function of yours, installed or in the current folder, "
        "that returns a model",
    )
    verb.add_argument(
        "--seed", type=int, default=1, help="seed of the initialisation (default: %(default)s)"
    )
    verb.add_argument(
        "--groups",
        type=int,
        default=1,
        metavar="K",
        help="write K start models as rows, of this seed and the next ones, for rounds of K groups "
        "(default: %(default)s)",
    )
    verb.set_defaults(run=_init)


def _init(options: argparse.Namespace) -> None:
    files.check_writable(options.file)
    if options.groups < 1:
        raise ConfigError(f"--groups must be 1 or more, not {options.groups}")
    if (options.network is None) == (options.source is None):
        raise ConfigError(
            f"name what {options.file} is to start: either a NETWORK before the file, "
            "or --from PACKAGE.MODULE:BUILD"
        )
    if options.source is not None:
        from securemedian.clients.start import start_model

        starts = [
            start_model(options.source, options.seed + group) for group in range(options.groups)
        ]
        model = np.stack(starts) if len(starts) > 1 else starts[0]
        files.write(options.file, model)
        rows = f"{options.groups} models of " if options.groups > 1 else ""
        print(f"{options.file}: {rows}{model.shape[-1]:,} values of {options.source}")
        return
    from securemedian.laboratory import models

    name = options.network if options.network in MODELS else SOURCES[options.network].model
    files.write(options.file, models.starts(MODELS[name], options.seed, options.groups))


def _add_train(subparsers: "Verbs") -> None:
    verb = subparsers.add_parser(
        "train",
        help="take part in every round with a PyTorch worker",
        description="Receive each round's model, train it on this client's images, submit the "
        "update, and wait for the next round.",
    )
    add_training(verb)
    add_worker_options(verb)
    verb.set_defaults(run=_train)


def _train(options: argparse.Namespace) -> None:
    from securemedian.clients.client import Client
    from securemedian.clients.progress import shown_on_terminal
    from securemedian.laboratory import worker

    def say(text: str) -> None:
        print(text, flush=True)

    trainer = worker.trainer(options)
    with (
        Client.from_config(options.config, options.training, report=say) as client,
        shown_on_terminal() as progress,
    ):
        worker.run(client, trainer, options.rounds, progress=progress)
