"""An invented machine with two GPUs, for trying what shows samples where there is no GPU."""

from __future__ import annotations

import math

from flatout.schema.machine_sample import (
    DiskSample,
    GpuProcess,
    GpuSample,
    HostSample,
    MachineSample,
)

_GIB = 2**30
_UNDER_WDDM = "NVML: Not Supported (under WDDM)"


def demo_sample(at: float) -> MachineSample:
    """The machine at that time: the same for the same time."""
    return MachineSample(
        at=at, host=_host(at), gpus=(_training_gpu(at), _desktop_gpu(at)), source="demo"
    )


def _wave(at: float, period_s: float, low: float, high: float) -> float:
    return low + (high - low) * (0.5 + 0.5 * math.sin(2 * math.pi * at / period_s))


def _training_gpu(at: float) -> GpuSample:
    """One that trains, with everything that a card can report; now and then it is hot."""
    # A validation every 90 s, in which the GPU waits for data.
    is_validating = at % 90 > 80
    busy = _wave(at, 17, 0.35, 0.6) if is_validating else _wave(at, 23, 0.9, 0.99)
    temperature_c = round(_wave(at, 240, 63, 84))
    is_hot = temperature_c >= 83
    used_bytes = int(5.4 * _GIB)
    return GpuSample(
        index=0,
        name="NVIDIA GeForce RTX 3070",
        uuid="GPU-00000000-0000-0000-0000-000000000001",
        pci_bus_id="00000000:01:00.0",
        utilization=round(busy, 2),
        memory_utilization=round(busy * 0.6, 2),
        memory_bytes=8 * _GIB,
        used_bytes=used_bytes,
        temperature_c=temperature_c,
        power_w=round(40 + 175 * busy, 1),
        power_limit_w=220.0,
        clock_hz=1.56e9 if is_hot else 1.89e9,
        highest_clock_hz=2.1e9,
        memory_clock_hz=7.001e9,
        fan=round(_wave(at, 240, 0.4, 0.75), 2),
        energy_j=round(200.0 * at, 1),
        pcie_sent_bytes_per_s=round(_wave(at, 11, 20e6, 80e6)),
        pcie_received_bytes_per_s=round(_wave(at, 13, 200e6, 900e6)),
        ecc_corrected=0,
        ecc_uncorrected=0,
        throttle_reasons=("thermal-slowdown",) if is_hot else (),
        processes=(
            GpuProcess(pid=4_190_001, name="python", used_bytes=used_bytes - _GIB // 2),
            GpuProcess(pid=4_190_002, name="Xorg", used_bytes=_GIB // 4),
        ),
    )


def _desktop_gpu(at: float) -> GpuSample:
    """One under Windows' driver, which keeps much to itself."""
    busy = _wave(at, 41, 0.0, 0.12)
    silent = ("fan", "energy_j", "ecc_corrected", "ecc_uncorrected", "processes")
    return GpuSample(
        index=1,
        name="NVIDIA GeForce RTX 4090",
        uuid="GPU-00000000-0000-0000-0000-000000000002",
        pci_bus_id="00000000:41:00.0",
        utilization=round(busy, 2),
        memory_utilization=round(busy * 0.4, 2),
        memory_bytes=24 * _GIB,
        used_bytes=int(1.1 * _GIB),
        temperature_c=round(_wave(at, 600, 36, 41)),
        power_w=round(18 + 60 * busy, 1),
        power_limit_w=450.0,
        clock_hz=0.21e9,
        highest_clock_hz=3.165e9,
        memory_clock_hz=0.405e9,
        pcie_sent_bytes_per_s=0.0,
        pcie_received_bytes_per_s=0.0,
        throttle_reasons=("idle",),
        unread=dict.fromkeys(silent, _UNDER_WDDM),
    )


def _host(at: float) -> HostSample:
    shares = tuple(round(_wave(at + 3 * cpu, 19 + cpu, 0.05, 0.9), 3) for cpu in range(8))
    return HostSample(
        utilization=sum(shares) / len(shares),
        utilizations=shares,
        num_cpus=len(shares),
        memory_bytes=32 * _GIB,
        available_bytes=int(_wave(at, 300, 14, 19) * _GIB),
        swap_bytes=8 * _GIB,
        swap_used_bytes=_GIB // 8,
        disk_read_bytes_per_s=round(_wave(at, 29, 0, 180e6)),
        disk_written_bytes_per_s=round(_wave(at, 37, 0, 25e6)),
        disks=(DiskSample(path="/", total_bytes=512 * _GIB, free_bytes=190 * _GIB),),
    )
