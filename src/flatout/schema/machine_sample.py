"""What a machine does at one moment: GPUs, CPU, memory, disks. Base units; unknown is None.

Written by `flatout monitor` and by runs, read by `top`, `show`, the exporter and the alarms.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Source = Literal["nvml", "nvidia-smi", "demo", "none"]
# Reasons for clocks below the highest that every healthy card reports.
HARMLESS_THROTTLES = frozenset({"idle", "application-clocks", "display-clocks", "sync-boost"})


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process with memory on a GPU. used_bytes: None where the platform does not report it.

    is_own: whether it belongs to the run that the sample was taken for.
    """

    pid: int
    name: str | None = None
    used_bytes: int | None = None
    is_own: bool = False


class GpuSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU. index counts in PCI bus order, as in `schema/machine.py: Gpu`.

    utilization: share of the last moment in which a kernel was running, 0 to 1;
    memory_utilization: in which its memory was read or written; tensor_utilization: in which its
    tensor cores were working.
    clock_hz: of the SMs now; highest_clock_hz: that it can have.
    energy_j: since the driver was loaded. ecc_corrected, ecc_uncorrected: errors since then.
    xid: number of the last Xid error since sampling began; None where none was seen. xid_at: when
    it was seen, in seconds since the epoch.
    throttle_reasons: see `schema/machine.py: Gpu`.
    processes: None where the platform does not list them.
    unread: field -> why it is None.
    """

    index: int
    name: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    utilization: float | None = None
    memory_utilization: float | None = None
    tensor_utilization: float | None = None
    memory_bytes: int | None = None
    used_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    clock_hz: float | None = None
    highest_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    fan: float | None = None
    energy_j: float | None = None
    pcie_sent_bytes_per_s: float | None = None
    pcie_received_bytes_per_s: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    xid: int | None = None
    xid_at: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    processes: tuple[GpuProcess, ...] | None = None
    unread: dict[str, str] = {}


class DiskSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file system that flatout or its data uses; path: where it is mounted.

    is_read_only: nothing can be written to it, such as an image with data.
    """

    path: str
    total_bytes: int
    free_bytes: int
    is_read_only: bool = False


class HostSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The computer without its GPUs.

    utilization: share of all CPUs that worked since the sample before, 0 to 1; None in the first.
    utilizations: the same of each CPU. Rates are since the sample before, of all disks together.
    unread: field -> why it is None.
    """

    utilization: float | None = None
    utilizations: tuple[float, ...] = ()
    num_cpus: int | None = None
    memory_bytes: int | None = None
    available_bytes: int | None = None
    swap_bytes: int | None = None
    swap_used_bytes: int | None = None
    disk_read_bytes_per_s: float | None = None
    disk_written_bytes_per_s: float | None = None
    disks: tuple[DiskSample, ...] = ()
    unread: dict[str, str] = {}


class MachineSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine at one moment.

    at: seconds since the epoch. source: who reported the GPUs. reason: why there are none, or why
    what is shown of them is old.
    """

    at: float
    host: HostSample
    gpus: tuple[GpuSample, ...] = ()
    source: Source = "none"
    reason: str | None = None
