"""Data sets that are tensors underneath: sliced like tensors, without a DataLoader."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset, TensorDataset

from flatout.engine.batches import is_all_tensors, tensors_in, with_tensors


class TensorData(Dataset[Any]):
    """Tensors with something to tell about them, such as the names of their columns.

    tensors: nested tensors with one first dimension.
    """

    def __init__(self, tensors: Any) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(next(tensors_in(self.tensors)))

    def __getitem__(self, index: int) -> Any:
        return with_tensors(self.tensors, (tensor[index] for tensor in tensors_in(self.tensors)))


def underneath(data: Any) -> Any:
    """The tensors of a data set that gives nothing but their rows; any other data as it is."""
    gives_rows = getattr(type(data), "__getitem__", None) in (
        TensorData.__getitem__,
        TensorDataset.__getitem__,
    )
    return data.tensors if gives_rows and is_all_tensors(data.tensors) else data
