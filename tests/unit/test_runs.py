"""A run's folder: made, found, read and removed."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from flatout.errors import RunFailed, UsageError
from flatout.runs import listing
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import Finding
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import (
    Checkpointed,
    Failed,
    Line,
    Progress,
    Started,
    Stopped,
    Validated,
    Warned,
)
from flatout.setup.flatout import disk_usage
from flatout.system import atomic_files, links
from flatout.system.store import failed_start, run_folder, run_reader


def header(run_id: str) -> RunHeader:
    """A header as the command line makes it."""
    return RunHeader(
        id=run_id,
        created_at=1_790_000_000.0,
        flatout_version="0.1.0",
        python=sys.executable,
        spec=ExperimentSpec(name="digits"),
    )


def make(parent: Path, *ids: str) -> list[run_folder.RunFolder]:
    """Runs made one after the other."""
    folders = [run_folder.create_run(header(run_id), parent) for run_id in ids]
    for age, folder in enumerate(reversed(folders)):
        when = folder.header.stat().st_mtime - age
        os.utime(folder.header, (when, when))
    return folders


def append(folder: run_folder.RunFolder, *events: Line) -> None:
    """Adds to the run's history."""
    lines = atomic_files.Lines(folder.events)
    for event in events:
        lines.append(event)
    lines.close()


def test_create_run_when_it_is_new_and_when_it_is_there(tmp_path: Path) -> None:
    new = msgspec.structs.replace(header("digits-0001"), on="local:2")
    folder = run_folder.create_run(new, tmp_path / "runs")
    assert run_folder.read_run(folder).header == new
    with pytest.raises(UsageError) as caught:
        run_folder.create_run(header("digits-0001"), tmp_path / "runs")
    assert caught.value.rule == "run-exists"
    assert (caught.value.fix or "").endswith("--on local:2")
    assert os.listdir(tmp_path / "runs") == ["digits-0001"]


def test_create_run_when_two_processes_want_the_same_id(tmp_path: Path) -> None:
    code = (
        "import sys, msgspec; from pathlib import Path\n"
        "from flatout.errors import UsageError\n"
        "from flatout.schema.run import RunHeader\n"
        "from flatout.system.store.run_folder import create_run\n"
        "header = msgspec.json.decode(sys.argv[2], type=RunHeader)\n"
        "try: create_run(header, Path(sys.argv[1])); print('made')\n"
        "except UsageError as error: print(error.rule)\n"
    )
    text = msgspec.json.encode(header("digits-0001")).decode()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), text],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        )
        for _ in range(4)
    ]
    reported = sorted(process.communicate(timeout=120)[0].strip() for process in processes)
    assert reported == ["made", "run-exists", "run-exists", "run-exists"]
    assert os.listdir(tmp_path) == ["digits-0001"]


@pytest.mark.parametrize(
    ("name", "taken", "free"),
    [
        ("digits", [], "digits-0001"),
        ("digits", ["digits-0001", "digits-0009", "digits-x", "digits-big-0044"], "digits-0010"),
        ("my model!", [], "my-model-0001"),
        ("äöü", [], "run-0001"),
        ("_hidden.", [], "hidden-0001"),
        ("digits", ["digits-²"], "digits-0001"),
    ],
)
def test_free_id_when(tmp_path: Path, name: str, taken: list[str], free: str) -> None:
    for run_id in taken:
        (tmp_path / run_id).mkdir()
    found = run_folder.free_id(name, tmp_path)
    assert found == free
    assert run_folder.check_id(found) == found
    assert run_folder.check_id(run_folder.free_id("x" * 300))


