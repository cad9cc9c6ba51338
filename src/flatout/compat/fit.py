"""Whether a build runs on a machine, and if not, why.

A build runs on a GPU of compute capability X.Y if it has machine code for X.Z with Z <= Y, or PTX
of any capability <= X.Y, which the driver compiles at the first start; that needs a driver at least
as new as the toolkit that made the PTX. Otherwise the oldest driver of the CUDA's major version is
enough ("minor version compatibility").
Source: CUDA C++ programming guide, sections on compute capability and on compatibility.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from flatout.compat.rows import Build, Os, Tables
from flatout.schema.versions import Numbers, Pair, meets, numbers, pair_text

OS_NAMES: dict[Os, str] = {
    "linux": "Linux", "wsl2": "WSL 2", "windows": "native Windows", "macos": "macOS",
}  # fmt: skip
# All four frameworks have builds for it.
DEFAULT_PYTHON: Pair = (3, 12)
# Source: dask/distributed issue 5343.
_FIRST_WSL_DRIVER = "465"


@dataclass(frozen=True, kw_only=True)
class TargetGpu:
    """A GPU to use. kind: as in `Card`."""

    name: str
    capability: Pair
    kind: Literal["desktop", "datacentre", "jetson"] = "desktop"


@dataclass(frozen=True, kw_only=True)
class Target:
    """The machine on which a framework should run.

    machine: its processor, as in wheel names. driver: under WSL the Windows driver; None: unknown.
    why_no_gpu: why no GPU can be used, if so.
    """

    os: Os
    machine: str = "x86_64"
    driver: str | None = None
    gpus: tuple[TargetGpu, ...] = ()
    why_no_gpu: str | None = None


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """The requested build. versions: like ">=2.8"; cuda: like "cu126", or "cu12" for any 12.

    absent: builds that the index turned out not to have. is_python_found: `python` is not the
    user's choice: it is the one that is installed.
    """

    framework: str
    versions: str = ""
    python: Pair | None = None
    cuda: str | None = None
    is_cpu: bool = False
    is_nightly: bool = False
    absent: tuple[Build, ...] = ()
    is_python_found: bool = False


def is_for_cpu(target: Target, request: BuildRequest) -> bool:
    """Whether the build without CUDA is required. One with CUDA may be requested without a GPU."""
    return request.is_cpu or (not target.gpus and request.cuda is None)


def candidates(target: Target, request: BuildRequest, tables: Tables) -> list[Build]:
    """The builds that match a request, best first, whether they fit or not."""
    wants_cpu = is_for_cpu(target, request)
    matches = [
        build
        for build in tables.builds
        if build.framework == request.framework
        and (build.cuda == "cpu") == wants_cpu
        and build.is_nightly == request.is_nightly
        and (build.is_nightly or meets(build.version, request.versions))
        and (wants_cpu or _is_cuda(build.cuda, request.cuda))
        and (bool(request.versions) or not build.is_by_hand)
    ]
    # The order of the tables is kept within a version.
    return sorted(matches, key=lambda build: (_negated(build.version), build.is_experimental))


def best_build(
    target: Target, request: BuildRequest, gpus: Sequence[TargetGpu], tables: Tables
) -> Build | None:
    """The best build that all these GPUs can use."""
    return next(
        (
            build
            for build in candidates(target, request, tables)
            if build not in request.absent and misfit(build, target, request, gpus, tables) is None
        ),
        None,
    )


def misfit(
    build: Build, target: Target, request: BuildRequest, gpus: Sequence[TargetGpu], tables: Tables
) -> str | None:
    """The first reason against a build, None if it runs."""
    if build in request.absent:
        return "not in its package index"
    reasons = [*_system_misfits(build, target, request)]
    if build.cuda != "cpu":
        reasons += _driver_misfits(build, target, tables)
        reasons += [reason for gpu in gpus for reason in gpu_misfits(build, gpu, target, tables)]
    return next(iter(reasons), None)


def unknown_to_driver(gpu: TargetGpu, target: Target, tables: Tables) -> str | None:
    """The reason why a driver supports no build for a GPU; None if it supports one."""
    generation = tables.architecture(gpu.capability)
    driver = driver_numbers(target.driver)
    if driver is None or generation is None:
        return None
    if driver < numbers(generation.first_driver):
        return (
            f"driver {target.driver} does not support {generation.name} yet; "
            f"the first that does is {generation.first_driver}"
        )
    if generation.gone_from is not None and driver >= (generation.gone_from,):
        return (
            f"driver {target.driver} no longer supports {generation.name}; "
            f"branch {generation.last_branch} is the last that does"
        )
    return None


def oldest_driver(
    build: Build, target: Target, gpus: Sequence[TargetGpu], tables: Tables
) -> str | None:
    """The oldest driver with which these GPUs can use a build; None for one without CUDA."""
    if build.cuda_major is None:
        return None
    needed = [_major_driver(build, target, tables)]
    for gpu in gpus:
        generation = tables.architecture(gpu.capability)
        needed += [generation.first_driver] if generation else []
        if not _has_code(build, gpu.capability):
            needed.append(_ptx_driver(build, target, tables))
    return max(filter(None, needed), key=numbers, default=None)


def driver_numbers(driver: str | None) -> Numbers | None:
    """A driver's version; a branch alone ("580") means its newest release."""
    parts = numbers(driver or "")
    return (*parts, 9999) if len(parts) == 1 else parts or None


