"""A small GPT that writes Shakespeare, character by character.

Data: tiny Shakespeare, 1,115,394 characters of 65 kinds; 90 % to train on, the rest to validate on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import flatout
from flatout.engine import dataset, decayed_groups, streamed_tokens
from flatout.engine.optim import lr_schedules
from flatout.experiments._prompts import decode_prompt, read_prompt

# In the order of their numbers; all that tiny Shakespeare has.
ALPHABET = b"\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
NUM_CHARACTERS = len(ALPHABET)
NUM_WRITTEN = 200


@dataclass(frozen=True, kw_only=True)
class CharLmSize:
    """Differences between the sizes."""

    depth: int
    width: int
    num_heads: int
    context: int
    dropout: float
    lr: float
    batch_size: int
    steps: int


SIZES = {
    "full": CharLmSize(
        depth=6, width=384, num_heads=6, context=256, dropout=0.2, lr=1e-3, batch_size=64,
        steps=5_000,
    ),
    "tiny": CharLmSize(
        depth=4, width=128, num_heads=4, context=64, dropout=0.0, lr=3e-3, batch_size=32,
        steps=2_000,
    ),
}  # fmt: skip


def experiment(
    size: Literal["full", "tiny"] = "full",
    lr: float | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    samples: int | None = None,
) -> flatout.Experiment:
    """A decoder-only transformer with tied input and output embeddings.

    Args:
        size: `full` has 6 layers of width 384 and sees 256 characters; `tiny` has 4 of width 128
            and sees 64, for machines without a GPU.
        lr: largest learning rate; it is warmed up and falls to a tenth. By default the size's.
        steps: updates in all. By default the size's.
        batch_size: windows of text per update. By default the size's.
        samples: windows to train on, and at most that many to validate on; by default all.
    """
    given: dict[str, Any] = {"lr": lr, "steps": steps, "batch_size": batch_size}
    chosen = replace(SIZES[size], **{name: v for name, v in given.items() if v is not None})
    return flatout.Experiment(
        model=lambda: CharGPT(chosen),
        named_parameters=True,
        optimizer=lambda named: torch.optim.AdamW(
            decayed_groups(named, weight_decay=0.1), lr=chosen.lr, betas=(0.9, 0.99)
        ),
        schedule=lambda optimizer, total_steps: lr_schedules.cosine(
            optimizer, warm_up=min(100, total_steps // 10), steps=total_steps, floor=0.1
        ),
        schedule_every="step",
        loss=loss,
        metrics=metrics,
        train_data=lambda: train_windows(chosen.context, samples),
        validation_data=lambda: validation_windows(chosen.context, samples),
        batch_size=chosen.batch_size,
        steps=chosen.steps,
        validate_every=500,
        clip_norm=1.0,
        unit="windows",
        generate=lambda model: [write(model, chosen.context)],
        predict=lambda model, prompts: [write(model, chosen.context, prompt) for prompt in prompts],
        predict_data=lambda text: read_prompt(text, ALPHABET),
        decode=lambda content: decode_prompt(content, ALPHABET),
        stream=lambda model, prompt: stream(model, chosen.context, prompt),
    )


class TransformerBlock(nn.Module):
    """Attention to the characters before, then a small network for each by itself."""

    def __init__(self, size: CharLmSize) -> None:
        super().__init__()
        self.num_heads = size.num_heads
        self.dropout = size.dropout
        self.attention_norm = nn.LayerNorm(size.width)
        self.queries_keys_values = nn.Linear(size.width, 3 * size.width)
        self.attention_out = nn.Linear(size.width, size.width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(size.width),
            nn.Linear(size.width, 4 * size.width),
            nn.GELU(),
            nn.Linear(4 * size.width, size.width),
            nn.Dropout(size.dropout),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states (windows, characters, width) to hidden states of the same shape."""
        projected = self.queries_keys_values(self.attention_norm(hidden))
        queries, keys, values = (
            part.unflatten(2, (self.num_heads, -1)).transpose(1, 2)
            for part in projected.chunk(3, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = scaled_dot_product_attention(
            queries, keys, values, dropout_p=dropout, is_causal=True
        )
        mixed = self.attention_out(mixed.transpose(1, 2).flatten(2))
        hidden = hidden + nn.functional.dropout(mixed, self.dropout, self.training)
        hidden = hidden + self.mlp(hidden)
        return hidden


class CharGPT(nn.Module):
    """Scores of the next character at every place of a window."""

    def __init__(self, size: CharLmSize) -> None:
        super().__init__()
        self.characters = nn.Embedding(NUM_CHARACTERS, size.width)
        self.places = nn.Embedding(size.context, size.width)
        self.blocks = nn.Sequential(*[TransformerBlock(size) for _ in range(size.depth)])
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, NUM_CHARACTERS, bias=False)
        self.head.weight = self.characters.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                # What is added to the hidden states is scaled down, so that they do not grow
                # with depth (GPT-2, section 2.3).
                is_added = name.endswith(("attention_out.weight", "mlp.3.weight"))
                scale = math.sqrt(2 * size.depth) if is_added else 1.0
                nn.init.normal_(parameter, std=0.02 / scale)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, characters: Tensor) -> Tensor:
        """Characters (windows, length) to scores (windows, length, kinds of characters)."""
        positions = torch.arange(characters.shape[1], device=characters.device)
        hidden = self.characters(characters) + self.places(positions)
        scores: Tensor = self.head(self.norm(self.blocks(hidden)))
        return scores


def loss(model: nn.Module, windows: Tensor) -> Tensor:
    # Kept as bytes, so that all windows together are small.
    windows = windows.long()
    scores = model(windows[:, :-1])
    return cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())


def metrics(model: nn.Module, windows: Tensor) -> dict[str, Tensor]:
    value = loss(model, windows)
    return {"loss": value, "bits_per_character": value / math.log(2)}


def write(model: nn.Module, context: int, prompt: str = "\n") -> str:
    """The model's continuation of a prompt, sampled character by character."""
    return "".join(stream(model, context, prompt))


def stream(model: nn.Module, context: int, prompt: str) -> Iterator[str]:
    """The prompt, and then the model's continuation, character by character."""
    device = next(model.parameters()).device
    begun = torch.tensor([[ALPHABET.index(byte) for byte in prompt.encode()]], device=device)
    yield prompt
    for drawn in streamed_tokens(
        lambda tokens: model(tokens[:, -context:])[:, -1], begun, NUM_WRITTEN, temperature=0.8
    ):
        yield chr(ALPHABET[int(drawn)])


def train_windows(context: int, samples: int | None) -> Tensor:
    """A window (context + 1) at every place of the text; they share its memory."""
    text = read_text()
    return text[: len(text) * 9 // 10].unfold(0, context + 1, 1)[:samples]


def validation_windows(context: int, samples: int | None) -> Tensor:
    """Windows (context + 1) side by side: each character is predicted once."""
    text = read_text()
    return text[len(text) * 9 // 10 :].unfold(0, context + 1, context)[:samples]


def read_text() -> Tensor:
    """The text as numbers of its characters, in alphabetical order, as bytes."""
    content = bytearray((dataset("tinyshakespeare") / "input.txt").read_bytes())
    _, numbers = torch.unique(torch.frombuffer(content, dtype=torch.uint8), return_inverse=True)
    text: Tensor = numbers.to(torch.uint8)
    return text
