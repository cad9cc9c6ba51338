"""`flatout setup --repair`: an environment that is there, read, mended, proved.

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

from flatout import consult
from flatout.apply import applying
from flatout.environments.build_places import BuildPlaces
from flatout.environments.decide import not_here
from flatout.environments.difference import Difference, decide_difference, pinned_difference
from flatout.environments.ground import Ground, machine_text, read_ground, read_machine
from flatout.environments.keep import unused
from flatout.environments.troubles import Wrong, asked_by, find_wrong
from flatout.errors import RunFailed, UsageError
from flatout.nouns.environment_repair import Change, EnvironmentRepair, Trouble
from flatout.nouns.environment_request import EnvironmentRequest
from flatout.nouns.finding import Finding
from flatout.nouns.framework import Framework
from flatout.nouns.installed import Inside
from flatout.nouns.journal import StepOutcome
from flatout.nouns.machine import Machine
from flatout.nouns.made_environment import FrameworkName, MadeEnvironment, Pin, Progress, Proof
from flatout.nouns.plan import Packages, Plan, Step
from flatout.nouns.setup_request import SetupRequest
from flatout.nouns.units import counted_text
from flatout.probes.environments import read_environment
from flatout.setup.conflicts import closure, plain_name
from flatout.setup.fit import Target, Wish
from flatout.setup.installed_fit import FRAMEWORKS
from flatout.setup.lock_file import requirement_lines
from flatout.setup.proving import judge, problem
from flatout.setup.target import target_from
from flatout.setup.wishes import wishes_from
from flatout.system import clock, folders, made_environments, proofs, texts, wheel_store
from flatout.system.installed_packages import Isolated, find_inside, read_inside
from flatout.system.site_file import read_site

Device = Literal["cpu", "gpu"]

_LINES = "requirements.txt"
# Rules about what an environment holds.
_FAMILIES = ("framework", "install", "python")
_TABLE_NAMES: dict[str, FrameworkName] = {
    "torch": "torch", "tensorflow": "tensorflow", "paddlepaddle": "paddle", "jax": "jax",
}  # fmt: skip


def prepare_repair(
    name: str, request: SetupRequest, how: EnvironmentRequest, *, is_dry: bool = False
) -> Iterator[Progress | EnvironmentRepair]:
    """Tells what is being looked at, then what is wrong in an environment and what mends it.

    Args:
        name: a folder, or a name of `flatout envs` or of conda.
        request: what a person has settled of the builds.
        how: mirrors, the program that decides, and whether there is a network.
        is_dry: nothing at all is to change, not even in flatout's own folders.

    Raises:
        UsageError: no-such-environment, environment-not-repaired, environment-of-conda.
        RunFailed: not-mendable, nothing-fits, environment-not-readable, index-not-reachable.
    """
    how.check(0)
    yield Progress(name="", text="reading the environment")
    machine = read_machine()
    scene = _read(
        find_inside(name), machine, request, how, may_get_uv=not (is_dry or how.is_offline)
    )
    yield Progress(name=name, text="deciding which packages")
    made = _made_in(scene.inside.folder)
    found = _as_locked(scene, made, machine) if made else _as_solved(scene)
    tried: tuple[Proof, ...] = ()
    if not found.troubles:
        yield Progress(name=name, text="training steps")
        tried, damaged = _tried(scene)
        if damaged:
            found = _as_damaged(scene, damaged, made)
    yield _repair(scene, found, tried)


def carry_out(
    repair: EnvironmentRepair, how: EnvironmentRequest
) -> Iterator[Progress | StepOutcome | Proof]:
    """Downloads, changes the packages, and proves what is there then by training steps.

    Raises:
        UsageError: environment-changed, environment-in-use, setup-in-progress, changes-under-way.
        RunFailed: what a download may say; training-step-failed, wrong-result.
    """
    with unused(repair.inside.name, repair.inside.folder):
        yield from _carried_out(repair, how)


def _carried_out(
    repair: EnvironmentRepair, how: EnvironmentRequest
) -> Iterator[Progress | StepOutcome | Proof]:
    inside, plan = repair.inside, repair.plan
    assert plan is not None
    now = read_inside(inside.name, Path(inside.folder), inside.kind, inside.python)
    if now.versions != inside.versions:
        raise UsageError(
            "environment-changed",
            f"{inside.folder} is not what it was when the change was shown.",
            because="somebody has installed or removed packages since",
            fix="run this again: it is read anew",
        )
    ground = read_ground(how, read_machine(), may_get_uv=False)
    began_s = clock.elapsed_s()
    for done, total in wheel_store.fetch(repair.pins, ground.opener):
        yield Progress(name=inside.name, text="downloading", done_bytes=done, total_bytes=total,
                       bytes_per_s=done / max(clock.elapsed_s() - began_s, 0.1))  # fmt: skip
    folder = _wheels_folder(repair.pins)
    try:
        wheel_store.link_into(repair.pins, folder / "wheels")
        texts.write(folder / _LINES, "\n".join(requirement_lines(repair.pins)) + "\n")
        outcomes = []
        for outcome in applying.apply(plan):
            outcomes.append(outcome)
            yield outcome
    finally:
        wheel_store.forget(folder)
    if any(one.how == "failed" for one in outcomes):
        return
    for framework, device in repair.devices.items():
        yield Progress(name=inside.name, text=f"training steps on the {device.upper()}")
        try:
            yield _proof(inside.python, framework, device)
        except RunFailed as error:
            undo = f"flatout undo {outcomes[-1].id or ''}".strip()
            raise RunFailed(
                error.rule, error.problem, because=error.because, printed=error.printed,
                fix=f"{undo} puts back what was there; {error.fix}",
            ) from error  # fmt: skip


def _made_in(folder: str) -> MadeEnvironment | None:
    """The environment of flatout's that lies in a folder, however a person has named that."""
    real = Path(folder).resolve()
    made = made_environments.list_environments()
    return next((one for one in made if Path(one.folder).resolve() == real), None)


