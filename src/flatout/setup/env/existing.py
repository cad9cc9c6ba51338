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
    there: MadeEnvironment, spec: EnvironmentSpec, machine: Machine, folder: Path
) -> EnvironmentPlan | None:
    """The existing environment, if it fits; None if its packages must be resolved again.

    Raises:
        UsageError: environment-differs.
    """
    require_same(there, spec, folder)
    if there.machine != machine_text(machine):
        return None
    if there.flatout is None or there.flatout == flatout_wheel.digest():
        return ready(there)
    if lacking(flatout_wheel.requirements(), there.pins):
        return None
    return msgspec.structs.replace(ready(there), state="flatout")


def require_same(there: MadeEnvironment, spec: EnvironmentSpec, folder: Path) -> None:
    """Refuses the name of an environment with a different specification.

    Raises:
        UsageError: environment-differs.
    """
    if there.spec == spec and Path(there.folder) == folder:
        return
    raise UsageError(
        "environment-differs",
        f"environment `{there.name}` already exists with a different specification.",
        because=f"it was created as {_spec_text(there.spec)} in {there.folder}; "
        f"this command asks for {_spec_text(spec)} in {folder}",
        fix=f"choose another name: --name {there.name}-2; or remove the existing one: "
        f"flatout setup --remove {there.name}",
    )


def state_of(
    there: MadeEnvironment | None, pins: Iterable[Pin], python_version: str, machine: Machine
) -> State:
    """The work to be done, given the existing environment and the resolved packages."""
    if there is None:
        return "new"
    is_same = there.python_version == python_version and _exact_versions(
        there.pins
    ) == _exact_versions(pins)
    if is_same:
        return "same-packages"
    return "other-machine" if there.machine != machine_text(machine) else "other-packages"


def lacking(requirements: Iterable[str], pins: Iterable[Pin]) -> list[str]:
    """The requirements that these packages do not meet."""
    versions = {pin.name: pin.version for pin in pins}

    def is_met(requirement: Requirement) -> bool:
        if requirement.marker is not None and not requirement.marker.evaluate():
            return True
        version = versions.get(flatout_wheel.name_of(requirement.name))
        return version is not None and requirement.specifier.contains(version, prereleases=True)

    return [text for text in requirements if not is_met(Requirement(text))]


def _exact_versions(pins: Iterable[Pin]) -> set[tuple[str, str, str]]:
    return {(pin.name, pin.version, pin.sha256) for pin in pins}


def _spec_text(spec: EnvironmentSpec) -> str:
    words = [spec.framework + spec.versions]
    words += [f"--python {spec.python}"] if spec.python else []
    words += [f"--cuda {spec.cuda}"] if spec.cuda else []
    words += ["--cpu"] if spec.is_cpu else []
    words += ["--nightly"] if spec.is_nightly else []
    words += [f"--with {','.join(spec.packages)}"] if spec.packages else []
    words += [f"files {spec.files_sha256[:8]}"] if spec.files_sha256 else []
    words += [f"--manager {spec.installer}"] if spec.installer else []
    return " ".join(words)
