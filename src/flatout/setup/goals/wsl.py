"""From native Windows to a WSL in which CUDA runs: what is needed, in which order, and why."""

from __future__ import annotations

import msgspec

from flatout.errors import UsageError
from flatout.nouns.machine import Machine
from flatout.nouns.plan import Edit, Entry, Exists, Plan, Prints, Run, Step
from flatout.setup.goals.driver import branch_for, windows_driver
from flatout.setup.goals.place import (
    FIRST_WINDOWS_BUILD,
    Place,
    first_driver,
    generations,
    last_branch,
    place_of,
)  # fmt: skip
from flatout.setup.rows import Tables
from flatout.setup.versions import numbers

DISTRO = "Ubuntu-24.04"
# What most builds are made with that a driver may be too old for.
_CUDA_MAJOR = 12
_GB = 2**30
# Windows itself is to run on; of larger machines it keeps a quarter.
_LEAST_FOR_WINDOWS = 8
# Where its package installs it. Source: microsoft/WSL, msipackage.
_WSL_PROGRAM = r"C:\Program Files\WSL\wsl.exe"
VIRTUALIZATION = (
    "$s = Get-CimInstance Win32_ComputerSystem; $p = @(Get-CimInstance Win32_Processor)[0]; "
    "if (-not ($s.HypervisorPresent -or $p.VirtualizationFirmwareEnabled)) { exit 1 }"
)


class WslPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan for WSL, with what a script needs to know of it.

    settings: section.key -> value for .wslconfig; None takes it out.
    driver_branch: the one to install; None where a driver is there that will do.
    driver_minimum: the oldest that does. is_last_branch: later ones do not know the card.
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
        UsageError: no-plan-here.
    """
    place = place_of(machine, tables)
    if place.os != "windows":
        is_inside = place.os == "wsl2"
        raise UsageError(
            "no-plan-here",
            "this is inside WSL already." if is_inside else "WSL is a part of Windows.",
            fix="flatout setup torch" if is_inside else "on Linux: flatout setup --driver-plan",
        )
    build = _build(machine)
    _refuse(machine, place, build, tables)
    rows = generations(place, tables)
    last = last_branch(rows)
    branch = branch_for(rows, place)
    oldest = min(tables.majors, key=lambda one: abs(one.major - _CUDA_MAJOR))
    minimum = max(numbers(oldest.windows)[0], first_driver(rows)[0])
    gone = min((row.gone_from for row in rows if row.gone_from is not None), default=None)
    has_driver = bool(place.driver) and minimum <= place.driver[0] < (gone or place.driver[0] + 1)
    settings = wslconfig_settings(machine)
    steps = [_virtualization()]
    if not has_driver:
        steps.append(windows_driver(branch, place))
    steps += _install()
    if settings:
        profile = machine.windows.profile if machine.windows else None
        steps += _settings(settings, rf"{profile or '%USERPROFILE%'}\.wslconfig")
    steps += _inside(frameworks)
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
    """What is to change in .wslconfig; what the person has set well stays.

    WSL takes half of the memory by default. A training may have more, as long as 8 GB are left to
    Windows. sparseVhd is taken out: it has cost people their disks (microsoft/WSL#13075).
    networkingMode is left alone: mirrored lets nobody in without a rule of the Hyper-V firewall.
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
        # Without swap the kernel kills what a little patience would have carried.
        changes["wsl2.swap"] = f"{max(4, total // 4)}GB"
    for key in ("experimental.sparsevhd", "wsl2.sparsevhd"):
        if now.get(key, "false").lower() == "true":
            changes[f"{key.partition('.')[0]}.sparseVhd"] = None
    return changes


def _refuse(machine: Machine, place: Place, build: int, tables: Tables) -> None:
    if build and build < FIRST_WINDOWS_BUILD:
        raise UsageError(
            "no-plan-here",
            f"this Windows (build {build}) is too old for CUDA inside WSL.",
            because=f"it begins with build {FIRST_WINDOWS_BUILD}: Windows 10 21H2, and Windows 11",
            fix="bring Windows up to date; until then: flatout setup torch, on Windows itself",
        )
    if any(gpu.driver_model == "TCC" for gpu in machine.gpus):
        raise UsageError(
            "no-plan-here",
            "the GPU is in TCC mode, in which WSL does not see it.",
            because="WSL lends GPUs that Windows' display system runs (WDDM or MCDM)",
            fix="as administrator: nvidia-smi -g 0 -dm 0, if the card can do it, then restart; "
            "or train on Windows itself: flatout setup torch",
        )
    generations(place, tables)
    if max(place.cards) < (6, 0):
        raise UsageError(
            "no-plan-here",
            f"NVIDIA does not support this card ({', '.join(place.names)}) inside WSL.",
            because="it begins with Pascal (compute capability 6.0)",
            fix="train on Windows itself: flatout setup torch",
        )


def _virtualization() -> Step:
    return Step(
        text="see that virtualization is switched on in the firmware (BIOS, UEFI)",
        action=Run(argv=("powershell.exe", "-NoProfile", "-Command", VIRTUALIZATION)),
        changes="nothing; if it is off: restart into the firmware, and switch on Intel VT-x or "
        "AMD-V (SVM)",
        where="powershell",
        safety="safe",
        undo=("cmd.exe", "/c", "rem"),
    )


def _install() -> list[Step]:
    return [
        Step(
            text="install WSL",
            action=Run(argv=("wsl.exe", "--install", "--no-distribution"), time_limit_s=3600.0),
            changes="WSL and the Virtual Machine Platform, two parts of Windows",
            where="powershell",
            needs_root=True,
            # Not by asking wsl.exe: without WSL it offers to install it, and waits for a key.
            done_if=Exists(path=_WSL_PROGRAM),
            undo=("wsl.exe", "--uninstall"),
        ),
        Step(
            text="restart Windows, if WSL says that it is needed",
            action=Run(argv=("shutdown.exe", "/r", "/t", "0")),
            changes="everything that runs is ended; only after the first installation of WSL",
            where="powershell",
            safety="manual",
            restarts="windows",
            # `wsl --status` ends well before the restart too.
            done_if=Prints(argv=("sc.exe", "query", "vmcompute")),
        ),
        Step(
            text="bring WSL up to date",
            action=Run(argv=("wsl.exe", "--update"), time_limit_s=3600.0),
            changes="WSL and its Linux kernel",
            where="powershell",
            needs_root=True,
        ),
        Step(
            text=f"install {DISTRO}; it asks for a name and a password, then type exit",
            action=Run(argv=("wsl.exe", "--install", "--distribution", DISTRO)),
            changes=f"{DISTRO} in your user's folder, some 2 GB",
            where="powershell",
            # It talks with the person.
            safety="manual",
            done_if=Prints(argv=("wsl.exe", "--list", "--quiet"), text=DISTRO),
            undo=("wsl.exe", "--unregister", DISTRO),
        ),
    ]


def _settings(settings: dict[str, str | None], file: str) -> list[Step]:
    said = ", ".join(
        f"{key.partition('.')[2]}={value}" if value else f"no {key.partition('.')[2]}"
        for key, value in settings.items()
    )
    entries = tuple(
        Entry(place=tuple(key.split(".", 1)), value=value) for key, value in settings.items()
    )
    return [
        Step(
            text=f"change .wslconfig: {said}",
            action=Edit(file=file, form="ini", entries=entries),
            changes="entries of .wslconfig; all others stay",
            where="windows",
        ),
        Step(
            text="restart WSL",
            action=Run(argv=("wsl.exe", "--shutdown")),
            changes="everything that runs in any distro is ended",
            where="powershell",
            restarts="wsl",
            shows=(("wsl.exe", "--list", "--running"),),
            undo=("cmd.exe", "/c", "rem"),
        ),
    ]


def _inside(frameworks: tuple[str, ...]) -> list[Step]:
    inside = ("wsl.exe", "--distribution", DISTRO, "--cd", "~", "--")
    return [
        Step(
            text="install flatout inside WSL, from the folder that holds its install.sh",
            action=Run(
                argv=("wsl.exe", "--distribution", DISTRO, "--", "sh", "./install.sh", "--yes"),
                time_limit_s=3600.0,
            ),
            changes="flatout in that distro, in its user's folder",
            where="powershell",
            done_if=Prints(argv=(*inside, "sh", "-lc", "flatout --version"), text="flatout"),
            undo=(*inside, "sh", "-lc", "flatout self remove --yes"),
        ),
        Step(
            text=f"set up {', '.join(frameworks)} inside WSL, and prove it by a training step",
            action=Run(
                argv=(*inside, "sh", "-lc", f"flatout setup {' '.join(frameworks)} --yes"),
                time_limit_s=7200.0,
            ),
            changes="environments in that distro; never a driver",
            where="powershell",
            undo=(
                *inside,
                "sh",
                "-lc",
                "; ".join(f"flatout setup --remove {name} --yes" for name in frameworks),
            ),
        ),
    ]


def _wslconfig(machine: Machine) -> dict[str, str]:
    return (machine.windows.wslconfig or {}) if machine.windows else {}


def _build(machine: Machine) -> int:
    told = machine.windows.build if machine.windows and machine.windows.build else None
    parts = numbers(told or machine.host.release or "")
    return parts[2] if len(parts) > 2 else 0


def _size(text: str | None) -> int | None:
    """ "8GB" -> bytes; None for what is not there or no size."""
    if text is None:
        return None
    plain = text.strip().upper()
    for unit, factor in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10), ("", 1)):
        if plain.endswith(unit) and plain.removesuffix(unit).strip().isdigit():
            return int(plain.removesuffix(unit)) * factor
    return None
