"""Prompts for a language model, as given to `flatout predict`."""

from __future__ import annotations

import os
from pathlib import Path


def read_prompt(text: str, alphabet: bytes | None = None) -> list[str]:
    """A text, or that in a file if there is one of that name, as data of one sample.

    Raises:
        ValueError: it is empty, or has characters that are not in the alphabet.
    """
    prompt = Path(text).read_text(encoding="utf-8") if os.path.isfile(text) else text
    if not prompt:
        raise ValueError("it is empty")
    strange = sorted(set(prompt) - set(alphabet.decode())) if alphabet is not None else []
    if strange:
        raise ValueError(f"the model's vocabulary does not have {', '.join(map(repr, strange))}")
    return [prompt]
