"""From native Windows to a WSL in which CUDA runs: what is needed, and in which order."""

from __future__ import annotations

from shlex import join

import msgspec

from flatout.compat.build_requests import build_requests_from
from flatout.compat.request import SetupRequest
from flatout.compat.rows import Tables
from flatout.errors import UsageError
from flatout.schema.machine import Machine
from flatout.schema.plan import Edit, Entry, Exists, Plan, PlanStep, Prints, RunProgram
from flatout.schema.versions import numbers
from flatout.setup.host.driver import branch_for, windows_driver
from flatout.setup.host.host_facts import (
    FIRST_WINDOWS_BUILD,
    HostFacts,
    first_driver,
    generations,
    host_facts_of,
    last_branch,
)

DISTRO = "Ubuntu-24.04"
# The CUDA version of most builds, for which the driver must be new enough.
_CUDA_MAJOR = 12
_GB = 2**30
# Memory left to Windows; on larger machines a quarter.
_LEAST_FOR_WINDOWS = 8
# Where the package of WSL installs it. Source: microsoft/WSL, msipackage.
_WSL_PROGRAM = r"C:\Program Files\WSL\wsl.exe"
VIRTUALIZATION = (
    "$s = Get-CimInstance Win32_ComputerSystem; $p = @(Get-CimInstance Win32_Processor)[0]; "
    "if (-not ($s.HypervisorPresent -or $p.VirtualizationFirmwareEnabled)) { exit 1 }"
)


class WslPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan for WSL, with the facts that its script needs.

    settings: section.key -> value for .wslconfig; None removes the key.
    driver_branch: the one to install; None where the installed driver will do.
    driver_minimum: the oldest that will do. is_last_branch: later ones do not support the card.
    """

    plan: Plan
    distro: str
    settings: dict[str, str | None]
    driver_branch: int | None
    driver_minimum: int
    is_last_branch: bool
    frameworks: tuple[str, ...]


def plan_wsl(machine: Machine, tables: Tables, frameworks: tuple[str, ...] = ("torch",)) -> WslPlan:
    """All steps from this Windows to a training step inside WSL.

    Raises:
        UsageError: no-plan-here, unknown-framework, not-a-version.
    """
    build_requests = build_requests_from(SetupRequest(frameworks=frameworks))
    host = host_facts_of(machine, tables)
    if host.os != "windows":
        is_inside = host.os == "wsl2"
        raise UsageError(
            "no-plan-here",
            "this is already WSL." if is_inside else "WSL exists only on Windows.",
            fix="flatout setup torch" if is_inside else "on Linux: flatout setup --driver-plan",
        )
    build = _build(machine)
    _refuse(machine, host, build, tables)
    rows = generations(host, tables)
    last = last_branch(rows)
    branch = branch_for(rows, host)
    oldest = min(tables.majors, key=lambda major: abs(major.major - _CUDA_MAJOR))
    minimum = max(numbers(oldest.windows)[0], first_driver(rows)[0])
    gone = min((row.gone_from for row in rows if row.gone_from is not None), default=None)
    has_driver = bool(host.driver) and minimum <= host.driver[0] < (gone or host.driver[0] + 1)
    settings = wslconfig_settings(machine)
    steps = [_virtualization()]
    if not has_driver:
        steps.append(windows_driver(branch, host))
    steps += _install()
    if settings:
        profile = machine.windows.profile if machine.windows else None
        steps += _settings(settings, rf"{profile or '%USERPROFILE%'}\.wslconfig")
    steps += _inside(frameworks, tuple(request.framework for request in build_requests))
    return WslPlan(
        plan=Plan(
            goal=f"{', '.join(frameworks)} on the GPU, inside WSL ({DISTRO})",
            steps=tuple(steps),
        ),
        distro=DISTRO,
        settings=settings,
        driver_branch=None if has_driver else branch,
        driver_minimum=minimum,
        is_last_branch=last is not None,
        frameworks=frameworks,
    )


def wslconfig_settings(machine: Machine) -> dict[str, str | None]:
    """The changes to .wslconfig; sensible settings of the user stay.

    WSL uses half of the memory by default. Training may use more, as long as Windows keeps 8 GB.
    sparseVhd is removed: it has destroyed users' disks (microsoft/WSL#13075). networkingMode stays
    as it is: mirrored blocks incoming connections without a rule of the Hyper-V firewall.
    """
    now = {key.lower(): value for key, value in _wslconfig(machine).items()}
    changes: dict[str, str | None] = {}
    total_bytes = machine.windows.memory_bytes if machine.windows else None
    total = round((total_bytes or machine.memory.total_bytes or 0) / _GB)
    most = total - max(_LEAST_FOR_WINDOWS, total // 4)
    set_bytes = _size(now.get("wsl2.memory"))
    is_too_much = set_bytes is not None and total and set_bytes > (total - _LEAST_FOR_WINDOWS) * _GB
    if set_bytes is None and most > total / 2:
        changes["wsl2.memory"] = f"{most}GB"
    elif is_too_much:
        changes["wsl2.memory"] = f"{most}GB" if most > total / 2 else None
    if _size(now.get("wsl2.swap")) == 0:
        # Without swap the kernel kills processes that swapping would have saved.
        changes["wsl2.swap"] = f"{max(4, total // 4)}GB"
    for key in ("experimental.sparsevhd", "wsl2.sparsevhd"):
        if now.get(key, "false").lower() == "true":
            changes[f"{key.partition('.')[0]}.sparseVhd"] = None
    return changes


def _refuse(machine: Machine, host: HostFacts, build: int, tables: Tables) -> None:
    if build and build < FIRST_WINDOWS_BUILD:
        raise UsageError(
            "no-plan-here",
            f"this Windows (build {build}) is too old for CUDA inside WSL.",
            because=f"it needs build {FIRST_WINDOWS_BUILD} or later: Windows 10 21H2 or Windows 11",
            fix="update Windows; until then, on Windows itself: flatout setup torch",
        )
    if any(gpu.driver_model == "TCC" for gpu in machine.gpus):
        raise UsageError(
            "no-plan-here",
            "the GPU is in TCC mode, which hides it from WSL.",
            because="WSL shares only GPUs in WDDM or MCDM mode",
            fix="as administrator: nvidia-smi -g 0 -dm 0, if the card supports it, then restart; "
            "or train on Windows itself: flatout setup torch",
        )
    generations(host, tables)
    if max(host.cards) < (6, 0):
        raise UsageError(
            "no-plan-here",
            f"NVIDIA does not support this card ({', '.join(host.names)}) inside WSL.",
            because="its support starts with Pascal (compute capability 6.0)",
            fix="train on Windows itself: flatout setup torch",
        )


def _virtualization() -> PlanStep:
    return PlanStep(
        text="check that virtualization is enabled in the firmware (BIOS, UEFI)",
        action=RunProgram(argv=("powershell.exe", "-NoProfile", "-Command", VIRTUALIZATION)),
        changes="nothing; if it is disabled: restart into the firmware, and enable Intel VT-x or "
        "AMD-V (SVM)",
        where="powershell",
        safety="safe",
        undo=("cmd.exe", "/c", "rem"),
    )


def _install() -> list[PlanStep]:
    return [
        PlanStep(
            text="install WSL",
            action=RunProgram(
                argv=("wsl.exe", "--install", "--no-distribution"), time_limit_s=3600.0
            ),
            changes="WSL and the Virtual Machine Platform, two Windows features",
            where="powershell",
            needs_root=True,
            # Not by running wsl.exe: without WSL it offers to install it, and waits for a key.
            done_if=Exists(path=_WSL_PROGRAM),
            undo=("wsl.exe", "--uninstall"),
        ),
        PlanStep(
            text="restart Windows if WSL asks for it",
            action=RunProgram(argv=("shutdown.exe", "/r", "/t", "0")),
            changes="everything running stops; needed only after the first installation of WSL",
            where="powershell",
            safety="manual",
            restarts="windows",
            # `wsl --status` succeeds before the restart too.
            done_if=Prints(argv=("sc.exe", "query", "vmcompute")),
        ),
        PlanStep(
            text="update WSL",
            action=RunProgram(argv=("wsl.exe", "--update"), time_limit_s=3600.0),
            changes="WSL and its Linux kernel",
            where="powershell",
            needs_root=True,
        ),
        PlanStep(
            text=f"install {DISTRO}; choose a user name and a password, then type exit",
            action=RunProgram(argv=("wsl.exe", "--install", "--distribution", DISTRO)),
            changes=f"{DISTRO} in your user's folder, about 2 GB",
            where="powershell",
            # It is interactive.
            safety="manual",
            done_if=Prints(argv=("wsl.exe", "--list", "--quiet"), text=DISTRO),
            undo=("wsl.exe", "--unregister", DISTRO),
        ),
    ]


def _settings(settings: dict[str, str | None], file: str) -> list[PlanStep]:
    changes = ", ".join(
        f"{key.partition('.')[2]}={value}" if value else f"no {key.partition('.')[2]}"
        for key, value in settings.items()
    )
    entries = tuple(
        Entry(place=tuple(key.split(".", 1)), value=value) for key, value in settings.items()
    )
    return [
        PlanStep(
            text=f"change .wslconfig: {changes}",
            action=Edit(file=file, form="ini", entries=entries),
            changes="entries of .wslconfig; all others stay",
            where="windows",
        ),
        PlanStep(
            text="restart WSL",
            action=RunProgram(argv=("wsl.exe", "--shutdown")),
            changes="everything running in any distro stops",
            where="powershell",
            restarts="wsl",
            shows=(("wsl.exe", "--list", "--running"),),
            undo=("cmd.exe", "/c", "rem"),
        ),
    ]


def _inside(frameworks: tuple[str, ...], names: tuple[str, ...]) -> list[PlanStep]:
    """Installs flatout inside WSL, then frameworks such as `jax<0.12`. names: without versions."""
    inside = ("wsl.exe", "--distribution", DISTRO, "--cd", "~", "--")
    return [
        PlanStep(
            text="install flatout inside WSL, from the folder that holds its install.sh",
            action=RunProgram(
                argv=("wsl.exe", "--distribution", DISTRO, "--", "sh", "./install.sh", "--yes"),
                time_limit_s=3600.0,
            ),
            changes="flatout in that distro, in the user's home folder",
            where="powershell",
            done_if=Prints(argv=(*inside, "sh", "-lc", "flatout --version"), text="flatout"),
            undo=(*inside, "sh", "-lc", "flatout self remove --yes"),
        ),
        PlanStep(
            text=f"set up {', '.join(frameworks)} inside WSL, and verify it by a training step",
            action=RunProgram(
                argv=(*inside, "sh", "-lc", join(("flatout", "setup", *frameworks, "--yes"))),
                time_limit_s=7200.0,
            ),
            changes="environments in that distro; no driver",
            where="powershell",
            undo=(
                *inside,
                "sh",
                "-lc",
                "; ".join(f"flatout setup --remove {name} --yes" for name in names),
            ),
        ),
    ]


def _wslconfig(machine: Machine) -> dict[str, str]:
    return (machine.windows.wslconfig or {}) if machine.windows else {}


def _build(machine: Machine) -> int:
    build = machine.windows.build if machine.windows and machine.windows.build else None
    parts = numbers(build or machine.host.release or "")
    return parts[2] if len(parts) > 2 else 0


def _size(text: str | None) -> int | None:
    """ "8GB" -> bytes; None for a missing or malformed size."""
    if text is None:
        return None
    plain = text.strip().upper()
    for unit, factor in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10), ("", 1)):
        if plain.endswith(unit) and plain.removesuffix(unit).strip().isdigit():
            return int(plain.removesuffix(unit)) * factor
    return None
