"""Loads an exported .pt2 file, as `torch.export` has written it, after `program_check.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch

from flatout.engine.predict.array_rows import Array
from flatout.engine.runtime.device import chosen_device, use_device
from flatout.engine.runtime.error_map import one_line
from flatout.engine.serve.exported_model import ExportedModel, num_threads_of
from flatout.engine.serve.program_check import check_archive
from flatout.errors import FlatoutError, RunFailed
from flatout.schema.export_protocol import FACTS_FILE, ExportedFacts
from flatout.schema.serve_protocol import ReplicaStart

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
    use_device(device)
    threads = num_threads_of(start)
    if threads is not None:
        torch.set_num_threads(threads)
    module, facts = load_program(path)
    module.to(device)
    names = [spec.name for spec in facts.outputs]

    def compute(arrays: Sequence[Array]) -> Mapping[str, Array]:
        with torch.inference_mode():
            outputs = module(*(torch.from_numpy(array).to(device) for array in arrays))
        return {name: output.cpu().numpy() for name, output in zip(names, outputs, strict=True)}

    return ExportedModel(path.name, "pt2", facts, str(device), compute, threads)


def load_program(path: Path) -> tuple[torch.nn.Module, ExportedFacts]:
    """The module in a file, and what the file says of itself."""
    extra = {FACTS_FILE: ""}
    try:
        check_archive(path)
        with _only_tensors():
            program = torch.export.load(path, extra_files=extra)
        facts = msgspec.json.decode(extra[FACTS_FILE], type=ExportedFacts)
        # Guards are code in the file; the shapes of inputs are checked before they come here.
        return program.module(check_guards=False), facts
    except FlatoutError:
        raise
    except Exception as error:
        raise RunFailed(
            "exported-file-not-readable",
            f"torch {torch.__version__} cannot load {path}.",
            because=one_line(error),
            fix="export the run again with this version of torch: flatout export RUN --to pt2",
        ) from error


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
