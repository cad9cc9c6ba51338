"""The build of torch that flatout itself uses on a machine, as arguments for pip.

Standard library only: `scripts/quickstart` uses this before anything is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flatout.compat.fit import BuildRequest, Target, TargetGpu, best_build
from flatout.compat.rows import Build, Os
from flatout.compat.solve import solve
from flatout.compat.tables import shipped_tables
from flatout.schema.versions import Pair, numbers, pair

# The build for CPUs that this release of flatout is tested and measured with. On a GPU the newest
# build that runs there is taken, because new cards need it. Without one there is nothing to gain,
# and on Linux PyPI has newer versions only with gigabytes of CUDA.
TORCH_VERSION = "2.13.0"

_OSES: dict[str, Os] = {
    "linux": "linux", "wsl": "wsl2", "windows": "windows", "macos": "macos",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TorchPlatform:
    """The platform of torch; machine as in wheel names (`x86_64`), python like (3, 12)."""

    os: Literal["linux", "wsl", "windows", "macos"]
    machine: str
    python: Pair


@dataclass(frozen=True, kw_only=True)
class TorchChoice:
    """The torch build to install, and the reason.

    requirement, index_url: for pip; index_url is None if pip's default index has the build.
    cuda: like `cu130`; None for a CPU-only build.
    usable: indices of the given GPUs that this build can use.
    disk_bytes: approximate size of the download and the installed files together.
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


def choose_build(platform: TorchPlatform, driver: str, capabilities: Sequence[str]) -> TorchChoice:
    """The best build for these GPUs with this driver; a CPU build if none can run.

    Args:
        platform: operating system, processor and Python.
        driver: the driver's version, like `581.42`; under WSL that of the Windows driver, which
            nvidia-smi calls "Driver Version".
        capabilities: compute capability of each GPU, like `8.6`, in nvidia-smi's order.

    Returns:
        A build that all GPUs can use; if there is none, the best one for the most capable GPU
        that has one.
    """
    gpus = tuple(
        TargetGpu(name=f"GPU {number}", capability=pair(text))
        for number, text in enumerate(capabilities)
    )
    target = Target(os=_OSES[platform.os], machine=platform.machine, driver=driver, gpus=gpus)
    return choose_for(target, platform.python)


def choose_for(target: Target, python: Pair, why_no_driver: str | None = None) -> TorchChoice:
    """The best build for a machine as the solver sees it; a CPU build if none can run."""
    if not target.gpus:
        return _cpu_build(target.os, "no NVIDIA GPU was found")
    if not numbers(target.driver or ""):
        reason = why_no_driver or target.driver or "it cannot be determined"
        return _cpu_build(target.os, f"the driver's version is not known: {reason}")
    request = BuildRequest(framework="torch", python=python)
    answer = solve(target, request, shipped_tables())
    build = answer.build
    if build is None:
        return _cpu_build(target.os, "; ".join(answer.why), next(iter(answer.nearest), None))
    download_bytes = build.download_bytes or 0
    return TorchChoice(
        requirement=build.requirement,
        index_url=None if build.is_in_default_index else build.index,
        cuda=build.cuda,
        download_bytes=download_bytes,
        disk_bytes=disk_bytes(download_bytes),
        why="; ".join(answer.why[: answer.num_device_reasons]),
        usable=answer.usable,
        advice=answer.advice,
    )


def cpu_build(platform: TorchPlatform, why: str, advice: str | None = None) -> TorchChoice:
    """The build without CUDA, with the reason."""
    return _cpu_build(_OSES[platform.os], why, advice)


def plain_build(platform: TorchPlatform) -> Build | None:
    """The CUDA build that PyPI has as TORCH_VERSION; None if PyPI has the CPU build.

    Source: the requirements of torch in that index; for Windows and macOS, uv's PyTorch guide.
    """
    if platform.os == "windows":
        return None
    request = BuildRequest(framework="torch", versions=f"=={TORCH_VERSION}", python=platform.python)
    gpu = TargetGpu(name="any supported one", capability=(12, 0))
    target = Target(os=_OSES[platform.os], machine=platform.machine, gpus=(gpu,))
    return best_build(target, request, (gpu,), shipped_tables())


def disk_bytes(download_bytes: int) -> int:
    """The wheels, which pip keeps, plus twice their size for the unpacked files."""
    return 3 * download_bytes


def _cpu_build(os: Os, why: str, advice: str | None = None) -> TorchChoice:
    # macOS has a single build; elsewhere the CPU build has a suffix.
    is_plain = os == "macos"
    return TorchChoice(
        requirement=f"torch=={TORCH_VERSION}" + ("" if is_plain else "+cpu"),
        index_url=None if is_plain else "https://download.pytorch.org/whl/cpu",
        cuda=None,
        # 2.13.0 for Linux and Python 3.11: a wheel of 192 MB that takes 754 MB; sympy takes 80.
        download_bytes=210_000_000,
        disk_bytes=1_200_000_000,
        why=why,
        advice=advice,
    )
