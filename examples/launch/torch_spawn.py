"""torch.multiprocessing.spawn on every node: DistributedDataParallel over all their processes.

flatout launch --framework torch --nodes 2 examples/launch/torch_spawn.py 2
"""

from __future__ import annotations

import gc
import os
import platform
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, STEPS = 64, 20


def train(local_rank: int, num_here: int) -> None:
    """One process of num_here on this node; each has batches of its own."""
    rank = int(os.environ["NODE_RANK"]) * num_here + local_rank
    world_size = int(os.environ["NNODES"]) * num_here
    # MASTER_ADDR and MASTER_PORT are read from the environment.
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    loss = loss_after_training(rank)
    # In one piece: all processes of a node write into the same pipe.
    sys.stdout.write(f"rank {rank} of {world_size} on {platform.node()}: loss {loss:.6f}\n")
    # DistributedDataParallel refers to itself.
    gc.collect()
    dist.destroy_process_group()


def loss_after_training(rank: int) -> float:
    """The loss of a model that all processes have trained together.

    The model is gone afterwards: gloo's threads, which it keeps, would otherwise run into the end
    of the interpreter, and now and then abort the process (pytorch/pytorch issue 190489).
    """
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dice = torch.Generator().manual_seed(rank)
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
    processes = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    mp.spawn(train, args=(processes,), nprocs=processes)
