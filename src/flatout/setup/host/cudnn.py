"""cuDNN for a CUDA toolkit: for compiling against it. Frameworks include their own."""

from __future__ import annotations

from flatout.errors import UsageError
from flatout.schema.plan import PlanStep, RunProgram, Write
from flatout.schema.versions import Pair, numbers
from flatout.setup.host.host_facts import HostFacts, apt_install, apt_update
from flatout.setup.host.local_installer import (
    LocalInstaller,
    install_local,
    require_repository,
)
from flatout.setup.host.repository import cuda_line

# The packages of cuDNN 9: libraries, headers and static libraries, for each CUDA.
# Source: docs.nvidia.com/cudnn, "Installing cuDNN Backend on Linux", Package Manager Installation.
_PACKAGES = {11: "cudnn9-cuda-11", 12: "cudnn9-cuda-12", 13: "cudnn9-cuda-13"}
# Later ones do not support cards before Turing, nor CUDA 11. None supports Kepler.
# Source: cuDNN's support matrices of 9.10.2 and 9.17; immich-app/immich, Dockerfile of its
# machine-learning.
_LAST_FOR_OLD, _LAST_PACKAGE = (9, 10), "9.10.2.21-1"
_TURING, _MAXWELL = (7, 5), (5, 0)
# Repositories whose packages people use. Source: the local installers of these names, such as
# cudnn-local-repo-ubuntu2404-9.23.2, -ubuntu2204-9.10.2, -ubuntu2004-9.6.0, -debian12-9.7.0 and
# -debian11-9.0.0.
_SEEN = ("ubuntu2004", "ubuntu2204", "ubuntu2404", "debian11", "debian12")
# The repository wsl-ubuntu has no cuDNN; that of the Ubuntu inside WSL has, and drivers too.
# Source: NVIDIA/TransformerEngine#1404, FahimFBA/CUDA-WSL2-Ubuntu#4.
_LIST = "/etc/apt/sources.list.d/flatout-cudnn.list"
_NO_DRIVER_FILE = "/etc/apt/preferences.d/flatout-no-driver"
_NO_DRIVER = """\
Package: cuda-drivers* nvidia-driver* nvidia-open* nvidia-dkms* nvidia-kernel* libnvidia-compute*
Pin: release l=NVIDIA CUDA
Pin-Priority: -1
"""
_SOURCE = "'#include <cudnn.h>' 'int main() { return cudnnGetVersion() == 0; }'"


def cudnn_steps(host: HostFacts, cuda: Pair, nvcc: str) -> tuple[PlanStep, ...]:
    """cuDNN 9, after the steps that install the toolkit.

    Args:
        host: the host.
        cuda: the toolkit's version.
        nvcc: the toolkit's compiler, which proves that header and library are found.

    Raises:
        UsageError: no-plan-here.
    """
    is_old = _is_old(host)
    if host.os == "windows":
        return (_by_hand(cuda, is_old=is_old),)
    names: tuple[str, ...] = (_PACKAGES[cuda[0]],)
    if is_old and cuda[0] == 12:
        parts = ("libcudnn9-cuda-12", "libcudnn9-dev-cuda-12", "libcudnn9-headers-cuda-12")
        names = tuple(f"{name}={_LAST_PACKAGE}" for name in parts)
    is_seen = _repository_of(host) in _SEEN
    doubt = "" if is_seen else "; not verified that NVIDIA has it for this distribution"
    return (
        *_repository(host),
        apt_install(names, f"cuDNN 9 for CUDA {cuda[0]}: libraries and headers{doubt}"),
        PlanStep(
            text="verify it by compiling a program that calls cuDNN",
            action=RunProgram(argv=("sh", "-c", _compile(nvcc))),
            changes="nothing",
            safety="safe",
            undo=("true",),
        ),
    )


def local_cudnn_steps(
    host: HostFacts, cuda: Pair, installer: LocalInstaller
) -> tuple[PlanStep, ...]:
    """The same from a local installer, without a network.

    Raises:
        UsageError: no-plan-here.
    """
    require_repository(installer, _repository_of(host), host)
    if _is_old(host) and numbers(installer.version)[:2] > _LAST_FOR_OLD:
        raise UsageError(
            "no-plan-here",
            f"cuDNN {installer.version} does not support this card.",
            because="cuDNN 9.11 and later need Turing (compute capability 7.5) or newer",
            fix="download 9.10.2 from https://developer.nvidia.com/cudnn-archive",
        )
    return (
        *install_local(installer),
        apt_install(
            (_PACKAGES[cuda[0]],),
            f"cuDNN {installer.version} for CUDA {cuda[0]}: libraries and headers",
        ),
        PlanStep(
            text="check that the loader finds it",
            action=RunProgram(argv=("sh", "-c", "/sbin/ldconfig -p | grep -F libcudnn.so.9")),
            changes="nothing",
            safety="safe",
            undo=("true",),
        ),
    )


def _is_old(host: HostFacts) -> bool:
    """Whether there is a card that today's cuDNN does not support.

    Raises:
        UsageError: no-plan-here, for Kepler.
    """
    if host.cards and max(host.cards) < _MAXWELL:
        raise UsageError(
            "no-plan-here",
            "cuDNN 9 does not support this card.",
            because="it needs Maxwell (compute capability 5.0) or newer",
            fix="leave --with cudnn out; cuDNN 8.7 for CUDA 11 is at "
            "https://developer.nvidia.com/rdp/cudnn-archive",
        )
    return bool(host.cards) and min(host.cards) < _TURING


def _repository_of(host: HostFacts) -> str | None:
    """The repository that has cuDNN for a system."""
    if host.os == "wsl2" and host.family == "ubuntu" and host.release:
        return f"ubuntu{host.release.replace('.', '')}"
    return host.repository


def _repository(host: HostFacts) -> tuple[PlanStep, ...]:
    """Adds the repository with cuDNN, if the toolkit comes from another one."""
    repository = _repository_of(host) or ""
    if repository == host.repository:
        return ()
    return (
        PlanStep(
            text="keep apt from installing a driver from NVIDIA's repository here",
            action=Write(file=_NO_DRIVER_FILE, text=_NO_DRIVER),
            changes=f"{_NO_DRIVER_FILE}, a new file",
            where="wsl",
            needs_root=True,
        ),
        PlanStep(
            text=f"add NVIDIA's repository {repository}, since wsl-ubuntu has no cuDNN",
            action=Write(file=_LIST, text=cuda_line(repository)),
            changes=f"{_LIST}, a new file",
            where="wsl",
            needs_root=True,
        ),
        apt_update(),
    )


def _compile(nvcc: str) -> str:
    """A line for sh."""
    return (
        f"d=$(mktemp -d) && printf '%s\\n' {_SOURCE} >$d/version.cu && "
        f"{nvcc} $d/version.cu -o $d/version -lcudnn; code=$?; rm -rf $d; exit $code"
    )


def _by_hand(cuda: Pair, *, is_old: bool) -> PlanStep:
    page = "https://developer.nvidia.com/cudnn-" + ("archive" if is_old else "downloads")
    which = "cuDNN 9.10.2, the last for this card," if is_old else "cuDNN 9"
    return PlanStep(
        text=f"install {which} for CUDA {cuda[0]}, from {page}",
        action=RunProgram(argv=("explorer.exe", page)),
        changes=r"C:\Program Files\NVIDIA\CUDNN; winget has no cuDNN",
        where="windows",
        needs_root=True,
        safety="manual",
    )
