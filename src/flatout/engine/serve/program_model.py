"""Loads an exported .pt2 file, as `torch.export` has written it.

torch unpickles parts of such a file (torch 2.13, `export/pt2_archive/_package.py`: weights and
constants marked as pickled, objects, example inputs) and loads libraries from it, so that a file
from elsewhere could run any code. Here a file with any of these is refused before torch opens it,
and torch is held to tensors in the rest.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch

from flatout.engine.runtime.device import chosen_device
from flatout.engine.runtime.error_map import one_line
from flatout.engine.serve.exported_model import ExportedModel
from flatout.engine.serve.input_arrays import Array
from flatout.errors import RunFailed
from flatout.schema.export_protocol import FACTS_FILE, ExportedFacts
from flatout.schema.serve_protocol import ReplicaStart

# Where in an archive torch keeps what it reads; tests compare them with torch's own.
_PLAIN = (
    "archive_format", "archive_version", "byteorder", ".data/", ".format_version",
    ".storage_alignment", "version", "data/extra_files/", "extra/", "models/", "data/weights/",
    "data/constants/", "data/sample_inputs/",
)  # fmt: skip
_CONFIGS = ("_weights_config.json", "_constants_config.json")
# torch's own switch: with it `torch.load` reads tensors and plain values, and nothing else.
_ONLY_TENSORS = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def open_program(start: ReplicaStart) -> ExportedModel:
    """A file as a model.

    Raises:
        RunFailed: exported-file-not-readable, exported-file-not-safe.
        UsageError: device-not-here.
    """
    path = Path(start.model)
    device = chosen_device(start.fixed.get("device", "cpu"))
    threads = start.fixed.get("num_threads") or start.num_threads
    if threads:
        torch.set_num_threads(threads)
    module, facts = load_program(path)
    module.to(device)
    names = [spec.name for spec in facts.outputs]

    def compute(arrays: Sequence[Array]) -> Mapping[str, Array]:
        with torch.inference_mode():
            outputs = module(*(torch.from_numpy(array).to(device) for array in arrays))
        return {name: output.cpu().numpy() for name, output in zip(names, outputs, strict=True)}

    recipe = [f"num_threads={threads}: its share of the machine"] if threads else []
    return ExportedModel(path.name, "pt2", facts, str(device), compute, recipe)


def load_program(path: Path) -> tuple[torch.nn.Module, ExportedFacts]:
    """The module in a file, and what the file says of itself."""
    extra = {FACTS_FILE: ""}
    check_archive(path)
    try:
        with _only_tensors():
            program = torch.export.load(path, extra_files=extra)
        facts = msgspec.json.decode(extra[FACTS_FILE], type=ExportedFacts)
        return program.module(), facts
    except Exception as error:
        raise _not_readable(path, one_line(error)) from error


def check_archive(path: Path) -> None:
    """Refuses an archive in which something is pickled, or compiled.

    Raises:
        RunFailed: exported-file-not-readable, exported-file-not-safe.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.lower() for name in archive.namelist()]
            if len(set(names)) < len(names):
                # Of two files with one name, torch may read the other one.
                raise _not_safe(path, "two files in it have the same name")
            for name in archive.namelist():
                inner = name.lower().partition("/")[2]
                if not inner.startswith(_PLAIN):
                    raise _not_safe(path, f"it contains {name}")
                if inner.startswith(("data/weights/", "data/constants/")):
                    _check_payload(path, inner, archive, name)
    except (OSError, zipfile.BadZipFile, ValueError, KeyError, AttributeError) as error:
        raise _not_readable(path, one_line(error)) from error


def _check_payload(path: Path, inner: str, archive: zipfile.ZipFile, name: str) -> None:
    if inner.endswith(".pt"):
        raise _not_safe(path, f"{name} is pickled")
    if not inner.endswith(_CONFIGS):
        return
    for payload, entry in _config(archive.read(name)).items():
        is_tensor = entry["path_name"].rpartition("/")[2].startswith(("weight_", "tensor_"))
        if entry["use_pickle"] is not False or not is_tensor:
            raise _not_safe(path, f"{payload} is pickled")


def _config(content: bytes) -> dict[str, dict[str, Any]]:
    config: dict[str, dict[str, Any]] = json.loads(content)["config"]
    return config


@contextmanager
def _only_tensors() -> Iterator[None]:
    before = os.environ.get(_ONLY_TENSORS)
    os.environ[_ONLY_TENSORS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ONLY_TENSORS]
        else:
            os.environ[_ONLY_TENSORS] = before


def _not_safe(path: Path, because: str) -> RunFailed:
    return RunFailed(
        "exported-file-not-safe",
        f"{path} is not loaded, because it could run any code.",
        because=because,
        fix="export the run again: flatout export RUN --to pt2; or serve the run itself",
    )


def _not_readable(path: Path, because: str) -> RunFailed:
    return RunFailed(
        "exported-file-not-readable",
        f"torch {torch.__version__} cannot load {path}.",
        because=because,
        fix="export the run again with this version of torch: flatout export RUN --to pt2",
    )
