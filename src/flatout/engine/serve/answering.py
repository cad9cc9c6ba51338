"""Answers to the items of a batch: grouped by shape, computed together, the guilty ones alone.

An input that cannot be read, a model that raises, memory that runs out: the other items of the
batch are answered all the same.
"""

from __future__ import annotations

import traceback
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from flatout.engine.serve.replica_model import InputPart, ReadInput, ReplicaModel
from flatout.errors import FlatoutError, RunFailed
from flatout.schema.finding import Finding, finding_from
from flatout.schema.serve_protocol import Answered, BatchItem, ItemRefused, WireTensor
from flatout.schema.units import counted_text
from flatout.system.clock import elapsed_s


class DeviceLost(Exception):
    """The device cannot be used by this process any more."""


@dataclass(slots=True)
class _Work:
    """An item whose input was read, and what was found for it."""

    item: BatchItem
    read: ReadInput
    rows: list[dict[str, Any]] = field(default_factory=list)
    tensors: list[tuple[WireTensor, ...]] = field(default_factory=list)
    refusal: ItemRefused | None = None


@dataclass(frozen=True, slots=True)
class _WorkPart:
    """Samples of an item, from start to end."""

    work: _Work
    start: int
    end: int


class Answers:
    """Answers batches, one at a time.

    Args:
        model: what computes.
        max_samples: computed together at most.
        usual: keys of samples that the model is known to compute; if it fails on another, the
            input is to blame.

    compute_s, decode_s: seconds in the model and in reading, of the last batch.
    """

    def __init__(
        self, model: ReplicaModel, max_samples: int, usual: Iterable[Hashable] = ()
    ) -> None:
        self._model = model
        self._max_samples = max_samples
        self._usual = set(usual)
        self.compute_s = 0.0
        self.decode_s = 0.0
        self.num_samples = 0

    def of(
        self, items: Sequence[BatchItem], max_samples: int | None = None
    ) -> list[Answered | ItemRefused]:  # fmt: skip
        """The answers to items, in any order.

        Args:
            items: at least one.
            max_samples: computed together at most; None: those of the model.

        Raises:
            DeviceLost: the process must end.
        """
        self.compute_s = self.decode_s = 0.0
        self.num_samples = 0
        self._model.begin_batch()
        began_s = elapsed_s()
        refusals: list[Answered | ItemRefused] = []
        groups: dict[Hashable, list[_Work]] = {}
        for item in items:
            try:
                work = _Work(item, self._model.read(item.input))
            except Exception as error:  # noqa: BLE001 - reported for the item
                refusals.append(refused_input(item.id, error))
                continue
            self.num_samples += work.read.num_samples
            groups.setdefault((work.read.key, item.top), []).append(work)
        self.decode_s = elapsed_s() - began_s
        for works in groups.values():
            for parts in _chunks(works, max_samples or self._max_samples):
                self._compute(parts)
        return refusals + [_answer(work) for works in groups.values() for work in works]

    def _compute(self, parts: list[_WorkPart]) -> None:
        parts = [part for part in parts if part.work.refusal is None]
        if not parts:
            return
        try:
            self._take(parts)
            return
        except Exception as error:
            kind = self._model.failure_kind(error)
            if kind == "device":
                raise DeviceLost from error
            is_alone = all(part.work is parts[0].work for part in parts)
            num_samples = sum(part.end - part.start for part in parts)
            if num_samples == 1 or (is_alone and kind != "memory"):
                traceback.print_exc()
                parts[0].work.refusal = self._refusal(parts[0].work, error, kind == "memory")
                return
        # Not in `except`: the traceback holds the tensors of what has failed.
        if kind == "memory":
            self._model.release_memory()
        for half in _halves(parts):
            self._compute(half)

    def _take(self, parts: list[_WorkPart]) -> None:
        model, count = self._model, sum(part.end - part.start for part in parts)
        began_s = elapsed_s()
        batch = model.joined([InputPart(part.work.read, part.start, part.end) for part in parts])
        predictions = model.compute(batch, count)
        self.compute_s += elapsed_s() - began_s
        rows: list[dict[str, Any]] = []
        if not all(part.work.item.is_raw for part in parts):
            rows = model.rows(predictions, count, parts[0].work.item.top)
        place = 0
        found: list[tuple[_Work, Any]] = []
        for part in parts:
            end = place + part.end - part.start
            is_raw = part.work.item.is_raw
            value = model.tensors(predictions, place, end) if is_raw else rows[place:end]
            found.append((part.work, value))
            place = end
        # Only now: a part that fails is tried again, and must not have left anything.
        for work, value in found:
            if work.item.is_raw:
                work.tensors.append(value)
            else:
                work.rows += value

    def _refusal(self, work: _Work, error: Exception, is_memory: bool) -> ItemRefused:
        if is_memory:
            finding = finding_from(_no_memory(error))
        elif isinstance(error, FlatoutError):
            finding = finding_from(error)
        else:
            finding = _failed(error, work.read.num_samples)
        is_input = work.read.key not in self._usual and not is_memory
        return ItemRefused(id=work.item.id, finding=finding, is_input=is_input)


