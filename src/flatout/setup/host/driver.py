"""NVIDIA's driver for a native Linux or Windows: which branch for these cards, in which flavor."""

from __future__ import annotations

from flatout.compat.rows import Architecture, Tables
from flatout.errors import UsageError
from flatout.schema.machine import Machine
from flatout.schema.plan import Plan, PlanStep, RunProgram
from flatout.schema.versions import pair_text
from flatout.setup.host.host_facts import (
    HostFacts,
    apt_install,
    apt_update,
    first_driver,
    generations,
    host_facts_of,
    last_branch,
    refuse_macos,
)
from flatout.setup.host.repository import cuda_repository

# NVIDIA maintains it until 2028-06; it runs every build for CUDA 12 and 13, and is the last that
# supports Maxwell, Pascal and Volta. Source: docs.nvidia.com/datacenter/tesla/drivers, branches.
LONG_TERM = 580
# The first capabilities that can use the open kernel modules, and that must use them.
_MAY_BE_OPEN, _MUST_BE_OPEN = (7, 5), (10, 0)


def plan_driver(machine: Machine, tables: Tables) -> Plan:
    """The driver that this machine should have; no steps where it has it.

    Raises:
        UsageError: no-plan-here.
    """
    host = host_facts_of(machine, tables)
    refuse_macos(host)
    if host.os == "wsl2":
        raise UsageError(
            "no-plan-here",
            "no driver is installed inside WSL.",
            because="Windows shares its driver with every distro; a second one here would hide it",
            fix="update Windows' driver: https://www.nvidia.com/drivers",
        )
    rows = generations(host, tables)
    branch = branch_for(rows, host)
    goal = f"NVIDIA driver {branch} for {_cards(host)}"
    steps = () if is_fine(host, rows, branch) else _steps(machine, host, branch)
    return Plan(goal=goal, steps=steps)


def branch_for(rows: list[Architecture], host: HostFacts) -> int:
    """The branch to install.

    Raises:
        UsageError: no-plan-here, for cards that no single driver supports.
    """
    first, last = first_driver(rows), last_branch(rows)
    if last is not None and first[0] > last:
        raise UsageError(
            "no-plan-here",
            f"no driver supports all of these cards: {', '.join(host.names)}.",
            because=f"the oldest card's last branch is {last}, the newest needs {first[0]}",
            fix="remove one of them, or pass it through to a virtual machine",
        )
    if last is not None and last < LONG_TERM:
        return last
    return max(LONG_TERM, first[0])


def is_fine(host: HostFacts, rows: list[Architecture], branch: int) -> bool:
    """Whether the installed driver supports the cards, and runs today's builds.

    On Windows a branch spans several numbers (581 belongs to 580).
    """
    if not host.driver:
        return False
    gone = min((row.gone_from for row in rows if row.gone_from is not None), default=None)
    return host.driver[0] >= branch and (gone is None or host.driver[0] < gone)


def flavour_for(host: HostFacts) -> str:
    """ "open" or "proprietary" kernel modules.

    Raises:
        UsageError: no-plan-here, for cards that need different ones.
    """
    if min(host.cards) >= _MAY_BE_OPEN:
        return "open"
    if max(host.cards) >= _MUST_BE_OPEN:
        raise UsageError(
            "no-plan-here",
            f"no kernel module supports all of these cards: {', '.join(host.names)}.",
            because=f"{pair_text(max(host.cards))} needs the open one, "
            f"{pair_text(min(host.cards))} the proprietary one",
            fix="remove one of them, or pass it through to a virtual machine",
        )
    return "proprietary"


def _steps(machine: Machine, host: HostFacts, branch: int) -> tuple[PlanStep, ...]:
    if host.os == "windows":
        return (windows_driver(branch, host),)
    flavour = flavour_for(host)
    if host.family == "ubuntu":
        return _ubuntu(machine, host, branch, flavour)
    if host.family == "debian" and flavour == "open" and host.repository:
        is_on = machine.module is not None and machine.module.is_secure_boot_on is True
        return _debian(host.repository, branch, is_secure_boot_on=is_on)
    return (_by_hand(host, branch, flavour),)


