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
from flatout.setup.env.resolve import decide_on_wheels
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
from flatout.setup.packages.installers import Deciding, Program, interpreter_in, untrusted
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
        context = read_context(how, read_machine(), may_get_uv=not how.is_offline, held=(lock,))
        for one in prepared:
            # The environment may have changed since the plan was shown.
            there = environments.read_environment(one.name)
            if there is None and one.environment is not None:
                there = environments.find_environment(one.name)  # Raises: it is gone.
            if there is None or one.state in ("other-machine", "other-packages"):
                yield from _make(one, there, context, is_offline=how.is_offline)
            elif there == one.environment and one.state in ("flatout", "same-packages"):
                yield from _renew(there, one, context)
            else:
                require_same(there, one.wish, Path(one.folder))
                yield there


def _make(
    one: EnvironmentPlan, there: MadeEnvironment | None, context: SetupContext, *, is_offline: bool
) -> Iterator[InstallProgress | MadeEnvironment]:
    folder = Path(one.folder)
    program = _program(one, context)
    if there is not None:
        require_same(there, one.wish, folder)
    require_unused(one.name, one.folder)
    # First what may fail before anything is changed.
    pins = (*one.pins, *((flatout_wheel.build(),) if one.wish.framework == "torch" else ()))
    yield from _fetch_micromamba(one, context)
    yield from _fetch(one, pins, context)
    require_unused(one.name, one.folder)
    environments.begin(one.name, folder)
    try:
        yield InstallProgress(name=one.name, text="creating the environment")
        python = _empty_environment(one, program, is_offline=is_offline)
        yield InstallProgress(name=one.name, text=f"Python {one.python_version}", is_over=True)
        yield InstallProgress(
            name=one.name, text=f"installing {counted_text(len(pins), 'package')}"
        )
        _install(pins, python, folder, program)
        yield InstallProgress(name=one.name, text=counted_text(len(pins), "package"), is_over=True)
        yield InstallProgress(name=one.name, text=f"training steps on the {one.device.upper()}")
        made = _record(one, python, _prove(one, python))
        environments.finish(made, lock_text(lock_of(one)))
    # BaseException: clean up after Ctrl-C as well.
    except BaseException:
        environment_folder.restore(folder)
        raise
    yield made


def _program(one: EnvironmentPlan, context: SetupContext) -> Program:
    return next((each for each in context.programs if each.name == one.installer), context.program)


def _empty_environment(one: EnvironmentPlan, program: Program, *, is_offline: bool) -> str:
    folder = Path(one.folder)
    wanted = one.python if one.python and program.name != "conda" else one.python_version
    try:
        program.make(folder, wanted, is_offline=is_offline)
    except FlatoutError as error:
        if one.python is None and error.rule != "disk-full":
            raise UsageError(
                "python-version-not-found",
                f"Python {one.python_version} is not installed, and {program.name} cannot download "
                "it.",
                because=error.because,
                fix="install it, choose another --python, or name a mirror: --mirror python=URL",
            ) from error
        raise
    return str(interpreter_in(folder, one.installer))


def _fetch(
    one: EnvironmentPlan, pins: Sequence[Pin], context: SetupContext
) -> Iterator[InstallProgress]:
    began_s = clock.elapsed_s()
    done = 0
    for done, total in wheel_store.fetch(pins, context.opener):
        rate = done / max(clock.elapsed_s() - began_s, 0.1)
        yield InstallProgress(
            name=one.name, text="downloading", done_bytes=done, total_bytes=total, bytes_per_s=rate
        )
    if done:
        text = f"downloaded in {clock.elapsed_s() - began_s:.0f} s"
        yield InstallProgress(name=one.name, text=text, done_bytes=done, is_over=True)


