"""GPUs watched through the real child process and binding, with a driver that hangs or crashes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_nvml import compile_nvml

from flatout.schema.machine_sample import GpuProcess
from flatout.system import gpu_sampler
from flatout.system.gpu_sampler import GpuReading, GpuSampler
from flatout.system.host_system import LocalSystem
from flatout.system.machine_sampler import MachineSampler

ROOT = Path(__file__).resolve().parents[2]
EVERY_S = 0.2
SMI = """#!/bin/sh
case "$1" in
  *enforced.power.limit*) echo 'Field "enforced.power.limit" is not a valid field to query.'; exit 2 ;;
  *) echo "RTX 3070, GPU-first, 00000000:01:00.0, 97, 60, 8192, 2048, 81, 211.5, 1890, 2100, 7001,\
 [N/A], [N/A], [N/A], 0x0000000000000020" ;;
esac
"""  # noqa: E501 - as nvidia-smi prints it


# Ends once a sample of the file has an Xid error.
WAITS_FOR_XID = """
import pathlib, sys, time
path, until = pathlib.Path(sys.argv[1]), time.monotonic() + 100
while time.monotonic() < until and not (path.exists() and '"xid"' in path.read_text()):
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def old_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_nvml(tmp_path_factory.mktemp("old-nvml"), is_old=True)


