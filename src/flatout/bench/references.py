"""Figures that others have published for a workload, dated, to be shown next to this machine's."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

import msgspec

from flatout.schema.bench import Unit
from flatout.schema.units import quantity_text
from flatout.system import atomic_files

_FILE = Path(__file__).with_name("references.toml")


class Reference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published figure.

    workload: of ours, to which it is nearest. at: year or date of the measurement or publication.
    figure: as published, if it is not a speed. value, unit: a speed.
    comparable: what is the same as here, and what is not.
    """

    workload: str
    at: str
    device: str
    settings: str
    source: str
    comparable: str
    figure: str | None = None
    value: float | None = None
    unit: Unit | None = None

    @property
    def text(self) -> str:
        """The figure with its unit."""
        if self.value is not None and self.unit is not None:
            return quantity_text(self.value, self.unit)
        return self.figure or "unknown"


@functools.cache
def shipped_references() -> tuple[Reference, ...]:
    """All references of this release, in the order of the file."""
    with atomic_files.open_file(_FILE) as file:
        return tuple(msgspec.convert(tomllib.load(file)["reference"], list[Reference]))


def references_for(workload: str) -> list[Reference]:
    """Those of a workload."""
    return [one for one in shipped_references() if one.workload == workload]
