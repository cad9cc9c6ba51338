"""Plans carried out on real files, and taken back to the same bytes."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from support.busy_machine import wait_until

from flatout.errors import FlatoutError, UsageError
from flatout.schema.change_journal import StepBegun, StepOutcome
from flatout.schema.plan import (
    Action,
    Block,
    Edit,
    Entry,
    Exists,
    Move,
    Plan,
    PlanStep,
    Prints,
    RunProgram,
    Write,
)
from flatout.system.changes.apply import apply
from flatout.system.changes.undo import undo
from flatout.system.edit_file import PUT
from flatout.system.store import change_journal

IS_WINDOWS = sys.platform == "win32"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal of the test's own."""
    folder = tmp_path / "state"
    monkeypatch.setenv("FLATOUT_STATE", str(folder))
    return folder


def step(action: Action, **more: object) -> PlanStep:
    """A step that does this."""
    return PlanStep(text="a step", action=action, changes="a file", **more)  # type: ignore[arg-type]


def plan(*actions: Action | PlanStep) -> Plan:
    """A plan of these."""
    steps = tuple(one if isinstance(one, PlanStep) else step(one) for one in actions)
    return Plan(goal="a goal", steps=steps)


def memory(file: Path, value: str = "8GB") -> Edit:
    """An edit of .wslconfig."""
    entry = Entry(place=("wsl2", "memory"), value=value)
    return Edit(file=str(file), form="ini", entries=(entry,))


def python(code: str, **more: object) -> RunProgram:
    """A program."""
    return RunProgram(argv=(sys.executable, "-c", code), **more)  # type: ignore[arg-type]


def hows(outcomes: list[StepOutcome]) -> list[str]:
    return [one.how for one in outcomes]


def undo_newest(*, is_forced: bool = False) -> list[str]:
    newest = [one for one in change_journal.entries() if one.status != "undone"][-1]
    return list(undo(newest, is_forced=is_forced))


def test_files_are_as_they_were_after_an_undo(tmp_path: Path) -> None:
    config, profile, new = tmp_path / ".wslconfig", tmp_path / ".bashrc", tmp_path / "a/b/new"
    config.write_bytes(b"\xff\xfe" + "[wsl2]\r\nmemory=1GB".encode("utf-16-le"))
    profile.write_bytes(b"alias a=b")
    before = {path: path.read_bytes() for path in (config, profile)}
    block = Block(file=str(profile), name="cuda", lines=("export A=1",))
    done = list(
        apply(plan(memory(config), block, Write(file=str(new), text="x"), memory(config, "9GB")))
    )
    assert hows(done) == ["done"] * 4
    assert new.read_text() == "x" and b"export A=1\n" in profile.read_bytes()
    assert "9GB" in config.read_bytes().decode("utf-16")
    assert change_journal.entries()[0].status == "done"
    undo_newest()
    assert {path: path.read_bytes() for path in before} == before
    assert not (tmp_path / "a").exists()
    assert change_journal.entries()[0].status == "undone"
    with pytest.raises(UsageError, match="already undone"):
        list(undo(change_journal.entries()[0]))


def test_what_is_done_already_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "wsl.conf"
    file.write_text("[wsl2]\nmemory=8GB\n")
    there = step(python("raise SystemExit(1)"), done_if=Exists(path=str(file)))
    prints = Prints(argv=(sys.executable, "-c", "print('is so')"), text="is so")
    reported = step(python("raise SystemExit(1)"), done_if=prints)
    assert hows(list(apply(plan(memory(file), there, reported)))) == ["skipped"] * 3
    half = step(python("pass"), done_if=Prints(argv=prints.argv, text="is s"))
    assert hows(list(apply(plan(half)))) == ["done"]
    undo_newest()
    assert len(change_journal.entries()) == 1


def test_first_failure_is_the_last(tmp_path: Path) -> None:
    config, later = tmp_path / "wsl.conf", tmp_path / "later"
    failing = python("import sys; print('no such package', file=sys.stderr); sys.exit(7)")
    done = list(apply(plan(memory(config), failing, Write(file=str(later), text=""))))
    assert hows(done) == ["done", "failed", "not started"]
    assert done[1].problem is not None and done[1].problem.rule == "step-failed"
    assert "no such package" in (done[1].problem.because or "")
    assert not later.exists() and change_journal.entries()[0].status == "failed"
    undo_newest()
    assert not config.exists()


