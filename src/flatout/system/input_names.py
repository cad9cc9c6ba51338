"""What is typed behind `flatout predict RUN`, one by one: files, folders, texts, lines."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from flatout.errors import UsageError
from flatout.system.store import mapped_os_errors


def expand_inputs(texts: Sequence[str]) -> tuple[str, ...]:
    """The inputs in order: `-` is the lines of standard input, a folder its files by name.

    Raises:
        UsageError: no-input.
    """
    inputs = tuple(one for text in texts for one in _expanded(text))
    if not inputs:
        raise UsageError(
            "no-input",
            "there is nothing to predict.",
            because=f"{' and '.join(texts)} held no input" if texts else None,
            fix="name files, folders or texts: flatout predict RUN INPUT...",
        )
    return inputs


def _expanded(text: str) -> Iterator[str]:
    if text == "-":
        lines = (line.rstrip("\r\n") for line in sys.stdin)
        yield from (line for line in lines if line)
    elif os.path.isdir(text):
        with mapped_os_errors(Path(text)):
            names = sorted(os.listdir(text))
        paths = [os.path.join(text, name) for name in names if not name.startswith(".")]
        yield from (path for path in paths if os.path.isfile(path))
    elif sys.platform == "win32" and not os.path.exists(text) and (found := glob.glob(text)):
        # Windows' shells leave patterns to the programs.
        yield from sorted(found)
    else:
        yield text
