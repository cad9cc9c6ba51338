"""The verbs for what a run has learned: its kept weights, asked about new data and old."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from flatout import __version__, flow
from flatout.nouns.question import (
    AnyAnswer,
    Broken,
    InferenceRequest,
    Question,
    check_output,
)  # fmt: skip
from flatout.nouns.run import RunHeader
from flatout.setup import torch_needed
from flatout.system import (
    answering,
    environments,
    input_names,
    made_environments,
    runs,
    store,
)  # fmt: skip
from flatout.system.runs import RunFolder


def predict(request: InferenceRequest) -> Generator[AnyAnswer]:
    """What the kept weights of a run say of inputs: answers as they come.

    Raises:
        UsageError: no-input, unknown-output-format, unknown-run; what finding the experiment and
            choosing an interpreter says.
    """
    check_output(request.output)
    folder = runs.find_run(request.run)
    inputs = input_names.expand_inputs(request.inputs)
    return ask(request, flow.question_of(request, "predict", folder, inputs))


def evaluate(request: InferenceRequest) -> Generator[AnyAnswer]:
    """The validation metrics of a run's kept weights, computed once more: answers as they come.

    Raises:
        UsageError: unknown-run, unknown-parameter, bad-parameter-value; what choosing an
            interpreter says.
    """
    folder = runs.find_run(request.run)
    return ask(request, flow.question_of(request, "evaluate", folder))


def ask(request: InferenceRequest, question: Question) -> Generator[AnyAnswer]:
    """Asks the engine in the run's environment; what it prints when it fails is kept in a file."""
    folder = RunFolder(Path(question.folder))
    runs.require_trust(folder, is_trusted=request.is_trusted)
    request = made_environments.with_interpreter(request)
    header = store.read_json(folder.header, RunHeader)
    python = environments.find_interpreter(request.python or header.python)
    version = environments.check_interpreter(python, __version__)
    torch_needed.require_torch(flow.probe(python), version)
    for answer in answering.ask(python, question):
        if isinstance(answer, Broken) and answer.has_traceback:
            answer = answer.kept_in(str(flow.record_crash(answer.printed)))
        yield answer
