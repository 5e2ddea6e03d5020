"""A client that trains by DP-SGD with Opacus (docs/differential-privacy.md).

python examples/private.py client-1.toml
"""

import sys

import torch
from opacus import PrivacyEngine

from securemedian import Client

ROUNDS, model, engine = 50, torch.nn.Linear(8, 4), PrivacyEngine()
# replace these by this client's own records, which never leave its machine
records = torch.utils.data.TensorDataset(torch.randn(640, 8), torch.randint(4, (640,)))
private, optimiser, batches = engine.make_private_with_epsilon(
    module=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    max_grad_norm=1.0,
    data_loader=torch.utils.data.DataLoader(records, batch_size=32),
    target_epsilon=5.0,
    target_delta=1e-5,
    epochs=ROUNDS,
)


def train(model):
    for features, labels in batches:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(private(features), labels).backward()
        optimiser.step()


with Client.from_config(sys.argv[1]) as client:
    client.fit(model, train, rounds=ROUNDS)
print(engine.get_epsilon(delta=1e-5))
