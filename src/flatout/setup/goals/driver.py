"""NVIDIA's driver for a native Linux or Windows: which branch for these cards, in which flavour."""

from __future__ import annotations

from flatout.errors import UsageError
from flatout.nouns.machine import Machine
from flatout.nouns.plan import Plan, Run, Step
from flatout.setup.goals.place import (
    Place,
    apt_install,
    apt_update,
    first_driver,
    generations,
    last_branch,
    place_of,
    refuse_macos,
)  # fmt: skip
from flatout.setup.goals.repository import cuda_repository
from flatout.setup.rows import Architecture, Tables
from flatout.setup.versions import pair_text

# NVIDIA looks after it until 2028-06; it runs every build for CUDA 12 and 13, and is the last that
# knows Maxwell, Pascal and Volta. Source: docs.nvidia.com/datacenter/tesla/drivers, branches.
LONG_TERM = 580
# From here on cards may have the open kernel modules, from there on they must.
_MAY_BE_OPEN, _MUST_BE_OPEN = (7, 5), (10, 0)


def plan_driver(machine: Machine, tables: Tables) -> Plan:
    """The driver that this machine should have; no steps where it has it.

    Raises:
        UsageError: no-plan-here.
    """
    place = place_of(machine, tables)
    refuse_macos(place)
    if place.os == "wsl2":
        raise UsageError(
            "no-plan-here",
            "inside WSL no driver is ever installed.",
            because="Windows' driver is lent to every distro; a second one in here hides it",
            fix="bring Windows' driver up to date: https://www.nvidia.com/drivers",
        )
    rows = generations(place, tables)
    branch = branch_for(rows, place)
    goal = f"NVIDIA's driver {branch} for {_cards(place)}"
    steps = () if is_fine(place, rows, branch) else _steps(machine, place, branch)
    return Plan(goal=goal, steps=steps)


def branch_for(rows: list[Architecture], place: Place) -> int:
    """The branch to install.

    Raises:
        UsageError: no-plan-here, for cards that no driver knows together.
    """
    first, last = first_driver(rows), last_branch(rows)
    if last is not None and first[0] > last:
        raise UsageError(
            "no-plan-here",
            f"no driver knows all of these cards: {', '.join(place.names)}.",
            because=f"the oldest card's last branch is {last}, the newest needs {first[0]}",
            fix="take one of them out, or give it to a virtual machine",
        )
    if last is not None and last < LONG_TERM:
        return last
    return max(LONG_TERM, first[0])


def is_fine(place: Place, rows: list[Architecture], branch: int) -> bool:
    """Whether the driver that is there knows the cards, and runs what is built today.

    Windows counts on within a branch (581 belongs to 580).
    """
    if not place.driver:
        return False
    gone = min((row.gone_from for row in rows if row.gone_from is not None), default=None)
    return place.driver[0] >= branch and (gone is None or place.driver[0] < gone)


def flavour_for(place: Place) -> str:
    """ "open" or "proprietary" kernel modules.

    Raises:
        UsageError: no-plan-here, for cards that need one each.
    """
    if min(place.cards) >= _MAY_BE_OPEN:
        return "open"
    if max(place.cards) >= _MUST_BE_OPEN:
        raise UsageError(
            "no-plan-here",
            f"no kernel module drives all of these cards: {', '.join(place.names)}.",
            because=f"{pair_text(max(place.cards))} needs the open one, "
            f"{pair_text(min(place.cards))} the proprietary one",
            fix="take one of them out, or give it to a virtual machine",
        )
    return "proprietary"


def _steps(machine: Machine, place: Place, branch: int) -> tuple[Step, ...]:
    if place.os == "windows":
        return (windows_driver(branch, place),)
    flavour = flavour_for(place)
    if place.family == "ubuntu":
        return _ubuntu(machine, place, branch, flavour)
    if place.family == "debian" and flavour == "open" and place.repository:
        is_on = machine.module is not None and machine.module.is_secure_boot_on is True
        return _debian(place.repository, branch, is_secure_boot_on=is_on)
    return (_by_hand(place, branch, flavour),)


