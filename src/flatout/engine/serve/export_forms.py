"""Writes a run's weights in each form, and reads a form again to answer with it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from flatout.engine.predict.predictor import Predictor
from flatout.engine.runtime.error_map import one_line
from flatout.engine.serve.computation import Computation, exported_program, not_exportable
from flatout.engine.serve.onnx_model import missing_package, open_session
from flatout.engine.serve.program_model import load_program
from flatout.engine.serve.sample_inputs import SampleInputs
from flatout.engine.tensors.nested import tensors_in
from flatout.engine.training.weights_file import keep_weights, load_weights, read_weights
from flatout.errors import RunFailed, UsageError
from flatout.schema.export_protocol import FACTS, FACTS_FILE, ExportedFacts
from flatout.schema.serve_protocol import ReplicaStart
from flatout.schema.units import bytes_text
from flatout.system.atomic_files import write_json

# A file of Protocol Buffers holds 2 GiB.
_MOST_ONNX_BYTES = 1_900_000_000

# Samples that are computed in one call.
NUM_CHECKED = 64

# Predictions for a batch, as the exported file computes them.
Answer = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class ExportSource:
    """What is exported, and what it is checked with."""

    predictor: Predictor
    samples: SampleInputs
    facts: ExportedFacts


def write_onnx(source: ExportSource, path: Path, opset: int | None) -> int:
    """Writes an ONNX file, and gives its opset.

    Raises:
        UsageError: package-not-installed, model-not-exportable.
    """
    for name in ("onnx", "onnxscript"):
        _require(name)
    num_bytes = sum(tensor.nbytes for tensor in source.predictor.model.state_dict().values())
    if num_bytes > _MOST_ONNX_BYTES:
        raise not_exportable(f"its weights have {bytes_text(num_bytes)}; ONNX files hold 2 GiB")
    program, facts = _program(source)
    try:
        exported = torch.onnx.export(
            program,
            dynamo=True,
            input_names=[spec.name for spec in facts.inputs],
            output_names=[spec.name for spec in facts.outputs],
            opset_version=opset,
            verbose=False,
        )
    except Exception as error:
        raise not_exportable(f"torch.onnx.export: {one_line(error)}") from error
    assert exported is not None
    exported.model.metadata_props[FACTS] = msgspec.json.encode(facts).decode()
    exported.save(path, external_data=False)
    return int(exported.model.opset_imports[""])


def write_program(source: ExportSource, path: Path) -> None:
    """Writes a file of `torch.export`."""
    program, facts = _program(source)
    # The example inputs would be pickled, and are not needed to load the file.
    program.example_inputs = None
    torch.export.save(program, path, extra_files={FACTS_FILE: msgspec.json.encode(facts).decode()})


def write_safetensors(source: ExportSource, path: Path) -> None:
    """Writes the weights, with the facts in the file's metadata."""
    facts = msgspec.json.encode(source.facts).decode()
    keep_weights(source.predictor.model, path, {FACTS: facts, "format": "pt"})


def write_transformers(source: ExportSource, folder: Path) -> None:
    """Writes a folder for `from_pretrained` of the transformers library.

    Raises:
        UsageError: model-is-not-of-transformers.
    """
    model: Any = source.predictor.model
    if not is_of_transformers(model):
        raise UsageError(
            "model-is-not-of-transformers",
            f"the model is a {type(model).__name__}, not a PreTrainedModel of transformers.",
            because="only such a model can be loaded with `from_pretrained`",
            fix="use --to safetensors for its weights, or --to onnx",
        )
    model.save_pretrained(folder)
    write_json(folder / FACTS_FILE, source.facts)


def is_of_transformers(model: nn.Module) -> bool:
    """Whether a model is one of the transformers library, which is loaded then."""
    return any(
        kind.__name__ == "PreTrainedModel" and kind.__module__.startswith("transformers.")
        for kind in type(model).__mro__
    )


def answer_onnx(source: ExportSource, path: Path) -> Answer:
    """The predictions of a fresh session."""
    session, _ = open_session(path, ReplicaStart(model=str(path)))
    names = [output.name for output in session.get_outputs()]
    inputs = [given.name for given in session.get_inputs()]

    def answer(content: Any) -> dict[str, Tensor]:
        arrays = [tensor.numpy() for tensor in tensors_in(content)]
        outputs = session.run(names, dict(zip(inputs, arrays, strict=True)))
        return {name: torch.from_numpy(part) for name, part in zip(names, outputs, strict=True)}

    return answer


def answer_program(source: ExportSource, path: Path) -> Answer:
    """The predictions of a program that was loaded again."""
    module, facts = load_program(path)
    names = [spec.name for spec in facts.outputs]

    def answer(content: Any) -> dict[str, Tensor]:
        with torch.inference_mode():
            return dict(zip(names, module(*tensors_in(content)), strict=True))

    return answer


def answer_safetensors(source: ExportSource, path: Path) -> Answer:
    """The predictions of a new model that was given the weights in the file."""
    tensors, _ = read_weights(path)
    model = source.predictor.experiment.model()
    load_weights(model, tensors, path, are_own=True)
    return _answer_of(source, model)


def answer_transformers(source: ExportSource, folder: Path) -> Answer:
    """The predictions of the model that `from_pretrained` loads."""
    model: Any = type(source.predictor.model)
    return _answer_of(source, model.from_pretrained(folder))


def _answer_of(source: ExportSource, model: nn.Module) -> Answer:
    predictor = replace(source.predictor, model=model.eval())
    return lambda content: predictor.compute(content, num_samples_in(content))


def num_samples_in(content: Any) -> int:
    """The samples of a batch: of tensors, their first dimension; of a list, its length."""
    first = next(tensors_in(content), None)
    return len(content) if first is None else len(first)


def _program(source: ExportSource) -> tuple[torch.export.ExportedProgram, ExportedFacts]:
    content = source.samples.piece(0, NUM_CHECKED)
    computation = Computation(source.predictor, content).eval()
    return exported_program(computation, content, source.samples.varying), source.facts


def _require(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise missing_package(name, error) from error


def size_of(path: Path) -> int:
    """The bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
    return sum(item.stat().st_size for item in files)


def no_samples() -> RunFailed:
    """The error where there is nothing to check an exported file with."""
    return RunFailed(
        "no-samples-to-check",
        "there is no data to check the exported file with.",
        because="neither the validation nor the training data could be read in the form that "
        "`predict` takes",
        fix="export where the run's data is; or give the experiment a `decode`: flatout docs "
        "export",
    )
