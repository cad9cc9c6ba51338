"""Ratings of 20,000 films by 50,000 people: two large embeddings with sparse gradients."""

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import flatout

PEOPLE, FILMS = 50_000, 20_000


class Ratings(nn.Module):
    """A rating from embeddings of the user and the film."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.people = nn.Embedding(PEOPLE, width, sparse=True)
        self.films = nn.Embedding(FILMS, width, sparse=True)
        self.rating = nn.Sequential(nn.Linear(2 * width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, pairs: Tensor) -> Tensor:
        """Pairs of user and film (pairs, 2) to ratings (pairs,)."""
        people, films = self.people(pairs[:, 0]), self.films(pairs[:, 1])
        return self.rating(torch.cat([people, films], dim=1)).squeeze(1)


def ratings() -> tuple[Tensor, Tensor]:
    """Few people rate much, many little; so it is with films."""
    dice = torch.Generator().manual_seed(1)
    shares = torch.rand(100_000, 2, generator=dice).square()
    pairs = (shares * torch.tensor([PEOPLE, FILMS])).long()
    likings = torch.randn(PEOPLE, generator=dice)[pairs[:, 0]]
    return pairs, likings + torch.randn(FILMS, generator=dice)[pairs[:, 1]]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    pairs, given = batch
    return mse_loss(model(pairs), given)


def experiment(batch_size: int = 512, steps: int = 1_000) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: Ratings(width=32),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        loss=loss,
        train_data=ratings,
        batch_size=batch_size,
        steps=steps,
        unit="ratings",
    )
