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


def nearest_ways(target: Target, wish: BuildRequest, tables: Tables) -> Iterator[str]:
    """One sentence for each possible change, smallest change first."""
    ways = [*_ways(target, wish, tables)]
    yield from ways or _other_framework(target, wish, tables)


def _ways(target: Target, wish: BuildRequest, tables: Tables) -> Iterator[str]:
    found = [*_one_thing(target, wish, tables)]
    # Two or three changes together, if no single one is enough.
    yield from found or _several_things(target, wish, tables)
    gpu = _best_gpu(target)
    if gpu is not None and not wish.is_cpu:
        for hint in tables.hints:
            if hint.framework == wish.framework and gpu.capability >= hint.lowest:
                yield hint.text
        yield from _by_hand(target, wish, gpu, tables)
        if not found:
            yield from _other_card(target, wish, tables)
    if not is_for_cpu(target, wish):
        cpu = BuildRequest(
            framework=wish.framework, versions=wish.versions, python=wish.python, is_cpu=True
        )
        build = best_build(target, cpu, (), tables)
        if build:
            yield f"the CPU (--cpu): {_with_python(build, cpu)}"


def _one_thing(target: Target, wish: BuildRequest, tables: Tables) -> Iterator[str]:
    if target.driver is not None:
        yield from _other_driver(target, wish, tables)
    if wish.python is not None:
        free = replace(wish, python=None)
        if build := _best(target, free, tables):
            yield f"Python {pair_text(python_for(build, free))}: {build.label}"
    if wish.versions:
        free = replace(wish, versions="")
        if build := _best(target, free, tables):
            yield f"another version: {_with_python(build, free)}"
    if wish.cuda is not None:
        free = replace(wish, cuda=None)
        if build := _best(target, free, tables):
            yield f"another CUDA: {_with_python(build, free)}"
    if wish.is_nightly:
        free = replace(wish, is_nightly=False)
        if build := _best(target, free, tables):
            yield f"a release (without --nightly): {_with_python(build, free)}"
    yield from _other_system(target, wish, tables)


def _other_driver(target: Target, wish: BuildRequest, tables: Tables) -> Iterator[str]:
    free = replace(target, driver=None)
    build = _best(free, wish, tables)
    gpu = _best_gpu(target)
    if build is None or gpu is None:
        return
    generation = tables.architecture(gpu.capability)
    whose = "Windows driver" if target.os == "wsl2" else "driver"
    needed = oldest_driver(build, target, (gpu,), tables)
    if generation and generation.last_branch and unknown_to_driver(gpu, target, tables):
        needed = f"branch {generation.last_branch}, the last for {generation.name}"
        yield f"{whose} of {needed}: {_with_python(build, wish)}"
    else:
        yield f"{whose} {needed} or newer: {_with_python(build, wish)}"


def _other_system(target: Target, wish: BuildRequest, tables: Tables) -> Iterator[str]:
    if not target.gpus or target.os not in ("windows", "macos"):
        return
    systems: tuple[tuple[Os, str], ...] = (("wsl2", "WSL 2"), ("linux", "Linux"))
    for os, name in systems:
        # Drivers for Windows and Linux are numbered differently.
        elsewhere = replace(target, os=os, driver=target.driver if os == "wsl2" else None)
        if (os, target.os) != ("wsl2", "macos") and (build := _best(elsewhere, wish, tables)):
            where = "" if target.os == "windows" else " on a computer with this card"
            yield f"{name}{where}: {_with_python(build, wish)}"


def _several_things(target: Target, wish: BuildRequest, tables: Tables) -> Iterator[str]:
    free = BuildRequest(framework=wish.framework, is_nightly=wish.is_nightly, is_cpu=wish.is_cpu)
    if build := _best(replace(target, driver=None), free, tables):
        gpu = _best_gpu(target)
        needed = oldest_driver(build, target, (gpu,) if gpu else (), tables)
        driver = f" and driver {needed} or newer" if needed else ""
        yield f"other versions{driver}: {_with_python(build, free)}"
        return
    yield from _other_system(replace(target, driver=None), free, tables)


def _other_card(target: Target, wish: BuildRequest, tables: Tables) -> Iterator[str]:
    for build in candidates(target, BuildRequest(framework=wish.framework), tables):
        if target.os in build.oses and target.machine == build.machine:
            lowest = build.lowest or min(build.codes)
            newest = max((*build.codes, *((build.ptx,) if build.ptx else ())), default=None)
            span = f"{pair_text(lowest)} or newer" if newest is None else (
                f"{pair_text(lowest)} to {newest[0]}.x")  # fmt: skip
            yield f"a card of compute capability {span}: {build.label}"
            return


def _other_framework(target: Target, wish: BuildRequest, tables: Tables) -> Iterator[str]:
    for name in dict.fromkeys(one.framework for one in tables.builds):
        other = BuildRequest(framework=name, is_cpu=wish.is_cpu)
        if name != wish.framework and (build := _best(target, other, tables)):
            yield f"another framework: {_with_python(build, other)}"


def _by_hand(target: Target, wish: BuildRequest, gpu: TargetGpu, tables: Tables) -> Iterator[str]:
    for build in tables.builds:
        asked = BuildRequest(framework=wish.framework, versions=f"=={build.version}")
        is_asked = build.is_by_hand and build.framework == wish.framework
        if is_asked and best_build(target, asked, (gpu,), tables) == build:
            yield (
                f"{_with_python(build, asked)}, an old build: CUDA {build.toolkit} and "
                f"cuDNN {build.cudnn} must be installed separately"
            )


def _best(target: Target, wish: BuildRequest, tables: Tables) -> Build | None:
    gpu = _best_gpu(target)
    gpus = () if gpu is None or is_for_cpu(target, wish) else (gpu,)
    return best_build(target, wish, gpus, tables)


def _best_gpu(target: Target) -> TargetGpu | None:
    return max(target.gpus, key=lambda one: one.capability, default=None)


def _with_python(build: Build, wish: BuildRequest) -> str:
    return f"{build.label} with Python {pair_text(python_for(build, wish))}"
