"""Two LSTM layers that tell six activities apart by 128 readings of nine sensors."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flatout


class ActivityLSTM(nn.Module):
    """Reads a window to its end, then decides."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(9, 64, num_layers=2, batch_first=True)
        self.head = nn.Linear(64, 6)

    def forward(self, readings: Tensor) -> Tensor:
        """Readings (windows, 128, 9) to scores (windows, 6)."""
        hidden, _ = self.lstm(readings)
        return self.head(hidden[:, -1])


def windows() -> tuple[Tensor, Tensor]:
    """Sine waves whose frequency depends on the activity, in noise."""
    dice = torch.Generator().manual_seed(1)
    activities = torch.randint(6, (2_048,), generator=dice)
    phases = torch.rand(2_048, 1, 9, generator=dice) * 6.28
    times = torch.arange(128).view(1, -1, 1) / 128
    waves = (6.28 * (activities + 1).view(-1, 1, 1) * times + phases).sin()
    return waves + 0.5 * torch.randn(waves.shape, generator=dice), activities


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    readings, activities = batch
    return cross_entropy(model(readings), activities)


def experiment(batch_size: int = 64, steps: int = 500) -> flatout.Experiment:
    return flatout.Experiment(
        model=ActivityLSTM,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
        loss=loss,
        train_data=windows,
        batch_size=batch_size,
        steps=steps,
        clip_norm=1.0,
        unit="windows",
    )