def test_program_that_hangs_is_ended(tmp_path: Path) -> None:
    done = list(apply(plan(python("import time; time.sleep(60)", time_limit_s=0.5))))
    assert hows(done) == ["failed"]
    assert "within 0.5 s" in (done[0].problem.because or "" if done[0].problem else "")


def test_files_and_folders_of_a_program_are_put_back(tmp_path: Path) -> None:
    file, folder = tmp_path / "config.toml", tmp_path / "made"
    file.write_text("a = 1\n")
    code = f"import os; open({str(file)!r}, 'w').write('all new'); os.mkdir({str(folder)!r})"
    program = python(code, files=(str(file),), makes=str(folder))
    final = tmp_path / "final"
    done = list(apply(plan(program, Move(source=str(folder), target=str(final)))))
    assert hows(done) == ["done", "done"] and final.is_dir()
    assert hows(list(apply(plan(Move(source=str(folder), target=str(final)))))) == ["skipped"]
    undo_newest()
    assert file.read_text() == "a = 1\n"
    assert not folder.exists() and not final.exists()


def test_undo_command_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    back = (sys.executable, "-c", f"open({str(mark)!r}, 'w')")
    list(apply(plan(step(python("pass"), undo=back))))
    assert not mark.exists()
    undo_newest()
    assert mark.exists()


def test_undo_says_what_nothing_undoes() -> None:
    list(apply(plan(python("pass"))))
    assert undo_newest() == ["left as it is: a step, which cannot be undone"]
    assert change_journal.entries()[0].status == "undone"


