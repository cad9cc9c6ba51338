"""The facts of WSL for its distro: version, GPU bridge, libraries, driver store, settings."""

from __future__ import annotations

import re

from flatout.schema.wsl import Wsl
from flatout.system.host_system import Completed, System, Unread
from flatout.system.probes.packages import NVIDIA_DRIVER, parse_dpkg_status
from flatout.system.probes.settings_files import parse_settings, without_damage

# A program of Windows: see windows.py.
VERSION_TIMEOUT_S = 1.6

_LIBRARIES = "/usr/lib/wsl/lib"
# What a training starts; on drives of Windows they are scripts of pyenv, conda and npm.
_PROGRAMS = ("python", "python3", "pip", "pip3", "conda", "uv", "nvcc", "nvidia-smi", "docker")
_STORE = "/usr/lib/wsl/drivers"


def probe_wsl(system: System, version: int, system32: str | None) -> tuple[Wsl, dict[str, str]]:
    """WSL as its distro sees it, and why what is None is None. version: 1 or 2."""
    unread: dict[str, str] = {}
    package = None
    if system32 is None:
        unread["wsl.package"] = "Windows programs are not visible from here"
    else:
        done = system.run([f"{system32}/wsl.exe", "--version"], VERSION_TIMEOUT_S)
        package = parse_version(done)
        if package is None:
            unread["wsl.package"] = f"wsl.exe: {done.reason or 'it does not support --version'}"
    distro = system.environment.get("WSL_DISTRO_NAME")
    if not distro:
        unread["wsl.distro"] = "WSL_DISTRO_NAME is not set"
    packages = read_driver_packages(system)
    if packages is None:
        unread["wsl.linux_driver_packages"] = "flatout cannot read this distribution's list"
    settings = read_wsl_conf(system)
    if settings is None:
        unread["wsl.wsl_conf"] = "/etc/wsl.conf: No such file or directory"
    libraries = system.list_folder(_LIBRARIES)
    is_second = version == 2
    return Wsl(
        package=package,
        distro=distro or None,
        has_dxg=system.exists("/dev/dxg"),
        libraries=libraries,
        has_driver_store=_has_driver(system) if is_second else None,
        wsl_conf=settings,
        linux_driver_packages=packages,
        windows_programs=programs_on_drives(system),
    ), unread | ({} if is_second else {"wsl.has_driver_store": "WSL 1 has none"})


def parse_version(done: Completed) -> str | None:
    """ "2.7.10" from `wsl.exe --version`: its first line ends in it, in any language.

    A wsl.exe of Windows itself does not know the question, and explains its options.
    """
    first = done.stdout.strip().partition("\n")[0]
    match = re.search(r"\b(\d+\.\d+\.\d+)(?:\.\d+)?\s*$", first)
    return match[1] if match and done.exit_code == 0 else None


def read_wsl_conf(system: System) -> dict[str, str] | None:
    """Settings of /etc/wsl.conf; None where there is none."""
    text = system.read("/etc/wsl.conf")
    return None if isinstance(text, Unread) else parse_settings(without_damage(text)[0])


def read_driver_packages(system: System) -> tuple[str, ...] | None:
    """Packages of NVIDIA's Linux driver that are installed here, by dpkg's own list."""
    status = system.read("/var/lib/dpkg/status")
    if isinstance(status, Unread):
        return None
    return tuple(name for name in parse_dpkg_status(status) if NVIDIA_DRIVER.match(name))


def programs_on_drives(system: System) -> tuple[str, ...]:
    """Names of programs that a shell here finds first on a drive of Windows."""
    root = _drives_root(system)
    drive = re.compile(rf"{re.escape(root)}/[a-z](?:/|$)", re.IGNORECASE)
    folders = [
        folder.rstrip("/") for folder in system.environment.get("PATH", "").split(":") if folder
    ]
    programs = []
    for name in _PROGRAMS:
        first = next((folder for folder in folders if system.exists(f"{folder}/{name}")), None)
        if first is not None and drive.match(f"{first}/"):
            programs.append(name)
    return tuple(programs)


def is_on_drive(system: System, path: str) -> bool:
    """Whether a path is below the folder where WSL mounts drives of Windows."""
    return re.match(rf"{re.escape(_drives_root(system))}/[a-z]/", path, re.IGNORECASE) is not None


def _drives_root(system: System) -> str:
    return (read_wsl_conf(system) or {}).get("automount.root", "/mnt/").rstrip("/")


def find_system32(system: System) -> str | None:
    """Windows' System32 as this side spells it: below the folder where WSL mounts drives."""
    if system.platform == "win32":
        return system.environment.get("SystemRoot", r"C:\Windows") + r"\System32"
    root = _drives_root(system)
    listed = system.environment.get("PATH", "").split(":")
    folders = [folder for folder in listed if folder.lower().endswith("/windows/system32")]
    candidates = [*folders, f"{root}/c/Windows/System32", f"{root}/c/WINDOWS/system32"]
    return next((folder for folder in candidates if system.exists(f"{folder}/cmd.exe")), None)


def _has_driver(system: System) -> bool:
    """Whether the store contains a driver of NVIDIA: nv_dispi.inf_amd64_..., nvmdi... and so on."""
    return any(name.lower().startswith("nv") for name in system.list_folder(_STORE))
