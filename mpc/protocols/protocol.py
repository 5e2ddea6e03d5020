"""The parameters of the protocol between the two servers.

Each parameter is of one of three kinds, which is written above it:

    LOCAL      It changes no output, and the servers may differ. Where both must act alike, the
               smaller value is used.
    AGREEMENT  Both servers must have the same value, which is part of the digest that they compare
               before anything runs.
    SECURITY   It is a security level or the choice of a primitive, and is agreed on as well.
"""

from dataclasses import dataclass
from typing import Any

from securemedian.mpc.errors import ConfigError, quoted
from securemedian.mpc.options import check_one_of, check_whole
from securemedian.mpc.protocols.share import SLICE_ALIGN

# SECURITY: bits of base OTs, of the width of OT extension and of AES keys
SECURITY_BITS = 128
OT_EXTENSIONS = ("softspoken", "silent")


@dataclass(frozen=True)
class ProtocolParams:
    """How the two servers compute. A session of base OTs serves one value of these parameters."""

    # AGREEMENT, and security is the same for all: k of SoftSpokenOT (1, 2, 4, 8). A larger k takes
    # fewer bytes and more AES.
    ot_field_bits: int = 4
    # AGREEMENT: chunks in flight at once, each on its own channel
    lanes: int = 2
    # AGREEMENT: SoftSpokenOT, or silent (Ferret), which takes few bytes and rests on LPN
    ot_extension: str = "softspoken"
    # LOCAL: the most coordinates of one chunk; fewer where they would take more than `batch`
    # comparisons
    chunk: int = 1 << 18
    # LOCAL: the most comparisons that run at once, which bounds the memory of a lane
    batch: int = 1 << 19
    # LOCAL: AES with the processor's own instructions where it has them (`kernels.native`); if
    # false, OpenSSL's alone. All bytes are the same.
    native_aes: bool = True

    def __post_init__(self) -> None:
        check_one_of("ot_extension", self.ot_extension, OT_EXTENSIONS)
        if self.ot_field_bits not in (1, 2, 4, 8):
            raise ConfigError(
                f"invalid ot_field_bits: {quoted(self.ot_field_bits)}; take 1, 2, 4 or 8"
            )
        check_whole("lanes", self.lanes, 1, 16)
        check_whole("chunk", self.chunk, SLICE_ALIGN, 1 << 24)
        check_whole("batch", self.batch, SLICE_ALIGN, 1 << 26)
        if type(self.native_aes) is not bool:
            raise ConfigError(f"invalid native_aes: {quoted(self.native_aes)}; write true or false")

    @property
    def silent(self) -> bool:
        """Return whether OT extension is the silent one."""
        return self.ot_extension == "silent"

    def agreement(self) -> dict[str, Any]:
        """Return the fields that must be the same at both servers."""
        return {
            "ot_extension": self.ot_extension,
            "ot_field_bits": self.ot_field_bits,
            "lanes": self.lanes,
        }
