"""Predict and evaluate: the saved weights of a run, applied to new data and old."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from flatout.compat import torch_needed
from flatout.runs import api as runs_api
from flatout.runs import predict_inputs, predict_process
from flatout.schema.predict_protocol import (
    AnyReply,
    InferenceRequest,
    PredictJob,
    ProcessFailed,
    check_output,
)
from flatout.schema.run import RunHeader
from flatout.system import atomic_files  # fmt: skip
from flatout.system.store import interpreters, run_folder
from flatout.system.store.run_folder import RunFolder


def predict(request: InferenceRequest) -> Generator[AnyReply]:
    """Predictions of a run's saved weights: answers as they arrive.

    Raises:
        UsageError: no-input, unknown-output-format, unknown-run; what finding the experiment and
            choosing an interpreter says.
    """
    check_output(request.output)
    folder = run_folder.find_run(request.run)
    inputs = predict_inputs.expand_inputs(request.inputs)
    return stream_replies(request, runs_api.predict_job(request, "predict", folder, inputs))


def evaluate(request: InferenceRequest) -> Generator[AnyReply]:
    """The recomputed validation metrics of a run's saved weights: answers as they arrive.

    Raises:
        UsageError: unknown-run, unknown-parameter, bad-parameter-value; what choosing an
            interpreter says.
    """
    folder = run_folder.find_run(request.run)
    return stream_replies(request, runs_api.predict_job(request, "evaluate", folder))


def stream_replies(request: InferenceRequest, job: PredictJob) -> Generator[AnyReply]:
    """Runs the engine in the run's environment; if it fails, its output is kept in a file."""
    folder = RunFolder(Path(job.folder))
    run_folder.require_trust(folder, is_trusted=request.is_trusted)
    header = atomic_files.read_json(folder.header, RunHeader)
    python, version = interpreters.resolve_with_flatout(
        request.python, request.env, default=header.python
    )
    torch_needed.require_torch(runs_api.probe(python), version)
    for reply in predict_process.stream_replies(python, job):
        if isinstance(reply, ProcessFailed) and reply.has_traceback:
            reply = reply.kept_in(str(runs_api.record_crash(reply.printed)))
        yield reply
