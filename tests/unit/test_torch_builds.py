from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flatout.compat.torch_builds import (
    TorchPlatform,
    choose_build,
    cpu_build,
    disk_bytes,
    plain_build,
)

SRC = Path(__file__).resolve().parents[2] / "src"


def place(
    os: str = "linux", machine: str = "x86_64", python: tuple[int, int] = (3, 12)
) -> TorchPlatform:
    return TorchPlatform(os=os, machine=machine, python=python)  # type: ignore[arg-type]


# The decision table: driver, capabilities, what is to be installed.
DECISIONS = [
    # driver >= 580
    ("580.65.06", ["7.5"], "2.15.0+cu130"),
    ("580.65.06", ["8.9"], "2.15.0+cu130"),
    ("595.71.05", ["10.3"], "2.15.0+cu130"),
    ("610.43.02", ["12.1"], "2.15.0+cu130"),
    ("580.65.06", ["7.0"], "2.14.1+cu126"),
    ("580.65.06", ["6.1"], "2.14.1+cu126"),
    ("580.65.06", ["5.0"], "2.14.1+cu126"),
    # 525 to 579
    ("579.99", ["8.6"], "2.14.1+cu126"),
    ("525.60.13", ["9.0"], "2.14.1+cu126"),
    ("575.57.08", ["12.0"], "2.11.0+cu128"),
    ("570.26", ["10.0"], "2.11.0+cu128"),
    # 450 to 524
    ("525.60.12", ["8.6"], "2.7.1+cu118"),
    ("450.80.02", ["7.0"], "2.7.1+cu118"),
    ("450.80.02", ["8.0"], "2.7.1+cu118"),
    ("470.256.02", ["3.7"], "2.5.1+cu118"),
    # several GPUs: what all of them can use
    ("580.65.06", ["8.6", "12.0"], "2.15.0+cu130"),
    ("580.65.06", ["7.0", "8.6"], "2.14.1+cu126"),
]


@pytest.mark.parametrize(("driver", "capabilities", "version"), DECISIONS)
def test_choose_build_when_one_runs(driver: str, capabilities: list[str], version: str) -> None:
    choice = choose_build(place(), driver, capabilities)
    assert choice.requirement == f"torch=={version}"
    assert choice.index_url == f"https://download.pytorch.org/whl/{choice.cuda}"
    assert version.endswith(f"+{choice.cuda}")
    assert choice.usable == tuple(range(len(capabilities)))
    assert driver in choice.why


@pytest.mark.parametrize(
    ("driver", "capability", "reason"),
    [
        ("450.80.01", "8.0", "driver 450.80.01 is older than 450.80.02"),
        ("524.0", "12.0", "driver 524.0 does not support Blackwell yet"),
        ("580.65.06", "3.7", "driver 580.65.06 no longer supports Kepler"),
        ("470.82.01", "3.0", "runs on GPU 0 (compute capability 3.0), whatever"),
        ("[N/A]", "8.6", "not known: [N/A]"),
    ],
)
def test_choose_build_when_none_runs(driver: str, capability: str, reason: str) -> None:
    choice = choose_build(place(), driver, [capability])
    assert choice.requirement == "torch==2.13.0+cpu"
    assert choice.cuda is None
    assert reason in choice.why


def test_choose_build_when_the_windows_driver_is_compared() -> None:
    assert choose_build(place("linux"), "527.0", ["8.6"]).cuda == "cu126"
    assert choose_build(place("wsl"), "527.0", ["8.6"]).cuda == "cu118"
    assert choose_build(place("windows"), "528.33", ["8.6"]).cuda == "cu126"


def test_choose_build_when_only_ptx_fits() -> None:
    assert choose_build(place("wsl"), "620.1", ["13.0"]).cuda == "cu130"
    assert choose_build(place("windows"), "620.1", ["13.0"]).cuda is None


def test_choose_build_when_gpus_share_none() -> None:
    choice = choose_build(place(), "580.65.06", ["6.1", "12.0", "6.1"])
    assert choice.cuda == "cu130"
    assert choice.usable == (1,)
    assert "6.1" in choice.why


def test_choose_build_when_the_best_gpu_has_none() -> None:
    choice = choose_build(place("windows"), "620.1", ["13.0", "8.6"])
    assert choice.cuda == "cu130"
    assert choice.usable == (1,)


def test_choose_build_when_python_is_too_new() -> None:
    assert choose_build(place(python=(3, 14)), "470.1", ["8.6"]).cuda is None
    assert choose_build(place(python=(3, 13)), "470.1", ["8.6"]).cuda == "cu118"


def test_choose_build_when_the_machine_is_another() -> None:
    assert choose_build(place(machine="aarch64"), "580.95.05", ["11.0"]).cuda == "cu130"
    assert choose_build(place(machine="aarch64"), "580.95.05", ["7.5"]).cuda is None
    choice = choose_build(place("windows", "aarch64"), "580.95", ["8.6"])
    assert "not published for native Windows on aarch64" in choice.why


def test_choose_build_when_a_newer_driver_would_help() -> None:
    old = choose_build(place("wsl"), "471.11", ["8.6"])
    assert old.advice == "with Windows driver 580 or newer it could be torch 2.15.0 for cu130"
    assert choose_build(place(), "570.26", ["7.0"]).advice is None
    assert choose_build(place(), "580.65.06", ["8.6"]).advice is None


def test_cpu_build_when_macos_has_only_one() -> None:
    assert cpu_build(place("macos", "aarch64"), "").requirement == "torch==2.13.0"
    assert cpu_build(place("windows"), "").requirement == "torch==2.13.0+cpu"


@pytest.mark.parametrize(("os", "machine"), [("linux", "x86_64"), ("wsl", "x86_64")])
def test_plain_build_when_it_is_large(os: str, machine: str) -> None:
    build = plain_build(place(os, machine))
    assert build is not None
    assert (build.version, build.cuda, build.machine) == ("2.13.0", "cu130", machine)


@pytest.mark.parametrize("os", ["windows", "macos"])
def test_plain_build_when_it_is_for_the_cpu(os: str) -> None:
    assert plain_build(place(os)) is None


def test_disk_bytes_when_pip_keeps_the_wheels() -> None:
    choice = choose_build(place(), "580.65.06", ["8.6"])
    assert choice.download_bytes > 2e9
    assert choice.disk_bytes == disk_bytes(choice.download_bytes) == 3 * choice.download_bytes


def test_torch_builds_needs_only_the_standard_library() -> None:
    # -S: nothing installed can be found.
    code = "import sys; sys.path.insert(0, sys.argv[1]); import flatout.compat.torch_builds"
    subprocess.run([sys.executable, "-I", "-S", "-c", code, str(SRC)], check=True, timeout=120)
