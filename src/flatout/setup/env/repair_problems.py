"""Problems of an environment that a change of packages can fix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from flatout.compat.conflicts import conflicts, requirement_names
from flatout.compat.fit import BuildRequest, Target
from flatout.compat.index_check import checked
from flatout.compat.installed_fit import FRAMEWORKS, why_wrong
from flatout.compat.rows import Tables
from flatout.compat.solve import CompatAnswer
from flatout.schema.finding import Finding
from flatout.schema.framework import Framework
from flatout.schema.installed_packages import Inside
from flatout.schema.versions import pair
from flatout.setup.env.index_choice import TORCH_INDEX, IndexChoices
from flatout.setup.env.resolve import nothing_fits
from flatout.setup.model.environment_repair import EnvironmentProblem

# Compiled against one build of torch each, and published in the same index.
COMPANIONS = ("torchvision", "torchaudio")
# Distributions that contain a framework; exactly one of them should be installed.
_HOLDERS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel"),
    "paddlepaddle": ("paddlepaddle", "paddlepaddle-gpu"),
}


class RepairProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A necessary change of a package, and the reason.

    wanted: requirements, by the package's name. free: packages whose version is open.
    removed: packages that others replace. kept: frameworks that are right.
    index: of the framework's build; None for pip's own. unreached: why that index cannot be
    reached.
    """

    problems: tuple[EnvironmentProblem, ...] = ()
    wanted: dict[str, str] = {}
    free: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    index: str | None = None
    unreached: str | None = None
    answers: tuple[CompatAnswer, ...] = ()


def find_wrong(
    inside: Inside, target: Target, wish: BuildRequest, tables: Tables, places: IndexChoices
) -> RepairProblem:
    """Builds that do not run here, packages built for another, and requirements that are not met.

    Args:
        inside: the environment.
        target: this machine.
        wish: what the user requires of the builds: the CPU, or a CUDA version.
        tables: what is published.
        places: indexes that may have builds.

    Raises:
        RunFailed: nothing-fits.
    """
    problems: list[EnvironmentProblem] = []
    wanted: dict[str, str] = {}
    removed: set[str] = set()
    kept: set[str] = set()
    index, answers = None, []
    for held in known_frameworks(inside):
        holders = _holders(held, inside)
        own_wish = replace(
            wish, framework=FRAMEWORKS[held.name], python=pair(inside.python_version)
        )
        why = why_wrong(held, target, own_wish, tables)
        if why is None:
            kept |= set(holders)
            index = index or _index_of(held, inside, places)
            continue
        problems.append(EnvironmentProblem(problem=why, packages=holders))
        answer = _other_build(held, target, own_wish, tables, places)
        answers.append(answer)
        if answer.build is not None:
            wanted |= requirement_names([answer.build.requirement])
            removed |= set(holders) - set(wanted)
            index = index or places.own_index(answer.build)
    free = {one for one in COMPANIONS if one in inside.packages and "torch" in wanted}
    for trouble in _mislabelled(inside, wanted):
        problems.append(trouble)
        free |= set(trouble.packages)
    for trouble, packages in unmet(inside, kept | set(wanted)):
        problems.append(trouble)
        free |= packages
    return RepairProblem(
        unreached=places.unreached(index, *wanted, "torch") if index and problems else None,
        problems=tuple(dict.fromkeys(problems)), wanted=wanted, free=frozenset(free - removed),
        removed=frozenset(removed), kept=frozenset(kept), index=index, answers=tuple(answers),
    )  # fmt: skip


def unmet(inside: Inside, settled: set[str]) -> Iterator[tuple[EnvironmentProblem, set[str]]]:
    """Requirements that are not met, each with the packages that may change for it.

    Settled packages, above all frameworks, stay: then the package that requires others is changed.
    """
    for one in conflicts(inside.packages, inside.markers):
        has = f"{one.has} is installed" if one.has else "it is not installed"
        package = inside.packages[one.package]
        text = f"{package.name} {package.version} requires {one.needs}, but {has}"
        changed = one.package if one.wanted in settled else one.wanted
        yield EnvironmentProblem(problem=text, packages=(one.package, one.wanted)), {changed}


def asked_by(findings: Sequence[Finding], inside: Inside) -> dict[str, str]:
    """Packages other than frameworks in the fixes of the doctor's findings, such as `numpy<2`."""
    wanted: dict[str, str] = {}
    for finding in findings:
        words = [command.replace('"', "").replace("'", "").split()
                 for fix in finding.fixes[:1] for command in fix.commands]  # fmt: skip
        for line in words if len(words) == 1 else ():
            is_plain = "install" in line and not any(one.startswith("--") for one in line)
            named = line[line.index("install") + 1 :] if is_plain else []
            wanted |= requirement_names([one for one in named if not one.startswith("-")])
    own = {*FRAMEWORKS, *COMPANIONS, *(one for names in _HOLDERS.values() for one in names)}
    return {name: line for name, line in wanted.items()
            if name in inside.packages and name not in own}  # fmt: skip


def known_frameworks(inside: Inside) -> list[Framework]:
    """The frameworks of an environment that the tables cover."""
    return [one for one in inside.frameworks if one.name in FRAMEWORKS]


def _holders(held: Framework, inside: Inside) -> tuple[str, ...]:
    names = _HOLDERS.get(held.name, (held.name,))
    return tuple(name for name in names if name in inside.packages)


def _other_build(
    held: Framework, target: Target, wish: BuildRequest, tables: Tables, places: IndexChoices
) -> CompatAnswer:
    """The same version where it has a build for this machine, else the nearest."""
    version = held.version.partition("+")[0]
    minor = ".".join(version.split(".")[:2])
    for versions in (f"=={version}", f"=={minor}.*", ""):
        answer = checked(target, replace(wish, versions=versions), tables, places.look)
        if answer.build is not None:
            return answer
    raise nothing_fits(wish.framework, answer)


def _index_of(held: Framework, inside: Inside, places: IndexChoices) -> str | None:
    """The index with the companions of a framework that stays."""
    version = inside.packages["torch"].version if held.name == "torch" else ""
    label = version.partition("+")[2]
    if not label:
        return None
    nightly = "nightly/" if ".dev" in version else ""
    return places.mirrored(f"{TORCH_INDEX}/{nightly}{label}")


def _mislabelled(inside: Inside, wanted: dict[str, str]) -> Iterator[EnvironmentProblem]:
    """Companions of torch that were built for another build of it than the installed one."""
    torch = inside.packages.get("torch")
    if torch is None or "torch" in wanted:
        return
    label = torch.version.partition("+")[2]
    for name in COMPANIONS:
        one = inside.packages.get(name)
        other = one.version.partition("+")[2] if one else ""
        if one and label and other and label != other:
            text = f"{name} {one.version} is built for {other}, but torch is {torch.version}"
            yield EnvironmentProblem(problem=text, packages=(name,))
