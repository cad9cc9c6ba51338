"""`flatout setup --repair`: an existing environment, read, repaired and verified.

It is shown first, package by package; then flatout downloads the wheels, and installs them without
a network as a plan, which `flatout undo` takes back.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from flatout.compat.build_requests import build_requests_from
from flatout.compat.conflicts import closure, plain_name
from flatout.compat.fit import BuildRequest, Target
from flatout.compat.request import SetupRequest
from flatout.compat.target import target_from
from flatout.doctor import api as doctor_api
from flatout.errors import RunFailed, UsageError
from flatout.schema.change_journal import StepOutcome
from flatout.schema.environment import (
    FrameworkName,
    InstallProgress,
    MadeEnvironment,
    Pin,
    SmokeTestResult,
)
from flatout.schema.finding import Finding
from flatout.schema.framework import Framework
from flatout.schema.installed_packages import InspectedEnvironment
from flatout.schema.machine import Machine
from flatout.schema.plan import InstallPackages, Plan, PlanStep
from flatout.schema.units import counted_text
from flatout.setup.env.context import SetupContext, machine_text, read_context, read_machine
from flatout.setup.env.index_choice import IndexChoices
from flatout.setup.env.lock_file import requirement_lines
from flatout.setup.env.manage import unused
from flatout.setup.env.repair_diff import RepairDiff, pinned_difference, resolve_difference
from flatout.setup.env.repair_problems import (
    RepairProblem,
    find_wrong,
    known_frameworks,
    requested_by,
)
from flatout.setup.env.resolve import not_here
from flatout.setup.env.smoke_test import judge, problem
from flatout.setup.model.environment_repair import (
    EnvironmentProblem,
    EnvironmentRepair,
    PackageChange,
)
from flatout.setup.model.environment_request import EnvironmentRequest
from flatout.setup.packages import smoke_test_runner, wheel_store
from flatout.setup.packages.installed_packages import (
    IsolatedSystem,
    inspect_environment,
    read_inside,
)
from flatout.system import clock, paths, text_input
from flatout.system.changes import apply
from flatout.system.probes.environments import read_environment
from flatout.system.site_policy import read_site
from flatout.system.store import environments

Device = Literal["cpu", "gpu"]

_LINES = "requirements.txt"
# Rules about the contents of an environment.
_FAMILIES = ("framework", "install", "python")
_TABLE_NAMES: dict[str, FrameworkName] = {
    "torch": "torch", "tensorflow": "tensorflow", "paddlepaddle": "paddle", "jax": "jax",
}  # fmt: skip


def prepare_repair(
    name: str, request: SetupRequest, how: EnvironmentRequest, *, is_dry: bool = False
) -> Iterator[InstallProgress | EnvironmentRepair]:
    """Yields progress, then what is wrong in an environment and how to repair it.

    Args:
        name: a folder, or a name of `flatout envs` or of conda.
        request: what the user requires of the builds.
        how: mirrors, the program that resolves, and whether there is a network.
        is_dry: change nothing, not even in flatout's own folders.

    Raises:
        UsageError: no-such-environment, environment-not-repaired, environment-of-conda.
        RunFailed: not-mendable, nothing-fits, environment-not-readable, index-not-reachable.
    """
    how.check(0)
    yield InstallProgress(name="", text="reading the environment")
    machine = read_machine()
    inputs = _read(
        inspect_environment(name), machine, request, how, may_get_uv=not (is_dry or how.is_offline)
    )
    yield InstallProgress(name=name, text="resolving packages")
    made = _made_in(inputs.inside.folder)
    diagnosis = _as_locked(inputs, made, machine) if made else _as_solved(inputs)
    tried: tuple[SmokeTestResult, ...] = ()
    if not diagnosis.problems:
        yield InstallProgress(name=name, text="training steps")
        tried, damaged = _tried(inputs)
        if damaged:
            diagnosis = _as_damaged(inputs, damaged, made)
    yield _repair(inputs, diagnosis, tried)


def carry_out(
    repair: EnvironmentRepair, how: EnvironmentRequest
) -> Iterator[InstallProgress | StepOutcome | SmokeTestResult]:
    """Downloads, changes the packages, and verifies the result by training steps.

    Raises:
        UsageError: environment-changed, environment-in-use, setup-in-progress, changes-under-way.
        RunFailed: the download failed; training-step-failed, wrong-result.
    """
    with unused(repair.inside.name, repair.inside.folder):
        yield from _carried_out(repair, how)


def _carried_out(
    repair: EnvironmentRepair, how: EnvironmentRequest
) -> Iterator[InstallProgress | StepOutcome | SmokeTestResult]:
    inside, plan = repair.inside, repair.plan
    assert plan is not None
    now = read_inside(inside.name, Path(inside.folder), inside.kind, inside.python)
    if now.versions != inside.versions:
        raise UsageError(
            "environment-changed",
            f"{inside.folder} has changed since the plan was shown.",
            because="packages were installed or removed in the meantime",
            fix="run this again",
        )
    context = read_context(how, read_machine(), may_get_uv=False)
    began_s = clock.elapsed_s()
    for done, total in wheel_store.fetch(repair.pins, context.opener):
        yield InstallProgress(
            name=inside.name,
            text="downloading",
            done_bytes=done,
            total_bytes=total,
            bytes_per_s=done / max(clock.elapsed_s() - began_s, 0.1),
        )
    folder = _wheels_folder(repair.pins)
    try:
        wheel_store.link_into(repair.pins, folder / "wheels")
        text_input.write(folder / _LINES, "\n".join(requirement_lines(repair.pins)) + "\n")
        outcomes = []
        for outcome in apply.apply(plan):
            outcomes.append(outcome)
            yield outcome
    finally:
        wheel_store.forget(folder)
    if any(outcome.how == "failed" for outcome in outcomes):
        return
    for framework, device in repair.devices.items():
        yield InstallProgress(name=inside.name, text=f"training steps on the {device.upper()}")
        try:
            yield _proof(inside.python, framework, device)
        except RunFailed as error:
            undo = f"flatout undo {outcomes[-1].id or ''}".strip()
            raise RunFailed(
                error.rule, error.problem, because=error.because, printed=error.printed,
                fix=f"{undo} restores the previous packages; {error.fix}",
            ) from error  # fmt: skip


def _made_in(folder: str) -> MadeEnvironment | None:
    """flatout's own environment in a folder, by whatever path the user named it."""
    real = Path(folder).resolve()
    made = environments.list_environments()
    return next(
        (environment for environment in made if Path(environment.folder).resolve() == real), None
    )


