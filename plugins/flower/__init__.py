"""The plug-in for Flower: a private, robust aggregate in an app that exists, by changing two lines.

    # server_app.py
    strategy = SecureMedian("/etc/securemedian/coordinator.toml", FedAvg())
    # client_app.py
    app = ClientApp(mods=[securemedian_mod])

The strategy opens a round of the service for every training round of Flower's. On each node the mod
takes the trained arrays out of the reply and submits them to S0 and S1 in shares, so that no Flower
server sees an update.
"""

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ImportError(
        "Flower is missing: securemedian.flower needs it; run pip install '.[flower]' in a clone"
    ) from error

from securemedian.flower.mod import securemedian_mod
from securemedian.flower.strategy import SecureMedian

__all__ = ["SecureMedian", "securemedian_mod"]
