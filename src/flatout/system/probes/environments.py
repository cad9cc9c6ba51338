"""Python environments: their contents by their metadata, and what they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from flatout.schema.environment_facts import Environment
from flatout.schema.framework import Framework
from flatout.system.host_system import System, Unread
from flatout.system.probes.frameworks import ASKED, parse_report
from flatout.system.probes.requirements import unmet
from flatout.system.probes.wsl import is_on_drive
from flatout.system.timeout_threads import run_together

# Next to the frameworks, what they stand or fall with: distributions, by the name people know.
_BESIDE = {
    "triton": ("triton", "triton-windows", "pytorch-triton"),
    "bitsandbytes": ("bitsandbytes",),
    "flash-attn": ("flash-attn", "flash_attn"),
    "numpy": ("numpy",),
    "ray": ("ray",),
    "dask": ("dask",),
    "torchvision": ("torchvision",),
    "torchaudio": ("torchaudio",),
    "jaxlib": ("jaxlib",),
    "jax-cuda12-plugin": ("jax-cuda12-plugin",),
    "jax-cuda13-plugin": ("jax-cuda13-plugin",),
}
_NAMES = (*ASKED, *(name for names in _BESIDE.values() for name in names))
_NO_DRIVES = "only WSL mounts Windows drives"
# A cold interpreter on a Windows drive takes seconds.
_TIMEOUT_S = 10.0
_MOST = 4


class Made(msgspec.Struct, frozen=True):
    """The origin of an environment, as `interpreter` reports it."""

    is_virtual: bool = False
    is_conda: bool = False
    is_uv: bool = False
    has_user_site: bool = False
    is_externally_managed: bool = False
    conda_versions: dict[str, str] = {}
    site: str | None = None


class ReportedPackage(msgspec.Struct, frozen=True):
    """A package of a report. place: "user-site" or "pythonpath" where it comes from there."""

    version: str
    requires: list[str] = []
    place: str = ""


class InterpreterReport(msgspec.Struct):
    """The report of `interpreter` on an interpreter, without the platforms of its frameworks."""

    python: str | None = None
    made: Made = Made()
    packages: dict[str, ReportedPackage] = {}


class ReadEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """An environment as it was read. site: its site-packages."""

    environment: Environment
    unread: dict[str, str] = {}
    site: str | None = None


def probe_environments(
    system: System, python: str, *, is_wsl: bool = False
) -> list[ReadEnvironment]:
    """The requested environment, then others that a shell here would use."""
    pythons = [python, *(other for other in _others(system) if other != python)][:_MOST]
    results = run_together(
        {name: partial(read_environment, system, name, is_wsl=is_wsl) for name in pythons},
        _TIMEOUT_S,
    )
    return [
        _unread(name, result.reason) if isinstance(result, Unread) else result
        for name, result in results.items()
    ]


def read_environment(system: System, python: str, *, is_wsl: bool = False) -> ReadEnvironment:
    """One environment, by what its interpreter reports without importing any package."""
    text = system.packages(python, _NAMES)
    if isinstance(text, Unread):
        return _unread(python, text.reason)
    frameworks, unread = parse_report(text, _BESIDE)
    report = parse_made(text)
    made = report.made
    kind = "conda" if made.is_conda else "uv" if made.is_uv else "venv"
    packages = report.packages
    is_own = made.is_conda or made.is_virtual
    return ReadEnvironment(
        environment=Environment(
            python=python,
            version=report.python,
            kind=kind if is_own else "system",
            frameworks=frameworks,
            has_user_site=made.has_user_site,
            is_externally_managed=made.is_externally_managed,
            unmet=unmet(
                {name: package.version for name, package in packages.items()},
                {name: package.requires for name, package in packages.items()},
            ),
            mixed=_mixed(report),
            outside=tuple(name for name, package in packages.items() if package.place)
            if is_own
            else (),
            is_on_windows_drive=is_on_drive(system, python) if is_wsl else None,
        ),
        unread={
            **unread,
            "can_use_gpu": "tried only with --deep",
            **({} if is_wsl else {"is_on_windows_drive": _NO_DRIVES}),
        },
        site=made.site,
    )


def _mixed(report: InterpreterReport) -> tuple[str, ...]:
    """Packages whose version is another one by conda's list than by their own metadata."""
    versions = report.made.conda_versions
    return tuple(
        name
        for name, package in report.packages.items()
        if name in versions and package.version.partition("+")[0] != versions[name]
    )


def parse_made(text: str) -> InterpreterReport:
    """The origin of the environment, from the last line of the report."""
    try:
        return msgspec.json.decode((text.strip().splitlines() or [""])[-1], type=InterpreterReport)
    except msgspec.DecodeError:
        return InterpreterReport()


def placed(read: Sequence[ReadEnvironment]) -> dict[str, str]:
    """The reasons of all environments, each under its place."""
    return {
        f"environments.{index}.{path}": reason
        for index, environment in enumerate(read)
        for path, reason in environment.unread.items()
    }


def frameworks_of(read: Sequence[ReadEnvironment]) -> tuple[Framework, ...]:
    """The frameworks of the environment in question."""
    return read[0].environment.frameworks if read else ()


def _unread(python: str, reason: str) -> ReadEnvironment:
    return ReadEnvironment(
        environment=Environment(python=python, problem=reason),
        unread=dict.fromkeys(
            (
                "version",
                "kind",
                "frameworks",
                "has_user_site",
                "is_externally_managed",
                "is_on_windows_drive",
                "can_use_gpu",
            ),
            reason,
        ),  # fmt: skip
    )


def _others(system: System) -> list[str]:
    """Interpreters of the environment that is switched on, and of the working folder."""
    at = system.environment.get
    named = [at("VIRTUAL_ENV"), at("CONDA_PREFIX")]
    folder = system.calls().folder
    if system.platform == "win32":
        own = rf"{folder}\.venv" if folder else None
        paths = [rf"{folder}\Scripts\python.exe" for folder in (at("VIRTUAL_ENV"), own) if folder]
        paths += [rf"{folder}\python.exe" for folder in named[1:] if folder]
    else:
        own = f"{folder}/.venv" if folder else None
        paths = [f"{folder}/bin/python" for folder in (*named, own) if folder]
    return [path for path in dict.fromkeys(paths) if system.exists(path)]
