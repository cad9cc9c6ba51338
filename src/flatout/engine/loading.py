"""From an experiment's name or file to the Experiment it describes."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import msgspec

from flatout.engine.experiment import Experiment
from flatout.errors import UsageError
from flatout.nouns.experiment_spec import ExperimentSpec
from flatout.system.runs import RunFolder
from flatout.system.store import mapped_os_errors


def load_experiment(spec: ExperimentSpec) -> Experiment:
    """Builds the experiment that a spec names, with its parameters.

    Raises:
        UsageError: experiment-changed, experiment-name-taken, bad-experiment.
    """
    module = _load_module(spec)
    made = module.experiment(**spec.parameters)
    if not isinstance(made, Experiment):
        raise UsageError(
            "bad-experiment",
            f"`experiment()` in {spec.file or spec.name} returned a {type(made).__name__}.",
            fix="return a flatout.Experiment(...)",
        )
    return made


def kept_spec(folder: RunFolder, spec: ExperimentSpec) -> ExperimentSpec:
    """A run's spec with the copy of the experiment that the run keeps, where its file has changed.

    A file that is as it was is used where it lies, since it may import others beside it.

    Raises:
        UsageError: experiment-not-kept.
    """
    if spec.file is None or _has_sha256(Path(spec.file), spec.sha256):
        return spec
    if not folder.experiment.is_file():
        raise UsageError(
            "experiment-not-kept",
            f"the run {folder.path.name} has no copy of its experiment.",
            because=f"{spec.file} is gone or was changed, and {folder.experiment} is missing",
            fix="put the file back",
        )
    beside = str(Path(spec.file).parent)
    if beside not in sys.path and Path(beside).is_dir():
        sys.path.append(beside)
    return msgspec.structs.replace(spec, file=str(folder.experiment))


def spec_here(folder: RunFolder, spec: ExperimentSpec) -> ExperimentSpec:
    """A run's spec as this machine can load it.

    On another machine than the one where it was begun, the experiment's file is not there, and
    the copy in the run's folder is used. Here it is: the command line refuses a run without it.
    """
    if spec.file is None or Path(spec.file).exists():
        return spec
    return kept_spec(folder, spec)


def _has_sha256(path: Path, sha256: str | None) -> bool:
    if not path.is_file():
        return False
    with mapped_os_errors(path):
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def _load_module(spec: ExperimentSpec) -> ModuleType:
    if spec.file is None:
        return importlib.import_module(f"flatout.experiments.{spec.name.replace('-', '_')}")
    path = Path(spec.file)
    with mapped_os_errors(path):
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    if spec.sha256 is not None and sha256 != spec.sha256:
        raise UsageError(
            "experiment-changed",
            f"{path} is not the file this run was begun with.",
            because="a resumed run repeats what it did; with another file it could not",
            fix="restore it (the run's folder has a copy, experiment.py), or go on with the "
            "changed file: --resume RUN --changed",
        )
    return _import_by_name(path)


def _import_by_name(path: Path) -> ModuleType:
    """Imports a file under its own name, so that spawned loader workers can import it, too.

    They are given this process's sys.path, and find the file in its folder.
    """
    name = path.stem
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    found = None
    if "." not in name and name not in sys.builtin_module_names:
        loaded = sys.modules.get(name)
        found = loaded.__spec__ if loaded else importlib.util.find_spec(name)
    if found is None or not found.origin or not _is_same_file(Path(found.origin), path):
        raise UsageError(
            "experiment-name-taken",
            f"an experiment cannot be named `{path.name}`.",
            because="its name must be importable, and not that of another Python module "
            f"({found.origin if found else name})",
            fix="rename the file, to my_experiment.py for example",
        )
    return importlib.import_module(name)


def _is_same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)
