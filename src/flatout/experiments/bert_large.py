"""BERT-Large learns to fill in masked characters: 335 million weights, sequences of up to 384.

Data: the 7,222 speeches of tiny Shakespeare, byte by byte, with their real lengths and padding;
much too little text for a network of this size, but the same work for the machine as more would be.
Needs `pip install 'flatout[language]'`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flatout
from flatout.engine import dataset, decayed_groups
from flatout.engine.optim import lr_schedules
from flatout.experiments import _unpadding
from flatout.experiments._transformers import transformers_library

# Numbers of BERT's vocabulary; bytes are put where its first words are.
PAD, BEGIN, END, MASK, FIRST_BYTE = 0, 101, 102, 103, 1_000
MASKED_SHARE = 0.15
NOT_ASKED = -100


@dataclass(frozen=True, kw_only=True)
class BertSize:
    """Differences between the sizes. length: of the sequences, padding included."""

    depth: int
    width: int
    num_heads: int
    length: int
    vocabulary: int


SIZES = {
    "full": BertSize(depth=24, width=1024, num_heads=16, length=384, vocabulary=30_522),
    "tiny": BertSize(depth=2, width=64, num_heads=2, length=64, vocabulary=1_128),
}


def experiment(
    size: Literal["full", "tiny"] = "full",
    lr: float = 1e-4,
    batch_size: int = 16,
    steps: int = 1_000,
    samples: int | None = None,
    padded: bool = True,
) -> flatout.Experiment:
    """BertForMaskedLM of the transformers library, with random weights.

    Args:
        size: `full` is the real network; `tiny` has 2 layers of width 64 and sequences of up to
            64, for machines without a GPU.
        lr: largest learning rate; it is warmed up and falls to 0.
        batch_size: speeches per update.
        steps: updates in all.
        samples: speeches to train on, and at most that many to validate on; by default all.
        padded: `false` trains on the characters alone: a batch is one row of them, and padding is
            computed nowhere but in the attention.
    """
    shape = SIZES[size]
    return flatout.Experiment(
        model=lambda: build_model(shape, padded=padded),
        named_parameters=True,
        optimizer=lambda named: torch.optim.AdamW(decayed_groups(named, weight_decay=0.01), lr=lr),
        schedule=lambda optimizer, total_steps: lr_schedules.cosine(
            optimizer, warm_up=total_steps // 10, steps=total_steps
        ),
        schedule_every="step",
        loss=loss,
        metrics=metrics,
        train_data=lambda: MaskedSpeeches(read_speeches(shape.length, is_test=False)[:samples]),
        validation_data=lambda: MaskedSpeeches(read_speeches(shape.length, is_test=True)[:samples]),
        collate=None if padded else in_one_row,
        batch_size=batch_size,
        steps=steps,
        validate_every=500,
        clip_norm=1.0,
        unit="sequences",
    )


def build_model(size: BertSize, *, padded: bool = True) -> nn.Module:
    library = transformers_library()
    config = library.BertConfig(
        num_hidden_layers=size.depth,
        hidden_size=size.width,
        num_attention_heads=size.num_heads,
        intermediate_size=4 * size.width,
        vocab_size=size.vocabulary,
        attn_implementation=None if padded else _unpadding.register(),
    )
    model: nn.Module = library.BertForMaskedLM(config)
    return model


class MaskedSpeeches(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Speeches with some characters masked; different ones in each epoch.

    Args:
        speeches: numbers of the vocabulary (speeches, length), padded.
    """

    def __init__(self, speeches: Tensor) -> None:
        self.speeches = speeches

    def __len__(self) -> int:
        return len(self.speeches)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = self.speeches[index].long()
        is_masked = (tokens >= FIRST_BYTE) & (torch.rand(len(tokens)) < MASKED_SHARE)
        return {
            "tokens": tokens.masked_fill(is_masked, MASK),
            "targets": tokens.masked_fill(~is_masked, NOT_ASKED),
        }


def in_one_row(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A batch without its padding: see _unpadding.py."""
    tokens = torch.stack([sample["tokens"] for sample in samples])
    targets = torch.stack([sample["targets"] for sample in samples])
    row = _unpadding.row_of(tokens != PAD)
    return {
        "tokens": _unpadding.in_row(tokens, row["cells_N"], PAD)[None],
        "targets": _unpadding.in_row(targets, row["cells_N"], NOT_ASKED)[None],
        **row,
    }


def loss(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Sum over the masked characters, and their number."""
    return _judged(model, batch)[:2]


def metrics(model: Any, batch: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """accuracy: share of the masked characters that are guessed."""
    total, count, scores = _judged(model, batch)
    num_right = (scores.argmax(dim=2) == batch["targets"]).sum()
    return {"loss": (total, count), "accuracy": (num_right, count)}


def _judged(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    tokens, targets = batch["tokens"], batch["targets"]
    if "cells_N" in batch:
        row = {name: batch[name] for name in ("position_ids", "cells_N", "sources_BL")}
        scores = model(input_ids=tokens, **row).logits
    else:
        scores = model(input_ids=tokens, attention_mask=(tokens != PAD).long()).logits
    total = cross_entropy(
        scores.flatten(0, 1), targets.flatten(), ignore_index=NOT_ASKED, reduction="sum"
    )
    return total, (targets != NOT_ASKED).sum(), scores


def read_speeches(length: int, *, is_test: bool) -> Tensor:
    """The first 90 % of the speeches or the rest (speeches, length), with begin and end tokens."""
    content = (dataset("tinyshakespeare") / "input.txt").read_bytes()
    speeches = content.split(b"\n\n")
    border = len(speeches) * 9 // 10
    chosen = speeches[border:] if is_test else speeches[:border]
    padded = torch.full((len(chosen), length), PAD, dtype=torch.int16)
    for row, speech in zip(padded, chosen, strict=True):
        numbers = [FIRST_BYTE + byte for byte in speech[: length - 2]]
        row[: len(numbers) + 2] = torch.tensor([BEGIN, *numbers, END])
    return padded
