"""A run on its way to a tracker: each value once, whatever is killed, resumed or away."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from flatout.cli.render import show
from flatout.errors import UsageError
from flatout.monitor.tensorboard import scalars
from flatout.monitor.tracker import Arrived, Tracked, TrackedRow, TrackedRun, rows_of
from flatout.runs import tracking
from flatout.runs.trackers import sweep_findings, typed_trackers
from flatout.runs.tracking import Sending, follow
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import Finding
from flatout.schema.machine_sample import HostSample, MachineSample
from flatout.schema.run import RunHeader, Status
from flatout.schema.run_lines import (
    EpochEnded,
    Failed,
    Finished,
    Line,
    Logged,
    Progress,
    Started,
)
from flatout.schema.sweep import Sweep, SweepHeader, SweepTrial
from flatout.schema.tracking import (
    TrackerPosition,
    TrackerTarget,
    parse_tracker,
    parse_trackers,
)
from flatout.schema.train_request import TrainRequest
from flatout.system import atomic_files
from flatout.system.site_policy import read_site
from flatout.system.store.run_folder import RunFolder, create_run, read_run
from flatout.system.store.sample_file import SampleFile
from flatout.system.store.tracker_files import TrackerFiles, not_received, positions
from flatout.system.tracker_process import kept_trackers, requested_trackers

TARGET = TrackerTarget(kind="mlflow", where="http://127.0.0.1:9")


class Server:
    """What a tracker has; it can be away, and lose the answer to what it has taken."""

    def __init__(self, *, is_confirmed: bool = True) -> None:
        self.is_confirmed = is_confirmed
        self.rows: list[TrackedRow] = []
        self.runs: list[TrackedRun] = []
        self.statuses: list[str] = []
        self.files: set[str] = set()
        self.is_away = False
        self.num_lost_answers = 0
        self.num_lookups = 0

    @property
    def values(self) -> list[tuple[int, str, Tracked]]:
        return [(row.step, name, value) for row in self.rows for name, value in row.values.items()]


class Recording:
    """An adapter for a Server."""

    url: str | None = None

    def __init__(self, server: Server) -> None:
        self._server = server
        self.is_confirmed = server.is_confirmed

    def open(self, run: TrackedRun) -> bool:
        self._answer()
        is_new = not any(one.key == run.key for one in self._server.runs)
        self._server.runs.append(run)
        return is_new

    def last(self, name: str) -> Arrived:
        self._server.num_lookups += 1
        rows = [row for row in self._server.rows if name in row.values]
        return Arrived(
            step=max((row.step for row in rows), default=-1),
            at_ms=max((row.at_ms for row in rows), default=-1),
        )

    def send(self, rows: Sequence[TrackedRow]) -> None:
        self._answer()
        self._server.rows += rows
        if self._server.num_lost_answers:
            self._server.num_lost_answers -= 1
            raise TimeoutError("no answer")

    def end(self, status: Status, at: float, files: dict[str, tuple[Path, ...]]) -> None:
        self._answer()
        self._server.statuses.append(status)
        self._server.files |= {path.name for paths in files.values() for path in paths}

    def close(self) -> None:
        pass

    def _answer(self) -> None:
        if self._server.is_away:
            raise ConnectionError("refused by http://ann:secret@host")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run that has no lines yet."""
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path))
    monkeypatch.setattr(tracking, "_GRACE_S", 0.0)
    monkeypatch.setattr(tracking, "_EVERY_S", 0.0)
    spec = ExperimentSpec(name="digits", seed=3)
    header = RunHeader(id="x", created_at=1.0, flatout_version="0", python="", spec=spec)
    return create_run(header)


def progress(step: int) -> Progress:
    return Progress(
        at=float(step), step=step, epoch=0, loss=1 / step, samples_per_s=None, learning_rate=0.1,
        memory_bytes=None, split_s={},
    )  # fmt: skip


def epoch(step: int) -> EpochEnded:
    return EpochEnded(at=step + 0.5, step=step, epoch=0, loss=0.5)


def started(step: int) -> Started:
    return Started(
        at=float(step), step=step, pid=1, num_steps=9, num_epochs=9, steps_per_epoch=1,
        num_parameters=1, num_samples=1, resumed=step > 0,
    )  # fmt: skip


def finished(step: int) -> Finished:
    return Finished(at=step + 1.0, step=step, train_s=1.0, split_s={}, num_samples_seen=1)


def append(path: Path, *lines: Line) -> None:
    file = atomic_files.Lines(path)
    for line in lines:
        file.append(line)
    file.close()


