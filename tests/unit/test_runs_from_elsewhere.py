"""Runs beside those of flatout's own folder: other people's folders, links, and what is broken."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.busy_machine import wait_until

from flatout.errors import UsageError
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.run import DamagedRun, RunHeader
from flatout.setup.flatout import disk_usage
from flatout.system import atomic_files
from flatout.system.store import run_folder, run_reader

NOT_ON_WINDOWS = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX files")


def test_rm_keeps_a_project_that_has_a_run_json(trained: Any) -> None:
    source = trained.folder / "proj" / "src" / "main.py"
    source.parent.mkdir(parents=True)
    source.write_text("print()")
    (trained.folder / "proj" / "run.json").write_text('{"my": "own"}')
    done = trained.run("runs", "rm", "proj", "--yes")
    assert (done.returncode, "explain unknown-run" in done.stderr) == (2, True)
    assert f"for the folder: .{os.sep}proj" in done.stderr
    done = trained.run("runs", "rm", "./proj", "--yes")
    assert (done.returncode, "explain not-a-run" in done.stderr) == (2, True)
    assert trained.run("runs", "rm", ".", "--yes").returncode == 2
    assert source.exists()


def test_an_id_means_the_run_also_where_a_folder_has_its_name(trained: Any) -> None:
    for name in ("mine-0001", "last"):
        shutil.copytree(trained.runs / "mine-0001", trained.folder / name)
        (trained.folder / name / "experiment.py").write_text("raise SystemExit('not yours')")
    for text in ("mine-0001", "last"):
        shown = json.loads(trained.run("show", text, "--json").stdout)
        assert shown["run"]["folder"] == str(trained.runs / "mine-0001")
    shown = json.loads(trained.run("show", f".{os.sep}last", "--json").stdout)
    assert shown["run"]["folder"] == str(trained.folder / "last")


def test_copy_of_a_run_has_its_own_name(trained: Any) -> None:
    shutil.copytree(trained.runs / "mine-0001", trained.runs / "my copy")
    shown = trained.run("show", "my copy").stdout
    assert shown.startswith("my copy  finished")
    assert "flatout train --resume 'my copy' --epochs 6" in shown or sys.platform == "win32"
    assert "mine-0001" not in shown.partition("next")[2]
    listed = trained.run("runs").stdout
    assert "my copy " in listed and "mine-0001 " in listed
    resumed = trained.run("train", "--resume", "my copy", "--epochs", "6")
    assert resumed.returncode == 0, resumed.stderr
    steps = {one["run"]["folder"]: one["run"]["step"] for one in (
        json.loads(trained.run("show", name, "--json").stdout) for name in ("mine-0001", "my copy")
    )}  # fmt: skip
    assert steps == {str(trained.runs / "mine-0001"): 6, str(trained.runs / "my copy"): 12}


def test_commands_for_a_run_elsewhere_name_its_folder(trained: Any) -> None:
    elsewhere = trained.folder / "mine-0001"
    shutil.copytree(trained.runs / "mine-0001", elsewhere)
    shown = trained.run("show", f".{os.sep}mine-0001").stdout
    assert f"flatout train --resume {elsewhere} --epochs 6 --trust" in shown
    typed = ["train", "--resume", str(elsewhere), "--epochs", "6", "--trust"]
    assert trained.run(*typed).returncode == 0
    # That of flatout's own with the same name is as it was.
    assert json.loads(trained.run("show", "mine-0001", "--json").stdout)["run"]["step"] == 6


def test_rm_of_two_runs_whose_folders_have_one_name(trained: Any) -> None:
    for above in ("a", "b"):
        shutil.copytree(trained.runs / "mine-0001", trained.folder / above / "x")
    done = trained.run("runs", "rm", "a/x", "b/x", "--yes", "--json")
    assert json.loads(done.stdout)["deleted"] == ["x", "x"]
    for above in ("a", "b"):
        assert str(trained.folder / above / "x") in done.stderr
        assert not (trained.folder / above / "x").exists()


@pytest.mark.parametrize(
    "words", [["evaluate"], ["predict", "x.npy"], ["train", "--epochs", "9", "--resume"]]
)
def test_code_of_a_folder_elsewhere_runs_only_with_consent(trained: Any, words: list[str]) -> None:
    elsewhere = trained.folder / "cloned" / "last"
    shutil.copytree(trained.runs / "mine-0001", elsewhere)
    verb, *rest = words
    folder = f"cloned{os.sep}last"
    line = [verb, *rest, folder] if verb == "train" else [verb, folder, *rest]
    done = trained.run(*line)
    assert (done.returncode, "explain run-from-elsewhere" in done.stderr) == (2, True)
    assert "add --trust" in done.stderr and str(elsewhere) in done.stderr
    trusted = trained.run(*line, "--trust")
    assert "run-from-elsewhere" not in trusted.stderr


def test_find_run_refuses_a_folder_without_a_separator(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    for text in (str(tmp_path / "x"), "./none", f"a{os.sep}nul\0byte"):
        with pytest.raises(UsageError) as caught:
            run_folder.find_run(text, tmp_path)
        assert caught.value.rule == "unknown-run"


def test_check_id_refuses_the_word_for_the_newest() -> None:
    with pytest.raises(UsageError, match="bad-run-name"):
        run_folder.check_id("last")


@NOT_ON_WINDOWS
def test_remove_run_when_it_is_a_link(home: Path) -> None:
    real = run_folder.create_run(header("real"), home / "elsewhere")
    (home / "runs").mkdir()
    (home / "runs" / "linked").symlink_to(real.path)
    run_folder.remove_run(run_folder.find_run("linked"))
    assert list((home / "runs").iterdir()) == []
    assert real.header.exists()


def test_remove_run_before_its_worker_has_the_lock(home: Path) -> None:
    folder = run_folder.create_run(header("mine"))
    assert folder.attended.acquire()
    with pytest.raises(UsageError, match="run-in-use"):
        run_folder.remove_run(run_folder.find_run("mine"))
    folder.attended.release()
    run_folder.remove_run(run_folder.find_run("mine"))
    assert not folder.path.exists()


def test_rm_while_a_worker_is_only_beginning(cli: Any) -> None:
    hold = cli.folder / "hold"
    hold.touch()
    process = cli.start(*cli.train(mode="slow-start", hold=hold))
    wait_until((cli.runs / "mine-0001").exists)
    done = cli.run("runs", "rm", "mine-0001", "--yes")
    assert (done.returncode, "explain run-in-use" in done.stderr) == (2, True)
    hold.unlink()
    assert process.wait(180) == 0
    assert cli.run("runs", "rm", "mine-0001", "--yes").returncode == 0


HEADER = b'{"id": "x", "created_at": 1.0, "flatout_version": "0", "python": "p", "spec": %s}'
BROKEN = {
    "not-utf-8": HEADER % b'{"name": "\xff"}',
    "far-future": (HEADER % b'{"name": "x"}').replace(b"1.0", b"1e300"),
    "minus": (HEADER % b'{"name": "x"}').replace(b"1.0", b"-1e300"),
    "cut": b"{",
    "array": b"[]",
    "empty": b"",
}


@pytest.mark.parametrize("name", BROKEN)
def test_one_bad_header_never_affects_the_others(trained: Any, name: str) -> None:
    bad = trained.runs / "bad"
    bad.mkdir()
    (bad / "run.json").write_bytes(BROKEN[name])
    for words in (["runs"], ["disk"], [], ["runs", "--json"]):
        done = trained.run(*words)
        assert done.returncode == 0, (words, done.stderr)
    listed = trained.run("runs")
    assert "mine-0001" in listed.stdout and "finished" in listed.stdout
    (row,) = [line for line in listed.stdout.splitlines() if line.startswith("bad ")]
    assert "unreadable" in row
    assert "bad:" in listed.stderr and "run.json" in listed.stderr
    assert "explain damaged-file" in trained.run("show", "bad").stderr
    assert trained.run("runs", "rm", "bad", "--yes").returncode == 0


def test_numbers_out_of_reason_are_listed(trained: Any) -> None:
    events = trained.runs / "mine-0001" / "events.jsonl"
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    lines.append({"kind": "checkpointed", "at": 1e308, "step": 6, "stall_s": 1e308,
                  "write_s": 1e308, "slowdown_s": 1e308, "size_bytes": 2**62})  # fmt: skip
    lines.append(lines[-1])
    events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for words in (["runs"], ["show", "last"], ["show", "last", "--json"], ["disk"]):
        assert trained.run(*words).returncode == 0, words


@NOT_ON_WINDOWS
@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl", "run.json", "lock", "attended"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(home: Path, name: str) -> None:
    good, bad = (run_folder.create_run(header(name)) for name in ("good", "bad"))
    (bad.path / name).unlink(missing_ok=True)
    os.mkfifo(bad.path / name)
    found = {Path(run.folder).name: run for run in run_reader.list_runs()}
    assert not isinstance(found["good"], DamagedRun)
    if name in ("events.jsonl", "metrics.jsonl", "run.json"):
        unreadable = found["bad"]
        assert isinstance(unreadable, DamagedRun)
        assert "not a regular file" in unreadable.because
    run_folder.remove_run(bad)
    assert good.path.exists()


@NOT_ON_WINDOWS
def test_a_folder_that_may_not_be_read_never_affects_the_others() -> None:
    with ordinary_user() as state:
        run_folder.create_run(header("good"))
        bad = run_folder.create_run(header("bad"))
        searches = run_folder.create_run(header("search"), state / "tunes")
        for folder in (bad, searches):
            folder.path.chmod(0)
        try:
            found = {Path(run.folder).name: run for run in run_reader.list_runs()}
            newest = run_reader.newest_run()
            disk_usage.disk_use()
            assert disk_usage.running_runs() == []
        finally:
            for folder in (bad, searches):
                folder.path.chmod(0o755)
        assert newest is not None and newest.id == "good"
        unreadable = found["bad"]
        assert isinstance(unreadable, DamagedRun) and set(found) == {"good", "bad"}
        assert "no permission" in unreadable.because
        # It may be whole: nobody is advised to delete it.
        assert "rm" not in unreadable.fix


@contextlib.contextmanager
def ordinary_user() -> Iterator[Path]:
    """A state folder of somebody for whom permissions count: they do not for root."""
    # Later it may lie where that user may not read.
    importlib.import_module("psutil")
    folder = Path(tempfile.mkdtemp())
    names = ("FLATOUT_STATE", "FLATOUT_DATA", "FLATOUT_CACHE", "FLATOUT_ENVIRONMENTS", "HOME",
             "XDG_DATA_HOME")  # fmt: skip
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, str(folder)))
    is_root = os.geteuid() == 0
    if is_root:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if is_root:
            os.seteuid(0)
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(folder)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for runs."""
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    return tmp_path


def header(run_id: str) -> RunHeader:
    """A header as the command line makes it."""
    spec = ExperimentSpec(name="digits")
    return RunHeader(
        id=run_id, created_at=1_790_000_000.0, flatout_version="0", python="p", spec=spec
    )


def test_read_json_when_it_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b'{"id": "\xff"}')
    with pytest.raises(Exception, match="damaged-file"):
        atomic_files.read_json(tmp_path / "x.json", RunHeader)
