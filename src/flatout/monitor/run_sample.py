"""A run at one moment, for the alarms and the exporter."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.schema.alarm import RankProgress, WorkerSample
from flatout.schema.run_lines import Line
from flatout.system.store.run_watch import RunReading


@dataclass(frozen=True, kw_only=True)
class RunSample:
    """A run that trains, or has just ended.

    id: its name. typed: the argument for it in a command. log: the path of its log.
    is_in_use: a worker trains it, or is beginning to. lines: new since the sample before; in the
    first one all of them. worker: None where it is not on this machine, or has ended.
    ranks: new lines of the ranks other than the first.
    """

    id: str
    typed: str
    log: str
    at: float
    is_in_use: bool
    lines: tuple[Line, ...] = ()
    worker: WorkerSample | None = None
    ranks: tuple[RankProgress, ...] = ()


def run_sample(reading: RunReading, at: float) -> RunSample:
    """What is new of a run, for the alarms."""
    folder = reading.folder
    return RunSample(
        id=folder.path.name,
        typed=folder.typed,
        log=str(folder.log),
        at=at,
        is_in_use=reading.is_in_use,
        lines=tuple(reading.lines),
        worker=reading.worker,
        ranks=tuple(reading.ranks),
    )