@pytest.mark.parametrize(
    "name", ["", "..", ".a", "a/b", "a\\b", "a b", "-a", "a.", "x" * 101, "a\n"]
)
def test_check_id_when_no_file_system_can_be_sure_to_hold_it(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        run_folder.check_id(name)
    assert caught.value.rule == "bad-run-name"


def test_find_run_when_asked_in_every_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, second, third = make(tmp_path, "digits-0001", "digits-00010", "mnist-0001")
    monkeypatch.chdir(tmp_path.parent)
    assert run_folder.find_run("digits-0001", tmp_path).path.name == "digits-0001"
    assert run_folder.find_run("digits-00010", tmp_path).path == second.path
    assert run_folder.find_run("mn", tmp_path).path == third.path
    assert run_folder.find_run("last", tmp_path).path == third.path
    assert run_folder.find_run(str(second.path), tmp_path / "elsewhere").path == second.path


@pytest.mark.parametrize("text", ["digts-0001", "digits-000", "x" * 5000, "nul\0byte", ""])
def test_find_run_when_there_is_none_or_more(tmp_path: Path, text: str) -> None:
    make(tmp_path, "digits-0001", "digits-0002")
    with pytest.raises(UsageError) as caught:
        run_folder.find_run(text, tmp_path)
    assert caught.value.rule == "unknown-run"
    assert "digits-0001" in caught.value.fix


def test_find_run_when_there_are_no_runs_at_all(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        run_folder.find_run("last", tmp_path / "none")
    assert caught.value.fix == "start one: flatout train digits"


def test_run_paths_when_other_things_lie_there(tmp_path: Path) -> None:
    make(tmp_path, "b", "a")
    (tmp_path / "no-run").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / ".a-77").mkdir()
    (tmp_path / ".a-77" / "run.json").touch()
    assert [path.name for path in run_folder.run_paths(tmp_path)] == ["b", "a"]


FINDING = Finding(rule="nan-loss", severity="error", problem="the loss is NaN.")
WARNED = Warned(at=1.0, step=1, finding=FINDING)
PROGRESS = Progress(
    at=4.0, step=20, epoch=1, loss=0.5, samples_per_s=None, learning_rate=0.1, memory_bytes=None,
    split_s={"forward": 4.0},
)  # fmt: skip
STOPPED = Stopped(at=2.0, step=4, reason="asked to")
STARTED = Started(
    at=1.5, step=0, pid=1, num_steps=8, num_epochs=2, steps_per_epoch=4, num_parameters=3,
    num_samples=40,
)  # fmt: skip
FAILED = Failed(at=2.0, step=4, finding=FINDING)


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ((), "new"),
        ((WARNED,), "new"),
        ((STOPPED,), "stopped"),
        ((WARNED, FAILED), "failed"),
        ((STARTED, FAILED), "failed"),
        # A resume that was refused before it began.
        ((STARTED, STOPPED, FAILED, FAILED), "stopped"),
        ((STARTED,), "interrupted"),
    ],
)
def test_read_run_when_nobody_works_on_it(
    tmp_path: Path, events: tuple[Line, ...], status: str
) -> None:
    folder = run_folder.create_run(header("digits-0001"), tmp_path)
    append(folder, *events)
    run = run_folder.read_run(folder)
    assert run.status == status
    assert run.recipe is None
    assert len(run.findings) == sum(event in (WARNED, FAILED) for event in events)


def test_read_run_when_somebody_works_on_it(tmp_path: Path) -> None:
    folder = run_folder.create_run(header("digits-0001"), tmp_path)
    append(folder, STOPPED)
    lock = folder.lock()
    assert lock.acquire()
    assert run_folder.read_run(folder).status == "running"
    lock.release()
    assert run_folder.read_run(folder).status == "stopped"


def test_read_run_when_lines_are_torn(tmp_path: Path) -> None:
    folder = run_folder.create_run(header("digits-0001"), tmp_path)
    append(folder, STOPPED)
    validated = Validated(at=3.0, step=9, epoch=1, metrics={"accuracy": 0.9}, is_best=True)
    lines = atomic_files.Lines(folder.metrics)
    lines.append(validated)
    lines.close()
    for path in (folder.events, folder.metrics):
        with open(path, "ab") as file:
            file.write(b'{"kind":"fin')
    run = run_folder.read_run(folder)
    assert (run.status, run.step, run.validations) == ("stopped", 9, (validated,))


