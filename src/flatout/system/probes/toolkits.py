"""CUDA toolkits: folders with an nvcc, and which of them is the first on PATH."""

from __future__ import annotations

import re

import msgspec

from flatout.schema.driver import InstalledToolkit
from flatout.system.host_system import System, Unread

TIMEOUT_S = 1.0


class _Part(msgspec.Struct):
    version: str | None = None


def probe_toolkits(system: System) -> tuple[tuple[InstalledToolkit, ...], dict[str, str]]:
    """The toolkits, each once, and why a version is None."""
    slash = "\\" if system.platform == "win32" else "/"
    first = _first_on_path(system, slash)
    folders = list(dict.fromkeys([*([first] if first else []), *_toolkit_folders(system, slash)]))
    toolkits: list[InstalledToolkit] = []
    unread = {}
    for folder in folders:
        version = _version(system, folder, slash)
        # /usr/local/cuda is a link to one of those next to it.
        if version and any(version == other.version for other in toolkits):
            continue
        if version is None:
            unread[f"toolkits.{len(toolkits)}.version"] = "neither version.json nor nvcc reports it"
        toolkits.append(InstalledToolkit(path=folder, version=version, is_first=folder == first))
    return tuple(toolkits), unread


def _first_on_path(system: System, slash: str) -> str | None:
    separator, program = (";", "nvcc.exe") if slash == "\\" else (":", "nvcc")
    for folder in system.environment.get("PATH", "").split(separator):
        folder = folder.rstrip(slash)
        if folder.endswith("bin") and system.exists(f"{folder}{slash}{program}"):
            return folder.rpartition(slash)[0]
    return None


def _toolkit_folders(system: System, slash: str) -> list[str]:
    named = [system.environment.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    if slash == "\\":
        programs = system.environment.get("ProgramFiles", r"C:\Program Files")
        root = rf"{programs}\NVIDIA GPU Computing Toolkit\CUDA"
        beside = [rf"{root}\{name}" for name in system.list_folder(root)]
    else:
        names = system.list_folder("/usr/local")
        beside = [f"/usr/local/{name}" for name in names if re.fullmatch(r"cuda(-\d.*)?", name)]
        beside.append("/opt/cuda")
    program = "nvcc.exe" if slash == "\\" else "nvcc"
    folders = [folder.rstrip(slash) for folder in (*named, *beside) if folder]
    return [folder for folder in folders if system.exists(f"{folder}{slash}bin{slash}{program}")]


def _version(system: System, folder: str, slash: str) -> str | None:
    content = system.read(f"{folder}{slash}version.json")
    version = None if isinstance(content, Unread) else parse_version_json(content)
    if version:
        return version
    text = system.read(f"{folder}{slash}version.txt")
    match = None if isinstance(text, Unread) else re.search(r"CUDA Version (\d+\.\d[\d.]*)", text)
    if match:
        return match[1]
    program = "nvcc.exe" if slash == "\\" else "nvcc"
    return parse_nvcc(system.run([f"{folder}{slash}bin{slash}{program}", "--version"],
                                 TIMEOUT_S).stdout)  # fmt: skip


def parse_version_json(text: str) -> str | None:
    """The toolkit's version from its version.json."""
    try:
        parts = msgspec.json.decode(text, type=dict[str, _Part])
    except msgspec.DecodeError:
        return None
    return parts["cuda"].version if "cuda" in parts else None


def parse_nvcc(text: str) -> str | None:
    """The toolkit's version from what `nvcc --version` prints."""
    match = re.search(r"\brelease \d+\.\d+, V(\d+\.\d+\.\d+)", text)
    return match[1] if match else None
