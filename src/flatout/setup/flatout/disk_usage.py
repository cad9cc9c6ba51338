"""Files that flatout keeps on the disk: their size, their use, and deleting them.

The files of a running run are never touched, nor what it may be reading.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError
from flatout.schema.run import DamagedRun, Run
from flatout.setup.model.disk_use import FREEABLE, STATE_KINDS, DiskUse, Kind
from flatout.system import atomic_files, links
from flatout.system import paths as folders
from flatout.system.disk_size import size_of
from flatout.system.store import (
    daily_files,
    datasets,
    environment_folder,
    environments,
    watched_folder,
)
from flatout.system.store.launch_folder import launch_lock, launches_folder
from flatout.system.store.recipe_cache import recipes_folder
from flatout.system.store.run_folder import RunFolder, run_paths
from flatout.system.store.run_reader import list_runs
from flatout.system.store.sweep_folder import sweep_paths
from flatout.system.store.watched_folder import WatchedFolder

_UNFINISHED = "{} is not finished: it needs its checkpoints to resume"
_TRAINED = "{} is being trained"


class _DiskCategory(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of one kind. in_use: why some of the paths cannot be deleted, by path.

    left_out: a name below the paths that is a kind of its own.
    """

    kind: Kind
    text: str
    folder: Path
    paths: list[Path]
    cost: str
    in_use: dict[Path, str] = {}
    left_out: str | None = None


def disk_use() -> list[DiskUse]:
    """Everything that flatout keeps, by kind. Several links to a file count once."""
    seen: set[tuple[int, int]] = set()
    return [_measured(pile, seen) for pile in _categories()]


def free(uses: Iterable[DiskUse]) -> int:
    """Deletes what can be freed of these; returns its size in bytes.

    Raises:
        UsageError: folder-not-writable, setup-in-progress.
    """
    num_bytes = 0
    for use in uses:
        if use.kind == "environments" and use.freeable:
            num_bytes += delete_environments([Path(text) for text in use.freeable])
            continue
        for text in use.freeable:
            path = Path(text)
            # A training may have started in it since it was measured.
            folder = path.parent if use.kind == "checkpoints" else path
            if use.kind in ("checkpoints", "searches") and _is_taken(folder):
                continue
            size_bytes = size_of(path, set())
            delete(path)
            num_bytes += size_bytes
        if use.kind == "data":
            # The folders go too, unless the user has other files in them.
            drop_empty({Path(text).parent for text in use.freeable})
    return num_bytes


def delete_environments(folders_to_delete: Sequence[Path]) -> int:
    """Deletes environments and their records; returns their size in bytes.

    An environment in which a training has started in the meantime stays.

    Raises:
        UsageError: folder-not-writable, setup-in-progress.
    """
    num_bytes = 0
    with environments.locked():
        in_use = _environments().in_use
        for path in folders_to_delete:
            if path in in_use:
                continue
            size_bytes = size_of(path, set())
            environment_folder.discard(path)
            num_bytes += size_bytes
        environments.sweep()
    environments.forget_lock()
    return num_bytes


def delete(path: Path) -> None:
    """Deletes a file, a link or a folder, if it exists.

    Raises:
        UsageError: folder-not-writable.
    """
    with atomic_files.mapped_os_errors(path):
        if links.is_link(path):
            links.remove_link(path)
            return
        if not path.is_dir():
            path.unlink(missing_ok=True)
            return
        # Renamed to a hidden name first, so that an interrupted removal leaves no partial folder.
        hidden = atomic_files.hidden_path(path)
        path.rename(hidden)
        if sys.version_info >= (3, 12):
            shutil.rmtree(hidden, onexc=_make_writable)
        else:
            shutil.rmtree(hidden, onerror=_make_writable)


def _make_writable(function: Callable[[str], object], path: str, _: object) -> None:
    """Windows does not delete read-only files, such as git's."""
    os.chmod(path, stat.S_IWRITE)
    function(path)


def run_folders() -> tuple[str, ...]:
    """The folder of every run, and of every sweep."""
    return tuple(str(path) for path in (*run_paths(), *sweep_paths()))


def running_runs() -> list[str]:
    """Names of the runs that are training now, including searches."""
    paths = [*run_paths(), *run_paths(folders.tunes_folder())]
    return [path.name for path in paths if _is_taken(path)]


