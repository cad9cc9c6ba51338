"""Data sets of flatout's own: tensors, which need no DataLoader, and parts of other data sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import Dataset, TensorDataset

from flatout.engine.tensors.nested import is_all_tensors, tensors_in, with_tensors


class TensorData(Dataset[Any]):
    """Tensors with metadata, such as the names of their columns.

    tensors: nested tensors with the same first dimension.
    """

    def __init__(self, tensors: Any) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(next(tensors_in(self.tensors)))

    def __getitem__(self, index: int) -> Any:
        return with_tensors(self.tensors, (tensor[index] for tensor in tensors_in(self.tensors)))


def underneath(data: Any) -> Any:
    """The tensors of a data set that only returns their rows; any other data unchanged."""
    gives_rows = getattr(type(data), "__getitem__", None) in (
        TensorData.__getitem__,
        TensorDataset.__getitem__,
    )
    return data.tensors if gives_rows and is_all_tensors(data.tensors) else data


@dataclass(frozen=True, kw_only=True)
class DataSubset:
    """Samples from all over a map-style data set, kept in memory to time reading on them."""

    dataset: Any
    indices: list[int]
    samples: dict[int, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        # Several caches are filled from it in turn, but only the first one reads it.
        if index not in self.samples:
            self.samples[index] = self.dataset[self.indices[index]]
        return self.samples[index]


@dataclass(frozen=True, kw_only=True)
class RepeatedSubset:
    """A data set of full length that repeats the samples of a subset, read each time."""

    part: DataSubset

    def __len__(self) -> int:
        return len(self.part.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.part.dataset[self.part.indices[index % len(self.part)]]
