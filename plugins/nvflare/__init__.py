"""The plug-in for NVFlare: a private, robust aggregate in a job that exists, by changing two lines.

    # job.py
    recipe = FedAvgRecipe(.., aggregator=SecureMedian("/etc/securemedian/coordinator.toml"))
    recipe.add_client_output_filter(SecureMedianFilter())

The aggregator opens a round of the service for every round of the job. At each site the filter
takes the trained weights out of the result and submits them to S0 and S1 in shares. No server of
NVFlare's sees an update.

In a checkout this folder is called `flare`: one called `nvflare` would hide NVFlare itself.
"""

try:
    import nvflare  # noqa: F401
except ImportError as error:
    raise ImportError(
        "NVFlare is missing: securemedian.nvflare needs it; run pip install '.[nvflare]' in a clone"
    ) from error

from securemedian.nvflare.aggregator import SecureMedian
from securemedian.nvflare.filter import SecureMedianFilter

__all__ = ["SecureMedian", "SecureMedianFilter"]
