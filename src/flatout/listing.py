"""Runs looked over and compared, with their parameters; and what a person can name.

Small, so that a shell that completes a word is answered at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from flatout.errors import FlatoutError, UsageError
from flatout.experiment_text import Parameter, parse_parameters
from flatout.nouns.comparison import Comparison, compare_runs
from flatout.nouns.experiment_spec import ExperimentSpec, Value
from flatout.nouns.listed_run import ListedRun, ListRequest, Removal, chosen_runs
from flatout.nouns.run import DamagedRun, Run, RunHeader
from flatout.system import runs, sources, store
from flatout.system.reading import list_runs, read_or_name, split_of
from flatout.system.runs import RunFolder


def listed_runs(request: ListRequest) -> list[ListedRun]:
    """The runs that are asked for, with their parameters, metrics and durations.

    Raises:
        UsageError: unknown-run-key, bad-condition, unknown-experiment.
    """
    return chosen_runs([_listed(run) for run in list_runs()], request)


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


def _defaults(run: Run) -> dict[str, Value]:
    """The defaults of a run's parameters, as its experiment's text had them when it was made."""
    try:
        parameters = _kept_parameters(RunFolder(Path(run.folder)), run.header.spec)
    except FlatoutError:
        return {}  # Its text is gone or broken: what was set is known all the same.
    return {one.name: one.default_value for one in parameters if one.default is not None}


def _kept_parameters(folder: RunFolder, spec: ExperimentSpec) -> tuple[Parameter, ...]:
    source = sources.find_source(str(folder.experiment_of(spec.sha256)) if spec.file else spec.name)
    return parse_parameters(source.text, source.place)


def parameters_of(text: str) -> tuple[Parameter, ...]:
    """The parameters of an experiment: a built-in's name, or a file. Nothing of it is run.

    Raises:
        UsageError: unknown-experiment, experiment-file-not-found, experiment-not-text,
            experiment-syntax-error, no-experiment-function.
    """
    source = sources.find_source(text)
    return parse_parameters(source.text, source.place)


def parameters_of_run(text: str) -> tuple[Parameter, ...]:
    """The parameters of the experiment that a run was made from.

    Raises:
        UsageError: unknown-run; RunFailed: damaged-file; and see `parameters_of`.
    """
    folder = runs.find_run(text)
    return _kept_parameters(folder, store.read_json(folder.header, RunHeader).spec)


def built_in_names() -> list[str]:
    """Names of the built-in experiments."""
    return sources.built_in_names()


def run_ids() -> list[str]:
    """Ids of all runs, oldest first."""
    return [path.name for path in runs.run_paths()]


def find_removals(texts: Sequence[str]) -> list[Removal]:
    """Runs that are to be deleted, each once, with their sizes.

    Raises:
        UsageError: unknown-run, not-a-run, run-in-use.
    """
    folders_asked = {folder.path: folder for folder in map(runs.find_run, texts)}
    for folder in folders_asked.values():
        # Before any of them is deleted.
        if folder.is_in_use():
            raise runs.run_in_use(folder)
    return [_removal(folder) for folder in folders_asked.values()]


def failed_runs() -> list[Removal]:
    """Every run that has failed, with its size; also one that is just being resumed."""
    return [_removal(RunFolder(Path(run.folder))) for run in list_runs() if run.status == "failed"]


def _removal(folder: RunFolder) -> Removal:
    # What a shell asks for has no use for it, and would wait.
    from flatout.system import usage

    target = os.path.realpath(folder.path) if runs.is_link(folder.path) else None
    num_bytes = usage.size_of(folder.path, set())
    run = read_or_name(folder)
    is_unfinished = isinstance(run, Run) and run.status != "finished"
    return Removal(
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
        raise UsageError("too-few-runs", "name two runs or more.", fix="see them: flatout runs")
    rows = [runs.read_run(runs.find_run(text)) for text in texts]
    return compare_runs(rows, [_listed(run).parameters for run in rows])
