"""The main path: one short function for each verb. Start reading here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.runs import experiment_source  # fmt: skip
from flatout.runs.experiment_params import check_values, parse_changes, parse_parameters
from flatout.runs.model.listed import DataState
from flatout.runs.model.new_experiment import (
    TABLES,
    NewExperiment,
    NewExperimentRequest,
    check_name,
)
from flatout.runs.scaffold import inspect_data
from flatout.runs.scaffold.write import written
from flatout.runs.start import discard_dry_run, plan_run, run_for
from flatout.runs.supervisor import Supervisor, conclude, follow
from flatout.schema.addresses import masked
from flatout.schema.machine import Machine
from flatout.schema.placement import num_gpus_for
from flatout.schema.predict_protocol import InferenceRequest, PredictJob, Verb
from flatout.schema.run import Run, RunHeader, Utilization
from flatout.schema.run_lines import Line
from flatout.schema.suggested_command import resume_run, show_command
from flatout.schema.train_request import TrainRequest
from flatout.schema.tuned_recipe import TunedRecipe
from flatout.system import atomic_files, clock, paths, process_env, worker_process

# The command line asks for it here.
from flatout.system.config_file import ConfigFile as ConfigFile
from flatout.system.signals import Interrupts
from flatout.system.store import datasets, interpreters, run_folder, run_tail

# The command line asks for it here.
from flatout.system.store.interpreters import own_command as own_command
from flatout.system.store.recipe_cache import forget_recipes
from flatout.system.store.run_folder import RunFolder
from flatout.system.store.run_reader import (
    checkpoint_steps,
    each_metric,
    list_runs,
    milestones,
    newest_run,
    outline_of,
    rate_of,
    results_of,
    split_of,
    tuned_recipe,
)
from flatout.system.store.sample_file import SampleTail, read_samples
from flatout.tune.emit.code import program
from flatout.tune.emit.settings import settings

# Verbs that are only re-exported.
__all__ = [
    "checkpoint_steps", "conclude", "each_metric", "follow", "forget_recipes", "list_runs",
    "milestones", "results_of", "split_of",
]  # fmt: skip

# For a stop that was requested: a step or validation ends first, and a checkpoint is written.
_STOPPED_LIMIT_S = 600.0


def predict_job(
    request: InferenceRequest, verb: Verb, folder: RunFolder, inputs: tuple[str, ...] = ()
) -> PredictJob:
    """The request to evaluate a run, checked against the text of its experiment.

    Raises:
        UsageError: unknown-parameter, parameter-missing, bad-parameter-value, and what finding
            the experiment says.
    """
    if request.experiment is None and not request.settings:
        return PredictJob.of(request, verb, str(folder.path), inputs=inputs)
    spec = atomic_files.read_json(folder.header, RunHeader).spec
    recorded = str(folder.experiment_of(spec.sha256)) if spec.file else spec.name
    source = experiment_source.find_source(request.experiment or recorded)
    experiment = None
    if request.experiment is not None:
        experiment_source.check_name(source)
        check_values(parse_parameters(source.text, source.place), spec.parameters)
        experiment = source.file or source.name
    given = parse_changes(source.text, source.place, request.settings)
    return PredictJob.of(
        request, verb, str(folder.path), inputs=inputs, parameters=given, experiment=experiment
    )


def recognized(request: NewExperimentRequest) -> NewExperimentRequest:
    """A request completed with what its path shows."""
    return inspect_data.recognized(request)


def proposed_task(request: NewExperimentRequest) -> str:
    """The task of a request, or the one that its data suggests."""
    return inspect_data.proposed_task(request)


def draft(request: NewExperimentRequest) -> NewExperiment:
    """A request for a new experiment, with its defaults, checked against the data that is named.

    Raises:
        UsageError: bad-experiment-name, data-for-another-task, data-path-not-found,
            column-not-found, table-not-readable, no-shards, no-data.
    """
    request = recognized(request)
    kind = request.settled_data
    task = inspect_data.proposed_task(request)
    made = NewExperiment(name=check_name(request.name), task=task, data=kind)
    if request.path is None or kind == "synthetic":
        return made
    path, is_beside = inspect_data.settled_path(request.path)
    made = msgspec.structs.replace(made, path=path, is_path_beside=is_beside)
    if kind == "shards":
        return inspect_data.of_shards(made, request)
    target = None
    if kind in TABLES:
        target = inspect_data.settled_target(request.path, kind, request.target)
    return msgspec.structs.replace(made, target=target)


def write_new(draft: NewExperiment, *, is_forced: bool) -> Path:
    """Writes a new experiment's file into this folder.

    Raises:
        UsageError: file-exists.
    """
    return inspect_data.write_new(draft.name, written(draft), is_forced=is_forced)


def probe(python: str) -> Machine:
    """The facts of this machine, with the frameworks of that interpreter."""
    from flatout.system.host_system import LocalSystem
    from flatout.system.probes import machine

    return machine.probe(LocalSystem(), python)


def begin(request: TrainRequest, interrupts: Interrupts, *, is_attached: bool = True) -> Supervisor:
    """Creates a new run, or resumes an old one, and starts a worker for it.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed before there was a worker.
    """
    from flatout.compat import torch_needed

    request.check()
    plan = plan_run(request, interrupts)
    own = plan.header.python if plan.header else None
    python, version = interpreters.resolve_with_flatout(request.python, request.env, default=own)
    interpreters.remember(python)
    machine = probe(python)
    torch_needed.require_torch(machine, version)
    other_python = None if python == sys.executable else python
    change = msgspec.structs.replace(plan.change, python=other_python)
    on = request.placement
    if on is not None:
        seen = request.gpus or process_env.visible_gpus()
        on.check(num_gpus_for(machine, seen), plan.device)
    start = partial(
        worker_process.start_worker, python, is_attached=is_attached, on=on, gpus=request.gpus
    )
    with run_for(plan, machine, interrupts) as folder:
        end = run_tail.RunTail(folder, is_from_end=True)
        worker = start(folder, change)
    return Supervisor(
        folder=folder, machine=machine, worker=worker, tail=end, change=change,
        start=partial(start, folder), are_ranks=on is not None, is_new=plan.old is None,
    )  # fmt: skip


def discard(folder: RunFolder) -> None:
    """Removes what a dry run has needed."""
    discard_dry_run(folder)


def is_stopping(request: TrainRequest) -> bool:
    """Whether the run to resume has been asked to stop and has not stopped yet."""
    request.check()
    if request.resume is None:
        return False
    folder = run_folder.find_run(request.resume)
    return folder.stop.exists() and folder.lock().is_taken()


def watch(text: str) -> Iterator[list[Line]]:
    """All lines of a run, then new ones for as long as it is running."""
    folder = run_folder.find_run(text)
    return run_tail.follow_lines(run_tail.RunTail(folder), folder.lock().is_taken)


def request_stop(text: str) -> RunFolder:
    """Asks a running run to end its step, write a checkpoint and stop; gives its folder.

    Raises:
        UsageError: unknown-run, run-not-running.
    """
    folder = run_folder.find_run(text)
    if not folder.lock().is_taken():
        raise UsageError(
            "run-not-running",
            f"run {folder.path.name} is not running.",
            fix="list runs: flatout runs",
        )
    folder.request_stop()
    return folder


def stop(text: str) -> Run:
    """Asks a running run to stop, and waits until it has stopped.

    Raises:
        UsageError: unknown-run, run-not-running; RunFailed: run-does-not-stop.
    """
    folder = request_stop(text)
    if not run_tail.wait_until_free(folder, _STOPPED_LIMIT_S):
        raise RunFailed(
            "run-does-not-stop",
            f"run {folder.path.name} has not stopped within {_STOPPED_LIMIT_S:.0f} s.",
            because="it is finishing a step or validation, or is hung",
            fix=f"see what it does: {show_command(folder.typed, '--follow')}; "
            "kill it if it is hung",
        )
    return run_folder.read_run(folder)


def find(text: str) -> Path:
    """The folder of a run, whether it can be read or not."""
    return run_folder.find_run(text).path


def folder_elsewhere(text: str) -> Path | None:
    """The folder of a run outside the user's runs folder; None for a run inside."""
    folder = run_folder.find_run(text)
    return None if run_folder.is_own(folder) else folder.path


