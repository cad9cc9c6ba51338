"""How long a DataLoader with workers takes to its first batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flatout.engine.bench.blocks import failure_text, unread_row
from flatout.schema.bench import BenchRow
from flatout.schema.units import counted_text
from flatout.system.clock import elapsed_s

_NUM_WORKERS = 2
_NUM_SAMPLES, _BATCH_SIZE = 64, 8


class _Numbers(Dataset[Tensor]):
    """Samples that cost nothing: what is measured is the workers' start."""

    def __len__(self) -> int:
        return _NUM_SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(index)


def loader_start(num_starts: int) -> BenchRow:
    """Seconds from a new iterator to its first batch: fresh workers each time."""
    id, label = "limits/loader/start", f"DataLoader start, {counted_text(_NUM_WORKERS, 'worker')}"
    try:
        samples = [_start_s() for _ in range(num_starts)]
    # No shared memory, no processes: in a container with tight limits.
    except (RuntimeError, OSError) as error:
        return unread_row(id, label, "s", failure_text(error))
    method = torch.multiprocessing.get_start_method()
    return BenchRow(
        id=id, label=label, unit="s",
        samples=tuple(samples), is_higher_better=False,
        conditions={"workers": str(_NUM_WORKERS), "method": method},
    )  # fmt: skip


def _start_s() -> float:
    loader = DataLoader(_Numbers(), batch_size=_BATCH_SIZE, num_workers=_NUM_WORKERS)
    began_s = elapsed_s()
    batches = iter(loader)
    next(batches)
    # Its workers end on return, not while the next ones start.
    return elapsed_s() - began_s
