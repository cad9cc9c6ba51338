"""Prompts for a language model, as given to `flatout predict`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def read_prompt(text: str, alphabet: bytes | None = None) -> list[str]:
    """A text, or that in a file if there is one of that name, as data of one sample.

    Raises:
        ValueError: it is empty, or has characters that are not in the alphabet.
    """
    return _checked(
        Path(text).read_text(encoding="utf-8") if os.path.isfile(text) else text, alphabet
    )


def decode_prompt(content: Any, alphabet: bytes | None = None) -> list[str]:
    """The same of what a client of `flatout serve` sends: a text, or the bytes of a text file.

    Raises:
        ValueError: as `read_prompt`; it is something else.
    """
    if isinstance(content, bytes):
        content = content.decode("utf-8")
    if not isinstance(content, str):
        raise ValueError("a prompt is a text")
    return _checked(content, alphabet)


def _checked(prompt: str, alphabet: bytes | None) -> list[str]:
    if not prompt:
        raise ValueError("it is empty")
    strange = sorted(set(prompt) - set(alphabet.decode())) if alphabet is not None else []
    if strange:
        raise ValueError(f"the model's vocabulary does not have {', '.join(map(repr, strange))}")
    return [prompt]
