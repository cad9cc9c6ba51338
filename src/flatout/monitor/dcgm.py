"""The names, units and labels of NVIDIA's dcgm-exporter, for dashboards that were made for it.

Sources: NVIDIA/dcgm-exporter etc/default-counters.csv (names, kinds, units) and
internal/pkg/rendermetrics/render_metrics.go (labels). Of its default counters, these are left out
because NVML does not report them on all cards, or counts something else: MEMORY_TEMP,
PCIE_REPLAY_COUNTER, ENC_UTIL, DEC_UTIL, NVLINK_BANDWIDTH_TOTAL, VGPU_LICENSE_STATUS and the
remapped rows. PCIE_TX_THROUGHPUT and PCIE_RX_THROUGHPUT are left out, too: they count, and NVML
reports rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

from flatout.monitor.exporter import Report
from flatout.schema.machine_sample import GpuSample

_MIB = 2**20
_LABELS = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname")


@dataclass(frozen=True, kw_only=True)
class _Field:
    name: str
    help: str
    value: Callable[[GpuSample], float | None]


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value)


def _free_bytes(gpu: GpuSample) -> float | None:
    if gpu.memory_bytes is None or gpu.used_bytes is None:
        return None
    return gpu.memory_bytes - gpu.used_bytes


_FIELDS = (
    _Field(name="DCGM_FI_DEV_SM_CLOCK", help="SM clock frequency (in MHz).",
           value=lambda gpu: _times(gpu.clock_hz, 1e-6)),
    _Field(name="DCGM_FI_DEV_MEM_CLOCK", help="Memory clock frequency (in MHz).",
           value=lambda gpu: _times(gpu.memory_clock_hz, 1e-6)),
    _Field(name="DCGM_FI_DEV_GPU_TEMP", help="GPU temperature (in C).",
           value=lambda gpu: gpu.temperature_c),
    _Field(name="DCGM_FI_DEV_POWER_USAGE", help="Power draw (in W).",
           value=lambda gpu: gpu.power_w),
    _Field(name="DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
           help="Total energy consumption since boot (in mJ).",
           value=lambda gpu: _times(gpu.energy_j, 1e3)),
    _Field(name="DCGM_FI_DEV_GPU_UTIL", help="GPU utilization (in %).",
           value=lambda gpu: _percent(gpu.utilization)),
    _Field(name="DCGM_FI_DEV_MEM_COPY_UTIL", help="Memory utilization (in %).",
           value=lambda gpu: _percent(gpu.memory_utilization)),
    _Field(name="DCGM_FI_DEV_XID_ERRORS", help="Value of the last XID error encountered.",
           value=lambda gpu: gpu.xid),
    _Field(name="DCGM_FI_DEV_FB_FREE", help="Framebuffer memory free (in MiB).",
           value=lambda gpu: _times(_free_bytes(gpu), 1 / _MIB)),
    _Field(name="DCGM_FI_DEV_FB_USED", help="Framebuffer memory used (in MiB).",
           value=lambda gpu: _times(gpu.used_bytes, 1 / _MIB)),
    _Field(name="DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
           help="Total number of single-bit volatile ECC errors.",
           value=lambda gpu: gpu.ecc_corrected),
    _Field(name="DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
           help="Total number of double-bit volatile ECC errors.",
           value=lambda gpu: gpu.ecc_uncorrected),
    # DCGM measures it by counters of the card; NVML's utilization is the nearest to it.
    _Field(name="DCGM_FI_PROF_GR_ENGINE_ACTIVE",
           help="Ratio of time the graphics engine is active.",
           value=lambda gpu: gpu.utilization),
    _Field(name="DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
           help="Ratio of cycles the tensor (HMMA) pipe is active.",
           value=lambda gpu: gpu.tensor_utilization),
)  # fmt: skip


def dcgm_families(report: Report, hostname: str) -> Iterator[Metric]:
    """The GPUs' metrics under dcgm-exporter's names; none without a value."""
    for field in _FIELDS:
        # Counters, too, are gauges here: Prometheus' client would add _total to their names.
        family = GaugeMetricFamily(field.name, field.help, labels=_LABELS)
        for gpu in report.sample.gpus:
            value = field.value(gpu)
            if value is not None:
                labels = (str(gpu.index), gpu.uuid or "", gpu.pci_bus_id or "",
                          f"nvidia{gpu.index}", gpu.name or "", hostname)  # fmt: skip
                family.add_metric(labels, value)
        if family.samples:
            yield family
