"""What benchmarks/sharded_memory.py trains: 32 blocks of 32 MiB, which note what memory they take.

Memory is counted from the first call of `model` to the first call of `loss`: by then the model is
built, cut into shards and, in a resumed run, has its weights and moments from the checkpoint.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed.fsdp
from torch import Tensor, nn

import flatout

WIDTH = 1024
EVERY_S = 0.002
# Variables: the folder for what each rank has taken; whether to end there, before the first step.
PEAKS, IS_ENDED = "FLATOUT_BENCH_PEAKS", "FLATOUT_BENCH_IS_ENDED"


class Memory:
    """This process' memory in bytes, read every few milliseconds.

    `VmHWM` (peak resident memory) is the kernel's own; pages of a mapped file count in it, although
    the kernel may drop them at any time. `RssAnon` is what belongs to the process alone.
    """

    def __init__(self) -> None:
        self.before: dict[str, int] = {}
        self.anonymous = 0
        threading.Thread(target=self._read, daemon=True).start()

    def begin(self) -> None:
        """Counts from here on, if it has not begun yet."""
        if not self.before:
            # The imports of FSDP and of the first optimizer take about 80 MiB, whatever the model.
            torch.optim.AdamW([torch.zeros(1)])
            # Peak resident memory counts from now on.
            Path("/proc/self/clear_refs").write_text("5")
            self.before = read_memory()
            self.anonymous = self.before["RssAnon"]

    def note(self) -> None:
        """Writes what the process has taken by now; of the first call only."""
        file = Path(os.environ[PEAKS], f"rank{os.environ['RANK']}.json")
        if self.before and not file.exists():
            now = read_memory()
            taken = {
                "resident": now["VmHWM"] - self.before["VmRSS"],
                "anonymous": self.anonymous - self.before["RssAnon"],
            }
            file.write_text(json.dumps(taken))

    def _read(self) -> None:
        while True:
            self.anonymous = max(self.anonymous, read_memory()["RssAnon"])
            time.sleep(EVERY_S)


def read_memory() -> dict[str, int]:
    """Memory of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: 1024 * int(fields[name].split()[0]) for name in ("VmHWM", "VmRSS", "RssAnon")}


MEMORY = Memory()


class Block(nn.Module):
    """32 MiB of weights. is_read: a value is read as it is built, which the meta device cannot."""

    def __init__(self, is_read: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.scale = 0.1 + float(self.up.bias.detach()[0] * 0) if is_read else 0.1

    def forward(self, inputs: Tensor) -> Tensor:
        """The same shape (..., WIDTH)."""
        return inputs + self.scale * self.down(torch.relu(self.up(inputs)))


def model(num_blocks: int, is_read: bool) -> nn.Module:
    """So many blocks; the memory of this process counts from here."""
    MEMORY.begin()
    return nn.Sequential(*(Block(is_read) for _ in range(num_blocks)))


def loss(network: nn.Module, batch: Tensor) -> Tensor:
    """A mean over samples."""
    MEMORY.note()
    if os.environ[IS_ENDED] == "1":
        raise RuntimeError("measured")
    return network(batch).square().mean()


def experiment(steps: int = 1, num_blocks: int = 32, is_read: bool = False) -> flatout.Experiment:
    """AdamW, which keeps two moments of every weight."""
    return flatout.Experiment(
        model=lambda: model(num_blocks, is_read),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        loss=loss,
        train_data=lambda: torch.ones(16, WIDTH),
        batch_size=4,
        steps=steps,
    )
