"""All rules, family by family. A new rule is a line in its family's file."""

from __future__ import annotations

from flatout.doctor.rules.families import (
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

FAMILIES = {
    "wsl": wsl.RULES,
    "driver": driver.RULES,
    "hardware": hardware.RULES,
    "config": config.RULES,
    "container": container.RULES,
    "memory": memory.RULES,
    "framework": framework.RULES,
    "distributed": distributed.RULES,
    "install": install.RULES,
    "python": python.RULES,
    "network": network.RULES,
}
RULES = tuple(rule for rules in FAMILIES.values() for rule in rules)
