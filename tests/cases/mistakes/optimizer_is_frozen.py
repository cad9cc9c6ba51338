# lot = "siblings"
# words = ["without a gradient", "requires_grad"]

import torch
from torch import nn

import flatout


def points(count):
    dice = torch.Generator().manual_seed(1)
    return torch.randn(count, 6, generator=dice), torch.arange(count) % 3


def loss(model, batch):
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


def net():
    return nn.Linear(6, 3).requires_grad_(False)


def experiment():
    return flatout.Experiment(
        model=net,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=loss,
        train_data=lambda: points(64),
        batch_size=8,
        epochs=1,
    )
