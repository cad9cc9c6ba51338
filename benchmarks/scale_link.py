"""How fast gloo sums gradients between the ranks of this machine: scale_prediction.py's link.

    torchrun --nproc-per-node 2 benchmarks/scale_link.py BYTES

Rank 0 prints, as JSON, the seconds of an exchange of so many bytes, and of a single number. An
exchange does what a training does: after other work has used the caches, gradients are copied into
one tensor, summed, and multiplied.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

_TURNS, _WARM_UPS = 30, 5
# More than any cache of a processor holds.
_OTHER_BYTES = 256 << 20


def main() -> None:
    """Measures both in turns."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gradients = torch.ones(int(sys.argv[1]) // 4)
    tensors = {"large_s": torch.empty_like(gradients), "small_s": torch.zeros(1)}
    others = torch.zeros(_OTHER_BYTES // 4)
    seen: dict[str, list[float]] = {name: [] for name in tensors}
    for _ in range(_WARM_UPS + _TURNS):
        for name, tensor in tensors.items():
            others.add_(1.0)
            dist.barrier()
            began_s = time.perf_counter()
            tensor.copy_(gradients[: tensor.numel()])
            dist.all_reduce(tensor)
            tensor.mul_(0.5)
            seen[name].append(time.perf_counter() - began_s)
    if dist.get_rank() == 0:
        reported = {name: statistics.median(values[_WARM_UPS:]) for name, values in seen.items()}
        print(json.dumps(reported), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
