"""The arguments of `flatout predict RUN`, one by one: files, folders, texts, lines."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from flatout.errors import UsageError
from flatout.system.atomic_files import mapped_os_errors


def expand_inputs(texts: Sequence[str]) -> tuple[str, ...]:
    """The inputs in order: `-` is the lines of standard input, a folder its files by name.

    Raises:
        UsageError: no-input, input-not-readable.
    """
    inputs = tuple(path for text in texts for path in _expanded(text))
    if not inputs:
        raise UsageError(
            "no-input",
            "there is nothing to predict.",
            because=f"{' and '.join(texts)} contained no input" if texts else None,
            fix="name files, folders or texts: flatout predict RUN INPUT...",
        )
    for path in inputs:
        # Bytes that are not UTF-8: Python hides them in the text, and no JSON can hold them.
        if any("\ud800" <= letter <= "\udfff" for letter in path):
            raise _not_unicode(ascii(path), "rename the file, or convert the text: iconv -t UTF-8")
    return inputs


def _lines() -> Iterator[str]:
    try:
        # There is none where it was closed: `<&-`.
        lines = [line.rstrip("\r\n") for line in sys.stdin or ()]
    except UnicodeDecodeError as error:
        raise _not_unicode("standard input", "convert it: iconv -t UTF-8") from error
    yield from filter(None, lines)


def _not_unicode(what: str, fix: str) -> UsageError:
    return UsageError("input-not-readable", f"{what} is not valid UTF-8.", fix=fix)


def _files_below(folder: str) -> Iterator[str]:
    """All files in a folder and below it, by name, without hidden ones."""
    with os.scandir(folder) as items:
        entries = sorted((item for item in items if not item.name.startswith(".")), key=_name_of)
    for item in entries:
        if item.is_file():
            yield item.path
        elif item.is_dir(follow_symlinks=False):
            yield from _files_below(item.path)


def _name_of(item: os.DirEntry[str]) -> str:
    return item.name


def _expanded(text: str) -> Iterator[str]:
    if text == "-":
        yield from _lines()
    elif os.path.isdir(text):
        with mapped_os_errors(Path(text)):
            yield from _files_below(text)
    elif sys.platform == "win32" and not os.path.exists(text) and (matches := glob.glob(text)):
        # Windows' shells leave patterns to the programs.
        yield from sorted(matches)
    else:
        yield text