def sample(folder: RunFolder, *times: float) -> None:
    with SampleFile(folder.samples) as file:
        for at in times:
            file.append(MachineSample(at=at, host=HostSample(utilization=0.5)))


def cut_to(folder: RunFolder, step: int) -> None:
    """As a resume from the checkpoint of that step does it."""
    kept = [line for line in folder.metrics.read_bytes().splitlines(keepends=True)
            if json.loads(line)["step"] <= step]  # fmt: skip
    folder.metrics.write_bytes(b"".join(kept))
    append(folder.events, started(step))


def in_files(folder: RunFolder) -> list[tuple[int, str, float]]:
    lines = atomic_files.read_lines(folder.metrics, Progress | EpochEnded)
    return [(line.step, name, value) for line in lines for name, value in scalars(line)]


def sending(folder: RunFolder, server: Server) -> Sending:
    return Sending(folder, TARGET, lambda: Recording(server))


def test_another_run_is_sent_to_the_same_trackers(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    run = msgspec.structs.replace(read_run(folder), status="finished")
    assert typed_trackers(run) == ()
    for target in (TARGET, TrackerTarget(kind="wandb")):
        TrackerFiles(folder, target).write(TrackerPosition(target=target))
    output = io.StringIO()
    show.print_next_steps(Console(file=output, width=300), run)
    assert " --track mlflow:http://127.0.0.1:9 --track wandb  " in output.getvalue()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert typed_trackers(run) == ("mlflow", "wandb")
    (tmp_path / "site.toml").write_text('[train]\ntrack = ["wandb", "mlflow"]\n')
    monkeypatch.setenv("FLATOUT_SITE", str(tmp_path / "site.toml"))
    assert typed_trackers(run) == ()


def test_another_run_is_sent_nowhere_if_this_one_was_although_the_site_says_so(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    (tmp_path / "site.toml").write_text('[train]\ntrack = ["mlflow"]\n')
    monkeypatch.setenv("FLATOUT_SITE", str(tmp_path / "site.toml"))
    assert typed_trackers(msgspec.structs.replace(read_run(folder), status="finished")) == ("none",)


def test_lines_are_sent_at_once(folder: RunFolder) -> None:
    server = Server()
    append(folder.events, started(0))
    append(folder.metrics, *map(progress, range(1, 6)))
    on_way = sending(folder, server)
    on_way.send(is_over=False)
    assert server.values == in_files(folder)
    append(folder.metrics, epoch(5), progress(6))
    on_way.send(is_over=False)
    assert server.values == in_files(folder)


def steps_of(server: Server, name: str) -> list[int]:
    return [step for step, one, _ in server.values if one == name]


@pytest.mark.parametrize("is_restarted", [True, False])
@pytest.mark.parametrize("is_lost", [True, False])
def test_each_value_arrives_once_after_a_kill_and_a_resume(
    folder: RunFolder, is_restarted: bool, is_lost: bool
) -> None:
    server = Server()
    append(folder.events, started(0))
    append(folder.metrics, *map(progress, range(1, 4)), epoch(4), progress(5), progress(6))
    on_way = sending(folder, server)
    server.num_lost_answers = int(is_lost)
    with pytest.raises(TimeoutError) if is_lost else contextlib.nullcontext():
        on_way.send(is_over=False)
    # Killed with the run, or alive while it is resumed.
    if is_lost and not is_restarted:
        on_way.fail("no answer", is_done=False)
    on_way = sending(folder, server) if is_restarted else on_way
    cut_to(folder, 3)
    # Lines come by time: those that are computed again are of other steps. Step 6 had no epoch yet.
    append(folder.metrics, epoch(4), progress(4), progress(6), epoch(6), progress(8), epoch(8))
    append(folder.events, finished(8))
    follow(on_way, is_following=True)
    assert steps_of(server, "train/loss") == [1, 2, 3, 5, 6, 8]
    assert steps_of(server, "train/epoch_loss") == [4, 6, 8]
    assert server.statuses == ["finished"]
    assert positions(folder)[0].is_done and positions(folder)[0].finding is None
    assert bool(server.num_lookups) == (is_lost or is_restarted)
    # Afterwards there is nothing left to send.
    follow(sending(folder, server), is_following=False)
    assert steps_of(server, "train/loss") == [1, 2, 3, 5, 6, 8]


def test_lines_after_the_checkpoint_are_not_sent_before_a_resume(folder: RunFolder) -> None:
    server = Server()
    append(folder.events, started(0))
    append(folder.metrics, *map(progress, range(1, 10)))
    lock = folder.lock()
    assert lock.acquire()
    events_bytes = folder.events.stat().st_size
    options = {"is_following": True, "events_bytes": events_bytes}
    thread = threading.Thread(target=follow, args=(sending(folder, server),), kwargs=options)
    thread.start()
    # While the worker loads torch.
    time.sleep(0.5)
    assert server.runs == []
    cut_to(folder, 3)
    # It ends before it comes to where it was.
    append(folder.metrics, progress(4))
    append(folder.events, finished(4))
    lock.release()
    thread.join(60)
    assert steps_of(server, "train/loss") == [1, 2, 3, 4]


def test_nothing_is_looked_up_after_a_run_that_ended(folder: RunFolder) -> None:
    server = Server()
    append(folder.events, started(0))
    append(folder.metrics, *map(progress, range(1, 6)))
    follow(sending(folder, server), is_following=True)
    cut_to(folder, 2)
    append(folder.metrics, *map(progress, range(3, 8)))
    append(folder.events, finished(7))
    follow(sending(folder, server), is_following=True)
    assert server.values == in_files(folder) and not server.num_lookups


def test_tracker_that_confirms_at_its_end_is_looked_up_after_a_kill(folder: RunFolder) -> None:
    server = Server(is_confirmed=False)
    append(folder.events, started(0))
    append(folder.metrics, *map(progress, range(1, 6)), epoch(5))
    sending(folder, server).send(is_over=False)
    cut_to(folder, 3)
    append(folder.metrics, *map(progress, range(4, 9)), epoch(5), epoch(8))
    append(folder.events, finished(8))
    follow(sending(folder, server), is_following=True)
    assert steps_of(server, "train/loss") == list(range(1, 9))
    assert steps_of(server, "train/epoch_loss") == [5, 8]


def test_samples_arrive_once_after_a_kill_and_a_resume(folder: RunFolder) -> None:
    server = Server()
    append(folder.events, started(0))
    append(folder.metrics, *map(progress, range(1, 6)))
    sample(folder, 0.5, 2.5001, 4.5)
    server.num_lost_answers = 1
    with pytest.raises(TimeoutError):
        sending(folder, server).send(is_over=False)
    cut_to(folder, 3)
    sample(folder, 6.5)
    append(folder.metrics, msgspec.structs.replace(progress(4), at=6.0))
    append(folder.events, finished(4))
    follow(sending(folder, server), is_following=True)
    assert steps_of(server, "machine/cpu_utilization") == [0, 2, 4, 4]


def test_numbers_texts_and_pictures_of_hooks_are_sent(folder: RunFolder) -> None:
    server = Server()
    folder.pictures.mkdir()
    (folder.pictures / "seen-000003.png").touch()
    (folder.path / "run.txt").touch()
    append(
        folder.metrics,
        *(
            Logged(at=3.0, step=3, epoch=0, name=name, **value)  # type: ignore[arg-type]
            for name, value in {
                "norm": {"value": 2.0}, "said": {"text": "so"}, "nan": {},
                "seen": {"picture": "pictures/seen-000003.png"},
                "away": {"picture": "pictures/away-000003.png"},
                "other": {"picture": "../run.txt"},
            }.items()
        ),
    )  # fmt: skip
    sending(folder, server).send(is_over=True)
    assert server.values == [
        (3, "logged/norm", 2.0),
        (3, "logged/said", "so"),
        (3, "logged/seen", folder.pictures / "seen-000003.png"),
    ]


def test_what_has_arrived_without_an_answer_is_not_sent_again(folder: RunFolder) -> None:
    server = Server()
    append(folder.metrics, progress(1), epoch(1))
    server.num_lost_answers = 1
    with pytest.raises(TimeoutError):
        sending(folder, server).send(is_over=True)
    append(folder.metrics, progress(2))
    sending(folder, server).send(is_over=True)
    assert server.values == in_files(folder)


def test_nothing_is_sent_again_where_the_position_was_removed(folder: RunFolder) -> None:
    server = Server()
    append(folder.metrics, *map(progress, range(1, 500)))
    sending(folder, server).send(is_over=True)
    for path in (folder.path / "trackers").iterdir():
        path.unlink()
    append(folder.metrics, progress(500))
    sending(folder, server).send(is_over=True)
    assert server.values == in_files(folder)


def test_steps_of_a_failed_run_are_not_sent_again(folder: RunFolder) -> None:
    server = Server()
    append(folder.events, started(0))
    append(folder.metrics, *map(progress, range(1, 6)))
    finding = Finding(rule="a-b", severity="error", problem="p")
    append(folder.events, Failed(at=6.0, step=5, finding=finding))
    follow(sending(folder, server), is_following=True)
    assert server.statuses[-1] == "failed"
    cut_to(folder, 2)
    append(folder.metrics, *map(progress, range(3, 8)))
    append(folder.events, finished(7))
    follow(sending(folder, server), is_following=True)
    assert server.values == in_files(folder)


def test_run_that_was_killed_is_sent_whole(folder: RunFolder) -> None:
    server = Server()
    append(folder.events, started(0))
    append(folder.metrics, *map(progress, range(1, 6)))
    follow(sending(folder, server), is_following=True)
    assert server.values == in_files(folder)
    assert server.statuses[-1] == "interrupted"


def test_tracker_that_is_away_is_one_finding_without_a_password(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "_RETRY_S", 0.0)
    server = Server()
    server.is_away = True
    append(folder.metrics, progress(1))
    append(folder.events, started(0), finished(1))
    target = parse_tracker("mlflow:http://ann:secret@host:5000")
    follow(Sending(folder, target, lambda: Recording(server)), is_following=True)
    (position,) = positions(folder)
    assert position.finding is not None and position.is_done
    assert position.finding.rule == "tracker-not-reached"
    assert "flatout show x --track mlflow:http://host:5000" in position.finding.fixes[0].text
    assert "secret" not in "".join(
        path.read_text() for path in folder.path.rglob("*") if path.is_file()
    )
    server.is_away = False
    follow(Sending(folder, target, lambda: Recording(server)), is_following=False)
    assert server.values == in_files(folder)
    assert positions(folder)[0].finding is None


def test_full_disk_of_the_run_is_a_finding_of_nothing(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "_RETRY_S", 0.0)

    def full(path: Path, value: object) -> None:
        raise OSError(28, "No space left on device")

    append(folder.metrics, progress(1))
    append(folder.events, started(0), finished(1))
    on_way = sending(folder, Server())
    monkeypatch.setattr(atomic_files, "write_json", full)
    # It ends, and the run is as it was.
    follow(on_way, is_following=True)
    assert read_run(folder).status == "finished"


def test_run_that_was_removed_ends_the_sending(folder: RunFolder) -> None:
    on_way = sending(folder, Server())
    folder.header.unlink()
    follow(on_way, is_following=True)
    assert not (folder.path / "trackers").exists()


def test_run_without_a_step_is_not_created_at_the_tracker(folder: RunFolder) -> None:
    server = Server()
    follow(sending(folder, server), is_following=True)
    assert server.runs == [] and positions(folder)[0].is_done


def test_open_gives_parameters_and_the_end_gives_files(folder: RunFolder) -> None:
    server = Server()
    append(folder.metrics, progress(1))
    append(folder.events, started(0), finished(1))
    folder.weights.write_bytes(b"w")
    follow(sending(folder, server), is_following=True)
    (run,) = server.runs
    assert run.parameters["seed"] == 3 and run.parameters["lr"] > 0
    assert {"weights.safetensors", "versions.txt"} <= server.files


def test_samples_are_of_the_step_before_them(folder: RunFolder) -> None:
    samples = [MachineSample(at=at, host=HostSample(utilization=0.5)) for at in (0.5, 2.5, 9.0)]
    rows = list(rows_of([progress(1), progress(2)], samples, 7, folder.pictures))
    assert [row.step for row in rows] == [7, 1, 2, 2, 2]
    sample(folder, 0.5, 2.5, 9.0)
    server = Server()
    append(folder.metrics, progress(1), progress(2))
    append(folder.events, started(0), finished(2))
    follow(sending(folder, server), is_following=True)
    assert steps_of(server, "machine/cpu_utilization") == [0, 2, 2]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mlflow", "mlflow"),
        ("wandb:offline", "wandb:offline"),
        ("mlflow:http://ann:secret@host:5000/a", "mlflow:http://host:5000/a"),
        ("mlflow:postgresql://ann@host/db?password=secret", "mlflow:postgresql://host/db"),
        ("mlflow:sqlite:////home/a@b/c.db", "mlflow:sqlite:////home/a@b/c.db"),
    ],
)
def test_parse_tracker(text: str, shown: str) -> None:
    target = parse_tracker(text)
    assert str(target) == shown
    assert target.key == parse_tracker(shown).key


