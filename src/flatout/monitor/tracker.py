"""A run for an experiment tracker: what it is given, and what an adapter for one has to do."""

from __future__ import annotations

import importlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from flatout.errors import UsageError
from flatout.monitor.tensorboard import sample_scalars, scalars
from flatout.schema.experiment_spec import Value
from flatout.schema.machine_sample import MachineSample
from flatout.schema.run import Status
from flatout.schema.run_lines import Line


class TrackedRow(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a line, or of a sample of the machine, by their names.

    number: counts the rows of a run, from 0.
    """

    number: int
    at: float
    step: int
    values: dict[str, float]


class TrackedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a run. key: the same for as long as the run exists, and of no other run.

    parameters: of the experiment; recipe: its fields, which may change while it trains.
    folder: where an adapter may keep files of its own.
    """

    id: str
    key: str
    experiment: str
    created_at: float
    parameters: dict[str, Value]
    recipe: dict[str, Value]
    folder: Path


class TrackedEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run, for now: it may be resumed. files: in the tracker's folder -> their paths;
    "" for files at the top.
    """

    status: Status
    at: float
    files: dict[str, tuple[Path, ...]]


class Tracker(Protocol):
    """A run in a tracker. Whatever an adapter raises, it is closed, and another one tries again.

    is_confirmed: what `send` was given has arrived for certain when it returns; else when `end`
    does. url: where to look at the run, once it is open.
    """

    is_confirmed: bool
    url: str | None

    def open(self, run: TrackedRun) -> bool:
        """Creates the run, or continues it; returns whether it has nothing of it yet."""
        ...

    def missing(self, rows: Sequence[TrackedRow]) -> list[TrackedRow]:
        """The rows, or those values of them, that have not arrived; of rows that may have."""
        ...

    def send(self, rows: Sequence[TrackedRow]) -> None:
        """Adds rows."""
        ...

    def end(self, end: TrackedEnd) -> None:
        """Adds files, and sets the status; when it returns, everything has arrived."""
        ...

    def close(self) -> None:
        """Gives up, after a failure."""
        ...


def package(name: str, module: str | None = None) -> Any:
    """A tracker's package, imported by name, since nothing but this needs it.

    Raises:
        UsageError: tracker-not-installed.
    """
    try:
        return importlib.import_module(module or name)
    except ImportError as error:
        raise UsageError(
            "tracker-not-installed",
            f"the tracker needs the package {name}.",
            because=str(error),
            fix=f"pip install 'flatout[{name}]'",
        ) from error


def rows_of(
    lines: Sequence[Line], samples: Sequence[MachineSample], number: int, step: int
) -> Iterator[TrackedRow]:
    """Lines and samples in the order of time; a sample is of the step that was logged before it.

    number: of the first row. step: of the row before.
    """
    times, steps = [line.at for line in lines], [line.step for line in lines]
    found: list[tuple[float, int, dict[str, float]]] = [
        (line.at, line.step, dict(scalars(line))) for line in lines
    ]
    for sample in samples:
        place = bisect_right(times, sample.at)
        before = steps[place - 1] if place else max(step, 0)
        found.append((sample.at, before, dict(sample_scalars(sample))))
    for at, at_step, values in sorted(found, key=lambda row: row[0]):
        if values:
            yield TrackedRow(number=number, at=at, step=at_step, values=values)
            number += 1
