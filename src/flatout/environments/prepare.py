"""What `flatout setup` would do: every environment decided to the last wheel, nothing begun."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from flatout.environments import from_lock
from flatout.environments.asked_files import read_files
from flatout.environments.decide import Decided, Extra, decide, not_here
from flatout.environments.ground import Ground, machine_text, read_ground, read_machine
from flatout.environments.places import place_notes, require_room
from flatout.errors import UsageError
from flatout.nouns.environment_request import EnvironmentRequest
from flatout.nouns.machine import Machine
from flatout.nouns.made_environment import EnvironmentWish, MadeEnvironment, Progress
from flatout.nouns.prepared_environment import Prepared, ready
from flatout.nouns.setup_request import SetupRequest
from flatout.setup.fit import Wish
from flatout.setup.requirement_files import Requirements
from flatout.setup.target import target_from
from flatout.setup.versions import pair
from flatout.setup.wishes import wishes_from, without_effect
from flatout.system import made_environments, own_wheel, wheel_store


def prepare(
    request: SetupRequest, how: EnvironmentRequest, *, is_dry: bool = False
) -> Iterator[Progress | Prepared]:
    """Tells what is being looked at, and gives one Prepared for each framework.

    Args:
        request: which frameworks, and what they are to fit.
        how: what else, where and with what.
        is_dry: nothing at all is to change, not even in flatout's own folders.

    Raises:
        UsageError: what was asked for cannot be.
        RunFailed: it cannot be had here and now.
    """
    how.check(len(request.frameworks))
    if how.lock:
        yield from from_lock.prepare_from_lock(how, is_dry=is_dry)
        return
    wishes = wishes_from(request)
    how.check(len(wishes))
    machine = read_machine()
    asked = read_files(how.files)
    told = (*without_effect(request), *asked.notes)
    ground: Ground | None = None
    for wish in wishes:
        kept = _kept_wish(wish, how, asked)
        name = made_environments.check_name(how.name or wish.framework)
        folder = made_environments.folder_for(name, how.folder)
        there = made_environments.read_environment(name)
        if there is not None and (is_ready := _as_it_is(there, kept, machine, folder)):
            yield _with_notes(is_ready, told)
            continue
        yield Progress(name=name, text="deciding which packages")
        ground = ground or read_ground(how, machine, may_get_uv=not (is_dry or how.is_offline))
        decided = decide(ground, target_from(machine, ground.tables, platform.machine()),
                         _with_python(wish, asked), _extra(kept, how, asked))  # fmt: skip
        place = Place(name, folder, there)
        yield _with_notes(settled(decided, kept, place, ground, how), told)


class Place(msgspec.Struct, frozen=True):
    """A name, its folder, and the environment that is there already."""

    name: str
    folder: Path
    there: MadeEnvironment | None


def settled(
    decided: Decided, wish: EnvironmentWish, place: Place, ground: Ground, how: EnvironmentRequest
) -> Prepared:
    """The decision with its sizes, checked against the room that there is.

    Raises:
        RunFailed: disk-full, wheels-not-here.
    """
    choice = decided.answer.choice
    usable, num_gpus = decided.answer.usable, len(ground.machine.gpus)
    missing = [pin for pin in decided.pins if not wheel_store.is_here(pin)]
    if missing and how.is_offline:
        raise not_here(f"{len(missing)} wheels", ", ".join(pin.file for pin in missing[:5]))
    is_part = 0 < len(usable) < num_gpus
    prepared = Prepared(
        name=place.name,
        folder=str(place.folder),
        wish=wish,
        state="new" if place.there is None else "other-machine",
        version=decided.version,
        cuda=choice.cuda if choice else "cpu",
        index=decided.index,
        python=decided.python,
        python_version=decided.python_version,
        installer=decided.program.name,
        pins=tuple(sorted(decided.pins, key=lambda pin: pin.name)),
        missing_bytes=sum(pin.size_bytes or 0 for pin in missing),
        total_bytes=sum(pin.size_bytes or 0 for pin in decided.pins),
        free_bytes=made_environments.free_bytes(place.folder),
        why=_why(decided, wish),
        ruled_out=decided.answer.ruled_out,
        notes=(*ground.notes, *decided.notes, *place_notes(place.folder, ground.machine)),
        variables={"CUDA_VISIBLE_DEVICES": ",".join(map(str, usable))} if is_part else {},
        machine=machine_text(ground.machine),
        environment=place.there,
    )
    require_room(prepared, ground.machine)
    return prepared


def _with_notes(prepared: Prepared, told: tuple[str, ...]) -> Prepared:
    return msgspec.structs.replace(prepared, notes=(*told, *prepared.notes))


def _why(decided: Decided, wish: EnvironmentWish) -> tuple[str, ...]:
    """The reasons; a Python that nobody has asked for was taken because it is here."""
    asked = f"Python {decided.python_version} was asked for"
    here = f"Python {decided.python_version} is here"
    if wish.python is not None:
        return decided.answer.why
    return tuple(reason.replace(asked, here) for reason in decided.answer.why)


def _as_it_is(
    there: MadeEnvironment, wish: EnvironmentWish, machine: Machine, folder: Path
) -> Prepared | None:
    """The environment that is there, if it is the one wanted; None if it is to be made again.

    Raises:
        UsageError: environment-differs.
    """
    if there.wish != wish or Path(there.folder) != folder:
        raise UsageError(
            "environment-differs",
            f"there is an environment `{there.name}` already, made for another wish.",
            because=f"it was made with {_wish_text(there.wish)} in {there.folder}; now "
            f"{_wish_text(wish)} in {folder} is asked for",
            fix=f"give the new one another name: --name {there.name}-2; or remove that one: "
            f"flatout setup --remove {there.name}",
        )
    if there.machine != machine_text(machine):
        return None
    if there.flatout is None or there.flatout == own_wheel.digest():
        return ready(there)
    held = {pin.name for pin in there.pins}
    if not held.issuperset(map(own_wheel.name_of, own_wheel.requirements())):
        return None  # It needs more packages than the one that is in there.
    return msgspec.structs.replace(ready(there), state="flatout")


def _kept_wish(wish: Wish, how: EnvironmentRequest, asked: Requirements) -> EnvironmentWish:
    """What decides what is in the environment, as it is kept beside it."""
    python = f"{wish.python[0]}.{wish.python[1]}" if wish.python else None
    return msgspec.convert(
        {
            "framework": wish.framework, "versions": wish.versions, "python": python,
            "cuda": wish.cuda, "is_cpu": wish.is_cpu, "is_nightly": wish.is_nightly,
            "packages": how.requirements, "files_sha256": asked.sha256, "installer": how.manager,
        },
        EnvironmentWish,
    )  # fmt: skip


def _with_python(wish: Wish, asked: Requirements) -> Wish:
    """The wish, with the Python that an environment.yml names where no other was asked for."""
    if wish.python is not None or asked.python is None:
        return wish
    return replace(wish, python=pair(asked.python))


def _extra(wish: EnvironmentWish, how: EnvironmentRequest, asked: Requirements) -> Extra:
    own = own_wheel.requirements() if wish.framework == "torch" else ()
    return Extra(
        lines=(*own, *wish.packages, *asked.lines),
        is_nightly=wish.is_nightly,
        is_offline=how.is_offline,
    )


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
