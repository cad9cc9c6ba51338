"""The plain script that benchmarks/scale.py compares with: textbook DistributedDataParallel.

    torchrun --nproc-per-node 2 benchmarks/scale_ddp.py STEPS FIRST

Rank 0 prints, as JSON, when its first step ended (seconds since the epoch), and the time per step
after the first FIRST.
"""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist
from scale_model import BATCH_SIZE, loss, model, rows
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Trains for so many steps."""
    num_steps, first = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    network = DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, fused=True)
    inputs, labels = rows()
    share = BATCH_SIZE // size
    began_s = first_at = 0.0
    order = torch.empty(0)
    for step in range(num_steps):
        if step == first:
            began_s = time.perf_counter()
        start = step * BATCH_SIZE % len(inputs)
        if start == 0:
            order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(step))
        own = order[start + rank * share : start + (rank + 1) * share]
        value = loss(network, (inputs[own], labels[own]))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if step == 0:
            first_at = time.time()
    step_s = (time.perf_counter() - began_s) / (num_steps - first)
    if rank == 0:
        print(json.dumps({"first_at": first_at, "step_s": step_s}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
