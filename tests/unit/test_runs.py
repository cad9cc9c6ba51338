"""A run's folder: made, found, read and removed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from flatout.errors import RunFailed, UsageError
from flatout.nouns.experiment_spec import ExperimentSpec
from flatout.nouns.finding import Finding
from flatout.nouns.lines import (
    Checkpointed,
    Failed,
    Line,
    Progress,
    Started,
    Stopped,
    Validated,
    Warned,
)
from flatout.nouns.run import RunHeader
from flatout.system import reading, runs, store


def header(run_id: str) -> RunHeader:
    """A header as the command line makes it."""
    return RunHeader(
        id=run_id,
        created_at=1_790_000_000.0,
        flatout_version="0.1.0",
        python=sys.executable,
        spec=ExperimentSpec(name="digits"),
    )


def make(parent: Path, *ids: str) -> list[runs.RunFolder]:
    """Runs made one after the other."""
    folders = [runs.create_run(header(run_id), parent) for run_id in ids]
    for age, folder in enumerate(reversed(folders)):
        when = folder.header.stat().st_mtime - age
        os.utime(folder.header, (when, when))
    return folders


def append(folder: runs.RunFolder, *events: Line) -> None:
    """Adds to the run's history."""
    lines = store.Lines(folder.events)
    for event in events:
        lines.append(event)
    lines.close()


def test_create_run_when_it_is_new_and_when_it_is_there(tmp_path: Path) -> None:
    folder = runs.create_run(header("digits-0001"), tmp_path / "runs")
    assert runs.read_run(folder).header == header("digits-0001")
    with pytest.raises(UsageError) as caught:
        runs.create_run(header("digits-0001"), tmp_path / "runs")
    assert caught.value.rule == "run-exists"
    assert os.listdir(tmp_path / "runs") == ["digits-0001"]


