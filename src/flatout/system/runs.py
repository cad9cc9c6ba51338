"""A run's folder: what lies where, how it is made, found, read and removed.

run.json            what is fixed: id, experiment, machine (RunHeader)
events.jsonl        history: started, recipe, checkpoint, stopped ... (nouns/lines.py)
metrics.jsonl       loss, rates and validations by step
checkpoints/000790/ rank0-SHA256.safetensors and, written after it, rank0.json: then it counts
recipe.json         what `flatout tune` has found
experiment.py       the experiment's text; experiment-SHA256.py: one that it was begun with
weights.safetensors the best weights by validation, else the last
plots/              pictures drawn by whoever looks
worker.log          what the worker printed; worker.rank1.log and so on: other ranks, if any
lock, stop          held while somebody trains; asks them to stop
writer              a word of whoever trains, or has trained last
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.errors import UsageError, nearest
from flatout.nouns.lines import (
    Checkpointed,
    Event,
    Extended,
    Failed,
    FileChanged,
    Finished,
    Metric,
    Progress,
    RecipeSet,
    Started,
    Stopped,
    Validated,
    Warned,
)
from flatout.nouns.run import Run, RunHeader, Status, checkpointing
from flatout.system import store
from flatout.system.folders import runs_folder
from flatout.system.scan import each_line, last_line

# No dot at the end: Windows drops it.
_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9_-])?")


class RunFolder:
    """The paths of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = path / "run.json"
        self.events = path / "events.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.weights = path / "weights.safetensors"
        self.experiment = path / "experiment.py"
        self.recipe = path / "recipe.json"
        self.log = path / "worker.log"
        self.stop = path / "stop"
        self.writer = path / "writer"

    def experiment_before(self, sha256: str) -> Path:
        """Where the experiment's text of that sha256 is kept, once the run goes on with another."""
        return self.path / f"experiment-{sha256[:12]}.py"

    def rank_log(self, rank: int) -> Path:
        """What a rank other than the first has printed."""
        return self.path / f"worker.rank{rank}.log"

    def lock(self) -> store.Lock:
        """The lock that whoever trains in this folder must hold."""
        return store.Lock(self.path / "lock")

    def request_stop(self) -> None:
        """Asks the worker to end its step, write a checkpoint and stop."""
        store.write_atomically(self.stop, b"")

    def checkpoint_steps(self) -> list[int]:
        """Steps of the checkpoints that were written to their end, oldest first."""
        if not self.checkpoints.is_dir():
            return []
        return sorted(
            int(folder.name)
            for folder in self.checkpoints.iterdir()
            if folder.name.isdigit() and (folder / "rank0.json").exists()
        )


def create_run(header: RunHeader, parent: Path | None = None) -> RunFolder:
    """Makes the folder of a new run; its id must be free.

    Raises:
        UsageError: run-exists.
    """
    path = (parent or runs_folder()) / header.id
    taken = UsageError(
        "run-exists",
        f"there is a run named `{header.id}` already.",
        fix=f"choose another --name, or go on with it: flatout train --resume {header.id}",
    )
    with store.mapped_os_errors(path):
        if path.exists():
            raise taken
        path.parent.mkdir(parents=True, exist_ok=True)
        # Made under a hidden name: a folder that is called by an id holds its header, always.
        new = _hidden_path(path)
        new.mkdir()
        try:
            store.write_json(RunFolder(new).header, header)
            store.move_into_place(new, path)
        except BaseException as error:
            shutil.rmtree(new, ignore_errors=True)
            # Somebody else was quicker by a moment.
            if isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise taken from error
            raise
    return RunFolder(path)


def free_id(name: str, parent: Path | None = None) -> str:
    """The next free id for an experiment of that name: digits-0001, digits-0002 ..."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:80] or "run"
    folder = parent or runs_folder()
    with store.mapped_os_errors(folder):
        names = os.listdir(folder) if folder.is_dir() else []
    numbers = [name.removeprefix(f"{stem}-") for name in names if name.startswith(f"{stem}-")]
    taken = [int(number) for number in numbers if re.fullmatch("[0-9]{1,9}", number)]
    return f"{stem}-{max(taken, default=0) + 1:04d}"


def check_id(name: str) -> str:
    """A run's name that every file system can hold."""
    if not _ID.fullmatch(name) or len(name) > 100:
        raise UsageError(
            "bad-run-name",
            f"`{name}` cannot name a run.",
            because="a run's name is its folder's name",
            fix="use letters, digits, dots, dashes and underscores",
        )
    return name


