"""The training of a site: nothing differs from a job without securemedian."""

import argparse

import model
import nvflare.client as flare
from nvflare.app_common.np.constants import NPConstants


def main() -> None:
    """Train and measure each model that the server sends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=0.5)
    arguments = parser.parse_args()

    flare.init()
    # simulated sites are called site-1, site-2, ..
    part = int(flare.get_site_name().rpartition("-")[2]) - 1
    images, labels = model.load_data(part, arguments.sites)
    test = model.load_data(-1, 1)
    while flare.is_running():
        received = flare.receive()
        weights = received.params[NPConstants.NUMPY_KEY]
        accuracy = model.accuracy(weights, *test)
        print(f"round {received.current_round}: accuracy {accuracy:.3f}")
        trained = model.train(weights, images, labels, arguments.epochs, arguments.learning_rate)
        flare.send(
            flare.FLModel(
                params={NPConstants.NUMPY_KEY: trained},
                params_type=flare.ParamsType.FULL,
                metrics={"accuracy": accuracy},
                meta={"NUM_STEPS_CURRENT_ROUND": arguments.epochs},
            )
        )


if __name__ == "__main__":
    main()
