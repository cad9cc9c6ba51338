"""What NVML's child and nvidia-smi say, good and bad."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.system.host_system import Calls, Completed, RecordedSystem, SystemRecording
from flatout.system.probes.gpus import GpuReport, parse_nvml, parse_smi, probe_gpus

FIELDS = ("name", "memory.total", "memory.free", "pci.bus_id", "uuid", "driver_version")
CALLS = Calls(python_version="3.12.3", num_threads=4)


@pytest.mark.parametrize(
    ("exit_code", "stderr", "reason"),
    [
        (139, "Segmentation fault", "NVML: crashed (exit code 139)"),
        (-11, "", "NVML: crashed (exit code -11)"),
        (-6, "terminate called", "NVML: crashed (exit code -6)"),
        (0xC0000005, "", "NVML: crashed (exit code 3221225477)"),
        (1, "Traceback\nImportError: x", "NVML: Traceback (exit code 1)"),
        (1, "", "NVML: no output (exit code 1)"),
    ],
)
def test_parse_nvml_when_the_child_failed(exit_code: int, stderr: str, reason: str) -> None:
    assert parse_nvml(Completed(exit_code=exit_code, stderr=stderr)) == reason


def test_parse_nvml_when_a_field_has_the_wrong_kind() -> None:
    reported = {"driver": "581.42", "cuda": "13.0", "gpus": [{"name": 7}], "unread": {}}
    found = parse_nvml(Completed(exit_code=0, stdout=json.dumps(reported)))
    assert isinstance(found, str)
    assert "cannot read its answer" in found


@given(st.text())
def test_parse_nvml_when_it_is_garbage(text: str) -> None:
    assert isinstance(parse_nvml(Completed(exit_code=0, stdout=text)), str)


@given(st.text())
def test_parse_smi_when_it_is_garbage(text: str) -> None:
    found = parse_smi(Completed(exit_code=0, stdout=text), FIELDS)
    # Six fields by accident are a GPU; nothing raises, and no number is made up.
    assert isinstance(found, str | GpuReport)
    assert isinstance(found, str) or text.count(",") >= len(FIELDS) - 1


def test_probe_gpus_starts_no_process_when_there_is_nothing_to_ask() -> None:
    class Deaf(RecordedSystem):
        def run(self, argv: object, timeout_s: float) -> Completed:
            raise AssertionError("a process was started")

    found = probe_gpus(Deaf(SystemRecording(platform="linux", calls=CALLS)))
    assert found.unread["gpus"].endswith("no NVIDIA driver is installed")


@pytest.mark.parametrize(
    ("path", "reported"),
    [
        ("/dev/dxg", "WSL passes a GPU through"),
        ("/dev/nvidiactl", "the kernel has NVIDIA's driver"),
    ],
)
def test_probe_gpus_when_only_the_kernel_knows_of_one(path: str, reported: str) -> None:
    recording = SystemRecording(platform="linux", calls=CALLS, files={path: None})
    assert reported in probe_gpus(RecordedSystem(recording)).unread["gpus"]


def test_probe_gpus_finds_the_program_when_it_is_in_path_only() -> None:
    recording = SystemRecording(
        platform="linux",
        calls=CALLS,
        environment={"PATH": "/opt/here:/usr/bin"},
        files={"/opt/here/nvidia-smi": None},
    )
    reason = probe_gpus(RecordedSystem(recording)).unread["gpus"]
    assert reason == ("NVML: there is no libnvidia-ml.so.1; nvidia-smi: No such file or directory")


def test_probe_gpus_asks_smi_once_when_it_fails_for_another_reason() -> None:
    asked = []

    class Counting(RecordedSystem):
        def run(self, argv: object, timeout_s: float) -> Completed:
            asked.append(argv)
            return Completed(exit_code=9, stdout="no driver")

    files: dict[str, str | None] = {"/usr/bin/nvidia-smi": None}
    probe_gpus(Counting(SystemRecording(platform="linux", calls=CALLS, files=files)))
    assert len(asked) == 1
