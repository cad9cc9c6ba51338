"""Energy of a GPU during training, by the driver's own counter."""

from __future__ import annotations

from collections.abc import Callable

import torch

from flatout.system.clock import elapsed_s
from flatout.system.wsl import has_windows_driver

# The driver brings its counter up to date every tenth of a second or so.
_LEAST_S = 1.0


class EnergyMeter:
    """The mean power since this was made.

    Args:
        joules: reads a counter of energy; a text if there is none.
        seconds: reads a clock.
    """

    def __init__(
        self, joules: Callable[[], float | None] | str, seconds: Callable[[], float] = elapsed_s
    ) -> None:
        self._joules = _nothing if isinstance(joules, str) else joules
        self._seconds = seconds
        self._began_j, self._began_s = self._joules(), seconds()

    def mean_w(self) -> float | None:
        """Watts; None if unknown, or where it is too early to say."""
        passed_s = self._seconds() - self._began_s
        if self._began_j is None or passed_s < _LEAST_S:
            return None
        now_j = self._joules()
        # A reloaded driver counts from 0.
        return (
            None if now_j is None or now_j < self._began_j else (now_j - self._began_j) / passed_s
        )


def gpu_joules(device: torch.device) -> Callable[[], float | None] | str:
    """A function that reads the energy used by a device since its driver was loaded; or why not.

    On a CPU it is unknown: since 2020 Linux shows the counters only to root. Windows' driver is
    not asked, where NVML may hang. Cards before Volta have no such counter.

    Source: https://docs.nvidia.com/deploy/nvml-api/ (nvmlDeviceGetTotalEnergyConsumption).
    """
    if device.type != "cuda":
        return "not readable on a CPU"
    if has_windows_driver():
        return "not readable: Windows' driver is not asked, because it may hang"
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return "not readable: pynvml is not installed"
    try:
        pynvml.nvmlInit()
        # Not by its number, which CUDA_VISIBLE_DEVICES changes.
        uuid = torch.cuda.get_device_properties(device).uuid
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception as error:  # noqa: BLE001 - NVML is missing, or the card does not report it
        return f"not readable: NVML has no energy counter for this GPU ({error})"

    def read() -> float | None:
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
        except pynvml.NVMLError:
            return None

    return read


def _nothing() -> float | None:
    return None
