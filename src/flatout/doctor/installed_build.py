"""Whether an installed build of a framework goes with a machine's driver and cards.

By the same tables from which `flatout setup` chooses. What they do not list is unknown: None,
never a guess.
"""

from __future__ import annotations

from dataclasses import replace

from flatout.nouns.framework import Framework
from flatout.nouns.machine import Machine
from flatout.setup.fit import Gpu, Target, gpu_misfits
from flatout.setup.rows import Build
from flatout.setup.tables import shipped_tables
from flatout.setup.target import target_from
from flatout.setup.versions import numbers

_NAMES = {"paddlepaddle": "paddle"}


def why_no_card_fits(framework: Framework, machine: Machine) -> str | None:
    """Why a build runs on no card of the machine; None where it runs on one, or nobody knows."""
    # Another rule knows drivers that are too old for a card.
    target = replace(target_from(machine, shipped_tables()), driver=None)
    builds = _rows_of(framework)
    reasons = [_why_not(builds, gpu, target) for gpu in target.gpus]
    return reasons[0] if reasons and all(reasons) else None


def oldest_driver(framework: Framework, machine: Machine) -> str | None:
    """The oldest driver that runs a build of its CUDA's major version; None where it is unknown.

    Under WSL the driver of Windows counts.
    """
    digits = (framework.build or "").removeprefix("cu")
    is_windows = machine.host.os == "windows" or machine.host.wsl is not None
    for row in shipped_tables().majors:
        if digits.isdigit() and row.major == int(digits[:2]):
            return row.windows if is_windows else row.linux
    return None


def _rows_of(framework: Framework) -> list[Build]:
    """The rows of the tables for an installed build; releases of one version hold the same code."""
    name = _NAMES.get(framework.name, framework.name)
    version, build = numbers(framework.version)[:2], framework.build or ""
    return [
        one
        for one in shipped_tables().builds
        if one.framework == name
        and not one.is_nightly
        and numbers(one.version)[:2] == version
        and build.startswith("cu")
        and (one.cuda == build or (len(one.cuda) == 4 and build.startswith(one.cuda)))
    ]


def _why_not(builds: list[Build], gpu: Gpu, target: Target) -> str | None:
    found = [next(iter(gpu_misfits(one, gpu, target, shipped_tables())), None) for one in builds]
    return found[0] if found and all(found) else None
