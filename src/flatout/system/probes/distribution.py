"""Reports of dpkg and apt: unfinished installations, NVIDIA's repository, the distro's toolkit."""

from __future__ import annotations

import re

from flatout.schema.environment_facts import InstalledPackages
from flatout.system.host_system import System, Unread

_STATUS = "/var/lib/dpkg/status"
_SOURCES = "/etc/apt/sources.list.d"
_NVIDIA_SOURCE = "developer.download.nvidia.com/compute/cuda/repos"


def probe_packages(system: System) -> tuple[InstalledPackages | None, dict[str, str]]:
    """The package manager's side; None altogether where it is another one than dpkg."""
    text = system.read(_STATUS)
    if isinstance(text, Unread):
        return None, {"packages": "flatout cannot read this distribution's package list"}
    names = [
        "/etc/apt/sources.list",
        *(f"{_SOURCES}/{name}" for name in system.list_folder(_SOURCES)),
    ]
    sources = [content for name in names if isinstance(content := system.read(name), str)]
    mine = [line for source in sources for line in nvidia_sources(source)]
    are_signedring = version_in(text, "cuda-keyring") is not None
    installed = InstalledPackages(
        num_unfinished=num_unfinished(text),
        has_nvidia_source=bool(mine),
        is_nvidia_source_signed=are_signedring or all(mine) if mine else None,
        distro_toolkit=version_in(text, "nvidia-cuda-toolkit"),
    )
    reasons = {"is_nvidia_source_signed": "no such package source"} if not mine else {}
    return installed, {f"packages.{field}": reason for field, reason in reasons.items()}


def num_unfinished(status: str) -> int:
    """Packages in /var/lib/dpkg/status that are unpacked and not configured.

    Source: dpkg(1), package states.
    """
    states = r"half-installed|half-configured|unpacked|triggers-awaited|triggers-pending"
    return len(re.findall(rf"^Status: \S+ \S+ (?:{states})$", status, re.MULTILINE))


def version_in(status: str, package: str) -> str | None:
    """The version of an installed package, without epoch and revision."""
    match = re.search(
        rf"^Package: {re.escape(package)}\nStatus: \S+ \S+ installed\n(?:[^\n]+\n)*?"
        r"Version: (?:\d+:)?([\w.+~]+)",
        status,
        re.MULTILINE,
    )
    return match[1] if match else None


def nvidia_sources(text: str) -> list[bool]:
    """The sources of NVIDIA's CUDA repository, each with whether it names its signing key.

    Source: sources.list(5), in one line or in the form of deb822.
    """
    are_signed = [
        "signed-by=" in line.partition("]")[0].lower()
        for line in text.splitlines()
        if _NVIDIA_SOURCE in line and line.lstrip().startswith("deb")
    ]
    for part in re.split(r"\n\s*\n", text):
        if re.search(rf"^URIs:.*{re.escape(_NVIDIA_SOURCE)}", part, re.MULTILINE):
            are_signed.append(
                re.search(r"^Signed-By:", part, re.MULTILINE | re.IGNORECASE) is not None
            )
    return are_signed