def python_for(build: Build, request: BuildRequest) -> Pair:
    """The Python for a build: the requested one, else the usual one or the nearest to it."""
    oldest, newest = build.python
    return request.python or min(max(DEFAULT_PYTHON, oldest), newest)


def _system_misfits(build: Build, target: Target, request: BuildRequest) -> Iterator[str]:
    if target.os not in build.oses:
        names = ", ".join(OS_NAMES[os] for os in build.oses)
        yield f"it is for {names}, not for {OS_NAMES[target.os]}"
    if target.machine != build.machine:
        yield f"it is for {build.machine}, not for {target.machine}"
    oldest, newest = build.python
    if request.python is not None and not oldest <= request.python <= newest:
        yield (
            f"it is for Python {pair_text(oldest)} to {pair_text(newest)}, "
            f"not for {pair_text(request.python)}"
        )


def _driver_misfits(build: Build, target: Target, tables: Tables) -> Iterator[str]:
    driver = driver_numbers(target.driver)
    needed = _major_driver(build, target, tables)
    if driver is not None and needed is not None and driver < numbers(needed):
        yield f"CUDA {build.cuda_major} needs driver {needed} or newer, this is {target.driver}"
    if target.os == "wsl2" and driver is not None and driver < numbers(_FIRST_WSL_DRIVER):
        yield f"driver {target.driver} is too old for CUDA under WSL (needs {_FIRST_WSL_DRIVER})"


def gpu_misfits(build: Build, gpu: TargetGpu, target: Target, tables: Tables) -> Iterator[str]:
    """Reasons against a build on this GPU."""
    unknown = unknown_to_driver(gpu, target, tables)
    if unknown:
        yield unknown
    if gpu.kind == "jetson":
        yield f"{gpu.name} is a Jetson, which needs NVIDIA's JetPack builds"
    if target.os == "wsl2" and gpu.capability < (5, 0):
        yield "WSL does not pass through GPUs of Kepler or older"
    have = pair_text(gpu.capability)
    if build.newest is not None and gpu.capability > build.newest:
        newest = pair_text(build.newest)
        yield f"it supports compute capability {newest} and lower; this GPU has {have}"
        return
    if build.lowest is not None:
        if gpu.capability < build.lowest:
            lowest = pair_text(build.lowest)
            yield f"it needs compute capability {lowest} or higher; this GPU has {have}"
        return
    if _has_code(build, gpu.capability):
        return
    # Windows builds leave the PTX out.
    if build.ptx is None or build.ptx > gpu.capability or target.os == "windows":
        compiled_for = ", ".join(map(pair_text, build.codes))
        yield f"it has no kernels for compute capability {have}, only for {compiled_for}"
        return
    driver, needed = driver_numbers(target.driver), _ptx_driver(build, target, tables)
    if driver is not None and needed is not None and driver < numbers(needed):
        yield (
            f"it has only PTX for compute capability {have}, and compiling that needs driver "
            f"{needed} or newer, this is {target.driver}"
        )


def _has_code(build: Build, capability: Pair) -> bool:
    if build.lowest is not None:
        return build.lowest <= capability
    return any(code[0] == capability[0] and code[1] <= capability[1] for code in build.codes)


def _major_driver(build: Build, target: Target, tables: Tables) -> str | None:
    for row in tables.majors:
        if row.major == build.cuda_major:
            return row.linux if target.os == "linux" else row.windows
    return None


def _ptx_driver(build: Build, target: Target, tables: Tables) -> str | None:
    for row in tables.toolkits:
        if row.cuda == build.toolkit:
            # Since 13 the toolkit for Windows includes no driver, so the branch number counts.
            windows = row.windows or row.linux.partition(".")[0]
            return row.linux if target.os == "linux" else windows
    return None


def _is_cuda(label: str, requested: str | None) -> bool:
    # The build "cu12" of a framework that names the major version alone fits a request for "cu126".
    return (
        requested is None
        or label.startswith(requested)
        or (len(label) == 4 and requested[:4] == label)
    )


def _negated(version: str) -> tuple[int, ...]:
    return tuple(-number for number in numbers(version)) + (1,)