def run_paths(parent: Path | None = None) -> list[Path]:
    """Folders of all runs, oldest first."""
    folder = parent or runs_folder()
    found = []
    with store.mapped_os_errors(folder):
        for path in folder.iterdir() if folder.is_dir() else ():
            if not path.name.startswith("."):
                # A run may be removed by somebody else while we look.
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    found.append(((path / "run.json").stat().st_mtime_ns, path))
    return [path for _, path in sorted(found)]


def find_run(text: str, parent: Path | None = None) -> RunFolder:
    """A run by its id, its folder, an unambiguous beginning of its id, or `last`.

    Raises:
        UsageError: unknown-run.
    """
    if os.path.isfile(os.path.join(text, "run.json")):
        return RunFolder(Path(text).absolute())
    paths = run_paths(parent)
    if text == "last" and paths:
        return RunFolder(paths[-1])
    same = [path for path in paths if path.name == text]
    matching = same or [path for path in paths if path.name.startswith(text)]
    if len(matching) == 1:
        return RunFolder(matching[0])
    names = [path.name for path in matching or paths]
    raise UsageError(
        "unknown-run",
        f"there is no run `{text}`." if not matching else f"`{text}` is the beginning of several.",
        fix=nearest(text, names) if names else "make one: flatout train digits",
    )


def read_run(folder: RunFolder) -> Run:
    """Everything that is known about a run, from its files alone."""
    events = store.read_lines(folder.events, Event)
    # Of the metrics, which grow long, only what is asked for is decoded.
    newest = last_line(folder.metrics, Metric)
    validations = each_line(folder.metrics, Metric, [b'"validated"'])
    progress = last_line(folder.metrics, Metric, b'"progress"')
    steps = folder.checkpoint_steps()
    recipe_set, finished = _last(events, RecipeSet), _last(events, Finished)
    failure = _last(events, Failed)
    status = _status(folder, events)
    return Run(
        folder=str(folder.path),
        header=store.read_json(folder.header, RunHeader),
        status=status,
        step=max((line.step for line in [*events, newest] if line), default=0),
        recipe=recipe_set.recipe if recipe_set else None,
        started=_last(events, Started),
        finished=finished,
        validations=tuple(line for line in validations if isinstance(line, Validated)),
        findings=tuple(line.finding for line in events if isinstance(line, Warned | Failed)),
        checkpoint_step=steps[-1] if steps else None,
        stopped=_last(events, Stopped),
        checkpointing=checkpointing(
            [line for line in events if isinstance(line, Checkpointed)],
            share=finished.checkpoint_share if finished and status == "finished" else None,
            train_s=sum(progress.split_s.values()) if isinstance(progress, Progress) else None,
        ),
        adaptations=tuple(
            line.adaptation
            for line in events
            if isinstance(line, RecipeSet) and line.adaptation is not None
        ),
        extended=_last(events, Extended),
        file_changes=tuple(line for line in events if isinstance(line, FileChanged)),
        failure=failure.finding if status == "failed" and failure else None,
    )


def run_in_use(folder: RunFolder) -> UsageError:
    """What is said to whoever wants a run that somebody else trains in."""
    name = folder.path.name
    return UsageError(
        "run-in-use",
        f"the run {name} is being trained by another process.",
        fix=f"watch it: flatout show {name} --follow; stop it: flatout runs stop {name}",
    )


def remove_run(folder: RunFolder) -> None:
    """Deletes a run for good; refused while somebody trains in it."""
    lock = folder.lock()
    if not lock.acquire():
        raise run_in_use(folder)
    # Windows cannot rename a folder in which a file is open, not even the lock.
    if sys.platform == "win32":
        lock.release()
    removed = _hidden_path(folder.path)
    try:
        with store.mapped_os_errors(folder.path):
            # In one step, so that a removal that was cut short leaves nothing like a run.
            folder.path.rename(removed)
            shutil.rmtree(removed)
    finally:
        lock.release()


def _hidden_path(path: Path) -> Path:
    """A name beside a run's folder for one that is not yet or no longer a run."""
    hidden = path.with_name(f".{path.name}-{os.getpid()}")
    if hidden.exists():
        shutil.rmtree(hidden)
    return hidden


def _last(lines: Sequence[object], kind: type | tuple[type, ...]) -> Any:
    return next((line for line in reversed(lines) if isinstance(line, kind)), None)


def _status(folder: RunFolder, events: list[Event]) -> Status:
    if folder.lock().is_taken():
        return "running"
    ends: dict[type, Status] = {Finished: "finished", Stopped: "stopped", Failed: "failed"}
    turns = [line for line in events if isinstance(line, Started | Finished | Stopped | Failed)]
    # A resume that was refused before it began to train has changed nothing.
    while len(turns) > 1 and isinstance(turns[-1], Failed) and not isinstance(turns[-2], Started):
        turns.pop()
    return ends.get(type(turns[-1]), "interrupted") if turns else "new"
