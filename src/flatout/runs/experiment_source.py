"""Sources of experiments: built-in names, and files. Their text is read, never imported."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import sys
from pathlib import Path

import msgspec

import flatout
from flatout.errors import FlatoutError, UsageError, nearest, nearest_name
from flatout.schema.change import Change
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.suggested_command import resume_command
from flatout.system.atomic_files import mapped_os_errors, write_atomically
from flatout.system.store.run_folder import RunFolder, find_run

_BUILT_INS = Path(flatout.__file__).parent / "experiments"
# Modules that are there before an experiment is.
_LOADED_BY_WORKER = ("flatout", "torch", "numpy", "msgspec", "psutil", "safetensors")
# Of a folder, so many files are looked through, none of them larger than this.
_MOST_FILES, _MOST_BYTES = 200, 1 << 20
_DEFINITION = re.compile(r"^def experiment\(", re.MULTILINE)


class ExperimentSource(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment's text. file, sha256: of a user's own file; None for a built-in."""

    name: str
    text: str
    file: str | None = None
    sha256: str | None = None

    @property
    def place(self) -> str:
        """Its name in messages."""
        return self.file or f"the built-in `{self.name}`"


def built_in_names() -> list[str]:
    """Names of the built-in experiments, with dashes where their files have underscores."""
    stems = [path.stem for path in _BUILT_INS.glob("*.py") if not path.name.startswith("_")]
    return sorted(stem.replace("_", "-") for stem in stems)


def files_here() -> list[str]:
    """Names of the experiment files in the current folder."""
    with mapped_os_errors(Path()), os.scandir() as entries:
        named = (entry for entry in entries if _is_source(entry))
        found = list(itertools.islice(named, _MOST_FILES))
    return sorted(entry.name for entry in found if _has_experiment(entry))


def _is_source(entry: os.DirEntry[str]) -> bool:
    # `find_source` takes ~name for the home of a user.
    return entry.name.endswith(".py") and entry.name[0] not in ".~" and entry.is_file()


def _has_experiment(entry: os.DirEntry[str]) -> bool:
    try:
        is_small = entry.stat().st_size <= _MOST_BYTES
        return is_small and _DEFINITION.search(_read_file(Path(entry.path)).text) is not None
    except (FlatoutError, OSError):
        return False


def find_source(text: str | None) -> ExperimentSource:
    """A built-in by its name, or a file by its path.

    Raises:
        UsageError: experiment-missing, unknown-experiment, experiment-file-not-found,
            experiment-not-text.
    """
    if not text:
        raise UsageError(
            "experiment-missing",
            "which experiment?",
            because=f"built-in experiments: {', '.join(built_in_names())}",
            fix="name one of them, or a .py file: flatout train digits",
        )
    if text in built_in_names():
        built_in = _BUILT_INS / f"{text.replace('-', '_')}.py"
        return ExperimentSource(name=text, text=built_in.read_text(encoding="utf-8"))
    path = Path(text).expanduser().absolute()
    if path.suffix == ".py" and path.is_file():
        return _read_file(path)
    if path.suffix == ".py" or len(Path(text).parts) > 1:
        raise _no_such_file(text, path)
    beside = path.with_suffix(".py")
    raise UsageError(
        "unknown-experiment",
        f"there is no built-in experiment `{text}`.",
        because="a name without `.py` means a built-in experiment",
        fix=f"for a file: flatout train {text}.py"
        if beside.is_file()
        else f"{nearest(text, built_in_names())}, or give the path of a .py file",
    )


def check_name(source: ExperimentSource) -> None:
    """Refuses a file that could not be imported by its name, before anything is started.

    Raises:
        UsageError: experiment-name-taken.
    """
    taken = (*sys.stdlib_module_names, *_LOADED_BY_WORKER)
    if source.file is not None and source.name in taken:
        raise UsageError(
            "experiment-name-taken",
            f"an experiment cannot be named `{source.name}.py`.",
            because="the file is imported by its name, and another Python module is called "
            f"`{source.name}`",
            fix=f"rename the file, to my_{source.name}.py for example",
        )


