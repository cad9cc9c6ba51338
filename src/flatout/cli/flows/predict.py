"""Shows the predictions of a run as they arrive, or as one JSON document."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator
from typing import Any

from flatout.cli.flows import explain_failure
from flatout.cli.render import show
from flatout.cli.render.live import Waiting
from flatout.cli.render.predictions import (
    PredictionTable,
    agreement_text,
    evaluation_rows,
    is_equal,
    loaded_text,
)
from flatout.cli.render.wording import home_text
from flatout.schema.finding import Finding
from flatout.schema.predict_protocol import (
    AnyReply,
    Counted,
    Evaluated,
    Loaded,
    Noted,
    Predicted,
    ProcessFailed,
    Refused,
    Written,
)
from flatout.schema.units import count_text

_LOADING = "loading torch and the weights"


class _Received:
    """Passes answers on, and prints problems as they occur."""

    def __init__(self, answers: Iterator[AnyReply], waiting: Waiting) -> None:
        self._answers = answers
        self._waiting = waiting
        self.exit_code = 0
        self.broken: Finding | None = None

    def __iter__(self) -> Iterator[AnyReply]:
        for answer in self._answers:
            if isinstance(answer, Noted | Refused | ProcessFailed):
                self._waiting.stop()
                show.print_finding(answer.finding)
            if isinstance(answer, ProcessFailed) and answer.exit_code != 2:
                explain_failure.explain(answer.finding, answer.printed)
            if isinstance(answer, Refused):
                self.exit_code = 1
            elif isinstance(answer, ProcessFailed):
                self.exit_code, self.broken = answer.exit_code, answer.finding
            yield answer


def print_predictions(run: str, answers: Generator[AnyReply]) -> int:
    """A table of predictions, row by row; gives the exit code."""
    table = PredictionTable(0)
    loaded: Loaded | None = None
    with contextlib.closing(answers), Waiting(_LOADING) as waiting:
        heard = _Received(answers, waiting)
        for answer in heard:
            if isinstance(answer, Loaded):
                loaded, table = answer, PredictionTable(answer.longest_input)
                waiting.stop()
                show.print_note(loaded_text(run, answer))
                waiting.say("predicting")
            elif isinstance(answer, Predicted):
                waiting.stop()
                show.print_rows(table.lines(answer))
            elif isinstance(answer, Counted) and loaded is not None:
                done = f"{count_text(answer.num_samples)} {loaded.unit}"
                of = f"{count_text(answer.num_inputs)} of {count_text(loaded.num_inputs)} inputs"
                waiting.say(f"predicted {done}, {of}")
            elif isinstance(answer, Written):
                waiting.stop()
                show.print_note(f"written to {home_text(answer.path)}")
    return heard.exit_code


def json_predictions(run: str, answers: Generator[AnyReply]) -> int:
    """The same as one JSON document, written as the predictions come."""
    with contextlib.closing(answers), Waiting(_LOADING) as waiting:
        heard = _Received(answers, waiting)
        stream = iter(heard)
        loaded = _until(Loaded, stream)
        waiting.stop()
        if loaded is None:
            show.print_json({"error": heard.broken})
        else:
            head = {"run": run, "weights": loaded}
            show.print_long_json(head, "predictions", _documents(stream))
    return heard.exit_code


def _documents(answers: Iterable[AnyReply]) -> Iterator[dict[str, Any]]:
    for answer in answers:
        if isinstance(answer, Predicted):
            yield {"input": answer.input, "row": answer.row, **answer.values}
        elif isinstance(answer, Refused):
            yield {"input": answer.input, "error": answer.finding}
        elif isinstance(answer, ProcessFailed):
            yield {"error": answer.finding}
        elif isinstance(answer, Written):
            yield {"written": answer.path}


def print_evaluation(run: str, answers: Generator[AnyReply]) -> int:
    """The recorded and the computed metrics, and whether they agree; returns the exit code."""
    with contextlib.closing(answers), Waiting(_LOADING) as waiting:
        heard = _Received(answers, waiting)
        stream = iter(heard)
        loaded = _until(Loaded, stream)
        if loaded is not None:
            waiting.stop()
            show.print_note(loaded_text(run, loaded))
            waiting.say("evaluating")
        evaluated = _until(Evaluated, stream)
        waiting.stop()
        if loaded is not None and evaluated is not None:
            show.print_evaluation(evaluation_rows(loaded, evaluated))
            show.print_note(agreement_text(loaded, evaluated))
    return heard.exit_code


def json_evaluation(run: str, answers: Generator[AnyReply]) -> int:
    """The same as one JSON document."""
    with contextlib.closing(answers), Waiting(_LOADING) as waiting:
        heard = _Received(answers, waiting)
        found = {type(answer): answer for answer in heard}
    loaded, evaluated = found.get(Loaded), found.get(Evaluated)
    if isinstance(loaded, Loaded) and isinstance(evaluated, Evaluated):
        document = {"run": run, "weights": loaded, "metrics": evaluated.metrics,
                    "differences": evaluated.differences, "is_equal": is_equal(loaded, evaluated),
                    "classified": evaluated.classified}  # fmt: skip
        show.print_json(document)
    else:
        show.print_json({"error": heard.broken})
    return heard.exit_code


def _until(kind: type, answers: Iterator[AnyReply]) -> Any:
    """The next answer of a kind; None if there is none any more."""
    return next((answer for answer in answers if isinstance(answer, kind)), None)
