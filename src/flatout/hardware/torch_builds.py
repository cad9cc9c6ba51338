"""Which build of torch a machine's driver and GPUs can run.

A build runs on a GPU of compute capability X.Y if it holds machine code for X.Z with Z <= Y, or
PTX of any capability <= X.Y, which the driver compiles at the first start. The driver must be at
least what the build's CUDA major version asks for. Only the standard library is used here: the
first script that a person runs asks this before anything is installed.

Capabilities are pairs: (8, 6) for 8.6. Everything was read on 2026-11-21.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Capability = tuple[int, int]

# The version that this release of flatout is tested with, on CPUs and, where it exists, on GPUs.
TORCH_VERSION = "2.13.0"

_INDEX = "https://download.pytorch.org/whl/"
_MATRIX = "pytorch/pytorch:RELEASE.md, pull requests 164471, 175253, 182849, 187075, 194367, 197555"
_BUILDER = "pytorch/builder@f4cfb70:manywheel/build_cuda.sh"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where torch is to run; machine as the wheels spell it (`x86_64`), python like (3, 12)."""

    os: Literal["linux", "wsl", "windows", "macos"]
    machine: str
    python: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class TorchBuild:
    """One published build. codes: machine code in it; ptx: PTX in it (Linux only).

    download_bytes: with all it depends on, rounded; wheels of single Python versions differ.
    """

    torch: str
    cuda: str
    machine: str
    newest_python: tuple[int, int]
    codes: tuple[Capability, ...]
    ptx: Capability | None = None
    download_bytes: int
    source: str

    @property
    def disk_bytes(self) -> int:
        """The wheels, which pip keeps, and twice their size once unpacked."""
        return 3 * self.download_bytes


@dataclass(frozen=True, kw_only=True)
class TorchChoice:
    """What to install, and why.

    requirement, index_url: for pip; index_url is None where pip's own index has the build.
    cuda: like `cu130`; None is a build for the CPU alone.
    usable: positions, among the GPUs asked about, of those that this build can use.
    disk_bytes: what the download and the installed files take together, roughly.
    advice: what would make a better build possible, or None.
    """

    requirement: str
    index_url: str | None
    cuda: str | None
    download_bytes: int
    disk_bytes: int
    why: str
    usable: tuple[int, ...] = ()
    advice: str | None = None


def _capabilities(*codes: int) -> tuple[Capability, ...]:
    return tuple(divmod(code, 10) for code in codes)


# Oldest drivers of each CUDA major version: (Linux, Windows and WSL). Builds of one major version
# run on all of them ("minor version compatibility").
# docs.nvidia.com/cuda/cuda-toolkit-release-notes, table 2; for 13 under Windows, where NVIDIA
# prints none, astral-sh/uv:crates/uv-torch/src/backend.rs.
_OLDEST_DRIVERS = {13: ("580", "580"), 12: ("525.60.13", "528.33"), 11: ("450.80.02", "452.39")}

# Best first: where several run, the first is taken.
BUILDS = (
    TorchBuild(
        torch=TORCH_VERSION,
        cuda="cu130",
        machine="x86_64",
        newest_python=(3, 15),
        codes=_capabilities(75, 80, 86, 90, 100, 120),
        ptx=(12, 0),
        download_bytes=2_500_000_000,
        source=_MATRIX,
    ),
    TorchBuild(
        torch=TORCH_VERSION,
        cuda="cu126",
        machine="x86_64",
        newest_python=(3, 15),
        codes=_capabilities(50, 60, 70, 75, 80, 86, 90),
        download_bytes=3_000_000_000,
        source=_MATRIX,
    ),
    # Blackwell under a driver before 580. From 2.12 on there is no CUDA 12.8.
    TorchBuild(
        torch="2.11.0",
        cuda="cu128",
        machine="x86_64",
        newest_python=(3, 14),
        codes=_capabilities(75, 80, 86, 90, 100, 120),
        download_bytes=4_000_000_000,
        source="pytorch/pytorch pull request 175253",
    ),
    TorchBuild(
        torch="2.7.1",
        cuda="cu118",
        machine="x86_64",
        newest_python=(3, 13),
        codes=_capabilities(50, 60, 70, 75, 80, 86, 90),
        download_bytes=3_000_000_000,
        source=f"{_BUILDER} for 2.5; read as unchanged for 2.7, which is not proved",
    ),
    TorchBuild(
        torch="2.5.1",
        cuda="cu118",
        machine="x86_64",
        newest_python=(3, 12),
        codes=_capabilities(37, 50, 60, 70, 75, 80, 86, 90),
        download_bytes=2_700_000_000,
        source=_BUILDER,
    ),
    TorchBuild(
        torch=TORCH_VERSION,
        cuda="cu130",
        machine="aarch64",
        newest_python=(3, 15),
        codes=_capabilities(80, 90, 100, 110, 120),
        ptx=(12, 0),
        download_bytes=2_500_000_000,
        source=_MATRIX,
    ),
    TorchBuild(
        torch=TORCH_VERSION,
        cuda="cu126",
        machine="aarch64",
        newest_python=(3, 15),
        codes=_capabilities(80, 90),
        download_bytes=3_000_000_000,
        source=_MATRIX,
    ),
    TorchBuild(
        torch="2.11.0",
        cuda="cu128",
        machine="aarch64",
        newest_python=(3, 14),
        codes=_capabilities(80, 90, 100, 120),
        download_bytes=4_000_000_000,
        source="pytorch/pytorch pull request 175253",
    ),
)