def _ubuntu(machine: Machine, host: HostFacts, branch: int, flavour: str) -> tuple[PlanStep, ...]:
    """Ubuntu's own packages, whose modules are signed, so that Secure Boot may stay on."""
    ending = "-open" if flavour == "open" else ""
    server = "-server" if host.is_datacentre else ""
    name = f"nvidia:{branch}{server}{ending}"
    options = ("--gpgpu",) if server else ()
    steps = [
        apt_install(
            ("ubuntu-drivers-common",), "the program that selects Ubuntu's driver packages"
        ),
        PlanStep(
            text=f"install driver {branch}{server}{ending}",
            action=RunProgram(
                argv=("ubuntu-drivers", "install", *options, name),
                environment={"DEBIAN_FRONTEND": "noninteractive"},
                time_limit_s=3600.0,
            ),
            changes=f"packages nvidia-driver-{branch}{server}{ending} and its kernel modules; "
            "any other NVIDIA driver is replaced",
            needs_root=True,
            shows=(("ubuntu-drivers", "list", *options),),
        ),
    ]
    if server:
        # For servers nvidia-smi is in a separate package.
        steps.append(apt_install((f"nvidia-utils-{branch}{server}",), "nvidia-smi"))
    if machine.module and machine.module.fabric_manager not in (None, "not-found"):
        fabric = f"nvidia-fabricmanager-{branch}"
        steps.append(apt_install((fabric,), "the NVSwitch service, in the driver's version"))
    return (*steps, restart("linux"))


def _debian(repository: str, branch: int, *, is_secure_boot_on: bool) -> tuple[PlanStep, ...]:
    """NVIDIA's repository: Debian's own driver is too old for today's cards and builds."""
    return (
        *cuda_repository(repository),
        apt_update(),
        apt_install((f"nvidia-driver-pinning-{branch}",), f"keeps apt on branch {branch}"),
        apt_install(("linux-headers-amd64",), "needed to build kernel modules"),
        apt_install(("nvidia-open",), "the driver with its open kernel modules, built by DKMS"),
        *((_enroll(),) if is_secure_boot_on else ()),
        restart("linux"),
    )


def _enroll() -> PlanStep:
    return PlanStep(
        text="let Secure Boot accept modules that DKMS builds: choose a password, which the "
        "next start asks for",
        action=RunProgram(argv=("mokutil", "--import", "/var/lib/dkms/mok.pub")),
        changes="keys that the firmware accepts",
        where="linux",
        needs_root=True,
        safety="manual",
    )


def _by_hand(host: HostFacts, branch: int, flavour: str) -> PlanStep:
    is_debian = host.family == "debian"
    name = "nvidia-driver from non-free" if is_debian else "use your distribution's package manager"
    guide = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide"
    return PlanStep(
        text=f"install driver {branch} with its {flavour} kernel modules: {name}",
        action=RunProgram(argv=("xdg-open", guide)),
        changes="the driver; package names depend on the distribution",
        where="linux",
        safety="manual",
        restarts="linux",
    )


def windows_driver(branch: int, host: HostFacts) -> PlanStep:
    """Windows' driver: installed by hand, since it depends on the card."""
    text = f"install NVIDIA driver {branch} or later"
    if host.cards and min(host.cards) < _MAY_BE_OPEN:
        text = (
            f"install the newest NVIDIA driver of branch {branch} (later branches do not support "
            "this card)"
        )
    return PlanStep(
        text=f"{text}, from https://www.nvidia.com/drivers",
        action=RunProgram(argv=("explorer.exe", "https://www.nvidia.com/drivers")),
        changes="Windows' display driver; WSL uses it too, after wsl --shutdown",
        where="windows",
        needs_root=True,
        safety="manual",
    )


def restart(what: str) -> PlanStep:
    """A restart, by hand: only the user knows what is running."""
    is_windows = what == "windows"
    argv = ("shutdown.exe", "/r", "/t", "0") if is_windows else ("systemctl", "reboot")
    return PlanStep(
        text="restart the machine, then check: nvidia-smi",
        action=RunProgram(argv=argv),
        changes="everything running stops",
        where="windows" if is_windows else "linux",
        needs_root=not is_windows,
        safety="manual",
        restarts="windows" if is_windows else "linux",
    )


def _cards(host: HostFacts) -> str:
    return ", ".join(dict.fromkeys(host.names)) or "this card"
