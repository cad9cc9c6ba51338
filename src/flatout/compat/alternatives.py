"""Alternatives if nothing fits: another driver, system, Python, version, card, or the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from flatout.compat.fit import (
    BuildRequest,
    Target,
    TargetGpu,
    best_build,
    candidates,
    is_for_cpu,
    oldest_driver,
    python_for,
    unknown_to_driver,
)
from flatout.compat.rows import Build, Os, Tables
from flatout.schema.versions import pair_text


def nearest_ways(target: Target, request: BuildRequest, tables: Tables) -> Iterator[str]:
    """One sentence for each possible change, smallest change first."""
    ways = [*_ways(target, request, tables)]
    yield from ways or _other_framework(target, request, tables)


def _ways(target: Target, request: BuildRequest, tables: Tables) -> Iterator[str]:
    changes = [*_single_changes(target, request, tables)]
    # Two or three changes together, if no single one is enough.
    yield from changes or _several_changes(target, request, tables)
    gpu = _best_gpu(target)
    if gpu is not None and not request.is_cpu:
        for hint in tables.hints:
            if hint.framework == request.framework and gpu.capability >= hint.lowest:
                yield hint.text
        yield from _manual_builds(target, request, gpu, tables)
        if not changes:
            yield from _other_card(target, request, tables)
    if not is_for_cpu(target, request):
        cpu = BuildRequest(
            framework=request.framework,
            versions=request.versions,
            python=request.python,
            is_cpu=True,
        )
        build = best_build(target, cpu, (), tables)
        if build:
            yield f"the CPU (--cpu): {_with_python(build, cpu)}"


def _single_changes(target: Target, request: BuildRequest, tables: Tables) -> Iterator[str]:
    if target.driver is not None:
        yield from _other_driver(target, request, tables)
    if request.python is not None:
        free = replace(request, python=None)
        if build := _best(target, free, tables):
            yield f"Python {pair_text(python_for(build, free))}: {build.label}"
    if request.versions:
        free = replace(request, versions="")
        if build := _best(target, free, tables):
            yield f"another version: {_with_python(build, free)}"
    if request.cuda is not None:
        free = replace(request, cuda=None)
        if build := _best(target, free, tables):
            yield f"another CUDA: {_with_python(build, free)}"
    if request.is_nightly:
        free = replace(request, is_nightly=False)
        if build := _best(target, free, tables):
            yield f"a release (without --nightly): {_with_python(build, free)}"
    yield from _other_system(target, request, tables)


def _other_driver(target: Target, request: BuildRequest, tables: Tables) -> Iterator[str]:
    free = replace(target, driver=None)
    build = _best(free, request, tables)
    gpu = _best_gpu(target)
    if build is None or gpu is None:
        return
    generation = tables.architecture(gpu.capability)
    whose = "Windows driver" if target.os == "wsl2" else "driver"
    needed = oldest_driver(build, target, (gpu,), tables)
    if generation and generation.last_branch and unknown_to_driver(gpu, target, tables):
        needed = f"branch {generation.last_branch}, the last for {generation.name}"
        yield f"{whose} of {needed}: {_with_python(build, request)}"
    else:
        yield f"{whose} {needed} or newer: {_with_python(build, request)}"


def _other_system(target: Target, request: BuildRequest, tables: Tables) -> Iterator[str]:
    if not target.gpus or target.os not in ("windows", "macos"):
        return
    systems: tuple[tuple[Os, str], ...] = (("wsl2", "WSL 2"), ("linux", "Linux"))
    for os, name in systems:
        # Drivers for Windows and Linux are numbered differently.
        elsewhere = replace(target, os=os, driver=target.driver if os == "wsl2" else None)
        if (os, target.os) != ("wsl2", "macos") and (build := _best(elsewhere, request, tables)):
            where = "" if target.os == "windows" else " on a computer with this card"
            yield f"{name}{where}: {_with_python(build, request)}"


def _several_changes(target: Target, request: BuildRequest, tables: Tables) -> Iterator[str]:
    free = BuildRequest(
        framework=request.framework, is_nightly=request.is_nightly, is_cpu=request.is_cpu
    )
    if build := _best(replace(target, driver=None), free, tables):
        gpu = _best_gpu(target)
        needed = oldest_driver(build, target, (gpu,) if gpu else (), tables)
        driver = f" and driver {needed} or newer" if needed else ""
        yield f"other versions{driver}: {_with_python(build, free)}"
        return
    yield from _other_system(replace(target, driver=None), free, tables)


def _other_card(target: Target, request: BuildRequest, tables: Tables) -> Iterator[str]:
    for build in candidates(target, BuildRequest(framework=request.framework), tables):
        if target.os in build.oses and target.machine == build.machine:
            lowest = build.lowest or min(build.codes)
            newest = max((*build.codes, *((build.ptx,) if build.ptx else ())), default=None)
            span = f"{pair_text(lowest)} or newer" if newest is None else (
                f"{pair_text(lowest)} to {newest[0]}.x")  # fmt: skip
            yield f"a card of compute capability {span}: {build.label}"
            return


def _other_framework(target: Target, request: BuildRequest, tables: Tables) -> Iterator[str]:
    for name in dict.fromkeys(build.framework for build in tables.builds):
        other = BuildRequest(framework=name, is_cpu=request.is_cpu)
        if name != request.framework and (build := _best(target, other, tables)):
            yield f"another framework: {_with_python(build, other)}"


def _manual_builds(
    target: Target, request: BuildRequest, gpu: TargetGpu, tables: Tables
) -> Iterator[str]:
    for build in tables.builds:
        exact_request = BuildRequest(framework=request.framework, versions=f"=={build.version}")
        is_manual = build.is_by_hand and build.framework == request.framework
        if is_manual and best_build(target, exact_request, (gpu,), tables) == build:
            yield (
                f"{_with_python(build, exact_request)}, an old build: CUDA {build.toolkit} and "
                f"cuDNN {build.cudnn} must be installed separately"
            )


def _best(target: Target, request: BuildRequest, tables: Tables) -> Build | None:
    gpu = _best_gpu(target)
    gpus = () if gpu is None or is_for_cpu(target, request) else (gpu,)
    return best_build(target, request, gpus, tables)


def _best_gpu(target: Target) -> TargetGpu | None:
    return max(target.gpus, key=lambda gpu: gpu.capability, default=None)


def _with_python(build: Build, request: BuildRequest) -> str:
    return f"{build.label} with Python {pair_text(python_for(build, request))}"
