"""Training as seen from outside, with real processes and an engine that only writes lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from flatout.errors import RunFailed, UsageError
from flatout.runs import api as runs_api
from flatout.runs import start
from flatout.runs.start import PlannedRun, run_for
from flatout.schema.change import Change
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.machine import Machine
from flatout.schema.run import RunHeader
from flatout.schema.train_request import TrainRequest
from flatout.system.signals import Interrupts
from flatout.system.store.run_folder import create_run

NOT_ON_WINDOWS = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
SLOW = {"steps": 2000, "pause": 0.02}
# Nothing here takes seconds; a machine that does thirty other things may.
LIMIT_S = 180.0


def wait_for_line(path: Path, text: str, limit_s: float = LIMIT_S) -> None:
    end = time.monotonic() + limit_s
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < end, f"no {text} in {path}"
        time.sleep(0.01)


def wait_for_end(cli: Any, name: str, limit_s: float = LIMIT_S) -> str:
    """Status of a run once nobody trains in it."""
    end = time.monotonic() + limit_s
    while (status := read(cli, name)["status"]) == "running":
        assert time.monotonic() < end, "still running"
        time.sleep(0.05)
    return status


def read(cli: Any, name: str) -> dict[str, Any]:
    found = json.loads(cli.run("show", name, "--json").stdout)["run"]
    assert isinstance(found, dict)
    return found


def begin(cli: Any, *arguments: str, **parameters: object) -> subprocess.Popen[str]:
    """A command line whose worker has made its first steps."""
    process = cli.start(*cli.train(*arguments, **{**SLOW, **parameters}))
    wait_for_line(cli.runs / "mine-0001" / "metrics.jsonl", '"step": 3')
    assert isinstance(process, subprocess.Popen)
    return process


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=LIMIT_S)
    return process.returncode, stdout, stderr


def test_train_to_the_end(cli: Any) -> None:
    done = cli.run(*cli.train("--seed", "7", "--use", "precision=bf16", "--epochs", "3", lr=0.5))
    assert done.returncode == 0, done.stderr
    for text in ("machine", "experiment", "lr=0.5", "seed 7", "recipe", "epoch 3/3", "finished",
                 "accuracy 83.3 %", "folder", "flatout show mine-0001"):  # fmt: skip
        assert text in done.stdout
    spec = read(cli, "last")["header"]["spec"]
    assert spec["parameters"] == {"lr": 0.5}
    assert spec["fixed"] == {"precision": "bf16"}
    assert (spec["seed"], spec["epochs"]) == (7, 3)
    kept = cli.runs / "mine-0001" / "experiment.py"
    assert kept.read_text() == Path(cli.experiment).read_text()


def test_train_with_json_prints_one_document(cli: Any) -> None:
    done = cli.run(*cli.train("--json"))
    document = json.loads(done.stdout)
    assert document["run"]["status"] == "finished"
    assert "epoch 3/3" in done.stderr


def test_train_when_the_experiment_raises(cli: Any) -> None:
    done = cli.run(*cli.train(mode="fail"))
    assert done.returncode == 1
    assert "error: the experiment raised.\n    line 7, in model\n" in done.stderr
    assert "fix: mend it\n  see: flatout explain experiment-raised" in done.stderr
    # It has computed nothing: no run is left, and what it told can be explained.
    assert "the run was not kept" in done.stderr and not list(cli.runs.iterdir())
    reported = json.loads(cli.run("explain", "--json").stdout)
    assert reported["source"] == "the last failed start, of mine: its error and its worker.log"


@pytest.mark.parametrize("stage", ["create", "copy", "start"])
def test_dry_run_that_cannot_begin_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RunFailed("disk-full", "no space left.", fix="make some")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    if stage == "create":
        monkeypatch.setattr(start.run_folder, "create_run", fail)
    elif stage == "copy":
        monkeypatch.setattr(start.experiment_source, "copy_source", fail)
    spec = ExperimentSpec(name="mine", file=str(tmp_path / "mine.py"), is_dry_run=True)
    (tmp_path / "mine.py").write_text("")
    with (
        pytest.raises(RunFailed),
        Interrupts() as interrupts,
        run_for(PlannedRun(spec=spec), Machine(), interrupts),
    ):
        fail()
    assert os.listdir(tmp_path) == ["mine.py"]


def test_a_failed_start_takes_the_place_of_the_one_before(cli: Any) -> None:
    cli.run(*cli.train(mode="fail"))
    done = cli.run(*cli.train("--json", "--name", "again", mode="no-kernel"))
    document = json.loads(done.stdout)
    assert document["is_kept"] is False
    folder = Path(document["run"]["folder"])
    assert json.loads((folder / "run.json").read_text())["id"] == "again"
    assert [path.name for path in folder.parent.iterdir() if "failed" in path.name] == [folder.name]
    assert not list(cli.runs.iterdir())
    reported = cli.run("explain").stdout
    assert reported.startswith("Read: the last failed start, of mine")
    # Its name is free again.
    assert cli.run(*cli.train("--name", "again")).returncode == 0


def test_train_names_the_cause_below_its_error_when_a_rule_knows_it(cli: Any) -> None:
    done = cli.run(*cli.train(mode="no-kernel"))
    assert done.returncode == 1
    error, _, cause = done.stderr.partition("explain experiment-raised\n")
    assert "error: the experiment raised." in error
    assert cause.startswith(
        "\nCause: This build has no kernels for the GPU's compute capability.\n"
    )
    assert "its log    RuntimeError: CUDA error: no kernel image is available" in cause
    document = json.loads(cli.run(*cli.train("--json", mode="no-kernel")).stdout)
    assert [one["rule"] for one in document["causes"]] == ["gpu-arch-not-in-build"]
    assert "Cause" not in cli.run(*cli.train(mode="fail")).stderr


def test_train_when_something_is_worth_a_warning(cli: Any) -> None:
    done = cli.run(*cli.train(mode="warn"))
    assert done.returncode == 0
    assert "warning: the experiment raised." in done.stdout


def test_train_when_data_is_downloaded(cli: Any) -> None:
    done = cli.run(*cli.train(mode="fetch"))
    assert done.returncode == 0
    assert "downloading mnist · 1.0 MiB of 2.0 MiB" in done.stdout
    assert "epoch 3/3" in done.stdout


@NOT_ON_WINDOWS
def test_train_when_the_worker_is_killed(cli: Any) -> None:
    done = cli.run(*cli.train(mode="die"))
    assert done.returncode == 1
    assert "killed by SIGKILL" in done.stderr
    assert "worker.log: about to die" in done.stderr
    assert "flatout train --resume mine-0001" in done.stderr
    assert read(cli, "last")["status"] == "interrupted"


@NOT_ON_WINDOWS
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_train_when_interrupted_once(cli: Any, number: signal.Signals) -> None:
    process = begin(cli)
    process.send_signal(number)
    code, stdout, _ = end(process)
    assert code == 130
    assert "stopping after this step; Ctrl-C again stops immediately" in stdout
    assert "flatout train --resume mine-0001" in stdout
    run = read(cli, "last")
    assert run["status"] == "stopped"
    assert run["checkpoint_step"] == run["step"]


@NOT_ON_WINDOWS
def test_train_when_interrupted_twice(cli: Any) -> None:
    process = begin(cli, mode="stubborn")
    process.send_signal(signal.SIGINT)
    wait_for_line(cli.runs / "mine-0001" / "stop", "")
    process.send_signal(signal.SIGINT)
    code, stdout, _ = end(process)
    assert code == 130
    assert "flatout train --resume mine-0001" in stdout
    assert read(cli, "last")["status"] == "interrupted"


@NOT_ON_WINDOWS
def test_train_when_the_command_line_is_killed(cli: Any) -> None:
    process = begin(cli)
    process.kill()
    end(process)
    assert wait_for_end(cli, "last") == "stopped"


@NOT_ON_WINDOWS
def test_train_detached_outlives_the_command_line_until_it_is_stopped(cli: Any) -> None:
    # With pipes, which come to their end only once the worker does not hold them either.
    code, stdout, _ = end(cli.start(*cli.train("--detach", **SLOW)))
    assert code == 0
    assert "flatout show mine-0001 --follow" in stdout
    assert read(cli, "last")["status"] == "running"
    resumed = cli.run("train", "--resume", "last")
    assert resumed.returncode == 2
    assert "explain run-in-use" in resumed.stderr
    stopped = cli.run("runs", "stop", "last", "--json")
    assert json.loads(stopped.stdout)["status"] == "stopped"


@NOT_ON_WINDOWS
def test_show_follow_when_interrupted_leaves_the_run_alone(cli: Any) -> None:
    cli.run(*cli.train("--detach", **SLOW))
    watcher = cli.start("show", "last", "--follow")
    assert watcher.stdout is not None
    assert any("epoch " in line for line in watcher.stdout)
    watcher.send_signal(signal.SIGINT)
    assert end(watcher)[0] == 130
    assert read(cli, "last")["status"] == "running"
    assert cli.run("runs", "stop", "last").returncode == 0


@NOT_ON_WINDOWS
def test_resume_goes_on_from_the_checkpoint(cli: Any) -> None:
    process = begin(cli)
    process.send_signal(signal.SIGINT)
    end(process)
    step = read(cli, "last")["step"]
    epochs = str(step // 2 + 5)
    done = cli.run("train", "--resume", "last", "--epochs", epochs)
    assert done.returncode == 0, done.stderr
    assert f"resumed     from step {step:,}" in done.stdout
    # What was shown before the stop is not shown again.
    assert f"epoch 1/{epochs}" not in done.stdout
    assert read(cli, "last")["step"] == 2 * int(epochs)


def test_resume_when_finished_needs_more_epochs(trained: Any) -> None:
    refused = trained.run("train", "--resume", "last")
    assert refused.returncode == 2
    assert "flatout train --resume mine-0001 --epochs 6" in refused.stderr
    assert trained.run("train", "--resume", "last", "--epochs", "6").returncode == 0
    assert read(trained, "last")["step"] == 12


@NOT_ON_WINDOWS
def test_resume_when_interrupted_while_it_waits(cli: Any) -> None:
    cli.run(*cli.train("--detach", **{**SLOW, "mode": "stubborn"}))
    pid = read(cli, "last")["started"]["pid"]
    (cli.runs / "mine-0001" / "stop").touch()
    waiting = cli.start("train", "--resume", "last")
    assert waiting.stdout is not None
    assert "waiting for it" in waiting.stdout.readline()
    waiting.send_signal(signal.SIGINT)
    code, _, stderr = end(waiting)
    os.kill(pid, signal.SIGKILL)
    assert (code, stderr.strip()) == (130, "interrupted")


def test_resume_when_the_experiment_was_renamed(cli: Any) -> None:
    cli.run(*cli.train())
    Path(cli.experiment).rename(cli.folder / "yours.py")
    refused = cli.run("train", "--resume", "last", "--epochs", "9")
    assert refused.returncode == 2
    kept = cli.runs / "mine-0001" / "experiment.py"
    assert f'"{kept}" "{cli.experiment}"' in refused.stderr
    assert "explain experiment-file-not-found" in refused.stderr
    kept.rename(cli.experiment)
    assert cli.run("train", "--resume", "last", "--epochs", "9").returncode == 0


def test_resume_when_a_folder_from_elsewhere_names_the_interpreter(trained: Any) -> None:
    elsewhere = trained.folder / "stick"
    (trained.runs / "mine-0001").rename(elsewhere)
    asked = ["train", "--resume", str(elsewhere), "--epochs", "9"]
    refused = trained.run(*asked)
    assert refused.returncode == 2
    assert "explain run-from-elsewhere" in refused.stderr
    # Another interpreter would run its code all the same.
    assert trained.run(*asked, "--python", trained.python).returncode == 2
    done = trained.run(*asked, "--trust")
    assert done.returncode == 0, done.stderr


@NOT_ON_WINDOWS
def test_resume_waits_for_a_run_that_is_stopping(cli: Any) -> None:
    cli.run(*cli.train("--detach", **SLOW, mode="held"))
    folder = cli.runs / "mine-0001"
    wait_for_line(folder / "metrics.jsonl", '"step": 3')
    (folder / "stop").touch()
    waiting = cli.start("train", "--resume", "last", "--epochs", "2")
    assert waiting.stdout is not None
    assert "is stopping; waiting for it" in waiting.stdout.readline()
    assert waiting.poll() is None
    (folder / "may-stop").touch()
    code, _, stderr = end(waiting)
    assert code == 0, stderr
    assert read(cli, "last")["step"] == 4


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"experiment": "digits"}, "the experiment `digits`"),
        ({"settings": ("lr=1",)}, "`-s`"),
        ({"seed": 0}, "`--seed`"),
        ({"init": "last"}, "`--init`"),
        ({"run_id": "x"}, "`--name`"),
    ],
)
def test_resume_when_a_run_would_become_another(given: dict[str, Any], refused: str) -> None:
    with pytest.raises(UsageError, match=f"{refused} cannot be combined with --resume"):
        TrainRequest(resume="last", **given).check()


def test_resume_says_what_it_changes() -> None:
    request = TrainRequest(resume="last", device="cuda:1", uses=("num_threads=3",), epochs=9)
    request.check()
    assert request.change == Change(fixed={"num_threads": 3, "device": "cuda:1"}, epochs=9)
    assert TrainRequest(resume="last").change == Change()


def test_train_under_a_name_that_is_taken(cli: Any) -> None:
    assert cli.run(*cli.train("--name", "best")).returncode == 0
    again = cli.run(*cli.train("--name", "best"))
    assert again.returncode == 2
    assert "explain run-exists" in again.stderr


def test_a_new_run_that_nobody_could_be_set_to_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    spec = ExperimentSpec(name="digits", fixed={"device": "cpu"})

    def fail_to_start(asked: PlannedRun) -> Path:
        with pytest.raises(UsageError), run_for(asked, Machine(), Interrupts()) as folder:
            assert folder.header.is_file()
            raise UsageError("a-rule", "nobody is there.", fix="none")
        return folder.path

    assert not fail_to_start(PlannedRun(spec=spec)).exists()
    with run_for(PlannedRun(spec=spec), Machine(), Interrupts()) as folder:
        pass
    # One that was there before stays, and keeps its device until a resume names another.
    old = PlannedRun(spec=spec, old=folder)
    assert fail_to_start(old) == folder.path and folder.header.is_file()
    assert old.device == "cpu"
    assert (
        PlannedRun(spec=spec, old=folder, change=Change(fixed={"device": "cuda"})).device == "cuda"
    )


def test_stop_says_so_when_a_run_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_api, "_STOPPED_LIMIT_S", 0.2)
    header = RunHeader(
        id="mine-0001", created_at=0.0, flatout_version="0.1.0", python="",
        spec=ExperimentSpec(name="mine"),
    )  # fmt: skip
    folder = create_run(header, tmp_path)
    lock = folder.lock()
    assert lock.acquire()
    with pytest.raises(RunFailed, match="has not stopped within") as reported:
        runs_api.stop(str(folder.path))
    assert reported.value.rule == "run-does-not-stop" and folder.stop.exists()
    lock.release()
