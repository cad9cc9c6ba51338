"""The process that predicts or evaluates, asked from outside: its answers, and its end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from flatout.errors import RunFailed
from flatout.nouns.finding import finding_from
from flatout.nouns.question import (
    OUTPUT_ENDINGS,
    ROWS_IN_FOLDER,
    AnyAnswer,
    Broken,
    Question,
)  # fmt: skip
from flatout.system.child import ending_text
from flatout.system.conversing import Conversation
from flatout.system.store import part_path


def ask(
    python: str | Sequence[str], question: Question, *, output_here: str | None = None
) -> Iterator[AnyAnswer]:
    """Asks the engine, in a process of its own, and gives its answers as they come.

    The last one is `Broken` if it failed, with what the process has printed. The process ends when
    nobody reads on.

    Args:
        python: the interpreter; several words where something leads to it, as `docker exec` does.
        question: as the process understands it.
        output_here: the question's output as this machine has it, where that is another path.
    """
    output = output_here or question.output
    with Conversation(python, "flatout.engine.answer") as process:
        is_told = False
        try:
            for answer in process.ask(question, AnyAnswer):
                if isinstance(answer, Broken):
                    is_told = True
                    answer = msgspec.structs.replace(answer, printed=process.printed())
                yield answer
            # Its output has ended; it is about to, too.
            code = process.exit_code()
            if code != 0 and not is_told:
                yield _died(code, process.printed())
        finally:
            process.end()
            if process.has_failed and output is not None:
                # It had no time to tidy up.
                with contextlib.suppress(OSError):
                    part_path(_rows_file(output)).unlink(missing_ok=True)


def _rows_file(output: str) -> Path:
    """The file that grows by rows: what was asked for, or one in the folder that was."""
    path = Path(output).expanduser()
    return path if path.suffix in OUTPUT_ENDINGS else path / ROWS_IN_FOLDER


def _died(code: int, printed: str) -> Broken:
    because = f"it {ending_text(code)}"
    if code == -9:
        because += "; if nobody killed it, the kernel did, because memory ran out"
    died = RunFailed(
        "prediction-died",
        "the process that computes broke off without saying why.",
        because=because,
        fix="compute fewer samples at once (--batch-size N), or look into what it printed",
    )
    return Broken(finding=finding_from(died), exit_code=1, printed=printed)
