"""An environment recreated from its lock file, or from a bundle: a folder with it and wheels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from flatout.errors import RunFailed, UsageError
from flatout.schema.environment import EnvironmentSpec, InstallProgress, Pin
from flatout.schema.units import counted_text
from flatout.setup.env.context import SetupContext, machine_text, read_context, read_machine
from flatout.setup.env.create import own_platform
from flatout.setup.env.existing import as_it_is
from flatout.setup.env.index_choice import IndexChoices
from flatout.setup.env.location import location_for, require_room
from flatout.setup.env.lock_file import LockFile, parse_lock
from flatout.setup.env.resolve import no_python, resolve_wheels
from flatout.setup.model.environment_plan import EnvironmentPlan, ready
from flatout.setup.model.environment_request import EnvironmentRequest
from flatout.setup.packages import micromamba, uv, wheel_store
from flatout.setup.packages.installers import ResolveRequest
from flatout.system import pythons, text_input  # fmt: skip
from flatout.system.store import environments


def prepare_from_lock(
    how: EnvironmentRequest, *, is_dry: bool
) -> Iterator[InstallProgress | EnvironmentPlan]:
    """The same packages as those of the lock, byte for byte.

    Raises:
        UsageError: not-a-lock, lock-for-another-system, environment-differs,
            python-version-not-found.
        RunFailed: lock-differs, wheels-not-here, index-not-reachable.
    """
    path = Path(how.lock or "").expanduser().absolute()
    bundle = path if path.is_dir() else None
    file = path / environments.LOCK_FILE if bundle else path
    lock, text = _read_lock(file)
    spec = EnvironmentSpec(
        framework=lock.framework,
        python=lock.python,
        is_cpu=lock.cuda == "cpu",
        files_sha256=hashlib.sha256(text.encode()).hexdigest(),
        installer=how.manager,
    )
    location = location_for(how, lock.framework)
    name, folder, machine = location.name, location.folder, read_machine()
    if location.there is not None:
        plan = as_it_is(location.there, spec, machine, folder)
        # The packages of the lock file stay right on another machine: only verify them again.
        again = msgspec.structs.replace(
            ready(location.there), state="same-packages", machine=machine_text(machine)
        )
        yield plan or again
        return
    yield InstallProgress(name=name, text="locating the wheels of the lock file")
    _take_uv(bundle if not is_dry else None)
    context = read_context(how, machine, may_get_uv=not (is_dry or how.is_offline))
    python = pythons.find_python(lock.python)
    if python is None and context.program.name == "pip" and not location.is_bundle:
        raise no_python(lock.python, "pip cannot download it")
    pins = _located(lock, bundle, how, context)
    version = next((pin.version for pin in pins if pin.name in _PROJECTS[lock.framework]), "")
    prepared = EnvironmentPlan(
        name=name,
        folder=str(folder),
        spec=spec,
        state="bundle" if location.is_bundle else "new",
        version=version,
        cuda=lock.cuda,
        index=lock.index,
        python=python,
        python_version=lock.python,
        installer=context.program.name,
        pins=tuple(pins),
        missing_bytes=sum(pin.size_bytes or 0 for pin in pins if not wheel_store.is_here(pin)),
        total_bytes=sum(pin.size_bytes or 0 for pin in pins),
        free_bytes=environments.free_bytes(folder),
        why=(f"from {file}",),
        machine=machine_text(machine),
        tool=micromamba.step(context.micromamba) if context.micromamba else None,
    )
    require_room(prepared, machine)
    yield prepared


def _read_lock(file: Path) -> tuple[LockFile, str]:
    """A lock for this system, and its text."""
    text = b"".join(text_input.pieces_of(file)).decode(errors="replace") if file.is_file() else ""
    lock = parse_lock(text, str(file) if file.is_file() else f"{file} (no such file)")
    if lock.platform != own_platform():
        raise UsageError(
            "lock-for-another-system",
            f"{file} is for {lock.platform}, but this machine is {own_platform()}.",
            because="wheels are built for one operating system and one processor",
            fix=f"create a new one: flatout setup {lock.framework}",
        )
    return lock, text


# Distributions that contain a framework.
_PROJECTS = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "paddle": ("paddlepaddle", "paddlepaddle-gpu"),
    "jax": ("jax",),
}


def _take_uv(bundle: Path | None) -> None:
    """Unpacks the bundle's uv where none is installed."""
    if bundle is not None and uv.find_uv() is None:
        uv.unpack_bundled(bundle)


def _located(
    lock: LockFile, bundle: Path | None, how: EnvironmentRequest, context: SetupContext
) -> Sequence[Pin]:
    """The lock's wheels, each with a place to get it from: here, in the bundle, or an index."""
    here = {pin.sha256: path for pin in lock.pins if (path := _local(pin, bundle))}
    if len(here) < len(lock.pins):
        lacking = [f"{pin.name} {pin.version}" for pin in lock.pins if pin.sha256 not in here]
        if how.is_offline:
            raise RunFailed(
                "wheels-not-here",
                f"--offline was given, but {counted_text(len(lacking), 'wheel')} of the lock file "
                "must be downloaded.",
                because=", ".join(lacking[:5]),
                fix="leave --offline out, or use a bundle: --from DIR",
            )
        for pin in _from_index(lock, context):
            here.setdefault(pin.sha256, pin)
    wrong = [pin for pin in lock.pins if pin.sha256 not in here]
    if wrong:
        raise RunFailed(
            "lock-differs",
            f"{wrong[0].name} {wrong[0].version} in the index does not match the lock file's hash.",
            because="it is not the file that was locked",
            fix="ask the maintainer of the index; or create the environment without --from",
        )
    return [here[pin.sha256] for pin in lock.pins]


def _local(pin: Pin, bundle: Path | None) -> Pin | None:
    path = wheel_store.find_local(pin, bundle / "wheels" if bundle else None)
    if path is None:
        return None
    return msgspec.structs.replace(pin, url=path.as_uri(), size_bytes=path.stat().st_size)


def _from_index(lock: LockFile, context: SetupContext) -> Sequence[Pin]:
    indexes = IndexChoices(context, is_offline=False)
    request = ResolveRequest(
        lines=tuple(f"{pin.name}=={pin.version}" for pin in lock.pins),
        python_version=lock.python,
        python=pythons.find_python(lock.python),
        indexes=context.indexes,
        index=indexes.mirrored(lock.index) if lock.index else None,
        is_nightly=True,
        is_whole=True,
        folder=Path(),
    )
    _, pins = resolve_wheels(context, request, [])
    return pins
