"""A driver made of a few lines of C: the real binding of NVML, the real loader, real processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flatout.doctor.api import judge
from flatout.system.host_system import LocalSystem
from flatout.system.probes import gpus, working
from flatout.system.probes.examination import examine
from flatout.system.probes.gpus import probe_gpus
from flatout.system.probes.working import start_cuda

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "cases" / "driver"
SMI = """#!/bin/sh
case "$1" in
  *name,memory*) echo "NVIDIA GeForce RTX 3090, 24576, 23552, 00000000:05:00.0, GPU-1, 580.95.05, 8.6" ;;
  *) echo "00000000:05:00.0, [N/A], [N/A], Enabled, Disabled" ;;
esac
"""  # noqa: E501 - as nvidia-smi prints it


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with libnvidia-ml.so.1, libcuda.so.1 and, below `programs`, nvidia-smi."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler called cc: it makes a driver for the test")
    if probe_gpus(LocalSystem()).gpus:
        pytest.skip("needs a machine without a real driver, which would be asked as well")
    folder = tmp_path_factory.mktemp("driver")
    for source, library in (("nvml.c", "libnvidia-ml.so.1"), ("cuda.c", "libcuda.so.1")):
        command = [compiler, "-shared", "-fPIC", "-o", str(folder / library), str(CASES / source)]
        subprocess.run(command, check=True, timeout=300)
    (folder / "programs").mkdir()
    (folder / "programs" / "nvidia-smi").write_text(SMI, encoding="utf-8")
    (folder / "programs" / "nvidia-smi").chmod(0o755)
    return folder


@pytest.fixture
def system(driver: Path, monkeypatch: pytest.MonkeyPatch) -> LocalSystem:
    """This machine with that driver, without its nvidia-smi."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    # On a busy machine, the process that asks the driver may take seconds to start.
    monkeypatch.setattr(gpus, "NVML_TIMEOUT_S", 120.0)
    monkeypatch.setattr(gpus, "SMI_TIMEOUT_S", 120.0)
    return LocalSystem()


def test_machine_with_a_driver_is_read_through_the_real_binding(
    system: LocalSystem, driver: Path
) -> None:
    machine = examine(system, is_deep=False).machine
    (gpu,) = machine.gpus
    assert (machine.driver, machine.cuda) == ("580.95.05", "13.0")
    assert (gpu.name, gpu.memory_bytes) == ("NVIDIA GeForce RTX 3090", 24 << 30)
    assert (gpu.compute_capability, gpu.pci_bus_id) == ("8.6", "00000000:05:00.0")
    assert (gpu.is_mig_on, gpu.has_display, gpu.is_persistence_on) == (False, True, True)
    assert gpu.throttle_reasons == ("idle",)
    assert machine.unread["gpus.0.driver_model"] == "NVML: Not Supported"
    assert "gpus.0.num_processes" in machine.unread
    assert machine.libraries is not None
    assert [one.path for one in machine.libraries if one.name == "libcuda"][0] == str(
        driver / "libcuda.so.1"
    )


def test_library_and_module_of_different_versions_are_found_on_the_machine(
    system: LocalSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DRIVER", "mismatch")
    found = judge(examine(system).machine).diagnosis.findings
    assert found[0].rule == "driver-library-version-mismatch"
    assert "here" in str(found[0].evidence[0])


@pytest.mark.parametrize(
    ("way", "reason"), [("hang", "no answer within 1 s"), ("crash", "crashed")]
)
def test_nvidia_smi_answers_where_nvml_does_not(
    way: str, reason: str, system: LocalSystem, driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DRIVER", way)
    monkeypatch.setenv("PATH", f"{driver / 'programs'}{os.pathsep}{os.environ['PATH']}")
    if way == "hang":
        monkeypatch.setattr(gpus, "NVML_TIMEOUT_S", 1.0)
    began = time.perf_counter()
    found = probe_gpus(system)
    assert time.perf_counter() - began < 60
    assert found.gpus[0].name == "NVIDIA GeForce RTX 3090"
    assert (found.gpus[0].is_persistence_on, found.gpus[0].has_display) == (True, False)
    assert reason in found.unread["cuda"]


@pytest.mark.parametrize(
    ("way", "error"),
    [
        ("", None),
        ("not-ready", "CUDA_ERROR_SYSTEM_NOT_READY (802)"),
        ("hang", "no answer within 1 s"),
        ("crash", "crashed (exit code -11)"),
    ],
)
def test_cuda_is_started_through_the_real_loader(
    way: str, error: str | None, system: LocalSystem, driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DRIVER", way)
    if way == "hang":
        monkeypatch.setattr(working, "START_TIMEOUT_S", 1.0)
    found, _ = start_cuda(system)
    assert found.error == error
    if way in ("", "not-ready"):
        assert (found.path, found.cuda) == (str(driver / "libcuda.so.1"), "13.0")


def test_doctor_ends_in_good_order_where_the_driver_crashes(
    system: LocalSystem, driver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DRIVER", "crash")
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "doctor", "--json"],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    reported = json.loads(done.stdout)
    assert reported["machine"]["gpus"] == []
    assert "crashed" in reported["machine"]["unread"]["gpus"]
