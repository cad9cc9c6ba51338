"""What flatout keeps on the disk: how large it is, what of it is at work, and deleting it.

A running run's files are never touched, nor what it may be reading.
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
from flatout.nouns.disk_use import FREEABLE, DiskUse, Kind
from flatout.nouns.run import DamagedRun, Run
from flatout.system import datasets, environment_folder, folders, made_environments, store
from flatout.system.reading import list_runs
from flatout.system.recipes import recipes_folder
from flatout.system.runs import RunFolder, run_paths

_UNFINISHED = "{} not finished: only its checkpoints let it go on"
_TRAINED = "{} is being trained"


class _Pile(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of one kind. in_use: why some of the paths cannot go, by path.

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
    """Everything that flatout keeps, by kind. Links to one file are counted where they are met."""
    seen: set[tuple[int, int]] = set()
    return [_measured(pile, seen) for pile in _piles()]


def free(uses: Iterable[DiskUse]) -> int:
    """Deletes what can be freed of these; gives the bytes that they took.

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
            # Somebody may have begun to train in it since it was looked at.
            folder = path.parent if use.kind == "checkpoints" else path
            if use.kind in ("checkpoints", "searches") and _is_taken(folder):
                continue
            size_bytes = size_of(path, set())
            delete(path)
            num_bytes += size_bytes
        if use.kind == "data":
            # Without a person's own files in them, nothing is left to keep the folders for.
            drop_empty({Path(text).parent for text in use.freeable})
    return num_bytes


def delete_environments(wanted: Sequence[Path]) -> int:
    """Deletes environments, and forgets where those lay; gives the bytes that they took.

    One in which somebody has begun to train since it was looked at stays.

    Raises:
        UsageError: folder-not-writable, setup-in-progress.
    """
    num_bytes = 0
    with made_environments.locked():
        in_use = _environments().in_use
        for path in wanted:
            if path in in_use:
                continue
            size_bytes = size_of(path, set())
            delete(path)
            num_bytes += size_bytes
        made_environments.sweep()
    made_environments.forget_lock()
    return num_bytes


def delete(path: Path) -> None:
    """Deletes a file, a link or a folder; one that is not there is no matter.

    Raises:
        UsageError: folder-not-writable.
    """
    with store.mapped_os_errors(path):
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        # Under a hidden name first, so that a removal cut short leaves nothing like a whole one.
        hidden = path.with_name(f".{path.name}-{os.getpid()}")
        path.rename(hidden)
        if sys.version_info >= (3, 12):
            shutil.rmtree(hidden, onexc=_make_writable)
        else:
            shutil.rmtree(hidden, onerror=_make_writable)


def size_of(path: Path, seen: set[tuple[int, int]], left_out: str | None = None) -> int:
    """What a file or folder takes on the disk.

    Args:
        path: of the file or folder; one that is not there takes nothing.
        seen: device and number of the linked files that were counted, and are not again.
        left_out: a name in that folder that does not count.
    """
    num_bytes = 0
    for entry in _entries(path, left_out):
        if entry.st_nlink > 1 and stat.S_ISREG(entry.st_mode):
            known = (entry.st_dev, entry.st_ino)
            if known in seen:
                continue
            seen.add(known)
        # A file with holes, and one in blocks, takes another size than its length.
        num_bytes += getattr(entry, "st_blocks", 0) * 512 or entry.st_size
    return num_bytes


def _entries(path: Path, left_out: str | None) -> Iterator[os.stat_result]:
    """The file, or everything below the folder; what vanishes meanwhile is left out."""
    try:
        found = path.lstat()
    except OSError:
        return
    yield found
    if not stat.S_ISDIR(found.st_mode):
        return
    waiting = [str(path)]
    unwanted = os.path.join(path, left_out) if left_out else None
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.path == unwanted:
                        continue
                    # Under Windows what the folder tells has no links counted; lstat does.
                    is_windows = sys.platform == "win32"
                    yield os.lstat(entry.path) if is_windows else entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue


def _make_writable(function: Callable[[str], object], path: str, _: object) -> None:
    """Files that may only be read cannot be deleted under Windows, git's among them."""
    os.chmod(path, stat.S_IWRITE)
    function(path)


def run_folders() -> tuple[str, ...]:
    """The folder of every run, and what tells their numbers."""
    return tuple(str(path) for path in run_paths())


def running_runs() -> list[str]:
    """Names of the runs that somebody trains in now, searches among them."""
    paths = [*run_paths(), *run_paths(folders.tunes_folder())]
    return [path.name for path in paths if _is_taken(path)]


def _measured(pile: _Pile, seen: set[tuple[int, int]]) -> DiskUse:
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


