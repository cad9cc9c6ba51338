"""Values of moves from four frames of a game, 84 x 84 pixels each; RMSprop and Huber's loss."""

import torch
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

import flatout

Frames = dict[str, Tensor]


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 16, kernel_size=8, stride=4),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=4, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 9 * 9, 256),
        nn.ReLU(),
        nn.Linear(256, 6),
    )


def frames() -> Frames:
    """Frames of noise; the brighter they are, the better was the move."""
    dice = torch.Generator().manual_seed(1)
    seen = torch.randint(0, 256, (1_024, 4, 84, 84), generator=dice, dtype=torch.uint8)
    moves = torch.randint(6, (1_024,), generator=dice)
    return {"frames": seen, "moves": moves, "gains": seen.float().mean(dim=(1, 2, 3)) / 128 - 1}


def loss(model: nn.Module, batch: Frames) -> Tensor:
    values = model(batch["frames"].float() / 255)
    chosen = values.gather(1, batch["moves"].unsqueeze(1)).squeeze(1)
    return smooth_l1_loss(chosen, batch["gains"])


def experiment(batch_size: int = 32, steps: int = 1_000) -> flatout.Experiment:
    return flatout.Experiment(
        model=build_model,
        optimizer=lambda parameters: torch.optim.RMSprop(
            parameters, lr=2.5e-4, alpha=0.95, eps=0.01, momentum=0.95
        ),
        loss=loss,
        train_data=frames,
        batch_size=batch_size,
        steps=steps,
        unit="frames",
    )
