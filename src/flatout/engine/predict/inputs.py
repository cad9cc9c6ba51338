"""Inputs, read one by one and collated into batches; an input that cannot be read is left out.

Only what belongs to one batch is in memory at a time. Samples of different shapes never share a
batch, so that texts of every length can be given.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from flatout.engine.feed.collate import samples_of, stacked
from flatout.engine.feed.data_kind import data_kind
from flatout.engine.tensors.nested import tensors_in, with_tensors
from flatout.errors import FlatoutError

Row = tuple[str, int | None]

# So that the names of a long file's rows are never all in memory.
_MOST_ROWS = 8192


@dataclass(frozen=True)
class InputBatch:
    """One batch of inputs. rows: for each sample its input, and which of its samples it is."""

    rows: list[Row]
    content: Any

    @property
    def shapes_text(self) -> str:
        """The shapes of its samples, for error messages."""
        shapes = [str(tuple(tensor.shape[1:])) for tensor in tensors_in(self.content)]
        return f"its samples have shape {', '.join(shapes)}" if shapes else "it has no tensors"


@dataclass(frozen=True)
class UnreadableInput:
    """An input that could not be read, and what was raised."""

    text: str
    error: Exception


def batches_of(
    inputs: Iterable[str],
    read: Callable[[str], Any],
    batch_size: int,
    collate: Callable[[list[Any]], Any] | None,
) -> Iterator[InputBatch | UnreadableInput]:
    """The samples of all inputs in order, at most batch_size at a time.

    Args:
        inputs: what was typed.
        read: makes data of an input, of any kind the engine knows.
        batch_size: samples per batch.
        collate: makes a batch of a list of samples; None stacks them.
    """
    pool = _Pool(batch_size, collate)
    for text in inputs:
        samples = _samples(text, read)
        pool.refused = None
        # Samples that cannot be collated once are not tried again, and reported once.
        while pool.refused != text:
            try:
                item = next(samples, None)
            except Exception as error:  # noqa: BLE001 - reported for the input, with its cause
                _raise_if_of_all(error)
                # Earlier inputs are computed before this is reported: all comes in order.
                yield from pool.emptied()
                if pool.refused != text:
                    yield UnreadableInput(text, error)
                break
            if item is None:
                break
            yield from pool.take(*item)
    yield from pool.emptied()


def _raise_if_of_all(error: Exception) -> None:
    """Raises what is not the matter with one input: something is missing for all of them."""
    if isinstance(error, FlatoutError) and error.rule == "data-package-not-installed":
        raise error


def _samples(text: str, read: Callable[[str], Any]) -> Iterator[tuple[list[Row], Any, bool]]:
    """An input's rows with its tensors as a whole, or its samples one by one."""
    data = read(text)
    kind = data_kind(data)
    if kind == "tensors":
        count = len(next(tensors_in(data)))
        for start in range(0, count, _MOST_ROWS):
            end = min(count, start + _MOST_ROWS)
            rows = [(text, None if count == 1 else row) for row in range(start, end)]
            yield rows, _slice(data, start, end), True
    else:
        samples = (
            samples_of(data) if kind == "iterable" else (data[row] for row in range(len(data)))
        )
        first = list(itertools.islice(samples, 2))
        for row, sample in enumerate(itertools.chain(first, samples)):
            yield [(text, None if len(first) == 1 else row)], sample, False
        count = len(first)
    if not count:
        raise ValueError("it has no samples")


class _Pool:
    """Samples that wait for a batch to be full.

    refused: the last input whose samples could not be collated.
    """

    def __init__(self, batch_size: int, collate: Callable[[list[Any]], Any] | None) -> None:
        self.refused: str | None = None
        self._batch_size = batch_size
        self._collate = collate
        self._rows: list[Row] = []
        self._parts: list[Any] = []
        self._kind: Any = None

    def take(
        self, rows: list[Row], content: Any, is_tensors: bool
    ) -> Iterator[InputBatch | UnreadableInput]:
        """Adds samples of an input, and gives the batches that became full."""
        # A `collate` of the experiment's own may collate samples of different shapes.
        can_differ = not is_tensors and self._collate is not None
        kind = (is_tensors, None if can_differ else _shapes(content, is_batch=is_tensors))
        if kind != self._kind:
            yield from self.emptied()
            self._kind = kind
        done = 0
        while done < len(rows):
            count = min(self._batch_size - len(self._rows), len(rows) - done)
            self._rows += rows[done : done + count]
            self._parts.append(_slice(content, done, done + count) if is_tensors else content)
            done += count
            if len(self._rows) == self._batch_size:
                yield from self.emptied()
                if self.refused == rows[0][0]:
                    return

    def emptied(self) -> Iterator[InputBatch | UnreadableInput]:
        """Empties the buffer; yields its samples as a batch, if there are any."""
        rows, parts, self._rows, self._parts = self._rows, self._parts, [], []
        if not rows:
            return
        is_tensors, _ = self._kind
        if is_tensors:
            yield InputBatch(rows, _joined(parts))
        else:
            yield from self._collated(rows, parts)

    def _collated(
        self, rows: list[Row], samples: list[Any]
    ) -> Iterator[InputBatch | UnreadableInput]:
        """A batch of samples; where that fails, one of each input's, to find whose fault it is."""
        texts = list(dict.fromkeys(text for text, _ in rows))
        try:
            result: InputBatch | UnreadableInput = InputBatch(
                rows, (self._collate or together)(samples)
            )
        except Exception as error:  # noqa: BLE001 - reported for the input, with its cause
            _raise_if_of_all(error)
            if len(texts) > 1:
                for text in texts:
                    own = [index for index, (row_text, _) in enumerate(rows) if row_text == text]
                    yield from self._collated(
                        [rows[row_text] for row_text in own],
                        [samples[row_text] for row_text in own],
                    )
                return
            self.refused = texts[0]
            result = UnreadableInput(texts[0], error)
        yield result


def together(samples: list[Any]) -> Any:
    """A batch of samples: as in training, but for texts, which `predict` is given as they are."""
    if all(isinstance(sample, str) for sample in samples):
        return samples
    return stacked(samples)


def _shapes(content: Any, *, is_batch: bool) -> tuple[Any, ...]:
    """The shape and type that all samples of a batch must share."""
    return tuple(
        (tensor.dtype, tensor.shape[1:] if is_batch else tensor.shape)
        for tensor in tensors_in(content)
    )


def _slice(content: Any, start: int, end: int) -> Any:
    return with_tensors(content, (tensor[start:end] for tensor in tensors_in(content)))


def _joined(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    columns = zip(*(tensors_in(part) for part in parts), strict=True)
    return with_tensors(parts[0], (torch.cat(column) for column in columns))
