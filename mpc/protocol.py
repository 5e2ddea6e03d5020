"""Parameters of the protocol between the two servers, frozen. Each is one of three kinds, said
beside it:

LOCAL      changes no output; the servers may differ (the smaller wish counts where both act alike);
AGREEMENT  both servers must have the same value: in the digest that they compare first;
SECURITY   a security level or the choice of a primitive; agreed on as well.
"""

from dataclasses import dataclass
from typing import Any

from securemedian.mpc.errors import ConfigError, quoted
from securemedian.mpc.options import check_one_of, check_whole
from securemedian.mpc.share import SLICE_ALIGN

# SECURITY: base OTs, the width of OT extension, AES keys
SECURITY_BITS = 128
OT_EXTENSIONS = ("softspoken", "silent")


@dataclass(frozen=True)
class ProtocolParams:
    """Hold how the two servers compute. One session of base OTs is made for one value of it."""

    # SECURITY-neutral, AGREEMENT: SoftSpokenOT's k_s (1, 2, 4, 8): fewer bytes against more AES
    ot_field_bits: int = 4
    # AGREEMENT: chunks in flight at once, each on its own channel
    lanes: int = 2
    # AGREEMENT: SoftSpokenOT, or silent (Ferret): few bytes, on the hardness of LPN
    ot_extension: str = "softspoken"
    # LOCAL: coordinates in one chunk at most; fewer if it would hold more than `batch` comparisons
    chunk: int = 1 << 16
    # LOCAL: comparisons in hand at once at most: bounds the memory of a lane
    batch: int = 1 << 19

    def __post_init__(self) -> None:
        check_one_of("ot_extension", self.ot_extension, OT_EXTENSIONS)
        if self.ot_field_bits not in (1, 2, 4, 8):
            raise ConfigError(
                f"ot_field_bits must be 1, 2, 4 or 8, not {quoted(self.ot_field_bits)}"
            )
        check_whole("lanes", self.lanes, 1, 16)
        check_whole("chunk", self.chunk, SLICE_ALIGN, 1 << 24)
        check_whole("batch", self.batch, SLICE_ALIGN, 1 << 26)

    @property
    def silent(self) -> bool:
        """Whether OT extension is the silent one."""
        return self.ot_extension == "silent"

    def agreement(self) -> dict[str, Any]:
        """Return the fields that both servers must share."""
        return {
            "ot_extension": self.ot_extension,
            "ot_field_bits": self.ot_field_bits,
            "lanes": self.lanes,
        }
