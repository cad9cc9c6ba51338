"""The command line of a worker or a launcher: the same wherever it is started."""

from __future__ import annotations

from typing import Literal

from flatout.schema.change import Change

Module = Literal["flatout.engine.training.worker", "flatout.engine.launch"]


def worker_command(
    python: str, module: Module, folder: str, *options: str, change: Change | str | None = None
) -> list[str]:
    """The command that trains a run.

    Args:
        python: the interpreter.
        module: a single worker, or what starts ranks.
        folder: of the run, as that process sees it.
        options: of the module.
        change: what a resume changes; as JSON it is passed on as it is.
    """
    # -P: a file `queue.py` in the current folder must not be taken for Python's own.
    # faulthandler: a crash in native code leaves a traceback in the log.
    command = [python, "-P", "-X", "faulthandler", "-m", module, folder, *options]
    if isinstance(change, str):
        return [*command, "--change", change]
    if change is not None and change != Change():
        return [*command, "--change", change.as_option()]
    return command
