"""What `flatout setup` would do: every environment decided to the last wheel, nothing begun."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace

import msgspec

from flatout.environments import from_lock
from flatout.environments.asked_files import read_files
from flatout.environments.decide import Decided, Extra, decide, not_here
from flatout.environments.existing import as_it_is
from flatout.environments.ground import Ground, machine_text, read_ground, read_machine
from flatout.environments.places import Place, place_notes, place_of, require_room
from flatout.nouns.environment_request import EnvironmentRequest
from flatout.nouns.made_environment import EnvironmentWish, Progress
from flatout.nouns.prepared_environment import Prepared
from flatout.nouns.setup_request import SetupRequest
from flatout.nouns.units import counted_text
from flatout.setup.fit import Wish
from flatout.setup.requirement_files import Requirements
from flatout.setup.target import target_from
from flatout.setup.versions import pair
from flatout.setup.wishes import wishes_from, without_effect
from flatout.system import made_environments, micromamba, own_wheel, wheel_store


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
        place = place_of(how, wish.framework)
        name, there = place.name, place.there
        if there is not None and (is_ready := as_it_is(there, kept, machine, place.folder)):
            yield _with_notes(is_ready, told)
            continue
        yield Progress(name=name, text="deciding which packages")
        ground = ground or read_ground(how, machine, may_get_uv=not (is_dry or how.is_offline))
        decided = decide(ground, target_from(machine, ground.tables, platform.machine()),
                         _with_python(wish, asked), _extra(kept, how, asked))  # fmt: skip
        yield _with_notes(settled(decided, kept, place, ground, how), told)


def settled(
    decided: Decided, wish: EnvironmentWish, place: Place, ground: Ground, how: EnvironmentRequest
) -> Prepared:
    """The decision with its sizes, checked against the room that there is.

    Raises:
        RunFailed: disk-full, wheels-not-here.
    """
    choice = decided.answer.choice
    usable, num_gpus = decided.answer.usable, len(ground.machine.gpus)
    state = place.state(decided.pins, decided.python_version, ground.machine)
    # What has the right packages needs no wheels, whether they are still here or not.
    pins = () if state == "same-packages" else decided.pins
    missing = [pin for pin in pins if not wheel_store.is_here(pin)]
    if missing and how.is_offline:
        raise not_here(
            counted_text(len(missing), "wheel"), ", ".join(pin.file for pin in missing[:5])
        )
    is_part = 0 < len(usable) < num_gpus
    prepared = Prepared(
        name=place.name,
        folder=str(place.folder),
        wish=wish,
        state=state,
        version=decided.version,
        cuda=choice.cuda if choice else "cpu",
        index=decided.index,
        python=decided.python,
        python_version=decided.python_version,
        installer=decided.program.name,
        pins=tuple(sorted(decided.pins, key=lambda pin: pin.name)),
        missing_bytes=sum(pin.size_bytes or 0 for pin in missing),
        total_bytes=sum(pin.size_bytes or 0 for pin in pins),
        free_bytes=made_environments.free_bytes(place.folder),
        why=_why(decided, wish),
        ruled_out=decided.answer.ruled_out,
        notes=(*ground.notes, *decided.notes, *place_notes(place.folder, ground.machine)),
        variables={"CUDA_VISIBLE_DEVICES": ",".join(map(str, usable))} if is_part else {},
        machine=machine_text(ground.machine),
        environment=place.there,
        tool=micromamba.step(ground.micromamba) if ground.micromamba else None,
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
