"""The operating system: which, WSL or not, in a container or not."""

from __future__ import annotations

import shlex

from flatout.schema.machine import Host
from flatout.system.host_system import System, Unread
from flatout.system.wsl import parse_wsl

_NAMES = {"win32": "windows", "darwin": "macos"}


def probe_host(system: System) -> tuple[Host, dict[str, str]]:
    """The operating system, and why what is None is None."""
    calls = system.calls()
    os_name = _NAMES.get(system.platform, system.platform)
    if os_name != "linux":
        unread = {"host.glibc": f"{os_name} uses another C library"}
        if not calls.release:
            unread["host.release"] = f"{os_name} did not report it"
        distribution = None
        if os_name == "windows":
            distribution = windows_name(calls.release, calls.display_version)
        return Host(
            os=os_name,
            release=calls.release,
            distribution=distribution,
            python=calls.python_version,
        ), unread
    unread = {} if calls.glibc else {"host.glibc": "the C library does not report it"}
    release = system.read("/proc/sys/kernel/osrelease")
    if isinstance(release, Unread):
        unread["host.release"] = release.reason
    distribution = None
    described = system.read("/etc/os-release")
    if isinstance(described, Unread):
        unread["host.distribution"] = described.reason
    else:
        distribution = parse_os_release(described)
        if distribution is None:
            unread["host.distribution"] = "/etc/os-release names none"
    kernel = "" if isinstance(release, Unread) else release.strip()
    is_wsl_registered = system.exists("/proc/sys/fs/binfmt_misc/WSLInterop")
    return Host(
        os="linux",
        release=kernel or None,
        distribution=distribution,
        wsl=parse_wsl(kernel, is_wsl_registered),
        container=_container(system),
        python=calls.python_version,
        glibc=calls.glibc,
    ), unread


def parse_os_release(text: str) -> str | None:
    """`PRETTY_NAME` of /etc/os-release, else its name and version."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.strip().partition("=")
        if separator and not key.startswith("#"):
            try:
                fields[key] = " ".join(shlex.split(value))
            except ValueError:  # A quote that is never closed.
                fields[key] = value.strip("\"'")
    pretty = fields.get("PRETTY_NAME", "")
    return pretty or f"{fields.get('NAME', '')} {fields.get('VERSION_ID', '')}".strip() or None


def windows_name(release: str | None, display_version: str | None) -> str | None:
    """10.0.26100 and 24H2 -> "Windows 11 24H2"; Windows 11 still calls itself 10.0."""
    parts = (release or "").split(".")
    if len(parts) != 3 or not parts[2].isdigit():
        return None
    generation = "11" if int(parts[2]) >= 22000 else parts[0]
    return f"Windows {generation} {display_version or ''}".strip()


def _container(system: System) -> str | None:
    if "KUBERNETES_SERVICE_HOST" in system.environment:
        return "kubernetes"
    if system.exists("/.dockerenv"):
        return "docker"
    if system.exists("/run/.containerenv"):
        return "podman"
    named = system.environment.get("container")
    if named:
        return named
    groups = system.read("/proc/1/cgroup")
    if isinstance(groups, str):
        for mark, name in (("kubepods", "kubernetes"), ("docker", "docker"), ("lxc", "lxc")):
            if f"/{mark}" in groups:
                return name
    return None
