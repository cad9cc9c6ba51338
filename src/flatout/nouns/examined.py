"""A machine that was read, and what is wrong with it."""

from __future__ import annotations

import msgspec

from flatout.nouns.diagnosis import Diagnosis
from flatout.nouns.machine import Machine


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """families: rule of each finding -> the family of rules that it is of ("wsl", "driver" ...)."""

    machine: Machine
    diagnosis: Diagnosis
    families: dict[str, str] = {}
    warnings: tuple[str, ...] = ()
