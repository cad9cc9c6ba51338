"""A plan taken back: files, packages and folders as they were, then commands that undo others."""

from __future__ import annotations

import difflib
from collections.abc import Generator, Iterator
from pathlib import Path

import msgspec

from flatout.errors import RunFailed, UsageError
from flatout.schema.change_journal import (
    Applied,
    FileKept,
    PlanEnded,
    StepBegun,
    StepEnded,
    TreeKept,
    UndoBegun,
    Undone,
)
from flatout.schema.plan import Move, RunProgram, files_of
from flatout.schema.units import counted_text
from flatout.system import clock, edit_file, hardlink_copy
from flatout.system.changes.actions import run_command
from flatout.system.changes.text_encoding import UnreadableText, decode
from flatout.system.store import change_journal
from flatout.system.store.change_journal import ChangeJournal

_DIFF_LINES = 12
# Begins the line of what is not put back.
LEFT = "left as it is: "


class Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """A later change by someone else. difference: lines of a diff, for a text."""

    path: str
    difference: tuple[str, ...] = ()


def obstacles(applied: Applied) -> tuple[Obstacle, ...]:
    """Things changed since flatout left them, which an undo would lose."""
    return (*changed_files(applied), *_changed_folders(applied))


def undo(applied: Applied, *, is_forced: bool = False) -> Generator[str]:
    """Takes a plan back while it is iterated over, and yields what was put back, in words.

    It may be interrupted and started again.

    Args:
        applied: the journal's entry.
        is_forced: what someone has changed since is overwritten; files are kept in the entry.
            Files whose copies are lost are left as they are.

    Raises:
        UsageError: undone-already, changed-since, changes-under-way.
        RunFailed: step-failed, where a command did not take its part back; it can be tried again.
            kept-copy-lost, before anything is changed.
    """
    _require_not_undone(applied)
    taken = change_journal.lock()
    journal = ChangeJournal(Path(applied.folder), taken)
    try:
        # The previous holder of the lock may have put it back in the meantime.
        applied = change_journal.entry(applied.id)
        _require_not_undone(applied)
        if not is_forced:
            for file in _written_files(applied):
                change_journal.kept_content(applied, file)
        changed = obstacles(applied)
        if changed and not is_forced:
            raise _changed_since(applied, changed)
        journal.append(UndoBegun(at=clock.now_s()))
        messages, failures = [], []
        for line in _restore_files(applied):
            messages.append(line)
            yield line
        for number in applied.begun_steps:
            try:
                for line in _undo_step(applied, number, journal):
                    messages.append(line)
                    yield line
            except RunFailed as error:
                failures.append(error)
        if failures:
            # Not undone, so that it can be tried again.
            raise failures[0]
        left = tuple(line for line in messages if line.startswith(LEFT))
        journal.append(Undone(at=clock.now_s(), left=left))
        for kept_line in applied.lines:
            if isinstance(kept_line, TreeKept):
                hardlink_copy.forget(Path(kept_line.copy))
    finally:
        journal.close()
        taken.release()


def _require_not_undone(applied: Applied) -> None:
    if applied.status == "undone":
        raise UsageError(
            "undone-already", f"{applied.id} is already undone.", fix="flatout undo --list"
        )


def _changed_since(applied: Applied, changed: tuple[Obstacle, ...]) -> UsageError:
    lines = [f"{file.path}\n" + "\n".join(f"      {line}" for line in file.difference)
             for file in changed]  # fmt: skip
    return UsageError(
        "changed-since",
        f"{changed[0].path} was changed after flatout changed it.",
        because="\n    ".join(line.rstrip() for line in lines),
        fix=f"overwrite it: flatout undo {applied.id} --force; or restore it by hand",
    )


def changed_files(applied: Applied) -> Iterator[Obstacle]:
    """The same for files alone: to compare a folder, everything in it is looked at."""
    known = _digests(applied)
    for line in _written_files(applied):
        if change_journal.is_copy_lost(applied, line):
            continue  # It is left as it is.
        path = Path(line.path)
        content, before = edit_file.content_of(path), change_journal.kept_content(applied, line)
        is_known = content == before or edit_file.digest(content) in known.get(line.path, ())
        # A program that was killed may have left anything.
        if not is_known and not _was_cut_off(applied, line.path):
            yield Obstacle(path=line.path, difference=_difference(before, content))


def _written_files(applied: Applied) -> Iterator[FileKept]:
    """The files kept, but for those of steps alone that were never started: they are untouched."""
    files: dict[bool, set[str]] = {True: set(_digests(applied)), False: set()}
    for number, step in enumerate(applied.begun.plan.steps):
        paths = (str(edit_file.real_path(file)) for file in files_of(step.action))
        files[number in applied.begun_steps].update(paths)
    untouched = files[False] - files[True]
    for line in applied.lines:
        if isinstance(line, FileKept) and line.path not in untouched:
            yield line


def compares_folders(applied: Applied) -> bool:
    """Whether an undo compares folders with what flatout has left, such as environments."""
    return not _is_undo_begun(applied) and any(
        isinstance(line, TreeKept) or (isinstance(line, PlanEnded) and line.digests)
        for line in applied.lines
    )


