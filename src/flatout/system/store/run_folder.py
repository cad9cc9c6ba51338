"""A run's folder: what is where, how it is made, found, read and removed.

run.json            what is fixed: id, experiment, machine (RunHeader)
events.jsonl        history: started, recipe, checkpoint, stopped ... (schema/run_lines.py)
metrics.jsonl       loss, rates and validations by step
samples.jsonl       what the machine did meanwhile (schema/machine_sample.py)
checkpoints/000790/ rank0-SHA256.safetensors and, written after it, rank0.json: then it counts
recipe.json         what `flatout tune` has found
experiment.py       the experiment's text; experiment-SHA256.py: one that it was started with
weights.safetensors the best weights by validation, else the last
preprocessing.json  what was computed from the training data, and predicting needs
plots/              pictures drawn by viewers
trackers/           what each tracker has received (tracker_files.py)
worker.log          what the worker printed; worker.rank1.log and so on: other ranks, if any
rank1.jsonl         where the time of rank 1 went (schema/alarm.py: RankProgress), and so on
lock, stop          held while someone trains; asks them to stop
attended            held by a command line whose worker is still beginning, so not yet in `lock`
writer              a word of the process that trains or trained last
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from flatout.errors import FlatoutError, RunFailed, UsageError, nearest
from flatout.schema.run import Run, RunHeader, Status, checkpointing
from flatout.schema.run_lines import (
    Checkpointed,
    Event,
    Extended,
    Failed,
    FileChanged,
    Finished,
    FlopsCounted,
    Metric,
    Progress,
    RecipeSet,
    Started,
    Stopped,
    Validated,
    Warned,
)
from flatout.schema.suggested_command import (
    resume_command,
    resume_run,
    show_command,
    stop_command,
)
from flatout.system import atomic_files, links
from flatout.system.paths import runs_folder, tunes_folder
from flatout.system.store.jsonl_scan import each_part, last_line

# Windows takes both.
_SEPARATORS = tuple(filter(None, (os.sep, os.altsep)))

# No dot at the end: Windows drops it.
_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9_-])?")


class RunFolder:
    """The paths of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = path / "run.json"
        self.events = path / "events.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.samples = path / "samples.jsonl"
        self.pictures = path / "pictures"
        self.checkpoints = path / "checkpoints"
        self.weights = path / "weights.safetensors"
        self.experiment = path / "experiment.py"
        self.recipe = path / "recipe.json"
        self.preprocessing = path / "preprocessing.json"
        self.log = path / "worker.log"
        self.stop = path / "stop"
        self.writer = path / "writer"
        self.attended = atomic_files.FileLock(path / "attended")

    @property
    def typed(self) -> str:
        """The argument for this run in a command: its name among flatout's runs, else its path."""
        return str(self.path) if self.is_elsewhere else self.path.name

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is not among flatout's runs, where commands look for a name."""
        return Path(os.path.abspath(self.path)).parent.resolve() != runs_folder().resolve()

    def experiment_before(self, sha256: str) -> Path:
        """The path of the experiment's text of that sha256, once another one is in use."""
        return self.path / f"experiment-{sha256[:12]}.py"

    def experiment_of(self, sha256: str | None) -> Path:
        """The experiment's text of that sha256; after a kill the header may be older than it."""
        before = self.experiment_before(sha256) if sha256 else None
        return before if before is not None and before.is_file() else self.experiment

    def rank_log(self, rank: int) -> Path:
        """The log of a rank other than the first."""
        return self.path / f"worker.rank{rank}.log"

    def rank_times(self, rank: int) -> Path:
        """Where the time of a rank other than the first went (`alarm.py: RankProgress`)."""
        return self.path / f"rank{rank}.jsonl"

    def lock(self) -> atomic_files.FileLock:
        """The lock that a process must hold to train in this folder."""
        return atomic_files.FileLock(self.path / "lock")

    def is_in_use(self) -> bool:
        """Whether someone trains in it, or has just started a worker that will."""
        # Behind a link to a disk that is missing, no lock can be tested.
        if links.is_broken_link(self.path):
            return False
        return self.lock().is_taken() or self.attended.is_taken()

    def request_stop(self) -> None:
        """Asks the worker to end its step, write a checkpoint and stop."""
        atomic_files.write_atomically(self.stop, b"")

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
    with atomic_files.mapped_os_errors(path):
        if path.exists():
            raise _run_exists(RunFolder(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        # Made under a hidden name: a folder that is called by an id holds its header, always.
        new = atomic_files.hidden_path(path)
        new.mkdir()
        try:
            atomic_files.write_json(RunFolder(new).header, header)
            atomic_files.move_into_place(new, path)
        except BaseException as error:
            shutil.rmtree(new, ignore_errors=True)
            # Someone else was quicker by a moment.
            if isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise _run_exists(RunFolder(path)) from error
            raise
    return RunFolder(path)


def _run_exists(folder: RunFolder) -> UsageError:
    try:
        resume = resume_run(read_run(folder))
    except FlatoutError:
        resume = resume_command(folder.typed)
    return UsageError(
        "run-exists",
        f"a run named `{folder.path.name}` already exists.",
        fix=f"choose another --name, or resume it: {resume}",
    )


def free_id(name: str, parent: Path | None = None) -> str:
    """The next free id for an experiment of that name: digits-0001, digits-0002 ..."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:80] or "run"
    folder = parent or runs_folder()
    with atomic_files.mapped_os_errors(folder):
        names = os.listdir(folder) if folder.is_dir() else []
    numbers = [name.removeprefix(f"{stem}-") for name in names if name.startswith(f"{stem}-")]
    taken = [int(number) for number in numbers if re.fullmatch("[0-9]{1,9}", number)]
    return f"{stem}-{max(taken, default=0) + 1:04d}"


def check_id(name: str) -> str:
    """A run's name that every file system can hold."""
    if not _ID.fullmatch(name) or len(name) > 100 or name == "last":
        raise UsageError(
            "bad-run-name",
            f"`{name}` is not a valid run name.",
            because="`last` means the newest run"
            if name == "last"
            else "a run's name is its folder's name",
            fix="use letters, digits, dots, dashes and underscores",
        )
    return name


def run_paths(parent: Path | None = None) -> list[Path]:
    """Folders of all runs, oldest first."""
    folder = parent or runs_folder()
    dated = []
    with atomic_files.mapped_os_errors(folder):
        for entry in list(os.scandir(folder)) if folder.is_dir() else ():
            # A file is not asked for its run.json: there may be very many.
            if not entry.name.startswith(".") and not _is_file(entry):
                path = folder / entry.name
                # A run may be removed by someone else while we look.
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    dated.append((_made_at_ns(path), path))
    return [path for _, path in sorted(dated)]


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file(follow_symlinks=False)
    except OSError:
        return False


def _made_at_ns(path: Path) -> int:
    try:
        return (path / "run.json").stat().st_mtime_ns
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise
    # What cannot be looked into is listed as a run that cannot be read: a folder without the
    # permission, a link to itself, a disk that does not respond.
    for stat in (os.stat, os.lstat):
        try:
            return stat(path).st_mtime_ns
        except OSError:
            continue
    return 0


def find_run(text: str, parent: Path | None = None) -> RunFolder:
    """A run by its id, an unambiguous beginning of it, `last`, or its folder.

    A folder is one only where it is written with a separator (`./x`, `x/`): else a folder in the
    current one, which anyone may have put there, would stand for the run of that id.

    Raises:
        UsageError: unknown-run, not-a-run.
    """
    if any(separator in text for separator in _SEPARATORS):
        return _run_at(text, parent)
    paths = run_paths(parent)
    same = [path for path in paths if path.name == text]
    if text == "last" and paths and not same:
        return RunFolder(paths[-1])
    matching = same or [path for path in paths if path.name.startswith(text)]
    if len(matching) == 1:
        return RunFolder(matching[0])
    names = [path.name for path in matching or paths]
    is_folder = (
        not matching and "\0" not in text and os.path.lexists(os.path.join(text, "run.json"))
    )
    raise UsageError(
        "unknown-run",
        f"there is no run `{text}`." if not matching else f"`{text}` matches several runs.",
        because="a folder needs a path separator" if is_folder else None,
        fix=f"for the folder: {os.path.join(os.curdir, text)}"
        if is_folder
        else (nearest(text, names) if names else "start one: flatout train digits"),
    )


def is_own(folder: RunFolder) -> bool:
    """Whether a run is among flatout's own, where no one else puts anything."""
    above = Path(os.path.abspath(folder.path)).parent.resolve()
    return above in (runs_folder().resolve(), tunes_folder().resolve())


def require_trust(folder: RunFolder, *, is_trusted: bool) -> None:
    """Makes sure that no code is run from a folder that someone else may have written.

    Raises:
        UsageError: run-from-elsewhere.
    """
    if is_trusted or is_own(folder):
        return
    raise UsageError(
        "run-from-elsewhere",
        f"the run in {folder.path} is not among your runs, and using it runs its code.",
        because="its experiment and the interpreter in its run.json may come from anyone; your "
        f"runs are in {runs_folder()}",
        fix="review its experiment.py and run.json; if you trust them, add --trust",
    )


def _run_at(text: str, parent: Path | None) -> RunFolder:
    """The run in a folder; outside of the runs' own only where run.json is one of a run."""
    path = Path(os.path.abspath(text)) if "\0" not in text else Path()
    if "\0" in text or not os.path.isfile(path / "run.json"):
        raise UsageError(
            "unknown-run",
            f"there is no run in {text}",
            because="a run's folder contains its run.json",
            fix="list runs: flatout runs",
        )
    folder = RunFolder(path)
    if path.parent != parent and not is_own(folder):
        try:
            atomic_files.read_json(folder.header, RunHeader)
        except RunFailed as error:
            raise UsageError(
                "not-a-run",
                f"{path} is not a run folder.",
                because=f"its run.json is not valid: {error.because or error.problem}",
                fix="list runs: flatout runs",
            ) from error
    return folder


def read_run(folder: RunFolder, validations: Iterable[Validated] | None = None) -> Run:
    """Everything that is known about a run, from its files alone.

    validations: those of the run, where they are known; None reads all of its metrics for them.
    """
    events = atomic_files.read_lines(folder.events, Event)
    # Of the metrics, which grow long, only what is requested is decoded.
    newest = last_line(folder.metrics, Metric)
    if validations is None:
        validations = validations_of(folder)
    progress = last_line(folder.metrics, Metric, b'"progress"')
    steps = folder.checkpoint_steps()
    recipe_set, finished = _last(events, RecipeSet), _last(events, Finished)
    failure = _last(events, Failed)
    status = _status(folder, events)
    return Run(
        folder=str(folder.path),
        header=atomic_files.read_json(folder.header, RunHeader),
        status=status,
        step=max((line.step for line in [*events, newest] if line), default=0),
        recipe=recipe_set.recipe if recipe_set else None,
        started=_last(events, Started),
        finished=finished,
        validations=tuple(validations),
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
        flops=_last(events, FlopsCounted),
        is_elsewhere=folder.is_elsewhere,
    )


def validations_of(folder: RunFolder) -> Iterator[Validated]:
    """The validations of a run."""
    for validations, _ in validations_from(folder, 0):
        yield from validations


def validations_from(folder: RunFolder, offset: int) -> Iterator[tuple[list[Validated], int]]:
    """The validations of a run from a byte of its metrics on, in parts: see `each_part`."""
    for lines, end in each_part(folder.metrics, Metric, [b'"validated"'], offset):
        yield [line for line in lines if isinstance(line, Validated)], end


def run_in_use(folder: RunFolder) -> UsageError:
    """The error for a run that another process trains in."""
    return UsageError(
        "run-in-use",
        f"run {folder.path.name} is being trained by another process.",
        fix=f"watch it: {show_command(folder.typed, '--follow')}; "
        f"stop it: {stop_command(folder.typed)}",
    )


def remove_run(folder: RunFolder) -> None:
    """Deletes a run for good; of a link only the link. Refused while someone trains in it."""
    if links.is_broken_link(folder.path):
        with atomic_files.mapped_os_errors(folder.path):
            links.remove_link(folder.path)
        return
    lock, attended = folder.lock(), folder.attended
    try:
        # Its worker may be loading torch, before it takes the lock.
        for lock_file in (lock, attended):
            if lock_file.can_be_taken() and not lock_file.acquire():
                raise run_in_use(folder)
        # Windows cannot rename a folder in which a file is open, not even the lock.
        if sys.platform == "win32":
            lock.release()
            attended.release()
        with atomic_files.mapped_os_errors(folder.path):
            if links.is_link(folder.path):
                links.remove_link(folder.path)
                return
            removed = atomic_files.hidden_path(folder.path)
            # In one step, so that a removal that was cut short leaves nothing like a run.
            folder.path.rename(removed)
            shutil.rmtree(removed)
    finally:
        lock.release()
        attended.release()


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
