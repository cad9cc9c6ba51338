"""The dashboard of Grafana for flatout's names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_SOURCE = {"type": "prometheus", "uid": "prometheus"}
_OF_GPU = '{instance=~"$instance",gpu=~"$gpu"}'
_OF_HOST = '{instance=~"$instance"}'
_COLUMNS = 2
_WIDTH, _HEIGHT = 12, 8


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A chart. unit: Grafana's name of it. queries: PromQL with the legend of its lines.

    least, most: of its axis; None where the values decide.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    least: float | None = 0
    most: float | None = None


def _of_gpus(name: str) -> tuple[tuple[str, str], ...]:
    return ((name + _OF_GPU, "{{instance}} GPU {{gpu}}"),)


def _of_runs(name: str) -> tuple[tuple[str, str], ...]:
    return ((name + _OF_HOST, "{{run}}"),)


PANELS = (
    Panel(title="Alarms", unit="short",
          queries=((f"flatout_alarms{_OF_HOST}", "{{instance}} {{rule}}"),)),
    Panel(title="GPU utilization", unit="percentunit", most=1,
          queries=_of_gpus("flatout_gpu_utilization_ratio")),
    Panel(title="Samples per second", unit="short",
          queries=_of_runs("flatout_run_samples_per_second")),
    Panel(title="Training loss", unit="short", least=None, queries=_of_runs("flatout_run_loss")),
    Panel(title="GPU memory in use", unit="bytes",
          queries=_of_gpus("flatout_gpu_memory_used_bytes")),
    Panel(title="GPU temperature", unit="celsius",
          queries=_of_gpus("flatout_gpu_temperature_celsius")),
    Panel(title="GPU power", unit="watt", queries=_of_gpus("flatout_gpu_power_watts")),
    Panel(title="GPU clocks", unit="hertz", queries=_of_gpus("flatout_gpu_sm_clock_hertz")),
    Panel(title="GPU clocks limited by", unit="short", queries=(
        (f"flatout_gpu_throttle{_OF_GPU}", "{{instance}} GPU {{gpu}} {{reason}}"),)),
    Panel(title="PCIe", unit="Bps", queries=(
        (f"flatout_gpu_pcie_sent_bytes_per_second{_OF_GPU}", "{{instance}} GPU {{gpu}} sent"),
        (f"flatout_gpu_pcie_received_bytes_per_second{_OF_GPU}",
         "{{instance}} GPU {{gpu}} received"))),
    Panel(title="CPU", unit="percentunit", most=1, queries=(
        (f"flatout_host_cpu_utilization_ratio{_OF_HOST}", "{{instance}}"),)),
    Panel(title="Memory available", unit="bytes", queries=(
        (f"flatout_host_memory_available_bytes{_OF_HOST}", "{{instance}}"),)),
    Panel(title="Disks", unit="Bps", queries=(
        (f"flatout_host_disk_read_bytes_per_second{_OF_HOST}", "{{instance}} read"),
        (f"flatout_host_disk_written_bytes_per_second{_OF_HOST}", "{{instance}} written"))),
    Panel(title="Free disk space", unit="bytes", queries=(
        (f"flatout_disk_free_bytes{_OF_HOST}", "{{instance}} {{path}}"),)),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    return {
        "uid": "flatout",
        "title": "flatout",
        "editable": True,
        "refresh": "10s",
        "schemaVersion": 39,
        "tags": ["flatout"],
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(_variables())},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _variables() -> Iterator[dict[str, Any]]:
    for name, query in (
        ("instance", "label_values(flatout_monitor_samples_total, instance)"),
        ("gpu", "label_values(flatout_gpu_memory_size_bytes, gpu)"),
    ):
        yield {
            "name": name,
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": name},
            "definition": query,
            "includeAll": True,
            "allValue": ".*",
            "multi": True,
            "refresh": 2,
            "current": {"text": "All", "value": "$__all"},
        }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "custom": {"fillOpacity": 10}}
    if panel.least is not None:
        defaults["min"] = panel.least
    if panel.most is not None:
        defaults["max"] = panel.most
    return {
        "id": number + 1,
        "title": panel.title,
        "type": "timeseries",
        "datasource": _SOURCE,
        "gridPos": {
            "x": number % _COLUMNS * _WIDTH,
            "y": number // _COLUMNS * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"tooltip": {"mode": "multi"}, "legend": {"displayMode": "list"}},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend}
            for place, (query, legend) in enumerate(panel.queries)
        ],
    }