class _RepairInputs(msgspec.Struct, frozen=True):
    """Everything read before resolving. findings: the doctor's, about packages."""

    inside: InspectedEnvironment
    target: Target
    request: BuildRequest
    context: SetupContext
    how: EnvironmentRequest
    findings: tuple[Finding, ...]


class _Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The problems and their repair. wrong: for environments without a lock file."""

    problems: tuple[EnvironmentProblem, ...] = ()
    difference: RepairDiff = RepairDiff()
    wrong: RepairProblem = RepairProblem()


def _read(
    inside: InspectedEnvironment, machine: Machine, request: SetupRequest,
    how: EnvironmentRequest, *, may_get_uv: bool,
) -> _RepairInputs:  # fmt: skip
    environment = read_environment(IsolatedSystem(), inside.python).environment
    inside = msgspec.structs.replace(inside, frameworks=environment.frameworks)
    there = msgspec.structs.replace(
        machine, python=inside.python, frameworks=environment.frameworks,
        environments=(environment,),
    )  # fmt: skip
    judged = doctor_api.judge(there)
    findings = tuple(
        finding for finding in judged.diagnosis.findings
        if finding.severity != "note" and judged.families.get(finding.rule) in _FAMILIES
    )  # fmt: skip
    context = read_context(how, machine, may_get_uv=may_get_uv)
    (build_request,) = build_requests_from(request)
    target = target_from(machine, context.tables, platform.machine())
    return _RepairInputs(inside, target, build_request, context, how, findings)


def _as_solved(inputs: _RepairInputs) -> _Diagnosis:
    """The problems that the metadata of an environment show."""
    inside = inputs.inside
    indexes = IndexChoices(inputs.context, is_offline=inputs.how.is_offline)
    wrong = find_wrong(inside, inputs.target, inputs.request, inputs.context.tables, indexes)
    requested = requested_by(inputs.findings, inside)
    if requested:
        problems = [EnvironmentProblem(problem=finding.problem, packages=tuple(requested))
                    for finding in inputs.findings if requested_by([finding], inside)]  # fmt: skip
        wrong = msgspec.structs.replace(
            wrong, required={**requested, **wrong.required}, problems=(*wrong.problems, *problems)
        )
    return _resolved(inputs, wrong, frozenset()) if wrong.problems else _Diagnosis(wrong=wrong)


def _resolved(inputs: _RepairInputs, wrong: RepairProblem, again: frozenset[str]) -> _Diagnosis:
    difference = resolve_difference(
        inputs.inside, wrong, again, inputs.context, is_offline=inputs.how.is_offline
    )
    return _Diagnosis(problems=wrong.problems, difference=difference, wrong=wrong)


def _as_locked(inputs: _RepairInputs, made: MadeEnvironment, machine: Machine) -> _Diagnosis:
    """The problems of an environment of flatout's own, whose record says what is right.

    Raises:
        UsageError: environment-for-other-machine.
    """
    if made.machine != machine_text(machine):
        raise UsageError(
            "environment-for-other-machine",
            f"`{made.name}` was created for another driver or GPU.",
            because=f"it was created for {made.machine}; this machine has {machine_text(machine)}",
            fix=f"recreate it: flatout setup {made.spec.framework}",
        )
    difference = pinned_difference(inputs.inside, made.pins)
    problems = tuple(
        EnvironmentProblem(problem=_differs(change, made.name), packages=(change.name,))
        for change in difference.changes
    )
    return _Diagnosis(problems=problems, difference=difference)


def _differs(change: PackageChange, name: str) -> str:
    there = f"now has {change.before}" if change.before else "it is missing now"
    return f"`{name}` was created with {change.name} {change.after}, but {there}"


def _tried(inputs: _RepairInputs) -> tuple[tuple[SmokeTestResult, ...], Framework | None]:
    """Training steps, where the metadata are fine; the framework whose files are damaged.

    Raises:
        RunFailed: training-step-failed, wrong-result: on a GPU, although the CPU computes.
    """
    proved: list[SmokeTestResult] = []
    for framework in known_frameworks(inputs.inside):
        name = _TABLE_NAMES[framework.name]
        device = _device(framework.build, inputs.target)
        try:
            proved.append(_proof(inputs.inside.python, name, device))
        except RunFailed:
            if device == "cpu" or not _computes(inputs.inside.python, name):
                return (), framework
            # The files are intact: a reinstallation would not fix the driver or the card.
            raise
    return tuple(proved), None


def _computes(python: str, framework: FrameworkName) -> bool:
    try:
        _proof(python, framework, "cpu")
    except RunFailed:
        return False
    return True


def _as_damaged(
    inputs: _RepairInputs, framework: Framework, made: MadeEnvironment | None
) -> _Diagnosis:
    """Reinstalls the framework and its dependencies: its libraries are in separate packages."""
    names = _packages_of(framework, inputs.inside)
    text = f"a training step with {framework.name} {framework.version} fails, even on the CPU"
    trouble = EnvironmentProblem(problem=text, packages=tuple(names))
    if made is not None:
        pins = tuple(pin for pin in made.pins if plain_name(pin.name) in names)
        again = tuple(PackageChange(name=pin.name, before=pin.version, after=pin.version,
                             size_bytes=pin.size_bytes) for pin in pins)  # fmt: skip
        return _Diagnosis(problems=(trouble,), difference=RepairDiff(changes=again, pins=pins))
    indexes = IndexChoices(inputs.context, is_offline=inputs.how.is_offline)
    wrong = find_wrong(inputs.inside, inputs.target, inputs.request, inputs.context.tables, indexes)
    required = {name: f"{name}=={inputs.inside.packages[name].version}" for name in names}
    wrong = msgspec.structs.replace(wrong, problems=(trouble,), required=required)
    return _resolved(inputs, wrong, frozenset(names))


def _packages_of(framework: Framework, inside: InspectedEnvironment) -> list[str]:
    """The packages of a framework and their dependencies, except conda's and local ones."""
    own = {f"{framework.name}{ending}" for ending in ("", "-gpu", "-cpu")}
    # JAX and Paddle name these in extras, and metadata do not record which extras were requested.
    more = (f"{framework.name}-cuda", "nvidia-")
    roots = [name for name in inside.packages if name in own or name.startswith(more)]
    needed = closure(roots, inside.packages, inside.markers)
    others = {
        name
        for name in needed - own
        if inside.packages[name].installer == "conda" or inside.packages[name].is_local
    }
    return sorted(needed - others)


