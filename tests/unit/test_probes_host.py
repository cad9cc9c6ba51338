"""Which operating system it is: WSL, Windows' generations, containers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.system.host_system import Calls, RecordedSystem, SystemRecording
from flatout.system.probes.cgroup import cpu_quota, parse_group
from flatout.system.probes.cpu import parse_cpuinfo
from flatout.system.probes.host import parse_os_release, parse_wsl, probe_host, windows_name
from flatout.system.probes.memory import parse_meminfo

CALLS = Calls(python_version="3.12.3", num_threads=4)


@pytest.mark.parametrize(
    ("kernel", "is_registered", "wsl"),
    [
        ("4.4.0-19041-Microsoft", False, 1),
        ("5.15.167.4-microsoft-standard-WSL2", True, 2),
        ("4.19.84-microsoft-standard", True, 2),
        ("6.12.1-ada-custom", True, 2),
        ("6.12.1-WSL2-ada", False, 2),
        ("6.8.0-79-generic", False, None),
        ("", False, None),
    ],
)
def test_parse_wsl_when_the_kernel_is(kernel: str, is_registered: bool, wsl: int | None) -> None:
    assert parse_wsl(kernel, is_registered) == wsl


@pytest.mark.parametrize(
    ("release", "display_version", "name"),
    [
        ("10.0.26100", "24H2", "Windows 11 24H2"),
        ("10.0.22000", None, "Windows 11"),
        ("10.0.19045", "22H2", "Windows 10 22H2"),
        (None, "22H2", None),
        ("ten", None, None),
    ],
)
def test_windows_name_when(release: str | None, display_version: str | None, name: str) -> None:
    assert windows_name(release, display_version) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('PRETTY_NAME="Ubuntu 24.04.3 LTS"', "Ubuntu 24.04.3 LTS"),
        ("NAME=Fedora\nVERSION_ID=41\n", "Fedora 41"),
        ("# PRETTY_NAME=no\nNAME='Arch Linux'", "Arch Linux"),
        ('PRETTY_NAME="never closed', "never closed"),
        ("", None),
    ],
)
def test_parse_os_release_when_written_so(text: str, name: str | None) -> None:
    assert parse_os_release(text) == name


@pytest.mark.parametrize(
    ("files", "environment", "container"),
    [
        ({"/.dockerenv": ""}, {}, "docker"),
        ({"/run/.containerenv": ""}, {}, "podman"),
        ({}, {"container": "lxc"}, "lxc"),
        ({"/.dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"/proc/1/cgroup": "0::/docker/4f1c\n"}, {}, "docker"),
        ({"/proc/1/cgroup": "0::/init.scope\n"}, {}, None),
    ],
)
def test_probe_host_when_in_a_container(
    files: dict[str, str | None], environment: dict[str, str], container: str | None
) -> None:
    recording = SystemRecording(platform="linux", calls=CALLS, files=files, environment=environment)
    assert probe_host(RecordedSystem(recording))[0].container == container


def test_cpu_quota_is_the_smallest_when_several_groups_have_one() -> None:
    files: dict[str, str | None] = {
        "/proc/self/cgroup": "0::/a/b\n",
        "/sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
        "/sys/fs/cgroup/a/cpu.max": "150000 100000\n",
        "/sys/fs/cgroup/cpu.max": "400000 100000\n",
    }
    assert (
        cpu_quota(RecordedSystem(SystemRecording(platform="linux", calls=CALLS, files=files)))
        == 1.5
    )


def test_parse_group_when_controllers_share_a_line() -> None:
    text = "4:cpu,cpuacct:/x:y\n0::/\n"
    assert parse_group(text, "cpu") == "/x:y"
    assert parse_group(text, "") == "/"
    assert parse_group(text, "memory") is None


@given(st.text())
def test_parsers_when_the_text_is_garbage(text: str) -> None:
    parse_os_release(text)
    parse_wsl(text)
    parse_group(text, "cpu")
    parse_meminfo(text)
    assert parse_cpuinfo(text, 3).num_threads == 3
