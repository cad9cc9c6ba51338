"""One step of a plan: whether it is done already, and doing it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from flatout.apply.contents import content_after
from flatout.apply.exit_codes import ended_text
from flatout.errors import RunFailed
from flatout.nouns.journal import StepBegun, TreeKept
from flatout.nouns.plan import (
    Block,
    Edit,
    Exists,
    Move,
    Packages,
    Prints,
    Run,
    Step,
    Write,
    files_of,
)  # fmt: skip
from flatout.system import clock, command, pip, rewriting, trees
from flatout.system.journal import Journal

_CHECK_LIMIT_S = 30.0
_SHOWN_LINES = 6
_SYSTEM32 = "/mnt/c/Windows/System32"


def is_done(step: Step) -> bool:
    """Whether there is nothing to do: its condition holds, or its file is as it is to be.

    Raises:
        UsageError: settings-file-broken, and what the operating system says of a file.
    """
    if isinstance(step.done_if, Exists):
        return rewriting.real_path(step.done_if.path).exists()
    if isinstance(step.done_if, Prints):
        done = command.run(located(step.done_if.argv, step), _CHECK_LIMIT_S)
        told = re.search(rf"(?<!\S){re.escape(step.done_if.text)}(?!\S)", done.stdout)
        return done.exit_code == 0 and (told is not None or not step.done_if.text)
    action = step.action
    if isinstance(action, Edit | Block | Write):
        content = rewriting.content_of(rewriting.real_path(action.file))
        return content_after(action, content) == content
    if isinstance(action, Move):
        source, target = Path(action.source), Path(action.target)
        return target.exists() and not source.exists()
    return isinstance(action, Run) and action.makes is not None and Path(action.makes).exists()


def shown(step: Step) -> str:
    """What the commands print that tell beforehand what the step will do; they change nothing."""
    parts = []
    for argv in step.shows:
        done = command.run(located(argv, step), _CHECK_LIMIT_S)
        said = done.stdout.rstrip() or done.stderr.rstrip() or done.reason or ""
        parts.append(f"{' '.join(argv)}\n{said}".rstrip())
    return "\n\n".join(parts)


def carry_out(number: int, step: Step, journal: Journal) -> None:
    """Does a step, which the journal is told before.

    Raises:
        UsageError, RunFailed: what kept it from being done.
    """
    action = step.action
    if isinstance(action, Edit | Block | Write):
        _write(number, step, action, journal)
    elif isinstance(action, Packages):
        _change_packages(number, action, journal)
    elif isinstance(action, Move):
        journal.append(StepBegun(step=number))
        trees.move(Path(action.source), Path(action.target))
    else:
        journal.append(StepBegun(step=number))
        run_command(action, step, journal)


def left_by(number: int, step: Step, journal: Journal) -> dict[str, str]:
    """Digests of what a step has left, done or not: what differs from them, somebody else did."""
    if number in journal.trees:
        root = journal.trees[number].path
        return {root: trees.tree_digest(Path(root))}
    return {
        str(path): rewriting.digest(rewriting.content_of(path))
        for path in map(rewriting.real_path, files_of(step.action))
    }


def run_command(action: Run, step: Step, journal: Journal) -> None:
    """Runs the program of a step to its good end.

    Raises:
        RunFailed: step-failed.
        UsageError: root-needed.
    """
    argv = located(action.argv, step)
    if step.needs_root:
        variables = [f"{name}={value}" for name, value in action.environment.items()]
        done = rewriting.run_as_root(
            ["env", *variables, *argv] if variables else argv, action.time_limit_s
        )
    else:
        added = {**pip.package_environment(), **action.environment}
        done = command.run(argv, action.time_limit_s, added, journal.kept_open)
    check_ended_well(argv, done)


def check_ended_well(argv: tuple[str, ...], done: command.Completed) -> None:
    """Makes sure that a program has done what it was asked to.

    Raises:
        RunFailed: step-failed, with the last lines that it printed.
    """
    if done.exit_code == 0:
        return
    said = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
    how = done.reason or ended_text(argv, done.exit_code)
    raise RunFailed(
        "step-failed",
        f"`{' '.join(argv)}` failed.",
        because="\n    ".join([how, *said[-_SHOWN_LINES:]]),
        fix="mend what it says, then try again; `flatout undo` puts back what was done before",
    )


def located(argv: tuple[str, ...], step: Step) -> tuple[str, ...]:
    """The command with flatout's own and Windows' programs as they are found from here."""
    if argv[0] == "flatout":
        return (sys.executable, "-P", "-m", *argv)
    place = f"{_SYSTEM32}/{argv[0]}"
    is_of_windows = step.where in ("windows", "powershell") and argv[0].endswith(".exe")
    return (place, *argv[1:]) if is_of_windows and Path(place).exists() else argv


def _write(number: int, step: Step, action: Edit | Block | Write, journal: Journal) -> None:
    path = rewriting.real_path(action.file)
    content = content_after(action, rewriting.content_of(path))
    if content is None:
        return
    journal.append(StepBegun(step=number, digests={str(path): rewriting.digest(content)}))
    rewriting.put(
        path,
        content,
        needs_root=step.needs_root,
        is_executable=isinstance(action, Write) and action.is_executable,
    )


def _change_packages(number: int, action: Packages, journal: Journal) -> None:
    root = pip.environment_folder(action.python)
    argv = pip.package_command(action.python, action.words)
    # In the environment, since a link cannot lead to another disk.
    copy = root / trees.KEPT / f"{journal.id}-{number}-{int(clock.now_s())}"
    journal.append(TreeKept(step=number, path=str(root), copy=str(copy)))
    trees.keep_tree(root, copy)
    journal.append(StepBegun(step=number))
    variables = pip.package_environment()
    done = command.run(argv, action.time_limit_s, variables, journal.kept_open)
    check_ended_well(tuple(argv), done)