@pytest.mark.parametrize(
    "text", ["", "mlfow", "mlflow:", "http://ann:secret@host", "mlflow:http://ann:se/secret@host"]
)
def test_parse_tracker_when_it_is_none(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_tracker(text)
    assert caught.value.rule == "bad-tracker" and "secret" not in str(caught.value)


def test_none_is_no_tracker_and_cannot_be_combined() -> None:
    assert parse_trackers(["none"]) == ()
    with pytest.raises(UsageError, match="cannot be combined"):
        TrainRequest(track=("none", "mlflow")).check()


def test_trackers_of_the_site_file_are_used_where_none_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: RunFolder
) -> None:
    site = tmp_path / "flatout.toml"
    monkeypatch.setenv("FLATOUT_SITE", str(site))
    site.write_text("[train]\ntrack = ['mlflow:http://ann:secret@host']\n")
    (target,) = requested_trackers((), None)
    assert target.where == "http://ann:secret@host"
    assert requested_trackers(("none",), None) == []
    # A run that is resumed continues where it was sent before.
    assert requested_trackers((), folder) == []
    files = TrackerFiles(folder, target)
    files.write(files.read())
    assert requested_trackers((), folder) == [target.kept]
    site.write_text("[train]\ntrack = ['none']\n")
    assert requested_trackers((), None) == []
    site.write_text("[train]\ntrack = ['mlfow']\n")
    with pytest.raises(UsageError) as caught:
        read_site()
    assert "train.track" in str(caught.value.because)


