"""Where flatout keeps things: the places each operating system has for them.

`FLATOUT_STATE` (runs) and `FLATOUT_DATA` (data sets) win over the defaults.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def state_folder() -> Path:
    """Runs and logs: XDG state on Linux, %LOCALAPPDATA% on Windows."""
    return _named("FLATOUT_STATE") or _base("XDG_STATE_HOME", ".local/state") / "flatout"


def runs_folder() -> Path:
    """Folder that holds one folder per run."""
    return state_folder() / "runs"


def tunes_folder() -> Path:
    """Folder that holds one folder per search for a recipe."""
    return state_folder() / "tunes"


def compat_update_file() -> Path:
    """What `flatout compat update` has added to the tables of builds."""
    return _base("XDG_DATA_HOME", ".local/share") / "flatout" / "compat" / "updated.json"


def data_folders() -> list[Path]:
    """Folders searched for data sets, in this order; the last one is where downloads go."""
    own = _base("XDG_DATA_HOME", ".local/share") / "flatout" / "data"
    named = _named("FLATOUT_DATA")
    return [named, own] if named else [own]


def _named(variable: str) -> Path | None:
    text = os.environ.get(variable, "").strip()
    return Path(text).expanduser().absolute() if text else None


def _base(xdg_variable: str, default: str) -> Path:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    # The XDG specification says that a relative path is to be ignored.
    text = os.environ.get(xdg_variable, "")
    return Path(text) if text.startswith("/") else Path.home() / default
