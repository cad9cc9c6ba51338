"""Maintenance of flatout itself, one short function each: disk, update, removal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.errors import FlatoutError, RunFailed, UsageError, nearest
from flatout.schema.change_journal import Applied
from flatout.schema.suggested_command import stop_command
from flatout.setup.flatout import disk_usage, installation
from flatout.setup.model.disk_use import FREEABLE, DiskUse, Freed
from flatout.setup.model.flatout_installation import (
    Installation,
    InstalledPart,
    SelfUpdate,
    UninstallPlan,
)
from flatout.system import paths as folders
from flatout.system.changes import undo
from flatout.system.store import change_journal, environments

__all__ = ["disk_use", "installed"]

disk_use = disk_usage.disk_use
installed = installation.find_installation

# In this order; runs only on request.
_DELETED = (
    "environments", "data", "searches", "recipes", "compiled", "watched", "results", "caches",
    "samples",
)  # fmt: skip
_KEEPABLE = ("edits", *_DELETED)


def uses_to_free(uses: Sequence[DiskUse], kinds: Sequence[str]) -> list[DiskUse]:
    """The kinds that will be freed.

    Raises:
        UsageError: cannot-free.
    """
    for kind in kinds:
        if kind not in FREEABLE:
            own = {"runs": "flatout runs rm RUN", "tools": "flatout self remove",
                   "undo": "flatout undo"}  # fmt: skip
            raise UsageError(
                "cannot-free",
                f"`--free {kind}` is not possible."
                if kind in own
                else f"`--free {kind}`: there is no such kind.",
                fix=own.get(kind) or nearest(kind, FREEABLE),
            )
    return [use for use in uses if use.kind in kinds]


def free(uses: Sequence[DiskUse]) -> Freed:
    """Deletes what can be freed of these kinds; what is in use stays.

    Raises:
        UsageError: folder-not-writable.
    """
    return Freed(kinds=tuple(use.kind for use in uses), num_bytes=disk_usage.free(uses))


def plan_update(version: str | None, file: str | None) -> SelfUpdate:
    """The command that would update flatout; nothing is changed.

    Raises:
        UsageError: cannot-update-here, source-not-found, run-in-use.
    """
    here = installed()
    _refuse_while_training("updated")
    path = str(installation.find_source(file)) if file else None
    command = installation.update_command(here, version, path)
    return SelfUpdate(installation=here, command=command)


def update(planned: SelfUpdate) -> SelfUpdate:
    """Installs the other version, and reads its version number.

    Raises:
        RunFailed: command-failed.
    """
    installation.run_shown(planned.command)
    installation.forget_checksum(planned.installation)
    after = installation.version_now(planned.installation)
    return msgspec.structs.replace(planned, after=after)


def plan_removal(keep: Sequence[str], *, is_with_runs: bool) -> UninstallPlan:
    """All that `flatout self remove` would remove; nothing is changed.

    Args:
        keep: kinds that stay.
        is_with_runs: also remove runs, with their checkpoints.

    Raises:
        UsageError: cannot-keep, run-in-use, cannot-update-here.
    """
    for kind in keep:
        if kind not in _KEEPABLE:
            raise UsageError(
                "cannot-keep", f"`--keep {kind}` is not a known kind.", fix=nearest(kind, _KEEPABLE)
            )
    _refuse_while_training("removed")
    here = installed()
    uses: dict[str, DiskUse] = {use.kind: use for use in disk_use()}
    chosen = [uses[kind] for kind in _DELETED if kind not in keep and uses[kind].num_items]
    changes = [] if "edits" in keep else _changes()
    parts = [_edits_part(changes)] if changes else []
    parts += [
        InstalledPart(name=use.kind, text=use.text, cost=use.cost, num_bytes=use.num_bytes,
             paths=use.freeable)
        for use in chosen
    ]  # fmt: skip
    if is_with_runs:
        parts.append(_runs_part(uses["runs"], uses["checkpoints"]))
    parts.append(_own_part(here, uses["tools"]))
    taken = {part.name for part in parts} | ({"checkpoints"} if is_with_runs else set())
    if not _changes() or "edits" in taken:
        taken.add("undo")
    kept_uses = [
        use for use in uses.values() if use.kind not in taken | {"tools"} and use.num_items
    ]
    return UninstallPlan(installation=here, parts=tuple(parts), kept=tuple(kept_uses))


def remove_part(part: InstalledPart, here: Installation) -> tuple[str, ...]:
    """Removes one part; returns what is left of it, in words.

    Raises:
        UsageError: folder-not-writable, setup-in-progress.
        RunFailed: command-failed, not-all-put-back.
    """
    if part.name == "environments":
        disk_usage.delete_environments([Path(path) for path in part.paths])
        return ()
    left = _restore(_changes()) if part.name == "edits" else ()
    if part.name == "flatout":
        for profile in here.profiles:
            if profile.startswith("HKCU"):
                installation.forget_user_path(str(Path(here.launcher or "").parent))
            else:
                installation.clean_profile(profile)
    if not part.is_only_shown:
        for command in part.commands:
            installation.run_shown(command)
        for path in part.paths:
            disk_usage.delete(Path(path))
    if part.name == "flatout":
        if not _changes():
            disk_usage.delete(change_journal.changes_folder())
        environments.forget_lock()
        disk_usage.drop_empty(
            [folders.app_folder().parent, folders.cache_folder(), folders.state_folder()]
        )
    return left


def _restore(changes: Sequence[Applied]) -> tuple[str, ...]:
    """Undoes what it can before it reports failures; returns what cannot be undone.

    Raises:
        RunFailed: not-all-put-back; flatout is still installed then, to retry.
    """
    left, failures = [], []
    for applied in changes:
        try:
            left += [line for line in undo.undo(applied) if line.startswith(undo.LEFT)]
        except FlatoutError as error:
            failures.append(f"{applied.id} {applied.begun.plan.goal}: {error.problem}")
    if failures:
        raise RunFailed(
            "not-all-put-back",
            "some of flatout's changes to this machine could not be undone.",
            because="; ".join(failures),
            fix="undo them one by one: flatout undo ID; or keep them: "
            "flatout self remove --keep edits",
        )
    return tuple(left)


def _changes() -> list[Applied]:
    """The changes by flatout on this machine that were not undone, the newest first."""
    return [change for change in reversed(change_journal.entries()) if change.status != "undone"]


def _edits_part(changes: Sequence[Applied]) -> InstalledPart:
    return InstalledPart(
        name="edits",
        text="changes to this machine, to be undone: "
        + "; ".join(f"{change.id} {change.begun.plan.goal}" for change in changes),
        cost="what they fixed is broken again; flatout undo --list shows them",
    )


def _runs_part(runs: DiskUse, checkpoints: DiskUse) -> InstalledPart:
    return InstalledPart(
        name="runs",
        text="runs, with their kept weights and checkpoints",
        cost="the trained weights are lost",
        num_bytes=runs.num_bytes + checkpoints.num_bytes,
        # Not the folder of runs itself: the user may keep other files in it.
        paths=disk_usage.run_folders(),
    )


def _own_part(here: Installation, tools: DiskUse) -> InstalledPart:
    """flatout itself. Windows deletes no running program: there the command is only shown."""
    command = installation.remove_command(here)
    commands = [command] if command else []
    paths = [folders.tools_folder(), *disk_usage.state_paths("tools")]
    if here.way == "script":
        paths = [Path(here.launcher or ""), *paths, folders.app_folder()]
    is_there = [str(path) for path in paths if path.exists() or path.is_symlink()]
    if sys.platform == "win32" and here.way == "script":
        commands = [
            ("Remove-Item", "-Recurse", "-Force", "-LiteralPath", path) for path in is_there
        ]
    where = f"it runs from its sources in {here.checkout}, which stay"
    return InstalledPart(
        name="flatout",
        text=where if here.way == "checkout" else f"flatout itself, in {here.folder}",
        cost="reinstall it with sh install.sh, or with the tool that installed it",
        num_bytes=tools.num_bytes,
        paths=tuple(is_there),
        commands=tuple(commands),
        is_only_shown=sys.platform == "win32" and here.way != "checkout",
    )


def _refuse_while_training(what: str) -> None:
    running = disk_usage.running_runs()
    if running:
        raise UsageError(
            "run-in-use",
            f"flatout cannot be {what} now: {running[0]} is being trained.",
            because="it would load files of another version, or missing ones",
            fix=f"wait for it, or stop it: {stop_command(running[0])}",
        )
