"""Whether an installed build of a framework works with a machine's driver and cards.

Uses the same tables as `flatout setup`. What they do not list is unknown: None, never a guess.
"""

from __future__ import annotations

from dataclasses import replace

from flatout.compat.fit import Target, TargetGpu, gpu_misfits
from flatout.compat.installed_fit import builds_of
from flatout.compat.rows import Build
from flatout.compat.tables import shipped_tables
from flatout.compat.target import target_from
from flatout.schema.framework import Framework
from flatout.schema.machine import Machine


def why_no_card_fits(framework: Framework, machine: Machine) -> str | None:
    """The reason why a build runs on no card of the machine; None if one runs it, or unknown."""
    # Drivers that are too old for a card have their own rule.
    target = replace(target_from(machine, shipped_tables()), driver=None)
    builds = builds_of(framework, shipped_tables())
    reasons = [_why_not(builds, gpu, target) for gpu in target.gpus]
    return reasons[0] if reasons and all(reasons) else None


def oldest_driver(framework: Framework, machine: Machine) -> str | None:
    """The oldest driver that runs a build of its CUDA's major version; None if unknown.

    Under WSL, the Windows driver counts.
    """
    digits = (framework.build or "").removeprefix("cu")
    is_windows = machine.host.os == "windows" or machine.host.wsl is not None
    for row in shipped_tables().majors:
        if digits.isdigit() and row.major == int(digits[:2]):
            return row.windows if is_windows else row.linux
    return None


def _why_not(builds: list[Build], gpu: TargetGpu, target: Target) -> str | None:
    reasons = [
        next(iter(gpu_misfits(build, gpu, target, shipped_tables())), None) for build in builds
    ]
    return reasons[0] if reasons and all(reasons) else None