class _Scene(msgspec.Struct, frozen=True):
    """All that was read before anything is decided. findings: of the doctor, of packages."""

    inside: Inside
    target: Target
    wish: Wish
    ground: Ground
    how: EnvironmentRequest
    findings: tuple[Finding, ...]


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, and what mends it. wrong: in an environment that no lock describes."""

    troubles: tuple[Trouble, ...] = ()
    difference: Difference = Difference()
    wrong: Wrong = Wrong()


def _read(
    inside: Inside, machine: Machine, request: SetupRequest, how: EnvironmentRequest, *,
    may_get_uv: bool,
) -> _Scene:  # fmt: skip
    environment = read_environment(Isolated(), inside.python).environment
    inside = msgspec.structs.replace(inside, frameworks=environment.frameworks)
    there = msgspec.structs.replace(
        machine, python=inside.python, frameworks=environment.frameworks,
        environments=(environment,),
    )  # fmt: skip
    judged = consult.judge(there)
    findings = tuple(
        one for one in judged.diagnosis.findings
        if one.severity != "note" and judged.families.get(one.rule) in _FAMILIES
    )  # fmt: skip
    ground = read_ground(how, machine, may_get_uv=may_get_uv)
    (wish,) = wishes_from(request)
    target = target_from(machine, ground.tables, platform.machine())
    return _Scene(inside, target, wish, ground, how, findings)


def _as_solved(scene: _Scene) -> _Found:
    """What the metadata of an environment tell."""
    inside = scene.inside
    places = BuildPlaces(scene.ground, is_offline=scene.how.is_offline)
    wrong = find_wrong(inside, scene.target, scene.wish, scene.ground.tables, places)
    asked = asked_by(scene.findings, inside)
    if asked:
        told = [Trouble(problem=one.problem, packages=tuple(asked))
                for one in scene.findings if asked_by([one], inside)]  # fmt: skip
        wrong = msgspec.structs.replace(
            wrong, wanted={**asked, **wrong.wanted}, troubles=(*wrong.troubles, *told)
        )
    return _decided(scene, wrong, frozenset()) if wrong.troubles else _Found(wrong=wrong)


def _decided(scene: _Scene, wrong: Wrong, again: frozenset[str]) -> _Found:
    difference = decide_difference(
        scene.inside, wrong, again, scene.ground, is_offline=scene.how.is_offline
    )
    return _Found(troubles=wrong.troubles, difference=difference, wrong=wrong)


def _as_locked(scene: _Scene, made: MadeEnvironment, machine: Machine) -> _Found:
    """Of an environment that flatout has made its record says what is right.

    Raises:
        UsageError: environment-for-other-machine.
    """
    if made.machine != machine_text(machine):
        raise UsageError(
            "environment-for-other-machine",
            f"`{made.name}` was made for another driver or GPU.",
            because=f"it was made for {made.machine}, and this is {machine_text(machine)}",
            fix=f"flatout setup {made.wish.framework}, which makes it again",
        )
    difference = pinned_difference(scene.inside, made.pins)
    troubles = tuple(
        Trouble(problem=_differs(one, made.name), packages=(one.name,))
        for one in difference.changes
    )
    return _Found(troubles=troubles, difference=difference)


def _differs(change: Change, name: str) -> str:
    there = f"{change.name} {change.before} is there" if change.before else "that is not there"
    return f"`{name}` was made with {change.name} {change.after}, and {there}"


def _tried(scene: _Scene) -> tuple[tuple[Proof, ...], Framework | None]:
    """Training steps where the metadata are in order; the framework whose files are damaged.

    Raises:
        RunFailed: training-step-failed, wrong-result: on a GPU, although the CPU computes.
    """
    proved: list[Proof] = []
    for held in _frameworks(scene.inside):
        framework = _TABLE_NAMES[held.name]
        device = _device(held.build, scene.target)
        try:
            proved.append(_proof(scene.inside.python, framework, device))
        except RunFailed:
            if device == "cpu" or not _computes(scene.inside.python, framework):
                return (), held
            # The files are whole: driver or card are what a reinstallation would not mend.
            raise
    return tuple(proved), None


def _computes(python: str, framework: FrameworkName) -> bool:
    try:
        _proof(python, framework, "cpu")
    except RunFailed:
        return False
    return True


def _as_damaged(scene: _Scene, held: Framework, made: MadeEnvironment | None) -> _Found:
    """The framework once more, and what it stands on: libraries lie in packages of their own."""
    names = _standing_on(held, scene.inside)
    text = f"a training step with {held.name} {held.version} does not run, on the CPU either"
    trouble = Trouble(problem=text, packages=tuple(names))
    if made is not None:
        pins = tuple(pin for pin in made.pins if plain_name(pin.name) in names)
        again = tuple(Change(name=pin.name, before=pin.version, after=pin.version,
                             size_bytes=pin.size_bytes) for pin in pins)  # fmt: skip
        return _Found(troubles=(trouble,), difference=Difference(changes=again, pins=pins))
    places = BuildPlaces(scene.ground, is_offline=scene.how.is_offline)
    wrong = find_wrong(scene.inside, scene.target, scene.wish, scene.ground.tables, places)
    wanted = {name: f"{name}=={scene.inside.packages[name].version}" for name in names}
    wrong = msgspec.structs.replace(wrong, troubles=(trouble,), wanted=wanted)
    return _decided(scene, wrong, frozenset(names))


def _standing_on(held: Framework, inside: Inside) -> list[str]:
    """The packages of a framework, and all that they need; not what is another's to install."""
    own = {f"{held.name}{ending}" for ending in ("", "-gpu", "-cpu")}
    # JAX and Paddle name these in extras, and metadata do not tell which extras were asked for.
    more = (f"{held.name}-cuda", "nvidia-")
    roots = [name for name in inside.packages if name in own or name.startswith(more)]
    needed = closure(roots, inside.packages, inside.markers)
    others = {
        name
        for name in needed - own
        if inside.packages[name].installer == "conda" or inside.packages[name].is_local
    }
    return sorted(needed - others)


