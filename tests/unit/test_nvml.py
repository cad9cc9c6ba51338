"""NVML asked in a child; in place of NVIDIA's library a Python file that behaves like it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flatout.system.host_system import Completed, LocalSystem
from flatout.system.probes.gpus import GpuReport, parse_nvml

SRC = Path(__file__).resolve().parents[2] / "src"

LIBRARY = """
from types import SimpleNamespace as S
class NVMLError(Exception): pass
class NVMLError_NotSupported(NVMLError): pass
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 3
def nvmlSystemGetDriverVersion(): return b"581.42"
def nvmlSystemGetCudaDriverVersion_v2(): return 13010
def nvmlDeviceGetHandleByIndex(index):
    if index == 2: raise NVMLError("GPU is lost")
    return index
def nvmlDeviceGetName(gpu): return ["NVIDIA GeForce RTX 3070", "Quadro P400"][gpu]
def nvmlDeviceGetMemoryInfo(gpu):
    if gpu == 1: raise NVMLError("Not Supported")
    return S(total=8589934592, free=7193231360)
def nvmlDeviceGetPciInfo(gpu): return S(busId=["00000000:65:00.0", "00000000:07:00.0"][gpu])
def nvmlDeviceGetCudaComputeCapability(gpu): return (8, 6) if gpu == 0 else (6, 1)
def nvmlDeviceGetUUID(gpu): return f"GPU-{gpu}"
def nvmlDeviceGetDriverModel(gpu): return [0, 1]
def nvmlDeviceGetMigMode(gpu):
    if gpu == 1: raise NVMLError_NotSupported("Not Supported")
    return [1, 1]
def nvmlDeviceGetMaxMigDeviceCount(gpu): return 7
class NVMLError_NotFound(NVMLError): pass
def nvmlDeviceGetMigDeviceHandleByIndex(gpu, index):
    if index > 1: raise NVMLError_NotFound("Not Found")
def nvmlDeviceGetPersistenceMode(gpu): return 1
def nvmlDeviceGetDisplayActive(gpu): return gpu
def nvmlDeviceGetComputeRunningProcesses(gpu):
    if gpu == 1: raise Exception("Unversioned function called")
    return [7, 8]
def nvmlDeviceGetCurrentClocksThrottleReasons(gpu): return 0x24
"""


def ask(
    folder: Path, library: str, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 30
) -> Completed:
    """What the child says that finds this library."""
    (folder / "pynvml.py").write_text(library, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{':' if sys.platform != 'win32' else ';'}{SRC}")
    return LocalSystem().run([sys.executable, "-P", "-m", "flatout.system.nvml_child"], timeout_s)


def test_nvml_when_some_fields_are_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = parse_nvml(ask(tmp_path, LIBRARY, monkeypatch))
    assert isinstance(found, GpuReport)
    assert (found.driver, found.cuda) == ("581.42", "13.1")
    first, second, lost = found.gpus
    assert [gpu.index for gpu in found.gpus] == [0, 1, 2]
    assert (first.name, first.memory_bytes) == ("Quadro P400", None)
    assert first.compute_capability == "6.1"
    assert (second.name, second.free_bytes) == ("NVIDIA GeForce RTX 3070", 7193231360)
    assert lost.name is None
    assert (first.is_mig_on, second.is_mig_on) == (False, True)
    assert (first.num_mig_instances, second.num_mig_instances) == (None, 2)
    assert (second.driver_model, second.is_persistence_on) == ("WDDM", True)
    assert (first.has_display, second.has_display, second.num_processes) == (True, False, 2)
    assert second.throttle_reasons == ("power-cap", "thermal-slowdown")
    assert found.unread == {
        "gpus.0.num_processes": "NVML: Unversioned function called",
        "gpus.0.memory_bytes": "NVML: Not Supported",
        "gpus.0.free_bytes": "NVML: Not Supported",
        **{
            f"gpus.2.{field}": "NVML: GPU is lost"
            for field in (
                "name", "memory_bytes", "free_bytes", "compute_capability", "pci_bus_id", "uuid",
                "driver_model", "is_mig_on", "num_mig_instances", "is_persistence_on",
                "has_display", "num_processes", "throttle_reasons",
            )
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        (LIBRARY + "\ndef nvmlInit(): raise NVMLError('Driver Not Loaded')", "Driver Not Loaded"),
        ("raise ImportError('broken')", "nvidia-ml-py is not installed: broken"),
        ("import os; os.abort()", "crashed"),
        ("import ctypes; ctypes.string_at(0)", "crashed"),
    ],
)
def test_nvml_when_it_fails(
    library: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = parse_nvml(ask(tmp_path, library, monkeypatch))
    assert isinstance(reported, str)
    assert reason in reported


def test_nvml_when_it_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = ask(tmp_path, "import time; time.sleep(60)", monkeypatch, timeout_s=1)
    assert parse_nvml(done) == "NVML: no answer within 1 s"
