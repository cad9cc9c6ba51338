"""Waits for a device."""

from __future__ import annotations

import torch


def wait_for(device: torch.device) -> None:
    """Waits until the device has finished everything; a CPU is never behind."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
