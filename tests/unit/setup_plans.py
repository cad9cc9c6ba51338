"""Writes tests/cases/setup_plans: the plans for every recorded machine and for changed ones.

python3 tests/unit/setup_plans.py, then read what has changed, command by command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout.compat.tables import shipped_tables
from flatout.errors import UsageError
from flatout.schema.environment_facts import ContainerEngine
from flatout.schema.machine import Gpu, Machine
from flatout.schema.plan import Plan
from flatout.setup.host.docker import plan_docker
from flatout.setup.host.driver import plan_driver
from flatout.setup.host.loader_path import plan_loader_path
from flatout.setup.host.toolkit import plan_toolkit
from flatout.setup.host.windows_script import commands
from flatout.setup.host.wsl import plan_wsl
from flatout.system.host_system import RecordedSystem, SystemRecording
from flatout.system.probes.examination import examine

CASES = Path(__file__).resolve().parents[1] / "cases"
MACHINES = CASES / "machines"
PLANS = CASES / "setup_plans"
PROFILE = "~/.bashrc"

GOALS: dict[str, Callable[[Machine], Plan]] = {
    "driver": lambda machine: plan_driver(machine, shipped_tables()),
    "toolkit": lambda machine: plan_toolkit(machine, None, PROFILE, shipped_tables()),
    "docker": lambda machine: plan_docker(machine, shipped_tables(), "ada"),
    "loader path": lambda machine: plan_loader_path(machine, shipped_tables()),
    "wsl": lambda machine: plan_wsl(machine, shipped_tables()).plan,
}


def machine_of(name: str) -> Machine:
    """A recorded machine, as the probes read it."""
    case = json.loads((MACHINES / f"{name}.json").read_text(encoding="utf-8"))
    system = RecordedSystem(msgspec.convert(case["recording"], SystemRecording))
    return examine(system).machine


def card(name: str, capability: str, index: int = 0) -> Gpu:
    """A GPU of that name."""
    return Gpu(index=index, name=f"NVIDIA {name}", compute_capability=capability)


def _with(base: str, **changes: Any) -> Machine:
    """A recorded machine with other facts. `host__distribution` reaches into `host`."""
    machine = machine_of(base)
    for key, value in changes.items():
        outer, _, inner = key.partition("__")
        if inner:
            value = msgspec.structs.replace(getattr(machine, outer), **{inner: value})
        machine = msgspec.structs.replace(machine, **{outer: value})
    return machine


LINUX, WSL, WINDOWS = "linux-two-rtx3090", "wsl2-rtx5090", "windows-rtx2070-spanish"
UBUNTU = {"host__distribution": "Ubuntu 24.04.2 LTS"}
DEBIAN = {"host__distribution": "Debian GNU/Linux 13 (trixie)"}
PASCAL = (card("GeForce GTX 1080 Ti", "6.1"),)
BLACKWELL = (card("GeForce RTX 5090", "12.0"),)
DOCKER = ContainerEngine(name="docker", version="28.1.1", is_running=True, is_snap=False,
                         is_rootless=False)  # fmt: skip


def changed() -> dict[str, Machine]:
    """Machines that nobody has recorded, by name."""
    engine = msgspec.structs.replace
    return {
        "linux-ubuntu-gtx1080ti-no-driver": _with(LINUX, **UBUNTU, gpus=PASCAL, driver=None),
        "linux-ubuntu-gtx1080ti-driver-590": _with(
            LINUX, **UBUNTU, gpus=PASCAL, driver="590.48.01"
        ),
        "linux-ubuntu-rtx5090-driver-570": _with(
            LINUX, **UBUNTU, gpus=BLACKWELL, driver="570.133.07"
        ),
        "linux-debian-rtx5090-no-driver": _with(LINUX, **DEBIAN, gpus=BLACKWELL, driver=None),
        "linux-debian-gtx1080ti-no-driver": _with(LINUX, **DEBIAN, gpus=PASCAL, driver=None),
        "linux-ubuntu-tesla-t4-no-driver": _with(
            LINUX, **UBUNTU, gpus=(card("Tesla T4", "7.5"),), driver=None
        ),
        "linux-ubuntu-k80": _with(LINUX, **UBUNTU, gpus=(card("Tesla K80", "3.7"),), driver=None),
        "linux-kepler-beside-ada": _with(
            LINUX, **UBUNTU, driver=None,
            gpus=(card("Tesla K80", "3.7"), card("GeForce RTX 4090", "8.9", 1)),
        ),
        "linux-volta-beside-blackwell": _with(
            LINUX, **UBUNTU, driver=None,
            gpus=(card("TITAN V", "7.0"), card("GeForce RTX 5090", "12.0", 1)),
        ),
        "linux-fermi": _with(LINUX, gpus=(card("GeForce GTX 480", "2.0"),), driver=None),
        "linux-fedora-rtx4090": _with(
            LINUX, host__distribution="Fedora Linux 42 (Workstation Edition)",
            gpus=(card("GeForce RTX 4090", "8.9"),), driver=None, engines=(),
        ),
        "linux-without-gpu": _with(LINUX, gpus=(), driver=None),
        "linux-docker-snap": _with(LINUX, engines=(engine(DOCKER, is_snap=True),)),
        "linux-docker-rootless": _with(LINUX, engines=(engine(DOCKER, is_rootless=True),)),
        "linux-podman": _with(LINUX, engines=(engine(DOCKER, name="podman"),)),
        "wsl2-ldconfig-off-no-docker-no-systemd": _with(
            WSL, engines=(), libraries=(),
            wsl__wsl_conf={"automount.ldconfig": "false"},
        ),
        "wsl2-debian": _with(WSL, **DEBIAN, engines=(DOCKER,)),
        "wsl1": _with(WSL, host__wsl=1),
        "windows-too-old": _with(WINDOWS, windows__build="10.0.19041.1"),
        "windows-no-driver": _with(WINDOWS, driver=None, windows__driver=None),
        "windows-maxwell": _with(WINDOWS, gpus=(card("GeForce GTX 970", "5.2"),)),
        "windows-tcc": _with(
            WINDOWS,
            gpus=(engine(card("Quadro GV100", "7.0"), driver_model="TCC"),),
        ),
        "windows-8-gb": _with(WINDOWS, windows__memory_bytes=8 * 2**30, windows__wslconfig=None),
        "windows-64-gb-harmful-settings": _with(
            WINDOWS, windows__memory_bytes=64 * 2**30, windows__build="10.0.26100.4061",
            windows__wslconfig={
                "wsl2.memory": "62GB", "wsl2.swap": "0", "experimental.sparseVhd": "true",
                "wsl2.networkingMode": "NAT",
            },
        ),
        "macos": _with(LINUX, host__os="macos", gpus=(), driver=None),
    }  # fmt: skip


def machines() -> Iterator[tuple[str, Machine]]:
    """All recorded machines, then the changed ones."""
    for path in sorted(MACHINES.glob("*.json")):
        yield path.stem, machine_of(path.stem)
    yield from changed().items()


def plan_lines(plan: Plan) -> Sequence[str]:
    """A plan as plain text: numbered steps with changes and commands."""
    lines = [plan.goal]
    if not plan.steps:
        lines.append("  nothing to do")
    for number, step in enumerate(plan.steps, 1):
        marks = [step.where if step.where != "here" else "", "root" if step.needs_root else "",
                 step.safety, f"restarts {step.restarts}" if step.restarts else ""]  # fmt: skip
        lines.append(f"{number}. {step.text}  ({', '.join(mark for mark in marks if mark)})")
        lines += [f"     {command}" for command in commands(step)]
        lines.append(f"     changes: {step.changes}")
    return lines


def text_of(machine: Machine) -> str:
    """All plans for a machine, and the reasons where there is none."""
    parts = []
    for name, plan in GOALS.items():
        try:
            lines = list(plan_lines(plan(machine)))
        except UsageError as error:
            lines = [f"not here: {error.problem}"]
            lines += [f"     because: {error.because}"] if error.because else []
            lines.append(f"     fix: {error.fix}")
        parts.append("\n".join([f"## {name}", *lines]))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    for old in PLANS.glob("*.txt"):
        old.unlink()
    for case, read in machines():
        (PLANS / f"{case}.txt").write_text(text_of(read), encoding="utf-8")
