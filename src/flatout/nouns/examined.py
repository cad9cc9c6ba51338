"""A machine that was read, and what is wrong with it."""

from __future__ import annotations

import msgspec

from flatout.nouns.diagnosis import Diagnosis
from flatout.nouns.machine import Machine


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """A machine and its findings.

    families: rule of each finding -> the family of rules that it is of ("wsl", "driver" ...).
    other_cpus: CPUs that other programs kept busy meanwhile; None where nobody has counted.
    """

    machine: Machine
    diagnosis: Diagnosis
    families: dict[str, str] = {}
    warnings: tuple[str, ...] = ()
    other_cpus: float | None = None
