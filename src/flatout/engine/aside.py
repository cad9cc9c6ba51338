"""Questions that could take their process along, or hang: asked in another one."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def asked_aside(module: str, *arguments: str, limit_s: float) -> dict[str, Any] | str:
    """Runs `python -m MODULE ARGUMENTS`, which prints a JSON object.

    Args:
        limit_s: it is ended after so many seconds.

    Returns:
        The object, or in words why there is none.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {limit_s:g} s"
    except OSError as error:
        return f"no process could be started: {error}"
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return f"it broke off with exit code {done.returncode}{': ' + lines[-1] if lines else ''}"
    try:
        told = json.loads(done.stdout)
    except ValueError:
        return f"its answer cannot be read: {done.stdout[:80]!r}"
    return told if isinstance(told, dict) else f"its answer cannot be read: {told!r}"