def read(text: str) -> Run:
    """Everything that is known about a run, but its metrics by step."""
    return run_folder.read_run(run_folder.find_run(text))


def remove(folder: Path) -> None:
    """Deletes a run for good."""
    run_folder.remove_run(RunFolder(folder))


def export_tensorboard(text: str, folder: str, *, is_following: bool) -> Path:
    """Writes a run as TensorBoard event files; with is_following for as long as it is trained."""
    from flatout.monitor.tensorboard import Writer

    run = read(text)
    samples = SampleTail(RunFolder(Path(run.folder)).samples)
    with Writer(run.id, Path(folder)) as writer:
        for lines in watch(text) if is_following else [each_metric(run)]:
            writer.write(lines)
            writer.write_samples(samples.new_samples())
    return writer.folder


def draw_plots(run: Run) -> list[Path]:
    """Draws a run into its folder; gives the files, none where there is nothing to draw yet."""
    from flatout.monitor import plots

    return plots.draw(run, each_metric(run), results_of(run))


def begin_plots(run: Run) -> Path | None:
    """Draws a run in the background; returns the folder, None if nothing can be drawn yet."""
    folder = RunFolder(Path(run.folder))
    if not can_draw() or run.step == 0:
        return None
    worker_process.start_drawing(folder)
    return folder.path / "plots"


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    from flatout.monitor import plots

    return plots.can_draw()


