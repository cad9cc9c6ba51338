"""Runs the process that predicts or evaluates: its answers, and how it ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from flatout.errors import RunFailed
from flatout.schema.finding import finding_from
from flatout.schema.predict_protocol import (
    OUTPUT_ENDINGS,
    ROWS_IN_FOLDER,
    AnyReply,
    PredictJob,
    ProcessFailed,
)
from flatout.system.atomic_files import part_path
from flatout.system.json_process import JsonProcess, ProcessEnded
from flatout.system.worker_process import ending_text


def stream_replies(
    python: str | Sequence[str], job: PredictJob, *, output_here: str | None = None
) -> Iterator[AnyReply]:
    """Runs the engine in a process, and yields its answers as they arrive.

    The last one is `ProcessFailed` if it failed, with what the process has printed. The process
    ends when the caller stops reading.

    Args:
        python: the interpreter; several words where something leads to it, as `docker exec` does.
        job: as the process understands it.
        output_here: the job's output as this machine has it, where that is another path.
    """
    output = output_here or job.output
    with JsonProcess(python, "flatout.engine.predict.worker") as process:
        try:
            yield from process.ask(job, AnyReply)
        except ProcessEnded as ended:
            yield _died(ended.exit_code, process.printed())
        finally:
            process.end()
            if process.has_failed and output is not None:
                # It had no time to tidy up.
                with contextlib.suppress(OSError):
                    part_path(_rows_file(output)).unlink(missing_ok=True)


def _rows_file(output: str) -> Path:
    """The file that grows by rows: what was requested, or one in the folder that was."""
    path = Path(output).expanduser()
    return path if path.suffix in OUTPUT_ENDINGS else path / ROWS_IN_FOLDER


def _died(code: int, printed: str) -> ProcessFailed:
    because = f"it {ending_text(code)}"
    if code == -9:
        because += "; if you did not kill it, the kernel did, because memory ran out"
    died = RunFailed(
        "prediction-died",
        "the prediction process exited unexpectedly.",
        because=because,
        fix="use smaller batches (--batch-size N), or check its output",
    )
    return ProcessFailed(finding=finding_from(died), exit_code=1, printed=printed)
