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


class _ReplyReader:
    """Passes replies on, and prints problems as they occur."""

    def __init__(self, replies: Iterator[AnyReply], waiting: Waiting) -> None:
        self._replies = replies
        self._waiting = waiting
        self.exit_code = 0
        self.broken: Finding | None = None

    def __iter__(self) -> Iterator[AnyReply]:
        for reply in self._replies:
            if isinstance(reply, Noted | Refused | ProcessFailed):
                self._waiting.stop()
                show.print_finding(reply.finding)
            if isinstance(reply, ProcessFailed) and reply.exit_code != 2:
                explain_failure.explain(reply.finding, reply.printed)
            if isinstance(reply, Refused):
                self.exit_code = 1
            elif isinstance(reply, ProcessFailed):
                self.exit_code, self.broken = reply.exit_code, reply.finding
            yield reply


def print_predictions(run: str, replies: Generator[AnyReply]) -> int:
    """A table of predictions, row by row; gives the exit code."""
    table = PredictionTable(0)
    loaded: Loaded | None = None
    with contextlib.closing(replies), Waiting(_LOADING) as waiting:
        reader = _ReplyReader(replies, waiting)
        for reply in reader:
            if isinstance(reply, Loaded):
                loaded, table = reply, PredictionTable(reply.longest_input)
                waiting.stop()
                show.print_note(loaded_text(run, reply))
                waiting.update("predicting")
            elif isinstance(reply, Predicted):
                waiting.stop()
                show.print_rows(table.lines(reply))
            elif isinstance(reply, Counted) and loaded is not None:
                done = f"{count_text(reply.num_samples)} {loaded.unit}"
                of = f"{count_text(reply.num_inputs)} of {count_text(loaded.num_inputs)} inputs"
                waiting.update(f"predicted {done}, {of}")
            elif isinstance(reply, Written):
                waiting.stop()
                show.print_note(f"written to {home_text(reply.path)}")
    return reader.exit_code


def json_predictions(run: str, replies: Generator[AnyReply]) -> int:
    """The same as one JSON document, written as the predictions come."""
    with contextlib.closing(replies), Waiting(_LOADING) as waiting:
        reader = _ReplyReader(replies, waiting)
        stream = iter(reader)
        loaded = _until(Loaded, stream)
        waiting.stop()
        if loaded is None:
            show.print_json({"error": reader.broken})
        else:
            head = {"run": run, "weights": loaded}
            show.print_long_json(head, "predictions", _documents(stream))
    return reader.exit_code


def _documents(replies: Iterable[AnyReply]) -> Iterator[dict[str, Any]]:
    for reply in replies:
        if isinstance(reply, Predicted):
            yield {"input": reply.input, "row": reply.row, **reply.values}
        elif isinstance(reply, Refused):
            yield {"input": reply.input, "error": reply.finding}
        elif isinstance(reply, ProcessFailed):
            yield {"error": reply.finding}
        elif isinstance(reply, Written):
            yield {"written": reply.path}


def print_evaluation(run: str, replies: Generator[AnyReply]) -> int:
    """The recorded and the computed metrics, and whether they agree; returns the exit code."""
    with contextlib.closing(replies), Waiting(_LOADING) as waiting:
        reader = _ReplyReader(replies, waiting)
        stream = iter(reader)
        loaded = _until(Loaded, stream)
        if loaded is not None:
            waiting.stop()
            show.print_note(loaded_text(run, loaded))
            waiting.update("evaluating")
        evaluated = _until(Evaluated, stream)
        waiting.stop()
        if loaded is not None and evaluated is not None:
            show.print_evaluation(evaluation_rows(loaded, evaluated))
            show.print_note(agreement_text(loaded, evaluated))
    return reader.exit_code


def json_evaluation(run: str, replies: Generator[AnyReply]) -> int:
    """The same as one JSON document."""
    with contextlib.closing(replies), Waiting(_LOADING) as waiting:
        reader = _ReplyReader(replies, waiting)
        by_type = {type(reply): reply for reply in reader}
    loaded, evaluated = by_type.get(Loaded), by_type.get(Evaluated)
    if isinstance(loaded, Loaded) and isinstance(evaluated, Evaluated):
        document = {"run": run, "weights": loaded, "metrics": evaluated.metrics,
                    "differences": evaluated.differences, "is_equal": is_equal(loaded, evaluated),
                    "classified": evaluated.classified}  # fmt: skip
        show.print_json(document)
    else:
        show.print_json({"error": reader.broken})
    return reader.exit_code


def _until(kind: type, replies: Iterator[AnyReply]) -> Any:
    """The next reply of a kind; None if there is none any more."""
    return next((reply for reply in replies if isinstance(reply, kind)), None)
