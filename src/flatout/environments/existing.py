"""What an environment that is there already still needs to be the one that was asked for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
from packaging.requirements import Requirement

from flatout.environments.ground import machine_text
from flatout.errors import UsageError
from flatout.nouns.machine import Machine
from flatout.nouns.made_environment import EnvironmentWish, MadeEnvironment, Pin
from flatout.nouns.prepared_environment import Prepared, State, ready
from flatout.system import own_wheel


def as_it_is(
    there: MadeEnvironment, wish: EnvironmentWish, machine: Machine, folder: Path
) -> Prepared | None:
    """The environment that is there, if it will do; None if its packages are decided on again.

    Raises:
        UsageError: environment-differs.
    """
    require_same(there, wish, folder)
    if there.machine != machine_text(machine):
        return None
    if there.flatout is None or there.flatout == own_wheel.digest():
        return ready(there)
    if lacking(own_wheel.requirements(), there.pins):
        return None
    return msgspec.structs.replace(ready(there), state="flatout")


def require_same(there: MadeEnvironment, wish: EnvironmentWish, folder: Path) -> None:
    """Refuses a name that an environment has which was made for another wish.

    Raises:
        UsageError: environment-differs.
    """
    if there.wish == wish and Path(there.folder) == folder:
        return
    raise UsageError(
        "environment-differs",
        f"there is an environment `{there.name}` already, made for another wish.",
        because=f"it was made with {_wish_text(there.wish)} in {there.folder}; now "
        f"{_wish_text(wish)} in {folder} is asked for",
        fix=f"give the new one another name: --name {there.name}-2; or remove that one: "
        f"flatout setup --remove {there.name}",
    )


def state_of(
    there: MadeEnvironment | None, pins: Iterable[Pin], python_version: str, machine: Machine
) -> State:
    """What is to be done, by what is there and what was decided on."""
    if there is None:
        return "new"
    is_same = there.python_version == python_version and _held(there.pins) == _held(pins)
    if is_same:
        return "same-packages"
    return "other-machine" if there.machine != machine_text(machine) else "other-packages"


def lacking(requirements: Iterable[str], pins: Iterable[Pin]) -> list[str]:
    """Those of some requirements that packages do not meet, by name or by version."""
    versions = {pin.name: pin.version for pin in pins}

    def is_met(one: Requirement) -> bool:
        if one.marker is not None and not one.marker.evaluate():
            return True
        version = versions.get(own_wheel.name_of(one.name))
        return version is not None and one.specifier.contains(version, prereleases=True)

    return [text for text in requirements if not is_met(Requirement(text))]


def _held(pins: Iterable[Pin]) -> set[tuple[str, str, str]]:
    return {(pin.name, pin.version, pin.sha256) for pin in pins}


def _wish_text(wish: EnvironmentWish) -> str:
    told = [wish.framework + wish.versions]
    told += [f"--python {wish.python}"] if wish.python else []
    told += [f"--cuda {wish.cuda}"] if wish.cuda else []
    told += ["--cpu"] if wish.is_cpu else []
    told += ["--nightly"] if wish.is_nightly else []
    told += [f"--with {','.join(wish.packages)}"] if wish.packages else []
    told += [f"files {wish.files_sha256[:8]}"] if wish.files_sha256 else []
    told += [f"--manager {wish.installer}"] if wish.installer else []
    return " ".join(told)
