"""Windows and WSL, from what their programs print in several languages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.schema.wsl import Windows
from flatout.system.command import decoded
from flatout.system.host_system import Calls, Completed, RecordedSystem, SystemRecording
from flatout.system.probes.packages import NVIDIA_DRIVER, parse_dpkg_status
from flatout.system.probes.settings_files import parse_settings, without_damage
from flatout.system.probes.windows import (
    Cim,
    parse_cim,
    parse_cmd,
    parse_driver,
    parse_portproxies,
    parse_registry_number,
    probe_windows,
)
from flatout.system.probes.wsl import find_system32, parse_version, probe_wsl

CALLS = Calls(python_version="3.12.3", num_threads=4)
SYSTEM32 = "/mnt/c/Windows/System32"
VER = "\r\nMicrosoft Windows [Version 10.0.26100.4349]\r\nC:\\Users\\ada\r\n"


@pytest.mark.parametrize(
    ("text", "profile"),
    [
        (VER, r"C:\Users\ada"),
        ("\nMicrosoft Windows [Versión 10.0.26100.4349]\nC:\\Users\\José García \n",
         r"C:\Users\José García"),
        ("\nMicrosoft Windows [版本 10.0.26100.4349]\nD:\\用户\\李 雷\n", r"D:\用户\李 雷"),
    ],
)  # fmt: skip
def test_parse_cmd_in_any_language(text: str, profile: str) -> None:
    assert parse_cmd(text) == ("10.0.26100.4349", profile)
    assert parse_cmd(decoded(text.encode("utf-16-le"))) == ("10.0.26100.4349", profile)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("WSL version: 2.7.10.0\nKernel version: 6.18.33.2-1\n", "2.7.10"),
        ("Versión de WSL: 2.5.9.0\nVersión de kernel: 6.6.87.2-1\n", "2.5.9"),
        ("WSL 版本： 2.6.1.0\n内核版本： 6.6.87.2-1\n", "2.6.1"),
        ("Invalid command line option: --version\nUsage: wsl.exe 1.2.3", None),
    ],
)
def test_parse_version_of_wsl_in_any_language(text: str, version: str | None) -> None:
    assert parse_version(Completed(exit_code=0, stdout=text)) == version
    assert parse_version(Completed(exit_code=1, stdout=text)) is None
    raw = text.encode("utf-16-le")
    assert parse_version(Completed(exit_code=0, stdout=decoded(raw))) == version


@pytest.mark.parametrize(
    ("reported", "driver"),
    [("32.0.15.8142", "581.42"), ("31.0.15.3623", "536.23"), ("27.21.14.5671", "456.71"),
     ("", None), ("x", None)],
)  # fmt: skip
def test_parse_driver_as_windows_counts(reported: str, driver: str | None) -> None:
    assert parse_driver(reported) == driver


def test_parse_registry() -> None:
    text = "\r\nHKEY_LOCAL_MACHINE\\SYSTEM\r\n    HwSchMode    REG_DWORD    0x2\r\n\r\n"
    assert parse_registry_number(text) == 2
    assert parse_registry_number("ERROR: ...") is None
    ports = "HKEY\n    0.0.0.0/8000    REG_SZ    172.20.1.3/8000\n    */9    REG_SZ    lan.pc/80\n"
    assert parse_portproxies(ports) == ["0.0.0.0/8000 172.20.1.3/8000", "*/9 lan.pc/80"]


def test_parse_cim() -> None:
    text = '{"time":1763695800123,"memory":33480704,"driver":"32.0.15.8142","free":null}\r\n'
    assert parse_cim(text) == Cim(time=1763695800123, memory=33480704, driver="32.0.15.8142")
    assert parse_cim("Get-CimInstance : Zugriff verweigert") == Cim()


def recorded(commands: dict[tuple[str, ...], str], **files: str) -> RecordedSystem:
    return RecordedSystem(
        SystemRecording(
            platform="linux",
            calls=CALLS,
            files={f"{SYSTEM32}/cmd.exe": None, **files},
            commands=tuple(
                (argv, Completed(exit_code=0, stdout=text)) for argv, text in commands.items()
            ),
        )
    )


def test_probe_windows_from_wsl() -> None:
    shell = f"{SYSTEM32}/WindowsPowerShell/v1.0/powershell.exe"
    key = r"HKLM\SYSTEM\CurrentControlSet\Services\PortProxy\v4tov4\tcp"
    cim = '{"memory":1,"commit":2,"free":3,"driver":"32.0.15.8142","time":1795232188500}'
    ports = "".join(f"    0.0.0.0/{n}    REG_SZ    172.20.1.{n}/8000\n" for n in (3, 4))
    system = recorded(
        {
            (f"{SYSTEM32}/cmd.exe",): VER,
            (shell,): cim,
            (f"{SYSTEM32}/reg.exe", "query", key): ports,
        },
        **{"/mnt/c/Users/ada/.wslconfig": "\ufffd\ufffd[\0w\0s\0l\x002\0]\0\n\0m\0=\x001\0"},
    )
    assert find_system32(system) == SYSTEM32
    read = probe_windows(system, SYSTEM32, frozenset({"172.20.1.4"}))
    assert read.windows == Windows(
        build="10.0.26100.4349", driver="581.42", memory_bytes=1024, commit_limit_bytes=2048,
        free_bytes=3, stale_forwards=("0.0.0.0/3 172.20.1.3/8000",), profile="/mnt/c/Users/ada",
        wslconfig={"wsl2.m": "1"}, wslconfig_encoding="utf-16",
    )  # fmt: skip
    assert read.clock_skew_s == 0.5
    assert read.unread == {"windows.is_gpu_scheduling_on": "reg.exe: No such file or directory"}


def test_probe_windows_when_interop_is_off() -> None:
    read = probe_windows(recorded({}), SYSTEM32, frozenset())
    assert read.windows == Windows()
    assert read.unread["windows.build"] == "cmd.exe: No such file or directory"
    assert read.unread["windows.wslconfig"] == "cmd.exe did not report the profile folder"
    assert len(read.unread) == len(Windows.__struct_fields__)


def test_probe_wsl_when_a_linux_driver_is_installed() -> None:
    status = "".join(
        f"Package: {name}\nStatus: {state}\nVersion: 1\n\n"
        for name, state in (
            ("libc6", "install ok installed"),
            ("libnvidia-compute-550", "install ok installed"),
            ("nvidia-driver-535", "deinstall ok config-files"),
            ("libnvidia-container1", "install ok installed"),
            ("cuda-toolkit-12-8", "install ok installed"),
        )
    )
    system = recorded(
        {},
        **{
            "/var/lib/dpkg/status": status,
            "/dev/dxg": "",
            "/usr/lib/wsl/lib/libcuda.so.1": "",
            "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_1/x": "",
            "/etc/wsl.conf": "[boot]\nsystemd=true # yes\n[automount]\nroot = /win/\n",
        },
    )
    found, unread = probe_wsl(system, 2, None)
    assert found.linux_driver_packages == ("libnvidia-compute-550",)
    assert (found.has_dxg, found.has_driver_store) == (True, True)
    assert found.libraries == ("libcuda.so.1",)
    assert found.wsl_conf == {"boot.systemd": "true", "automount.root": "/win/"}
    assert unread.keys() == {"wsl.package", "wsl.distro"}
    assert find_system32(system) is None


@pytest.mark.parametrize("name", ["nvidia-driver-580-open", "libnvidia-ml1", "cuda-drivers-575"])
def test_driver_packages(name: str) -> None:
    assert NVIDIA_DRIVER.match(name)


@given(st.text())
def test_parsers_when_the_text_is_garbage(text: str) -> None:
    parse_cmd(text)
    parse_cim(text)
    parse_driver(text)
    parse_portproxies(text)
    parse_settings(without_damage(text)[0])
    parse_dpkg_status(text)
    parse_version(Completed(exit_code=0, stdout=text))
    assert parse_registry_number(text) is None


@given(st.binary())
def test_decoded_when_it_is_anything(output: bytes) -> None:
    assert isinstance(decoded(output), str)
