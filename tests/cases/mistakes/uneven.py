# lot = "log"
# words = ["differ in size", "collate"]

import torch
from torch import nn

import flatout


def points(count):
    dice = torch.Generator().manual_seed(1)
    return torch.randn(count, 6, generator=dice), torch.arange(count) % 3


def loss(model, batch):
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


class Rows:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(6 + index % 2), index % 3


def experiment():
    return flatout.Experiment(
        model=lambda: nn.Linear(6, 3),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=loss,
        train_data=Rows,
        batch_size=8,
        epochs=1,
    )