def _measured(pile: _DiskCategory, seen: set[tuple[int, int]]) -> DiskUse:
    sizes = {path: size_of(path, seen, pile.left_out) for path in pile.paths}
    freeable = [path for path in pile.paths if path not in pile.in_use]
    if pile.kind not in FREEABLE:
        freeable = []
    return DiskUse(
        kind=pile.kind,
        text=pile.text,
        folder=str(pile.folder),
        num_items=len(sizes),
        num_bytes=sum(sizes.values()),
        cost=pile.cost,
        freeable=tuple(str(path) for path in freeable),
        freeable_bytes=sum(sizes[path] for path in freeable),
        in_use=tuple(dict.fromkeys(pile.in_use.values())),
    )


def _categories() -> Iterator[_DiskCategory]:
    yield from _run_piles(list_runs())
    tunes = folders.tunes_folder()
    searches = run_paths(tunes)
    taken = {path: _TRAINED.format(path.name) for path in searches if _is_taken(path)}
    running = running_runs()
    yield _DiskCategory(
        kind="searches",
        text="recipe searches: what was tried, with the results",
        folder=tunes,
        paths=searches,
        cost="the trials can no longer be shown; the recipes stay",
        in_use=taken,
    )
    yield _DiskCategory(
        kind="recipes",
        text="recipes found by tuning",
        folder=recipes_folder(),
        paths=_below(recipes_folder(), "*.json"),
        cost="the next training of the same kind is tuned again",
    )
    downloaded = datasets.downloaded_files()
    yield _DiskCategory(
        kind="data",
        text="downloaded data sets",
        folder=folders.data_folders()[-1],
        paths=downloaded,
        cost="they are downloaded again when needed",
        in_use=dict.fromkeys(downloaded, f"{running[0]} may be reading it") if running else {},
    )
    yield from (_environments(), _compiled(running), _watched(), _results(), _caches(), _samples())
    own = [path for path in (folders.app_folder(), folders.tools_folder()) if path.is_dir()]
    yield _DiskCategory(
        kind="tools",
        text="flatout itself, uv and micromamba, as the install script or a setup installed them; "
        "lists of running servers and of interpreters that you have used",
        folder=folders.app_folder().parent,
        paths=[*own, *state_paths("tools")],
        cost="flatout self remove",
    )
    yield _DiskCategory(
        kind="undo",
        text="backups of files that flatout has changed",
        folder=folders.state_path("changes"),
        paths=state_paths("undo"),
        cost="flatout undo needs them",
    )


def state_paths(kind: Kind) -> list[Path]:
    """What the state folder has of a kind, for those that need no further look."""
    found = []
    for name in [name for name, of in STATE_KINDS.items() if of == kind]:
        path = folders.state_path(name)
        # A failed start is one thing.
        is_one = name == "failed-start" or not path.is_dir()
        found += _below(path.parent, path.name) if is_one else _below(path, "*")
    return found


def _results() -> _DiskCategory:
    return _DiskCategory(
        kind="results",
        text="results of `flatout bench`, `flatout lr` and `flatout profile`",
        folder=folders.state_folder(),
        paths=state_paths("results"),
        cost="they must be measured again; those copied from other machines are lost",
    )


def _caches() -> _DiskCategory:
    cache = folders.cache_folder()
    update_file = folders.compat_update_file()
    return _DiskCategory(
        kind="caches",
        text="downloaded wheels, responses of package indexes, curves of `flatout web`, reports of "
        "crashes and of the last failed start, leftovers of interrupted removals",
        folder=cache,
        paths=[
            *[path for name in folders.cached_names() for path in _below(cache, name)],
            *_below(update_file.parent, update_file.name),
            *state_paths("caches"),
            *_left_overs(run_paths()),
        ],
        cost="the next flatout setup downloads its wheels and queries the indexes again",
    )


def _samples() -> _DiskCategory:
    folder = daily_files.monitor_folder()
    paths = [path for _, path in daily_files.day_files(folder)]
    # A lock that no process holds is of no use to anyone.
    is_running = daily_files.is_monitor_running()
    paths += _below(folder, daily_files.ALARMS)
    paths += _below(folder, daily_files.LOCK) if paths else []
    in_use = dict.fromkeys(paths, "flatout monitor is running") if is_running else {}
    return _DiskCategory(
        kind="samples",
        text="samples of this machine, recorded by `flatout monitor`",
        folder=folder,
        paths=paths,
        cost="they cannot be recorded again",
        in_use=in_use,
    )


