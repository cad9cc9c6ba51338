"""What each rank of a test runs: what building and taking up a model in parts takes of memory.

parts_memory.py FOLDER new|again    trains for a step, or goes on for another; rank N writes its
                                    bytes, beyond what it had before, into FOLDER/MODE.N.json
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import torch

# Loaded for a model in parts: what they take is no part of it.
import torch.distributed.fsdp
import torch.distributed.tensor
from ranks_runs import new_run, ranks_here, train
from torch import Tensor, nn

from flatout.engine import Experiment
from flatout.system.runs import RunFolder

WIDTH, NUM_BLOCKS = 1024, 8


class Block(nn.Module):
    """8 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, WIDTH, bias=False)
        self.narrow = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = hidden + self.narrow(torch.tanh(self.wide(hidden)))
        return out


def own_bytes() -> int:
    """What this process holds of memory, without the pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [one for one in lines if one.startswith("RssAnon")]
    return 1024 * int(line.split()[1])


class Peak(threading.Thread):
    """Looks every few milliseconds how much it is."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.base = self.most = own_bytes()
        self.is_over = threading.Event()

    def run(self) -> None:
        """Until it is over."""
        while not self.is_over.wait(0.003):
            self.most = max(self.most, own_bytes())


folder, mode = Path(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
ranks = ranks_here()
peak = Peak()
found: dict[str, int] = {}


def loss(model: nn.Module, batch: Any) -> Tensor:
    """The first call ends what is looked at: from there on a step takes what it takes."""
    # Before the training, the first rank looks at whole models whether shares compute the same.
    if not found and hasattr(model, "unshard"):
        found["most"] = peak.most - peak.base
        found["now"] = own_bytes() - peak.base
        peak.is_over.set()
    out: Tensor = model(batch[0]).square().mean()
    return out


experiment = Experiment(
    model=lambda: nn.Sequential(*(Block() for _ in range(NUM_BLOCKS))),
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    loss=loss,
    train_data=lambda: (torch.ones(8, WIDTH),),
    batch_size=4,
    steps=1,
)
peak.start()
if mode == "new":
    place = new_run(folder / "run", ranks, sharding="full", allocator="system")
    train(place, experiment, ranks)
else:
    train(RunFolder(folder / "run"), experiment, ranks, epochs=1)
(folder / f"{mode}.{ranks.rank}.json").write_text(json.dumps(found))
