# lot = "siblings"
# words = ["state_dict"]

import torch
from torch import nn

import flatout


def points(count):
    dice = torch.Generator().manual_seed(1)
    return torch.randn(count, 6, generator=dice), torch.arange(count) % 3


def loss(model, batch):
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


class Stream:
    def __iter__(self):
        for number in range(64):
            yield torch.randn(6), number % 3

    def state_dict(self, epoch):  # HERE
        return {}

    def load_state_dict(self, state):
        pass


def experiment():
    return flatout.Experiment(
        model=lambda: nn.Linear(6, 3),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=loss,
        train_data=Stream,
        batch_size=8,
        epochs=1,
    )
