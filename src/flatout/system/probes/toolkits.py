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
    places = list(dict.fromkeys([*([first] if first else []), *_places(system, slash)]))
    found: list[InstalledToolkit] = []
    unread = {}
    for place in places:
        version = _version(system, place, slash)
        # /usr/local/cuda is a link to one of those next to it.
        if version and any(version == other.version for other in found):
            continue
        if version is None:
            unread[f"toolkits.{len(found)}.version"] = "neither version.json nor nvcc reports it"
        found.append(InstalledToolkit(path=place, version=version, is_first=place == first))
    return tuple(found), unread


def _first_on_path(system: System, slash: str) -> str | None:
    separator, program = (";", "nvcc.exe") if slash == "\\" else (":", "nvcc")
    for folder in system.environment.get("PATH", "").split(separator):
        folder = folder.rstrip(slash)
        if folder.endswith("bin") and system.exists(f"{folder}{slash}{program}"):
            return folder.rpartition(slash)[0]
    return None


def _places(system: System, slash: str) -> list[str]:
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
    return [one for one in folders if system.exists(f"{one}{slash}bin{slash}{program}")]


def _version(system: System, place: str, slash: str) -> str | None:
    told = system.read(f"{place}{slash}version.json")
    version = None if isinstance(told, Unread) else parse_version_json(told)
    if version:
        return version
    text = system.read(f"{place}{slash}version.txt")
    found = None if isinstance(text, Unread) else re.search(r"CUDA Version (\d+\.\d[\d.]*)", text)
    if found:
        return found[1]
    program = "nvcc.exe" if slash == "\\" else "nvcc"
    return parse_nvcc(system.run([f"{place}{slash}bin{slash}{program}", "--version"],
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
    found = re.search(r"\brelease \d+\.\d+, V(\d+\.\d+\.\d+)", text)
    return found[1] if found else None
