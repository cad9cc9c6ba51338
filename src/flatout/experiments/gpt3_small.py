"""The smallest GPT-3: 124,439,808 weights of GPT-2's shape, random at first, sequences of 1,024.

Data: tiny Shakespeare, byte by byte, as numbers of GPT-2's vocabulary of 50,257: much too little
text for a network of this size, but the same work for the machine as more would be. Needs
`pip install 'flatout[language]'`.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flatout
from flatout.engine import dataset, decayed_groups, streamed_tokens
from flatout.engine.optim import lr_schedules
from flatout.experiments._prompts import decode_prompt, read_prompt
from flatout.experiments._transformers import transformers_library

NUM_WRITTEN = 100


@dataclass(frozen=True, kw_only=True)
class GptSize:
    """Differences between the sizes."""

    depth: int
    width: int
    num_heads: int
    context: int
    vocabulary: int


SIZES = {
    "full": GptSize(depth=12, width=768, num_heads=12, context=1024, vocabulary=50_257),
    "tiny": GptSize(depth=2, width=64, num_heads=2, context=64, vocabulary=256),
}


def experiment(
    size: Literal["full", "tiny"] = "full",
    lr: float = 6e-4,
    steps: int = 1_000,
    batch_size: int = 8,
    samples: int | None = None,
) -> flatout.Experiment:
    """GPT2LMHeadModel of the transformers library, with GPT-3's optimizer (Brown et al. 2020).

    Args:
        size: `full` is the real network; `tiny` has 2 layers of width 64, sequences of 64 and a
            vocabulary of 256, for machines without a GPU.
        lr: largest learning rate; it is warmed up and falls to a tenth.
        steps: updates in all.
        batch_size: sequences per update; GPT-3 had about 500.
        samples: sequences to train on, and at most that many to validate on; by default all.
    """
    shape = SIZES[size]
    return flatout.Experiment(
        model=lambda: build_model(shape),
        named_parameters=True,
        optimizer=lambda named: torch.optim.AdamW(
            decayed_groups(named, weight_decay=0.1), lr=lr, betas=(0.9, 0.95)
        ),
        schedule=lambda optimizer, total_steps: lr_schedules.cosine(
            optimizer, warm_up=total_steps // 20, steps=total_steps, floor=0.1
        ),
        schedule_every="step",
        loss=loss,
        metrics=metrics,
        train_data=lambda: sequences(shape.context, is_test=False)[:samples],
        validation_data=lambda: sequences(shape.context, is_test=True)[:samples],
        batch_size=batch_size,
        steps=steps,
        validate_every=500,
        clip_norm=1.0,
        unit="sequences",
        generate=lambda model: [write(model, shape.context)],
        predict=lambda model, prompts: [write(model, shape.context, prompt) for prompt in prompts],
        predict_data=read_prompt,
        decode=decode_prompt,
        stream=lambda model, prompt: stream(model, shape.context, prompt),
    )


def build_model(size: GptSize) -> nn.Module:
    library = transformers_library()
    config = library.GPT2Config(
        n_layer=size.depth,
        n_embd=size.width,
        n_head=size.num_heads,
        n_positions=size.context,
        vocab_size=size.vocabulary,
        bos_token_id=size.vocabulary - 1,
        eos_token_id=size.vocabulary - 1,
        use_cache=False,
    )
    model: nn.Module = library.GPT2LMHeadModel(config)
    return model


def loss(model: Any, batch: Tensor) -> tuple[Tensor, int]:
    """Sum over the predicted bytes, and their number."""
    tokens = batch.long()
    scores = model(input_ids=tokens[:, :-1]).logits
    targets = tokens[:, 1:].flatten()
    return cross_entropy(scores.flatten(0, 1), targets, reduction="sum"), targets.numel()


def metrics(model: Any, batch: Tensor) -> dict[str, tuple[Tensor, int]]:
    total, count = loss(model, batch)
    return {"loss": (total, count), "bits_per_byte": (total / math.log(2), count)}


def write(model: Any, context: int, prompt: str = "\n") -> str:
    """The model's continuation of a prompt, sampled byte by byte."""
    return "".join(stream(model, context, prompt))


def stream(model: Any, context: int, prompt: str) -> Iterator[str]:
    """The prompt, and then the model's continuation, in pieces of whole characters."""
    begun = torch.tensor([list(prompt.encode())], device=model.device)
    characters = codecs.getincrementaldecoder("utf-8")("replace")
    yield prompt
    for drawn in streamed_tokens(
        # Of the vocabulary only bytes can be read; the rest is there for the network's size.
        lambda tokens: model(input_ids=tokens[:, -context:]).logits[:, -1, :256],
        begun,
        NUM_WRITTEN,
        temperature=0.8,
    ):
        if piece := characters.decode(bytes([int(drawn)])):
            yield piece
    yield characters.decode(b"", final=True)


def sequences(context: int, *, is_test: bool) -> Tensor:
    """Bytes (sequences, context + 1): 90 % of the text side by side, or the last 10 %."""
    content = bytearray((dataset("tinyshakespeare") / "input.txt").read_bytes())
    text = torch.frombuffer(content, dtype=torch.uint8)
    border = len(text) * 9 // 10
    part = text[border:] if is_test else text[:border]
    return part.unfold(0, context + 1, context)
