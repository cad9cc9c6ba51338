"""From an experiment's name or file to the Experiment it describes."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from flatout.engine.experiment import Experiment
from flatout.engine.runtime.user_code import kind_text, location_of
from flatout.errors import UsageError
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.system.atomic_files import mapped_os_errors
from flatout.system.store.run_folder import RunFolder

# Checksum of the text of each experiment that this process has imported by its name.
_executed: dict[str, str] = {}


def load_experiment(spec: ExperimentSpec, *, copy_of: str | None = None) -> Experiment:
    """Builds the experiment that a spec names, with its parameters.

    Args:
        spec: what to build.
        copy_of: the original of the copy named in `spec`; data that is next to
            a file is looked for there.

    Raises:
        UsageError: experiment-changed, experiment-name-taken, bad-experiment.
    """
    module = _load_module(spec, copy_of)
    made = module.experiment(**spec.parameters)
    if not isinstance(made, Experiment):
        location = location_of(module.experiment)
        raise UsageError(
            "bad-experiment",
            f"`experiment()` in {spec.file or spec.name} returned {kind_text(made)}.",
            because=location.with_code if location is not None else None,
            fix=_right_return(made),
        )
    return made


def _right_return(made: Any) -> str:
    if made is None:
        return "write `return` before flatout.Experiment(...)"
    if isinstance(made, tuple) and any(isinstance(item, Experiment) for item in made):
        return "remove the comma after Experiment(...): it makes a tuple"
    return "return a flatout.Experiment(...)"


def stored_spec(folder: RunFolder, spec: ExperimentSpec) -> ExperimentSpec:
    """A run's spec with the copy of the experiment that the run keeps, where its file has changed.

    An unchanged file is used in place, since it may import others next to it.

    Raises:
        UsageError: experiment-not-kept.
    """
    if spec.file is None or _has_sha256(Path(spec.file), spec.sha256):
        return spec
    kept = folder.experiment_of(spec.sha256)
    if not kept.is_file():
        raise UsageError(
            "experiment-not-kept",
            f"run {folder.path.name} has no copy of its experiment.",
            because=f"{spec.file} is missing or changed, and {kept} is missing",
            fix="restore the file",
        )
    beside = str(Path(spec.file).parent)
    if beside not in sys.path and Path(beside).is_dir():
        sys.path.append(beside)
    return msgspec.structs.replace(spec, file=str(kept))


def spec_here(folder: RunFolder, spec: ExperimentSpec) -> ExperimentSpec:
    """A run's spec as this machine can load it.

    On another machine than the one where it was started, the experiment's file does not exist, and
    the copy in the run's folder is used. Here it is: the command line refuses a run without it.
    """
    if spec.file is None or Path(spec.file).exists():
        return spec
    return stored_spec(folder, spec)


def _has_sha256(path: Path, sha256: str | None) -> bool:
    if not path.is_file():
        return False
    with mapped_os_errors(path):
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def experiment_changed(path: Path) -> UsageError:
    """The error for a file that differs from the one the run was started or resumed with."""
    return UsageError(
        "experiment-changed",
        f"{path} is not the file this run was started with.",
        because="an exact resume needs the same code",
        fix="restore it (the run's folder has a copy, experiment.py), or continue with the "
        "changed file: --resume RUN --changed",
    )


def _load_module(spec: ExperimentSpec, copy_of: str | None) -> ModuleType:
    if spec.file is None:
        return importlib.import_module(f"flatout.experiments.{spec.name.replace('-', '_')}")
    path = Path(spec.file)
    with mapped_os_errors(path):
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    if spec.sha256 is not None and sha256 != spec.sha256:
        raise experiment_changed(path)
    _forget_compiled(path)
    if copy_of is not None and copy_of != spec.file:
        return _import_copy(path, copy_of)
    if _executed.get(path.stem, sha256) != sha256:
        # In a notebook, it may have been edited since.
        sys.modules.pop(path.stem, None)
    module = _import_by_name(path)
    _executed[path.stem] = sha256
    return module


def _forget_compiled(path: Path) -> None:
    """Removes what Python has compiled of a file, so that the text that the run keeps is trained.

    Python takes a file for unchanged if size and second are the same, as of two variants from one
    archive or checkout that are copied to the same name.
    """
    with contextlib.suppress(OSError, NotImplementedError):
        Path(importlib.util.cache_from_source(path)).unlink()


def _import_copy(path: Path, copy_of: str) -> ModuleType:
    """Imports a run's copy of an experiment as if it were in the experiment's folder."""
    name = path.stem
    # First, so that a loader's worker that imports it by name finds this one.
    sys.path.insert(0, str(path.parent))
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module.__file__ = copy_of
    # In place of another run's copy, which has the same name.
    sys.modules[name] = module
    module_spec.loader.exec_module(module)
    return module


def _import_by_name(path: Path) -> ModuleType:
    """Imports a file under its own name, so that spawned loader workers can import it, too.

    They are given this process's sys.path, and find the file in its folder.
    """
    name = path.stem
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module_spec = None
    if "." not in name and name not in sys.builtin_module_names:
        loaded = sys.modules.get(name)
        module_spec = loaded.__spec__ if loaded else importlib.util.find_spec(name)
    if (
        module_spec is None
        or not module_spec.origin
        or not _is_same_file(Path(module_spec.origin), path)
    ):
        raise UsageError(
            "experiment-name-taken",
            f"an experiment cannot be named `{path.name}`.",
            because="its name must be importable, and not that of another Python module "
            f"({module_spec.origin if module_spec else name})",
            fix="rename the file, to my_experiment.py for example",
        )
    return importlib.import_module(name)


def _is_same_file(path: Path, other_path: Path) -> bool:
    return path.exists() and other_path.exists() and path.samefile(other_path)
