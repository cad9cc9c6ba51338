"""An LSTM that writes Shakespeare, character by character; data and split are those of `charlm`."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

import flatout
from flatout.experiments._prompts import decode_prompt, read_prompt
from flatout.experiments.charlm import (
    ALPHABET,
    NUM_CHARACTERS,
    loss,
    metrics,
    stream,
    train_windows,
    validation_windows,
    write,
)


def experiment(
    size: Literal["full", "tiny"] = "full",
    lr: float = 2e-3,
    steps: int = 3_000,
    batch_size: int = 64,
    samples: int | None = None,
) -> flatout.Experiment:
    """A recurrent network that begins each window of text with an empty memory.

    Args:
        size: `full` has 2 layers of 512 units and sees 128 characters; `tiny` has 1 layer of 128
            and sees 64, for machines without a GPU.
        lr: learning rate of the first step; it falls to 0 in half a cosine.
        steps: updates in all.
        batch_size: windows of text per update.
        samples: windows to train on, and at most that many to validate on; by default all.
    """
    depth, width, context = (2, 512, 128) if size == "full" else (1, 128, 64)
    return flatout.Experiment(
        model=lambda: CharLSTM(depth, width),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=lr),
        schedule=lambda optimizer, total_steps: torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, total_steps
        ),
        schedule_every="step",
        loss=loss,
        metrics=metrics,
        train_data=lambda: train_windows(context, samples),
        validation_data=lambda: validation_windows(context, samples),
        batch_size=batch_size,
        steps=steps,
        validate_every=500,
        clip_norm=1.0,
        unit="windows",
        generate=lambda model: [write(model, context)],
        predict=lambda model, prompts: [write(model, context, prompt) for prompt in prompts],
        predict_data=lambda text: read_prompt(text, ALPHABET),
        decode=lambda content: decode_prompt(content, ALPHABET),
        stream=lambda model, prompt: stream(model, context, prompt),
    )


class CharLSTM(nn.Module):
    """Scores of the next character at every place of a window."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(NUM_CHARACTERS, width)
        self.lstm = nn.LSTM(
            width, width, depth, batch_first=True, dropout=0.2 if depth > 1 else 0.0
        )
        self.head = nn.Linear(width, NUM_CHARACTERS)

    def forward(self, characters: Tensor) -> Tensor:
        """Characters (windows, length) to scores (windows, length, kinds of characters)."""
        hidden, _ = self.lstm(self.characters(characters))
        scores: Tensor = self.head(hidden)
        return scores
