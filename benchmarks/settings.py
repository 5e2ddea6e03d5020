"""The options that all benchmarks share."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from securemedian.benchmarks.link import LinkShape
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols.protocol import OT_EXTENSIONS, ProtocolParams

if TYPE_CHECKING:
    from securemedian.benchmarks.yardstick import Yardstick

DEFAULT_OUT = Path("results/bench")


@dataclass(frozen=True)
class Settings:
    """The conditions under which points are timed."""

    protocol: ProtocolParams
    # as `LinkShape.parse` reads it
    link: str = "loopback"
    # repetitions per point
    repeat: int = 5

    @property
    def extension(self) -> str:
        """The name of the OT extension, with SoftSpokenOT's k."""
        protocol = self.protocol
        return "silent" if protocol.silent else f"softspoken-{protocol.ot_field_bits}"

    @property
    def native(self) -> bool:
        """Return whether the kernels on the processor's AES instructions are taken."""
        # numba is not imported before a benchmark runs
        from securemedian.mpc.protocols.kernels.native.processor import use_native

        return use_native(self.protocol.native_aes)

    @property
    def yardstick(self) -> "Yardstick":
        """Return the AES of one core, which is measured once per run."""
        from securemedian.benchmarks.yardstick import measured

        return measured(self.protocol.native_aes)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the shared options."""
    add_counts(parser, ("--repeat", 5, "repetitions per point, of which the median is kept"))
    add_extension(parser)
    parser.add_argument(
        "--link",
        type=link,
        default="loopback",
        metavar="LINK",
        help="loopback; aes (loopback with AES-GCM instead of CURVE, as S1's aes_port gives); "
        "or a rate and perhaps a round-trip time, like 377MB/s or 100Mbit/s,40ms "
        "(default: %(default)s)",
    )
    add_counts(parser, ("--lanes", ProtocolParams.lanes, "chunks computed at the same time"))
    parser.add_argument(
        "--native",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="AES with the processor's own instructions where it has them, or OpenSSL's alone; "
        "results and bytes are the same (default: --native)",
    )


def add_extension(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--extension",
        choices=OT_EXTENSIONS,
        default=ProtocolParams.ot_extension,
        help="OT extension: softspoken; or silent, with few bytes but more work "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--field-bits",
        type=int,
        default=ProtocolParams.ot_field_bits,
        choices=(1, 2, 4, 8),
        help="SoftSpokenOT's k: a larger one takes fewer bytes but more AES (default: %(default)s)",
    )


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        default=DEFAULT_OUT,
        metavar="DIR",
        help="the folder for results (default: %(default)s)",
    )


def read(options: argparse.Namespace) -> Settings:
    """Return the settings that the options of `add_options` describe."""
    protocol = ProtocolParams(
        ot_extension=options.extension,
        ot_field_bits=options.field_bits,
        lanes=options.lanes,
        native_aes=options.native,
    )
    return Settings(protocol, options.link, options.repeat)


def add_counts(parser: argparse.ArgumentParser, *counts: tuple[str, int, str]) -> None:
    """Add options of whole numbers above 0: the flag, the default and the help of each."""
    for flag, default, what in counts:
        parser.add_argument(
            flag, type=count, default=default, metavar="N", help=f"{what} (default: %(default)s)"
        )


# Types of options, whose error messages argparse completes with the option's name


def link(text: str) -> str:
    """Return a link's text as it is, once `LinkShape.parse` has read it."""
    try:
        LinkShape.parse(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def numbers(text: str) -> list[int]:
    """Parse a list of whole numbers like 2,4,6."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"not a whole number or a list of them: {text!r}; write it like 2,4,6"
        ) from None


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"not 1 or more: {text}; give more")
    return value