def test_trackers_of_a_sweep_are_kept_without_passwords(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert kept_trackers(["none"]) == ("none",) and kept_trackers([]) == ()
    here, database = kept_trackers(["mlflow:a", "mlflow"])
    assert here == f"mlflow:{(tmp_path / 'a').as_uri()}"
    assert database == f"mlflow:sqlite:///{(tmp_path / 'mlflow.db').as_posix()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:secret@host")
    assert kept_trackers(["mlflow", "wandb"]) == ("mlflow", "wandb")


def test_trackers_that_lack_trials_of_a_sweep_are_one_finding(folder: RunFolder) -> None:
    header = SweepHeader(
        id="s", created_at=0.0, flatout_version="0", training=TrainRequest(), sha256=None,
        space={}, num_trials=3, sampler="grid", pruner="none",
    )  # fmt: skip
    for trial in (1, 2, 3):
        run = create_run(msgspec.structs.replace(read_run(folder).header, id=header.run_id(trial)))
        append(run.events, started(0), finished(1))
        files = TrackerFiles(run, TARGET)
        finding = None if trial == 1 else not_received(run, TARGET, "it is away")
        files.write(msgspec.structs.replace(files.read(), is_done=True, finding=finding))
    trials = [
        SweepTrial(at=0.0, trial=trial, run=header.run_id(trial), parameters={})
        for trial in (1, 2, 3)
    ]
    (one,) = sweep_findings(Sweep(id="s", folder="", header=header, trials=tuple(trials[:2])))
    assert "of run s-002" in one.problem
    (both,) = sweep_findings(Sweep(id="s", folder="", header=header, trials=tuple(trials)))
    assert "of 2 trials of s" in both.problem and both.because == "it is away"
    assert "s-002, s-003" in both.fixes[-1].text


