"""dpkg, modprobe, cgroups, PATH and package metadata: what they tell, from texts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flatout.schema.environment_facts import Disk, Unmet
from flatout.system.host_system import Calls, Completed, RecordedSystem, SystemRecording
from flatout.system.probes.cgroup import num_killed
from flatout.system.probes.disks import with_speed
from flatout.system.probes.distribution import (
    num_unfinished,
    nvidia_sources,
    probe_packages,
    version_in,
)
from flatout.system.probes.environments import read_environment
from flatout.system.probes.module import parse_modprobe
from flatout.system.probes.requirements import is_met, unmet
from flatout.system.probes.wsl import programs_on_drives

STATUS = """\
Package: cuda-keyring
Status: install ok installed
Version: 1.1-1

Package: nvidia-cuda-toolkit
Status: install ok installed
Priority: extra
Architecture: amd64
Version: 11.5.1-1ubuntu1

Package: nvidia-dkms-580
Status: install ok half-configured
Version: 580.95.05-0ubuntu1

Package: nvidia-utils-470
Status: deinstall ok config-files
Version: 470.1
"""
OLD_SOURCE = "deb https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2004/x86_64/ /\n"
SIGNED = "deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] " + OLD_SOURCE[4:]
DEB822 = """\
Types: deb
URIs: https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64
Suites: /

Types: deb
URIs: http://archive.ubuntu.com/ubuntu
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg
"""


def system(**fields: Any) -> RecordedSystem:
    calls = Calls(python_version="3.12.3", num_threads=2)
    return RecordedSystem(SystemRecording(platform="linux", calls=calls, **fields))


def test_packages_are_counted_and_found_by_their_state() -> None:
    assert num_unfinished(STATUS) == 1
    assert version_in(STATUS, "nvidia-cuda-toolkit") == "11.5.1"
    assert version_in(STATUS, "nvidia-utils-470") is None


@pytest.mark.parametrize(
    ("text", "signed"),
    [(OLD_SOURCE, [False]), (SIGNED, [True]), (f"# {OLD_SOURCE}", []), (DEB822, [False])],
)
def test_source_of_nvidia_is_signed_when_it_names_a_key(text: str, signed: list[bool]) -> None:
    assert nvidia_sources(text) == signed


def test_old_source_without_keyring_is_reported() -> None:
    files = {
        "/var/lib/dpkg/status": "Package: libc6\nStatus: install ok installed\n",
        "/etc/apt/sources.list.d/cuda.list": OLD_SOURCE,
    }
    found, unread = probe_packages(system(files=files))
    assert found is not None
    assert (found.has_nvidia_source, found.is_nvidia_source_signed) == (True, False)
    assert unread == {}
    found, _ = probe_packages(system(files={**files, "/var/lib/dpkg/status": STATUS}))
    assert found is not None
    assert found.is_nvidia_source_signed is True


@pytest.mark.parametrize(
    ("text", "is_off"),
    [
        ("blacklist nouveau\noptions nouveau modeset=0\n", False),
        ("# blacklist nvidia\n", False),
        ("blacklist nvidiafb\n", False),
        ("blacklist nvidia\n", True),
        ("alias nvidia off\n", True),
        ("install nvidia /bin/false\n", True),
    ],
)
def test_module_is_switched_off_by_a_line_for_it(text: str, is_off: bool) -> None:
    assert parse_modprobe(text) is is_off


def test_killed_processes_are_those_of_the_nearest_group() -> None:
    files = {
        "/proc/self/cgroup": "0::/user.slice/job\n",
        "/sys/fs/cgroup/user.slice/job/memory.events": "low 0\noom 1\noom_kill 3\n",
        "/sys/fs/cgroup/user.slice/memory.events": "oom_kill 9\n",
    }
    assert num_killed(system(files=files)) == 3
    assert num_killed(system()) is None


@pytest.mark.parametrize(
    ("clauses", "version", "is_right"),
    [
        ("==2.9.1", "2.9.1+cu130", True),
        ("==2.8.0", "2.9.1", False),
        ("==2.9", "2.9.0", True),
        ("==3.5.*", "3.5.1", True),
        ("<2.2.0,>=1.26", "2.3.5", False),
        ("<2.2.0,>=1.26", "2.1.3", True),
        ("!=2.0", "2.0.0", False),
        ("~=1.4.2", "1.4.9", True),
        ("~=1.4.2", "1.5.0", False),
        (" (<=0.8.0,>=0.8.0)", "0.8.0", True),
        ("==2.9.1", "2.10.0.dev20251001", True),
        ("", "1", True),
        ("@ https://example.org/torch.whl", "1.0", True),
    ],
)
def test_version_meets_what_is_asked(clauses: str, version: str, is_right: bool) -> None:
    assert is_met(clauses, version) is is_right


def test_requirements_are_judged_only_where_they_are_understood() -> None:
    versions = {"torch": "2.9.1+cu130", "torchvision": "0.23.0", "triton": "3.4.0"}
    requires = {
        "torchvision": ["torch (==2.8.0)", "numpy<1"],
        "torch": [
            'triton==3.5.1; platform_system == "Linux"',
            'triton==9; extra == "dev"',
            'triton==9; python_version < "3.9"',
        ],
    }
    assert unmet(versions, requires) == (
        Unmet(package="torchvision", needs="torch==2.8.0", has="2.9.1+cu130"),
        Unmet(package="torch", needs="triton==3.5.1", has="3.4.0"),
    )


def report(**made: Any) -> dict[str, Any]:
    packages = {"torch": {"version": "2.9.1+cu130", "place": "user-site"},
                "numpy": {"version": "2.3.5"}}  # fmt: skip
    return {"/env/bin/python": {"python": "3.12.3", "packages": packages, "made": made}}


def test_environment_tells_what_is_mixed_and_from_elsewhere() -> None:
    made = {"is_conda": True, "conda_versions": {"torch": "2.5.1", "numpy": "2.3.5"}}
    found = read_environment(system(packages=report(**made)), "/env/bin/python").environment
    assert found.mixed == ("torch",)
    assert found.outside == ("torch",)
    plain = read_environment(system(packages=report()), "/env/bin/python").environment
    assert plain.outside == ()


def test_programs_of_windows_are_those_found_first() -> None:
    files = dict.fromkeys(
        ("/mnt/c/pyenv/shims/python", "/mnt/c/pyenv/shims/pip", "/usr/bin/pip", "/usr/bin/uv")
    )
    path = {"PATH": "/usr/bin:/mnt/c/pyenv/shims"}
    assert programs_on_drives(system(files=files, environment=path)) == ("python",)
    other = {**files, "/etc/wsl.conf": "[automount]\nroot=/drives\n", "/drives/c/x/nvcc": None}
    assert programs_on_drives(system(files=other, environment={"PATH": "/drives/c/x"})) == ("nvcc",)


def test_speed_is_reported_or_why_not() -> None:
    disk = Disk(role="data")
    done = Completed(
        stdout=json.dumps({"small_files_bytes_s": 1e6, "stream_bytes_s": 2e9}), exit_code=0
    )
    assert with_speed(disk, done)[0].small_files_bytes_s == 1e6
    assert with_speed(disk, Completed(reason="no answer within 8 s")) == (
        disk, "measuring: no answer within 8 s",
    )  # fmt: skip
