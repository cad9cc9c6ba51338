"""One step of a plan: whether it is done already, and doing it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from flatout.errors import RunFailed
from flatout.schema.change_journal import StepBegun, TreeKept
from flatout.schema.plan import (
    Block,
    Edit,
    Exists,
    InstallPackages,
    Move,
    PlanStep,
    Prints,
    RunProgram,
    Write,
    files_of,
)
from flatout.system import clock, command, edit_file, hardlink_copy
from flatout.system.changes import pip
from flatout.system.changes.edit_actions import content_after
from flatout.system.changes.exit_codes import ended_text
from flatout.system.store.change_journal import ChangeJournal

_CHECK_LIMIT_S = 30.0
_SHOWN_LINES = 6
_SYSTEM32 = "/mnt/c/Windows/System32"


def is_done(step: PlanStep) -> bool:
    """Whether there is nothing to do: its condition holds, or its file has the required content.

    Raises:
        UsageError: settings-file-broken, and what the operating system says of a file.
    """
    if isinstance(step.done_if, Exists):
        return edit_file.real_path(step.done_if.path).exists()
    if isinstance(step.done_if, Prints):
        done = command.run(located(step.done_if.argv, step), _CHECK_LIMIT_S)
        match = re.search(rf"(?<!\S){re.escape(step.done_if.text)}(?!\S)", done.stdout)
        return done.exit_code == 0 and (match is not None or not step.done_if.text)
    action = step.action
    if isinstance(action, Edit | Block | Write):
        content = edit_file.content_of(edit_file.real_path(action.file))
        return content_after(action, content) == content
    if isinstance(action, Move):
        source, target = Path(action.source), Path(action.target)
        return target.exists() and not source.exists()
    return (
        isinstance(action, RunProgram) and action.makes is not None and Path(action.makes).exists()
    )


def shown(step: PlanStep) -> str:
    """The output of the commands that preview the step; they change nothing."""
    parts = []
    for argv in step.shows:
        done = command.run(located(argv, step), _CHECK_LIMIT_S)
        output = done.stdout.rstrip() or done.stderr.rstrip() or done.reason or ""
        parts.append(f"{' '.join(argv)}\n{output}".rstrip())
    return "\n\n".join(parts)


def carry_out(number: int, step: PlanStep, journal: ChangeJournal) -> None:
    """Does a step, after it was recorded in the journal.

    Raises:
        UsageError, RunFailed: what kept it from being done.
    """
    action = step.action
    if isinstance(action, Edit | Block | Write):
        _write(number, step, action, journal)
    elif isinstance(action, InstallPackages):
        _change_packages(number, action, journal)
    elif isinstance(action, Move):
        journal.append(StepBegun(step=number))
        hardlink_copy.move(Path(action.source), Path(action.target))
    else:
        journal.append(StepBegun(step=number))
        run_command(action, step, journal)


def left_by(number: int, step: PlanStep, journal: ChangeJournal) -> dict[str, str]:
    """Digests of what a step has left, done or not: what differs from them, someone else did."""
    if number in journal.trees:
        root = journal.trees[number].path
        return {root: hardlink_copy.tree_digest(Path(root))}
    return {
        str(path): edit_file.digest(edit_file.content_of(path))
        for path in map(edit_file.real_path, files_of(step.action))
    }


def run_command(action: RunProgram, step: PlanStep, journal: ChangeJournal) -> None:
    """Runs the program of a step to its good end.

    Raises:
        RunFailed: step-failed.
        UsageError: root-needed.
    """
    argv = located(action.argv, step)
    if step.needs_root:
        variables = [f"{name}={value}" for name, value in action.environment.items()]
        done = edit_file.run_as_root(
            ["env", *variables, *argv] if variables else argv, action.time_limit_s
        )
    else:
        added = {**pip.package_environment(), **action.environment}
        done = command.run(argv, action.time_limit_s, added, journal.kept_open)
    check_ended_well(argv, done)


def check_ended_well(argv: tuple[str, ...], done: command.Completed) -> None:
    """Makes sure that a program has succeeded.

    Raises:
        RunFailed: step-failed, with the last lines that it printed.
    """
    if done.exit_code == 0:
        return
    output = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
    how = done.reason or ended_text(argv, done.exit_code)
    raise RunFailed(
        "step-failed",
        f"`{' '.join(argv)}` failed.",
        because="\n    ".join([how, *output[-_SHOWN_LINES:]]),
        fix="fix what it reports, then try again; `flatout undo` reverts the steps before it",
    )


def located(argv: tuple[str, ...], step: PlanStep) -> tuple[str, ...]:
    """The command with flatout's own and Windows' programs as they are found from here."""
    if argv[0] == "flatout":
        return (sys.executable, "-P", "-m", *argv)
    program = f"{_SYSTEM32}/{argv[0]}"
    is_of_windows = step.where in ("windows", "powershell") and argv[0].endswith(".exe")
    return (program, *argv[1:]) if is_of_windows and Path(program).exists() else argv


def _write(
    number: int, step: PlanStep, action: Edit | Block | Write, journal: ChangeJournal
) -> None:
    path = edit_file.real_path(action.file)
    content = content_after(action, edit_file.content_of(path))
    if content is None:
        return
    journal.append(StepBegun(step=number, digests={str(path): edit_file.digest(content)}))
    edit_file.put(
        path,
        content,
        needs_root=step.needs_root,
        is_executable=isinstance(action, Write) and action.is_executable,
    )


def _change_packages(number: int, action: InstallPackages, journal: ChangeJournal) -> None:
    root = pip.environment_folder(action.python)
    argv = pip.package_command(action.python, action.words)
    # In the environment, since a link cannot lead to another disk.
    copy = root / hardlink_copy.KEPT / f"{journal.id}-{number}-{int(clock.now_s())}"
    journal.append(TreeKept(step=number, path=str(root), copy=str(copy)))
    hardlink_copy.keep_tree(root, copy)
    journal.append(StepBegun(step=number))
    variables = pip.package_environment()
    done = command.run(argv, action.time_limit_s, variables, journal.kept_open)
    check_ended_well(tuple(argv), done)