def _run_piles(runs: Sequence[Run | DamagedRun]) -> Iterator[_DiskCategory]:
    checkpoints = {Path(run.folder) / "checkpoints": run for run in runs}
    checkpoints = {path: run for path, run in checkpoints.items() if os.path.isdir(path)}
    in_use = {}
    for path, run in checkpoints.items():
        if run.status == "running":
            in_use[path] = _TRAINED.format(run.id)
        elif run.status != "finished":
            in_use[path] = _UNFINISHED.format(run.id)
    yield _DiskCategory(
        kind="checkpoints",
        text="checkpoints, from which runs resume",
        folder=folders.runs_folder(),
        paths=list(checkpoints),
        cost="finished runs cannot be continued; their kept weights stay",
        in_use=in_use,
    )
    yield _DiskCategory(
        kind="runs",
        text="runs and sweeps: history, metrics, kept weights, pictures",
        folder=folders.runs_folder(),
        paths=[*(Path(run.folder) for run in runs), *sweep_paths()],
        left_out="checkpoints",
        cost="flatout runs rm RUN",
    )


def _compiled(running: Sequence[str]) -> _DiskCategory:
    folder = folders.compiled_folder()
    paths = _below(folder, "*")
    return _DiskCategory(
        kind="compiled",
        text="training steps compiled by torch",
        folder=folder,
        paths=paths,
        cost="runs that compile take longer to start, once",
        in_use=dict.fromkeys(paths, f"{running[0]} may be reading it") if running else {},
    )


def _watched() -> _DiskCategory:
    records = watched_folder.record_paths()
    launches = _below(launches_folder(), "*")
    locks = {path: WatchedFolder(path).lock() for path in records}
    locks |= {path: launch_lock(path) for path in launches}
    return _DiskCategory(
        kind="watched",
        text="programs that were watched, and scripts on several nodes: their output, and samples "
        "of the machine",
        folder=watched_folder.watched_folder(),
        paths=[*records, *launches],
        cost="they can no longer be shown",
        in_use={path: f"{path.name} is running" for path in locks if locks[path].is_taken()},
    )


def _environments() -> _DiskCategory:
    folder = folders.environments_folder()
    # The user may have chosen the folder, and keep other environments in it.
    paths = [path for path in _below(folder, "*") if environment_folder.is_marked(path)]
    # Those created elsewhere, with --in.
    made = [Path(environment.folder) for environment in environments.list_environments()]
    paths += [path for path in made if path not in paths]
    in_use: dict[Path, str] = {}
    for run in list_runs():
        if isinstance(run, Run) and run.status == "running":
            python = Path(run.header.python)
            in_use |= {path: f"{run.id} is being trained in it" for path in paths
                       if python.is_relative_to(path)}  # fmt: skip
    return _DiskCategory(
        kind="environments",
        text="environments created by `flatout setup`",
        folder=folder,
        paths=paths,
        cost="flatout setup recreates them",
        in_use=in_use,
    )


def _left_overs(runs: Sequence[Path]) -> Iterator[Path]:
    """Folders that an ended process was creating or removing."""
    import psutil

    state = folders.state_folder()
    parents = [folders.runs_folder(), folders.tunes_folder(), *runs, folders.compiled_folder(),
               folders.cache_folder(), state, folders.state_path("indexes"),
               folders.state_path("changes")]  # fmt: skip
    for parent in parents:
        yield from atomic_files.left_over_paths(parent)
    # The user may keep other environments in this folder.
    for path in folders.environments_folder().glob(".*-*"):
        number = path.name.rpartition("-")[2]
        is_ours = number.isdigit() and environment_folder.is_marked(path)
        if is_ours and not psutil.pid_exists(int(number)):
            yield path


def _is_taken(path: Path) -> bool:
    try:
        return RunFolder(path).is_in_use()
    except FlatoutError:
        # An unreadable run is not training; it must not hide all the others.
        return False


def _below(folder: Path, pattern: str) -> list[Path]:
    """The contents of a folder, except hidden ones, which are incomplete or being removed."""
    with atomic_files.mapped_os_errors(folder):
        paths = sorted(folder.glob(pattern)) if folder.is_dir() else []
    return [path for path in paths if not path.name.startswith(".")]


def drop_empty(paths: Iterable[Path]) -> None:
    """Removes empty folders, and empty ones below them; what is not empty stays."""
    for folder in paths:
        for path, _, _ in os.walk(folder, topdown=False):
            try:
                os.rmdir(path)
            except OSError:
                pass  # It is not empty.
