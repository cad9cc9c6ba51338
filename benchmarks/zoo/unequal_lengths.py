"""Sentences of 8 to 48 words, padded batch by batch; the loss is a mean over words."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

import flatout

WORDS, PAD = 500, 0


class NextWord(nn.Module):
    """A GRU that guesses each next word."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=PAD)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        """Words (sentences, length) to scores (sentences, length, WORDS)."""
        hidden, _ = self.memory(self.words(words))
        return self.head(hidden)


class Sentences(torch.utils.data.Dataset[Tensor]):
    """Each counts on from its first word in steps of its own."""

    def __init__(self) -> None:
        dice = torch.Generator().manual_seed(1)
        lengths = torch.randint(8, 49, (2_000,), generator=dice).tolist()
        starts = torch.randint(WORDS, (2_000, 2), generator=dice)
        self.sentences = [
            1 + (start + step % 7 * torch.arange(length)) % (WORDS - 1)
            for (start, step), length in zip(starts, lengths, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index: int) -> Tensor:
        return self.sentences[index]


def padded(sentences: list[Tensor]) -> Tensor:
    return pad_sequence(sentences, batch_first=True, padding_value=PAD)


def loss(model: nn.Module, words: Tensor) -> tuple[Tensor, Tensor]:
    scores, targets = model(words[:, :-1]), words[:, 1:]
    total = cross_entropy(
        scores.flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum"
    )
    return total, (targets != PAD).sum()


def experiment(batch_size: int = 32, steps: int = 500) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: NextWord(width=96),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
        loss=loss,
        train_data=Sentences,
        collate=padded,
        batch_size=batch_size,
        steps=steps,
        clip_norm=1.0,
        unit="sentences",
    )
