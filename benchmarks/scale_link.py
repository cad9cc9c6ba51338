"""How fast gloo adds up tensors between the ranks of this machine: scale_prediction.py's link.

    torchrun --nproc-per-node 2 benchmarks/scale_link.py BYTES

Rank 0 prints, as JSON, seconds of an all-reduce of so many bytes, and of a single number.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

_TURNS, _WARM_UPS = 30, 5


def main() -> None:
    """Measures both in turns."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tensors = {"large_s": torch.zeros(int(sys.argv[1]) // 4), "small_s": torch.zeros(1)}
    seen: dict[str, list[float]] = {name: [] for name in tensors}
    for _ in range(_WARM_UPS + _TURNS):
        for name, tensor in tensors.items():
            dist.barrier()
            began_s = time.perf_counter()
            dist.all_reduce(tensor)
            seen[name].append(time.perf_counter() - began_s)
    if dist.get_rank() == 0:
        told = {name: statistics.median(values[_WARM_UPS:]) for name, values in seen.items()}
        print(json.dumps(told), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
