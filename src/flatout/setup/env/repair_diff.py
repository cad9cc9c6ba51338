"""The package changes that repair an environment: as few as possible, with exact wheels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from flatout.compat.conflicts import (
    closure,
    constraint_lines,
    is_same_version,
    plain_name,
    requirements,
)
from flatout.errors import FlatoutError, RunFailed
from flatout.schema.environment import Pin
from flatout.schema.installed_packages import InspectedEnvironment, Installed
from flatout.setup.env.context import SetupContext
from flatout.setup.env.repair_problems import COMPANIONS, RepairProblem, unmet
from flatout.setup.env.resolve import resolve_wheels
from flatout.setup.model.environment_repair import PackageChange
from flatout.setup.packages import wheel_store
from flatout.setup.packages.installers import ResolveRequest

# A change may require others to change, and so on.
_ROUNDS = 4


class RepairDiff(msgspec.Struct, frozen=True, kw_only=True):
    """changes: every changed package. pins: the wheels for them. notes: for the user."""

    changes: tuple[PackageChange, ...] = ()
    pins: tuple[Pin, ...] = ()
    notes: tuple[str, ...] = ()


def resolve_difference(
    inside: InspectedEnvironment,
    wrong: RepairProblem,
    again: frozenset[str],
    context: SetupContext,
    *,
    is_offline: bool,
) -> RepairDiff:
    """The changes after which nothing is wrong any more.

    Everything else keeps its version, as long as there is a solution with it.

    Args:
        inside: the environment.
        wrong: what is wrong in it.
        again: packages whose files are damaged.
        context: where packages come from.
        is_offline: no network is used.

    Raises:
        RunFailed: not-mendable, index-not-reachable, certificate-not-trusted.
    """
    free = set(wrong.free)
    notes: list[str] = []
    for _ in range(_ROUNDS):
        named = msgspec.structs.replace(wrong, free=frozenset(free))
        pins = _resolved(inside, named, context, notes, is_offline=is_offline)
        _require_label(inside, pins, wrong)
        after = _after(inside, pins, wrong.removed, free | set(wrong.required))
        settled = set(wrong.intact) | set(wrong.required)
        rest = list(unmet(msgspec.structs.replace(inside, packages=after), settled))
        more = {name for _, names in rest for name in names} - free
        if not rest:
            return _difference(inside, pins, named, again, context, notes)
        if not more:
            raise _not_mendable("; ".join(trouble.problem for trouble, _ in rest[:3]))
        free |= more
    raise _not_mendable("each change requires another one")


def pinned_difference(inside: InspectedEnvironment, pins: tuple[Pin, ...]) -> RepairDiff:
    """The difference from the wheels that an environment was created from."""
    changed = tuple(pin for pin in pins if not _is_there(pin, inside))
    return RepairDiff(changes=_changes(inside, changed, frozenset()), pins=changed)


def _resolved(
    inside: InspectedEnvironment,
    wrong: RepairProblem,
    context: SetupContext,
    notes: list[str],
    *,
    is_offline: bool,
) -> tuple[Pin, ...]:
    """A solution that changes as little as it can: first nothing else, then what must."""
    lines = [*wrong.required.values(), *sorted(wrong.free - set(wrong.required))]
    if not lines:
        return ()
    changing = {*wrong.required, *wrong.free, *wrong.removed}
    others = [package for name, package in inside.packages.items() if name not in changing]
    kept_lines = [f"{name}=={inside.packages[name].version}" for name in sorted(wrong.intact)]
    tiers = [
        constraint_lines(others, inside.markers, is_pinned=True),
        [*kept_lines, *constraint_lines(others, inside.markers, is_pinned=False)],
        kept_lines,
    ]
    failure: FlatoutError | None = None
    for constraints in tiers:
        request = ResolveRequest(
            lines=tuple(lines), python_version=inside.python_version, python=inside.python,
            indexes=context.indexes, index=None if wrong.unreached else wrong.index,
            is_offline=is_offline,
            constraints=tuple(constraints), folder=Path(),
        )  # fmt: skip
        try:
            return resolve_wheels(context, request, notes)[1]
        except FlatoutError as error:
            if error.rule not in ("no-such-packages", "no-wheel"):
                raise
            failure = error
    assert failure is not None
    because = failure.because or failure.problem
    if wrong.unreached is not None:
        raise _unreached(wrong.unreached, because) from failure
    raise _not_mendable(because) from failure


def _require_label(
    inside: InspectedEnvironment, pins: tuple[Pin, ...], wrong: RepairProblem
) -> None:
    """Refuses packages that were built for another build of torch than the resulting one."""
    versions = {**inside.versions, **{pin.name: pin.version for pin in pins}}
    label = versions.get("torch", "").partition("+")[2]
    others = [pin for pin in pins
              if pin.name in COMPANIONS and pin.version.partition("+")[2] != label]  # fmt: skip
    if label and others and any(not _is_there(pin, inside) for pin in others):
        named = ", ".join(f"{pin.name} {pin.version}" for pin in others)
        because = f"pip's own indexes have {named}, which is not built for torch with {label}"
        if wrong.unreached is None:
            raise _not_mendable(because)
        raise _unreached(wrong.unreached, because)


def _after(
    inside: InspectedEnvironment, pins: tuple[Pin, ...], removed: frozenset[str], changing: set[str]
) -> dict[str, Installed]:
    """The packages after the change. The solution covers what new packages require."""
    after = {name: package for name, package in inside.packages.items() if name not in removed}
    for pin in pins:
        if pin.name in changing or not _is_there(pin, inside):
            after[plain_name(pin.name)] = Installed(name=pin.name, version=pin.version)
    return after


def _difference(
    inside: InspectedEnvironment, pins: tuple[Pin, ...], wrong: RepairProblem,
    again: frozenset[str], context: SetupContext, notes: list[str],
) -> RepairDiff:  # fmt: skip
    named = {*wrong.required, *wrong.free}
    changed = [
        pin for pin in pins
        if plain_name(pin.name) in again
        or not (_is_there(pin, inside) or _is_kept(pin, inside, named))
    ]  # fmt: skip
    measured = wheel_store.measured(changed, context.opener)
    gone = wrong.removed | _orphans(inside, pins, {pin.name for pin in changed})
    return RepairDiff(
        changes=_changes(inside, measured, gone), pins=tuple(measured), notes=tuple(notes)
    )


def _is_there(pin: Pin, inside: InspectedEnvironment) -> bool:
    there = inside.packages.get(plain_name(pin.name))
    return there is not None and is_same_version(there.version, pin.version)


def _is_kept(pin: Pin, inside: InspectedEnvironment, named: set[str]) -> bool:
    """Whether it has that version, of another build, and no change was requested."""
    there = inside.packages.get(plain_name(pin.name))
    plain = [text.partition("+")[0] for text in (pin.version, there.version if there else "")]
    return plain_name(pin.name) not in named and is_same_version(*plain)


def _orphans(
    inside: InspectedEnvironment, pins: tuple[Pin, ...], changed: set[str]
) -> frozenset[str]:
    """Packages that only a changed package required, and that the user did not request."""
    solved = {plain_name(pin.name) for pin in pins}
    before = closure([name for name in changed if name in inside.packages], inside.packages,
                     inside.markers) - solved  # fmt: skip
    maybe = {name for name in before if not inside.packages[name].is_requested}
    while True:
        needed = _needed(inside.packages, maybe, solved, inside)
        if not maybe & needed:
            return frozenset(maybe)
        maybe -= needed


def _needed(
    packages: Mapping[str, Installed],
    maybe: set[str],
    solved: set[str],
    inside: InspectedEnvironment,
) -> set[str]:
    return {
        plain_name(requirement.name)
        for name, package in packages.items()
        if name not in maybe and name not in solved
        for requirement in requirements(package, inside.markers)
    }


def _changes(
    inside: InspectedEnvironment, pins: tuple[Pin, ...], gone: frozenset[str]
) -> tuple[PackageChange, ...]:
    there = inside.packages
    changes = [
        PackageChange(
            name=pin.name, after=pin.version, size_bytes=pin.size_bytes,
            before=there[pin.name].version if pin.name in there else None,
        )
        for pin in pins
    ]  # fmt: skip
    changes += [
        PackageChange(
            name=name, before=there[name].version, after=None, size_bytes=there[name].size_bytes
        )
        for name in gone
    ]
    return tuple(sorted(changes, key=lambda change: change.name))


def _unreached(reason: str, because: str) -> RunFailed:
    return RunFailed(
        "index-not-reachable",
        "cannot reach the index that this framework came from.",
        because=f"{reason}; {because}",
        fix="check the network (HTTPS_PROXY, if you need one), or name a mirror: "
        "--mirror torch=URL",
    )


def _not_mendable(because: str) -> RunFailed:
    return RunFailed(
        "not-mendable",
        "no change of packages can repair this environment.",
        because=because,
        fix="create a new environment with what you need: flatout setup --with PACKAGES",
    )
