"""Makes a batch from samples if the experiment has no `collate`, and reports workers' errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import default_collate

from flatout.engine.runtime.error_map import ended_by_person, raised_at
from flatout.engine.runtime.user_code import location_of
from flatout.errors import FlatoutError, UsageError


@dataclass(frozen=True)
class WorkerFailure:
    """Returned by a worker instead of a batch on failure: torch would change the exception."""

    error: FlatoutError


def samples_of(source: Any) -> Iterator[Any]:
    """The samples of an iterable.

    Raises:
        UsageError: data-of-unknown-kind.
    """
    try:
        return iter(source)
    except TypeError as error:
        if raised_at(error) is not None or "non-iterator" not in str(error):
            raise
        location = location_of(getattr(type(source), "__iter__", None))
        raise UsageError(
            "data-of-unknown-kind",
            f"the data's `__iter__` does not return an iterator: {error}.",
            because=location.with_code if location is not None else None,
            fix="`yield` each sample in it, or return iter(samples)",
        ) from error


def refused_to_exit(error: SystemExit) -> WorkerFailure:
    """A failure for user code that called exit(), which would end the reading process silently."""
    refused = ended_by_person(error)
    if refused is None:
        raise error
    return WorkerFailure(refused)


def unless_refused(batch: Any) -> Any:
    """The batch; raises the error that came instead of one."""
    if isinstance(batch, WorkerFailure):
        raise batch.error
    return batch


def stacked(samples: list[Any]) -> Any:
    """Like torch's default_collate: stacks tensors, arrays and numbers, in the samples' nesting.

    Strings are refused (torch would leave them as they are): no model computes with them.

    Raises:
        UsageError: samples-cannot-be-stacked.
    """
    text = _first_of(samples[0], (str, bytes), "")
    if text is not None:
        raise _cannot_stack(*text, because="models compute with numbers")
    try:
        return default_collate(samples)
    except (TypeError, KeyError) as error:
        first = _first_of(samples[0], object, "")
        if any(sample is None for sample in samples):
            raise UsageError(
                "samples-cannot-be-stacked",
                "a sample of the data is None.",
                because="`__getitem__` returned nothing",
                fix="return the sample from `__getitem__`: is a `return` missing?",
            ) from error
        if first is None:
            because = f"the samples differ in structure: {type(error).__name__}: {error}"
            raise _cannot_stack("", samples[0], because) from error
        raise _cannot_stack(*first, because=None) from error
    except RuntimeError as error:
        # In a loader worker torch stacks in shared memory, and the message is different.
        if "equal size" not in str(error) and "resize storage" not in str(error):
            raise
        because = f"the samples differ in size: {_unequal(samples) or error}"
        raise _cannot_stack("", samples[0], because) from error


def _unequal(samples: list[Any]) -> str | None:
    """The shapes of two tensors that should be equal but differ."""
    for column in zip(*map(_tensors, samples), strict=False):
        for tensor in column:
            if tensor.shape != column[0].shape:
                return f"{tuple(column[0].shape)} and {tuple(tensor.shape)}"
    return None


def _tensors(sample: Any) -> Iterator[Any]:
    if isinstance(sample, Mapping):
        sample = list(sample.values())
    if hasattr(sample, "shape"):
        yield sample
    elif isinstance(sample, Sequence) and not isinstance(sample, str | bytes):
        for item in sample:
            yield from _tensors(item)


def _first_of(sample: Any, kind: Any, path: str) -> tuple[str, Any] | None:
    """The first item of that type in a sample that is not a number, with its path."""
    if isinstance(sample, Mapping):
        items = [(f"{path}[{key!r}]", item) for key, item in sample.items()]
    elif isinstance(sample, Sequence) and not isinstance(sample, str | bytes):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(sample)]
    else:
        is_number = isinstance(sample, int | float) or hasattr(sample, "__array_interface__")
        # Pillow images can become arrays, too, but must be refused.
        is_picture = type(sample).__module__.startswith("PIL.")
        if hasattr(sample, "new_tensor") or (is_number and not is_picture):
            return None
        return (path, sample) if isinstance(sample, kind) else None
    return next((first for key, item in items if (first := _first_of(item, kind, key))), None)


def _cannot_stack(path: str, item: Any, because: str | None) -> UsageError:
    kind = f"{type(item).__module__}.{type(item).__name__}".removeprefix("builtins.")
    what = f"`sample{path}` is a {kind}" if path else f"these samples of type {kind}"
    return UsageError(
        "samples-cannot-be-stacked",
        f"{what}: the samples cannot be stacked into a batch."
        if path
        else f"{what} cannot be stacked into a batch.",
        because=because,
        fix="give the experiment a `collate` that makes tensors from a list of samples, or return "
        "tensors from the data set",
    )
