"""The process that predicts and evaluates: `python -m flatout.engine.answer`.

Started by the command line. A question comes as a line of JSON on standard input, which then stays
open: its end means that nobody waits any more. Answers go out as JSON lines. What the experiment's
own code prints goes to standard error.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from math import isfinite
from pathlib import Path
from typing import BinaryIO

import msgspec

from flatout.engine import randomness
from flatout.engine.evaluation import classified
from flatout.engine.failures import bad_news, is_out_of_memory, raised_at
from flatout.engine.fitted import fitted_for
from flatout.engine.inference import Predictor, load
from flatout.engine.inputs import InputBatch, Unreadable, batches_of, read_tensors
from flatout.engine.outputs import Output, Telling, open_output
from flatout.errors import FlatoutError, RunFailed
from flatout.nouns.finding import Finding, Fix, finding_from, option_without_effect
from flatout.nouns.question import (
    Answer,
    Broken,
    Counted,
    Evaluated,
    Loaded,
    Noted,
    Predicted,
    Question,
    Refused,
    Written,
)  # fmt: skip
from flatout.system.clock import elapsed_s
from flatout.system.runs import RunFolder

_COUNTED_EVERY_S = 0.5


class Answers:
    """Lines to whoever asked."""

    def __init__(self, stream: BinaryIO) -> None:
        self._encoder = msgspec.json.Encoder()
        self._stream = stream

    def tell(self, line: Answer) -> None:
        """Says a line; predictions come together at the end of their batch."""
        self._stream.write(self._encoder.encode(line) + b"\n")
        if not isinstance(line, Predicted):
            self._stream.flush()

    def flush(self) -> None:
        """Sends what was said."""
        self._stream.flush()


def main() -> int:
    """Answers one question; gives the exit code."""
    answers = Answers(os.fdopen(os.dup(1), "wb"))
    # Whatever else is printed must not get between the lines.
    os.dup2(2, 1)
    try:
        question = msgspec.json.decode(sys.stdin.buffer.readline(), type=Question)
        threading.Thread(target=_end_with_stdin, daemon=True).start()
        answer(question, answers)
    except BrokenPipeError:
        return 1
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is told
        traceback.print_exc()
        broken = _broken(error)
        answers.tell(broken)
        return broken.exit_code
    return 0


def answer(question: Question, answers: Answers) -> None:
    """Predicts or evaluates, and tells what comes out.

    Raises:
        UsageError, RunFailed: what was asked for cannot be, or could not go on.
    """
    with fitted_for(RunFolder(Path(question.folder))):
        (_evaluate if question.verb == "evaluate" else _predict)(question, answers)


def _end_with_stdin() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


def _load(question: Question, answers: Answers) -> Predictor:
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


def _evaluate(question: Question, answers: Answers) -> None:
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


def _predict(question: Question, answers: Answers) -> None:
    predictor = _load(question, answers)
    experiment = predictor.experiment
    if experiment.labels is None and question.top > 1:
        answers.tell(Noted(finding=_TOP_WITHOUT_LABELS))
    telling = Telling(experiment.labels, question.top)
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
    question: Question, predictor: Predictor, output: Output, answers: Answers
) -> None:
    experiment = predictor.experiment
    read = experiment.predict_data or read_tensors
    size = question.batch_size or experiment.batch_size
    places = {text: number for number, text in enumerate(question.inputs, start=1)}
    num_samples, told_s = 0, elapsed_s()
    randomness.seed_generators(randomness.mixed_seed(predictor.seed, "prediction"))
    for batch in batches_of(question.inputs, read, size, experiment.collate):
        if isinstance(batch, Unreadable):
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
        # Told of its inputs; others may have another shape.
        traceback.print_exc()
        for text in dict.fromkeys(text for text, _ in batch.rows):
            answers.tell(Refused(input=text, finding=_does_not_fit(text, batch, error)))
        return None


def _does_not_fit(text: str, batch: InputBatch, error: Exception) -> Finding:
    return Finding(
        rule="input-does-not-fit",
        severity="error",
        problem=f"`{text}` does not go through the model: {_one_line(error)}",
        because="; ".join(filter(None, [batch.shapes_text, raised_at(error)])),
        fixes=(Fix(text="give what the experiment was trained on; see flatout docs predict"),),
    )


def _not_readable(unreadable: Unreadable) -> Finding:
    error = unreadable.error
    if isinstance(error, FlatoutError):
        return finding_from(error)
    is_missing = isinstance(error, FileNotFoundError)
    reason = "there is no such file" if is_missing else _one_line(error)
    return Finding(
        rule="input-not-readable",
        severity="error",
        problem=f"`{unreadable.text}` cannot be read: {reason}",
        because=None if isinstance(error, OSError) else raised_at(error),
        fixes=(
            Fix(
                text="check the path"
                if is_missing
                else "give what `predict_data` of the experiment reads; see flatout docs predict"
            ),
        ),
    )


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return lines[0] if isinstance(error, ValueError) else f"{type(error).__name__}: {lines[0]}"


def _broken(error: BaseException) -> Broken:
    """Why nothing more comes."""
    news = bad_news(error)
    if news is None:
        problem = f"flatout itself failed: {type(error).__name__}: {error}"
        finding = Finding(rule="internal-error", severity="error", problem=problem)
        return Broken(finding=finding, exit_code=3)
    if news.rule == "out-of-memory":
        fix = "compute fewer samples at once: --batch-size N"
        news = RunFailed(news.rule, news.problem, because=news.because, fix=fix)
    return Broken(finding=finding_from(news), exit_code=news.exit_code)


_TOP_WITHOUT_LABELS = option_without_effect(
    "--top",
    "the experiment names no classes",
    "give the experiment `labels`, or leave --top out",
)


if __name__ == "__main__":
    sys.exit(main())
