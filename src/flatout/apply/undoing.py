"""A plan taken back: files, packages and folders as they were, then commands that undo others."""

from __future__ import annotations

import difflib
from collections.abc import Generator, Iterator
from pathlib import Path

import msgspec

from flatout.apply.actions import run_command
from flatout.apply.coding import Unreadable, decode
from flatout.errors import RunFailed, UsageError
from flatout.nouns.journal import (
    Applied,
    FileKept,
    PlanEnded,
    StepBegun,
    StepEnded,
    TreeKept,
    UndoBegun,
    Undone,
)  # fmt: skip
from flatout.nouns.plan import Move, Run, files_of
from flatout.nouns.units import counted_text
from flatout.system import clock, journal, rewriting, trees
from flatout.system.journal import Journal

_DIFF_LINES = 12
# Begins the line of what is not put back.
LEFT = "left as it is: "


class Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody has changed since. difference: lines of a diff, where it is a text."""

    path: str
    difference: tuple[str, ...] = ()


def obstacles(applied: Applied) -> tuple[Obstacle, ...]:
    """What flatout did not leave as it is now, so that putting it back would lose it."""
    return (*_changed_files(applied), *_changed_folders(applied))


def undo(applied: Applied, *, is_forced: bool = False) -> Generator[str]:
    """Takes a plan back while it is iterated over, and yields what was put back, in words.

    It may be broken off and begun again.

    Args:
        applied: the journal's entry.
        is_forced: what somebody has changed since is overwritten; files are kept in the entry.
            Files whose copies are lost are left as they are.

    Raises:
        UsageError: undone-already, changed-since, changes-under-way.
        RunFailed: step-failed, where a command did not take its part back; it can be tried again.
            kept-copy-lost, before anything is changed.
    """
    _require_not_undone(applied)
    taken = journal.lock()
    kept = Journal(Path(applied.folder), taken)
    try:
        # Whoever had the lock before may have put it back meanwhile.
        applied = journal.entry(applied.id)
        _require_not_undone(applied)
        if not is_forced:
            for file in _written_files(applied):
                journal.kept_content(applied, file)
        changed = obstacles(applied)
        if changed and not is_forced:
            raise _changed_since(applied, changed)
        kept.append(UndoBegun(at=clock.now_s()))
        told, failures = [], []
        for line in _put_back_files(applied):
            told.append(line)
            yield line
        for number in applied.begun_steps:
            try:
                for line in _undo_step(applied, number, kept):
                    told.append(line)
                    yield line
            except RunFailed as error:
                failures.append(error)
        if failures:
            # Not undone, so that it can be tried again.
            raise failures[0]
        left = tuple(line for line in told if line.startswith(LEFT))
        kept.append(Undone(at=clock.now_s(), left=left))
        for kept_line in applied.lines:
            if isinstance(kept_line, TreeKept):
                trees.forget(Path(kept_line.copy))
    finally:
        kept.close()
        taken.release()


def _require_not_undone(applied: Applied) -> None:
    if applied.status == "undone":
        raise UsageError(
            "undone-already", f"{applied.id} is already undone.", fix="flatout undo --list"
        )


def _changed_since(applied: Applied, changed: tuple[Obstacle, ...]) -> UsageError:
    lines = [f"{one.path}\n" + "\n".join(f"      {line}" for line in one.difference)
             for one in changed]  # fmt: skip
    return UsageError(
        "changed-since",
        f"{changed[0].path} was changed after flatout had changed it.",
        because="\n    ".join(line.rstrip() for line in lines),
        fix=f"flatout undo {applied.id} --force, which overwrites it; or put it back by hand",
    )


def _changed_files(applied: Applied) -> Iterator[Obstacle]:
    known = _digests(applied)
    for line in _written_files(applied):
        if journal.is_copy_lost(applied, line):
            continue  # It is left as it is.
        path = Path(line.path)
        content, before = rewriting.content_of(path), journal.kept_content(applied, line)
        is_known = content == before or rewriting.digest(content) in known.get(line.path, ())
        # A program that was killed may have left anything.
        if not is_known and not _was_cut_off(applied, line.path):
            yield Obstacle(path=line.path, difference=_difference(before, content))


def _written_files(applied: Applied) -> Iterator[FileKept]:
    """The files kept, but for those of steps alone that were never begun: they are untouched."""
    files: dict[bool, set[str]] = {True: set(_digests(applied)), False: set()}
    for number, step in enumerate(applied.begun.plan.steps):
        paths = (str(rewriting.real_path(file)) for file in files_of(step.action))
        files[number in applied.begun_steps].update(paths)
    untouched = files[False] - files[True]
    for line in applied.lines:
        if isinstance(line, FileKept) and line.path not in untouched:
            yield line


def _changed_folders(applied: Applied) -> Iterator[Obstacle]:
    if any(isinstance(line, UndoBegun) for line in applied.lines):
        return  # An undo that broke off has changed them, too.
    known = _digests(applied)
    cut_off = _cut_off_steps(applied)
    for line in applied.lines:
        if isinstance(line, TreeKept) and line.step not in cut_off and line.path in known:
            # A folder that the plan has moved is looked at in its last line.
            is_there = Path(line.path).is_dir()
            if is_there and trees.tree_digest(Path(line.path)) not in known[line.path]:
                yield Obstacle(path=line.path)
        elif isinstance(line, PlanEnded):
            for folder, digest in line.digests.items():
                if Path(folder).is_dir() and trees.tree_digest(Path(folder)) != digest:
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
    """Whether a program that writes the file was begun, and nobody knows how it ended."""
    steps = [applied.begun.plan.steps[number].action for number in _cut_off_steps(applied)]
    return any(
        isinstance(action, Run) and path in [str(rewriting.real_path(one)) for one in action.files]
        for action in steps
    )


def _difference(before: bytes | None, content: bytes | None) -> tuple[str, ...]:
    try:
        old, new = decode(before or b"").text, decode(content or b"").text
    except Unreadable:
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


def _put_back_files(applied: Applied) -> Iterator[str]:
    for line in _written_files(applied):
        if journal.is_copy_lost(applied, line):
            yield f"{LEFT}{line.path}: the copy of it is missing or damaged"
            continue
        path = Path(line.path)
        content, now = journal.kept_content(applied, line), rewriting.content_of(path)
        rewriting.remove_part(path, needs_root=line.needs_root)
        if now == content:
            if content is None:
                # Whoever was killed between the two has left the folder without the file.
                journal.remove_folders(line.folders)
            continue
        if rewriting.digest(now) not in _digests(applied).get(line.path, ()) and now is not None:
            yield f"kept {line.path} as it was now in {journal.keep_aside(applied, line, now)}"
        if content is None:
            rewriting.remove(path, needs_root=line.needs_root)
            journal.remove_folders(line.folders)
            yield f"removed {line.path}, which was not there before"
        else:
            rewriting.put(path, content, needs_root=line.needs_root)
            if now is None:
                journal.restore_mode(applied, line)
            yield f"put back {line.path}"


def _undo_step(applied: Applied, number: int, kept: Journal) -> Iterator[str]:
    """Undoes what is no file: packages, folders, names, and what a command takes back."""
    step = applied.begun.plan.steps[number]
    action = step.action
    for line in applied.lines:
        if isinstance(line, TreeKept) and line.step == number:
            if not Path(line.copy).exists():
                yield f"{LEFT}the packages of {line.path}: what was kept of them is gone"
                continue
            lost = trees.put_back_tree(Path(line.copy), Path(line.path))
            yield f"put back the packages of {line.path}"
            yield from (f"{LEFT}{path}: it was changed and is not kept" for path in lost)
    if isinstance(action, Move):
        source, target = Path(action.source), Path(action.target)
        if target.exists() and not source.exists():
            trees.move(target, source)
            yield f"moved {target} back to {source}"
    if not isinstance(action, Run):
        return
    if action.makes and Path(action.makes).exists():
        trees.remove_tree(Path(action.makes))
        yield f"removed {action.makes}"
    if step.undo:
        try:
            run_command(Run(argv=step.undo), step, kept)
        except RunFailed:
            # What was not done need not be taken back.
            if not _has_failed(applied, number):
                raise
        else:
            yield f"ran {' '.join(step.undo)}"
    elif not step.can_be_undone:
        yield f"{LEFT}{step.text}, which nothing undoes"


def _has_failed(applied: Applied, number: int) -> bool:
    return any(
        isinstance(line, StepEnded) and line.step == number and line.how == "failed"
        for line in applied.lines
    )
