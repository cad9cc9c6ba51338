# lot = "log"
# words = ["`model`", "not a function that builds one", "model=lambda: Net(6)"]

import torch
from torch import nn

import flatout


def points(count):
    dice = torch.Generator().manual_seed(1)
    return torch.randn(count, 6, generator=dice), torch.arange(count) % 3


def loss(model, batch):
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


class Net(nn.Linear):
    def __init__(self, width):
        super().__init__(width, 3)


def experiment():
    return flatout.Experiment(
        model=Net(6),  # HERE
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=loss,
        train_data=lambda: points(64),
        batch_size=8,
        epochs=1,
    )