def _fetch_micromamba(one: EnvironmentPlan, context: SetupContext) -> Iterator[InstallProgress]:
    # The first of several environments has downloaded it already.
    if context.micromamba is None or micromamba.find_own() is not None:
        return
    done = 0
    try:
        for done, total in micromamba.fetch(context.micromamba, context.opener):
            text = "downloading micromamba"
            yield InstallProgress(name=one.name, text=text, done_bytes=done, total_bytes=total)
    except RunFailed as error:
        if "CERTIFICATE_VERIFY_FAILED" in (error.because or ""):
            raise untrusted(error.because or "") from error
        raise
    yield InstallProgress(
        name=one.name, text="downloaded micromamba", done_bytes=done, is_over=True
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


def _prove(one: EnvironmentPlan, python: str) -> SmokeTestResult:
    output = smoke_test_runner.train_steps(
        python, one.wish.framework, problem(one.device), one.variables
    )
    return judge(output, one.device, clock.now_text())


def _record(one: EnvironmentPlan, python: str, proof: SmokeTestResult) -> MadeEnvironment:
    return MadeEnvironment(
        name=one.name,
        folder=one.folder,
        python=python,
        python_version=one.python_version,
        version=one.version,
        cuda=one.cuda,
        index=one.index and without_password(one.index),
        installer=one.installer,
        wish=one.wish,
        machine=one.machine,
        pins=tuple(msgspec.structs.replace(pin, url=without_password(pin.url)) for pin in one.pins),
        flatout=flatout_wheel.digest() if one.wish.framework == "torch" else None,
        variables=one.variables,
        size_bytes=environments.size_bytes(Path(one.folder)),
        made_at=clock.now_text(),
        proof=proof,
    )


def lock_of(one: EnvironmentPlan) -> LockFile:
    """The lock file of a planned environment."""
    return LockFile(
        framework=one.wish.framework,
        python=one.python_version,
        platform=own_platform(),
        cuda=one.cuda,
        index=one.index and without_password(one.index),
        pins=one.pins,
    )


def own_platform() -> str:
    """This system and processor, as named in lock files."""
    return f"{sys.platform} {platform.machine()}"


def _renew(
    there: MadeEnvironment, one: EnvironmentPlan, context: SetupContext
) -> Iterator[InstallProgress | MadeEnvironment]:
    """Installs the running flatout; verifies an environment from another machine."""
    if there.flatout not in (None, flatout_wheel.digest()):
        require_unused(there.name, there.folder)
        yield InstallProgress(name=there.name, text="installing this flatout")
        program = next((each for each in context.programs if each.name == there.installer),
                       context.program)  # fmt: skip
        _install([flatout_wheel.build()], there.python, Path(there.folder), program, is_again=True)
        there = msgspec.structs.replace(there, flatout=flatout_wheel.digest())
        environments.rename_record(there)
    if one.state == "same-packages":
        yield InstallProgress(name=there.name, text=f"training steps on the {one.device.upper()}")
        proof = _prove(one, there.python)
        there = msgspec.structs.replace(
            there, machine=one.machine, variables=one.variables, proof=proof
        )
        environments.rename_record(there)
    yield there


def fetch_only(one: EnvironmentPlan, how: EnvironmentRequest) -> Iterator[InstallProgress | Path]:
    """Downloads what was planned into a folder, from which it can be installed offline.

    Raises:
        UsageError: folder-not-empty.
        RunFailed: the download failed.
    """
    folder = bundles.bundle_folder(how.bundle or "")
    context = read_context(how, read_machine(), may_get_uv=False)
    yield from _fetch(one, one.pins, context)
    bundles.put_wheels(folder, one.name, one.pins)
    yield from _with_uv(folder, one, context)
    bundles.finish(folder, lock_text(lock_of(one)))
    yield folder


def _with_uv(
    folder: Path, one: EnvironmentPlan, context: SetupContext
) -> Iterator[InstallProgress]:
    """Adds uv's own wheel: a machine without a network may not have uv."""
    deciding = Deciding(
        lines=(uv.requirement(),), python_version=pythons.own_version(),
        python=sys.executable, indexes=context.indexes, is_whole=True, folder=Path(),
    )  # fmt: skip
    try:
        (pin,) = wheel_store.measured(decide_on_wheels(context, deciding, [])[1], context.opener)
        yield from _fetch(one, [pin], context)
    except FlatoutError as error:
        text = f"the bundle has no uv ({error.problem}): installing from it needs pip"
        yield InstallProgress(name=one.name, text=text, is_over=True)
        return
    tools = uv.bundled_folder(folder)
    wheel_store.forget(tools)
    wheel_store.link_into([pin], tools / pin.sha256)