@pytest.mark.parametrize("kind", ["mlflow", "wandb"])
def test_train_when_the_package_is_missing(kind: str, cli: Any) -> None:
    cli.missing += (kind,)
    done = cli.run(*cli.train("--track", kind))
    assert done.returncode == 2
    assert f"fix: pip install 'flatout[{kind}]'" in done.stderr
    assert not cli.runs.exists() or not list(cli.runs.iterdir())


def test_show_says_what_a_tracker_has(trained: Any) -> None:
    folder = RunFolder(trained.runs / "mine-0001")
    files = TrackerFiles(folder, TARGET)
    position = msgspec.structs.replace(files.read(), is_done=True, url="http://127.0.0.1:9/#/x")
    files.write(position)
    shown = trained.run("show", "mine-0001").stdout
    assert "mlflow:http://127.0.0.1:9 · everything sent · http://127.0.0.1:9/#/x" in shown
    document = json.loads(trained.run("show", "mine-0001", "--json").stdout)
    assert document["run"]["trackers"][0]["is_done"]


def test_show_says_where_the_process_that_sends_was_killed(trained: Any) -> None:
    folder = RunFolder(trained.runs / "mine-0001")
    files = TrackerFiles(folder, TARGET)
    files.write(msgspec.structs.replace(files.read(), is_sending=True, is_done=False))
    shown = trained.run("show", "mine-0001").stdout
    assert "mlflow:http://127.0.0.1:9 · incomplete" in shown and "was killed" in shown


def test_reason_holds_no_password(folder: RunFolder) -> None:
    target = parse_tracker("mlflow:http://ann:s%40cret@host")
    finding = not_received(folder, target, "user ann, password s@cret was refused")
    assert finding.because == "user ann, password **** was refused"
