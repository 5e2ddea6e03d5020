"""Figures that others report for the same work, to compare ours with (docs/protocols.md section 8).

The machines differ, so only orders of magnitude can be compared.
"""

from dataclasses import dataclass

PAPER = "paper: 112-core Xeon 8280, link of 377 MB/s"
BACKEND = "the paper's backend (SCI, C++) on a two-core machine"


@dataclass(frozen=True)
class Reported:
    """A figure that others report, with its source."""

    seconds: float
    source: str
    megabytes: float | None = None


# for d = 1000, b = 8, n = 10; the bucketed median's cost does not depend on n
FIGURE_3 = {"bucketed": Reported(0.12, BACKEND, 9.1), "pairwise": Reported(0.86, BACKEND, 57.8)}

# for CNNMnist, 8 clients, b = 8, l = 64
TABLE_1 = {
    "train": Reported(24, PAPER),
    "bucketize": Reported(5, PAPER),
    "share": Reported(1, PAPER),
    "median": Reported(125, PAPER),
    "quantize": Reported(5, PAPER),
    "insecure median": Reported(6, PAPER),
}
