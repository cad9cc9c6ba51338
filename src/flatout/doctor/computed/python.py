"""Facts about Python and its environments."""

from __future__ import annotations

from flatout.doctor.fact_check import Facts, fact, version
from flatout.schema.machine import Machine

_OF_A_TRAINING = {"python", "python3", "pip", "pip3", "conda", "uv", "nvcc"}


def no_torch_for_python(machine: Machine) -> Facts:
    """torch is not installed, and no release of it has a build for this Python."""
    first = next(iter(machine.environments or ()), None)
    number = version(first.version)[:2] if first else ()
    if first is None or not number or machine.framework("torch"):
        return ()
    # Imported only if there is something to check: the tables are slow to load.
    from flatout.compat.tables import shipped_tables

    pythons = [one.python for one in shipped_tables().builds if one.framework == "torch"]
    oldest, newest = min(one[0] for one in pythons), max(one[1] for one in pythons)
    if oldest <= number <= newest:
        return ()
    known = f"torch has builds for {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
    return fact(f"Python {first.version}; {known}", "the interpreter")


def system_python_managed(machine: Machine) -> Facts:
    """The examined Python is the system's, and marked as externally managed."""
    first = next(iter(machine.environments or ()), None)
    if first is None or first.kind != "system" or not first.is_externally_managed:
        return ()
    return fact("EXTERNALLY-MANAGED", "the standard library's folder")


def packages_from_outside(machine: Machine) -> Facts:
    """Packages come from outside the environment."""
    first = next(iter(machine.environments or ()), None)
    if first is None or not first.outside:
        return ()
    names = ", ".join(first.outside[:4])
    return fact(f"from outside the environment: {names}", "the user folder or PYTHONPATH")


def windows_programs_in_wsl(machine: Machine) -> Facts:
    """Python, pip, conda, uv or nvcc resolves to a program on a Windows drive."""
    programs = (machine.wsl.windows_programs if machine.wsl else None) or ()
    found = [one for one in programs if one in _OF_A_TRAINING]
    return fact(f"on a Windows drive: {', '.join(found)}", "PATH") if found else ()
