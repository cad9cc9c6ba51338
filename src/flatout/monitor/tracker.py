"""A run for an experiment tracker: what it is given, and what an adapter for one has to do."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from flatout.monitor.tensorboard import sample_scalars, scalars
from flatout.schema.experiment_spec import Value
from flatout.schema.machine_sample import MachineSample
from flatout.schema.run import Status
from flatout.schema.run_lines import Line, Logged

# A number, a text, or the file of a picture.
Tracked = float | str | Path


class TrackedRow(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a line, or of a sample of the machine, by their names."""

    at: float
    step: int
    values: dict[str, Tracked]
    is_sample: bool = False

    @property
    def at_ms(self) -> int:
        """Its time as trackers keep it."""
        return int(self.at * 1000)


class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    """The highest step and the latest time of a value that a tracker has."""

    step: int = -1
    at_ms: int = -1


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

    def last(self, name: str) -> Arrived:
        """What it has of a value, by the name that rows give it."""
        ...

    def send(self, rows: Sequence[TrackedRow]) -> None:
        """Adds rows."""
        ...

    def end(self, status: Status, at: float, files: dict[str, tuple[Path, ...]]) -> None:
        """Adds files, by the folder that they go to, and sets the status; the run may be resumed.

        When it returns, everything has arrived.
        """
        ...

    def close(self) -> None:
        """Gives up, after a failure."""
        ...


def rows_of(
    lines: Sequence[Line], samples: Sequence[MachineSample], step: int, pictures: Path
) -> Iterator[TrackedRow]:
    """Lines and samples in the order of time; a sample is of the step that was logged before it.

    step: of the line before. pictures: the folder of those that hooks have logged.
    """
    rows = [
        TrackedRow(at=line.at, step=line.step, values=_values(line, pictures)) for line in lines
    ]
    times, steps = [row.at for row in rows], [row.step for row in rows]
    for sample in samples:
        place = bisect_right(times, sample.at)
        at_step = steps[place - 1] if place else step
        values: dict[str, Tracked] = dict(sample_scalars(sample))
        rows.append(TrackedRow(at=sample.at, step=at_step, values=values, is_sample=True))
    yield from (row for row in sorted(rows, key=lambda row: row.at) if row.values)


def _values(line: Line, pictures: Path) -> dict[str, Tracked]:
    values: dict[str, Tracked] = dict(scalars(line))
    if isinstance(line, Logged):
        name = f"logged/{line.name}"
        if line.text is not None:
            values[name] = line.text
        # Only its name: a run from elsewhere could have another file of this machine sent.
        elif line.picture is not None and (path := pictures / Path(line.picture).name).is_file():
            values[name] = path
    return values
