# lot = "own"
# words = ["keyword arguments only", "flatout docs experiments"]

import torch
from torch import nn

import flatout


def points(count):
    dice = torch.Generator().manual_seed(1)
    return torch.randn(count, 6, generator=dice), torch.arange(count) % 3


def loss(model, batch):
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


def experiment():
    return flatout.Experiment(
        lambda: nn.Linear(6, 3),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=loss,
        train_data=lambda: points(64),
        batch_size=8,
        epochs=1,
    )
