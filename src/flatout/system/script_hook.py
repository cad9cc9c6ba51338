"""The environment of a program whose Python is to profile its steps by itself."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

import flatout
from flatout.schema.script_profile import HOOK_VARIABLE, HookRequest

_HOOK = Path(flatout.__file__).parent / "engine" / "profile" / "hook"


def hook_environment(request: HookRequest) -> dict[str, str]:
    """The variables of this process, with the hook first on the path of Python."""
    listed = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, [str(_HOOK), listed]))
    content = msgspec.json.encode(request).decode()
    # Kineto would announce its beginning and its end among the program's lines.
    return {"KINETO_LOG_LEVEL": "99", **os.environ, "PYTHONPATH": path, HOOK_VARIABLE: content}


def take_trace(folder: Path, number: str, target: Path) -> bool:
    """Moves the trace of the process of that number to its place; whether there is one."""
    try:
        shutil.move(folder / f"trace-{number}.json", target)
    except OSError:
        return False
    return True


def own_packages() -> dict[str, str]:
    """The folders that flatout and msgspec are imported from here."""
    modules = {"flatout": flatout, "msgspec": msgspec}
    return {name: str(Path(str(module.__file__)).parents[1]) for name, module in modules.items()}
