"""Makes what was prepared, proves it by training steps, and only then gives it its name."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from flatout.environments.decide import decide_on_wheels
from flatout.environments.existing import require_same
from flatout.environments.ground import Ground, read_ground, read_machine
from flatout.environments.keep import require_unused
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.nouns.environment_request import EnvironmentRequest
from flatout.nouns.made_environment import MadeEnvironment, Pin, Progress, Proof
from flatout.nouns.prepared_environment import Prepared
from flatout.nouns.units import counted_text
from flatout.setup.lock_file import Lock, lock_text, requirement_lines
from flatout.setup.proving import judge, problem
from flatout.system import (
    bundles,
    clock,
    environment_folder,
    made_environments,
    micromamba,
    own_wheel,
    proofs,
    pythons,
    texts,
    uv_program,
    wheel_store,
)
from flatout.system.installers import Deciding, Program, interpreter_in, untrusted
from flatout.system.opener import without_password


def make(
    prepared: Sequence[Prepared], how: EnvironmentRequest
) -> Iterator[Progress | MadeEnvironment]:
    """Tells what is being done, and gives each environment when it is whole.

    What fails is taken away again; what was there before it stays. A process that is killed leaves
    a half-made folder, which the next one removes.

    Raises:
        UsageError: setup-in-progress, environment-in-use, environment-differs, folder-not-empty,
            python-version-not-found.
        RunFailed: what stands in the way.
    """
    if made_environments.is_busy():
        yield Progress(name="", text="waiting for what another flatout has started")
    with made_environments.locked() as lock:
        made_environments.sweep()
        ground = read_ground(how, read_machine(), may_get_uv=not how.is_offline, held=(lock,))
        for one in prepared:
            # What was shown and asked about may have been made, changed or removed meanwhile.
            there = made_environments.read_environment(one.name)
            if there is None and one.environment is not None:
                there = made_environments.find_environment(one.name)  # It says that it is gone.
            if there is None or one.state in ("other-machine", "other-packages"):
                yield from _make(one, there, ground, is_offline=how.is_offline)
            elif there == one.environment and one.state in ("flatout", "same-packages"):
                yield from _renew(there, one, ground)
            else:
                require_same(there, one.wish, Path(one.folder))
                yield there


def prove(made: MadeEnvironment) -> Proof:
    """Training steps in an environment, once more.

    Raises:
        RunFailed: training-step-failed, wrong-result.
    """
    device: Literal["cpu", "gpu"] = "cpu" if made.cuda == "cpu" else "gpu"
    told = proofs.train_steps(made.python, made.wish.framework, problem(device), made.variables)
    return judge(told, device, clock.now_text())


def _make(
    one: Prepared, there: MadeEnvironment | None, ground: Ground, *, is_offline: bool
) -> Iterator[Progress | MadeEnvironment]:
    folder = Path(one.folder)
    program = _program(one, ground)
    if there is not None:
        require_same(there, one.wish, folder)
    require_unused(one.name, one.folder)
    # First what may fail without anything being touched.
    pins = (*one.pins, *((own_wheel.build(),) if one.wish.framework == "torch" else ()))
    yield from _fetch_micromamba(one, ground)
    yield from _fetch(one, pins, ground)
    require_unused(one.name, one.folder)
    made_environments.begin(one.name, folder)
    try:
        yield Progress(name=one.name, text="making the environment")
        python = _empty_environment(one, program, is_offline=is_offline)
        yield Progress(name=one.name, text=f"Python {one.python_version}", is_over=True)
        yield Progress(name=one.name, text=f"installing {counted_text(len(pins), 'package')}")
        _install(pins, python, folder, program)
        yield Progress(name=one.name, text=counted_text(len(pins), "package"), is_over=True)
        yield Progress(name=one.name, text=f"training steps on the {one.device.upper()}")
        made = _record(one, python, _prove(one, python))
        made_environments.finish(made, lock_text(lock_of(one)))
    # Ctrl-C and a program that goes away too: a process that can still clean up does.
    except BaseException:
        environment_folder.put_back(folder)
        raise
    yield made


def _program(one: Prepared, ground: Ground) -> Program:
    return next((each for each in ground.programs if each.name == one.installer), ground.program)


def _empty_environment(one: Prepared, program: Program, *, is_offline: bool) -> str:
    folder = Path(one.folder)
    wanted = one.python if one.python and program.name != "conda" else one.python_version
    try:
        program.make(folder, wanted, is_offline=is_offline)
    except FlatoutError as error:
        if one.python is None and error.rule != "disk-full":
            raise UsageError(
                "python-version-not-found",
                f"there is no Python {one.python_version} here, and {program.name} cannot get one.",
                because=error.because,
                fix="install it, or choose another --python; a mirror: --mirror python=URL",
            ) from error
        raise
    return str(interpreter_in(folder, one.installer))


def _fetch(one: Prepared, pins: Sequence[Pin], ground: Ground) -> Iterator[Progress]:
    began_s = clock.elapsed_s()
    done = 0
    for done, total in wheel_store.fetch(pins, ground.opener):
        rate = done / max(clock.elapsed_s() - began_s, 0.1)
        yield Progress(
            name=one.name, text="downloading", done_bytes=done, total_bytes=total, bytes_per_s=rate
        )
    if done:
        text = f"downloaded in {clock.elapsed_s() - began_s:.0f} s"
        yield Progress(name=one.name, text=text, done_bytes=done, is_over=True)


def _fetch_micromamba(one: Prepared, ground: Ground) -> Iterator[Progress]:
    # Of several environments the first has brought it.
    if ground.micromamba is None or micromamba.find_own() is not None:
        return
    done = 0
    try:
        for done, total in micromamba.fetch(ground.micromamba, ground.opener):
            text = "downloading micromamba"
            yield Progress(name=one.name, text=text, done_bytes=done, total_bytes=total)
    except RunFailed as error:
        if "CERTIFICATE_VERIFY_FAILED" in (error.because or ""):
            raise untrusted(error.because or "") from error
        raise
    yield Progress(name=one.name, text="downloaded micromamba", done_bytes=done, is_over=True)


def _install(
    pins: Sequence[Pin], python: str, folder: Path, program: Program, *, is_again: bool = False
) -> None:
    links = folder / ".wheels"
    lines = folder / ".wheels.txt"
    wheel_store.link_into(pins, links)
    texts.write(lines, "\n".join(requirement_lines(pins)) + "\n")
    program.install(python, lines, links, is_again=is_again)
    wheel_store.forget(links)
    lines.unlink()


def _prove(one: Prepared, python: str) -> Proof:
    told = proofs.train_steps(python, one.wish.framework, problem(one.device), one.variables)
    return judge(told, one.device, clock.now_text())


def _record(one: Prepared, python: str, proof: Proof) -> MadeEnvironment:
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
        flatout=own_wheel.digest() if one.wish.framework == "torch" else None,
        variables=one.variables,
        size_bytes=made_environments.size_bytes(Path(one.folder)),
        made_at=clock.now_text(),
        proof=proof,
    )


def lock_of(one: Prepared) -> Lock:
    """The lock of what was prepared."""
    return Lock(
        framework=one.wish.framework,
        python=one.python_version,
        platform=own_platform(),
        cuda=one.cuda,
        index=one.index and without_password(one.index),
        pins=one.pins,
    )


def own_platform() -> str:
    """This system and processor, as a lock names them."""
    return f"{sys.platform} {platform.machine()}"


def _renew(
    there: MadeEnvironment, one: Prepared, ground: Ground
) -> Iterator[Progress | MadeEnvironment]:
    """Puts the flatout that is running in the place of another; proves it for another machine."""
    if there.flatout not in (None, own_wheel.digest()):
        require_unused(there.name, there.folder)
        yield Progress(name=there.name, text="putting this flatout into it")
        program = next((each for each in ground.programs if each.name == there.installer),
                       ground.program)  # fmt: skip
        _install([own_wheel.build()], there.python, Path(there.folder), program, is_again=True)
        there = msgspec.structs.replace(there, flatout=own_wheel.digest())
        made_environments.rename_record(there)
    if one.state == "same-packages":
        yield Progress(name=there.name, text=f"training steps on the {one.device.upper()}")
        proof = _prove(one, there.python)
        there = msgspec.structs.replace(
            there, machine=one.machine, variables=one.variables, proof=proof
        )
        made_environments.rename_record(there)
    yield there


def fetch_only(one: Prepared, how: EnvironmentRequest) -> Iterator[Progress | Path]:
    """Downloads what was prepared into a folder, from which an environment can be made offline.

    Raises:
        UsageError: folder-not-empty.
        RunFailed: what a download may say.
    """
    folder = bundles.bundle_folder(how.bundle or "")
    ground = read_ground(how, read_machine(), may_get_uv=False)
    yield from _fetch(one, one.pins, ground)
    bundles.put_wheels(folder, one.name, one.pins)
    yield from _with_uv(folder, one, ground)
    bundles.finish(folder, lock_text(lock_of(one)))
    yield folder


def _with_uv(folder: Path, one: Prepared, ground: Ground) -> Iterator[Progress]:
    """Puts uv's own wheel beside the others: a machine without a network may have none."""
    deciding = Deciding(
        lines=(uv_program.requirement(),), python_version=pythons.own_version(),
        python=sys.executable, indexes=ground.indexes, is_whole=True, folder=Path(),
    )  # fmt: skip
    try:
        (pin,) = wheel_store.measured(decide_on_wheels(ground, deciding, [])[1], ground.opener)
        yield from _fetch(one, [pin], ground)
    except FlatoutError as error:
        text = f"without uv, which is not available ({error.problem}): pip must be there"
        yield Progress(name=one.name, text=text, is_over=True)
        return
    tools = uv_program.bundled_folder(folder)
    wheel_store.forget(tools)
    wheel_store.link_into([pin], tools / pin.sha256)
