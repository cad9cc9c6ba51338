"""All rules, family by family. A new rule is a line in its family's file."""

from __future__ import annotations

from flatout.doctor.families import (
    config,
    container,
    distributed,
    driver,
    framework,
    hardware,
    install,
    memory,
    network,
    python,
    wsl,
)

RULES = (
    *wsl.RULES,
    *driver.RULES,
    *hardware.RULES,
    *config.RULES,
    *container.RULES,
    *memory.RULES,
    *framework.RULES,
    *distributed.RULES,
    *install.RULES,
    *python.RULES,
    *network.RULES,
)
