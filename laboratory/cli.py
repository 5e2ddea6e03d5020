"""The verbs `init`, `public-set` and `train`, which need the extra `[train]` for their networks.

A verb imports PyTorch when it runs, so that --help works without it.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from securemedian.clients import files
from securemedian.clients.flags import add_cohort, add_keep_local
from securemedian.clients.public import PublicSet
from securemedian.laboratory.data import SOURCES
from securemedian.laboratory.models import MODELS
from securemedian.laboratory.worker_options import add_source, add_worker_options, public_set
from securemedian.mpc.errors import ConfigError


def add_verbs(subparsers: Any) -> None:
    _add_init(subparsers)
    _add_public_set(subparsers)
    _add_train(subparsers)


def _add_init(subparsers: Any) -> None:
    verb = subparsers.add_parser(
        "init",
        description=(
            "Write a start model: of a model of your own, or PyTorch's usual initialisation of a "
            "network that `train` knows."
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
    verb.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="the file to write, for `round open --model`: .npz or .safetensors with the names of "
        "layers, by which clients' models are matched, or .npy, one flat vector",
    )
    verb.add_argument(
        "--from",
        dest="source",
        metavar="PACKAGE.MODULE:BUILD",
        help="instead of NETWORK: a function of yours, installed or in the current folder, "
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
    add_keep_local(verb)
    verb.set_defaults(run=_init)


def _init(options: argparse.Namespace) -> None:
    files.check_writable(options.file)
    if options.groups < 1:
        raise ConfigError(f"invalid --groups: {options.groups}; give 1 or more")
    if (options.network is None) == (options.source is None):
        raise ConfigError(
            f"no model to start: {options.file}; name either a NETWORK before the file, or "
            "--from PACKAGE.MODULE:BUILD"
        )
    if options.source is not None:
        from securemedian.clients.start import start_model
        from securemedian.clients.update import to_arrays

        starts = [
            start_model(options.source, options.seed + group, options.keep_local)
            for group in range(options.groups)
        ]
        (first, spec), named = starts[0], options.file.suffix != ".npy"
        if named and (options.groups > 1 or spec.form is None):
            raise ConfigError(
                f"the file cannot hold a model without names or several groups: {options.file}; "
                "write a .npy"
            )
        flat = np.stack([model for model, _ in starts]) if len(starts) > 1 else first
        files.write(options.file, to_arrays(first, spec) if named else flat)
        rows = f"{options.groups} models of " if options.groups > 1 else ""
        print(f"{options.file}: {rows}{first.size:,} values of {options.source}")
        if options.keep_local:
            print(spec.summary)
        return
    from securemedian.laboratory import models

    name = options.network if options.network in MODELS else SOURCES[options.network].model
    start = models.starts(MODELS[name], options.seed, options.groups)
    files.write(options.file, start[..., models.sent(MODELS[name], options.keep_local)])


def _add_public_set(subparsers: Any) -> None:
    verb = subparsers.add_parser(
        "public-set",
        description="Draw training images at random and write them, without their labels, as the "
        "public set of rounds that exchange predictions. A set of your own is a file inputs.npy: "
        "an array with a row per sample.",
    )
    verb.add_argument("folder", type=Path, metavar="DIR", help="the folder to write")
    add_source(verb)
    verb.add_argument(
        "--samples", type=int, default=500, metavar="N", help="how many (default: %(default)s)"
    )
    verb.set_defaults(run=_public_set)


def _public_set(options: argparse.Namespace) -> None:
    from securemedian.laboratory.data import draw_public, load

    images = draw_public(load(options.data, options.dataset), options.samples, options.seed)
    public = PublicSet(images)
    public.save(options.folder)
    print(f"{options.folder}: {public.samples:,} samples, SHA-256 {public.digest}")


def _add_train(subparsers: Any) -> None:
    verb = subparsers.add_parser(
        "train",
        description="Receive each round's model, train it on this client's images, submit the "
        "update, and wait for the next round. With --public: train a network of "
        "one's own, predict the public set, submit that, and learn from what all predict.",
    )
    add_cohort(verb)
    add_worker_options(verb)
    add_keep_local(verb)
    verb.add_argument(
        "--save",
        type=Path,
        metavar="FILE.npy",
        help="wait for each round's result and write it here, as one flat vector; with --public "
        "this client's own network",
    )
    verb.set_defaults(run=_train)


def _train(options: argparse.Namespace) -> None:
    from securemedian.clients.client import Client
    from securemedian.common.terminal import Teller, shown_upload
    from securemedian.laboratory import worker

    if options.save:
        files.check_writable(options.save)
    say = Teller(on_stdout=True)
    public = public_set(options)
    trainer = worker.trainer(options, public=public)
    with (
        Client.from_config(options.config, options.cohort, public=public, report=say) as client,
        shown_upload() as progress,
    ):
        kept = worker.Kept.of(client, trainer, options.keep_local) if options.keep_local else None
        worker.take_part(client, trainer, options, progress=progress, kept=kept, save=options.save)
