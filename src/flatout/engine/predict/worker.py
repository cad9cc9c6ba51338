"""The process that predicts and evaluates: `python -m flatout.engine.predict.worker`.

Started by the command line. A request comes as a line of JSON on standard input, which then stays
open: its end means that the parent no longer waits. Replies go out as JSON lines. What the
experiment's own code prints goes to standard error.
"""

from __future__ import annotations

import traceback
from math import isfinite
from pathlib import Path

from flatout.engine.runtime.fast_import import import_quickly

if __name__ == "__main__":
    # Before all that imports it.
    import_quickly("torch")

from flatout.engine.data.fitted import fitted_for
from flatout.engine.data.tensor_files import read_tensors
from flatout.engine.predict.inputs import InputBatch, UnreadableInput, batches_of
from flatout.engine.predict.outputs import Output, RowFormat, open_output
from flatout.engine.predict.predictor import Predictor, load
from flatout.engine.runtime import rng
from flatout.engine.runtime.error_map import is_out_of_memory, raised_at, to_flatout_error
from flatout.engine.runtime.lazy_compiler import defer_compiler_on_cpu
from flatout.engine.session.validation import classified
from flatout.errors import FlatoutError, RunFailed
from flatout.schema.finding import (
    Finding,
    Fix,
    finding_from,
    internal_error,
    option_without_effect,
)
from flatout.schema.predict_protocol import (
    Counted,
    Evaluated,
    Loaded,
    Noted,
    Predicted,
    PredictJob,
    ProcessFailed,
    Refused,
    Reply,
    Written,
)
from flatout.system.clock import elapsed_s
from flatout.system.exit_code import end
from flatout.system.json_process import JsonLines, JsonStdio
from flatout.system.store.run_folder import RunFolder

_COUNTED_EVERY_S = 0.5


class ReplyWriter:
    """Lines to the parent process."""

    def __init__(self, lines: JsonLines) -> None:
        self._lines = lines

    def write(self, line: Reply) -> None:
        """Writes a line; predictions come together at the end of their batch."""
        self._lines.write(line, is_flushed=not isinstance(line, Predicted))

    def flush(self) -> None:
        """Sends what was written."""
        self._lines.flush()


def main() -> int:
    """Handles one request; gives the exit code."""
    stdio = JsonStdio()
    replies = ReplyWriter(stdio.answers)
    try:
        request = stdio.read(PredictJob)
        stdio.exit_when_closed()
        # Setting a flag of torch would import its compiler, which takes as long as torch itself.
        defer_compiler_on_cpu()
        handle(request, replies)
    except BrokenPipeError:
        return 1
    except (Exception, SystemExit) as error:  # noqa: BLE001 - every exception is reported
        traceback.print_exc()
        failure = _failure(error)
        replies.write(failure)
        return failure.exit_code
    return 0


def handle(request: PredictJob, replies: ReplyWriter) -> None:
    """Predicts or evaluates, and sends the results.

    Raises:
        UsageError, RunFailed: the request is invalid, or could not continue.
    """
    with fitted_for(RunFolder(Path(request.folder))):
        (_evaluate if request.verb == "evaluate" else _predict)(request, replies)


def _load(request: PredictJob, replies: ReplyWriter) -> Predictor:
    predictor = load(
        request.folder,
        use=request.fixed,
        parameters=request.parameters,
        experiment=request.experiment,
    )
    for finding in predictor.findings:
        replies.write(Noted(finding=finding))
    replies.write(
        Loaded(
            step=predictor.step,
            recorded=predictor.recorded,
            device=str(predictor.device),
            precision=predictor.recipe.precision.value,
            unit=predictor.experiment.unit,
            num_inputs=len(request.inputs),
            longest_input=max(map(len, request.inputs), default=0),
        )
    )
    return predictor


def _evaluate(request: PredictJob, replies: ReplyWriter) -> None:
    predictor = _load(request, replies)
    measured = predictor.evaluate(batch_size=request.batch_size)
    metrics = {name: value if isfinite(value) else None for name, value in measured.metrics.items()}
    labels, step = predictor.experiment.labels, predictor.step
    classes = [
        classified(name, confusion, labels, step, 0)
        for name, confusion in measured.confusions.items()
    ]
    differences = [*predictor.differences]
    differences += [f"{name}={value}" for name, value in request.parameters.items()]
    if request.experiment is not None:
        differences.append(f"experiment={request.experiment}")
    if request.batch_size is not None:
        differences.append(f"batch_size={request.batch_size}")
    replies.write(
        Evaluated(metrics=metrics, differences=tuple(differences), classified=tuple(classes))
    )


