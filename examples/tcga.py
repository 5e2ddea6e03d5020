"""A client that trains a Cox model on its region of Fed-TCGA-BRCA (docs/hospitals.md).

python examples/tcga.py client-1.toml FOLDER 0
"""

import sys
from pathlib import Path

import pandas as pd
import torch

from securemedian import Client

config, folder, region = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
fold = pd.read_csv(folder / "dataset_creation_scripts" / "train_test_split.csv")
own = fold[fold["fold2"] == f"train_{region}"]["pid"]
table = pd.read_csv(folder / "brca.csv")
rows = table[table["pid"].isin(own)].sort_values("T", ascending=False)
columns = torch.tensor(rows.drop(columns=["pid", "E", "T"]).to_numpy(), dtype=torch.float32)
event = torch.tensor(rows["E"].to_numpy(), dtype=torch.float32)

model = torch.nn.Linear(columns.shape[1], 1, bias=False)


def train(model):
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(20):
        optimiser.zero_grad()
        risk = model(columns).squeeze(1)
        # Cox's partial likelihood: those at risk at a time stand above it
        likelihood = (risk - torch.logcumsumexp(risk, 0))[event > 0].sum()
        (-likelihood / event.sum().clamp(min=1)).backward()
        optimiser.step()


with Client.from_config(config) as client:
    client.fit(model, train, rounds=10)
