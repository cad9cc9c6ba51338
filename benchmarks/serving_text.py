"""A small classifier of texts, for serving.py: characters, two convolutions, four classes.

    flatout train benchmarks/serving_text.py

Also imported by the programs in serving_peers, whose interpreters lack flatout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

if TYPE_CHECKING:
    import flatout

LENGTH = 128
LABELS = ["sea", "sky", "city", "wood"]
_WORDS = {
    "sea": "wave salt tide ship harbour gull anchor storm reef sail",
    "sky": "cloud star wind moon dawn comet rain thunder sun mist",
    "city": "street tram bridge market tower crowd lamp square roof bus",
    "wood": "oak moss fern path deer owl branch root bark clearing",
}
_SHARED = ["the", "a", "of", "and", "near", "over", "under", "slow", "old", "bright", "quiet"]


class TextClassifier(nn.Module):
    """Scores of the classes for texts (texts, LENGTH) of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 64)
        self.layers = nn.Sequential(
            nn.Conv1d(64, 128, kernel_size=5, padding=2), nn.ReLU(),
            nn.Conv1d(128, 128, kernel_size=5, padding=2), nn.ReLU(),
            nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(128, len(LABELS)),
        )  # fmt: skip

    def forward(self, texts: Tensor) -> Tensor:
        """Texts as bytes to scores (texts, classes)."""
        scores: Tensor = self.layers(self.embedding(texts.long()).transpose(1, 2))
        return scores


def encoded(text: str) -> Tensor:
    """A text (1, LENGTH) as bytes, cut off or filled with zeros."""
    content = text.encode()[:LENGTH].ljust(LENGTH, b"\0")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).unsqueeze(0)


def example_texts(num: int, seed: int) -> tuple[list[str], list[int]]:
    """Texts with their classes; the same for a seed."""
    dice = torch.Generator().manual_seed(seed)

    def draw(size: int) -> int:
        return int(torch.randint(size, (1,), generator=dice))

    texts, classes = [], []
    for _ in range(num):
        kind = draw(len(LABELS))
        words = _WORDS[LABELS[kind]].split()
        # One word in four is of another class.
        other = _WORDS[LABELS[draw(len(LABELS))]].split()
        chosen = [(words, words, other, _SHARED, _SHARED)[draw(5)] for _ in range(8 + draw(12))]
        texts.append(" ".join(of[draw(len(of))] for of in chosen))
        classes.append(kind)
    return texts, classes


def experiment(lr: float = 2e-3, samples: int = 2000) -> flatout.Experiment:
    """Texts of four subjects.

    Args:
        lr: learning rate.
        samples: texts to train on.
    """
    import flatout

    return flatout.Experiment(
        model=TextClassifier,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=lr),
        loss=lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
        train_data=lambda: read_texts(samples, seed=1),
        validation_data=lambda: read_texts(500, seed=2),
        metrics=lambda model, batch: {
            "accuracy": (model(batch[0]).argmax(dim=1) == batch[1]).float().mean()
        },
        batch_size=50,
        steps=200,
        unit="texts",
        labels=LABELS,
        predict=lambda model, texts: model(texts).softmax(dim=1),
        predict_data=encoded,
        decode=decode,
    )


def decode(content: Any) -> Tensor:
    """The same for what a client of the server sends."""
    if isinstance(content, bytes):
        content = content.decode()
    if not isinstance(content, str):
        raise ValueError("it is not a text")
    return encoded(content)


def read_texts(num: int, seed: int) -> tuple[Tensor, Tensor]:
    """Texts (num, LENGTH) as bytes and classes (num,)."""
    texts, classes = example_texts(num, seed)
    return torch.cat([encoded(text) for text in texts]), torch.tensor(classes)
