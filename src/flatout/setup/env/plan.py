"""The plan of `flatout setup`: every environment resolved, nothing changed yet."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from flatout.compat.build_requests import build_requests_from, without_effect
from flatout.compat.fit import BuildRequest
from flatout.compat.request import SetupRequest
from flatout.compat.target import target_from
from flatout.schema.environment import EnvironmentSpec, InstallProgress
from flatout.schema.units import counted_text
from flatout.schema.versions import pair
from flatout.setup.env import from_lock
from flatout.setup.env.context import SetupContext, machine_text, read_context, read_machine
from flatout.setup.env.existing import as_it_is
from flatout.setup.env.location import EnvLocation, location_for, location_notes, require_room
from flatout.setup.env.requirement_files import Requirements
from flatout.setup.env.requirement_inputs import read_files
from flatout.setup.env.resolve import Extra, Resolution, not_here, resolve
from flatout.setup.model.environment_plan import EnvironmentPlan
from flatout.setup.model.environment_request import EnvironmentRequest
from flatout.setup.packages import flatout_wheel, micromamba, wheel_store
from flatout.system.store import environment_folder, environments


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
    build_requests = build_requests_from(request)
    how.check(len(build_requests))
    machine = read_machine()
    requirements = read_files(how.files)
    notes = (*without_effect(request), *requirements.notes)
    context: SetupContext | None = None
    for build_request in build_requests:
        spec = _spec_of(build_request, how, requirements)
        location = location_for(how, build_request.framework)
        name, there = location.name, location.there
        if there is not None and (is_ready := as_it_is(there, spec, machine, location.folder)):
            if not is_dry:
                environment_folder.forget_note(Path(is_ready.folder))
            yield _with_notes(is_ready, notes)
            continue
        yield InstallProgress(name=name, text="resolving packages")
        context = context or read_context(how, machine, may_get_uv=not (is_dry or how.is_offline))
        target = target_from(machine, context.tables, platform.machine())
        resolution = resolve(
            context,
            target,
            _with_python(build_request, requirements),
            _extra(spec, how, requirements),
        )
        yield _with_notes(environment_plan(resolution, spec, location, context, how), notes)


def environment_plan(
    resolution: Resolution,
    spec: EnvironmentSpec,
    location: EnvLocation,
    context: SetupContext,
    how: EnvironmentRequest,
) -> EnvironmentPlan:
    """The decision with its sizes, checked against the room that there is.

    Raises:
        RunFailed: disk-full, wheels-not-here.
    """
    choice = resolution.answer.choice
    usable, num_gpus = resolution.answer.usable, len(context.machine.gpus)
    state = location.state(resolution.pins, resolution.python_version, context.machine)
    # An environment with the right packages needs no wheels.
    pins = () if state == "same-packages" else resolution.pins
    missing = [pin for pin in pins if not wheel_store.is_here(pin)]
    if missing and how.is_offline:
        raise not_here(
            counted_text(len(missing), "wheel"), ", ".join(pin.file for pin in missing[:5])
        )
    is_part = 0 < len(usable) < num_gpus
    prepared = EnvironmentPlan(
        name=location.name,
        folder=str(location.folder),
        spec=spec,
        state=state,
        version=resolution.version,
        cuda=choice.cuda if choice else "cpu",
        index=resolution.index,
        python=resolution.python,
        python_version=resolution.python_version,
        installer=resolution.program.name,
        pins=tuple(sorted(resolution.pins, key=lambda pin: pin.name)),
        missing_bytes=sum(pin.size_bytes or 0 for pin in missing),
        total_bytes=sum(pin.size_bytes or 0 for pin in pins),
        free_bytes=environments.free_bytes(location.folder),
        why=resolution.answer.why,
        ruled_out=resolution.answer.ruled_out,
        notes=(
            *context.notes,
            *resolution.notes,
            *location_notes(location.folder, context.machine),
        ),
        variables={"CUDA_VISIBLE_DEVICES": ",".join(map(str, usable))} if is_part else {},
        machine=machine_text(context.machine),
        environment=location.there,
        tool=micromamba.step(context.micromamba) if context.micromamba else None,
    )
    require_room(prepared, context.machine)
    return prepared


def _with_notes(prepared: EnvironmentPlan, notes: tuple[str, ...]) -> EnvironmentPlan:
    return msgspec.structs.replace(prepared, notes=(*notes, *prepared.notes))


def _spec_of(
    request: BuildRequest, how: EnvironmentRequest, requirements: Requirements
) -> EnvironmentSpec:
    """The options that determine the contents of the environment; stored in its record."""
    python = f"{request.python[0]}.{request.python[1]}" if request.python else None
    return msgspec.convert(
        {
            "framework": request.framework, "versions": request.versions, "python": python,
            "cuda": request.cuda, "is_cpu": request.is_cpu, "is_nightly": request.is_nightly,
            "packages": how.requirements, "files_sha256": requirements.sha256,
            "installer": how.manager,
        },
        EnvironmentSpec,
    )  # fmt: skip


def _with_python(build_request: BuildRequest, requirements: Requirements) -> BuildRequest:
    """The request, with the Python of an environment.yml unless another was requested."""
    if build_request.python is not None or requirements.python is None:
        return build_request
    return replace(build_request, python=pair(requirements.python))


def _extra(spec: EnvironmentSpec, how: EnvironmentRequest, requirements: Requirements) -> Extra:
    own = flatout_wheel.requirements() if spec.framework == "torch" else ()
    return Extra(
        lines=(*own, *spec.packages, *requirements.lines),
        is_nightly=spec.is_nightly,
        is_offline=how.is_offline,
    )
