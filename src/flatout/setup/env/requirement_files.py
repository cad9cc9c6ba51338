"""Requirements from the files that people keep them in."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import msgspec

from flatout.errors import UsageError

# Packages that conda names differently than pip, and packages that only conda has.
_CONDA_NAMES = {"pytorch": "torch", "pytorch-gpu": "torch", "tensorflow-gpu": "tensorflow"}
_CONDA_ONLY = ("python", "pip", "conda", "cudatoolkit", "cuda", "cudnn", "pytorch-cuda", "nomkl",
               "mkl", "_openmp_mutex")  # fmt: skip


class Requirements(msgspec.Struct, frozen=True, kw_only=True):
    """The requirements in the files. python: like "3.11", if named. left_out: conda's packages.

    sha256: of their contents together.
    """

    lines: tuple[str, ...] = ()
    python: str | None = None
    left_out: tuple[str, ...] = ()
    sha256: str | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user about how they were read."""
        if not self.left_out:
            return ()
        return (f"skipped, since only conda has it: {', '.join(self.left_out)}",)


class _Project(msgspec.Struct):
    dependencies: tuple[str, ...] = ()


class _PyProject(msgspec.Struct):
    project: _Project | None = None


class _CondaFile(msgspec.Struct):
    dependencies: tuple[str | dict[str, tuple[str, ...]], ...] = ()


def from_pyproject(text: str, source: str) -> Requirements:
    """`project.dependencies` of a pyproject.toml.

    Raises:
        UsageError: requirements-not-readable.
    """
    try:
        project = msgspec.convert(tomllib.loads(text), _PyProject).project
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise not_readable(source, str(error)) from error
    if project is None:
        raise not_readable(source, "it has no [project] table")
    return Requirements(lines=project.dependencies)


def from_conda(document: Any, source: str) -> Requirements:
    """The dependencies of an environment.yml, as pip names them.

    Args:
        document: what a reader of YAML has made of the file.
        source: its name.

    Raises:
        UsageError: requirements-not-readable.
    """
    try:
        entries = msgspec.convert(document, _CondaFile).dependencies
    except msgspec.ValidationError as error:
        raise not_readable(source, str(error)) from error
    lines: list[str] = []
    left_out: list[str] = []
    python = None
    for entry in entries:
        if isinstance(entry, dict):
            lines += [line for words in entry.values() for line in words]
            continue
        name, version = _split(entry)
        if name == "python":
            match = re.search(r"\d+\.\d+", version)
            python = match[0] if match else None
        elif name in _CONDA_ONLY:
            left_out.append(entry)
        else:
            lines.append(_CONDA_NAMES.get(name, name) + version)
    return Requirements(lines=tuple(lines), python=python, left_out=tuple(left_out))


def not_readable(source: str, because: str) -> UsageError:
    """The error for an unreadable requirements file."""
    return UsageError(
        "requirements-not-readable",
        f"cannot read requirements from {source}.",
        because=because,
        fix="pass a requirements.txt, an environment.yml or a pyproject.toml",
    )


def _split(entry: str) -> tuple[str, str]:
    """conda's `channel::name=1.2=build` as a name and pip's `==1.2.*`."""
    plain = entry.partition("::")[2] or entry
    match = re.match(r"\s*([\w.-]+)\s*(.*)", plain)
    if match is None:
        return plain, ""
    name, version = match[1].lower(), match[2].strip()
    if re.match(r"=(?!=)", version) or re.match(r"\d", version):
        number = version.lstrip("=").partition("=")[0].strip()
        return name, f"=={number}" if number.endswith("*") else f"=={number}.*"
    # A build follows the version: `==1.2=py311_0`.
    parts = [re.sub(r"^(==[^=]+)=.*", r"\1", part.strip()) for part in version.split(",")]
    return name, ",".join(part for part in parts if part)
