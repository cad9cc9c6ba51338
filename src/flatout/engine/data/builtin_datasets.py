"""Data sets for experiments: found locally or downloaded, and always verified before use."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from flatout.schema.run_lines import Fetched
from flatout.schema.units import bytes_text
from flatout.system import atomic_files
from flatout.system.clock import elapsed_s, now_s
from flatout.system.store import datasets
from flatout.system.store.run_folder import RunFolder

_REPORT_EVERY_S = 0.5

# Experiments name only the data set; where progress is reported depends on the caller.
_reported_to: ContextVar[RunFolder | None] = ContextVar("reported_to", default=None)


def dataset(name: str) -> Path:
    """The folder of a data set (`mnist`, `tinyshakespeare`), every file checked by SHA-256.

    Searched in `$FLATOUT_DATA`, then in the user's data folder; otherwise downloaded to the latter.

    Raises:
        UsageError: unknown-data-set.
        RunFailed: damaged-data, download-failed.
    """
    if datasets.find(name) is None:
        _fetch(name)
    return datasets.require(name)


@contextlib.contextmanager
def report_downloads_to(folder: RunFolder) -> Iterator[None]:
    """Reports downloads as events of that run, instead of on standard error."""
    token = _reported_to.set(folder)
    try:
        yield
    finally:
        _reported_to.reset(token)


def _fetch(name: str) -> None:
    folder = _reported_to.get()
    lines = atomic_files.Lines(folder.events) if folder is not None else None
    reported_s = 0.0
    progress = None
    for progress in datasets.fetch(name):
        if elapsed_s() - reported_s >= _REPORT_EVERY_S:
            reported_s = elapsed_s()
            _tell(name, progress, lines)
    if progress is not None:
        _tell(name, progress, lines)
    if lines is not None:
        lines.close()


def _tell(name: str, progress: datasets.Fetching, lines: atomic_files.Lines | None) -> None:
    if lines is None:
        done, total = bytes_text(progress.done_bytes), bytes_text(progress.total_bytes)
        print(f"{name}: {done} of {total}", file=sys.stderr)
        return
    lines.append(
        Fetched(
            at=now_s(),
            step=0,
            name=name,
            done_bytes=progress.done_bytes,
            total_bytes=progress.total_bytes,
        )
    )
