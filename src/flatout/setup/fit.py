"""Whether a build runs on a machine, and what speaks against it.

A build runs on a GPU of compute capability X.Y if it holds machine code for X.Z with Z <= Y, or PTX
of any capability <= X.Y, which the driver compiles at the first start; that takes a driver no older
than the toolkit that the PTX was made with. Else the oldest driver of the CUDA's major version will
do ("minor version compatibility").
Source: CUDA C++ programming guide, sections on compute capability and on compatibility.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from flatout.setup.rows import Build, Os, Pair, Tables
from flatout.setup.versions import Numbers, meets, numbers, pair_text

OS_NAMES: dict[Os, str] = {
    "linux": "Linux", "wsl2": "WSL 2", "windows": "native Windows", "macos": "macOS",
}  # fmt: skip
# All four frameworks have builds for it.
DEFAULT_PYTHON: Pair = (3, 12)
# Source: dask/distributed issue 5343.
_FIRST_WSL_DRIVER = "465"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU to be used. kind: as in `Card`."""

    name: str
    capability: Pair
    kind: Literal["desktop", "datacentre", "jetson"] = "desktop"


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a framework is to run.

    machine: its processor, as wheels spell it. driver: under WSL, Windows' number; None: not known.
    why_no_gpu: where there is none to be used, why.
    """

    os: Os
    machine: str = "x86_64"
    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()
    why_no_gpu: str | None = None


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is to be installed. versions: like ">=2.8"; cuda: like "cu126", or "cu12" for any 12.

    absent: builds that the index was seen not to hold.
    """

    framework: str
    versions: str = ""
    python: Pair | None = None
    cuda: str | None = None
    is_cpu: bool = False
    is_nightly: bool = False
    absent: tuple[Build, ...] = ()


def is_for_cpu(target: Target, wish: Wish) -> bool:
    """Whether the build without CUDA is wanted. One with it may be asked for without a GPU."""
    return wish.is_cpu or (not target.gpus and wish.cuda is None)


def candidates(target: Target, wish: Wish, tables: Tables) -> list[Build]:
    """The builds that answer to a wish, the best first, whether they fit or not."""
    wants_cpu = is_for_cpu(target, wish)
    found = [
        one
        for one in tables.builds
        if one.framework == wish.framework
        and (one.cuda == "cpu") == wants_cpu
        and one.is_nightly == wish.is_nightly
        and (one.is_nightly or meets(one.version, wish.versions))
        and (wants_cpu or _is_cuda(one.cuda, wish.cuda))
        and (bool(wish.versions) or not one.is_by_hand)
    ]
    # The order of the tables is kept within a version.
    return sorted(found, key=lambda one: (_negated(one.version), one.is_experimental))


def best_build(target: Target, wish: Wish, gpus: Sequence[Gpu], tables: Tables) -> Build | None:
    """The best build that all these GPUs can use."""
    return next(
        (
            one
            for one in candidates(target, wish, tables)
            if one not in wish.absent and misfit(one, target, wish, gpus, tables) is None
        ),
        None,
    )


def misfit(
    build: Build, target: Target, wish: Wish, gpus: Sequence[Gpu], tables: Tables
) -> str | None:
    """What speaks against a build first, None where it runs."""
    if build in wish.absent:
        return "its index does not have it"
    reasons = [*_place_misfits(build, target, wish)]
    if build.cuda != "cpu":
        reasons += _driver_misfits(build, target, tables)
        reasons += [reason for gpu in gpus for reason in gpu_misfits(build, gpu, target, tables)]
    return next(iter(reasons), None)


