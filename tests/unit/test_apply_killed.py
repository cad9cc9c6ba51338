"""kill -9 while a plan is applied or taken back: nothing is lost, and both can be begun again."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from flatout.schema.plan import (
    Action,
    Block,
    Edit,
    Entry,
    Exists,
    Move,
    Plan,
    PlanStep,
    RunProgram,
    Write,
)
from flatout.system.changes.apply import apply
from flatout.system.changes.undo import undo
from flatout.system.store import change_journal

APPLY = """
import msgspec, sys
from flatout.system.changes.apply import apply
from flatout.schema.plan import Plan
plan = msgspec.json.decode(open(sys.argv[1], "rb").read(), type=Plan)
print("begun", flush=True)
for outcome in apply(plan):
    pass
"""
UNDO = """
from flatout.system.changes.undo import undo
from flatout.system.store import change_journal
newest = [one for one in change_journal.entries() if one.status != "undone"][-1]
print("begun", flush=True)
list(undo(newest))
"""


def files_below(folder: Path) -> dict[str, bytes]:
    """Every file with its bytes."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def a_plan(home: Path) -> Plan:
    """Twenty changes of every kind to five files, some of them twice, and a folder that is made."""
    actions: list[Action] = []
    for number in range(5):
        entry = Entry(place=("wsl2", f"key{number}"), value="x" * 40)
        daemon = Entry(place=("runtimes", f"r{number}", "path"), value="y")
        actions += [
            Edit(file=str(home / ".wslconfig"), form="ini", entries=(entry,)),
            Edit(file=str(home / "daemon.json"), form="json", entries=(daemon,)),
            Block(file=str(home / ".bashrc"), name=f"b{number}", lines=("export A=1",)),
        ]
    actions.append(Write(file=str(home / "new" / "file"), text="z" * 10_000))
    program = (
        f"import os; os.makedirs({str(home / 'part')!r}, exist_ok=True); "
        f"open({str(home / 'made')!r}, 'w')"
    )
    actions += [
        RunProgram(argv=(sys.executable, "-c", program), makes=str(home / "part"),
            files=(str(home / "made"),)),
        Move(source=str(home / "part"), target=str(home / "whole")),
    ]  # fmt: skip
    made = Exists(path=str(home / "whole"))
    steps = tuple(
        PlanStep(text=f"step {number}", action=action, changes="",
             done_if=made if isinstance(action, RunProgram) else None)
        for number, action in enumerate(actions)
    )  # fmt: skip
    return Plan(goal="all of it", steps=steps)


def kill_after(code: str, argument: str, seconds: float) -> bool:
    """Starts a process, kills it that long after its first word; whether it was still at work."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, argument], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n", process.communicate()
    time.sleep(seconds)
    process.kill()
    _, stderr = process.communicate()
    assert b"Traceback" not in stderr, stderr
    return process.returncode != 0


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_when_killed(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    home = tmp_path / "home"
    home.mkdir()
    (home / ".wslconfig").write_bytes(b"[wsl2]\r\nmemory=1GB")
    (home / "daemon.json").write_bytes(b'{"a": 1}\n')
    (home / ".bashrc").write_bytes(b"alias a=b")
    before = files_below(home)
    plan = a_plan(home)
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(plan))
    moment = random.Random(seed)
    kill_after(APPLY, str(tmp_path / "plan.json"), moment.uniform(0, 0.25))
    if seed % 2:
        # A second run goes on to the end.
        assert "failed" not in {one.how for one in apply(plan)}
        assert (home / "whole").is_dir() and (home / "new" / "file").read_text() == "z" * 10_000
    while left := [one for one in change_journal.entries() if one.status != "undone"]:
        # Under way: the killed plan's program runs still, and is waited for.
        assert left[-1].status in ("interrupted", "done", "running")
        kill_after(UNDO, "", moment.uniform(0, 0.05))
        if change_journal.entry(left[-1].id).status != "undone":
            list(undo(change_journal.entry(left[-1].id)))
    assert files_below(home) == before
    assert sorted(path.name for path in home.iterdir()) == [".bashrc", ".wslconfig", "daemon.json"]