def find_weights(text: str) -> str:
    """The absolute path of weights to begin with: a safetensors file, a run's best weights, or the
    folder of a run that has a checkpoint and no best weights yet.

    Raises:
        UsageError: weights-not-found, unknown-run.
    """
    path = Path(text).expanduser().absolute()
    if path.is_file():
        if path.suffix == ".safetensors":
            return str(path)
        raise UsageError(
            "weights-not-found",
            f"{text} is not a safetensors file.",
            because="other formats may run code when loaded",
            fix="convert it with safetensors.torch.save_file, or name a run",
        )
    if path.suffix == ".safetensors":
        raise UsageError(
            "weights-not-found",
            f"file not found: {text}",
            fix="give the path of a safetensors file, or the name of a run",
        )
    folder = find_run(text)
    if folder.weights.is_file():
        return str(folder.weights)
    if folder.checkpoint_steps():
        return str(folder.path)
    raise UsageError(
        "weights-not-found",
        f"run {folder.path.name} has no weights yet.",
        because="it has neither best weights nor a checkpoint",
        fix="choose another run: flatout runs",
    )


def copy_source(file: Path, target: Path) -> None:
    """Keeps an experiment's text next to the run that it made."""
    with mapped_os_errors(file):
        content = file.read_bytes()
    write_atomically(target, content)


def require_source(file: str | None, copied: Path) -> None:
    """Makes sure that the file a run was started with is still where it was.

    Args:
        file: as recorded in the run; None for a built-in.
        copied: the copy in the run's folder.

    Raises:
        UsageError: experiment-file-not-found.
    """
    if file is None or Path(file).is_file():
        return
    if not copied.is_file():
        raise UsageError(
            "experiment-file-not-found",
            f"the experiment file of this run no longer exists: {file}",
            fix="restore the file; the run cannot resume without it",
        )
    copy = "copy" if sys.platform == "win32" else "cp"
    raise UsageError(
        "experiment-file-not-found",
        f"the experiment file of this run no longer exists: {file}",
        because="it was renamed, moved or deleted; the run holds a copy of it",
        fix=f'{copy} "{copied}" "{file}"',
    )


def copied_text(copied: Path) -> str:
    """The text of the copy that a run keeps of its experiment; empty where there is none."""
    return _read_file(copied).text if copied.is_file() else ""


def refuse_changed(spec: ExperimentSpec, folder: RunFolder, change: Change) -> None:
    """Refuses to continue with a run whose experiment file has another text now.

    Args:
        spec: of the run.
        folder: of the run.
        change: what else the resume changes.

    Raises:
        UsageError: experiment-changed.
    """
    if spec.file is None or not Path(spec.file).is_file():
        return
    source = _read_file(Path(spec.file))
    if spec.sha256 is not None and source.sha256 != spec.sha256:
        raise UsageError(
            "experiment-changed",
            f"{spec.file} has changed since the run started.",
            because="an exact resume needs the same code",
            fix="to continue with the changed file: "
            + resume_command(folder.typed, change, is_changed=True)
            + f"; the run keeps the file as it was: {folder.experiment_of(spec.sha256)}",
        )


def _read_file(path: Path) -> ExperimentSource:
    with mapped_os_errors(path):
        content = path.read_bytes()
    try:
        # Python's own rule for sources: UTF-8, with or without a byte order mark.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            "experiment-not-text",
            f"{path} is not UTF-8 text.",
            because=str(error),
            fix="save it as UTF-8",
        ) from error
    digest = hashlib.sha256(content).hexdigest()
    return ExperimentSource(name=path.stem, text=text, file=str(path), sha256=digest)


def _no_such_file(text: str, path: Path) -> UsageError:
    if path.is_dir():
        return UsageError(
            "experiment-file-not-found",
            f"{text} is a folder.",
            fix="give the path of a .py file, or one of: " + ", ".join(built_in_names()),
        )
    if path.is_file():
        return UsageError(
            "experiment-file-not-found",
            f"{text} is not a Python file.",
            because="an experiment is a .py file with a function `experiment`",
            fix="give the path of a .py file, or one of: " + ", ".join(built_in_names()),
        )
    built_in = path.stem.replace("_", "-")
    # The ending, which all of them have, makes no two names alike.
    near = nearest_name(path.stem, [sibling.stem for sibling in path.parent.glob("*.py")])
    if built_in in built_in_names():
        fix = f"for the built-in: flatout train {built_in}"
    elif near is not None:
        fix = f"did you mean `{near}.py`?"
    else:
        fix = "give the path of a .py file, or one of: " + ", ".join(built_in_names())
    return UsageError(
        "experiment-file-not-found",
        f"file not found: {text}",
        because=f"looked in {path.parent}",
        fix=fix,
    )
