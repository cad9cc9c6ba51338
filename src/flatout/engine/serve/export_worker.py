"""The process that exports: `python -m flatout.engine.serve.export_worker`.

Started by the command line. A request comes as a line of JSON on standard input, which then stays
open; replies go out as JSON lines. What torch and the experiment print goes to standard error.
"""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from flatout import __version__
from flatout.engine.predict.predictor import Predictor, load
from flatout.engine.runtime.error_map import to_flatout_error
from flatout.engine.serve import export_forms, export_int8
from flatout.engine.serve.computation import require_tensors
from flatout.engine.serve.export_forms import Answer, ExportSource
from flatout.engine.serve.inference_recipe import difference
from flatout.engine.serve.input_reader import InputReader, named_tensors
from flatout.engine.serve.run_warm_up import json_example, output_specs, specs_with_varying
from flatout.engine.serve.sample_inputs import SampleInputs, find_sample_inputs
from flatout.engine.session.session import process_settings
from flatout.engine.tensors.nested import tensors_in, with_tensors
from flatout.errors import RunFailed
from flatout.schema.export_protocol import (
    ExportCheck,
    Exported,
    ExportedFacts,
    Exporting,
    ExportJob,
    ExportReply,
)
from flatout.schema.finding import finding_from, internal_error
from flatout.schema.predict_protocol import Noted, ProcessFailed
from flatout.system.atomic_files import hidden_path, mapped_os_errors, move_into_place
from flatout.system.exit_code import end
from flatout.system.json_process import JsonStdio
from flatout.system.scratch_files import ScratchFiles

# By which 8 bits are judged; and from which the ranges of activations are taken.
_NUM_JUDGED = 1000
_NUM_CALIBRATION = 128
# Relative to the largest number. The same operations in another order differ by less.
_TOLERANCE = 1e-4


def main() -> int:
    """Handles one request; gives the exit code."""
    stdio = JsonStdio()
    try:
        job = stdio.read(ExportJob)
        stdio.exit_when_closed()
        for reply in export(job):
            stdio.answers.write(reply)
    except BrokenPipeError:
        return 1
    except (Exception, SystemExit) as error:  # noqa: BLE001 - every exception is reported
        traceback.print_exc()
        failure = _failure(error)
        stdio.answers.write(failure)
        return failure.exit_code
    return 0


def export(job: ExportJob) -> Iterator[ExportReply]:
    """Exports a run; yields what it does, and at last what was written.

    Raises:
        UsageError, RunFailed: nothing was written.
    """
    yield Exporting(what="loading the weights")
    # One form for every machine: the file computes in fp32, whatever the run was trained in.
    predictor = load(
        job.folder,
        use={"device": "cpu", "precision": "fp32", "memory_format": "contiguous"},
        parameters=job.parameters,
        experiment=job.experiment,
    )
    for finding in predictor.findings:
        yield Noted(finding=finding)
    with ExitStack() as stack:
        stack.enter_context(predictor.fitted())
        stack.enter_context(process_settings(predictor.recipe))
        scratch = stack.enter_context(ScratchFiles())
        reader = InputReader(predictor.experiment, scratch)
        yield Exporting(what="reading samples")
        count = _NUM_JUDGED if job.is_int8 else export_forms.NUM_CHECKED
        samples = find_sample_inputs(predictor, reader, count)
        if samples is None:
            raise export_forms.no_samples()
        if job.form in ("onnx", "pt2"):
            require_tensors(predictor, samples.piece(0, 1))
        samples = _at_least_two(samples)
        source = ExportSource(
            predictor=predictor, samples=samples, facts=_facts(predictor, samples, job)
        )
        with _unfinished(Path(job.output)) as part:
            yield Exporting(what=f"writing {part.name}")
            opset = _write(source, part, job)
            checked = None
            if job.is_int8:
                yield Exporting(what="quantizing")
                calibration = find_sample_inputs(
                    predictor, reader, _NUM_CALIBRATION, names=("training", "validation")
                )
                assert calibration is not None
                checked = _quantized(source, part, calibration)
            yield Exporting(what="checking it")
            checked = checked or _checked(source, _answer(source, part, job))
    yield Exported(
        path=job.output, form=job.form, size_bytes=export_forms.size_of(Path(job.output)),
        facts=source.facts, checked=checked, opset=opset,
    )  # fmt: skip


def _write(source: ExportSource, part: Path, job: ExportJob) -> int | None:
    if job.form == "onnx":
        return export_forms.write_onnx(source, part, job.opset)
    writers = {
        "pt2": export_forms.write_program,
        "safetensors": export_forms.write_safetensors,
        "hf": export_forms.write_transformers,
    }
    writers[job.form](source, part)
    return None


