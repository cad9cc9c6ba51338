"""Splits a data set into a training and a validation part."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Subset

from flatout.engine.data.tables import Table
from flatout.engine.data.texts import Text
from flatout.engine.feed.feed import is_map_style
from flatout.engine.runtime.rng import sample_order
from flatout.engine.runtime.user_code import kind_text
from flatout.engine.tensors.nested import is_all_tensors, tensors_in, with_tensors
from flatout.errors import UsageError
from flatout.schema.units import counted_text


def split(dataset: Any, validation: float = 0.1, seed: int = 0) -> tuple[Any, Any]:
    """Training and validation parts, the same ones at every call.

    Samples are chosen at random. A Text is cut at one place instead, because its windows continue
    each other: the validation part is its end.

    Args:
        dataset: tensors with one first dimension, a table, a text, or a map-style dataset.
        validation: fraction of the samples for validation, above 0 and below 1.
        seed: of the random choice; independent of the run's seed.

    Returns:
        The two parts, of the same kind as `dataset`; a `Subset` for a map-style dataset.

    Raises:
        UsageError: bad-data-option.
    """
    if not 0 < validation < 1:
        raise _bad(f"`validation` is {validation}; it must be a fraction above 0 and below 1.")
    if isinstance(dataset, Text):
        return dataset.cut(1 - validation)
    is_tensors = is_all_tensors(dataset)
    if not is_tensors and not is_map_style(dataset):
        raise _bad(
            f"{kind_text(dataset)} cannot be split: it has no samples by index.",
            fix="move some of its files to another folder, and use these as validation data",
        )
    num_samples = len(next(tensors_in(dataset))) if is_tensors else len(dataset)
    num_kept = round(num_samples * validation)
    if not 0 < num_kept < num_samples:
        raise _bad(
            f"{counted_text(num_samples, 'sample')} cannot be split with a fraction of "
            f"{validation} for validation."
        )
    order = sample_order(num_samples, seed, 0, is_shuffled=True)
    # Kept in order, so that unshuffled reading goes through files from front to back.
    parts = order[num_kept:].sort().values, order[:num_kept].sort().values
    if isinstance(dataset, Table):
        return dataset.rows(parts[0]), dataset.rows(parts[1])
    if is_tensors:
        first, second = (
            with_tensors(dataset, iter([tensor[part] for tensor in tensors_in(dataset)]))
            for part in parts
        )
        return first, second
    return Subset(dataset, parts[0].tolist()), Subset(dataset, parts[1].tolist())


def _bad(problem: str, fix: str = "use another fraction, such as 0.1") -> UsageError:
    return UsageError("bad-data-option", problem, fix=fix)
