"""The CUDA libraries that the loader would find, in the order in which it looks for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from flatout.schema.driver import CudaLibrary
from flatout.system.host_system import System

# ldconfig only prints a cache file; if it hangs, the examination goes on without it.
TIMEOUT_S = 1.0

NAMES = (
    "libcuda", "libnvidia-ml", "libcudart", "libcublas", "libcublasLt", "libcudnn", "libnvJitLink",
    "libnccl", "libcusparse", "libcufft", "libcupti",
)  # fmt: skip
_WINDOWS_NAMES = {
    "nvcuda": "libcuda", "nvml": "libnvidia-ml", "cudart64": "libcudart", "cublas64": "libcublas",
    "cublasLt64": "libcublasLt", "cudnn64": "libcudnn", "nvJitLink": "libnvJitLink",
}  # fmt: skip


def probe_libraries(
    system: System, packages_folder: str | None
) -> tuple[tuple[CudaLibrary, ...], dict[str, str]]:
    """The libraries, the one that wins first, and why some are not known.

    Args:
        system: the machine.
        packages_folder: the environment's site-packages, whose wheels bring libraries along.
    """
    if system.platform == "win32":
        return tuple(_on_path(system)), {}
    listed = [folder for folder in system.environment.get("LD_LIBRARY_PATH", "").split(":")
              if folder]  # fmt: skip
    libraries = list(_in_folders(system, listed, "LD_LIBRARY_PATH"))
    if packages_folder:
        # A wheel's RUNPATH comes after LD_LIBRARY_PATH, before what the system offers.
        libraries += _in_folders(system, _wheel_folders(system, packages_folder), "wheel")
    program = next(
        (path for path in ("/sbin/ldconfig", "/usr/sbin/ldconfig") if system.exists(path)), None
    )
    if program is None:
        return tuple(libraries), {"libraries": "ldconfig not found: its libraries are missing here"}
    done = system.run([program, "-p"], TIMEOUT_S)
    libraries += _with_versions(system, parse_ldconfig(done.stdout))
    unread = {} if done.exit_code == 0 else {"libraries": f"ldconfig: {done.reason or 'it failed'}"}
    return tuple(libraries), unread


def parse_ldconfig(text: str) -> list[CudaLibrary]:
    """The libraries in what `ldconfig -p` prints; those for other processors are passed over."""
    rows = re.finditer(
        r"^\t(lib[\w-]+)\.so(?:\.([\d.]+))? \(([^)]*)\) => (/\S+)$", text, re.MULTILINE
    )
    return [
        CudaLibrary(name=row[1], path=row[4], version=row[2], found_by="ldconfig",
                    is_stub="/stubs/" in row[4])
        for row in rows
        if row[1] in NAMES and not re.search(r"\b(?:libx32|i386)\b", row[3]) and "64" in row[3]
    ]  # fmt: skip


def _with_versions(system: System, libraries: Sequence[CudaLibrary]) -> Iterator[CudaLibrary]:
    """Each once a folder, with the whole version that the file next to it bears.

    Only the cache shows whether a name without a number is found: WSL's folder holds a
    `libcuda.so`, but no link, and ldconfig passes over it.
    """
    folders = dict.fromkeys(
        (library.path.rpartition("/")[0], library.name) for library in libraries
    )
    plain = {
        (library.path.rpartition("/")[0], library.name)
        for library in libraries
        if library.version is None
    }
    for folder, name in folders:
        for library in _in_folder(system, folder, "ldconfig", (name,)):
            yield msgspec.structs.replace(library, is_plain=(folder, name) in plain)


def _in_folders(system: System, folders: Iterable[str], found_by: str) -> Iterator[CudaLibrary]:
    for folder in dict.fromkeys(folder.rstrip("/") for folder in folders):
        yield from _in_folder(system, folder, found_by, NAMES)


def _in_folder(
    system: System, folder: str, found_by: str, names: Sequence[str]
) -> Iterator[CudaLibrary]:
    versions: dict[str, list[str]] = {}
    for file in system.list_folder(folder):
        match = re.fullmatch(r"(lib[\w-]+)\.so(?:\.([\d.]+))?", file)
        if match and match[1] in names:
            versions.setdefault(match[1], []).append(match[2] or "")
    for name in names:
        if name in versions:
            # libcudart.so.12 is a link to libcudart.so.12.8.90, whose name says more.
            shortest = min((version for version in versions[name] if version), key=len, default="")
            longest = max(versions[name], key=len)
            path = f"{folder}/{name}.so{'.' if shortest else ''}{shortest}"
            yield CudaLibrary(
                name=name, path=path, version=longest or None, found_by=found_by,
                is_stub=folder.endswith("/stubs"), is_plain="" in versions[name],
            )  # fmt: skip


def _wheel_folders(system: System, packages_folder: str) -> Iterator[str]:
    """The folders of libraries in NVIDIA's wheels: nvidia/cudnn/lib, nvidia/cu13/lib ..."""
    root = f"{packages_folder}/nvidia"
    for name in system.list_folder(root):
        yield f"{root}/{name}/lib"


def _on_path(system: System) -> Iterator[CudaLibrary]:
    root = system.environment.get("SystemRoot", r"C:\Windows")
    folders = [rf"{root}\System32", *system.environment.get("PATH", "").split(";")]
    for folder in dict.fromkeys(folder.rstrip("\\") for folder in folders if folder):
        for file in system.list_folder(folder):
            match = re.fullmatch(r"([A-Za-z]+(?:64)?)(?:_(\d+)[\d_]*)?\.dll", file)
            if match and match[1] in _WINDOWS_NAMES:
                yield CudaLibrary(
                    name=_WINDOWS_NAMES[match[1]], path=rf"{folder}\{file}", version=match[2],
                    found_by="PATH",
                )  # fmt: skip
