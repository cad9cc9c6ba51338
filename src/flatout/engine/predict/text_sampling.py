"""Text and other sequences drawn from a model, one token after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor


@torch.no_grad()
def sampled_tokens(
    next_scores: Callable[[Tensor], Tensor],
    prompt: Tensor,
    num_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
) -> Tensor:
    """Continues a prompt, token by token. The global generators are left alone.

    Args:
        next_scores: gives the scores (sequences, vocabulary) of the next token for all tokens so
            far (sequences, length). A model with a limited context takes the last ones itself:
            `lambda tokens: model(tokens[:, -context:])[:, -1]`.
        prompt: tokens (sequences, length) of any integer type, at least one each, on the model's
            device.
        num_tokens: how many to add to each sequence.
        temperature: divides the scores; below 1 likely tokens become likelier, 0 always takes the
            likeliest.
        top_k: draws from that many likeliest tokens only; None draws from all.
        seed: of the draws; the same model, prompt and seed give the same tokens.

    Returns:
        Prompt and new tokens (sequences, length + num_tokens), int64.
    """
    tokens = prompt.long()
    drawn = streamed_tokens(
        next_scores, tokens, num_tokens, temperature=temperature, top_k=top_k, seed=seed
    )
    return torch.cat([tokens, *drawn], dim=1)


def streamed_tokens(
    next_scores: Callable[[Tensor], Tensor],
    prompt: Tensor,
    num_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
) -> Iterator[Tensor]:
    """The tokens that `sampled_tokens` adds, as they are drawn.

    Args:
        next_scores, prompt, num_tokens, temperature, top_k, seed: as of `sampled_tokens`.

    Yields:
        The next token of each sequence (sequences, 1), int64.
    """
    tokens = prompt.long()
    generator = torch.Generator(tokens.device).manual_seed(seed)
    for _ in range(num_tokens):
        # Not around the loop: the caller's own code between two tokens is not concerned.
        with torch.no_grad():
            drawn = _drawn(next_scores(tokens).float(), temperature, top_k, generator)
            tokens = torch.cat([tokens, drawn], dim=1)
        yield drawn


def _drawn(
    scores: Tensor, temperature: float, top_k: int | None, generator: torch.Generator
) -> Tensor:
    if temperature == 0:
        return scores.argmax(dim=1, keepdim=True)
    if top_k is not None and top_k < scores.shape[1]:
        least = scores.topk(top_k, dim=1).values[:, -1:]
        scores = scores.masked_fill(scores < least, float("-inf"))
    shares = torch.softmax(scores / temperature, dim=1)
    return torch.multinomial(shares, 1, generator=generator)
