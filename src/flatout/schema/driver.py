"""NVIDIA's driver and the CUDA libraries around it."""

from __future__ import annotations

import msgspec


class KernelModule(msgspec.Struct, frozen=True, kw_only=True):
    """The driver in the kernel of a native Linux.

    loaded: version of the module that runs; None with a reason where none does.
    installed: version of the module on disk for this kernel.
    user_space: version of the libraries (libcuda, libnvidia-ml).
    flavour: "open" or "proprietary". owner: the module that holds the GPU, as lspci reports.
    fabric_manager: systemd's word for the service: "active", "inactive", "failed", "not-found".
    pci_devices: of NVIDIA's display devices on the PCI bus their PCI ids, like "2684".
    is_built: the running kernel has an NVIDIA module on disk. is_blacklisted: modprobe is
    configured not to load it.
    xids: numbers of the Xid lines in the kernel's log, each once.
    """

    loaded: str | None = None
    installed: str | None = None
    user_space: str | None = None
    flavour: str | None = None
    owner: str | None = None
    packages: tuple[str, ...] | None = None
    is_secure_boot_on: bool | None = None
    is_nouveau_loaded: bool | None = None
    is_dkms_installed: bool | None = None
    fabric_manager: str | None = None
    is_persistence_on: bool | None = None
    xids: tuple[int, ...] | None = None
    pci_devices: tuple[str, ...] | None = None
    is_built: bool | None = None
    is_blacklisted: bool | None = None


class CudaLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """A library on the loader's path, in the order in which it is searched; the first wins.

    name: without version: "libcuda", "libcudnn", "libnvJitLink".
    found_by: "LD_LIBRARY_PATH", "ldconfig", or the environment's "wheel".
    is_plain: it is found by its name without a number too, as `libcuda.so`; None if unknown.
    """

    name: str
    path: str
    version: str | None = None
    found_by: str | None = None
    is_stub: bool = False
    is_plain: bool | None = None


class InstalledToolkit(msgspec.Struct, frozen=True, kw_only=True):
    """A CUDA toolkit: folder and version, and whether its nvcc is the one on PATH."""

    path: str | None = None
    version: str | None = None
    is_first: bool = False


class CudaStart(msgspec.Struct, frozen=True, kw_only=True):
    """The result of starting CUDA without any framework.

    path: the libcuda that the loader took. error: name of cuInit's error, None where it started.
    cuda: the newest CUDA that this libcuda runs.
    """

    path: str | None = None
    error: str | None = None
    cuda: str | None = None
    num_devices: int | None = None