def next_step() -> tuple[str, str]:
    """The next command to suggest on this machine, and why."""
    machine = probe(sys.executable)
    where = ""
    if machine.framework("torch") is None:
        from flatout.compat import torch_needed

        name = torch_needed.environment_with_torch()
        if name is None:
            choice = torch_needed.choose_torch(machine, sys.version_info[:2])
            command = torch_needed.providing_command(sys.executable, choice)
            return command, f"torch is not installed; {choice.why}"
        where = f" --env {name}"
    run = newest_run()
    if run is None:
        return f"flatout train digits{where}", "trains on 1,797 small images that come with flatout"
    if run.status in ("stopped", "interrupted", "new"):
        return resume_run(run), f"{run.id} was {run.status} at step {run.step}"
    if run.status == "running":
        return show_command(run.typed, "--follow"), f"{run.id} is running"
    return show_command(run.typed), f"{run.id} has {run.status}"


def tuned(run: Run) -> TunedRecipe:
    """The result of a search for a recipe, and what was to be written of it."""
    recipe, outline = tuned_recipe(run), outline_of(run)
    used = _utilization(run, recipe.decision.samples_per_s)
    recipe = msgspec.structs.replace(recipe, utilization=used)
    emit = run.header.spec.tuning.emit
    if outline is None or emit is None:
        return recipe
    if emit == "code":
        text = program(run.header, recipe, outline)
    else:
        text = settings(run.header, recipe, outline, emit)
    return msgspec.structs.replace(recipe, code=text)


def with_utilization(run: Run) -> Run:
    """A run with how much of its machine it uses, if that is known."""
    # Most runs are too short, and their lines need not be read.
    rate = rate_of(run) if run.flops is not None else None
    return msgspec.structs.replace(run, utilization=_utilization(run, rate))


def with_machine_use(run: Run) -> Run:
    """A run with what its machine did while it trained, if that was recorded."""
    from flatout.monitor.machine_use import machine_use

    used = machine_use(read_samples(RunFolder(Path(run.folder)).samples))
    return msgspec.structs.replace(run, machine_use=used)


def _utilization(run: Run, samples_per_s: float | None) -> Utilization | None:
    from flatout.bench.utilization import utilization

    return utilization(run, samples_per_s) if samples_per_s is not None else None


def record_crash(text: str) -> Path:
    """Saves the traceback of a bug in a file."""
    path = paths.state_path("crashes") / f"{clock.now_text().replace(':', '')}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_files.write_atomically(path, masked(text).encode(errors="replace"))
    return path


def record_log(folder: RunFolder) -> Path:
    """Keeps what a worker has printed whose folder is not kept, such as a dry run's."""
    return record_crash(worker_process.printed_by(folder))


def interrupts() -> Interrupts:
    """Ctrl-C as a count, while the value is open."""
    return Interrupts()


def list_data() -> list[DataState]:
    """All data sets, and where they are."""
    return [
        DataState(
            name=name,
            title=data_set.title,
            licence=data_set.licence,
            source=data_set.source,
            size_bytes=data_set.size_bytes,
            folder=str(folder) if (folder := datasets.find(name)) else None,
        )
        for name, data_set in datasets.DATA_SETS.items()
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
            f"`--mirror {mirror}` is not the address of a mirror.",
            fix="give the URL of the folder that holds the data sets' folders: https://...",
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
