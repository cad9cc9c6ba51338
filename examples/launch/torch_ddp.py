"""DistributedDataParallel as for torchrun: the environment has the rank and the other addresses.

flatout launch --framework torch --nodes 2 examples/launch/torch_ddp.py
"""

from __future__ import annotations

import gc
import platform

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, STEPS = 64, 20


def main() -> None:
    """Trains one layer; every process has batches of its own."""
    dist.init_process_group("gloo")
    loss = loss_after_training()
    place = f"rank {dist.get_rank()} of {dist.get_world_size()} on {platform.node()}"
    print(f"{place}: loss {loss:.6f}", flush=True)
    # DistributedDataParallel refers to itself.
    gc.collect()
    dist.destroy_process_group()


def loss_after_training() -> float:
    """The loss of a model that all processes have trained together.

    The model is gone afterwards: gloo's threads, which it keeps, would otherwise run into the end
    of the interpreter, and now and then abort the process (pytorch/pytorch issue 190489).
    """
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
        return loss_on(model, torch.Generator().manual_seed(1000)).item()


def loss_on(model: nn.Module, dice: torch.Generator) -> torch.Tensor:
    """Of one batch that the generator draws."""
    inputs = torch.randn(BATCH, 8, generator=dice)
    return nn.functional.mse_loss(model(inputs)[:, 0], inputs @ torch.arange(8.0))


if __name__ == "__main__":
    main()
