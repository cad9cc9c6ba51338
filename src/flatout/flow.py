"""The main path: one short function for each verb. Start reading here."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from flatout import __version__
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.experiment_text import check_values, parse_changes, parse_parameters
from flatout.nouns.addresses import masked
from flatout.nouns.data_state import DataState
from flatout.nouns.lines import Line
from flatout.nouns.machine import Machine
from flatout.nouns.placement import num_gpus_for
from flatout.nouns.question import InferenceRequest, Question, Verb
from flatout.nouns.run import Run, RunHeader
from flatout.nouns.sketch import TABLES, Sketch, SketchRequest, check_name
from flatout.nouns.train_request import TrainRequest
from flatout.nouns.tuned_recipe import TunedRecipe
from flatout.nouns.typed import resume_run, show_command
from flatout.system import (
    child,
    clock,
    datasets,
    environments,
    folders,
    made_environments,
    runs,
    sketches,
    sources,
    store,
    tail,
    variables,
)  # fmt: skip
from flatout.system.attendance import Attendance, conclude, follow
from flatout.system.interrupts import Interrupts
from flatout.system.reading import (
    checkpoint_steps,
    each_metric,
    list_runs,
    milestones,
    newest_run,
    outline_of,
    results_of,
    split_of,
    tuned_recipe,
)  # fmt: skip
from flatout.system.recipes import forget_recipes
from flatout.system.runs import RunFolder
from flatout.templates.writing import written
from flatout.tune.code import program
from flatout.undertaking import choose_interpreter, run_for, take_up

# The verbs of which there is nothing to say here but where they are.
__all__ = [
    "checkpoint_steps", "conclude", "each_metric", "follow", "forget_recipes", "list_runs",
    "milestones", "results_of", "split_of",
]  # fmt: skip

# Of a run that was asked to: a step or a validation ends first, and a checkpoint is written.
_STOPPED_LIMIT_S = 600.0


def question_of(
    request: InferenceRequest, verb: Verb, folder: RunFolder, inputs: tuple[str, ...] = ()
) -> Question:
    """What a run is asked, once its experiment's text has been looked at.

    Raises:
        UsageError: unknown-parameter, parameter-missing, bad-parameter-value, and what finding
            the experiment says.
    """
    if request.experiment is None and not request.settings:
        return Question.of(request, verb, str(folder.path), inputs=inputs)
    spec = store.read_json(folder.header, RunHeader).spec
    kept = str(folder.experiment_of(spec.sha256)) if spec.file else spec.name
    source = sources.find_source(request.experiment or kept)
    experiment = None
    if request.experiment is not None:
        sources.check_name(source)
        check_values(parse_parameters(source.text, source.place), spec.parameters)
        experiment = source.file or source.name
    given = parse_changes(source.text, source.place, request.settings)
    return Question.of(
        request, verb, str(folder.path), inputs=inputs, parameters=given, experiment=experiment
    )


def recognized(request: SketchRequest) -> SketchRequest:
    """A request with what its path says of itself."""
    return sketches.recognized(request)


def sketch(request: SketchRequest) -> Sketch:
    """A request for a new experiment, with its defaults, checked against the data that is named.

    Raises:
        UsageError: bad-experiment-name, data-for-another-task, data-path-not-found,
            column-not-found, table-not-readable, no-shards, no-data.
    """
    request = recognized(request)
    kind = request.settled_data
    made = Sketch(name=check_name(request.name), task=request.settled_task, data=kind)
    if request.path is None or kind == "synthetic":
        return made
    path, is_beside = sketches.settled_path(request.path)
    made = msgspec.structs.replace(made, path=path, is_path_beside=is_beside)
    if kind == "shards":
        return sketches.of_shards(made, request)
    target = None
    if kind in TABLES:
        target = sketches.settled_target(request.path, kind, request.target)
    return msgspec.structs.replace(made, target=target)


def write_new(sketch: Sketch, *, is_forced: bool) -> Path:
    """Writes a new experiment's file into this folder.

    Raises:
        UsageError: file-exists.
    """
    return sketches.write_new(sketch.name, written(sketch), is_forced=is_forced)


def probe(python: str) -> Machine:
    """The facts of this machine, with the frameworks of that interpreter."""
    from flatout.probes import machine
    from flatout.system.system import LocalSystem

    return machine.probe(LocalSystem(), python)


def begin(request: TrainRequest, interrupts: Interrupts, *, is_attached: bool = True) -> Attendance:
    """Makes a new run, or takes up an old one, and starts a worker on it.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed before there was a worker.
    """
    from flatout.setup import torch_needed

    request.check()
    request = made_environments.with_interpreter(request)
    asked = take_up(request, interrupts)
    python = choose_interpreter(request, asked)
    version = environments.check_interpreter(python, __version__)
    environments.remember(python)
    machine = probe(python)
    torch_needed.require_torch(machine, version)
    other_python = None if python == sys.executable else python
    change = msgspec.structs.replace(asked.change, python=other_python)
    on = request.placement
    if on is not None:
        on.check(num_gpus_for(machine, variables.visible_gpus()), asked.device)
    start = partial(child.start_worker, python, is_attached=is_attached, on=on)
    with run_for(asked, machine, interrupts) as folder:
        end = tail.Tail(folder, is_from_end=True)
        worker = start(folder, change)
    return Attendance(
        folder=folder, machine=machine, worker=worker, tail=end, change=change,
        start=partial(start, folder), are_ranks=on is not None, is_new=asked.old is None,
    )  # fmt: skip


def discard(folder: RunFolder) -> None:
    """Removes what a dry run has needed."""
    shutil.rmtree(folder.path.parent, ignore_errors=True)


def is_stopping(request: TrainRequest) -> bool:
    """Whether the run to go on with has been asked to stop and has not stopped yet."""
    request.check()
    if request.resume is None:
        return False
    folder = runs.find_run(request.resume)
    return folder.stop.exists() and folder.lock().is_taken()


def watch(text: str) -> Iterator[list[Line]]:
    """All lines of a run, then new ones for as long as somebody trains in it."""
    folder = runs.find_run(text)
    return tail.follow_lines(tail.Tail(folder), folder.lock().is_taken)


def stop(text: str) -> Run:
    """Asks whoever trains in a run to stop, and waits until that is done.

    Raises:
        UsageError: unknown-run, run-not-running; RunFailed: run-does-not-stop.
    """
    folder = runs.find_run(text)
    if not folder.lock().is_taken():
        raise UsageError(
            "run-not-running",
            f"run {folder.path.name} is not running.",
            fix="see what runs there are: flatout runs",
        )
    folder.request_stop()
    if not tail.wait_until_free(folder, _STOPPED_LIMIT_S):
        raise RunFailed(
            "run-does-not-stop",
            f"the run {folder.path.name} has not stopped within {_STOPPED_LIMIT_S:.0f} s.",
            because="it finishes its step or validation first, or it is hung",
            fix=f"see what it does: {show_command(folder.typed, '--follow')}; "
            "kill it if it is hung",
        )
    return runs.read_run(folder)


def find(text: str) -> Path:
    """The folder of a run, whether it can be read or not."""
    return runs.find_run(text).path


def folder_elsewhere(text: str) -> Path | None:
    """The folder of a run that is not among the person's own; None for one that is."""
    folder = runs.find_run(text)
    return None if runs.is_own(folder) else folder.path