def _piles() -> Iterator[_Pile]:
    yield from _run_piles(list_runs())
    state, tunes = folders.state_folder(), folders.tunes_folder()
    searches = run_paths(tunes)
    taken = {path: _TRAINED.format(path.name) for path in searches if _is_taken(path)}
    running = running_runs()
    yield _Pile(
        kind="searches",
        text="searches for a recipe: what was tried, and what it gave",
        folder=tunes,
        paths=searches,
        cost="what was tried cannot be shown any more; the recipes stay",
        in_use=taken,
    )
    yield _Pile(
        kind="recipes",
        text="recipes that were found by measuring",
        folder=recipes_folder(),
        paths=_below(recipes_folder(), "*.json"),
        cost="the next training of the same kind measures again",
    )
    downloaded = datasets.downloaded_files()
    yield _Pile(
        kind="data",
        text="data sets that were downloaded",
        folder=folders.data_folders()[-1],
        paths=downloaded,
        cost="they are downloaded again when they are needed",
        in_use=dict.fromkeys(downloaded, f"{running[0]} may read it") if running else {},
    )
    yield from (_environments(), _compiled(running), _caches(state))
    yield _Pile(
        kind="tools",
        text="flatout itself, uv and micromamba, where an install script or a setup put them",
        folder=folders.app_folder().parent,
        paths=[path for path in (folders.app_folder(), folders.tools_folder()) if path.is_dir()],
        cost="flatout self remove",
    )
    yield _Pile(
        kind="undo",
        text="copies of files that flatout has changed",
        folder=state / "changes",
        paths=_below(state / "changes", "*"),
        cost="flatout undo needs them",
    )


def _caches(state: Path) -> _Pile:
    cache = folders.cache_folder()
    asked = folders.compat_update_file()
    return _Pile(
        kind="caches",
        text="downloaded wheels, answers of package indexes, reports of crashes and of the last "
        "failed start, what a broken removal left",
        folder=cache,
        paths=[
            *[path for name in folders.cached_names() for path in _below(cache, name)],
            *_below(asked.parent, asked.name),
            *_below(state / "indexes", "*"),
            *_below(state / "crashes", "*"),
            *_below(state, "failed-start"),
            *_left_overs(),
        ],
        cost="the next flatout setup downloads its wheels again, and asks the indexes again",
    )


def _run_piles(runs: Sequence[Run | DamagedRun]) -> Iterator[_Pile]:
    checkpoints = {Path(run.folder) / "checkpoints": run for run in runs}
    checkpoints = {path: run for path, run in checkpoints.items() if os.path.isdir(path)}
    in_use = {}
    for path, run in checkpoints.items():
        if run.status == "running":
            in_use[path] = _TRAINED.format(run.id)
        elif run.status != "finished":
            in_use[path] = _UNFINISHED.format(run.id)
    yield _Pile(
        kind="checkpoints",
        text="checkpoints of runs, from which they go on",
        folder=folders.runs_folder(),
        paths=list(checkpoints),
        cost="finished runs cannot be trained longer; their kept weights stay",
        in_use=in_use,
    )
    yield _Pile(
        kind="runs",
        text="runs: history, metrics, kept weights, pictures",
        folder=folders.runs_folder(),
        paths=[Path(run.folder) for run in runs],
        left_out="checkpoints",
        cost="flatout runs rm RUN",
    )


def _compiled(running: Sequence[str]) -> _Pile:
    folder = folders.compiled_folder()
    paths = _below(folder, "*")
    return _Pile(
        kind="compiled",
        text="training steps that torch has compiled",
        folder=folder,
        paths=paths,
        cost="runs that compile take longer to start, once",
        in_use=dict.fromkeys(paths, f"{running[0]} may read it") if running else {},
    )


def _environments() -> _Pile:
    folder = folders.environments_folder()
    # The folder may be a person's own choice, and hold environments of their own.
    paths = [path for path in _below(folder, "*") if environment_folder.is_marked(path)]
    # Those that were made elsewhere, with --in.
    made = [Path(one.folder) for one in made_environments.list_environments()]
    paths += [path for path in made if path not in paths]
    in_use: dict[Path, str] = {}
    for run in list_runs():
        if isinstance(run, Run) and run.status == "running":
            python = Path(run.header.python)
            in_use |= {path: f"{run.id} is being trained in it" for path in paths
                       if python.is_relative_to(path)}  # fmt: skip
    return _Pile(
        kind="environments",
        text="environments that `flatout setup` has made",
        folder=folder,
        paths=paths,
        cost="flatout setup makes them again",
        in_use=in_use,
    )


def _left_overs() -> Iterator[Path]:
    """What was hidden to be removed, by a process that is no more."""
    import psutil

    for folder in (folders.runs_folder(), folders.tunes_folder(), folders.environments_folder()):
        for path in folder.glob(".*-*") if folder.is_dir() else ():
            number = path.name.rpartition("-")[2]
            if number.isdigit() and not psutil.pid_exists(int(number)):
                yield path


def _is_taken(path: Path) -> bool:
    try:
        return RunFolder(path).is_in_use()
    except FlatoutError:
        # What may not be read is not trained in either; it must not stand for all the others.
        return False


def _below(folder: Path, pattern: str) -> list[Path]:
    """What is in a folder, but what is hidden: half-made or half-removed."""
    with store.mapped_os_errors(folder):
        found = sorted(folder.glob(pattern)) if folder.is_dir() else []
    return [path for path in found if not path.name.startswith(".")]


def drop_empty(paths: Iterable[Path]) -> None:
    """Removes folders that hold nothing, and those below them; what is not empty stays."""
    for folder in paths:
        for path, _, _ in os.walk(folder, topdown=False):
            try:
                os.rmdir(path)
            except OSError:
                pass  # Somebody keeps something in it.