def _repair(scene: _Scene, found: _Found, tried: tuple[Proof, ...]) -> EnvironmentRepair:
    """All of it, with its plan.

    Raises:
        UsageError: environment-of-conda.
        RunFailed: wheels-not-here, disk-full.
    """
    inside, difference = scene.inside, found.difference
    _leave_to_conda(inside, difference.changes)
    missing = [pin for pin in difference.pins if not wheel_store.is_here(pin)]
    if missing and scene.how.is_offline:
        raise not_here(
            counted_text(len(missing), "wheel"), ", ".join(pin.file for pin in missing[:5])
        )
    devices = {
        _TABLE_NAMES[one.name]: _device(one.build, scene.target) for one in _frameworks(inside)
    }
    for answer in found.wrong.answers:
        if answer.build is not None:
            name: FrameworkName = answer.build.framework  # type: ignore[assignment]
            devices[name] = "cpu" if answer.build.cuda == "cpu" else "gpu"
    repair = EnvironmentRepair(
        inside=inside,
        troubles=found.troubles,
        changes=difference.changes,
        pins=difference.pins,
        missing_bytes=sum(pin.size_bytes or 0 for pin in missing),
        findings=scene.findings if not found.troubles else (),
        notes=(*scene.ground.notes, *difference.notes),
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
    gone = tuple(one.name for one in repair.changes if one.how == "removed")
    steps = []
    if gone:
        steps.append(
            Step(
                text=f"remove {', '.join(gone)}",
                action=Packages(python=inside.python, words=("uninstall", *gone)),
                changes=f"packages of {inside.folder}",
                removes_packages=True,
            )
        )
    if pins:
        folder = _wheels_folder(pins)
        words = ("install", "--no-deps", "--no-index", "--force-reinstall", "--require-hashes",
                 "--find-links", str(folder / "wheels"), "-r", str(folder / _LINES))  # fmt: skip
        steps.append(
            Step(
                text=f"install {', '.join(f'{pin.name} {pin.version}' for pin in pins)}",
                action=Packages(python=inside.python, words=words),
                changes=f"packages of {inside.folder}",
                size_bytes=repair.missing_bytes or None,
            )
        )
    return Plan(goal=f"repair {inside.folder}", steps=tuple(steps))


def _leave_to_conda(inside: Inside, changes: Sequence[Change]) -> None:
    """Refuses what pip would have to take out of conda's hands: conda would not know of it."""
    names = [one.name for one in changes if one.before is not None
             and inside.packages[one.name].installer == "conda"]  # fmt: skip
    if names:
        raise UsageError(
            "environment-of-conda",
            f"{', '.join(names)} came from conda, and pip must not change that.",
            because="conda would still take them for what it has installed",
            fix=f"conda remove --prefix {inside.folder} --force {' '.join(names)}, then run this "
            "again; or a new environment: flatout setup",
        )


def _wheels_folder(pins: Sequence[Pin]) -> Path:
    told = "\n".join(sorted(f"{pin.name} {pin.sha256}" for pin in pins))
    return folders.cache_folder() / "repairs" / hashlib.sha256(told.encode()).hexdigest()[:16]


def _proof(python: str, framework: FrameworkName, device: Device) -> Proof:
    # A look must leave nothing behind, compiled Python neither.
    told = proofs.train_steps(python, framework, problem(device), {"PYTHONDONTWRITEBYTECODE": "1"})
    return judge(told, device, clock.now_text())


def _device(build: str | None, target: Target) -> Device:
    return "gpu" if target.gpus and (build or "").startswith("cu") else "cpu"


def _frameworks(inside: Inside) -> list[Framework]:
    return [one for one in inside.frameworks if one.name in FRAMEWORKS]