def _repair(
    inputs: _RepairInputs, diagnosis: _Diagnosis, tried: tuple[SmokeTestResult, ...]
) -> EnvironmentRepair:
    """The complete repair, with its plan.

    Raises:
        UsageError: environment-of-conda.
        RunFailed: wheels-not-here, disk-full.
    """
    inside, difference = inputs.inside, diagnosis.difference
    _leave_to_conda(inside, difference.changes)
    missing = [pin for pin in difference.pins if not wheel_store.is_here(pin)]
    if missing and inputs.how.is_offline:
        raise not_here(
            counted_text(len(missing), "wheel"), ", ".join(pin.file for pin in missing[:5])
        )
    devices = {
        _TABLE_NAMES[framework.name]: _device(framework.build, inputs.target)
        for framework in known_frameworks(inside)
    }
    for answer in diagnosis.wrong.answers:
        if answer.build is not None:
            name: FrameworkName = answer.build.framework  # type: ignore[assignment]
            devices[name] = "cpu" if answer.build.cuda == "cpu" else "gpu"
    repair = EnvironmentRepair(
        inside=inside,
        problems=diagnosis.problems,
        changes=difference.changes,
        pins=difference.pins,
        missing_bytes=sum(pin.size_bytes or 0 for pin in missing),
        findings=inputs.findings if not diagnosis.problems else (),
        notes=(*inputs.context.notes, *difference.notes),
        devices=devices,
        proofs=tried,
    )
    if not repair.changes:
        return repair
    site = read_site()
    if "repair" in site.forbidden.goals:
        return msgspec.structs.replace(repair, refusal=site.refusal)
    return msgspec.structs.replace(repair, plan=_plan(repair))


