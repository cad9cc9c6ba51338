"""An environment once more: from its lock, or from a bundle, a folder with lock and wheels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from flatout.environments.build_places import BuildPlaces
from flatout.environments.decide import decide_on_wheels, no_python
from flatout.environments.existing import as_it_is
from flatout.environments.ground import Ground, machine_text, read_ground, read_machine
from flatout.environments.make import own_platform
from flatout.environments.places import place_of, require_room
from flatout.errors import RunFailed, UsageError
from flatout.nouns.environment_request import EnvironmentRequest
from flatout.nouns.made_environment import EnvironmentWish, Pin, Progress
from flatout.nouns.prepared_environment import Prepared, ready
from flatout.nouns.units import counted_text
from flatout.setup.lock_file import Lock, parse_lock
from flatout.system import (
    made_environments,
    micromamba,
    pythons,
    texts,
    uv_program,
    wheel_store,
)  # fmt: skip
from flatout.system.installers import Deciding


def prepare_from_lock(how: EnvironmentRequest, *, is_dry: bool) -> Iterator[Progress | Prepared]:
    """The same packages as those of the lock, byte for byte.

    Raises:
        UsageError: not-a-lock, lock-for-another-system, environment-differs,
            python-version-not-found.
        RunFailed: lock-differs, wheels-not-here, index-not-reachable.
    """
    path = Path(how.lock or "").expanduser().absolute()
    bundle = path if path.is_dir() else None
    file = path / made_environments.LOCK_FILE if bundle else path
    lock, text = _read_lock(file)
    wish = EnvironmentWish(
        framework=lock.framework,
        python=lock.python,
        is_cpu=lock.cuda == "cpu",
        files_sha256=hashlib.sha256(text.encode()).hexdigest(),
        installer=how.manager,
    )
    place = place_of(how, lock.framework)
    name, folder, there = place.name, place.folder, place.there
    machine = read_machine()
    if there is not None:
        found = as_it_is(there, wish, machine, folder)
        # Another machine, or another flatout, has the packages of the lock too: it is proved again.
        again = msgspec.structs.replace(
            ready(there), state="same-packages", machine=machine_text(machine)
        )
        yield found or again
        return
    yield Progress(name=name, text="looking for the wheels of the lock")
    _take_uv(bundle if not is_dry else None)
    ground = read_ground(how, machine, may_get_uv=not (is_dry or how.is_offline))
    python = pythons.find_python(lock.python)
    if python is None and ground.program.name == "pip" and not place.is_bundle:
        raise no_python(lock.python, "pip cannot get one")
    pins = _located(lock, bundle, how, ground)
    missing = [pin for pin in pins if not wheel_store.is_here(pin)]
    version = next((pin.version for pin in pins if pin.name in _PROJECTS[lock.framework]), "")
    prepared = Prepared(
        name=name,
        folder=str(folder),
        wish=wish,
        state="bundle" if place.is_bundle else "new",
        version=version,
        cuda=lock.cuda,
        index=lock.index,
        python=python,
        python_version=lock.python,
        installer=ground.program.name,
        pins=tuple(pins),
        missing_bytes=sum(pin.size_bytes or 0 for pin in missing),
        total_bytes=sum(pin.size_bytes or 0 for pin in pins),
        free_bytes=made_environments.free_bytes(folder),
        why=(f"as {file} says",),
        machine=machine_text(machine),
        tool=micromamba.step(ground.micromamba) if ground.micromamba else None,
    )
    require_room(prepared, machine)
    yield prepared


def _read_lock(file: Path) -> tuple[Lock, str]:
    """A lock for this system, and its text."""
    text = b"".join(texts.pieces_of(file)).decode(errors="replace") if file.is_file() else ""
    lock = parse_lock(text, str(file) if file.is_file() else f"{file} (no such file)")
    if lock.platform != own_platform():
        raise UsageError(
            "lock-for-another-system",
            f"{file} is for {lock.platform}, this is {own_platform()}.",
            because="wheels are made for one system and one processor",
            fix=f"make it anew: flatout setup {lock.framework}",
        )
    return lock, text


# Distributions that hold a framework.
_PROJECTS = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "paddle": ("paddlepaddle", "paddlepaddle-gpu"),
    "jax": ("jax",),
}


def _take_uv(bundle: Path | None) -> None:
    """Takes uv out of a bundle where there is none."""
    if bundle is not None and uv_program.find_uv() is None:
        uv_program.unpack_bundled(bundle)


def _located(
    lock: Lock, bundle: Path | None, how: EnvironmentRequest, ground: Ground
) -> Sequence[Pin]:
    """The lock's wheels, each with a place to get it from: here, in the bundle, or an index."""
    here = {pin.sha256: found for pin in lock.pins if (found := _local(pin, bundle))}
    if len(here) < len(lock.pins):
        lacking = [f"{pin.name} {pin.version}" for pin in lock.pins if pin.sha256 not in here]
        if how.is_offline:
            raise RunFailed(
                "wheels-not-here",
                f"{counted_text(len(lacking), 'wheel')} of the lock not downloaded, and "
                f"--offline was given.",
                because=", ".join(lacking[:5]),
                fix="leave --offline out, or name a bundle: --from DIR",
            )
        for pin in _from_index(lock, ground):
            here.setdefault(pin.sha256, pin)
    wrong = [pin for pin in lock.pins if pin.sha256 not in here]
    if wrong:
        raise RunFailed(
            "lock-differs",
            f"the index has {wrong[0].name} {wrong[0].version} with another hash than the lock.",
            because="it is another file than the one that was locked",
            fix="ask whoever keeps the index; or make the environment anew, without --from",
        )
    return [here[pin.sha256] for pin in lock.pins]


def _local(pin: Pin, bundle: Path | None) -> Pin | None:
    path = wheel_store.find_local(pin, bundle / "wheels" if bundle else None)
    if path is None:
        return None
    return msgspec.structs.replace(pin, url=path.as_uri(), size_bytes=path.stat().st_size)


def _from_index(lock: Lock, ground: Ground) -> Sequence[Pin]:
    places = BuildPlaces(ground, is_offline=False)
    deciding = Deciding(
        lines=tuple(f"{pin.name}=={pin.version}" for pin in lock.pins),
        python_version=lock.python,
        python=pythons.find_python(lock.python),
        indexes=ground.indexes,
        index=places.mirrored(lock.index) if lock.index else None,
        is_nightly=True,
        is_whole=True,
        folder=Path(),
    )
    _, pins = decide_on_wheels(ground, deciding, [])
    return pins