def _ubuntu(machine: Machine, place: Place, branch: int, flavour: str) -> tuple[Step, ...]:
    """Ubuntu's own packages, whose modules are signed, so that Secure Boot may stay on."""
    ending = "-open" if flavour == "open" else ""
    server = "-server" if place.is_datacentre else ""
    name = f"nvidia:{branch}{server}{ending}"
    options = ("--gpgpu",) if server else ()
    steps = [
        apt_install(("ubuntu-drivers-common",), "the program that picks Ubuntu's driver packages"),
        Step(
            text=f"install driver {branch}{server}{ending}",
            action=Run(
                argv=("ubuntu-drivers", "install", *options, name),
                environment={"DEBIAN_FRONTEND": "noninteractive"},
                time_limit_s=3600.0,
            ),
            changes=f"packages nvidia-driver-{branch}{server}{ending} and its kernel modules; "
            "another driver of NVIDIA's is replaced",
            needs_root=True,
            shows=(("ubuntu-drivers", "list", *options),),
        ),
    ]
    if server:
        # Without a desktop nvidia-smi is in a package of its own.
        steps.append(apt_install((f"nvidia-utils-{branch}{server}",), "nvidia-smi"))
    if machine.module and machine.module.fabric_manager not in (None, "not-found"):
        fabric = f"nvidia-fabricmanager-{branch}"
        steps.append(apt_install((fabric,), "the service for NVSwitch, of the driver's version"))
    return (*steps, restart("linux"))


def _debian(repository: str, branch: int, *, is_secure_boot_on: bool) -> tuple[Step, ...]:
    """NVIDIA's repository: Debian's own driver is too old for today's cards and builds."""
    return (
        *cuda_repository(repository),
        apt_update(),
        apt_install((f"nvidia-driver-pinning-{branch}",), f"apt stays with branch {branch}"),
        apt_install(("linux-headers-amd64",), "what kernel modules are built with"),
        apt_install(("nvidia-open",), "the driver with its open kernel modules, built by DKMS"),
        *((_enroll(),) if is_secure_boot_on else ()),
        restart("linux"),
    )


def _enroll() -> Step:
    return Step(
        text="let Secure Boot accept modules that DKMS builds: choose a password; the next start "
        "asks for it",
        action=Run(argv=("mokutil", "--import", "/var/lib/dkms/mok.pub")),
        changes="keys that the firmware accepts",
        where="linux",
        needs_root=True,
        safety="manual",
    )


def _by_hand(place: Place, branch: int, flavour: str) -> Step:
    name = "nvidia-driver, of non-free" if place.family == "debian" else "as your system does it"
    guide = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide"
    return Step(
        text=f"install driver {branch} with its {flavour} kernel modules: {name}",
        action=Run(argv=("xdg-open", guide)),
        changes="the driver; which packages that are, this distribution decides",
        where="linux",
        safety="manual",
        restarts="linux",
    )


def windows_driver(branch: int, place: Place) -> Step:
    """Windows' driver: downloaded and installed by hand, since each card has one of its own."""
    text = f"install NVIDIA's driver {branch} or later"
    if place.cards and min(place.cards) < _MAY_BE_OPEN:
        text = f"install NVIDIA's newest driver of branch {branch}: later ones do not know the card"
    return Step(
        text=f"{text}, from https://www.nvidia.com/drivers",
        action=Run(argv=("explorer.exe", "https://www.nvidia.com/drivers")),
        changes="Windows' display driver; WSL has it too, after wsl --shutdown",
        where="windows",
        needs_root=True,
        safety="manual",
    )


def restart(what: str) -> Step:
    """A restart, by hand: what runs is known to the person alone."""
    is_windows = what == "windows"
    argv = ("shutdown.exe", "/r", "/t", "0") if is_windows else ("systemctl", "reboot")
    return Step(
        text="restart the machine, then look: nvidia-smi",
        action=Run(argv=argv),
        changes="everything that runs is ended",
        where="windows" if is_windows else "linux",
        needs_root=not is_windows,
        safety="manual",
        restarts="windows" if is_windows else "linux",
    )


def _cards(place: Place) -> str:
    return ", ".join(dict.fromkeys(place.names)) or "this card"
