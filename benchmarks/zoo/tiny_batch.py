"""Four samples a step through a small network: the step is all overhead."""

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import flatout


def samples() -> tuple[Tensor, Tensor]:
    dice = torch.Generator().manual_seed(1)
    features = torch.randn(2_000, 8, generator=dice)
    return features, features.sin().sum(dim=1, keepdim=True)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    features, targets = batch
    return mse_loss(model(features), targets)


def experiment(batch_size: int = 4, steps: int = 5_000) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: nn.Sequential(
            nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
        ),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        loss=loss,
        train_data=samples,
        batch_size=batch_size,
        steps=steps,
    )
