"""Samples for Prometheus: under flatout's own names, in base units.

A field that is not known has no line: a sentinel would be averaged with real values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, start_wsgi_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flatout.schema.finding import Finding
from flatout.schema.machine_sample import GpuSample, HostSample, MachineSample
from flatout.schema.run_lines import Progress

_GPU_LABELS = ("gpu", "uuid", "name")
_THROTTLE_LABELS = (*_GPU_LABELS, "reason")


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """The newest line of progress of a run that trains."""

    id: str
    progress: Progress


@dataclass(frozen=True, kw_only=True)
class Report:
    """What there is to export now."""

    sample: MachineSample
    runs: tuple[RunReport, ...] = ()
    alarms: tuple[Finding, ...] = ()
    num_samples: int = 0


@dataclass(frozen=True, kw_only=True)
class _GpuMetric:
    """A metric of each GPU. is_counter: its name ends in _total, and it only grows."""

    name: str
    help: str
    value: Callable[[GpuSample], float | None]
    is_counter: bool = False


_GPU_METRICS = (
    _GpuMetric(name="flatout_gpu_utilization_ratio", value=lambda gpu: gpu.utilization,
               help="Share of the time in which a kernel was running."),
    _GpuMetric(name="flatout_gpu_memory_utilization_ratio",
               value=lambda gpu: gpu.memory_utilization,
               help="Share of the time in which memory was read or written."),
    _GpuMetric(name="flatout_gpu_tensor_utilization_ratio",
               value=lambda gpu: gpu.tensor_utilization,
               help="Share of the time in which tensor cores were working."),
    _GpuMetric(name="flatout_gpu_memory_used_bytes", value=lambda gpu: gpu.used_bytes,
               help="Memory in use, by all processes."),
    _GpuMetric(name="flatout_gpu_memory_size_bytes", value=lambda gpu: gpu.memory_bytes,
               help="Memory of the card."),
    _GpuMetric(name="flatout_gpu_temperature_celsius", value=lambda gpu: gpu.temperature_c,
               help="Temperature of the GPU."),
    _GpuMetric(name="flatout_gpu_power_watts", value=lambda gpu: gpu.power_w,
               help="Power that the card draws."),
    _GpuMetric(name="flatout_gpu_power_limit_watts", value=lambda gpu: gpu.power_limit_w,
               help="Power that the card may draw."),
    _GpuMetric(name="flatout_gpu_energy_joules", value=lambda gpu: gpu.energy_j,
               help="Energy since the driver was loaded.", is_counter=True),
    _GpuMetric(name="flatout_gpu_sm_clock_hertz", value=lambda gpu: gpu.clock_hz,
               help="Clock of the SMs."),
    _GpuMetric(name="flatout_gpu_sm_clock_highest_hertz", value=lambda gpu: gpu.highest_clock_hz,
               help="Highest clock that the SMs can have."),
    _GpuMetric(name="flatout_gpu_memory_clock_hertz", value=lambda gpu: gpu.memory_clock_hz,
               help="Clock of the memory."),
    _GpuMetric(name="flatout_gpu_fan_ratio", value=lambda gpu: gpu.fan,
               help="Speed of the fans, of the highest."),
    _GpuMetric(name="flatout_gpu_pcie_sent_bytes_per_second",
               value=lambda gpu: gpu.pcie_sent_bytes_per_s, help="Sent over PCIe."),
    _GpuMetric(name="flatout_gpu_pcie_received_bytes_per_second",
               value=lambda gpu: gpu.pcie_received_bytes_per_s, help="Received over PCIe."),
    _GpuMetric(name="flatout_gpu_ecc_corrected_errors", value=lambda gpu: gpu.ecc_corrected,
               help="Corrected memory errors since the driver was loaded.", is_counter=True),
    _GpuMetric(name="flatout_gpu_ecc_uncorrected_errors", value=lambda gpu: gpu.ecc_uncorrected,
               help="Uncorrected memory errors since the driver was loaded.", is_counter=True),
    _GpuMetric(name="flatout_gpu_last_xid", value=lambda gpu: gpu.xid,
               help="Number of the last Xid error."),
)  # fmt: skip

_HOST_METRICS: tuple[tuple[str, str, Callable[[HostSample], float | None]], ...] = (
    ("flatout_host_cpu_utilization_ratio", "Share of all CPUs that worked.",
     lambda host: host.utilization),
    ("flatout_host_cpus", "Number of logical CPUs.", lambda host: host.num_cpus),
    ("flatout_host_memory_size_bytes", "Memory of the computer.", lambda host: host.memory_bytes),
    ("flatout_host_memory_available_bytes", "Memory that programs can still get.",
     lambda host: host.available_bytes),
    ("flatout_host_swap_size_bytes", "Swap space.", lambda host: host.swap_bytes),
    ("flatout_host_swap_used_bytes", "Swap space in use.", lambda host: host.swap_used_bytes),
    ("flatout_host_disk_read_bytes_per_second", "Read from all disks.",
     lambda host: host.disk_read_bytes_per_s),
    ("flatout_host_disk_written_bytes_per_second", "Written to all disks.",
     lambda host: host.disk_written_bytes_per_s),
)  # fmt: skip

_RUN_METRICS: tuple[tuple[str, str, Callable[[Progress], float | None]], ...] = (
    ("flatout_run_step", "Updates made since the run began.", lambda line: line.step),
    ("flatout_run_epoch", "Epoch, counted from 0.", lambda line: line.epoch),
    ("flatout_run_loss", "Mean training loss since the line before.", lambda line: line.loss),
    ("flatout_run_samples_per_second", "Samples trained per second.",
     lambda line: line.samples_per_s),
    ("flatout_run_learning_rate", "Learning rate of the first group.",
     lambda line: line.learning_rate),
    ("flatout_run_memory_bytes", "Memory that the training holds.",
     lambda line: line.memory_bytes),
)  # fmt: skip


def gpu_name(gpu: GpuSample) -> tuple[str, str, str]:
    """The labels of a GPU."""
    return str(gpu.index), gpu.uuid or "", gpu.name or ""


def gpu_families(gpus: Sequence[GpuSample]) -> Iterator[Metric]:
    """Metrics of the GPUs."""
    for metric in _GPU_METRICS:
        kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=_GPU_LABELS)
        for gpu in gpus:
            value = metric.value(gpu)
            if value is not None:
                family.add_metric(gpu_name(gpu), value)
        yield family
    reasons = GaugeMetricFamily(
        "flatout_gpu_throttle", "Why clocks are below the highest: 1 for each reason.",
        labels=_THROTTLE_LABELS,
    )  # fmt: skip
    for gpu in gpus:
        for reason in gpu.throttle_reasons or ():
            reasons.add_metric((*gpu_name(gpu), reason), 1)
    yield reasons


def host_families(host: HostSample) -> Iterator[Metric]:
    """Metrics of the computer without its GPUs."""
    for name, text, value_of in _HOST_METRICS:
        value = value_of(host)
        yield GaugeMetricFamily(name, text, value=value)
    for name, text, sizes in (
        ("flatout_disk_size_bytes", "Size of a file system.",
         [(disk.path, disk.total_bytes) for disk in host.disks]),
        ("flatout_disk_free_bytes", "Free space of a file system.",
         [(disk.path, disk.free_bytes) for disk in host.disks]),
    ):  # fmt: skip
        family = GaugeMetricFamily(name, text, labels=("path",))
        for path, size in sizes:
            family.add_metric((path,), size)
        yield family


def run_families(runs: Sequence[RunReport]) -> Iterator[Metric]:
    """Metrics of the runs that train."""
    for name, text, value_of in _RUN_METRICS:
        family = GaugeMetricFamily(name, text, labels=("run",))
        for run in runs:
            value = value_of(run.progress)
            if value is not None:
                family.add_metric((run.id,), value)
        yield family


def monitor_families(report: Report) -> Iterator[Metric]:
    """Metrics of the monitor itself: its samples, its alarms."""
    yield CounterMetricFamily(
        "flatout_monitor_samples", "Samples taken since the monitor was started.",
        value=report.num_samples,
    )  # fmt: skip
    yield GaugeMetricFamily(
        "flatout_monitor_sample_timestamp_seconds", "When the last sample was taken.",
        value=report.sample.at,
    )  # fmt: skip
    family = GaugeMetricFamily(
        "flatout_alarms", "Alarms that are raised now, by rule.", labels=("rule",)
    )
    for rule in sorted({finding.rule for finding in report.alarms}):
        family.add_metric((rule,), sum(finding.rule == rule for finding in report.alarms))
    yield family


def families(report: Report) -> Iterator[Metric]:
    """All metrics under flatout's names; none without a value."""
    found = (
        *gpu_families(report.sample.gpus),
        *host_families(report.sample.host),
        *run_families(report.runs),
        *monitor_families(report),
    )
    yield from (family for family in found if family.samples)


class ReportCollector(Collector):
    """Gives Prometheus the newest report.

    Args:
        name: turns a report into metrics.
    """

    def __init__(self, name: Callable[[Report], Iterable[Metric]]) -> None:
        self._name = name
        self.report: Report | None = None

    def collect(self) -> Iterable[Metric]:
        """The metrics; none before the first sample."""
        return self._name(self.report) if self.report is not None else ()

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before: which metrics there are depends on the cards."""
        return ()


class MetricsServer:
    """Serves what a collector gives, in a thread of its own."""

    def __init__(self, collector: ReportCollector, host: str, port: int) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        self._server, self._thread = start_wsgi_server(port, host, registry)

    @property
    def port(self) -> int:
        """The port, also where the system has chosen it."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
