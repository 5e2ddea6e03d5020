"""The options of every verb that trains: the model, the images, and which clients misbehave."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from securemedian.clients.flags import add_public
from securemedian.clients.public import PublicSet
from securemedian.laboratory.attacks import ATTACKS, NO_ATTACK, Attack, Malformed
from securemedian.laboratory.data import SOURCES, SPLITS
from securemedian.laboratory.models import MODELS
from securemedian.mpc.errors import ConfigError

if TYPE_CHECKING:
    from securemedian.laboratory.data import Dataset
    from securemedian.laboratory.models import Model


# the faults of a client of the laboratory: in its update, or in the upload itself
FAULTS: dict[str, type[Attack]] = ATTACKS | {Malformed.name: Malformed}


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a data set, and the seed."""
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="the folder of MNIST's IDX files, plain or .gz, or of CIFAR-10's binary files "
        "(default: scikit-learn's 8x8 digits)",
    )
    parser.add_argument(
        "--dataset",
        choices=SOURCES,
        help="the data set; digits and clinic need no DIR (default: recognised by the files in "
        "DIR)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="seed of all that is drawn (default: %(default)s)",
    )


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what a client trains, on which images, and from which seed."""
    add_source(parser)
    parser.add_argument(
        "--network", choices=MODELS, help="the network to train (default: the data set's own)"
    )
    parser.add_argument(
        "--images",
        type=int,
        metavar="N",
        help="images per client (default: all, divided evenly)",
    )
    parser.add_argument(
        "--split",
        default="iid",
        metavar="HOW",
        help=f"how the images are divided among the clients: {SPLITS} (default: %(default)s)",
    )


def add_worker_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of one client's worker: its configuration, data, part and rounds."""
    parser.add_argument("config", metavar="CONFIG", help="this client's client.toml")
    add_data_options(parser)
    parser.add_argument(
        "--part",
        type=_part,
        default=(0, 1),
        metavar="I/N",
        help="train on part I of N of the images (default: 1/1)",
    )
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="leave after N rounds (default: stay)"
    )
    group = parser.add_argument_group("predictions by a network of this client's own")
    add_public(group)
    group.add_argument(
        "--warm-up",
        type=int,
        metavar="N",
        help="before the first predictions, train alone for as long as in N rounds (default: 5)",
    )


def public_set(options: argparse.Namespace) -> PublicSet | None:
    """Return the public set that --public names; None where parameters are exchanged.

    Raises ConfigError if the folder has none, or if --warm-up is given without it.
    """
    if options.public is not None:
        return PublicSet.load(options.public)
    if options.warm_up is not None:
        raise ConfigError(
            f"--warm-up is for clients that exchange predictions: {options.warm_up}; give "
            "--public, too"
        )
    return None


def add_fault_options(parser: argparse.ArgumentParser, fault: str | None = NO_ATTACK.name) -> None:
    """Add the options that say which fault a client has, by default `fault`, and from when on."""
    parser.add_argument(
        "--fault",
        choices=FAULTS,
        default=fault,
        help="misbehave; `malformed` shows the servers' checks (default: "
        "none, except for hospitals)",
    )
    parser.add_argument(
        "--fault-from",
        type=int,
        default=3,
        metavar="T",
        help="the first round of the fault (default: %(default)s)",
    )


def fault(options: argparse.Namespace) -> Attack:
    """Return the attack that the options name.

    Raises ConfigError if one client alone cannot carry it out.
    """
    attack = FAULTS[options.fault]
    if attack.sees_honest:
        alone = ", ".join(name for name, other in FAULTS.items() if not other.sees_honest)
        raise ConfigError(
            "a fault that needs the updates of the honest clients, which no client of a real "
            f"round sees: --fault {attack.name}; take `securemedian experiment`, which "
            f"simulates it, or one of {alone}"
        )
    return attack(options.fault_from)


def network(options: argparse.Namespace, data: "Dataset") -> "Model":
    """Return the model that the options name, or the data set's own if they name none."""
    return MODELS[options.network or SOURCES[data.name].model]


def _part(text: str) -> tuple[int, int]:
    index, _, parts = text.partition("/")
    if not (index.isdecimal() and parts.isdecimal()):
        raise argparse.ArgumentTypeError(f"invalid part: {text!r}; write it like 2/3")
    return int(index) - 1, int(parts)