@pytest.fixture
def mode(driver: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets what is wrong with the driver."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    return lambda name: monkeypatch.setenv("FAKE_NVML", name)


def wait_for(
    sampler: GpuSampler, is_wanted: Callable[[GpuReading], bool], limit_s: float = 120
) -> GpuReading:
    """The first reading of that kind; asking never waits."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        begin = time.monotonic()
        reading = sampler.take()
        assert time.monotonic() - begin < 1
        if is_wanted(reading):
            return reading
        time.sleep(0.05)
    raise AssertionError(f"not within {limit_s} s, but {sampler.take()}")


def test_the_work_of_tensor_cores_is_read_where_a_card_counts_it(
    mode: Callable[[str], None],
) -> None:
    mode("gpm")
    sampler = GpuSampler(LocalSystem(), EVERY_S)
    try:
        reading = wait_for(sampler, lambda one: len(one.gpus) == 2)
        assert reading.gpus[1].tensor_utilization is None
        assert "Not Supported" in reading.gpus[1].unread["tensor_utilization"]
        wait_for(sampler, lambda one: one.gpus[0].tensor_utilization == 0.5)
    finally:
        sampler.close()


def test_healthy_gpus_are_read_with_reasons_for_what_is_not(mode: Callable[[str], None]) -> None:
    mode("healthy")
    with MachineSampler(every_s=EVERY_S) as sampler:
        sampler.wait(120)
        sample = sampler.take()
    assert sample.source == "nvml" and sample.reason is None
    first, second = sample.gpus
    # In the order of the PCI bus, which the driver does not keep.
    assert (first.index, first.name, second.name) == (
        0, "NVIDIA GeForce RTX 3070", "NVIDIA GeForce RTX 4090",
    )  # fmt: skip
    assert (first.utilization, first.memory_utilization) == (0.97, 0.6)
    assert (first.memory_bytes, first.used_bytes) == (8 << 30, 2 << 30)
    assert (first.temperature_c, first.power_w, first.power_limit_w) == (81, 211.5, 220)
    assert (first.clock_hz, first.highest_clock_hz) == (1.89e9, 2.1e9)
    assert (first.fan, first.energy_j, first.ecc_uncorrected) == (0.45, 5, 0)
    assert first.throttle_reasons == ("thermal-slowdown",)
    assert first.pcie_received_bytes_per_s == 1000 * 1024
    assert first.processes is not None and second.processes == ()
    mine, other = first.processes
    assert mine.pid == os.getpid() and mine.used_bytes == 1 << 30 and mine.name
    assert other == GpuProcess(pid=4190002)
    assert "WDDM" in first.unread["processes.used_bytes"]


def test_what_wsl_hides_is_unread_not_zero(mode: Callable[[str], None]) -> None:
    mode("wsl")
    with MachineSampler(every_s=EVERY_S) as sampler:
        sampler.wait(120)
        gpu = sampler.take().gpus[0]
    assert gpu.utilization == 0.97
    for field in ("fan", "energy_j", "ecc_corrected", "processes"):
        assert getattr(gpu, field) is None
        assert gpu.unread[field] == "NVML: Not Supported"


def test_driver_that_hangs_is_replaced_and_its_last_reading_kept(
    mode: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mode("hang")
    monkeypatch.setattr(gpu_sampler, "_HANGS_S", 1.0)
    sampler = GpuSampler(LocalSystem(), EVERY_S)
    try:
        wait_for(sampler, lambda reading: bool(reading.gpus))
        old = wait_for(sampler, lambda reading: "no answer" in (reading.reason or ""))
        assert old.gpus and old.source == "nvml" and "last read" in (old.reason or "")
        # Another child is started, and reads before it hangs as well.
        wait_for(sampler, lambda reading: bool(reading.gpus) and reading.reason is None)
    finally:
        sampler.close()


def test_driver_that_crashes_gives_way_to_nvidia_smi(
    mode: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode("crash")
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(gpu_sampler, "_KEPT_S", 0.5)
    # The next child comes late.
    monkeypatch.setattr(gpu_sampler, "_FIRST_PAUSE_S", 30.0)
    sampler = GpuSampler(LocalSystem(), EVERY_S)
    try:
        wait_for(sampler, lambda reading: reading.source == "nvml")
        reading = wait_for(sampler, lambda reading: reading.source == "nvidia-smi")
    finally:
        sampler.close()
    assert "SIGABRT" in (reading.reason or "")
    (gpu,) = reading.gpus
    assert (gpu.utilization, gpu.used_bytes, gpu.power_w) == (0.97, 2 << 30, 211.5)
    assert gpu.power_limit_w is None and "does not support" in gpu.unread["power_limit_w"]
    assert gpu.fan is None and gpu.unread["fan"] == "nvidia-smi: [N/A]"
    assert gpu.throttle_reasons == ("thermal-slowdown",)


def test_gpu_that_is_lost_while_watching_stays_with_its_reason(mode: Callable[[str], None]) -> None:
    mode("lost")
    sampler = GpuSampler(LocalSystem(), EVERY_S)
    try:
        reading = wait_for(
            sampler, lambda reading: len(reading.gpus) > 1 and reading.gpus[1].utilization is None
        )
    finally:
        sampler.close()
    first, second = reading.gpus
    assert first.utilization == 0.97
    assert second.name == "NVIDIA GeForce RTX 4090" and second.used_bytes is None
    assert second.unread["utilization"] == second.unread["used_bytes"] == "NVML: GPU is lost"


def test_xid_error_is_noted_for_its_gpu(mode: Callable[[str], None]) -> None:
    mode("xid")
    sampler = GpuSampler(LocalSystem(), EVERY_S)
    try:
        reading = wait_for(sampler, lambda reading: bool(reading.gpus))
    finally:
        sampler.close()
    assert [gpu.xid for gpu in reading.gpus] == [None, 79]


def test_a_watched_program_is_followed_by_the_alarms_of_its_gpus(
    mode: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode("xid")
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    record = tmp_path / "record"
    done = subprocess.run(
        [
            sys.executable, "-m", "flatout", "watch", "--json", "--out", str(record), "--",
            sys.executable, "-c", WAITS_FOR_XID, str(record / "samples.jsonl"),
        ],
        capture_output=True, text=True, timeout=180, check=True,
    )  # fmt: skip
    # On a slow machine, there may be time for others.
    alarms = {(one["subject"], one["finding"]["rule"]) for one in json.loads(done.stdout)["alarms"]}
    assert ("GPU 1", "gpu-xid") in alarms
    assert "reported Xid error 79" in done.stderr
    again = subprocess.run(
        [sys.executable, "-m", "flatout", "watch", "--show", f"{record}{os.sep}"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "reported Xid error 79" in again.stdout


def test_old_library_lacks_only_what_it_does_not_know(
    old_driver: Path, mode: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mode("healthy")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(old_driver))
    sampler = GpuSampler(LocalSystem(), EVERY_S)
    try:
        gpu = wait_for(sampler, lambda reading: bool(reading.gpus)).gpus[0]
    finally:
        sampler.close()
    assert gpu.utilization == 0.97 and gpu.processes
    assert gpu.energy_j is None and gpu.unread["energy_j"] == "NVML: Function Not Found"


def test_driver_that_refuses_is_not_asked_again_at_once(mode: Callable[[str], None]) -> None:
    mode("refused")
    sampler = GpuSampler(LocalSystem(), EVERY_S)
    try:
        reading = wait_for(sampler, lambda reading: "Driver Not Loaded" in (reading.reason or ""))
        assert reading.source == "none" and sampler.is_settled
        time.sleep(0.5)
        assert sampler._child is None
    finally:
        sampler.close()


def test_child_ends_with_its_parent_though_nvml_hangs(mode: Callable[[str], None]) -> None:
    mode("hang")
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "flatout.system.nvml_sampler", "--every", "0.05"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None and child.stdout is not None
    assert json.loads(child.stdout.readline())["gpus"]
    time.sleep(0.5)
    assert child.poll() is None
    child.stdin.close()
    assert child.wait(120) == 0
    child.stdout.close()
