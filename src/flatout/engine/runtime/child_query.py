"""Questions that could take their process along, or hang: asked in another one."""

from __future__ import annotations

import sys
from typing import Any

from flatout.system.clock import elapsed_s
from flatout.system.json_process import JsonProcess, ProcessEnded


def query_in_child(module: str, *arguments: str, limit_s: float) -> dict[str, Any] | str:
    """Runs `python -m MODULE ARGUMENTS`, which prints a JSON object on one line.

    Args:
        limit_s: it is killed after so many seconds.

    Returns:
        The object, or why there is none.
    """
    until_s = elapsed_s() + limit_s
    try:
        process = JsonProcess(sys.executable, module, *arguments)
    except OSError as error:
        return f"no process could be started: {error}"
    with process:
        try:
            reply: dict[str, Any] = process.receive(dict[str, Any], until_s=until_s)
        except TimeoutError:
            return f"no answer within {limit_s:g} s"
        except ProcessEnded as ended:
            if ended.exit_code == 0:
                return f"cannot read its answer: {ended.line[:80]!r}"
            lines = process.printed().strip().splitlines()
            return f"exited with code {ended.exit_code}{': ' + lines[-1] if lines else ''}"
        code = process.exit_code()
        return reply if code == 0 else f"exited with code {code}"
