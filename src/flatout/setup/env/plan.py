"""The plan of `flatout setup`: every environment resolved, nothing changed yet."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace

import msgspec

from flatout.compat.fit import BuildRequest
from flatout.compat.request import SetupRequest
from flatout.compat.target import target_from
from flatout.compat.wishes import wishes_from, without_effect
from flatout.schema.environment import EnvironmentSpec, InstallProgress
from flatout.schema.units import counted_text
from flatout.schema.versions import pair
from flatout.setup.env import from_lock
from flatout.setup.env.context import SetupContext, machine_text, read_context, read_machine
from flatout.setup.env.existing import as_it_is
from flatout.setup.env.location import EnvLocation, location_for, location_notes, require_room
from flatout.setup.env.requirement_files import Requirements
from flatout.setup.env.requirement_inputs import read_files
from flatout.setup.env.resolve import Decided, Extra, decide, not_here
from flatout.setup.model.environment_plan import EnvironmentPlan
from flatout.setup.model.environment_request import EnvironmentRequest
from flatout.setup.packages import flatout_wheel, micromamba, wheel_store
from flatout.system.store import environments


def prepare(
    request: SetupRequest, how: EnvironmentRequest, *, is_dry: bool = False
) -> Iterator[InstallProgress | EnvironmentPlan]:
    """Yields progress, and one plan for each framework.

    Args:
        request: which frameworks, and what they must fit.
        how: what else, where and with what.
        is_dry: change nothing, not even in flatout's own folders.

    Raises:
        UsageError: the request is invalid.
        RunFailed: it is not available here and now.
    """
    how.check(len(request.frameworks))
    if how.lock:
        yield from from_lock.prepare_from_lock(how, is_dry=is_dry)
        return
    wishes = wishes_from(request)
    how.check(len(wishes))
    machine = read_machine()
    asked = read_files(how.files)
    notes = (*without_effect(request), *asked.notes)
    context: SetupContext | None = None
    for wish in wishes:
        kept = _kept_wish(wish, how, asked)
        place = location_for(how, wish.framework)
        name, there = place.name, place.there
        if there is not None and (is_ready := as_it_is(there, kept, machine, place.folder)):
            yield _with_notes(is_ready, notes)
            continue
        yield InstallProgress(name=name, text="resolving packages")
        context = context or read_context(how, machine, may_get_uv=not (is_dry or how.is_offline))
        decided = decide(context, target_from(machine, context.tables, platform.machine()),
                         _with_python(wish, asked), _extra(kept, how, asked))  # fmt: skip
        yield _with_notes(settled(decided, kept, place, context, how), notes)


def settled(
    decided: Decided,
    wish: EnvironmentSpec,
    place: EnvLocation,
    context: SetupContext,
    how: EnvironmentRequest,
) -> EnvironmentPlan:
    """The decision with its sizes, checked against the room that there is.

    Raises:
        RunFailed: disk-full, wheels-not-here.
    """
    choice = decided.answer.choice
    usable, num_gpus = decided.answer.usable, len(context.machine.gpus)
    state = place.state(decided.pins, decided.python_version, context.machine)
    # An environment with the right packages needs no wheels.
    pins = () if state == "same-packages" else decided.pins
    missing = [pin for pin in pins if not wheel_store.is_here(pin)]
    if missing and how.is_offline:
        raise not_here(
            counted_text(len(missing), "wheel"), ", ".join(pin.file for pin in missing[:5])
        )
    is_part = 0 < len(usable) < num_gpus
    prepared = EnvironmentPlan(
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
        free_bytes=environments.free_bytes(place.folder),
        why=decided.answer.why,
        ruled_out=decided.answer.ruled_out,
        notes=(*context.notes, *decided.notes, *location_notes(place.folder, context.machine)),
        variables={"CUDA_VISIBLE_DEVICES": ",".join(map(str, usable))} if is_part else {},
        machine=machine_text(context.machine),
        environment=place.there,
        tool=micromamba.step(context.micromamba) if context.micromamba else None,
    )
    require_room(prepared, context.machine)
    return prepared


def _with_notes(prepared: EnvironmentPlan, notes: tuple[str, ...]) -> EnvironmentPlan:
    return msgspec.structs.replace(prepared, notes=(*notes, *prepared.notes))


def _kept_wish(wish: BuildRequest, how: EnvironmentRequest, asked: Requirements) -> EnvironmentSpec:
    """The wishes that determine the contents of the environment; stored in its record."""
    python = f"{wish.python[0]}.{wish.python[1]}" if wish.python else None
    return msgspec.convert(
        {
            "framework": wish.framework, "versions": wish.versions, "python": python,
            "cuda": wish.cuda, "is_cpu": wish.is_cpu, "is_nightly": wish.is_nightly,
            "packages": how.requirements, "files_sha256": asked.sha256, "installer": how.manager,
        },
        EnvironmentSpec,
    )  # fmt: skip


def _with_python(wish: BuildRequest, asked: Requirements) -> BuildRequest:
    """The request, with the Python of an environment.yml unless another was requested."""
    if wish.python is not None or asked.python is None:
        return wish
    return replace(wish, python=pair(asked.python))


def _extra(wish: EnvironmentSpec, how: EnvironmentRequest, asked: Requirements) -> Extra:
    own = flatout_wheel.requirements() if wish.framework == "torch" else ()
    return Extra(
        lines=(*own, *wish.packages, *asked.lines),
        is_nightly=wish.is_nightly,
        is_offline=how.is_offline,
    )