def read(text: str) -> Run:
    """Everything that is known about a run, but its metrics by step."""
    return runs.read_run(runs.find_run(text))


def remove(folder: Path) -> None:
    """Deletes a run for good."""
    runs.remove_run(RunFolder(folder))


def export_tensorboard(text: str, folder: str, *, is_following: bool) -> Path:
    """Writes a run as TensorBoard event files; with is_following for as long as it is trained."""
    from flatout.monitor.tensorboard import Writer

    run = read(text)
    with Writer(run.id, Path(folder)) as writer:
        for lines in watch(text) if is_following else [each_metric(run)]:
            writer.write(lines)
    return writer.folder


def draw_plots(run: Run) -> list[Path]:
    """Draws a run into its folder; gives the files, none where there is nothing to draw yet."""
    from flatout.monitor import plots

    return plots.draw(run, each_metric(run), results_of(run))


def begin_plots(run: Run) -> Path | None:
    """Has a run drawn while nobody waits; gives the folder, None where nothing can be drawn yet."""
    folder = RunFolder(Path(run.folder))
    if not can_draw() or run.step == 0:
        return None
    child.start_drawing(folder)
    return folder.path / "plots"


def can_draw() -> bool:
    """Whether there is what draws pictures."""
    from flatout.monitor import plots

    return plots.can_draw()


