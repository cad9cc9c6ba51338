"""NVIDIA's local installers: a .deb with a repository in it, for machines without a network."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from flatout.errors import UsageError
from flatout.schema.plan import PlanStep, Prints, RunProgram, Write
from flatout.schema.versions import Pair
from flatout.setup.host.host_facts import HostFacts, apt_update

# Source: developer.nvidia.com/cuda-downloads and cudnn-downloads, installer type "deb (local)":
# cuda-repo-ubuntu2404-13-0-local_13.0.2-580.95.05-1_amd64.deb, cuda-repo-wsl-ubuntu-12-8-local_...,
# cuda-repo-debian12-12-9-local_..., cudnn-local-repo-ubuntu2404-9.23.2_1.0-1_amd64.deb.
_CUDA = re.compile(r"cuda-repo-([a-z]+\d+|wsl-ubuntu)-(\d+)-(\d+)-local")
_CUDNN = re.compile(r"cudnn-local-repo-([a-z]+\d+)-(\d+(?:\.\d+)+)")
# Earlier ones do not contain the key file, and their key, 7FA2AF80, is withdrawn.
_FIRST_WITH_KEY = (11, 7)
_PIN_FILE = "/etc/apt/preferences.d/cuda-repository-pin-600"
# As NVIDIA's cuda-ubuntu2204.pin has it: packages of the same names in Ubuntu's own repository,
# which is usually newer, must not be mixed with these.
_PIN = """\
Package: nsight-compute
Pin: origin *ubuntu.com*
Pin-Priority: -1

Package: nsight-systems
Pin: origin *ubuntu.com*
Pin-Priority: -1

Package: *
Pin: release l=NVIDIA CUDA
Pin-Priority: 600
"""


class LocalInstaller(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of such a file.

    package: its name, which is also that of its folder in /var. repository: "ubuntu2404" or its
    like. cuda: the toolkit in it. version: of cuDNN.
    """

    file: str
    package: str
    kind: Literal["cuda", "cudnn"]
    repository: str
    cuda: Pair | None = None
    version: str = ""


def local_installer(file: str, package: str) -> LocalInstaller:
    """A file by the name of the package in it.

    Raises:
        UsageError: no-plan-here.
    """
    if match := _CUDNN.fullmatch(package):
        return LocalInstaller(
            file=file, package=package, kind="cudnn", repository=match[1], version=match[2]
        )
    match = _CUDA.fullmatch(package)
    if match is None:
        raise UsageError(
            "no-plan-here",
            f"{file} is not a local installer of CUDA or cuDNN: it contains the package {package}.",
            fix='download the "deb (local)" from https://developer.nvidia.com/cuda-downloads',
        )
    cuda = (int(match[2]), int(match[3]))
    if cuda < _FIRST_WITH_KEY:
        raise UsageError(
            "no-plan-here",
            f"{file} is too old to be installed safely.",
            because="local installers before CUDA 11.7 are signed with a key that NVIDIA withdrew",
            fix="flatout setup --toolkit --cuda 11.8, from NVIDIA's repository",
        )
    return LocalInstaller(file=file, package=package, kind="cuda", repository=match[1], cuda=cuda)


def require_repository(installer: LocalInstaller, required: str | None, host: HostFacts) -> None:
    """Refuses an installer for another system.

    Raises:
        UsageError: no-plan-here.
    """
    if installer.repository == required:
        return
    where = f"{required} is needed here" if required else f"this is {host.distribution or host.os}"
    raise UsageError(
        "no-plan-here",
        f"{installer.file} is for {installer.repository}.",
        because=where,
        fix="download the one for this system, or leave --from out",
    )


def install_local(installer: LocalInstaller) -> tuple[PlanStep, ...]:
    """Adds the repository in the file and its key, and keeps Ubuntu's packages out."""
    package = installer.package
    is_ubuntu = "ubuntu" in installer.repository
    pin = PlanStep(
        text="let apt prefer NVIDIA's packages over Ubuntu's of the same name",
        action=Write(file=_PIN_FILE, text=_PIN),
        changes=f"{_PIN_FILE}, a new file",
        needs_root=True,
    )
    folder = f"/var/{package}"
    keys = f"{folder}/{installer.kind}-*-keyring.gpg"
    compare = (
        f'for key in {keys}; do cmp -s "$key" "/usr/share/keyrings/${{key##*/}}" || exit 1; done'
    )
    remove = f'for key in {keys}; do rm "/usr/share/keyrings/${{key##*/}}"; done'
    return (
        *((pin,) if installer.kind == "cuda" and is_ubuntu else ()),
        PlanStep(
            text=f"add the repository in {installer.file}",
            action=RunProgram(argv=("dpkg", "--install", installer.file), time_limit_s=1800.0),
            changes=f"the package {package}: {folder} with its packages, and a list for apt",
            needs_root=True,
            done_if=Prints(
                argv=("dpkg-query", "--show", "--showformat=${db:Status-Abbrev}", package),
                text="ii ",
            ),
            undo=("apt-get", "purge", "--yes", package),
        ),
        PlanStep(
            text="trust the repository's signing key",
            action=RunProgram(argv=("sh", "-c", f"cp {keys} /usr/share/keyrings/")),
            changes=f"the key of {package} in /usr/share/keyrings",
            needs_root=True,
            done_if=Prints(argv=("sh", "-c", compare)),
            undo=("sh", "-c", remove),
        ),
        apt_update(),
    )