def test_undo_that_failed_can_be_tried_again(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    back = (sys.executable, "-c", f"open({str(mark)!r})")
    list(apply(plan(step(python("pass"), undo=back))))
    with pytest.raises(FlatoutError) as caught:
        undo_newest()
    assert caught.value.rule == "step-failed"
    mark.touch()
    undo_newest()
    assert change_journal.entries()[0].status == "undone"


def test_undo_is_refused_when_somebody_changed_the_file(tmp_path: Path) -> None:
    config = tmp_path / ".wslconfig"
    config.write_text("[wsl2]\n")
    list(apply(plan(memory(config))))
    config.write_text("[wsl2]\nmemory=16GB\n")
    with pytest.raises(UsageError) as caught:
        undo_newest()
    assert caught.value.rule == "changed-since" and "+memory=16GB" in (caught.value.because or "")
    assert config.read_text() == "[wsl2]\nmemory=16GB\n"
    said = undo_newest(is_forced=True)
    assert config.read_text() == "[wsl2]\n"
    kept = next(line for line in said if line.startswith("saved")).rpartition(" in ")[2]
    assert Path(kept).read_text() == "[wsl2]\nmemory=16GB\n"


@pytest.mark.parametrize("damage", ["missing", "emptied", "changed"])
def test_undo_is_refused_when_the_copy_of_a_file_is_lost(tmp_path: Path, damage: str) -> None:
    config, other = tmp_path / ".wslconfig", tmp_path / "other"
    config.write_text("[wsl2]\nswap=1GB\n")
    write = PlanStep(text="write", changes="", action=Write(file=str(other), text="flatout's\n"))
    list(apply(plan(memory(config), write)))
    ours = config.read_bytes()
    copy = Path(change_journal.entries()[0].folder) / "kept" / "0"
    match damage:
        case "missing":
            copy.unlink()
        case "emptied":
            copy.write_bytes(b"")
        case "changed":
            copy.write_bytes(b"[wsl2]\nswap=9GB\n")
    with pytest.raises(FlatoutError) as caught:
        undo_newest()
    assert caught.value.rule == "kept-copy-lost" and str(config) in caught.value.problem
    assert config.read_bytes() == ours and other.exists()
    said = undo_newest(is_forced=True)
    assert config.read_bytes() == ours and not other.exists()
    assert any(line.startswith("left as it is: ") and str(config) in line for line in said)


def test_undo_of_an_older_flatout_is_refused_when_the_copy_is_empty(tmp_path: Path) -> None:
    config = tmp_path / ".wslconfig"
    config.write_text("[wsl2]\nswap=1GB\n")
    list(apply(plan(memory(config))))
    ours = config.read_bytes()
    folder = Path(change_journal.entries()[0].folder)
    journal = folder / "journal.jsonl"
    # Such a one wrote no digest of what it kept.
    text, count = re.subn('("copy":"kept/0","digest":)"[^"]*"', r"\1null", journal.read_text())
    assert count == 1
    journal.write_text(text)
    copy = (folder / "kept" / "0").read_bytes()
    (folder / "kept" / "0").write_bytes(b"")
    with pytest.raises(FlatoutError) as caught:
        undo_newest()
    assert caught.value.rule == "kept-copy-lost" and config.read_bytes() == ours
    (folder / "kept" / "0").write_bytes(copy)
    undo_newest()
    assert config.read_text() == "[wsl2]\nswap=1GB\n"


def test_new_files_that_somebody_changed_are_all_kept(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("first", "second")]
    list(apply(plan(*(Write(file=str(place), text="flatout's\n") for place in places))))
    for place in places:
        place.write_text(place.name)
    said = undo_newest(is_forced=True)
    kept = [Path(line.rpartition(" in ")[2]) for line in said if line.startswith("saved")]
    assert [one.read_text() for one in kept] == ["first", "second"]
    assert not any(place.exists() for place in places)


@pytest.mark.parametrize("gone", ["a/b/c", "a/b"])
def test_undo_removes_folders_of_which_inner_ones_are_not_there(gone: str, tmp_path: Path) -> None:
    # A kill comes between two of them, as they are made or removed.
    new = tmp_path / "a/b/c/new"
    list(apply(plan(Write(file=str(new), text="x"))))
    shutil.rmtree(tmp_path / gone)
    undo_newest()
    assert not (tmp_path / "a").exists()


def test_undo_leaves_files_of_steps_that_were_never_begun(tmp_path: Path) -> None:
    first, later = tmp_path / "first", tmp_path / "later"
    later.write_text("as it was\n")
    actions = (Write(file=str(first), text="x"), python("1 / 0"), Write(file=str(later), text="x"))
    assert hows(list(apply(plan(*actions)))) == ["done", "failed", "not started"]
    later.write_text("somebody's work since\n")
    undo_newest()
    assert not first.exists() and later.read_text() == "somebody's work since\n"


def test_changes_are_undone_one_by_one(tmp_path: Path) -> None:
    config = tmp_path / ".wslconfig"
    list(apply(plan(memory(config, "8GB"))))
    list(apply(plan(memory(config, "9GB"))))
    first, second = change_journal.entries()
    with pytest.raises(UsageError, match="changed after"):
        list(undo(first))
    list(undo(second))
    assert "8GB" in config.read_text()
    list(undo(first))
    assert not config.exists()


@pytest.mark.skipif(IS_WINDOWS, reason="needs links and permissions of POSIX")
def test_links_and_permissions_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles", tmp_path / ".bashrc"
    real.write_text("a\n")
    real.chmod(0o640)
    link.symlink_to(real)
    list(apply(plan(Block(file=str(link), name="cuda", lines=("b",)))))
    assert link.is_symlink() and "b\n" in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    script = tmp_path / "script"
    list(apply(plan(Write(file=str(script), text="#!/bin/sh\n", is_executable=True))))
    assert os.access(script, os.X_OK)
    undo_newest()
    undo_newest()
    assert link.is_symlink() and real.read_text() == "a\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == [".bashrc", "dotfiles", "state"]


@pytest.mark.skipif(IS_WINDOWS, reason="needs a limit on the size of files")
def test_full_disk_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "big"
    file.write_text("small")
    # The journal holds the plan, so it is what meets the limit; then the file itself.
    for limit, size in ((20_000, 0), (200_000, 150_000)):
        code = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
from flatout.system.changes.apply import apply
from flatout.schema.plan import *
action = Write(file={str(file)!r}, text="x" * 300_000) if {size} == 0 else \\
    RunProgram(argv=("sh", "-c", "head -c 300000 /dev/zero > {file}"), files=({str(file)!r},))
step = PlanStep(text="", action=action, changes="")
for one in apply(Plan(goal="", steps=(step,))):
    print(one.how, one.problem and one.problem.rule)
"""
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout.split()[0] == "failed", done
    assert done.stdout.split()[1] == "step-failed"
    undo_newest()
    assert file.read_text() == "small"
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []


def test_folder_in_the_place_of_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "wsl.conf").mkdir()
    done = list(apply(plan(memory(tmp_path / "wsl.conf"))))
    assert hows(done) == ["failed"] and done[0].problem is not None
    assert change_journal.entries() == []


@pytest.mark.skipif(IS_WINDOWS or os.geteuid() == 0, reason="needs a person who is not root")
def test_file_that_may_not_be_written_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "wsl.conf"
    file.write_text("[wsl2]\n")
    file.chmod(0o444)
    done = list(apply(plan(memory(file))))
    assert done[0].problem is not None and done[0].problem.rule == "folder-not-writable"
    assert file.read_text() == "[wsl2]\n"


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    first = apply(plan(memory(tmp_path / "a"), memory(tmp_path / "b")))
    next(first)
    with pytest.raises(UsageError, match="right now"):
        list(apply(plan(memory(tmp_path / "c"))))
    assert change_journal.entries()[0].status == "running"
    first.close()
    assert change_journal.entries()[0].status == "interrupted"
    undo_newest()
    assert not (tmp_path / "a").exists()


def test_entry_is_found_by_its_number() -> None:
    list(apply(plan(python("pass"))))
    assert change_journal.entry("1").id == "0001"
    for wrong in ("2", "x", "../0001"):
        with pytest.raises(UsageError, match="no change"):
            change_journal.entry(wrong)


@pytest.mark.skipif(IS_WINDOWS, reason="a lock is not inherited there")
def test_program_that_outlives_flatout_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, begun, go = (tmp_path / name for name in ("late", "begun", "go"))
    file.write_text("before")
    code = f"""
import sys
from flatout.system.changes.apply import apply
from flatout.schema.plan import *
program = '''
import os, time
open({str(begun)!r}, "w").close()
while not os.path.exists({str(go)!r}):
    time.sleep(0.05)
open({str(file)!r}, "w").write("after")
'''
action = RunProgram(argv=(sys.executable, "-c", program), files=({str(file)!r},))
step = PlanStep(text="", action=action, changes="")
print("begun", flush=True)
list(apply(Plan(goal="a goal", steps=(step,))))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    wait_until(begun.exists)
    assert any(
        isinstance(line, StepBegun) for one in change_journal.entries() for line in one.lines
    )
    with pytest.raises(UsageError, match="another flatout is changing"):
        undo_newest()
    process.kill()
    # Not waited for: it is a zombie now, which has its number still.
    wait_until(lambda: next(change_journal.wait_for_program(), ""))
    reported = next(change_journal.wait_for_program())
    assert "a program of change 0001 (a goal) to end: flatout was killed" in reported
    with monkeypatch.context() as impatient:
        impatient.setattr(change_journal, "_WAIT_S", 0.2)
        with pytest.raises(UsageError, match="is still running"):
            undo_newest()
    threading.Timer(0.5, go.touch).start()
    undo_newest()
    assert file.read_text() == "before"
    assert list(change_journal.wait_for_program()) == []
    process.wait()


@pytest.mark.skipif(IS_WINDOWS, reason="needs a shell of POSIX")
def test_what_root_writes_keeps_permissions(tmp_path: Path) -> None:
    # The script that sudo runs, without sudo.
    staged, target = tmp_path / "staged", tmp_path / "folder" / "daemon.json"
    staged.write_text("new")
    for mode, expected in (("", 0o640), ("x", 0o755)):
        if target.exists():
            target.chmod(0o640)
        subprocess.run(["sh", "-c", PUT, "sh", staged, target, ""], check=True)
        target.chmod(0o640)
        subprocess.run(["sh", "-c", PUT, "sh", staged, target, mode], check=True)
        assert target.read_text() == "new" and stat.S_IMODE(target.stat().st_mode) == expected
    assert [path.name for path in target.parent.iterdir()] == ["daemon.json"]


_CONTENTS = some.binary(max_size=60) | some.sampled_from(
    [b"[wsl2]\r\nmemory=1GB", b"\xff\xfe[\0a\0]\0", b"\xef\xbb\xbf[a]\nb=c\n", b"[wsl2]\n"]
)


@settings(max_examples=25, deadline=None)
@given(_CONTENTS | some.none(), some.sampled_from(["8GB", "", '"a b"']))
def test_bytes_are_the_same_after_an_undo(content: bytes | None, value: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / ".wslconfig"
        if content is not None:
            file.write_bytes(content)
        done = list(apply(plan(memory(file, value))))
        if done[0].how == "done":
            undo_newest()
        assert (file.read_bytes() if file.exists() else None) == content
        assert len(list(Path(folder).iterdir())) == (content is not None)