def _answer(source: ExportSource, part: Path, job: ExportJob) -> Answer:
    readers = {
        "onnx": export_forms.answer_onnx,
        "pt2": export_forms.answer_program,
        "safetensors": export_forms.answer_safetensors,
        "hf": export_forms.answer_transformers,
    }
    return readers[job.form](source, part)


def _facts(predictor: Predictor, samples: SampleInputs, job: ExportJob) -> ExportedFacts:
    experiment = predictor.experiment
    is_graph = job.form in ("onnx", "pt2")
    predictions = predictor.compute(samples.piece(0, 1), 1)
    what = "`predict` of the experiment" if experiment.predict is not None else "the model"
    readers = [name for name in ("decode", "predict_data")
               if getattr(experiment, name) is not None]  # fmt: skip
    preprocessing = f"the inputs are what {what} takes"
    if readers:
        preprocessing += f"; what {' and '.join(readers)} make of a file is not part of it"
    return ExportedFacts(
        flatout=__version__,
        run=Path(job.folder).name,
        step=predictor.step,
        inputs=specs_with_varying(samples) if is_graph else (),
        outputs=output_specs(predictions) if is_graph else (),
        labels=None if experiment.labels is None else tuple(experiment.labels),
        unit=experiment.unit,
        precision="int8" if job.is_int8 else "fp32",
        preprocessing=preprocessing if is_graph else "",
        example=json_example(samples) if is_graph else None,
    )


def _at_least_two(samples: SampleInputs) -> SampleInputs:
    """A graph that was made with one sample may be one for one sample alone."""
    if samples.num_samples > 1:
        return samples
    content: Any = samples.content
    if next(tensors_in(content), None) is None:
        return replace(samples, content=[*content, *content], num_samples=2, targets=None)
    doubled = (torch.cat([tensor, tensor]) for tensor in tensors_in(content))
    return replace(
        samples, content=with_tensors(content, doubled), num_samples=2, targets=None
    )  # fmt: skip


def _checked(source: ExportSource, answer: Answer) -> ExportCheck:
    """Compares the answers of the file with the run's.

    Raises:
        RunFailed: exported-model-differs.
    """
    samples = source.samples
    most = min(samples.num_samples, export_forms.NUM_CHECKED)
    sizes = tuple(sorted({1, min(3, most), most}))
    worst = 0.0
    for size in sizes:
        batch = samples.piece(0, size)
        expected, found = source.predictor.compute(batch, size), answer(batch)
        worst = max(worst, _largest_difference(expected, found))
    if not worst <= _TOLERANCE:
        raise RunFailed(
            "exported-model-differs",
            "the exported model does not answer as the run does; it was removed.",
            because=f"numbers differ by {worst:.2g} of the largest one; {_TOLERANCE:g} is allowed",
            fix="export it in another form, such as --to safetensors",
        )
    return ExportCheck(
        num_samples=most, data=samples.data, batch_sizes=sizes, difference=worst,
        tolerance=_TOLERANCE,
    )  # fmt: skip


def _largest_difference(expected: Any, found: Any) -> float:
    named, others = named_tensors(expected), named_tensors(found)
    if not named:
        return 0.0 if expected == found else float("inf")
    if named.keys() != others.keys():
        return float("inf")
    return max(
        difference(part, others[name]) if part.shape == others[name].shape else float("inf")
        for name, part in named.items()
    )


def _quantized(source: ExportSource, part: Path, calibration: SampleInputs) -> ExportCheck:
    """Replaces a checked file by its 8-bit form, if that is as good."""
    checked = _checked(source, export_forms.answer_onnx(source, part))
    small = part.with_name(f"int8-{part.name}")
    export_int8.quantize(part, small, calibration)
    samples, labels = source.samples, source.facts.labels
    full = export_forms.answer_onnx(source, part)
    answer = export_forms.answer_onnx(source, small)
    metric, before, after = export_int8.judged(
        samples, full, answer, None if labels is None else len(labels)
    )
    move_into_place(small, part)
    compared = samples.piece(0, checked.num_samples)
    return msgspec.structs.replace(
        checked, num_samples=samples.num_samples,
        difference=_largest_difference(full(compared), answer(compared)),
        metric=metric, before=before, after=after, allowed_fall=export_int8.ALLOWED_FALL,
    )  # fmt: skip


@contextmanager
def _unfinished(output: Path) -> Iterator[Path]:
    """A path of the same name in a hidden folder; moved into its place if nothing is raised."""
    with mapped_os_errors(output):
        hidden = hidden_path(output)
        hidden.mkdir()
    try:
        part = hidden / output.name
        yield part
        with mapped_os_errors(output):
            move_into_place(part, output)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _failure(error: BaseException) -> ProcessFailed:
    known = to_flatout_error(error)
    if known is None:
        return ProcessFailed(finding=internal_error(error), exit_code=3)
    return ProcessFailed(finding=finding_from(known), exit_code=known.exit_code)


if __name__ == "__main__":
    end(main())
