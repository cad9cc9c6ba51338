"""A GPU whose allocator has a limit: training goes on with less, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.engine.runtime.gpu_memory import release_memory
from flatout.system.store.run_folder import read_run

if TYPE_CHECKING:
    from conftest import Lab, Tell

Plain = Callable[..., Experiment]

MIB = 2**20
WIDTH = 2**20


class Wide(nn.Module):
    """Each sample keeps some 12 MiB for the backward pass; the weights are small."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 16)
        self.dropout = nn.Dropout(0.2)
        self.outer = nn.Linear(16, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.dropout(self.inner(inputs))
        spread = hidden.repeat(1, WIDTH // 16).sin().cos().tanh()
        return self.outer(spread.view(len(inputs), -1, 16).mean(dim=1))


@pytest.fixture
def limited() -> Iterator[Callable[[int], None]]:
    """Gives torch's allocator a limit in bytes; takes it away again."""
    device = torch.device("cuda:0")
    total = torch.cuda.get_device_properties(device).total_memory

    def limit(num_bytes: int) -> None:
        release_memory()
        held = torch.cuda.memory_reserved(device)
        torch.cuda.set_per_process_memory_fraction((held + num_bytes) / total, device)

    yield limit
    torch.cuda.set_per_process_memory_fraction(1.0, device)
    release_memory()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_batch_that_does_not_fit_is_halved(
    lab: Lab, tell: Tell, plain: Plain, limited: Callable[[int], None], precision: str
) -> None:
    lab.use["precision"] = precision
    experiment = plain(model=Wide, batch_size=25, epochs=2, validation_data=None)
    limited(250 * MIB)
    folder = lab.run(experiment)
    sizes = [one.after for one in read_run(folder).adaptations]
    assert sizes and all(one.is_in_place for one in read_run(folder).adaptations)
    limited(16 * 1024 * MIB)
    whole = lab.run(experiment, micro_batch_size=sizes[-1])
    assert tell.traces(folder) == tell.traces(whole)
