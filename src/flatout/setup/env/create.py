"""Creates planned environments: each is registered only after its training steps succeeded."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.environment import InstallProgress, MadeEnvironment, Pin, SmokeTestResult
from flatout.schema.units import counted_text
from flatout.setup.env.context import SetupContext, read_context, read_machine
from flatout.setup.env.existing import require_same
from flatout.setup.env.lock_file import LockFile, lock_text, requirement_lines
from flatout.setup.env.manage import require_unused
from flatout.setup.env.resolve import resolve_wheels
from flatout.setup.env.smoke_test import judge, problem
from flatout.setup.model.environment_plan import EnvironmentPlan
from flatout.setup.model.environment_request import EnvironmentRequest
from flatout.setup.packages import (
    bundles,
    flatout_wheel,
    micromamba,
    smoke_test_runner,
    uv,
    wheel_store,
)
from flatout.setup.packages.installers import Program, ResolveRequest, interpreter_in, untrusted
from flatout.system import clock, pythons, text_input
from flatout.system.http import without_password
from flatout.system.store import environment_folder, environments


def make(
    prepared: Sequence[EnvironmentPlan], how: EnvironmentRequest
) -> Iterator[InstallProgress | MadeEnvironment]:
    """Yields progress, and each environment when it is complete.

    A failed environment is removed; the one that it should replace is kept. A killed process leaves
    an incomplete folder, which the next one removes.

    Raises:
        UsageError: setup-in-progress, environment-in-use, environment-differs, folder-not-empty,
            python-version-not-found.
        RunFailed: the installation, download or smoke test failed.
    """
    if environments.is_busy():
        yield InstallProgress(name="", text="waiting for a setup that another flatout has started")
    with environments.locked() as lock:
        environments.sweep()
        context = read_context(
            how, read_machine(), may_get_uv=not how.is_offline, kept_open=(lock,)
        )
        for plan in prepared:
            # The environment may have changed since the plan was shown.
            there = environments.read_environment(plan.name)
            if there is None and plan.environment is not None:
                there = environments.find_environment(plan.name)  # Raises: it is gone.
            if there is None or plan.state in ("other-machine", "other-packages"):
                yield from _make(plan, there, context, is_offline=how.is_offline)
            elif there == plan.environment and plan.state in ("flatout", "same-packages"):
                yield from _renew(there, plan, context)
            else:
                require_same(there, plan.spec, Path(plan.folder))
                yield there


def _make(
    plan: EnvironmentPlan, there: MadeEnvironment | None, context: SetupContext, *, is_offline: bool
) -> Iterator[InstallProgress | MadeEnvironment]:
    folder = Path(plan.folder)
    program = _program(plan, context)
    if there is not None:
        require_same(there, plan.spec, folder)
    require_unused(plan.name, plan.folder)
    # First what may fail before anything is changed.
    pins = (*plan.pins, *((flatout_wheel.build(),) if plan.spec.framework == "torch" else ()))
    yield from _fetch_micromamba(plan, context)
    yield from _fetch(plan, pins, context)
    require_unused(plan.name, plan.folder)
    environments.begin(plan.name, folder)
    try:
        yield InstallProgress(name=plan.name, text="creating the environment")
        python = _empty_environment(plan, program, is_offline=is_offline)
        yield InstallProgress(name=plan.name, text=f"Python {plan.python_version}", is_over=True)
        yield InstallProgress(
            name=plan.name, text=f"installing {counted_text(len(pins), 'package')}"
        )
        _install(pins, python, folder, program)
        yield InstallProgress(name=plan.name, text=counted_text(len(pins), "package"), is_over=True)
        yield InstallProgress(name=plan.name, text=f"training steps on the {plan.device.upper()}")
        made = _record(plan, python, _prove(plan, python))
        environments.finish(made, lock_text(lock_of(plan)))
    # BaseException: clean up after Ctrl-C as well.
    except BaseException:
        environment_folder.restore(folder)
        raise
    yield made


def _program(plan: EnvironmentPlan, context: SetupContext) -> Program:
    return next(
        (program for program in context.programs if program.name == plan.installer), context.program
    )


def _empty_environment(plan: EnvironmentPlan, program: Program, *, is_offline: bool) -> str:
    folder = Path(plan.folder)
    python = plan.python if plan.python and program.name != "conda" else plan.python_version
    try:
        program.make(folder, python, is_offline=is_offline)
    except FlatoutError as error:
        if plan.python is None and error.rule != "disk-full":
            raise UsageError(
                "python-version-not-found",
                f"Python {plan.python_version} is not installed, and {program.name} cannot "
                "download it.",
                because=error.because,
                fix="install it, choose another --python, or name a mirror: --mirror python=URL",
            ) from error
        raise
    return str(interpreter_in(folder, plan.installer))


def _fetch(
    plan: EnvironmentPlan, pins: Sequence[Pin], context: SetupContext
) -> Iterator[InstallProgress]:
    began_s = clock.elapsed_s()
    done = 0
    for done, total in wheel_store.fetch(pins, context.opener):
        rate = done / max(clock.elapsed_s() - began_s, 0.1)
        yield InstallProgress(
            name=plan.name, text="downloading", done_bytes=done, total_bytes=total, bytes_per_s=rate
        )
    if done:
        text = f"downloaded in {clock.elapsed_s() - began_s:.0f} s"
        yield InstallProgress(name=plan.name, text=text, done_bytes=done, is_over=True)


def _fetch_micromamba(plan: EnvironmentPlan, context: SetupContext) -> Iterator[InstallProgress]:
    # The first of several environments has downloaded it already.
    if context.micromamba is None or micromamba.find_own() is not None:
        return
    done = 0
    try:
        for done, total in micromamba.fetch(context.micromamba, context.opener):
            text = "downloading micromamba"
            yield InstallProgress(name=plan.name, text=text, done_bytes=done, total_bytes=total)
    except RunFailed as error:
        if "CERTIFICATE_VERIFY_FAILED" in (error.because or ""):
            raise untrusted(error.because or "") from error
        raise
    yield InstallProgress(
        name=plan.name, text="downloaded micromamba", done_bytes=done, is_over=True
    )


def _install(
    pins: Sequence[Pin], python: str, folder: Path, program: Program, *, is_again: bool = False
) -> None:
    links = folder / ".wheels"
    lines = folder / ".wheels.txt"
    wheel_store.link_into(pins, links)
    text_input.write(lines, "\n".join(requirement_lines(pins)) + "\n")
    program.install(python, lines, links, is_again=is_again)
    wheel_store.forget(links)
    lines.unlink()


def _prove(plan: EnvironmentPlan, python: str) -> SmokeTestResult:
    output = smoke_test_runner.train_steps(
        python, plan.spec.framework, problem(plan.device), plan.variables
    )
    return judge(output, plan.device, clock.now_text())


def _record(plan: EnvironmentPlan, python: str, proof: SmokeTestResult) -> MadeEnvironment:
    return MadeEnvironment(
        name=plan.name,
        folder=plan.folder,
        python=python,
        python_version=plan.python_version,
        version=plan.version,
        cuda=plan.cuda,
        index=plan.index and without_password(plan.index),
        installer=plan.installer,
        spec=plan.spec,
        machine=plan.machine,
        pins=tuple(
            msgspec.structs.replace(pin, url=without_password(pin.url)) for pin in plan.pins
        ),
        flatout=flatout_wheel.digest() if plan.spec.framework == "torch" else None,
        variables=plan.variables,
        size_bytes=environments.size_bytes(Path(plan.folder)),
        made_at=clock.now_text(),
        proof=proof,
    )


def lock_of(plan: EnvironmentPlan) -> LockFile:
    """The lock file of a planned environment."""
    return LockFile(
        framework=plan.spec.framework,
        python=plan.python_version,
        platform=own_platform(),
        cuda=plan.cuda,
        index=plan.index and without_password(plan.index),
        pins=plan.pins,
    )


def own_platform() -> str:
    """This system and processor, as named in lock files."""
    return f"{sys.platform} {platform.machine()}"


def _renew(
    there: MadeEnvironment, plan: EnvironmentPlan, context: SetupContext
) -> Iterator[InstallProgress | MadeEnvironment]:
    """Installs the running flatout; verifies an environment from another machine."""
    if there.flatout not in (None, flatout_wheel.digest()):
        require_unused(there.name, there.folder)
        yield InstallProgress(name=there.name, text="installing this flatout")
        program = next((program for program in context.programs if program.name == there.installer),
                       context.program)  # fmt: skip
        _install([flatout_wheel.build()], there.python, Path(there.folder), program, is_again=True)
        there = msgspec.structs.replace(there, flatout=flatout_wheel.digest())
        environments.rename_record(there)
    if plan.state == "same-packages":
        yield InstallProgress(name=there.name, text=f"training steps on the {plan.device.upper()}")
        proof = _prove(plan, there.python)
        there = msgspec.structs.replace(
            there, machine=plan.machine, variables=plan.variables, proof=proof
        )
        environments.rename_record(there)
    yield there


def fetch_only(plan: EnvironmentPlan, how: EnvironmentRequest) -> Iterator[InstallProgress | Path]:
    """Downloads what was planned into a folder, from which it can be installed offline.

    Raises:
        UsageError: folder-not-empty.
        RunFailed: the download failed.
    """
    folder = bundles.bundle_folder(how.bundle or "")
    context = read_context(how, read_machine(), may_get_uv=False)
    yield from _fetch(plan, plan.pins, context)
    bundles.put_wheels(folder, plan.name, plan.pins)
    yield from _with_uv(folder, plan, context)
    bundles.finish(folder, lock_text(lock_of(plan)))
    yield folder


def _with_uv(
    folder: Path, plan: EnvironmentPlan, context: SetupContext
) -> Iterator[InstallProgress]:
    """Adds uv's own wheel: a machine without a network may not have uv."""
    request = ResolveRequest(
        lines=(uv.requirement(),), python_version=pythons.own_version(),
        python=sys.executable, indexes=context.indexes, is_whole=True, folder=Path(),
    )  # fmt: skip
    try:
        (pin,) = wheel_store.measured(resolve_wheels(context, request, [])[1], context.opener)
        yield from _fetch(plan, [pin], context)
    except FlatoutError as error:
        text = f"the bundle has no uv ({error.problem}): installing from it needs pip"
        yield InstallProgress(name=plan.name, text=text, is_over=True)
        return
    tools = uv.bundled_folder(folder)
    wheel_store.forget(tools)
    wheel_store.link_into([pin], tools / pin.sha256)
