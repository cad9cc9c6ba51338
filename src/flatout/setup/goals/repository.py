"""NVIDIA's package repositories, with the keys that hold today."""

from __future__ import annotations

from flatout.nouns.plan import Exists, Run, Step, Write
from flatout.setup.goals.place import apt_install, download

_CUDA = "https://developer.download.nvidia.com/compute/cuda/repos"
# Brings the key 3BF863CC and the list of the repository; the key before it, 7FA2AF80, is withdrawn.
_KEYRING = "cuda-keyring_1.1-1_all.deb"
_CUDA_KEY = "/usr/share/keyrings/cuda-archive-keyring.gpg"

_CONTAINER = "https://nvidia.github.io/libnvidia-container"
# apt reads a key as text too, if its name ends so; then nothing has to convert it.
_CONTAINER_KEY = "/usr/share/keyrings/nvidia-container-toolkit-keyring.asc"
_CONTAINER_LIST = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"


def cuda_repository(repository: str) -> tuple[Step, ...]:
    """The repository of CUDA for a system, "wsl-ubuntu" or "debian13" say."""
    # Not in /tmp, where others could put another in its place.
    file = f"/var/cache/apt/archives/{_KEYRING}"
    return (
        apt_install(("curl",), "the program that downloads"),
        download(f"{_CUDA}/{repository}/x86_64/{_KEYRING}", file, "NVIDIA's key package"),
        Step(
            text=f"add NVIDIA's repository {repository}",
            action=Run(argv=("dpkg", "--install", file)),
            changes=f"the package cuda-keyring: a key and a list of packages ({repository})",
            needs_root=True,
            done_if=Exists(path=_CUDA_KEY),
            undo=("apt-get", "remove", "--yes", "cuda-keyring"),
        ),
    )


def cuda_line(repository: str) -> str:
    """A repository of CUDA as a line for apt; its key is there where any of them was added."""
    return f"deb [signed-by={_CUDA_KEY}] {_CUDA}/{repository}/x86_64/ /\n"


def container_repository() -> tuple[Step, ...]:
    """The repository of the container toolkit, the same for all that apt looks after."""
    line = f"deb [signed-by={_CONTAINER_KEY}] {_CONTAINER}/stable/deb/$(ARCH) /\n"
    return (
        apt_install(("curl",), "the program that downloads"),
        download(f"{_CONTAINER}/gpgkey", _CONTAINER_KEY, "the repository's key"),
        Step(
            text="add NVIDIA's repository of the container toolkit",
            action=Write(file=_CONTAINER_LIST, text=line),
            changes=f"{_CONTAINER_LIST} is there",
            needs_root=True,
        ),
    )