def choose_build(place: Place, driver: str, capabilities: Sequence[str]) -> TorchChoice:
    """The best build for these GPUs under this driver; one for the CPU where none can run.

    Args:
        place: operating system, processor and Python.
        driver: the driver's version, like `581.42`; under WSL that of the Windows driver, which
            nvidia-smi calls "Driver Version".
        capabilities: compute capability of each GPU, like `8.6`, in nvidia-smi's order.

    Returns:
        A build that all GPUs can use; if there is none, the best one for the most capable GPU
        that has one.
    """
    gpus = [_capability(text) for text in capabilities]
    if not gpus:
        return cpu_build(place, "no NVIDIA GPU was found")
    build = _best_build(place, driver, gpus)
    for gpu in sorted(gpus, reverse=True):
        build = build or _best_build(place, driver, [gpu])
    if build is None:
        best = max(gpus)
        return cpu_build(place, _why_none(place, driver, best), _better_driver(place, [best], None))
    usable = tuple(i for i, gpu in enumerate(gpus) if _runs_on(build, place, gpu))
    why = f"driver {driver} and compute capability {_text(gpus, usable)} can run {build.cuda}"
    if len(usable) < len(gpus):
        others = [i for i in range(len(gpus)) if i not in usable]
        why += f"; no build runs on {_text(gpus, others)} as well"
    return TorchChoice(
        requirement=f"torch=={build.torch}+{build.cuda}",
        index_url=_INDEX + build.cuda,
        cuda=build.cuda,
        download_bytes=build.download_bytes,
        disk_bytes=build.disk_bytes,
        why=why,
        usable=usable,
        advice=_better_driver(place, [gpus[i] for i in usable], build),
    )


def cpu_build(place: Place, why: str, advice: str | None = None) -> TorchChoice:
    """The build without CUDA, and why it was taken."""
    # macOS has one build for all; elsewhere the CPU's is named by its suffix.
    is_plain = place.os == "macos"
    return TorchChoice(
        requirement=f"torch=={TORCH_VERSION}" + ("" if is_plain else "+cpu"),
        index_url=None if is_plain else f"{_INDEX}cpu",
        cuda=None,
        # 2.13.0 for Linux and Python 3.11: a wheel of 192 MB that takes 754 MB; sympy takes 80.
        download_bytes=210_000_000,
        disk_bytes=1_200_000_000,
        why=why,
        advice=advice,
    )


def plain_build(place: Place) -> TorchBuild | None:
    """The CUDA build that Python's own package index has as TORCH_VERSION; None: it has the CPU's.

    Source: the requirements of torch in that index; for Windows and macOS, uv's PyTorch guide.
    """
    return None if place.os == "windows" else _best_build(place, None, [(12, 0)])


def _best_build(place: Place, driver: str | None, gpus: Sequence[Capability]) -> TorchBuild | None:
    for build in BUILDS:
        if (
            _is_for(build, place)
            and (driver is None or _version(driver) >= _version(_oldest_driver(build, place)))
            and all(_runs_on(build, place, gpu) for gpu in gpus)
        ):
            return build
    return None


def _is_for(build: TorchBuild, place: Place) -> bool:
    has_cuda = place.os in ("linux", "wsl") or (place.os == "windows" and place.machine == "x86_64")
    return has_cuda and build.machine == place.machine and place.python <= build.newest_python


def _runs_on(build: TorchBuild, place: Place, gpu: Capability) -> bool:
    has_ptx = build.ptx is not None and build.ptx <= gpu and place.os != "windows"
    return has_ptx or any(code[0] == gpu[0] and code[1] <= gpu[1] for code in build.codes)


def _oldest_driver(build: TorchBuild, place: Place) -> str:
    linux, windows = _OLDEST_DRIVERS[int(build.cuda[2:-1])]
    return linux if place.os == "linux" else windows


def _better_driver(
    place: Place, gpus: Sequence[Capability], build: TorchBuild | None
) -> str | None:
    better = _best_build(place, None, gpus)
    if better is None or better == build:
        return None
    where = "Windows driver" if place.os == "wsl" else "driver"
    return (
        f"with {where} {_oldest_driver(better, place)} or newer: torch {better.torch}+{better.cuda}"
    )


def _why_none(place: Place, driver: str, gpu: Capability) -> str:
    published = [build for build in BUILDS if _is_for(build, place)]
    if not published:
        python = ".".join(map(str, place.python))
        return f"no CUDA build is published for {place.os}, {place.machine} and Python {python}"
    fitting = [build for build in published if _runs_on(build, place, gpu)]
    if not fitting:
        return f"no build holds code for compute capability {gpu[0]}.{gpu[1]}"
    oldest = min((_oldest_driver(build, place) for build in fitting), key=_version)
    return f"driver {driver} is older than {oldest}, the oldest that this GPU's builds can run on"


def _capability(text: str) -> Capability:
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _text(gpus: Sequence[Capability], positions: Sequence[int]) -> str:
    found = sorted({gpus[i] for i in positions})
    return ", ".join(f"{major}.{minor}" for major, minor in found)
