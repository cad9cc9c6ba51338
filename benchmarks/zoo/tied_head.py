"""A language model whose embedding is also its head: one weight in two places, 2,000 words."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flatout

WORDS = 2_000


class TiedGRU(nn.Module):
    """Scores of the next word at every place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        """Words (texts, length) to scores (texts, length, WORDS)."""
        hidden, _ = self.memory(self.dropout(self.words(words)))
        return self.head(self.dropout(hidden))


def texts() -> Tensor:
    """Each text counts on in steps of its own."""
    dice = torch.Generator().manual_seed(1)
    starts = torch.randint(WORDS, (2_048, 1), generator=dice)
    strides = torch.randint(1, 9, (2_048, 1), generator=dice)
    return (starts + strides * torch.arange(33)) % WORDS


def loss(model: nn.Module, words: Tensor) -> Tensor:
    return cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def experiment(batch_size: int = 16, steps: int = 500) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: TiedGRU(width=128),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        loss=loss,
        train_data=texts,
        batch_size=batch_size,
        steps=steps,
        clip_norm=1.0,
        ema=0.99,
        unit="texts",
    )
