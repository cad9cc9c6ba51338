"""The sketch of a new experiment: its task and its data."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterator
from pathlib import PurePath

import msgspec

from flatout.errors import UsageError, nearest
from flatout.schema.finding import Finding, option_without_effect

# Task: the data it can be shown with; the first is meant where nothing else is said.
DATA_OF = {
    "classification": (
        "synthetic", "images", "csv", "parquet", "huggingface", "tensors", "shards",
    ),
    "regression": ("synthetic", "csv", "parquet", "huggingface", "tensors", "shards"),
    "language-model": ("synthetic", "text", "huggingface", "shards"),
}  # fmt: skip
TASKS = tuple(DATA_OF)
TABLES = ("csv", "parquet")
# What `flatout ingest` has made of each kind of source, as what it is handed to a model.
CONTENT_OF = {"idx": "tensors", "images": "images", "csv": "csv", "parquet": "parquet",
              "text": "text"}  # fmt: skip
_ENDINGS = {
    ".csv": "csv", ".parquet": "parquet", ".txt": "text", ".safetensors": "tensors",
}  # fmt: skip
_DEVICES = ("con", "prn", "aux", "nul")
_PORTS = ("com", "lpt")
# Source: "Naming Files, Paths, and Namespaces" in Microsoft's documentation of Windows.
_RESERVED = {*_DEVICES, *(f"{port}{number}" for port in _PORTS for number in range(10))}
# What a written file may import, or what that imports in turn, here or where it is trained; a file
# of the same name would be imported instead.
_LIBRARIES = {
    "PIL", "datasets", "flatout", "matplotlib", "numpy", "pandas", "pyarrow", "safetensors",
    "torch", "transformers",
}  # fmt: skip


class NewExperimentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of `flatout new` as data; None for options not given."""

    name: str
    task: str | None = None
    data: str | None = None
    path: str | None = None
    target: str | None = None

    @property
    def settled_task(self) -> str:
        """The requested task; else the only one that fits the data, else the first."""
        if self.task is not None:
            return self.task
        kind = self.data or _kind_of(self.path)
        return next((task for task, kinds in DATA_OF.items() if kind in kinds), TASKS[0])

    @property
    def settled_data(self) -> str:
        """The requested kind of data, else what the path looks like, else synthetic.

        Raises:
            UsageError: data-for-another-task.
        """
        kinds = DATA_OF[self.settled_task]
        kind = self.data or _kind_of(self.path) or kinds[0]
        if self.path is not None and self.data is None and _kind_of(self.path) is None:
            # A folder, most likely.
            kind = "images" if "images" in kinds else "huggingface"
        if kind not in kinds:
            raise UsageError(
                "data-for-another-task",
                f"there is no template for the task {self.settled_task} with {kind} data.",
                fix=nearest(kind, kinds),
            )
        return kind

    def warnings(self) -> Iterator[Finding]:
        """Warns about options that have no effect."""
        kind = self.settled_data
        if self.path is not None and kind == "synthetic":
            yield _without_effect("--path", "synthetic data has no path")
        if self.target is not None and kind not in (*TABLES, "shards"):
            yield _without_effect("--target", f"{kind} data has no columns to choose from")
        elif self.target is not None and self.path is None:
            yield _without_effect("--target", "without --path the data is synthetic")


class NewExperiment(msgspec.Struct, frozen=True, kw_only=True):
    """The experiment to write.

    path: where the data is: below the folder of the new file if is_path_beside, else absolute;
        None for synthetic data.
    target: the column of a table to predict.
    ingested: for shards, the kind of what they were made of. held_out: their part to validate on.
    """

    name: str
    task: str
    data: str
    path: str | None = None
    is_path_beside: bool = False
    target: str | None = None
    ingested: str | None = None
    held_out: str = "validation"

    @property
    def is_made_up(self) -> bool:
        """Whether there is no data yet."""
        return self.path is None

    @property
    def content(self) -> str:
        """The content of the samples, whatever they are kept in."""
        if self.ingested is not None:
            return CONTENT_OF[self.ingested]
        if self.data != "shards":
            return self.data
        return "text" if self.task == "language-model" else "tensors"


def check_name(text: str) -> str:
    """The name of a new experiment's file, without its ending.

    Raises:
        UsageError: bad-experiment-name.
    """
    name = text.removesuffix(".py")
    because = None
    if not name.isidentifier():
        because = "the file is imported by its name: letters, digits and _, no digit first"
    elif keyword.iskeyword(name):
        because = f"`{name}` is a reserved word in Python"
    elif name.lower() in _RESERVED:
        because = f"Windows reserves the name {name} for a device"
    elif name in sys.stdlib_module_names or name in _LIBRARIES:
        because = f"it would hide the module of that name: `import {name}`"
    if because is None:
        return name
    raise UsageError(
        "bad-experiment-name",
        f"an experiment cannot be named `{text}`.",
        because=because,
        fix=f"use another name: flatout new {proposed_name(text)}",
    )


def proposed_name(text: str) -> str:
    """A name for an experiment's file that is as near as can be to what was given."""
    name = re.sub(r"\W+", "_", text.removesuffix(".py")).strip("_")
    name = f"net_{name}" if name[:1].isdigit() else name
    return f"my_{name}" if not name.isidentifier() or _is_taken(name) else name


def _is_taken(name: str) -> bool:
    is_module = name in sys.stdlib_module_names or name in _LIBRARIES
    return keyword.iskeyword(name) or name.lower() in _RESERVED or is_module


def _kind_of(path: str | None) -> str | None:
    return None if path is None else _ENDINGS.get(PurePath(path).suffix.lower())


def _without_effect(option: str, because: str) -> Finding:
    return option_without_effect(option, because, "leave it out, or choose another --data")
