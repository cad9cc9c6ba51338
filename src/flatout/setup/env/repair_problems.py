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
from flatout.schema.installed_packages import InspectedEnvironment
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

    required: requirements, by the package's name. free: packages whose version is open.
    removed: packages that others replace. intact: frameworks that are right.
    index: of the framework's build; None for pip's own. unreached: why that index cannot be
    reached.
    """

    problems: tuple[EnvironmentProblem, ...] = ()
    required: dict[str, str] = {}
    free: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    intact: frozenset[str] = frozenset()
    index: str | None = None
    unreached: str | None = None
    answers: tuple[CompatAnswer, ...] = ()


def find_wrong(
    inside: InspectedEnvironment,
    target: Target,
    request: BuildRequest,
    tables: Tables,
    indexes: IndexChoices,
) -> RepairProblem:
    """Builds that do not run here, packages built for another, and requirements that are not met.

    Args:
        inside: the environment.
        target: this machine.
        request: what the user requires of the builds: the CPU, or a CUDA version.
        tables: what is published.
        indexes: indexes that may have builds.

    Raises:
        RunFailed: nothing-fits.
    """
    problems: list[EnvironmentProblem] = []
    required: dict[str, str] = {}
    removed: set[str] = set()
    intact: set[str] = set()
    index, answers = None, []
    for framework in known_frameworks(inside):
        holders = _holders(framework, inside)
        own_request = replace(
            request, framework=FRAMEWORKS[framework.name], python=pair(inside.python_version)
        )
        why = why_wrong(framework, target, own_request, tables)
        if why is None:
            intact |= set(holders)
            index = index or _index_of(framework, inside, indexes)
            continue
        problems.append(EnvironmentProblem(problem=why, packages=holders))
        answer = _other_build(framework, target, own_request, tables, indexes)
        answers.append(answer)
        if answer.build is not None:
            required |= requirement_names([answer.build.requirement])
            removed |= set(holders) - set(required)
            index = index or indexes.own_index(answer.build)
    free = {name for name in COMPANIONS if name in inside.packages and "torch" in required}
    for trouble in _mislabelled(inside, required):
        problems.append(trouble)
        free |= set(trouble.packages)
    for trouble, packages in unmet(inside, intact | set(required)):
        problems.append(trouble)
        free |= packages
    return RepairProblem(
        unreached=indexes.unreached(index, *required, "torch") if index and problems else None,
        problems=tuple(dict.fromkeys(problems)), required=required, free=frozenset(free - removed),
        removed=frozenset(removed), intact=frozenset(intact), index=index, answers=tuple(answers),
    )  # fmt: skip


def unmet(
    inside: InspectedEnvironment, settled: set[str]
) -> Iterator[tuple[EnvironmentProblem, set[str]]]:
    """Requirements that are not met, each with the packages that may change for it.

    Settled packages, above all frameworks, stay: then the package that requires others is changed.
    """
    for conflict in conflicts(inside.packages, inside.markers):
        has = f"{conflict.has} is installed" if conflict.has else "it is not installed"
        package = inside.packages[conflict.package]
        text = f"{package.name} {package.version} requires {conflict.needs}, but {has}"
        changed = conflict.package if conflict.required in settled else conflict.required
        yield (
            EnvironmentProblem(problem=text, packages=(conflict.package, conflict.required)),
            {changed},
        )


def requested_by(findings: Sequence[Finding], inside: InspectedEnvironment) -> dict[str, str]:
    """Packages other than frameworks in the fixes of the doctor's findings, such as `numpy<2`."""
    required: dict[str, str] = {}
    for finding in findings:
        words = [command.replace('"', "").replace("'", "").split()
                 for fix in finding.fixes[:1] for command in fix.commands]  # fmt: skip
        for line in words if len(words) == 1 else ():
            is_plain = "install" in line and not any(word.startswith("--") for word in line)
            named = line[line.index("install") + 1 :] if is_plain else []
            required |= requirement_names([word for word in named if not word.startswith("-")])
    own = {*FRAMEWORKS, *COMPANIONS, *(name for names in _HOLDERS.values() for name in names)}
    return {name: line for name, line in required.items()
            if name in inside.packages and name not in own}  # fmt: skip


def known_frameworks(inside: InspectedEnvironment) -> list[Framework]:
    """The frameworks of an environment that the tables cover."""
    return [framework for framework in inside.frameworks if framework.name in FRAMEWORKS]


def _holders(framework: Framework, inside: InspectedEnvironment) -> tuple[str, ...]:
    names = _HOLDERS.get(framework.name, (framework.name,))
    return tuple(name for name in names if name in inside.packages)


def _other_build(
    framework: Framework,
    target: Target,
    request: BuildRequest,
    tables: Tables,
    indexes: IndexChoices,
) -> CompatAnswer:
    """The same version where it has a build for this machine, else the nearest."""
    version = framework.version.partition("+")[0]
    minor = ".".join(version.split(".")[:2])
    for versions in (f"=={version}", f"=={minor}.*", ""):
        answer = checked(target, replace(request, versions=versions), tables, indexes.look_up)
        if answer.build is not None:
            return answer
    raise nothing_fits(request.framework, answer)


def _index_of(
    framework: Framework, inside: InspectedEnvironment, indexes: IndexChoices
) -> str | None:
    """The index with the companions of a framework that stays."""
    version = inside.packages["torch"].version if framework.name == "torch" else ""
    label = version.partition("+")[2]
    if not label:
        return None
    nightly = "nightly/" if ".dev" in version else ""
    return indexes.mirrored(f"{TORCH_INDEX}/{nightly}{label}")


def _mislabelled(
    inside: InspectedEnvironment, required: dict[str, str]
) -> Iterator[EnvironmentProblem]:
    """Companions of torch that were built for another build of it than the installed one."""
    torch = inside.packages.get("torch")
    if torch is None or "torch" in required:
        return
    label = torch.version.partition("+")[2]
    for name in COMPANIONS:
        companion = inside.packages.get(name)
        other = companion.version.partition("+")[2] if companion else ""
        if companion and label and other and label != other:
            text = f"{name} {companion.version} is built for {other}, but torch is {torch.version}"
            yield EnvironmentProblem(problem=text, packages=(name,))