def _plan(repair: EnvironmentRepair) -> Plan:
    inside, pins = repair.inside, repair.pins
    gone = tuple(change.name for change in repair.changes if change.how == "removed")
    steps = []
    if gone:
        steps.append(
            PlanStep(
                text=f"remove {', '.join(gone)}",
                action=InstallPackages(python=inside.python, words=("uninstall", *gone)),
                changes=f"packages of {inside.folder}",
                removes_packages=True,
            )
        )
    if pins:
        folder = _wheels_folder(pins)
        words = ("install", "--no-deps", "--no-index", "--force-reinstall", "--require-hashes",
                 "--find-links", str(folder / "wheels"), "-r", str(folder / _LINES))  # fmt: skip
        steps.append(
            PlanStep(
                text=f"install {', '.join(f'{pin.name} {pin.version}' for pin in pins)}",
                action=InstallPackages(python=inside.python, words=words),
                changes=f"packages of {inside.folder}",
                size_bytes=repair.missing_bytes or None,
            )
        )
    return Plan(goal=f"repair {inside.folder}", steps=tuple(steps))


def _leave_to_conda(inside: InspectedEnvironment, changes: Sequence[PackageChange]) -> None:
    """Refuses to change conda's packages with pip: conda would not notice."""
    names = [change.name for change in changes if change.before is not None
             and inside.packages[change.name].installer == "conda"]  # fmt: skip
    if names:
        raise UsageError(
            "environment-of-conda",
            f"conda has installed {', '.join(names)}, so pip must not change that.",
            because="conda would not notice, and would still list its own versions",
            fix=f"conda remove --prefix {inside.folder} --force {' '.join(names)}, then run this "
            "again; or create a new environment: flatout setup",
        )


def _wheels_folder(pins: Sequence[Pin]) -> Path:
    names = "\n".join(sorted(f"{pin.name} {pin.sha256}" for pin in pins))
    return paths.cache_folder() / "repairs" / hashlib.sha256(names.encode()).hexdigest()[:16]


def _proof(python: str, framework: FrameworkName, device: Device) -> SmokeTestResult:
    # A check must leave nothing behind, not even compiled Python.
    output = smoke_test_runner.train_steps(
        python, framework, problem(device), {"PYTHONDONTWRITEBYTECODE": "1"}
    )
    return judge(output, device, clock.now_text())


def _device(build: str | None, target: Target) -> Device:
    return "gpu" if target.gpus and (build or "").startswith("cu") else "cpu"
