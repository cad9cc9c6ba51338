"""A loop with Accelerate: a small transformer on random tokens."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()

set_seed(0)
accelerator = Accelerator(cpu=True)
tokens = torch.randint(0, 64, (2048, 32))
loader = DataLoader(TensorDataset(tokens), batch_size=32, shuffle=True)
model = nn.Sequential(
    nn.Embedding(64, 64), nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True),
    nn.Linear(64, 64),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(options.epochs):
    total = 0.0
    for (batch,) in loader:
        loss = nn.functional.cross_entropy(model(batch).transpose(1, 2), batch)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        total += loss.item()
    accelerator.print(f"epoch {epoch + 1}: loss {total / len(loader):.6f}")
accelerator.print(f"final loss {total / len(loader):.9f}")
