"""The environment variables of the processes that flatout starts."""

from __future__ import annotations

import os

_ADDED = {
    # So that cuda:1 is the second GPU as nvidia-smi and flatout's probe count them.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    # Without it cuBLAS does not repeat bit for bit; it is read when CUDA is first used.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # OpenMP's threads spin while they wait for each other; if one of them has lost its core to
    # another program, the other burns its time slice at every operation. Where they spin too
    # little, they fall asleep between the operations of small models (LOG.md, 2026-11-21).
    "GOMP_SPINCOUNT": "20000",
}

# Names the variables that were added, with commas between.
_NAMES = "FLATOUT_ADDED"

# It decides which GPU is which; all the others are about speed.
_NOT_ABOUT_SPEED = "CUDA_DEVICE_ORDER"


def worker_environment() -> dict[str, str]:
    """What a process of the engine is given; what the person has set holds.

    The names of what was added go along: a plain loop that is measured has none of it.
    """
    added = {name: value for name, value in _ADDED.items() if name not in os.environ}
    return {**os.environ, **added, _NAMES: ",".join(added)}


def plain_environment() -> dict[str, str]:
    """What a loop of the person's own would have been given."""
    added = set(os.environ.get(_NAMES, "").split(",")) - {_NOT_ABOUT_SPEED}
    return {name: value for name, value in os.environ.items() if name not in added}