def _chunks(works: Iterable[_Work], most: int) -> Iterable[list[_WorkPart]]:
    """The samples of all items in order, at most so many at a time."""
    parts: list[_WorkPart] = []
    room = most
    for work in works:
        start = 0
        while start < work.read.num_samples:
            end = min(work.read.num_samples, start + room)
            parts.append(_WorkPart(work, start, end))
            room -= end - start
            start = end
            if room == 0:
                yield parts
                parts, room = [], most
    if parts:
        yield parts


def _halves(parts: list[_WorkPart]) -> tuple[list[_WorkPart], list[_WorkPart]]:
    """The same samples, at least two, in two batches."""
    first: list[_WorkPart] = []
    second: list[_WorkPart] = []
    left = sum(part.end - part.start for part in parts) // 2
    for part in parts:
        middle = part.start + min(left, part.end - part.start)
        left -= middle - part.start
        if middle > part.start:
            first.append(_WorkPart(part.work, part.start, middle))
        if part.end > middle:
            second.append(_WorkPart(part.work, middle, part.end))
    return first, second


def _answer(work: _Work) -> Answered | ItemRefused:
    if work.refusal is not None:
        return work.refusal
    return Answered(id=work.item.id, rows=tuple(work.rows), tensors=_joined_tensors(work.tensors))


def _joined_tensors(parts: list[tuple[WireTensor, ...]]) -> tuple[WireTensor, ...]:
    if len(parts) < 2:
        return parts[0] if parts else ()
    return tuple(
        msgspec.structs.replace(
            column[0],
            shape=(sum(tensor.shape[0] for tensor in column), *column[0].shape[1:]),
            data=b"".join(tensor.data for tensor in column),
        )
        for column in zip(*parts, strict=True)
    )


def refused_input(number: int, error: Exception) -> ItemRefused:
    """The refusal of an item whose input cannot be read."""
    is_input = True
    if isinstance(error, FlatoutError):
        finding = finding_from(error)
        # Something is missing here; the client can do nothing about it.
        is_input = error.rule != "data-package-not-installed"
    else:
        finding = Finding(
            rule="input-not-accepted",
            severity="error",
            problem=f"the input cannot be read: {_said(error)}",
        )
    return ItemRefused(id=number, finding=finding, is_input=is_input)


def model_failed(number: int, error: Exception) -> ItemRefused:
    """The refusal of an item on which the model failed."""
    finding = finding_from(error) if isinstance(error, FlatoutError) else _failed(error, 1)
    return ItemRefused(id=number, finding=finding, is_input=False)


def _said(error: Exception) -> str:
    """What an exception says, on one line; its kind, too, where that says more."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[0] if isinstance(error, ValueError) else f"{type(error).__name__}: {lines[0]}"


def _failed(error: Exception, num_samples: int) -> Finding:
    return Finding(
        rule="model-failed",
        severity="error",
        problem=f"the model fails on this input: {_said(error)}",
        because=f"it was computed alone, with {counted_text(num_samples, 'sample')}",
    )


def _no_memory(error: Exception) -> RunFailed:
    return RunFailed(
        "out-of-memory",
        "not enough memory for this input.",
        because=_said(error),
        fix="send a smaller one",
    )