def test_read_run_decodes_of_the_metrics_only_what_it_needs(tmp_path: Path) -> None:
    folder = run_folder.create_run(header("digits-0001"), tmp_path)
    validated = Validated(at=3.0, step=9, epoch=1, metrics={"accuracy": 0.9}, is_best=True)
    with open(folder.metrics, "wb") as file:
        file.write(msgspec.json.encode(validated) + b"\n")
        file.write(b'{"kind":"progress", this is never looked at}\n' * 5)
        file.write(msgspec.json.encode(PROGRESS) + b"\n")
    run = run_folder.read_run(folder)
    assert (run.step, run.validations) == (20, (validated,))


def test_read_run_tells_what_checkpoints_cost(tmp_path: Path) -> None:
    folder = run_folder.create_run(header("digits-0001"), tmp_path)
    line = Checkpointed(at=1.0, step=9, stall_s=0.1, write_s=1.0, slowdown_s=0.1, size_bytes=8)
    append(folder, line, line)
    lines = atomic_files.Lines(folder.metrics)
    lines.append(PROGRESS)
    lines.close()
    cost = run_folder.read_run(folder).checkpointing
    assert cost is not None
    assert (cost.num_written, cost.stall_s, cost.share) == (2, 0.1, pytest.approx(0.1))


def test_list_runs_when_there_are_many_and_one_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    make(tmp_path / "runs", *(f"digits-{number:04d}" for number in range(100)))
    (tmp_path / "runs" / "digits-0099" / "events.jsonl").write_text("no JSON\n")
    took_s = []
    for _ in range(3):
        began_s = time.perf_counter()
        found = run_reader.list_runs()
        took_s.append(time.perf_counter() - began_s)
    # Beside other programs one of them may take long; waiting for locks, all would.
    assert min(took_s) < 2.0, "asking for a lock must not wait"
    assert [run.status for run in found] == ["new"] * 99 + ["unreadable"]
    newest = run_reader.newest_run()
    assert newest is not None and newest.id == "digits-0098"


def test_read_run_when_its_header_is_damaged(tmp_path: Path) -> None:
    folder = run_folder.create_run(header("digits-0001"), tmp_path)
    folder.header.write_text("{", encoding="utf-8")
    with pytest.raises(RunFailed) as caught:
        run_folder.read_run(folder)
    assert caught.value.rule == "damaged-file"


def test_checkpoint_steps_counts_only_whole_ones(tmp_path: Path) -> None:
    folder = run_folder.create_run(header("digits-0001"), tmp_path)
    for name in ("000200", "000090", "000300", "tmp"):
        (folder.checkpoints / name).mkdir(parents=True)
    for name in ("000200", "000090", "tmp"):
        (folder.checkpoints / name / "rank0.json").touch()
    (folder.checkpoints / "000300" / "rank0.safetensors").touch()
    assert folder.checkpoint_steps() == [90, 200]
    assert run_folder.read_run(folder).checkpoint_step == 200