def _predict(request: PredictJob, replies: ReplyWriter) -> None:
    predictor = _load(request, replies)
    experiment = predictor.experiment
    if experiment.labels is None and request.top > 1:
        replies.write(Noted(finding=_TOP_WITHOUT_LABELS))
    row_format = RowFormat(experiment.labels, request.top)
    output = open_output(request.output, request.inputs, row_format, replies.write)
    is_whole = False
    try:
        _predict_all(request, predictor, output, replies)
        is_whole = True
    finally:
        output.close(is_whole=is_whole)
    if output.path is not None:
        replies.write(Written(path=str(output.path)))


def _predict_all(
    request: PredictJob, predictor: Predictor, output: Output, replies: ReplyWriter
) -> None:
    experiment = predictor.experiment
    read = experiment.predict_data or read_tensors
    size = request.batch_size or experiment.batch_size
    input_numbers = {text: number for number, text in enumerate(request.inputs, start=1)}
    num_samples, reported_s = 0, elapsed_s()
    predictor.place_threads()
    rng.seed_generators(rng.mixed_seed(predictor.seed, "prediction"))
    for batch in batches_of(request.inputs, read, size, experiment.collate):
        if isinstance(batch, UnreadableInput):
            replies.write(Refused(input=batch.text, finding=_not_readable(batch)))
            continue
        predictions = _computed(predictor, batch, replies)
        if predictions is not None:
            output.take(batch.rows, predictions)
            num_samples += len(batch.rows)
        replies.flush()
        if elapsed_s() - reported_s >= _COUNTED_EVERY_S:
            reported_s = elapsed_s()
            replies.write(
                Counted(num_inputs=input_numbers[batch.rows[-1][0]], num_samples=num_samples)
            )


def _computed(predictor: Predictor, batch: InputBatch, replies: ReplyWriter) -> object:
    """A batch's predictions; None where its samples do not go through the model."""
    try:
        return predictor.compute(batch.content, len(batch.rows))
    except FlatoutError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # Reported for these inputs; others may have another shape.
        traceback.print_exc()
        for text in dict.fromkeys(text for text, _ in batch.rows):
            replies.write(Refused(input=text, finding=_does_not_fit(text, batch, error)))
        return None


def _does_not_fit(text: str, batch: InputBatch, error: Exception) -> Finding:
    return Finding(
        rule="input-does-not-fit",
        severity="error",
        problem=f"the model fails on `{text}`: {_one_line(error)}",
        because="; ".join(filter(None, [batch.shapes_text, raised_at(error)])),
        fixes=(
            Fix(
                text="give inputs like those the experiment was trained on; see flatout docs "
                "predict"
            ),
        ),
    )


def _not_readable(unreadable: UnreadableInput) -> Finding:
    error = unreadable.error
    if isinstance(error, FlatoutError):
        return finding_from(error)
    is_missing = isinstance(error, FileNotFoundError)
    reason = "no such file" if is_missing else _one_line(error)
    return Finding(
        rule="input-not-readable",
        severity="error",
        problem=f"cannot read `{unreadable.text}`: {reason}",
        because=None if isinstance(error, OSError) else raised_at(error),
        fixes=(
            Fix(
                text="check the path"
                if is_missing
                else "give inputs that the experiment's `predict_data` can read; see flatout docs "
                "predict"
            ),
        ),
    )


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[0] if isinstance(error, ValueError) else f"{type(error).__name__}: {lines[0]}"


def _failure(error: BaseException) -> ProcessFailed:
    """The line that says why nothing more comes."""
    known_error = to_flatout_error(error)
    if known_error is None:
        return ProcessFailed(finding=internal_error(error), exit_code=3)
    if known_error.rule == "out-of-memory":
        fix = "use a smaller batch: --batch-size N"
        known_error = RunFailed(
            known_error.rule, known_error.problem, because=known_error.because, fix=fix
        )
    return ProcessFailed(finding=finding_from(known_error), exit_code=known_error.exit_code)


_TOP_WITHOUT_LABELS = option_without_effect(
    "--top",
    "the experiment has no `labels`",
    "define `labels` in the experiment, or leave --top out",
)


if __name__ == "__main__":
    end(main())
