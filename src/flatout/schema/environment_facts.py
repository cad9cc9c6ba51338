"""The surroundings of a training: disks, environments, containers, network."""

from __future__ import annotations

import msgspec

from flatout.schema.framework import Framework


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """A file system that matters. role: "project", "data", "tmp", "home" or "shm".

    is_windows_drive: a drive of Windows seen from WSL (9p or virtiofs below /mnt).
    small_files_bytes_s, stream_bytes_s: what reading gave when it was measured.
    """

    role: str
    kind: str | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    free_inodes: int | None = None
    is_windows_drive: bool | None = None
    is_read_only: bool | None = None
    has_metadata: bool | None = None
    small_files_bytes_s: float | None = None
    stream_bytes_s: float | None = None


class Unmet(msgspec.Struct, frozen=True, kw_only=True):
    """A package that asks for another version of one next to it: `needs` is "torch==2.9.1"."""

    package: str
    needs: str
    has: str


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """A Python environment, by its metadata.

    kind: "venv", "conda", "uv" or "system". can_use_gpu: a real operation ran on the GPU, asked in
    a child, and only where it was requested.
    unmet: versions that do not go together, of the packages that are looked up. mixed: packages of
    which conda and pip have each installed a version. outside: packages that come from the user's
    folder or PYTHONPATH, although this is an environment of its own.
    is_on_windows_drive: under WSL, it is below /mnt/<drive>.
    """

    python: str
    version: str | None = None
    kind: str | None = None
    frameworks: tuple[Framework, ...] = ()
    has_user_site: bool | None = None
    is_externally_managed: bool | None = None
    unmet: tuple[Unmet, ...] = ()
    mixed: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    is_on_windows_drive: bool | None = None
    can_use_gpu: bool | None = None
    problem: str | None = None


class ContainerEngine(msgspec.Struct, frozen=True, kw_only=True):
    """Docker or Podman. name: "docker", "docker-desktop" or "podman".

    runtimes: names the daemon knows. cdi_devices: what the CDI specification offers.
    no_cgroups: the setting in the NVIDIA runtime's configuration. compose: version of its plugin.
    """

    name: str
    version: str | None = None
    is_running: bool | None = None
    is_permitted: bool | None = None
    is_snap: bool | None = None
    is_rootless: bool | None = None
    runtimes: tuple[str, ...] | None = None
    toolkit: str | None = None
    cdi_devices: tuple[str, ...] | None = None
    cdi_driver: str | None = None
    no_cgroups: bool | None = None
    compose: str | None = None


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """Names and ways out. has_proxy: a proxy is set; no proxy's address is kept.

    is_own_name_loopback: the machine's own name leads to 127.*, which other machines cannot reach.
    busy_ports: of those that training uses. has_infiniband: an InfiniBand or RoCE device is here.
    """

    can_resolve: bool | None = None
    is_own_name_loopback: bool | None = None
    has_proxy: bool | None = None
    clock_skew_s: float | None = None
    busy_ports: tuple[int, ...] | None = None
    has_infiniband: bool | None = None


class ProcessLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a process (ulimit); None with a reason if there is no limit.

    locked_bytes: of memory that cannot be swapped, which RDMA needs.
    """

    open_files: int | None = None
    processes: int | None = None
    locked_bytes: int | None = None


class InstalledPackages(msgspec.Struct, frozen=True, kw_only=True):
    """The report of the distribution's package manager (dpkg).

    num_unfinished: packages that are half installed or half configured.
    has_nvidia_source: apt asks NVIDIA's repository; is_nvidia_source_signed: by a key that is named
    for it, or by the package cuda-keyring.
    distro_toolkit: version of the distribution's own nvidia-cuda-toolkit, None where it is not
    installed.
    """

    num_unfinished: int | None = None
    has_nvidia_source: bool | None = None
    is_nvidia_source_signed: bool | None = None
    distro_toolkit: str | None = None
