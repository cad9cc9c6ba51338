"""A text as windows of bytes or characters that share memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from flatout.engine.feed.datasets import TensorData
from flatout.errors import UsageError
from flatout.system.atomic_files import mapped_os_errors
from flatout.system.source_path import existing

_PIECE_BYTES = 2**22
_CODE_POINTS = 0x110000


def text(
    path: str | Path,
    *,
    context: int,
    stride: int | None = None,
    unit: Literal["bytes", "characters"] = "bytes",
    vocabulary: str | None = None,
) -> Text:
    """A text file, for models that predict the next byte or character.

    A sample is a window of `context` + 1 numbers: all but the last are inputs, all but the first
    are targets. Bytes are read from the file as they are used (memory-mapped); characters are kept
    in memory, in one byte each if there are at most 256 kinds.

    Args:
        path: of the file; UTF-8 if `unit` is `characters`.
        context: context length of the model.
        stride: distance between the starts of two windows; `context` by default, so that each
            byte is predicted once per epoch. 1 starts a window at every position.
        unit: what a number stands for: a byte, or a character's index in the vocabulary.
        vocabulary: all characters, as one string; by default those of the file, sorted. For
            validation data in a separate file, pass the training text's vocabulary.

    Returns:
        Windows (samples, context + 1): uint8, or int32 if there are more than 256 characters.

    Raises:
        UsageError: data-path-not-found, text-too-short, text-not-readable, unknown-category,
            bad-data-option.
    """
    step = context if stride is None else stride
    if context < 1 or step < 1 or unit not in ("bytes", "characters"):
        raise UsageError(
            "bad-data-option",
            f"`context={context}`, `stride={stride}`, `unit={unit}`: one of them is invalid.",
            fix="context and stride must be at least 1, and unit `bytes` or `characters`",
        )
    file = existing(path)
    if file.is_dir():
        raise _not_readable(file, "it is a folder")
    with mapped_os_errors(file):
        num_bytes = file.stat().st_size
        if num_bytes <= context:
            raise _too_short(str(file), num_bytes, context)
        if unit == "bytes":
            # Private mapping: writing into the tensor changes memory, not the file.
            content = torch.from_file(str(file), shared=False, size=num_bytes, dtype=torch.uint8)
            return Text(content, context, step, str(file))
        kinds = vocabulary or "".join(sorted(set().union(*_pieces(file))))
        return Text(_codes(file, kinds), context, step, str(file), kinds)


class Text(TensorData):
    """Windows of a text.

    content: the whole text as numbers, (length,).
    vocabulary: the character that each number stands for; None for bytes.
    """

    def __init__(
        self, content: Tensor, context: int, stride: int, name: str, vocabulary: str | None = None
    ) -> None:
        if len(content) <= context:
            raise _too_short(name, len(content), context)
        super().__init__(content.unfold(0, context + 1, stride))
        self.content = content
        self.vocabulary = vocabulary
        self._window = context, stride, name

    def cut(self, share: float) -> tuple[Text, Text]:
        """The text before and after a position, which is given as a share of its length."""
        position = int(len(self.content) * share)
        before, after = (
            Text(part, *self._window, self.vocabulary)
            for part in (self.content[:position], self.content[position:])
        )
        return before, after


def _pieces(file: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open(file, "rb") as stream:
        try:
            while piece := stream.read(_PIECE_BYTES):
                yield from filter(None, [decoder.decode(piece)])
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise _not_readable(file, f"it is not UTF-8: {error.reason}") from error


def _codes(file: Path, vocabulary: str) -> Tensor:
    # Maps a character's code point to its number.
    number_of = torch.full((_CODE_POINTS,), -1, dtype=torch.int32)
    number_of[_code_points(vocabulary)] = torch.arange(len(vocabulary), dtype=torch.int32)
    dtype = torch.uint8 if len(vocabulary) <= 256 else torch.int32
    parts = []
    for piece in _pieces(file):
        numbers = number_of[_code_points(piece)]
        if (numbers < 0).any():
            unknown = piece[int(numbers.lt(0).nonzero()[0])]
            raise UsageError(
                "unknown-category",
                f"{file} has the character {unknown!r}, which is not in the vocabulary.",
                fix="pass a vocabulary for all texts together, or leave it out",
            )
        parts.append(numbers.to(dtype))
    return torch.cat(parts)


def _code_points(piece: str) -> Tensor:
    return torch.frombuffer(bytearray(piece.encode("utf-32-le")), dtype=torch.int32).long()


def _too_short(name: str, length: int, context: int) -> UsageError:
    return UsageError(
        "text-too-short",
        f"{name} has a length of {length:,}; a window needs {context + 1:,}.",
        because=f"`context` is {context:,}, and one more is needed as the target",
        fix="use a smaller context, or more text",
    )


def _not_readable(file: Path, because: str) -> UsageError:
    return UsageError(
        "text-not-readable",
        f"{file} cannot be read as text.",
        because=because,
        fix='use a UTF-8 text file, or read it as bytes: unit="bytes"',
    )
