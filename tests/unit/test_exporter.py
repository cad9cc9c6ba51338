"""The exporter's text: names, units, labels; what is unknown has no line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from flatout.errors import UsageError
from flatout.monitor import grafana
from flatout.monitor.dcgm import dcgm_families
from flatout.monitor.exporter import Report, ReportCollector, RunReport, families
from flatout.monitor.grafana_dashboard import PANELS
from flatout.schema.finding import Finding
from flatout.schema.machine_sample import GpuSample, HostSample, MachineSample
from flatout.schema.run_lines import Progress
from flatout.system.demo_samples import demo_sample
from flatout.system.metrics_server import parse_address

PROGRESS = Progress(
    at=1.0, step=120, epoch=3, loss=0.25, samples_per_s=800.0, learning_rate=0.1,
    memory_bytes=2**30, split_s={},
)  # fmt: skip
ALARM = Finding(rule="gpu-xid", severity="error", problem="an Xid.")
DEMO = Report(
    sample=demo_sample(1_800_000_000.0),
    runs=(RunReport(id="digits-0001", progress=PROGRESS),),
    alarms=(ALARM,),
    num_samples=7,
)


def text_of(report: Report, name: Callable[[Report], Iterable[Metric]] = families) -> str:
    """What Prometheus would get."""
    registry = CollectorRegistry()
    collector = ReportCollector(name)
    registry.register(collector)
    collector.report = report
    return generate_latest(registry).decode()


def values(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The values and labels of each name."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            found.setdefault(one.name, []).append((dict(one.labels), one.value))
    return found


def dcgm(report: Report) -> Iterable[Metric]:
    """The metrics under the names of dcgm-exporter."""
    return dcgm_families(report, "here")


def test_gpu_metrics_have_base_units_and_labels() -> None:
    found = values(text_of(DEMO))
    labels, used = found["flatout_gpu_memory_used_bytes"][0]
    assert labels == {
        "gpu": "0", "uuid": "GPU-00000000-0000-0000-0000-000000000001",
        "name": "NVIDIA GeForce RTX 3070",
    }  # fmt: skip
    assert used == DEMO.sample.gpus[0].used_bytes
    assert 0 <= found["flatout_gpu_utilization_ratio"][0][1] <= 1
    assert found["flatout_gpu_sm_clock_hertz"][0][1] > 1e9
    assert "flatout_gpu_energy_joules_total" in found


def test_host_run_and_monitor_metrics() -> None:
    found = values(text_of(DEMO))
    assert found["flatout_host_memory_size_bytes"] == [({}, 32 * 2**30)]
    assert found["flatout_disk_free_bytes"] == [({"path": "/"}, 190 * 2**30)]
    assert found["flatout_run_step"] == [({"run": "digits-0001"}, 120)]
    assert found["flatout_run_loss"] == [({"run": "digits-0001"}, 0.25)]
    assert found["flatout_alarms"] == [({"rule": "gpu-xid"}, 1)]
    assert found["flatout_monitor_samples_total"] == [({}, 7)]


def test_what_is_unknown_has_no_line() -> None:
    gpu = GpuSample(index=0, utilization=0.5)
    sample = MachineSample(at=1.0, host=HostSample(), gpus=(gpu,), source="nvml")
    found = values(text_of(Report(sample=sample)))
    assert [name for name in found if name.startswith("flatout_gpu")] == [
        "flatout_gpu_utilization_ratio"
    ]
    assert not [name for name in found if name.startswith(("flatout_host", "flatout_run"))]
    assert "# TYPE flatout_gpu_power_watts" not in text_of(Report(sample=sample))


def test_there_is_no_metric_before_the_first_sample() -> None:
    registry = CollectorRegistry()
    registry.register(ReportCollector(families))
    assert generate_latest(registry) == b""


def test_dcgm_names_have_its_units_and_labels() -> None:
    found = values(text_of(DEMO, dcgm))
    gpu = DEMO.sample.gpus[0]
    labels, clock = found["DCGM_FI_DEV_SM_CLOCK"][0]
    assert labels == {
        "gpu": "0", "UUID": gpu.uuid, "pci_bus_id": gpu.pci_bus_id, "device": "nvidia0",
        "modelName": gpu.name, "Hostname": "here",
    }  # fmt: skip
    assert gpu.clock_hz is not None and gpu.used_bytes is not None and gpu.memory_bytes is not None
    assert clock == pytest.approx(gpu.clock_hz / 1e6)
    used, free = (found[f"DCGM_FI_DEV_FB_{name}"][0][1] for name in ("USED", "FREE"))
    assert (used + free) * 2**20 == pytest.approx(gpu.memory_bytes)
    assert found["DCGM_FI_DEV_GPU_UTIL"][0][1] == round(100 * (gpu.utilization or 0))
    assert not [name for name in found if name.startswith("flatout")]


def test_dcgm_names_without_a_sentinel() -> None:
    gpu = GpuSample(index=0, temperature_c=40.0)
    sample = MachineSample(at=1.0, host=HostSample(), gpus=(gpu,), source="nvml")
    assert list(values(text_of(Report(sample=sample), dcgm))) == ["DCGM_FI_DEV_GPU_TEMP"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_has_nothing_to_say() -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text_of(DEMO), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_all_names_of_the_dashboard_are_exported() -> None:
    found = set(values(text_of(DEMO)))
    asked = {
        name for panel in PANELS for query, _ in panel.queries
        for name in re.findall(r"flatout_\w+", query)
    }  # fmt: skip
    assert asked - found == set()


@pytest.mark.parametrize("is_host_network", [True, False])
def test_grafana_files_parse_and_belong_together(is_host_network: bool) -> None:
    files = grafana.grafana_files("127.0.0.1", 9400, is_host_network=is_host_network)
    parsed = {name: yaml.safe_load(text) for name, text in files.items()}
    compose = parsed["compose.yaml"]
    assert set(compose["services"]) == {"prometheus", "grafana"}
    target = parsed["prometheus.yml"]["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == ["127.0.0.1:9400" if is_host_network else "host.docker.internal:9400"]
    for service in compose["services"].values():
        assert ("network_mode" in service) == is_host_network
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        for volume in service["volumes"]:
            path = volume.partition(":")[0]
            mounted = path.removeprefix("./")
            assert path in compose["volumes"] or any(name.startswith(mounted) for name in files)
    board = json.loads(files["grafana/dashboards/flatout.json"])
    source = parsed["grafana/provisioning/datasources/flatout.yaml"]["datasources"][0]
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {source["uid"]}


def test_another_computer_is_scraped_by_its_name() -> None:
    files = grafana.grafana_files("gpu-box", 9400, is_host_network=False)
    assert '["gpu-box:9400"]' in files["prometheus.yml"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "grafana"
    written = grafana.write(str(folder), ":9400")
    assert all(Path(name).is_file() for name in written.files)
    (folder / "prometheus.yml").write_text("mine")
    (folder / "compose.yaml").unlink()
    with pytest.raises(UsageError) as caught:
        grafana.write(str(folder), ":9400")
    assert caught.value.rule == "file-exists"
    assert (folder / "prometheus.yml").read_text() == "mine"
    assert not (folder / "compose.yaml").exists()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9400", ("127.0.0.1", 9400)),
        ("9400", ("127.0.0.1", 9400)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("[::1]:9400", ("::1", 9400)),
        ("gpu-box:80", ("gpu-box", 80)),
    ],
)
def test_an_address_is_read(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "foo", ":x", ":70000", "a b:1", "http://a:1", "::1:9400"])
def test_a_bad_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(text)
    assert caught.value.rule == "bad-address"
