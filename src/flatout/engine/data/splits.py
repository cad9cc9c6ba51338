"""Two parts of one data set: one to train on, one to validate on."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Subset

from flatout.engine.batches import is_all_tensors, tensors_in, with_tensors
from flatout.engine.data.tables import Table
from flatout.engine.data.texts import Text
from flatout.engine.feed import is_map_style
from flatout.engine.randomness import sample_order
from flatout.errors import UsageError
from flatout.nouns.units import counted_text


def split(dataset: Any, validation: float = 0.1, seed: int = 0) -> tuple[Any, Any]:
    """Parts to train on and to validate on, the same ones whenever it is called.

    Samples are chosen by chance. A Text is cut at one place instead, since its windows go on where
    others end: the validation part is its end.

    Args:
        dataset: tensors with one first dimension, a table, a text, or a map-style dataset.
        validation: share of the samples to validate on, above 0 and below 1.
        seed: of the choice; another one than the run's.

    Returns:
        The two parts, of the same kind as what was given; a `Subset` of a map-style dataset.

    Raises:
        UsageError: bad-data-option.
    """
    if not 0 < validation < 1:
        raise _bad(f"`validation` is {validation}; it is the share of the samples to validate on.")
    if isinstance(dataset, Text):
        return dataset.cut(1 - validation)
    is_tensors = is_all_tensors(dataset)
    if not is_tensors and not is_map_style(dataset):
        raise _bad(
            f"a {type(dataset).__name__} cannot be split: it has no samples by index.",
            fix="put some of its files elsewhere, and give them as validation data",
        )
    num_samples = len(next(tensors_in(dataset))) if is_tensors else len(dataset)
    num_kept = round(num_samples * validation)
    if not 0 < num_kept < num_samples:
        raise _bad(
            f"{counted_text(num_samples, 'sample')} cannot be split so that {validation} of "
            f"them validate."
        )
    order = sample_order(num_samples, seed, 0, is_shuffled=True)
    # In their old order, so that files are read from front to back where the order is kept.
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


def _bad(problem: str, fix: str = "use another share, such as 0.1") -> UsageError:
    return UsageError("bad-data-option", problem, fix=fix)
