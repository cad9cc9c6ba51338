"""Runs looked over and compared, with their parameters; and what a user can name.

Small, so that a shell that completes a word is answered immediately.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from flatout.errors import FlatoutError, UsageError
from flatout.runs import experiment_source
from flatout.runs.experiment_params import Parameter, parse_parameters
from flatout.runs.model.comparison import Comparison, compare_runs
from flatout.runs.model.listed import ListedRun, ListRequest, RunRemoval, chosen_runs
from flatout.schema.experiment_spec import ExperimentSpec, Value
from flatout.schema.run import DamagedRun, Run, RunHeader
from flatout.schema.run_lines import Validated
from flatout.system import atomic_files, links
from flatout.system.store import run_folder
from flatout.system.store.run_folder import RunFolder
from flatout.system.store.run_reader import list_runs, read_or_name, split_of


def listed_runs(request: ListRequest) -> list[ListedRun]:
    """The runs that are requested, with their parameters, metrics and durations.

    Raises:
        UsageError: unknown-run-key, bad-condition, unknown-experiment.
    """
    return chosen_runs([_listed(run) for run in list_runs()], request)


def listed_run(
    folder: RunFolder, validations: Iterable[Validated] | None = None
) -> ListedRun | None:  # fmt: skip
    """A run as a row; None if someone has removed it. validations: those of it, if known."""
    run = read_or_name(folder, validations)
    return _listed(run) if run is not None else None


def _listed(run: Run | DamagedRun) -> ListedRun:
    if isinstance(run, DamagedRun):
        return ListedRun(run=run)
    try:
        duration_s = sum(split_of(run).values()) or None
    except FlatoutError:
        duration_s = None
    given, defaults = run.header.spec.parameters, _defaults(run)
    changed = tuple(
        name for name, value in given.items() if name not in defaults or defaults[name] != value
    )
    return ListedRun(run=run, parameters=defaults | given, changed=changed, duration_s=duration_s)


def known_parameters(run: Run) -> dict[str, Value]:
    """The parameters of a run by name, the defaults among them."""
    return _defaults(run) | run.header.spec.parameters


def _defaults(run: Run) -> dict[str, Value]:
    """The defaults of a run's parameters, as its experiment's text had them when it was made."""
    try:
        source = _kept_source(RunFolder(Path(run.folder)), run.header.spec)
        return _defaults_in(source.text)
    except FlatoutError:
        return {}  # Its text is gone or broken: what was set is known all the same.


# A thousand runs have the texts of a few experiments.
@functools.lru_cache(maxsize=64)
def _defaults_in(text: str) -> dict[str, Value]:
    return {
        parameter.name: parameter.default_value
        for parameter in parse_parameters(text, "")
        if parameter.default is not None
    }


def _kept_source(folder: RunFolder, spec: ExperimentSpec) -> experiment_source.ExperimentSource:
    return experiment_source.find_source(
        str(folder.experiment_of(spec.sha256)) if spec.file else spec.name
    )


def parameters_of(text: str) -> tuple[Parameter, ...]:
    """The parameters of an experiment: a built-in's name, or a file. Nothing of it is run.

    Raises:
        UsageError: unknown-experiment, experiment-file-not-found, experiment-not-text,
            experiment-syntax-error, no-experiment-function.
    """
    source = experiment_source.find_source(text)
    return parse_parameters(source.text, source.place)


def parameters_of_run(text: str) -> tuple[Parameter, ...]:
    """The parameters of the experiment that a run was made from.

    Raises:
        UsageError: unknown-run; RunFailed: damaged-file; and see `parameters_of`.
    """
    folder = run_folder.find_run(text)
    source = _kept_source(folder, atomic_files.read_json(folder.header, RunHeader).spec)
    return parse_parameters(source.text, source.place)


def run_ids() -> list[str]:
    """Ids of all runs, oldest first."""
    return [path.name for path in run_folder.run_paths()]


def find_removals(texts: Sequence[str]) -> list[RunRemoval]:
    """Runs that should be deleted, each once, with their sizes.

    Raises:
        UsageError: unknown-run, not-a-run, run-in-use.
    """
    folders_asked = {folder.path: folder for folder in map(run_folder.find_run, texts)}
    for folder in folders_asked.values():
        # Before any of them is deleted.
        if folder.is_in_use():
            raise run_folder.run_in_use(folder)
    return [_removal(folder) for folder in folders_asked.values()]


def failed_runs() -> list[RunRemoval]:
    """Every run that has failed, with its size; also one that is just being resumed."""
    return [_removal(RunFolder(Path(run.folder))) for run in list_runs() if run.status == "failed"]


def _removal(folder: RunFolder) -> RunRemoval:
    # What a shell asks for has no use for it, and would wait.
    from flatout.system.disk_size import size_of

    target = os.path.realpath(folder.path) if links.is_link(folder.path) else None
    num_bytes = size_of(folder.path, set())
    run = read_or_name(folder)
    is_unfinished = isinstance(run, Run) and run.status != "finished"
    return RunRemoval(
        id=folder.path.name,
        folder=str(folder.path),
        num_bytes=num_bytes,
        target=target,
        checkpoint_step=run.checkpoint_step if isinstance(run, Run) and is_unfinished else None,
        is_in_use=folder.is_in_use(),
    )


def compare(texts: Sequence[str]) -> Comparison:
    """Runs side by side.

    Raises:
        UsageError: too-few-runs, unknown-run.
    """
    if len(texts) < 2:
        raise UsageError("too-few-runs", "name at least two runs.", fix="list runs: flatout runs")
    rows = [run_folder.read_run(run_folder.find_run(text)) for text in texts]
    return compare_runs(rows, [known_parameters(run) for run in rows])
