"""The process that predicts and evaluates: `python -m flatout.engine.predict.worker`.

Started by the command line. A question comes as a line of JSON on standard input, which then stays
open: its end means that the parent no longer waits. Answers go out as JSON lines. What the
experiment's own code prints goes to standard error.
"""

from __future__ import annotations

import sys
import traceback
from math import isfinite
from pathlib import Path

from flatout.engine.data.fitted import fitted_for
from flatout.engine.data.tensor_files import read_tensors
from flatout.engine.predict.inputs import InputBatch, UnreadableInput, batches_of
from flatout.engine.predict.outputs import Output, RowFormat, open_output
from flatout.engine.predict.predictor import Predictor, load
from flatout.engine.runtime import rng
from flatout.engine.runtime.error_map import is_out_of_memory, raised_at, to_flatout_error
from flatout.engine.session.validation import classified
from flatout.errors import FlatoutError, RunFailed
from flatout.schema.finding import Finding, Fix, finding_from, option_without_effect
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
from flatout.system.json_process import JsonLines, JsonStdio
from flatout.system.store.run_folder import RunFolder

_COUNTED_EVERY_S = 0.5


class Answers:
    """Lines to the parent process."""

    def __init__(self, lines: JsonLines) -> None:
        self._lines = lines

    def tell(self, line: Reply) -> None:
        """Says a line; predictions come together at the end of their batch."""
        self._lines.write(line, is_flushed=not isinstance(line, Predicted))

    def flush(self) -> None:
        """Sends what was said."""
        self._lines.flush()


def main() -> int:
    """Answers one question; gives the exit code."""
    stdio = JsonStdio()
    answers = Answers(stdio.answers)
    try:
        question = stdio.read(PredictJob)
        stdio.exit_when_closed()
        answer(question, answers)
    except BrokenPipeError:
        return 1
    except (Exception, SystemExit) as error:  # noqa: BLE001 - every exception is reported
        traceback.print_exc()
        broken = _broken(error)
        answers.tell(broken)
        return broken.exit_code
    return 0


def answer(question: PredictJob, answers: Answers) -> None:
    """Predicts or evaluates, and sends the results.

    Raises:
        UsageError, RunFailed: the request is invalid, or could not continue.
    """
    with fitted_for(RunFolder(Path(question.folder))):
        (_evaluate if question.verb == "evaluate" else _predict)(question, answers)


def _load(question: PredictJob, answers: Answers) -> Predictor:
    found = load(
        question.folder,
        use=question.fixed,
        parameters=question.parameters,
        experiment=question.experiment,
    )
    for finding in found.findings:
        answers.tell(Noted(finding=finding))
    answers.tell(
        Loaded(
            step=found.step,
            recorded=found.recorded,
            device=str(found.device),
            precision=found.recipe.precision.value,
            unit=found.experiment.unit,
            num_inputs=len(question.inputs),
            longest_input=max(map(len, question.inputs), default=0),
        )
    )
    return found


def _evaluate(question: PredictJob, answers: Answers) -> None:
    predictor = _load(question, answers)
    measured = predictor.evaluate(batch_size=question.batch_size)
    told = {name: value if isfinite(value) else None for name, value in measured.metrics.items()}
    labels, step = predictor.experiment.labels, predictor.step
    classes = [
        classified(name, confusion, labels, step, 0)
        for name, confusion in measured.confusions.items()
    ]
    differences = [*predictor.differences]
    differences += [f"{name}={value}" for name, value in question.parameters.items()]
    if question.experiment is not None:
        differences.append(f"experiment={question.experiment}")
    if question.batch_size is not None:
        differences.append(f"batch_size={question.batch_size}")
    answers.tell(Evaluated(metrics=told, differences=tuple(differences), classified=tuple(classes)))


def _predict(question: PredictJob, answers: Answers) -> None:
    predictor = _load(question, answers)
    experiment = predictor.experiment
    if experiment.labels is None and question.top > 1:
        answers.tell(Noted(finding=_TOP_WITHOUT_LABELS))
    telling = RowFormat(experiment.labels, question.top)
    output = open_output(question.output, question.inputs, telling, answers.tell)
    is_whole = False
    try:
        _predict_all(question, predictor, output, answers)
        is_whole = True
    finally:
        output.close(is_whole=is_whole)
    if output.path is not None:
        answers.tell(Written(path=str(output.path)))


def _predict_all(
    question: PredictJob, predictor: Predictor, output: Output, answers: Answers
) -> None:
    experiment = predictor.experiment
    read = experiment.predict_data or read_tensors
    size = question.batch_size or experiment.batch_size
    places = {text: number for number, text in enumerate(question.inputs, start=1)}
    num_samples, told_s = 0, elapsed_s()
    rng.seed_generators(rng.mixed_seed(predictor.seed, "prediction"))
    for batch in batches_of(question.inputs, read, size, experiment.collate):
        if isinstance(batch, UnreadableInput):
            answers.tell(Refused(input=batch.text, finding=_not_readable(batch)))
            continue
        found = _computed(predictor, batch, answers)
        if found is not None:
            output.take(batch.rows, found)
            num_samples += len(batch.rows)
        answers.flush()
        if elapsed_s() - told_s >= _COUNTED_EVERY_S:
            told_s = elapsed_s()
            answers.tell(Counted(num_inputs=places[batch.rows[-1][0]], num_samples=num_samples))


def _computed(predictor: Predictor, batch: InputBatch, answers: Answers) -> object:
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
            answers.tell(Refused(input=text, finding=_does_not_fit(text, batch, error)))
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


def _broken(error: BaseException) -> ProcessFailed:
    """Why nothing more comes."""
    news = to_flatout_error(error)
    if news is None:
        problem = f"flatout itself failed: {type(error).__name__}: {error}"
        finding = Finding(rule="internal-error", severity="error", problem=problem)
        return ProcessFailed(finding=finding, exit_code=3)
    if news.rule == "out-of-memory":
        fix = "use a smaller batch: --batch-size N"
        news = RunFailed(news.rule, news.problem, because=news.because, fix=fix)
    return ProcessFailed(finding=finding_from(news), exit_code=news.exit_code)


_TOP_WITHOUT_LABELS = option_without_effect(
    "--top",
    "the experiment has no `labels`",
    "define `labels` in the experiment, or leave --top out",
)


if __name__ == "__main__":
    sys.exit(main())
