"""Exports a run's model: the engine writes and checks the file, in a process of its own."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from flatout.compat import torch_needed
from flatout.errors import RunFailed, UsageError
from flatout.runs import api as runs_api
from flatout.schema.export_protocol import ENDINGS, ExportJob, ExportReply, ExportRequest
from flatout.schema.finding import finding_from
from flatout.schema.predict_protocol import InferenceRequest, ProcessFailed
from flatout.schema.run import RunHeader
from flatout.system import atomic_files
from flatout.system.json_process import JsonProcess, ProcessEnded
from flatout.system.store import interpreters, run_folder
from flatout.system.worker_process import ending_text


def export(request: ExportRequest) -> Generator[ExportReply]:
    """Exports a run's weights: what is done, as it is done, and at last what was written.

    Raises:
        UsageError: unknown-run, run-from-elsewhere, unknown-output-format, file-exists,
            file-not-accessible; what finding the experiment and choosing an interpreter says.
    """
    folder = run_folder.find_run(request.run)
    run_folder.require_trust(folder, is_trusted=request.is_trusted)
    output = _checked_output(request, folder.path.name)
    inference = InferenceRequest(
        run=request.run, experiment=request.experiment, settings=request.settings
    )
    asked = runs_api.predict_job(inference, "predict", folder)
    job = ExportJob(
        folder=asked.folder, form=request.form, output=str(output), is_int8=request.is_int8,
        opset=request.opset, experiment=asked.experiment, parameters=asked.parameters,
    )  # fmt: skip
    header = atomic_files.read_json(folder.header, RunHeader)
    python, version = interpreters.resolve_with_flatout(
        request.python, request.env, default=header.python
    )
    torch_needed.require_torch(runs_api.probe(python), version)
    return _stream_replies(python, job)


def _checked_output(request: ExportRequest, run: str) -> Path:
    """Where the file goes; refuses a wrong ending, and what exists."""
    ending = ENDINGS[request.form]
    output = Path(request.output or f"{run}{ending or '-hf'}").expanduser().absolute()
    if output.suffix != ending and ending:
        raise UsageError(
            "unknown-output-format",
            f"`--output {request.output}`: the name of this form ends in {ending}.",
            fix=f"--output {output.stem}{ending}",
        )
    if output.exists():
        raise UsageError(
            "file-exists",
            f"{output} already exists.",
            fix="remove it, or write another file: --output FILE",
        )
    if not output.parent.is_dir():
        raise UsageError(
            "file-not-accessible",
            f"the folder {output.parent} does not exist.",
            fix="create it, or choose another --output",
        )
    return output


def _stream_replies(python: str, job: ExportJob) -> Generator[ExportReply]:
    with JsonProcess(python, "flatout.engine.serve.export_worker") as process:
        try:
            for reply in process.ask(job, ExportReply):
                if isinstance(reply, ProcessFailed) and reply.has_traceback:
                    reply = reply.kept_in(str(runs_api.record_crash(reply.printed)))
                yield reply
        except ProcessEnded as ended:
            yield _died(ended.exit_code, process.printed())
        finally:
            process.end()


def _died(code: int, printed: str) -> ProcessFailed:
    because = f"it {ending_text(code)}"
    if code == -9:
        because += "; if you did not kill it, the kernel did, because memory ran out"
    died = RunFailed(
        "export-died",
        "the process that exports exited unexpectedly.",
        because=because,
        fix="free memory and try again, or check its output",
    )
    return ProcessFailed(finding=finding_from(died), exit_code=1, printed=printed)