def test_remove_run_when_it_is_free_and_when_it_is_not(tmp_path: Path) -> None:
    folder = run_folder.create_run(header("digits-0001"), tmp_path)
    lock = folder.lock()
    assert lock.acquire()
    with pytest.raises(UsageError) as caught:
        run_folder.remove_run(folder)
    assert caught.value.rule == "run-in-use"
    lock.release()
    run_folder.remove_run(folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right of their own")
def test_link_onto_itself_hides_no_other_run_and_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    make(tmp_path / "runs", "digits-0001")
    loop = tmp_path / "runs" / "loop"
    loop.symlink_to("loop")
    reported = {run.id: run.status for run in run_reader.list_runs()}
    assert reported == {"digits-0001": "new", "loop": "unreadable"}
    disk_usage.disk_use()
    (removal,) = listing.find_removals(["loop"])
    run_folder.remove_run(run_folder.RunFolder(Path(removal.folder)))
    assert os.listdir(tmp_path / "runs") == ["digits-0001"]


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right of their own")
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
def test_link_to_a_disk_that_does_not_answer_hides_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    make(tmp_path / "runs", "digits-0001")
    (tmp_path / "away").mkdir()
    link = tmp_path / "runs" / "away"
    link.symlink_to(tmp_path / "away")
    ask, open_file = os.stat, os.open

    def unanswered(path: Any) -> None:
        if str(path).startswith(str(link)):
            raise OSError(number, os.strerror(number), str(path))

    def asked(path: Any, *more: Any, **words: Any) -> Any:
        if words.get("follow_symlinks", True):
            unanswered(path)
        return ask(path, *more, **words)

    def opened(path: Any, *more: Any, **words: Any) -> Any:
        unanswered(path)
        return open_file(path, *more, **words)

    with monkeypatch.context() as dead:
        dead.setattr(os, "stat", asked)
        dead.setattr(os, "open", opened)
        reported = {run.id: run.status for run in run_reader.list_runs()}
        disk_usage.disk_use()
        (removal,) = listing.find_removals(["away"])
        run_folder.remove_run(run_folder.RunFolder(Path(removal.folder)))
    assert reported == {"digits-0001": "new", "away": "unreadable"}
    assert os.listdir(tmp_path / "runs") == ["digits-0001"] and (tmp_path / "away").is_dir()


@pytest.mark.parametrize("name", ["lock", "attended"])
@pytest.mark.parametrize("kind", ["folder", "loop"])
def test_run_whose_lock_is_no_file_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    (folder,) = make(tmp_path / "runs", "digits-0001")
    if kind == "folder":
        (folder.path / name).mkdir()
    elif sys.platform == "win32":
        pytest.skip("links need a right of their own")
    else:
        (folder.path / name).symlink_to(name)
    assert [run.status for run in run_reader.list_runs()] == ["new"]
    listing.find_removals(["digits-0001"])
    run_folder.remove_run(folder)
    assert os.listdir(tmp_path / "runs") == []


def test_junction_is_a_link_for_every_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "junction").mkdir()
    junction = SimpleNamespace(st_mode=stat.S_IFDIR, st_reparse_tag=0xA0000003)
    monkeypatch.setattr(links.os, "lstat", lambda _: junction)
    assert links.is_link(tmp_path / "junction")
    links.remove_link(tmp_path / "junction")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_full", [False, True])
def test_failed_start_of_a_run_on_another_disk_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    runs = tmp_path / "state" / "runs"
    (before, folder) = make(runs, "digits-0001", "digits-0002")
    failed_start.set_aside(run_folder.read_run(before))
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        if runs in path.parents and runs not in target.parents:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return rename(path, target)

    def copied(*_: Any, **__: Any) -> None:
        raise shutil.Error([("a", "b", os.strerror(errno.ENOSPC))])

    monkeypatch.setattr(Path, "rename", renamed)
    if is_full:
        monkeypatch.setattr(shutil, "copytree", copied)
    run = run_folder.read_run(folder)
    aside = failed_start.set_aside(run)
    kept = failed_start.last_failed_start()
    assert kept is not None
    if is_full:
        assert (aside, kept.header.id, os.listdir(runs)) == (run, "digits-0001", ["digits-0002"])
    else:
        assert (aside.folder, kept.header.id) == (kept.folder, "digits-0002")
        assert os.listdir(runs) == []
    assert sorted(os.listdir(tmp_path / "state")) == ["failed-start", "runs"]


def test_request_stop_makes_the_file(tmp_path: Path) -> None:
    folder = run_folder.create_run(header("digits-0001"), tmp_path)
    folder.request_stop()
    assert folder.stop.exists()
