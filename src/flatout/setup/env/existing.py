"""Compares an existing environment with the requested one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
from packaging.requirements import Requirement

from flatout.errors import UsageError
from flatout.schema.environment import EnvironmentSpec, MadeEnvironment, Pin
from flatout.schema.machine import Machine
from flatout.setup.env.context import machine_text
from flatout.setup.model.environment_plan import EnvironmentPlan, State, ready
from flatout.setup.packages import flatout_wheel


def as_it_is(
    there: MadeEnvironment, wish: EnvironmentSpec, machine: Machine, folder: Path
) -> EnvironmentPlan | None:
    """The existing environment, if it fits; None if its packages must be resolved again.

    Raises:
        UsageError: environment-differs.
    """
    require_same(there, wish, folder)
    if there.machine != machine_text(machine):
        return None
    if there.flatout is None or there.flatout == flatout_wheel.digest():
        return ready(there)
    if lacking(flatout_wheel.requirements(), there.pins):
        return None
    return msgspec.structs.replace(ready(there), state="flatout")


def require_same(there: MadeEnvironment, wish: EnvironmentSpec, folder: Path) -> None:
    """Refuses the name of an environment with a different specification.

    Raises:
        UsageError: environment-differs.
    """
    if there.wish == wish and Path(there.folder) == folder:
        return
    raise UsageError(
        "environment-differs",
        f"environment `{there.name}` already exists with a different specification.",
        because=f"it was created as {_wish_text(there.wish)} in {there.folder}; "
        f"this command asks for {_wish_text(wish)} in {folder}",
        fix=f"choose another name: --name {there.name}-2; or remove the existing one: "
        f"flatout setup --remove {there.name}",
    )


def state_of(
    there: MadeEnvironment | None, pins: Iterable[Pin], python_version: str, machine: Machine
) -> State:
    """The work to be done, given the existing environment and the resolved packages."""
    if there is None:
        return "new"
    is_same = there.python_version == python_version and _held(there.pins) == _held(pins)
    if is_same:
        return "same-packages"
    return "other-machine" if there.machine != machine_text(machine) else "other-packages"


def lacking(requirements: Iterable[str], pins: Iterable[Pin]) -> list[str]:
    """The requirements that these packages do not meet."""
    versions = {pin.name: pin.version for pin in pins}

    def is_met(one: Requirement) -> bool:
        if one.marker is not None and not one.marker.evaluate():
            return True
        version = versions.get(flatout_wheel.name_of(one.name))
        return version is not None and one.specifier.contains(version, prereleases=True)

    return [text for text in requirements if not is_met(Requirement(text))]


def _held(pins: Iterable[Pin]) -> set[tuple[str, str, str]]:
    return {(pin.name, pin.version, pin.sha256) for pin in pins}


def _wish_text(wish: EnvironmentSpec) -> str:
    words = [wish.framework + wish.versions]
    words += [f"--python {wish.python}"] if wish.python else []
    words += [f"--cuda {wish.cuda}"] if wish.cuda else []
    words += ["--cpu"] if wish.is_cpu else []
    words += ["--nightly"] if wish.is_nightly else []
    words += [f"--with {','.join(wish.packages)}"] if wish.packages else []
    words += [f"files {wish.files_sha256[:8]}"] if wish.files_sha256 else []
    words += [f"--manager {wish.installer}"] if wish.installer else []
    return " ".join(words)
