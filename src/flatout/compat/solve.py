"""Chooses the build of a framework for a machine, with reasons and what was ruled out.

A pure function of the tables: nothing is read or queried here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flatout.compat.alternatives import nearest_ways
from flatout.compat.fit import (
    OS_NAMES,
    BuildRequest,
    Target,
    TargetGpu,
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
from flatout.compat.rows import Build, Tables
from flatout.schema.versions import numbers, pair_text

# Since 9.11 cuDNN does not support GPUs older than Turing.
# Source: cuDNN's support matrices of 9.10 and 9.11; immich-app/immich pull request 23110.
_OLD_CUDNN = "nvidia-cudnn-cu12<9.11"
_TURING = (7, 5)


@dataclass(frozen=True, kw_only=True)
class BuildChoice:
    """The build to install. cuda: like "cu126", or "cpu"; python: like "3.12"."""

    framework: str
    version: str
    cuda: str
    index: str
    python: str


@dataclass(frozen=True, kw_only=True)
class CompatAnswer:
    """A choice with its reasons, or no choice and what would work instead.

    nearest: what would fit if something else were different; only where nothing fits.
    build: the row that was chosen. usable: positions of the GPUs that can use it.
    constraints: for what the framework depends on.
    advice: what would make a better build possible; also among the reasons.
    num_device_reasons: how many reasons, from the first, are about the GPU and the driver.
    """

    choice: BuildChoice | None
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


def solve(target: Target, request: BuildRequest, tables: Tables) -> CompatAnswer:
    """The best build for a machine.

    Args:
        target: where it should run.
        request: the framework, and the user's constraints.
        tables: the published builds.

    Returns:
        The newest build that all GPUs can use. If there is none, the one for the most capable
        GPU that has one. If nothing fits, no choice, and what would fit.
    """
    gpus = () if is_for_cpu(target, request) else target.gpus
    build = best_build(target, request, gpus, tables)
    meant = gpus
    for gpu in sorted(gpus, key=lambda gpu: gpu.capability, reverse=True):
        if build is None:
            meant = (gpu,)
            build = best_build(target, request, meant, tables)
    if build is None:
        return CompatAnswer(
            choice=None,
            why=tuple(_why_none(target, request, gpus, tables)),
            ruled_out=tuple(_ruled_out(None, target, request, gpus, tables)),
            nearest=tuple(nearest_ways(target, request, tables)),
        )
    usable = tuple(
        index for index, gpu in enumerate(gpus)
        if not list(gpu_misfits(build, gpu, target, tables))
    )  # fmt: skip
    used = [gpus[index] for index in usable]
    constraints = _constraints(build, used)
    advice = _advice(build, target, request, used, tables)
    device = tuple(_why_device(build, target, usable, tables))
    return CompatAnswer(
        choice=BuildChoice(
            framework=build.framework,
            version=build.version,
            cuda=build.cuda,
            index=build.index,
            python=pair_text(python_for(build, request)),
        ),
        why=(
            *device,
            *([advice] if advice else []),
            *_why_rest(build, target, request, constraints),
        ),
        ruled_out=tuple(_ruled_out(build, target, request, meant, tables)),
        build=build,
        usable=usable,
        constraints=constraints,
        advice=advice,
        num_device_reasons=len(device),
    )


def _why_none(
    target: Target, request: BuildRequest, gpus: Sequence[TargetGpu], tables: Tables
) -> Iterator[str]:
    matches = candidates(target, request, tables)
    if not matches:
        requested = " ".join(filter(None, (request.framework, request.versions, request.cuda)))
        nightly = "nightly " if request.is_nightly else ""
        yield f"no {nightly}build of {requested} is known"
    unknown = [reason for gpu in gpus if (reason := unknown_to_driver(gpu, target, tables))]
    yield from dict.fromkeys(unknown)
    own = [
        build for build in matches if target.os in build.oses and target.machine == build.machine
    ]
    if matches and not own:
        what = "with a GPU" if gpus else "without a GPU"
        yield (
            f"{request.framework} {what} is not published for {OS_NAMES[target.os]} "
            f"on {target.machine}"
        )
    elif own and not unknown:
        best = max(gpus, key=lambda gpu: gpu.capability, default=None)
        yield _why_not(own, target, request, best, tables)


def _why_not(
    own: Sequence[Build],
    target: Target,
    request: BuildRequest,
    gpu: TargetGpu | None,
    tables: Tables,
) -> str:
    """The reason why no build for a system fits: the card, the driver, or the request."""
    gpus = (gpu,) if gpu else ()
    anyhow = _without_driver(target)
    free = BuildRequest(framework=request.framework, is_nightly=request.is_nightly)
    if gpu and not best_build(anyhow, free, gpus, tables):
        return (
            f"no build of {request.framework} for {OS_NAMES[target.os]} runs on {gpu.name} "
            f"(compute capability {pair_text(gpu.capability)}), whatever its driver"
        )
    driver = driver_numbers(target.driver)
    fitting = [build for build in own if misfit(build, anyhow, request, gpus, tables) is None]
    drivers = [oldest_driver(build, target, gpus, tables) for build in fitting]
    oldest = min(filter(None, drivers), key=numbers, default=None)
    if driver and oldest and driver < numbers(oldest):
        return f"driver {target.driver} is older than {oldest}, the oldest that any build supports"
    return (
        f"the newest, {own[0].label}, does not fit: {misfit(own[0], target, request, gpus, tables)}"
    )


def _why_device(
    build: Build, target: Target, usable: Sequence[int], tables: Tables
) -> Iterator[str]:
    if build.cuda == "cpu":
        why = f": {target.why_no_gpu}" if target.why_no_gpu else ""
        yield f"no NVIDIA GPU{why}" if not target.gpus else "the CPU was requested"
        return
    for index in usable:
        gpu = target.gpus[index]
        generation = tables.architecture(gpu.capability)
        name = f" ({generation.name})" if generation else ""
        how = _code_text(build, gpu)
        yield f"{gpu.name} has compute capability {pair_text(gpu.capability)}{name}: {how}"
    gpus = [target.gpus[index] for index in usable]
    yield from _why_driver(build, target, gpus, tables)
    others = [
        f"{gpu.name} ({pair_text(gpu.capability)})"
        for index, gpu in enumerate(target.gpus)
        if index not in usable
    ]
    if others:
        shown = ",".join(map(str, usable))
        yield (
            f"no build runs on {', '.join(others)} as well: "
            f"set CUDA_DEVICE_ORDER=PCI_BUS_ID and CUDA_VISIBLE_DEVICES={shown}"
        )
    yield from _cautions(build, target, gpus)


def _code_text(build: Build, gpu: TargetGpu) -> str:
    if build.lowest is not None:
        return f"{build.framework} compiles for {pair_text(build.lowest)} and newer"
    codes = [code for code in build.codes
             if code[0] == gpu.capability[0] and code[1] <= gpu.capability[1]]  # fmt: skip
    if codes:
        return f"the build has kernels for {pair_text(max(codes))}, which runs on it"
    ptx = pair_text(build.ptx) if build.ptx else ""
    return f"the driver compiles the build's PTX of {ptx} for it, so the first start is slow"


def _why_driver(
    build: Build, target: Target, gpus: Sequence[TargetGpu], tables: Tables
) -> Iterator[str]:
    needed = oldest_driver(build, target, gpus, tables)
    whose = "Windows driver" if target.os == "wsl2" else "driver"
    if target.driver is not None:
        yield f"{whose} {target.driver} can run it: it needs {needed} or newer"
    elif gpus:
        yield f"the {whose} is not known: it needs {needed} or newer"
    last = {row.last_branch: row.name for gpu in gpus
            if (row := tables.architecture(gpu.capability)) and row.last_branch}  # fmt: skip
    for branch, name in last.items():
        yield (
            f"do not update the driver past branch {branch}, the last for {name}; the CUDA version "
            "that nvidia-smi shows is what the driver can run, not what this card can"
        )


def _advice(
    build: Build, target: Target, request: BuildRequest, gpus: Sequence[TargetGpu], tables: Tables
) -> str | None:
    """The gain from a newer driver."""
    driver = driver_numbers(target.driver)
    free = BuildRequest(
        framework=request.framework, versions=request.versions, python=request.python
    )
    newer = best_build(_without_driver(target), free, gpus, tables)
    if driver is None or build.cuda == "cpu" or newer is None or newer == build:
        return None
    oldest = oldest_driver(newer, target, gpus, tables)
    if oldest is None or driver >= numbers(oldest) or _is_older(newer, build):
        return None
    whose = "Windows driver" if target.os == "wsl2" else "driver"
    return f"with {whose} {oldest} or newer it could be {newer.label}"


def _cautions(build: Build, target: Target, gpus: Sequence[TargetGpu]) -> Iterator[str]:
    driver = driver_numbers(target.driver)
    if target.os == "wsl2":
        if any(gpu.capability[0] == 5 for gpu in gpus):
            yield "NVIDIA does not support Maxwell under WSL 2, though it may work"
        if any(gpu.kind == "datacentre" for gpu in gpus):
            yield "WSL passes a data center card through only if Windows runs it in WDDM mode"
        if driver and driver < (495,):
            yield "CUDA under WSL was a preview before driver 495"
        if build.framework == "jax":
            yield "JAX calls its GPU support under WSL 2 experimental"
    if build.framework == "paddle" and target.os == "windows" and len(gpus) > 1:
        yield "PaddlePaddle uses one GPU at a time under Windows"
    if build.is_by_hand:
        yield f"CUDA {build.toolkit} and cuDNN {build.cudnn} must be installed separately"
    if build.is_experimental:
        yield f"PyTorch called its builds for {build.cuda} experimental in this version"
    if build.confidence != "high":
        yield "the code in this build is not verified: run something on the GPU before trusting it"


def _why_rest(
    build: Build, target: Target, request: BuildRequest, constraints: Sequence[str]
) -> Iterator[str]:
    python = pair_text(python_for(build, request))
    oldest, newest = map(pair_text, build.python)
    reason = " was requested;" if request.python is not None else ":"
    reason = " is installed;" if request.is_python_found else reason
    yield f"Python {python}{reason} this version has builds for {oldest} to {newest}"
    if build.framework == "torch" and build.cuda != "cpu" and target.os == "windows":
        yield "for Windows PyPI has only CPU builds, so the index must be given"
    elif build.framework == "paddle" and build.cuda != "cpu":
        yield "PaddlePaddle's GPU builds are in a separate index; PyPI stopped at 2.6.2"
    for constraint in constraints:
        if constraint == _OLD_CUDNN:
            yield f"with {constraint}: since 9.11 cuDNN does not support GPUs older than Turing"
        elif constraint == "setuptools":
            yield "with setuptools, which it imports but does not always require"
        else:
            yield f"with {constraint}, for which this version was made"
    yield f"source: {build.source}; read {build.read}"


def _constraints(build: Build, gpus: Sequence[TargetGpu]) -> tuple[str, ...]:
    needs_old = (
        build.is_in_default_index
        and build.cuda_major == 12
        and numbers(build.cudnn or "9") >= (9,)
        and any(gpu.capability < _TURING for gpu in gpus)
    )
    return (*build.constraints, *((_OLD_CUDNN,) if needs_old else ()))


def _ruled_out(
    chosen: Build | None,
    target: Target,
    request: BuildRequest,
    gpus: Sequence[TargetGpu],
    tables: Tables,
) -> Iterator[str]:
    """The builds that were ruled out before the choice, with the reason, one line for each CUDA."""
    matches = candidates(target, request, tables)
    better = matches[: matches.index(chosen)] if chosen else matches
    here = [build for build in better if build.machine == target.machine] or better
    own = [build for build in here if target.os in build.oses] or here
    grouped: dict[tuple[str, str], list[Build]] = {}
    for build in own:
        reason = misfit(build, target, request, gpus, tables)
        if reason:
            grouped.setdefault((build.cuda, reason), []).append(build)
    reasons = {reason for _, reason in grouped}
    if chosen is None and len(grouped) > 1 and len(reasons) == 1:
        yield f"every build of {request.framework}: {reasons.pop()}"
        return
    for (_, reason), builds in grouped.items():
        build = builds[0]
        older = f"{builds[-1].version} to " if len(builds) > 1 else ""
        label = build.label.removeprefix(build.framework).strip()
        yield f"{build.framework} {older}{label}: {reason}"


def _without_driver(target: Target) -> Target:
    return Target(os=target.os, machine=target.machine, gpus=target.gpus)


def _is_older(build: Build, other: Build) -> bool:
    return numbers(build.version) < numbers(other.version)
