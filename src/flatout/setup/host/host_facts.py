"""The facts about a machine that plans depend on: system, cards, driver."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from flatout.compat.cards import find_card
from flatout.compat.rows import Architecture, Os, Tables
from flatout.errors import UsageError
from flatout.schema.machine import Machine
from flatout.schema.plan import PlanStep, Prints, RunProgram
from flatout.schema.versions import Pair, numbers, pair, pair_text

Family = Literal["ubuntu", "debian"]

# The oldest Windows whose WSL has CUDA.
FIRST_WINDOWS_BUILD = 19044
_APT_LIMIT_S = 3600.0


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that a plan is for.

    family, release: of a Linux distribution with apt, like "ubuntu" and "24.04"; None elsewhere.
    cards: the compute capabilities of its GPUs, each once. driver: as numbers; empty without one.
    is_datacentre: all of its cards are for servers, which have driver packages of their own.
    """

    os: Os
    family: Family | None = None
    release: str | None = None
    distribution: str | None = None
    cards: tuple[Pair, ...] = ()
    names: tuple[str, ...] = ()
    driver: tuple[int, ...] = ()
    is_datacentre: bool = False

    @property
    def repository(self) -> str | None:
        """NVIDIA's name for the package repository of this system; None where there is none."""
        if self.os == "wsl2" and self.family == "ubuntu":
            return "wsl-ubuntu"
        if self.family == "ubuntu" and self.release in ("20.04", "22.04", "24.04", "26.04"):
            return f"ubuntu{self.release.replace('.', '')}"
        if self.family == "debian" and self.release in ("11", "12", "13"):
            return f"debian{self.release}"
        return None


def host_facts_of(machine: Machine, tables: Tables, *, may_be_container: bool = False) -> HostFacts:
    """Reads the facts that plans need.

    Raises:
        UsageError: no-plan-here, inside a container or WSL 1, or for an unknown system.
    """
    host = machine.host
    if host.container and not may_be_container:
        raise UsageError(
            "no-plan-here",
            f"this is a container ({host.container}).",
            because="the driver and the container engine belong to the host",
            fix="run this on the host; in a container started with --gpus all: `flatout setup`",
        )
    if host.wsl == 1:
        raise UsageError(
            "no-plan-here",
            "this is WSL 1.",
            because="it has no Linux kernel, and so no CUDA",
            fix="in PowerShell: wsl --set-version NAME 2; wsl --list shows the names",
        )
    if host.os not in ("linux", "windows", "macos"):
        raise UsageError(
            "no-plan-here", "could not detect the operating system.", fix="flatout doctor -v"
        )
    known = [pair(gpu.compute_capability) for gpu in machine.gpus if gpu.compute_capability]
    driver = machine.driver or (machine.windows.driver if machine.windows else None)
    family, release = _family(host.distribution or "")
    cards = [find_card(gpu.name or "", tables.cards) for gpu in machine.gpus]
    kinds = {card.kind if card else None for card in cards}
    return HostFacts(
        os="wsl2" if host.wsl == 2 else host.os,  # type: ignore[arg-type]  # Checked above.
        family=family,
        release=release,
        distribution=host.distribution,
        cards=tuple(sorted(set(known))),
        names=tuple(gpu.name for gpu in machine.gpus if gpu.name),
        driver=numbers(driver or ""),
        is_datacentre=bool(kinds) and kinds == {"datacentre"},
    )


def refuse_macos(host: HostFacts) -> None:
    """Macs have no CUDA.

    Raises:
        UsageError: no-plan-here.
    """
    if host.os == "macos":
        raise UsageError(
            "no-plan-here",
            "there is no CUDA on macOS.",
            because="NVIDIA's last driver for it was for macOS 10.13",
            fix="train on the CPU: flatout setup torch --cpu; or use a machine with an NVIDIA card",
        )


def generations(host: HostFacts, tables: Tables) -> list[Architecture]:
    """The known architectures of the cards.

    Raises:
        UsageError: no-plan-here, where there is no card, or only cards without builds.
    """
    if not host.cards:
        raise UsageError(
            "no-plan-here",
            "no NVIDIA GPU was found, or its compute capability could not be read.",
            because="a driver that does not respond reports nothing about its card",
            fix="see what a card needs: flatout setup --for CARD; find the fault: flatout doctor",
        )
    architectures = [row for card in host.cards if (row := tables.architecture(card)) is not None]
    if max(host.cards) < (3, 5):
        raise UsageError(
            "no-plan-here",
            f"the card ({', '.join(host.names)}) is too old.",
            because=f"its compute capability is {pair_text(max(host.cards))}; "
            "every framework needs 3.5 or higher",
            fix="train on the CPU: flatout setup torch --cpu",
        )
    return architectures


def last_branch(rows: list[Architecture]) -> int | None:
    """The newest driver branch that supports all of these cards; None for the current one."""
    return min((row.last_branch for row in rows if row.last_branch is not None), default=None)


def first_driver(rows: list[Architecture]) -> tuple[int, ...]:
    """The oldest driver that supports all of these cards."""
    return max((numbers(row.first_driver) for row in rows), default=())


def apt_install(names: tuple[str, ...], changes: str) -> PlanStep:
    """Installs packages by apt, simulated first; skipped if the first one is installed."""
    return PlanStep(
        text=f"install {', '.join(names)}",
        action=RunProgram(
            argv=("apt-get", "install", "--yes", *names),
            environment={"DEBIAN_FRONTEND": "noninteractive"},
            time_limit_s=_APT_LIMIT_S,
        ),
        changes=changes,
        needs_root=True,
        done_if=Prints(
            argv=("dpkg-query", "--show", "--showformat=${db:Status-Abbrev}",
                  names[0].partition("=")[0]),
            text="ii ",
        ),
        undo=("apt-get", "remove", "--yes", *names) if len(names) == 1 else None,
        shows=(("apt-get", "install", "--simulate", *names),),
    )  # fmt: skip


def apt_update() -> PlanStep:
    """Runs `apt-get update`."""
    return PlanStep(
        text="update the package lists",
        action=RunProgram(argv=("apt-get", "update"), time_limit_s=_APT_LIMIT_S),
        changes="apt's package lists",
        needs_root=True,
        undo=("true",),
    )


def download(url: str, file: str, what: str) -> PlanStep:
    """Downloads a small file with curl."""
    return PlanStep(
        text=f"download {what}",
        action=RunProgram(
            argv=("curl", "--fail", "--silent", "--show-error", "--location", "--create-dirs",
                  "--output", file, url),
            files=(file,),
        ),
        changes=f"{file}, a new file",
        needs_root=True,
    )  # fmt: skip


def _family(distribution: str) -> tuple[Family | None, str | None]:
    """ "Ubuntu 24.04.2 LTS" -> ("ubuntu", "24.04"); "Debian GNU/Linux 13 (trixie)"."""
    match = re.match(r"Ubuntu (\d\d\.\d\d)", distribution)
    if match:
        return "ubuntu", match[1]
    match = re.match(r"Debian GNU/Linux (\d{1,2})\b", distribution)
    return ("debian", match[1]) if match else (None, None)
