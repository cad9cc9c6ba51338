"""A transformer with dropout that reads 96 words backwards only: scaled_dot_product_attention."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import flatout

WORDS, LENGTH, HEADS, DROPOUT = 1_000, 96, 4, 0.1


class Attention(nn.Module):
    """Each word looks at those before it; then two layers of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked = nn.Linear(width, 3 * width)
        self.answer = nn.Linear(width, width)
        self.think = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(DROPOUT)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states (texts, words, width) to such."""
        parts = self.asked(self.norms[0](hidden)).unflatten(2, (3, HEADS, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        dropout = DROPOUT if self.training else 0.0
        seen = scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        hidden = hidden + self.answer(seen.transpose(1, 2).flatten(2))
        return hidden + self.think(self.norms[1](hidden))


class Words(nn.Module):
    """Scores of the next word at every place."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Embedding(LENGTH, width)
        self.layers = nn.Sequential(*[Attention(width) for _ in range(depth)])
        self.head = nn.Linear(width, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        """Words (texts, length) to scores (texts, length, WORDS)."""
        places = torch.arange(words.shape[1], device=words.device)
        return self.head(self.layers(self.words(words) + self.places(places)))


def texts() -> Tensor:
    """Each text counts on in steps of its own."""
    dice = torch.Generator().manual_seed(1)
    starts = torch.randint(WORDS, (2_048, 1), generator=dice)
    strides = torch.randint(1, 9, (2_048, 1), generator=dice)
    return (starts + strides * torch.arange(LENGTH + 1)) % WORDS


def loss(model: nn.Module, words: Tensor) -> Tensor:
    return cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def experiment(batch_size: int = 8, steps: int = 500) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: Words(width=128, depth=3),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        loss=loss,
        train_data=texts,
        batch_size=batch_size,
        steps=steps,
        clip_norm=1.0,
        unit="texts",
    )
