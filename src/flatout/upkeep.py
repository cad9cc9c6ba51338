"""The verbs of keeping flatout itself, one short function each: disk, update, removal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.apply import undoing
from flatout.errors import FlatoutError, RunFailed, UsageError, nearest
from flatout.nouns.disk_use import FREEABLE, DiskUse, Freed
from flatout.nouns.installation import Installation, Part, Removal, Update
from flatout.nouns.journal import Applied
from flatout.nouns.typed import stop_command
from flatout.system import folders, installation, journal, made_environments, usage

__all__ = ["disk_use", "installed"]

disk_use = usage.disk_use
installed = installation.find_installation

# In this order; runs only where they were asked for.
_DELETED = ("environments", "data", "searches", "recipes", "compiled", "caches")
_KEEPABLE = ("edits", *_DELETED)


def wanted(uses: Sequence[DiskUse], kinds: Sequence[str]) -> list[DiskUse]:
    """Of all that is kept, the kinds that are to be freed.

    Raises:
        UsageError: cannot-free.
    """
    for kind in kinds:
        if kind not in FREEABLE:
            own = {"runs": "flatout runs rm RUN", "tools": "flatout self remove",
                   "undo": "flatout undo"}  # fmt: skip
            raise UsageError(
                "cannot-free",
                f"`--free {kind}` cannot be.",
                fix=own.get(kind) or nearest(kind, FREEABLE),
            )
    return [use for use in uses if use.kind in kinds]


def free(uses: Sequence[DiskUse]) -> Freed:
    """Deletes what can be freed of these kinds; what is at work stays.

    Raises:
        UsageError: folder-not-writable.
    """
    return Freed(kinds=tuple(use.kind for use in uses), num_bytes=usage.free(uses))


def plan_update(version: str | None, file: str | None) -> Update:
    """What would bring another version; nothing is changed.

    Raises:
        UsageError: cannot-update-here, source-not-found, run-in-use.
    """
    here = installed()
    _refuse_while_training("updated")
    path = str(installation.find_source(file)) if file else None
    command = installation.update_command(here, version, path)
    return Update(installation=here, command=command)


def update(planned: Update) -> Update:
    """Brings the other version, and asks it which it is.

    Raises:
        RunFailed: command-failed.
    """
    installation.run_shown(planned.command)
    installation.forget_checksum(planned.installation)
    after = installation.version_now(planned.installation)
    return msgspec.structs.replace(planned, after=after)


def plan_removal(keep: Sequence[str], *, is_with_runs: bool) -> Removal:
    """All that `flatout self remove` would take away; nothing is changed.

    Args:
        keep: kinds that stay.
        is_with_runs: runs go too, with their checkpoints.

    Raises:
        UsageError: cannot-keep, run-in-use, cannot-update-here.
    """
    for kind in keep:
        if kind not in _KEEPABLE:
            raise UsageError(
                "cannot-keep", f"`--keep {kind}` names nothing.", fix=nearest(kind, _KEEPABLE)
            )
    _refuse_while_training("removed")
    here = installed()
    uses: dict[str, DiskUse] = {use.kind: use for use in disk_use()}
    chosen = [uses[kind] for kind in _DELETED if kind not in keep and uses[kind].num_items]
    changes = [] if "edits" in keep else _changes()
    parts = [_edits_part(changes)] if changes else []
    parts += [
        Part(name=use.kind, text=use.text, cost=use.cost, num_bytes=use.num_bytes,
             paths=use.freeable)
        for use in chosen
    ]  # fmt: skip
    if is_with_runs:
        parts.append(_runs_part(uses["runs"], uses["checkpoints"]))
    parts.append(_own_part(here, uses["tools"]))
    taken = {part.name for part in parts} | ({"checkpoints"} if is_with_runs else set())
    if not _changes() or "edits" in taken:
        taken.add("undo")
    kept = [use for use in uses.values() if use.kind not in taken | {"tools"} and use.num_items]
    return Removal(installation=here, parts=tuple(parts), kept=tuple(kept))


def remove_part(part: Part, here: Installation) -> tuple[str, ...]:
    """Takes one part away; gives what stays of it, in words.

    Raises:
        UsageError: folder-not-writable, setup-in-progress.
        RunFailed: command-failed, not-all-put-back.
    """
    if part.name == "environments":
        usage.delete_environments([Path(path) for path in part.paths])
        return ()
    left = _put_back(_changes()) if part.name == "edits" else ()
    if part.name == "flatout":
        for profile in here.profiles:
            if profile.startswith("HKCU"):
                installation.forget_user_path(str(Path(here.launcher or "").parent))
            else:
                installation.clean_profile(profile)
    if not part.is_only_told:
        for command in part.commands:
            installation.run_shown(command)
        for path in part.paths:
            usage.delete(Path(path))
    if part.name == "flatout":
        if not _changes():
            usage.delete(journal.changes_folder())
        made_environments.forget_lock()
        usage.drop_empty(
            [folders.app_folder().parent, folders.cache_folder(), folders.state_folder()]
        )
    return left


def _put_back(changes: Sequence[Applied]) -> tuple[str, ...]:
    """Puts back what can be, all of it before it tells what cannot; gives what nothing undoes.

    Raises:
        RunFailed: not-all-put-back; flatout is still there to do it.
    """
    left, failures = [], []
    for applied in changes:
        try:
            left += [line for line in undoing.undo(applied) if line.startswith(undoing.LEFT)]
        except FlatoutError as error:
            failures.append(f"{applied.id} {applied.begun.plan.goal}: {error.problem}")
    if failures:
        raise RunFailed(
            "not-all-put-back",
            "some of what flatout has changed on this machine could not be put back.",
            because="; ".join(failures),
            fix="flatout undo ID does it one by one; or flatout self remove --keep edits",
        )
    return tuple(left)


def _changes() -> list[Applied]:
    """What flatout has changed on this machine and not put back, the newest first."""
    return [one for one in reversed(journal.entries()) if one.status != "undone"]


def _edits_part(changes: Sequence[Applied]) -> Part:
    return Part(
        name="edits",
        text="changes to this machine, put back: "
        + "; ".join(f"{one.id} {one.begun.plan.goal}" for one in changes),
        cost="what they have mended is as it was; flatout undo --list shows them",
    )


def _runs_part(runs: DiskUse, checkpoints: DiskUse) -> Part:
    return Part(
        name="runs",
        text="runs with their kept weights and checkpoints",
        cost="what they have learned is lost",
        num_bytes=runs.num_bytes + checkpoints.num_bytes,
        # Not the folder of runs itself: a person may keep something else in it.
        paths=usage.run_folders(),
    )


def _own_part(here: Installation, tools: DiskUse) -> Part:
    """flatout itself. Windows deletes no program that runs: there its removal is only told."""
    command = installation.remove_command(here)
    commands = [command] if command else []
    paths = [folders.tools_folder()]
    if here.way == "script":
        paths = [Path(here.launcher or ""), *paths, folders.app_folder()]
    is_there = [str(path) for path in paths if path.exists() or path.is_symlink()]
    if sys.platform == "win32" and here.way == "script":
        commands = [("Remove-Item", "-Recurse", "-Force", "-LiteralPath", one) for one in is_there]
    where = f"it runs from its sources in {here.checkout}, which stay"
    return Part(
        name="flatout",
        text=where if here.way == "checkout" else f"flatout itself, in {here.folder}",
        cost="sh install.sh, or the tool it came with, brings it back",
        num_bytes=tools.num_bytes,
        paths=tuple(is_there),
        commands=tuple(commands),
        is_only_told=sys.platform == "win32" and here.way != "checkout",
    )


def _refuse_while_training(what: str) -> None:
    running = usage.running_runs()
    if running:
        raise UsageError(
            "run-in-use",
            f"flatout cannot be {what} now: {running[0]} is being trained.",
            because="it would go on with files that are another version's, or gone",
            fix=f"wait for it, or stop it: {stop_command(running[0])}",
        )
