"""What is wrong in an environment, as far as other packages mend it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from flatout.environments.build_places import TORCH_INDEX, BuildPlaces
from flatout.environments.decide import nothing_fits
from flatout.nouns.environment_repair import Trouble
from flatout.nouns.finding import Finding
from flatout.nouns.framework import Framework
from flatout.nouns.installed import Inside
from flatout.setup.checking import checked
from flatout.setup.conflicts import conflicts, requirement_names
from flatout.setup.fit import Target, Wish
from flatout.setup.installed_fit import FRAMEWORKS, why_wrong
from flatout.setup.rows import Tables
from flatout.setup.solve import Answer
from flatout.setup.versions import pair

# Compiled against one build of torch each, and published in the same index.
COMPANIONS = ("torchvision", "torchaudio")
# Distributions that hold a framework, of which one is to be there.
_HOLDERS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel"),
    "paddlepaddle": ("paddlepaddle", "paddlepaddle-gpu"),
}


class Wrong(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be changed, and why.

    wanted: requirements, by the package's name. free: packages whose version is open.
    removed: packages that another takes the place of. kept: frameworks that are right.
    index: of the framework's build; None where it is pip's own. unreached: why that index cannot be
    asked.
    """

    troubles: tuple[Trouble, ...] = ()
    wanted: dict[str, str] = {}
    free: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    index: str | None = None
    unreached: str | None = None
    answers: tuple[Answer, ...] = ()


def find_wrong(
    inside: Inside, target: Target, wish: Wish, tables: Tables, places: BuildPlaces
) -> Wrong:
    """Builds that do not run here, packages built for another, and requirements that are not met.

    Args:
        inside: the environment.
        target: this machine.
        wish: what a person has settled of the builds: the CPU, or a CUDA.
        tables: what is published.
        places: where builds may be had.

    Raises:
        RunFailed: nothing-fits.
    """
    troubles: list[Trouble] = []
    wanted: dict[str, str] = {}
    removed: set[str] = set()
    kept: set[str] = set()
    index, answers = None, []
    for held in _frameworks(inside):
        holders = _holders(held, inside)
        own_wish = replace(
            wish, framework=FRAMEWORKS[held.name], python=pair(inside.python_version)
        )
        why = why_wrong(held, target, own_wish, tables)
        if why is None:
            kept |= set(holders)
            index = index or _index_of(held, inside, places)
            continue
        troubles.append(Trouble(problem=why, packages=holders))
        answer = _other_build(held, target, own_wish, tables, places)
        answers.append(answer)
        if answer.build is not None:
            wanted |= requirement_names([answer.build.requirement])
            removed |= set(holders) - set(wanted)
            index = index or places.own_index(answer.build)
    free = {one for one in COMPANIONS if one in inside.packages and "torch" in wanted}
    for trouble in _mislabelled(inside, wanted):
        troubles.append(trouble)
        free |= set(trouble.packages)
    for trouble, packages in unmet(inside, kept | set(wanted)):
        troubles.append(trouble)
        free |= packages
    return Wrong(
        unreached=places.unreached(index, *wanted, "torch") if index and troubles else None,
        troubles=tuple(dict.fromkeys(troubles)), wanted=wanted, free=frozenset(free - removed),
        removed=frozenset(removed), kept=frozenset(kept), index=index, answers=tuple(answers),
    )  # fmt: skip


def unmet(inside: Inside, settled: set[str]) -> Iterator[tuple[Trouble, set[str]]]:
    """Requirements that are not met, each with the packages that may change for it.

    What is settled, a framework above all, stays: then whoever asks for another one is changed.
    """
    for one in conflicts(inside.packages, inside.markers):
        has = f"{one.wanted} {one.has} is there" if one.has else "that is not there"
        package = inside.packages[one.package]
        text = f"{package.name} {package.version} asks for {one.needs}, and {has}"
        changed = one.package if one.wanted in settled else one.wanted
        yield Trouble(problem=text, packages=(one.package, one.wanted)), {changed}


def asked_by(findings: Sequence[Finding], inside: Inside) -> dict[str, str]:
    """What the doctor's findings tell pip to install beside the frameworks: `numpy<2`, say."""
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


def _frameworks(inside: Inside) -> list[Framework]:
    return [one for one in inside.frameworks if one.name in FRAMEWORKS]


def _holders(held: Framework, inside: Inside) -> tuple[str, ...]:
    names = _HOLDERS.get(held.name, (held.name,))
    return tuple(name for name in names if name in inside.packages)


def _other_build(
    held: Framework, target: Target, wish: Wish, tables: Tables, places: BuildPlaces
) -> Answer:
    """The same version where it has a build for this machine, else the nearest."""
    version = held.version.partition("+")[0]
    minor = ".".join(version.split(".")[:2])
    for versions in (f"=={version}", f"=={minor}.*", ""):
        answer = checked(target, replace(wish, versions=versions), tables, places.look)
        if answer.build is not None:
            return answer
    raise nothing_fits(wish.framework, answer)


def _index_of(held: Framework, inside: Inside, places: BuildPlaces) -> str | None:
    """Where what goes with a framework that stays is to be had."""
    version = inside.packages["torch"].version if held.name == "torch" else ""
    label = version.partition("+")[2]
    if not label:
        return None
    nightly = "nightly/" if ".dev" in version else ""
    return places.mirrored(f"{TORCH_INDEX}/{nightly}{label}")


def _mislabelled(inside: Inside, wanted: dict[str, str]) -> Iterator[Trouble]:
    """Companions of torch that were made for another build of it than the one that is there."""
    torch = inside.packages.get("torch")
    if torch is None or "torch" in wanted:
        return
    label = torch.version.partition("+")[2]
    for name in COMPANIONS:
        one = inside.packages.get(name)
        other = one.version.partition("+")[2] if one else ""
        if one and label and other and label != other:
            text = f"{name} {one.version} is built for {other}, and torch {torch.version} is there"
            yield Trouble(problem=text, packages=(name,))