def next_step() -> tuple[str, str]:
    """The sensible next command on this machine, and why it is that one."""
    machine = probe(sys.executable)
    if machine.framework("torch") is None:
        from flatout.setup import torch_needed

        choice = torch_needed.choose_torch(machine, sys.version_info[:2])
        return torch_needed.install_command(sys.executable, choice), f"no torch here; {choice.why}"
    run = newest_run()
    if run is None:
        return "flatout train digits", "trains on 1,797 small pictures that are part of flatout"
    if run.status in ("stopped", "interrupted", "new"):
        return resume_run(run), f"{run.id} was {run.status} at step {run.step}"
    if run.status == "running":
        return show_command(run.typed, "--follow"), f"{run.id} is being trained"
    return show_command(run.typed), f"{run.id} has {run.status}"


def tuned(run: Run) -> TunedRecipe:
    """What a search for a recipe has found, and its program where one was asked for."""
    found, outline = tuned_recipe(run), outline_of(run)
    if outline is None:
        return found
    return msgspec.structs.replace(found, code=program(run.header, found, outline))


def own_command() -> str:
    """What to type for `flatout` here."""
    return environments.own_command()


def record_crash(text: str) -> Path:
    """Keeps the traceback of our own fault in a file."""
    path = folders.state_folder() / "crashes" / f"{clock.now_text().replace(':', '')}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    store.write_atomically(path, masked(text).encode(errors="replace"))
    return path


def record_log(folder: RunFolder) -> Path:
    """Keeps what a worker has printed whose folder is not kept, such as a dry run's."""
    return record_crash(child.printed_by(folder))


def interrupts() -> Interrupts:
    """Ctrl-C as a count, while the value is open."""
    return Interrupts()


def list_data() -> list[DataState]:
    """All data sets, and where they are."""
    return [
        DataState(
            name=name,
            title=one.title,
            licence=one.licence,
            source=one.source,
            size_bytes=one.size_bytes,
            folder=str(folder) if (folder := datasets.find(name)) else None,
        )
        for name, one in datasets.DATA_SETS.items()
    ]


def fetch_data(name: str, mirror: str | None = None) -> Iterator[tuple[str, int, int]]:
    """Downloads what a data set lacks: each file with the bytes done and to do in all.

    mirror: an address that has a folder for each data set, asked first.

    Raises:
        UsageError: unknown-data-set, bad-mirror.
    """
    if mirror is not None and "://" not in mirror:
        raise UsageError(
            "bad-mirror",
            f"`--mirror {mirror}` names no mirror.",
            fix="give the address below which each data set has a folder: https://...",
        )
    try:
        datasets.require(name)
        return
    except FlatoutError as error:
        if error.rule not in ("data-missing", "damaged-data"):
            raise
    for fetching in datasets.fetch(name, mirror=mirror):
        yield fetching.file, fetching.done_bytes, fetching.total_bytes


def verify_data(name: str) -> Path:
    """The folder of a data set, with every file checked."""
    return datasets.require(name)
