"""A model of the transformers library learns to distinguish two kinds of made-up sentences.

pip install 'flatout[language]'
flatout train examples/huggingface.py
flatout train examples/huggingface.py -s pretrained=my-model   # a folder of save_pretrained()
"""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn

import flatout
from flatout.engine import decayed_groups
from flatout.engine.optim import lr_schedules

VOCABULARY, LENGTH, PAD = 100, 24, 0


def model(pretrained: str | None) -> nn.Module:
    """A small BERT with random weights, or one loaded from a folder, always in fp32."""
    if pretrained is not None:
        return transformers.AutoModelForSequenceClassification.from_pretrained(
            pretrained, dtype=torch.float32
        )
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=LENGTH, num_labels=2,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(**batch).loss


def metrics(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    output = model(**batch)
    is_right = output.logits.argmax(dim=1) == batch["labels"]
    return {"accuracy": is_right.float().mean(), "loss": output.loss}


def sentences(count: int, seed: int) -> dict[str, Tensor]:
    """What a tokenizer would give. A sentence is of kind 1 if a word below 10 is in it."""
    dice = torch.Generator().manual_seed(seed)
    words = torch.randint(10, VOCABULARY, (count, LENGTH), generator=dice)
    labels = torch.randint(2, (count,), generator=dice)
    words[:, 1] = torch.where(labels == 1, words[:, 1] % 9 + 1, words[:, 1])
    lengths = torch.randint(3, LENGTH + 1, (count, 1), generator=dice)
    mask = (torch.arange(LENGTH) < lengths).long()
    return {"input_ids": words * mask + PAD * (1 - mask), "attention_mask": mask, "labels": labels}


def experiment(
    lr: float = 2e-3, epochs: int = 3, pretrained: str | None = None
) -> flatout.Experiment:
    return flatout.Experiment(
        model=lambda: model(pretrained),
        named_parameters=True,
        optimizer=lambda named: torch.optim.AdamW(
            decayed_groups(named, weight_decay=0.01, without=("embeddings",)), lr=lr
        ),
        schedule=lambda optimizer, total_steps: lr_schedules.linear(
            optimizer, steps=total_steps, warm_up=10
        ),
        schedule_every="step",
        loss=loss,
        metrics=metrics,
        train_data=lambda: sentences(1600, seed=1),
        validation_data=lambda: sentences(400, seed=2),
        batch_size=32,
        epochs=epochs,
        clip_norm=1.0,
        best="accuracy",
        unit="sentences",
    )
