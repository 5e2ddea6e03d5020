"""The job: an aggregator and a filter, and nothing else differs from one without securemedian."""

import argparse
from pathlib import Path

import model
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv

from securemedian.nvflare import SecureMedian, SecureMedianFilter


def main() -> None:
    """Run the job in NVFlare's simulator."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    # the folder that examples/servers.py makes
    parser.add_argument("--keys", default="~/securemedian-example")
    arguments = parser.parse_args()

    recipe = NumpyFedAvgRecipe(
        name="private-digits",
        model=model.start_model().tolist(),
        min_clients=arguments.sites,
        num_rounds=arguments.rounds,
        train_script=str(Path(__file__).with_name("client.py")),
        train_args=f"--sites {arguments.sites}",
        aggregator=SecureMedian(f"{arguments.keys}/coordinator.toml", method="radix"),
    )
    recipe.add_client_output_filter(SecureMedianFilter(f"{arguments.keys}/client-{{client}}.toml"))
    run = recipe.execute(SimEnv(num_clients=arguments.sites))
    print(f"The model and the logs are in {run.get_result()}")


if __name__ == "__main__":
    main()
