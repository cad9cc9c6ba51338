"""A text as windows of bytes or characters that share its memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from flatout.engine.data_files import existing
from flatout.engine.tensor_data import TensorData
from flatout.errors import UsageError
from flatout.system.store import mapped_os_errors

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
    """A text file, for models that predict what comes next.

    A sample is a window of `context` + 1 numbers: all but the last go in, all but the first are to
    be predicted. With bytes the file stays where it is, and what is used of it is read as it is
    used; characters are kept in memory, in one byte each if there are at most 256 kinds.

    Args:
        path: of the file; for characters in UTF-8.
        context: how much a model sees at once.
        stride: from a window's beginning to the next one's; `context` by default, so that each
            byte is predicted once in an epoch. 1 makes a window at every place.
        unit: what a number stands for: a byte, or the place of a character in the vocabulary.
        vocabulary: all characters there are, as one text; by default those of the file, sorted.
            Give the training text's for validation data in a file of its own.

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
            f"`context={context}`, `stride={stride}`, `unit={unit}`: one of them cannot be.",
            fix="context and stride are at least 1; a unit is `bytes` or `characters`",
        )
    file = existing(path)
    if file.is_dir():
        raise _not_readable(file, "it is a folder")
    with mapped_os_errors(file):
        num_bytes = file.stat().st_size
        if num_bytes <= context:
            raise _too_short(str(file), num_bytes, context)
        if unit == "bytes":
            # Private: whoever writes into the tensor writes into memory, not into the file.
            content = torch.from_file(str(file), shared=False, size=num_bytes, dtype=torch.uint8)
            return Text(content, context, step, str(file))
        kinds = vocabulary or "".join(sorted(set().union(*_pieces(file))))
        return Text(_codes(file, kinds), context, step, str(file), kinds)


class Text(TensorData):
    """Windows of a text.

    content: the whole text as numbers, (length,).
    vocabulary: the character that each number stands for; None where they are bytes.
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
        """The text before and after a place, which is that share of it from its beginning."""
        place = int(len(self.content) * share)
        before, after = (
            Text(part, *self._window, self.vocabulary)
            for part in (self.content[:place], self.content[place:])
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
    # From a character's code point to its number.
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
                f"{file} has the character {unknown!r}, which the vocabulary has not.",
                fix="give the vocabulary of all texts together, or leave it out",
            )
        parts.append(numbers.to(dtype))
    return torch.cat(parts)


def _code_points(piece: str) -> Tensor:
    return torch.frombuffer(bytearray(piece.encode("utf-32-le")), dtype=torch.int32).long()


def _too_short(name: str, length: int, context: int) -> UsageError:
    return UsageError(
        "text-too-short",
        f"{name} has a length of {length:,}; a window needs {context + 1:,}.",
        because=f"`context` is {context:,}, and what follows it is to be predicted",
        fix="use a smaller context, or more text",
    )


def _not_readable(file: Path, because: str) -> UsageError:
    return UsageError(
        "text-not-readable",
        f"{file} cannot be read as text.",
        because=because,
        fix='give a text file in UTF-8, or read it as bytes: unit="bytes"',
    )