def unknown_to_driver(gpu: Gpu, target: Target, tables: Tables) -> str | None:
    """Why a driver does nothing for a GPU, whatever the build; None where it does."""
    generation = tables.architecture(gpu.capability)
    driver = driver_numbers(target.driver)
    if driver is None or generation is None:
        return None
    if driver < numbers(generation.first_driver):
        return (
            f"driver {target.driver} does not know {generation.name} yet; "
            f"the first that does is {generation.first_driver}"
        )
    if generation.gone_from is not None and driver >= (generation.gone_from,):
        return (
            f"driver {target.driver} no longer knows {generation.name}; "
            f"branch {generation.last_branch} is the last that does"
        )
    return None


def oldest_driver(build: Build, target: Target, gpus: Sequence[Gpu], tables: Tables) -> str | None:
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
    """A driver's version; of a branch alone ("580") its newest release is meant."""
    parts = numbers(driver or "")
    return (*parts, 9999) if len(parts) == 1 else parts or None


def python_for(build: Build, wish: Wish) -> Pair:
    """The Python for a build: the one asked for, else the usual one or what is nearest to it."""
    oldest, newest = build.python
    return wish.python or min(max(DEFAULT_PYTHON, oldest), newest)


def _place_misfits(build: Build, target: Target, wish: Wish) -> Iterator[str]:
    if target.os not in build.oses:
        names = ", ".join(OS_NAMES[os] for os in build.oses)
        yield f"it is for {names}, not for {OS_NAMES[target.os]}"
    if target.machine != build.machine:
        yield f"it is for {build.machine}, not for {target.machine}"
    oldest, newest = build.python
    if wish.python is not None and not oldest <= wish.python <= newest:
        yield (
            f"it is for Python {pair_text(oldest)} to {pair_text(newest)}, "
            f"not for {pair_text(wish.python)}"
        )


def _driver_misfits(build: Build, target: Target, tables: Tables) -> Iterator[str]:
    driver = driver_numbers(target.driver)
    needed = _major_driver(build, target, tables)
    if driver is not None and needed is not None and driver < numbers(needed):
        yield f"CUDA {build.cuda_major} needs driver {needed} or newer, this is {target.driver}"
    if target.os == "wsl2" and driver is not None and driver < numbers(_FIRST_WSL_DRIVER):
        yield f"driver {target.driver} has no CUDA for WSL"


def gpu_misfits(build: Build, gpu: Gpu, target: Target, tables: Tables) -> Iterator[str]:
    """What of a GPU speaks against a build."""
    unknown = unknown_to_driver(gpu, target, tables)
    if unknown:
        yield unknown
    if gpu.kind == "jetson":
        yield f"{gpu.name} has a driver of its own; the usual builds do not run on it"
    if target.os == "wsl2" and gpu.capability < (5, 0):
        yield "WSL passes no GPU of Kepler or older through"
    have = pair_text(gpu.capability)
    if build.newest is not None and gpu.capability > build.newest:
        yield f"it runs on compute capability {pair_text(build.newest)} and older, this is {have}"
        return
    if build.lowest is not None:
        if gpu.capability < build.lowest:
            yield f"it begins at compute capability {pair_text(build.lowest)}, this is {have}"
        return
    if _has_code(build, gpu.capability):
        return
    # Windows builds leave the PTX out.
    if build.ptx is None or build.ptx > gpu.capability or target.os == "windows":
        held = ", ".join(map(pair_text, build.codes))
        yield f"it holds no code for compute capability {have}, only for {held}"
        return
    driver, needed = driver_numbers(target.driver), _ptx_driver(build, target, tables)
    if driver is not None and needed is not None and driver < numbers(needed):
        yield (
            f"it has only PTX for compute capability {have}, and to compile that takes driver "
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
            # From 13 on no driver comes with Windows' toolkit: the branch's number counts.
            windows = row.windows or row.linux.partition(".")[0]
            return row.linux if target.os == "linux" else windows
    return None


def _is_cuda(label: str, wanted: str | None) -> bool:
    return wanted is None or label.startswith(wanted) or (len(label) == 4 and wanted[:4] == label)


def _negated(version: str) -> tuple[int, ...]:
    return tuple(-number for number in numbers(version)) + (1,)
