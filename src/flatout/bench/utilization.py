"""A training's speed as a share of what the machine can do: MFU, against measured limits.

Source: Chowdhery et al. (2022), PaLM, https://arxiv.org/abs/2204.02311, appendix B: model FLOPs
utilization. There, the whole is the maker's peak; here, it is what matrix products reach.
"""

from __future__ import annotations

import msgspec

from flatout.bench.api import known_limit, known_limits
from flatout.bench.limits import is_busy
from flatout.schema.run import Run, Utilization


def utilization(run: Run, samples_per_s: float | None) -> Utilization | None:
    """How much of its machine a run uses; None without a rate, or without counted FLOPs."""
    flops = run.flops.flops_per_sample if run.flops is not None else None
    if flops is None or samples_per_s is None or run.recipe is None:
        return None
    recipe, num_ranks = run.recipe, run.started.num_ranks if run.started else 1
    precision = recipe.precision.value
    found = Utilization(
        samples_per_s=samples_per_s, flops_per_s=flops * samples_per_s, precision=precision
    )
    device, machine = recipe.device.value, run.header.machine
    # Ranks on CPUs share one, or are on machines that nobody has measured.
    if machine is None or (device == "cpu" and num_ranks > 1):
        return found
    limits = known_limits(machine, device)
    if limits is None:
        return msgspec.structs.replace(found, are_limits_missing=True)
    limit = known_limit(limits, f"limits/matmul/{precision}")
    if limit is None:
        return found
    share = found.flops_per_s / (limit * num_ranks)
    return msgspec.structs.replace(found, share=share, is_limit_doubtful=is_busy(limits))
