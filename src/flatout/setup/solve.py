"""Which build of a framework a machine can run, why that one, and what was ruled out.

A function of what is known: nothing is read or asked here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flatout.setup.fit import (
    OS_NAMES,
    Gpu,
    Target,
    Wish,
    best_build,
    candidates,
    driver_numbers,
    gpu_misfits,
    is_for_cpu,
    misfit,
    oldest_driver,
    python_for,
    unknown_to_driver,
)
from flatout.setup.nearest import nearest_ways
from flatout.setup.rows import Build, Tables
from flatout.setup.versions import numbers, pair_text

# From 9.11 on cuDNN has nothing for GPUs before Turing.
# Source: cuDNN's support matrices of 9.10 and 9.11; immich-app/immich pull request 23110.
_OLD_CUDNN = "nvidia-cudnn-cu12<9.11"
_TURING = (7, 5)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What to install. cuda: like "cu126", or "cpu"; python: like "3.12"."""

    framework: str
    version: str
    cuda: str
    index: str
    python: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A choice with its reasons, or none with what would work.

    nearest: what would fit if something else were different; only where nothing fits.
    build: the row that was chosen. usable: positions of the GPUs that can use it.
    constraints: for what the framework depends on.
    advice: what would make a better build possible; among the reasons too.
    num_device_reasons: the first so many reasons are about the GPU and the driver.
    """

    choice: Choice | None
    why: tuple[str, ...]
    ruled_out: tuple[str, ...]
    nearest: tuple[str, ...] = ()
    build: Build | None = None
    usable: tuple[int, ...] = ()
    constraints: tuple[str, ...] = ()
    advice: str | None = None
    num_device_reasons: int = 0

    @property
    def document(self) -> dict[str, Any]:
        """The answer for programs."""
        return {
            "choice": self.choice,
            "why": self.why,
            "ruled_out": self.ruled_out,
            "nearest": self.nearest,
        }


def solve(target: Target, wish: Wish, tables: Tables) -> Answer:
    """The best build for a machine.

    Args:
        target: where it is to run.
        wish: the framework, and what the person has settled.
        tables: what is published.

    Returns:
        The newest build that all GPUs can use. Where they share none, the one for the most capable
        GPU that has one. Where nothing fits, no choice, and what would.
    """
    gpus = () if is_for_cpu(target, wish) else target.gpus
    build = best_build(target, wish, gpus, tables)
    meant = gpus
    for gpu in sorted(gpus, key=lambda one: one.capability, reverse=True):
        if build is None:
            meant = (gpu,)
            build = best_build(target, wish, meant, tables)
    if build is None:
        return Answer(
            choice=None,
            why=tuple(_why_none(target, wish, gpus, tables)),
            ruled_out=tuple(_ruled_out(None, target, wish, gpus, tables)),
            nearest=tuple(nearest_ways(target, wish, tables)),
        )
    usable = tuple(
        place for place, gpu in enumerate(gpus)
        if not list(gpu_misfits(build, gpu, target, tables))
    )  # fmt: skip
    used = [gpus[place] for place in usable]
    constraints = _constraints(build, used)
    advice = _advice(build, target, wish, used, tables)
    device = tuple(_why_device(build, target, usable, tables))
    return Answer(
        choice=Choice(
            framework=build.framework,
            version=build.version,
            cuda=build.cuda,
            index=build.index,
            python=pair_text(python_for(build, wish)),
        ),
        why=(
            *device,
            *([advice] if advice else []),
            *_why_rest(build, target, wish, constraints),
        ),
        ruled_out=tuple(_ruled_out(build, target, wish, meant, tables)),
        build=build,
        usable=usable,
        constraints=constraints,
        advice=advice,
        num_device_reasons=len(device),
    )


def _why_none(target: Target, wish: Wish, gpus: Sequence[Gpu], tables: Tables) -> Iterator[str]:
    found = candidates(target, wish, tables)
    if not found:
        asked = " ".join(filter(None, (wish.framework, wish.versions, wish.cuda)))
        nightly = "nightly " if wish.is_nightly else ""
        yield f"no {nightly}build of {asked} is known"
    unknown = [reason for gpu in gpus if (reason := unknown_to_driver(gpu, target, tables))]
    yield from dict.fromkeys(unknown)
    own = [one for one in found if target.os in one.oses and target.machine == one.machine]
    if found and not own:
        what = "with a GPU" if gpus else "without a GPU"
        yield (
            f"{wish.framework} {what} is not published for {OS_NAMES[target.os]} "
            f"on {target.machine}"
        )
    elif own and not unknown:
        best = max(gpus, key=lambda one: one.capability, default=None)
        yield _why_not(own, target, wish, best, tables)


def _why_not(
    own: Sequence[Build], target: Target, wish: Wish, gpu: Gpu | None, tables: Tables
) -> str:
    """Why none of the builds for a system fits: the card, the driver, or what was asked for."""
    gpus = (gpu,) if gpu else ()
    anyhow = _without_driver(target)
    free = Wish(framework=wish.framework, is_nightly=wish.is_nightly)
    if gpu and not best_build(anyhow, free, gpus, tables):
        return (
            f"no build of {wish.framework} for {OS_NAMES[target.os]} runs on {gpu.name} "
            f"(compute capability {pair_text(gpu.capability)}), whatever its driver"
        )
    driver = driver_numbers(target.driver)
    fitting = [one for one in own if misfit(one, anyhow, wish, gpus, tables) is None]
    drivers = [oldest_driver(one, target, gpus, tables) for one in fitting]
    oldest = min(filter(None, drivers), key=numbers, default=None)
    if driver and oldest and driver < numbers(oldest):
        return f"driver {target.driver} is older than {oldest}, the oldest that a build takes"
    return f"the newest, {own[0].label}, does not fit: {misfit(own[0], target, wish, gpus, tables)}"


def _why_device(
    build: Build, target: Target, usable: Sequence[int], tables: Tables
) -> Iterator[str]:
    if build.cuda == "cpu":
        why = f": {target.why_no_gpu}" if target.why_no_gpu else ""
        yield f"no NVIDIA GPU{why}" if not target.gpus else "the CPU was asked for"
        return
    for place in usable:
        gpu = target.gpus[place]
        generation = tables.architecture(gpu.capability)
        name = f" ({generation.name})" if generation else ""
        how = _code_text(build, gpu)
        yield f"{gpu.name} has compute capability {pair_text(gpu.capability)}{name}: {how}"
    gpus = [target.gpus[place] for place in usable]
    yield from _why_driver(build, target, gpus, tables)
    others = [
        f"{gpu.name} ({pair_text(gpu.capability)})"
        for place, gpu in enumerate(target.gpus)
        if place not in usable
    ]
    if others:
        shown = ",".join(map(str, usable))
        yield (
            f"no build runs on {', '.join(others)} as well: "
            f"set CUDA_DEVICE_ORDER=PCI_BUS_ID and CUDA_VISIBLE_DEVICES={shown}"
        )
    yield from _cautions(build, target, gpus)


def _code_text(build: Build, gpu: Gpu) -> str:
    if build.lowest is not None:
        return f"{build.framework} compiles for it from {pair_text(build.lowest)} on"
    codes = [one for one in build.codes
             if one[0] == gpu.capability[0] and one[1] <= gpu.capability[1]]  # fmt: skip
    if codes:
        return f"the build holds code for {pair_text(max(codes))}, which runs on it"
    ptx = pair_text(build.ptx) if build.ptx else ""
    return f"the driver compiles the build's PTX of {ptx} for it, so that the first start is slow"


def _why_driver(build: Build, target: Target, gpus: Sequence[Gpu], tables: Tables) -> Iterator[str]:
    needed = oldest_driver(build, target, gpus, tables)
    whose = "Windows driver" if target.os == "wsl2" else "driver"
    if target.driver is not None:
        yield f"{whose} {target.driver} can run it: it takes {needed} or newer"
    elif gpus:
        yield f"the {whose} is not known: it takes {needed} or newer"
    last = {row.last_branch: row.name for gpu in gpus
            if (row := tables.architecture(gpu.capability)) and row.last_branch}  # fmt: skip
    for branch, name in last.items():
        yield (
            f"do not update the driver past branch {branch}, the last for {name}; the CUDA version "
            "that nvidia-smi tells is what this driver could run, not what this card can"
        )


def _advice(
    build: Build, target: Target, wish: Wish, gpus: Sequence[Gpu], tables: Tables
) -> str | None:
    """What a newer driver would make possible."""
    driver = driver_numbers(target.driver)
    free = Wish(framework=wish.framework, versions=wish.versions, python=wish.python)
    newer = best_build(_without_driver(target), free, gpus, tables)
    if driver is None or build.cuda == "cpu" or newer is None or newer == build:
        return None
    oldest = oldest_driver(newer, target, gpus, tables)
    if oldest is None or driver >= numbers(oldest) or _is_older(newer, build):
        return None
    whose = "Windows driver" if target.os == "wsl2" else "driver"
    return f"with {whose} {oldest} or newer it could be {newer.label}"


def _cautions(build: Build, target: Target, gpus: Sequence[Gpu]) -> Iterator[str]:
    driver = driver_numbers(target.driver)
    if target.os == "wsl2":
        if any(gpu.capability[0] == 5 for gpu in gpus):
            yield "NVIDIA does not support Maxwell under WSL 2, where it may work all the same"
        if any(gpu.kind == "datacentre" for gpu in gpus):
            yield "WSL passes a data centre card through only where Windows runs it in WDDM"
        if driver and driver < (495,):
            yield "CUDA under WSL was a preview before driver 495"
        if build.framework == "jax":
            yield "JAX calls its GPU support under WSL 2 experimental"
    if build.framework == "paddle" and target.os == "windows" and len(gpus) > 1:
        yield "PaddlePaddle uses one GPU at a time under Windows"
    if build.is_by_hand:
        yield f"CUDA {build.toolkit} and cuDNN {build.cudnn} must be installed by hand beside it"
    if build.is_experimental:
        yield f"PyTorch called its builds for {build.cuda} experimental in this version"
    if build.confidence != "high":
        yield "what this build holds is not proved: run something on the GPU before you trust it"


def _why_rest(
    build: Build, target: Target, wish: Wish, constraints: Sequence[str]
) -> Iterator[str]:
    python = pair_text(python_for(build, wish))
    oldest, newest = map(pair_text, build.python)
    if wish.python is not None:
        yield f"Python {python} was asked for; this version has builds for {oldest} to {newest}"
    else:
        yield f"Python {python}: this version has builds for {oldest} to {newest}"
    if build.framework == "torch" and build.cuda != "cpu" and target.os == "windows":
        yield "PyPI has only builds for the CPU for Windows, so the index must be named"
    elif build.framework == "paddle" and build.cuda != "cpu":
        yield "PaddlePaddle's GPU builds are in an index of their own; PyPI stopped at 2.6.2"
    for constraint in constraints:
        if constraint == _OLD_CUDNN:
            yield f"with {constraint}: from 9.11 on cuDNN has nothing for GPUs before Turing"
        elif constraint == "setuptools":
            yield "with setuptools, which it imports, and does not always ask for"
        else:
            yield f"with {constraint}, for which this version was made"
    yield f"source: {build.source}; read {build.read}"


def _constraints(build: Build, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    needs_old = (
        build.is_in_default_index
        and build.cuda_major == 12
        and numbers(build.cudnn or "9") >= (9,)
        and any(gpu.capability < _TURING for gpu in gpus)
    )
    return (*build.constraints, *((_OLD_CUDNN,) if needs_old else ()))


def _ruled_out(
    chosen: Build | None, target: Target, wish: Wish, gpus: Sequence[Gpu], tables: Tables
) -> Iterator[str]:
    """What would have been taken before the choice, with the reason, a line for each CUDA."""
    found = candidates(target, wish, tables)
    better = found[: found.index(chosen)] if chosen else found
    here = [one for one in better if one.machine == target.machine] or better
    own = [one for one in here if target.os in one.oses] or here
    grouped: dict[tuple[str, str], list[Build]] = {}
    for one in own:
        reason = misfit(one, target, wish, gpus, tables)
        if reason:
            grouped.setdefault((one.cuda, reason), []).append(one)
    reasons = {reason for _, reason in grouped}
    if chosen is None and len(grouped) > 1 and len(reasons) == 1:
        yield f"every build of {wish.framework}: {reasons.pop()}"
        return
    for (_, reason), builds in grouped.items():
        one = builds[0]
        older = f"{builds[-1].version} to " if len(builds) > 1 else ""
        yield f"{one.framework} {older}{one.label.removeprefix(one.framework).strip()}: {reason}"


def _without_driver(target: Target) -> Target:
    return Target(os=target.os, machine=target.machine, gpus=target.gpus)


def _is_older(one: Build, other: Build) -> bool:
    return numbers(one.version) < numbers(other.version)
