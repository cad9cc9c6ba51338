"""What the machine did while a run trained, in a few numbers."""

from __future__ import annotations

import msgspec


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU during a run: medians of utilization and power, the highest of everything else.

    used_bytes: of its memory, by all programs; others_bytes: by programs other than the run, None
    where the platform does not report memory by process. throttle_reasons: those of at least a
    twentieth of the samples, without the harmless ones. is_used: whether the run has used it; None
    where processes are not listed.
    """

    index: int
    name: str | None = None
    is_used: bool | None = None
    utilization: float | None = None
    memory_bytes: int | None = None
    used_bytes: int | None = None
    others_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle_reasons: tuple[str, ...] = ()


class MachineUse(msgspec.Struct, frozen=True, kw_only=True):
    """The machine during a run: median utilization of its CPUs, highest use of its memory.

    span_s: between the first and the last sample. reason: why there are no GPUs.
    """

    num_samples: int
    span_s: float
    gpus: tuple[GpuUse, ...] = ()
    reason: str | None = None
    utilization: float | None = None
    memory_bytes: int | None = None
    used_bytes: int | None = None
