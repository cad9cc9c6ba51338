# lot = "own"
# words = ["DataFrame", "to_numpy"]

import torch
from torch import nn

import flatout


def points(count):
    dice = torch.Generator().manual_seed(1)
    return torch.randn(count, 6, generator=dice), torch.arange(count) % 3


def loss(model, batch):
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


class DataFrame:
    """As that of pandas, which is not installed everywhere."""

    columns = ["a"]

    def __len__(self):
        return 64

    def __getitem__(self, name):
        raise KeyError(name)

    def to_numpy(self):
        return None


def experiment():
    return flatout.Experiment(
        model=lambda: nn.Linear(6, 3),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=loss,
        train_data=lambda: DataFrame(),
        batch_size=8,
        epochs=1,
    )
