"""NVIDIA's package repositories, with their current keys."""

from __future__ import annotations

from flatout.schema.plan import Exists, PlanStep, RunProgram, Write
from flatout.setup.host.host_facts import apt_install, download

_CUDA = "https://developer.download.nvidia.com/compute/cuda/repos"
# Contains the key 3BF863CC and the repository list; the previous key, 7FA2AF80, is withdrawn.
_KEYRING = "cuda-keyring_1.1-1_all.deb"
_CUDA_KEY = "/usr/share/keyrings/cuda-archive-keyring.gpg"

_CONTAINER = "https://nvidia.github.io/libnvidia-container"
# With this extension apt reads the key as text, so that it needs no conversion.
_CONTAINER_KEY = "/usr/share/keyrings/nvidia-container-toolkit-keyring.asc"
_CONTAINER_LIST = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"


def cuda_repository(repository: str) -> tuple[PlanStep, ...]:
    """The CUDA repository for a system, such as "wsl-ubuntu" or "debian13"."""
    # Not in /tmp, where other users could replace it.
    file = f"/var/cache/apt/archives/{_KEYRING}"
    return (
        apt_install(("curl",), "used for downloads"),
        download(f"{_CUDA}/{repository}/x86_64/{_KEYRING}", file, "NVIDIA's key package"),
        PlanStep(
            text=f"add NVIDIA's repository {repository}",
            action=RunProgram(argv=("dpkg", "--install", file)),
            changes=f"the package cuda-keyring: a key and a list of packages ({repository})",
            needs_root=True,
            done_if=Exists(path=_CUDA_KEY),
            undo=("apt-get", "remove", "--yes", "cuda-keyring"),
        ),
    )


def cuda_line(repository: str) -> str:
    """A CUDA repository as a line for apt; all of them share one key."""
    return f"deb [signed-by={_CUDA_KEY}] {_CUDA}/{repository}/x86_64/ /\n"


def container_repository() -> tuple[PlanStep, ...]:
    """The repository of the container toolkit, the same for all distributions with apt."""
    line = f"deb [signed-by={_CONTAINER_KEY}] {_CONTAINER}/stable/deb/$(ARCH) /\n"
    return (
        apt_install(("curl",), "used for downloads"),
        download(f"{_CONTAINER}/gpgkey", _CONTAINER_KEY, "the repository's key"),
        PlanStep(
            text="add NVIDIA's container toolkit repository",
            action=Write(file=_CONTAINER_LIST, text=line),
            changes=f"{_CONTAINER_LIST}, a new file",
            needs_root=True,
        ),
    )
