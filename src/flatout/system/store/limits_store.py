"""Measured limits of this machine, kept for other commands: one file per device and torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError
from flatout.schema.bench import BENCH_VERSION, BenchFile
from flatout.system import atomic_files
from flatout.system.paths import state_path


def limits_folder() -> Path:
    """Folder of all measured limits."""
    return state_path("limits")


def limits_key(*parts: str | None) -> str:
    """The name of the file for a machine, device and torch."""
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]


def recall_limits(key: str) -> BenchFile | None:
    """The limits kept under a key; None for a damaged file, or one of another version."""
    path = limits_path(key)
    try:
        kept = atomic_files.read_json(path, BenchFile) if path.is_file() else None
    except FlatoutError:
        return None
    return kept if kept is not None and kept.bench_version == BENCH_VERSION else None


def keep_limits(key: str, limits: BenchFile) -> None:
    """Keeps limits, whole or not at all.

    Raises:
        UsageError, RunFailed: as the operating system says it.
    """
    path = limits_path(key)
    with atomic_files.mapped_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    atomic_files.write_json(path, limits)


def limits_path(key: str) -> Path:
    """The file of a key."""
    return limits_folder() / f"{key}.json"
