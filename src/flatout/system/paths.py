"""Places of flatout's files on each operating system.

`FLATOUT_STATE` (runs), `FLATOUT_DATA` (data sets), `FLATOUT_ENVIRONMENTS` (environments) and
`FLATOUT_CACHE` (what can be downloaded again) win over the defaults, and over those of
`flatout.toml`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal

from flatout.system.site_policy import expanded, read_site

# Everything in the state folder: `flatout disk` lists it by these names.
StateName = Literal[
    "bench", "changes", "crashes", "failed-start", "indexes", "interpreters.txt", "launches",
    "limits", "lr", "monitor", "profiles", "recipes", "runs", "servers", "sweeps", "tunes",
    "watched", "web",
]  # fmt: skip


def state_folder() -> Path:
    """Runs and logs: XDG state on Linux, %LOCALAPPDATA% on Windows."""
    return _named("FLATOUT_STATE") or _base("XDG_STATE_HOME", ".local/state") / "flatout"


def state_path(name: StateName) -> Path:
    """A folder or file in the state folder."""
    return state_folder() / name


def runs_folder() -> Path:
    """Folder that holds one folder per run."""
    return state_path("runs")


def tunes_folder() -> Path:
    """Folder that holds one folder per search for a recipe."""
    return state_path("tunes")


def sweeps_folder() -> Path:
    """Folder that holds one folder per sweep; its trials are runs."""
    return state_path("sweeps")


def compat_update_file() -> Path:
    """The file that `flatout compat update` adds to the tables of builds."""
    return _base("XDG_DATA_HOME", ".local/share") / "flatout" / "compat" / "updated.json"


def data_folders() -> list[Path]:
    """Folders searched for data sets, in this order; the last one is where downloads go."""
    own = _own_data() / "data"
    named = _named("FLATOUT_DATA")
    return [named, own] if named else [own]


def environments_folder() -> Path:
    """Folder that holds the environments that flatout makes, one folder each."""
    named = _named("FLATOUT_ENVIRONMENTS")
    if named is not None:
        return named
    settled = read_site().setup.folder
    return Path(expanded(settled)) if settled else _own_data() / "environments"


def tools_folder() -> Path:
    """Folder for programs that flatout needs and has installed for itself."""
    return _own_data() / "tools"


def cache_folder() -> Path:
    """The folder of things that can be downloaded again: wheels."""
    # Under Windows both are below one folder; emptying the cache must not delete the data.
    own = _own_data() / "cache" if sys.platform == "win32" else None
    return _named("FLATOUT_CACHE") or own or _base("XDG_CACHE_HOME", ".cache") / "flatout"


def cached_names() -> tuple[str, ...]:
    """Patterns of what flatout puts into the cache folder, which may hold other files, too."""
    return ("wheels", "pip", "uv", "micromamba", "repairs", "deciding-*", "rules.json")


def compiled_rules_file() -> Path:
    """The file with all rules as they were last read, so that starting takes less time."""
    return cache_folder() / "rules.json"


def rules_folder() -> Path:
    """Folder of the user's own rules for `flatout explain` and `flatout doctor`."""
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA", Path.home())) / "flatout" / "rules"
    return _base("XDG_CONFIG_HOME", ".config") / "flatout" / "rules"


def compiled_folder() -> Path:
    """The folder of torch's compiled code, for the next run of the same model."""
    return cache_folder() / "compiled"


def app_folder() -> Path:
    """Folder into which an install script puts flatout itself."""
    return _own_data() / "app"


def _own_data() -> Path:
    return _base("XDG_DATA_HOME", ".local/share") / "flatout"


def _named(variable: str) -> Path | None:
    text = os.environ.get(variable, "").strip()
    return Path(text).expanduser().absolute() if text else None


def _base(xdg_variable: str, default: str) -> Path:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    # The XDG specification says that a relative path should be ignored.
    text = os.environ.get(xdg_variable, "")
    return Path(text) if text.startswith("/") else Path.home() / default