def test_create_run_when_two_processes_want_the_same_id(tmp_path: Path) -> None:
    code = (
        "import sys, msgspec; from pathlib import Path\n"
        "from flatout.errors import UsageError\n"
        "from flatout.nouns.run import RunHeader; from flatout.system.runs import create_run\n"
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
    told = sorted(process.communicate(timeout=30)[0].strip() for process in processes)
    assert told == ["made", "run-exists", "run-exists", "run-exists"]
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
    found = runs.free_id(name, tmp_path)
    assert found == free
    assert runs.check_id(found) == found
    assert runs.check_id(runs.free_id("x" * 300))


@pytest.mark.parametrize(
    "name", ["", "..", ".a", "a/b", "a\\b", "a b", "-a", "a.", "x" * 101, "a\n"]
)
def test_check_id_when_no_file_system_can_be_sure_to_hold_it(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        runs.check_id(name)
    assert caught.value.rule == "bad-run-name"


def test_find_run_when_asked_in_every_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, second, third = make(tmp_path, "digits-0001", "digits-00010", "mnist-0001")
    monkeypatch.chdir(tmp_path.parent)
    assert runs.find_run("digits-0001", tmp_path).path.name == "digits-0001"
    assert runs.find_run("digits-00010", tmp_path).path == second.path
    assert runs.find_run("mn", tmp_path).path == third.path
    assert runs.find_run("last", tmp_path).path == third.path
    assert runs.find_run(str(second.path), tmp_path / "elsewhere").path == second.path


@pytest.mark.parametrize("text", ["digts-0001", "digits-000", "x" * 5000, "nul\0byte", ""])
def test_find_run_when_there_is_none_or_more(tmp_path: Path, text: str) -> None:
    make(tmp_path, "digits-0001", "digits-0002")
    with pytest.raises(UsageError) as caught:
        runs.find_run(text, tmp_path)
    assert caught.value.rule == "unknown-run"
    assert "digits-0001" in caught.value.fix


def test_find_run_when_there_are_no_runs_at_all(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        runs.find_run("last", tmp_path / "none")
    assert caught.value.fix == "make one: flatout train digits"


def test_run_paths_when_other_things_lie_there(tmp_path: Path) -> None:
    make(tmp_path, "b", "a")
    (tmp_path / "no-run").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / ".a-77").mkdir()
    (tmp_path / ".a-77" / "run.json").touch()
    assert [path.name for path in runs.run_paths(tmp_path)] == ["b", "a"]


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
    folder = runs.create_run(header("digits-0001"), tmp_path)
    append(folder, *events)
    run = runs.read_run(folder)
    assert run.status == status
    assert run.recipe is None
    assert len(run.findings) == sum(event in (WARNED, FAILED) for event in events)


def test_read_run_when_somebody_works_on_it(tmp_path: Path) -> None:
    folder = runs.create_run(header("digits-0001"), tmp_path)
    append(folder, STOPPED)
    lock = folder.lock()
    assert lock.acquire()
    assert runs.read_run(folder).status == "running"
    lock.release()
    assert runs.read_run(folder).status == "stopped"


def test_read_run_when_lines_are_torn(tmp_path: Path) -> None:
    folder = runs.create_run(header("digits-0001"), tmp_path)
    append(folder, STOPPED)
    validated = Validated(at=3.0, step=9, epoch=1, metrics={"accuracy": 0.9}, is_best=True)
    lines = store.Lines(folder.metrics)
    lines.append(validated)
    lines.close()
    for path in (folder.events, folder.metrics):
        with open(path, "ab") as file:
            file.write(b'{"kind":"fin')
    run = runs.read_run(folder)
    assert (run.status, run.step, run.validations) == ("stopped", 9, (validated,))


def test_read_run_decodes_of_the_metrics_only_what_it_needs(tmp_path: Path) -> None:
    folder = runs.create_run(header("digits-0001"), tmp_path)
    validated = Validated(at=3.0, step=9, epoch=1, metrics={"accuracy": 0.9}, is_best=True)
    with open(folder.metrics, "wb") as file:
        file.write(msgspec.json.encode(validated) + b"\n")
        file.write(b'{"kind":"progress", this is never looked at}\n' * 5)
        file.write(msgspec.json.encode(PROGRESS) + b"\n")
    run = runs.read_run(folder)
    assert (run.step, run.validations) == (20, (validated,))


def test_read_run_tells_what_checkpoints_cost(tmp_path: Path) -> None:
    folder = runs.create_run(header("digits-0001"), tmp_path)
    line = Checkpointed(at=1.0, step=9, stall_s=0.1, write_s=1.0, slowdown_s=0.1, size_bytes=8)
    append(folder, line, line)
    lines = store.Lines(folder.metrics)
    lines.append(PROGRESS)
    lines.close()
    cost = runs.read_run(folder).checkpointing
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
        found = reading.list_runs()
        took_s.append(time.perf_counter() - began_s)
    # Beside other programs one of them may take long; waiting for locks, all would.
    assert min(took_s) < 2.0, "asking for a lock must not wait"
    assert [run.status for run in found] == ["new"] * 99 + ["unreadable"]
    newest = reading.newest_run()
    assert newest is not None and newest.id == "digits-0098"


def test_read_run_when_its_header_is_damaged(tmp_path: Path) -> None:
    folder = runs.create_run(header("digits-0001"), tmp_path)
    folder.header.write_text("{", encoding="utf-8")
    with pytest.raises(RunFailed) as caught:
        runs.read_run(folder)
    assert caught.value.rule == "damaged-file"


def test_checkpoint_steps_counts_only_whole_ones(tmp_path: Path) -> None:
    folder = runs.create_run(header("digits-0001"), tmp_path)
    for name in ("000200", "000090", "000300", "tmp"):
        (folder.checkpoints / name).mkdir(parents=True)
    for name in ("000200", "000090", "tmp"):
        (folder.checkpoints / name / "rank0.json").touch()
    (folder.checkpoints / "000300" / "rank0.safetensors").touch()
    assert folder.checkpoint_steps() == [90, 200]
    assert runs.read_run(folder).checkpoint_step == 200


def test_remove_run_when_it_is_free_and_when_it_is_not(tmp_path: Path) -> None:
    folder = runs.create_run(header("digits-0001"), tmp_path)
    lock = folder.lock()
    assert lock.acquire()
    with pytest.raises(UsageError) as caught:
        runs.remove_run(folder)
    assert caught.value.rule == "run-in-use"
    lock.release()
    runs.remove_run(folder)
    assert list(tmp_path.iterdir()) == []


def test_request_stop_makes_the_file(tmp_path: Path) -> None:
    folder = runs.create_run(header("digits-0001"), tmp_path)
    folder.request_stop()
    assert folder.stop.exists()