def _is_undo_begun(applied: Applied) -> bool:
    return any(isinstance(line, UndoBegun) for line in applied.lines)


def _changed_folders(applied: Applied) -> Iterator[Obstacle]:
    if _is_undo_begun(applied):
        return  # An undo that was interrupted has changed them, too.
    known = _digests(applied)
    cut_off = _cut_off_steps(applied)
    for line in applied.lines:
        if isinstance(line, TreeKept) and line.step not in cut_off and line.path in known:
            # A folder that the plan has moved is looked at in its last line.
            is_there = Path(line.path).is_dir()
            if is_there and hardlink_copy.tree_digest(Path(line.path)) not in known[line.path]:
                yield Obstacle(path=line.path)
        elif isinstance(line, PlanEnded):
            for folder, digest in line.digests.items():
                if Path(folder).is_dir() and hardlink_copy.tree_digest(Path(folder)) != digest:
                    yield Obstacle(path=folder)


def _digests(applied: Applied) -> dict[str, set[str]]:
    """All that flatout itself has written at each path; of folders, what it left last."""
    known: dict[str, set[str]] = {}
    for line in applied.lines:
        if isinstance(line, StepBegun | StepEnded):
            for path, digest in line.digests.items():
                known.setdefault(path, set()).add(digest)
    return known


def _cut_off_steps(applied: Applied) -> set[int]:
    ended = {line.step for line in applied.lines if isinstance(line, StepEnded)}
    return set(applied.begun_steps) - ended


def _was_cut_off(applied: Applied, path: str) -> bool:
    """Whether a program that writes the file was started, and no one knows how it ended."""
    steps = [applied.begun.plan.steps[number].action for number in _cut_off_steps(applied)]
    return any(
        isinstance(action, RunProgram)
        and path in [str(edit_file.real_path(path_of_file)) for path_of_file in action.files]
        for action in steps
    )


def _difference(before: bytes | None, content: bytes | None) -> tuple[str, ...]:
    try:
        old, new = decode(before or b"").text, decode(content or b"").text
    except UnreadableText:
        return ()
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), "before", "now",
                                      lineterm="", n=1))  # fmt: skip
    more = (
        [f"... {counted_text(len(lines) - _DIFF_LINES, 'more line')}"]
        if len(lines) > _DIFF_LINES
        else []
    )
    shown = [ascii(line)[1:-1] if not line.isprintable() else line for line in lines[:_DIFF_LINES]]
    return (*shown, *more)


def _restore_files(applied: Applied) -> Iterator[str]:
    for line in _written_files(applied):
        if change_journal.is_copy_lost(applied, line):
            yield f"{LEFT}{line.path}: its copy is missing or damaged"
            continue
        path = Path(line.path)
        content, now = change_journal.kept_content(applied, line), edit_file.content_of(path)
        edit_file.remove_part(path, needs_root=line.needs_root)
        if now == content:
            if content is None:
                # A process killed between the two has left the folder without the file.
                change_journal.remove_folders(line.folders)
            continue
        if edit_file.digest(now) not in _digests(applied).get(line.path, ()) and now is not None:
            aside = change_journal.keep_aside(applied, line, now)
            yield f"saved the current {line.path} in {aside}"
        if content is None:
            edit_file.remove(path, needs_root=line.needs_root)
            change_journal.remove_folders(line.folders)
            yield f"removed {line.path}, which did not exist before"
        else:
            edit_file.put(path, content, needs_root=line.needs_root)
            if now is None:
                change_journal.restore_mode(applied, line)
            yield f"restored {line.path}"


def _undo_step(applied: Applied, number: int, journal: ChangeJournal) -> Iterator[str]:
    """Undoes what is not a file: packages, folders, names, and what a command takes back."""
    step = applied.begun.plan.steps[number]
    action = step.action
    for line in applied.lines:
        if isinstance(line, TreeKept) and line.step == number:
            if not Path(line.copy).exists():
                yield f"{LEFT}the packages of {line.path}: their record is gone"
                continue
            lost = hardlink_copy.restore_tree(Path(line.copy), Path(line.path))
            yield f"restored the packages of {line.path}"
            yield from (f"{LEFT}{path}: it was changed and has no copy" for path in lost)
    if isinstance(action, Move):
        source, target = Path(action.source), Path(action.target)
        if target.exists() and not source.exists():
            hardlink_copy.move(target, source)
            yield f"moved {target} back to {source}"
    if not isinstance(action, RunProgram):
        return
    if action.makes and Path(action.makes).exists():
        hardlink_copy.remove_tree(Path(action.makes))
        yield f"removed {action.makes}"
    if step.undo:
        try:
            run_command(RunProgram(argv=step.undo), step, journal)
        except RunFailed:
            # What was not done need not be taken back.
            if not _has_failed(applied, number):
                raise
        else:
            yield f"ran {' '.join(step.undo)}"
    elif not step.can_be_undone:
        yield f"{LEFT}{step.text}, which cannot be undone"


def _has_failed(applied: Applied, number: int) -> bool:
    return any(
        isinstance(line, StepEnded) and line.step == number and line.how == "failed"
        for line in applied.lines
    )
