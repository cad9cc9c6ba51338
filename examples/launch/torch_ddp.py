"""DistributedDataParallel as it is written for torchrun: the environment tells who the others are.

flatout launch --framework torch --nodes 2 examples/launch/torch_ddp.py
"""

from __future__ import annotations

import platform

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, STEPS = 64, 20


def main() -> None:
    """Trains one layer; every process has batches of its own."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dice = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_on(model, dice).backward()
        optimizer.step()
    # All have the same model now, so also the same loss on a batch that is the same for all.
    with torch.no_grad():
        loss = loss_on(model, torch.Generator().manual_seed(1000)).item()
    place = f"rank {dist.get_rank()} of {dist.get_world_size()} on {platform.node()}"
    print(f"{place}: loss {loss:.6f}", flush=True)
    dist.destroy_process_group()


def loss_on(model: nn.Module, dice: torch.Generator) -> torch.Tensor:
    """Of one batch that the generator draws."""
    inputs = torch.randn(BATCH, 8, generator=dice)
    return nn.functional.mse_loss(model(inputs)[:, 0], inputs @ torch.arange(8.0))


if __name__ == "__main__":
    main()
