"""`flatout sweep` with an engine that only writes lines: trials, kills, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.busy_machine import wait_until

import flatout
from flatout.cluster.api import begin
from flatout.errors import UsageError
from flatout.runs.supervisor import Supervisor
from flatout.runs.sweep import carry_out as carrying_out
from flatout.runs.sweep.carry_out import carry_out
from flatout.schema.run_lines import Event, Started
from flatout.schema.sweep import (
    SweepRequest,
    SweepTrial,
    direction_of,
)
from flatout.schema.train_request import TrainRequest
from flatout.system import atomic_files
from flatout.system.atomic_files import FileLock
from flatout.system.signals import Interrupts
from flatout.system.store.run_folder import RunFolder

HAS_OPTUNA = importlib.util.find_spec("optuna") is not None
needs_optuna = pytest.mark.skipif(not HAS_OPTUNA, reason="needs the package optuna")
EXPERIMENT = """
def experiment(quality: float = 1.0, size: int = 1, mode: str = "finish", steps: int = 6,
               pause: float = 0.0, hold: str = "", hold_below: float = 2.0):
    raise SystemExit("somebody ran this file")
"""
GRID = ("-s", "quality=0..1:step=0.25", "--sampler", "grid", "--name", "s")


class Sweeping:
    """A command line in which `swept.py` can be swept."""

    def __init__(self, cli: Any) -> None:
        self.cli = cli
        self.file = cli.folder / "swept.py"
        self.file.write_text(EXPERIMENT)
        self.folder = cli.state / "sweeps" / "s"
        self.hold = cli.folder / "hold"

    def holding(self) -> tuple[str, ...]:
        """Settings with which trials wait after their third step, as long as a file is there."""
        self.hold.touch()
        return ("-s", f"hold={self.hold}")

    def words(self, *arguments: str) -> list[str]:
        if "--resume" in arguments:
            return ["sweep", *arguments]
        return ["sweep", str(self.file), "--python", self.cli.python, *arguments]

    def run(self, *arguments: str) -> Any:
        return self.cli.run(*self.words(*arguments))

    def trials(self) -> list[dict[str, Any]]:
        """The trials, as `flatout sweep show --json` has them."""
        done = self.cli.run("sweep", "show", "s", "--json")
        assert done.returncode == 0, done.stderr
        trials: list[dict[str, Any]] = json.loads(done.stdout)["sweep"]["trials"]
        return trials

    def lines(self, name: str = "s") -> list[SweepTrial]:
        """The lines of `trials.jsonl`: two for each trial that has ended."""
        path = self.folder.with_name(name) / "trials.jsonl"
        lines: list[SweepTrial] = atomic_files.read_lines(path, SweepTrial)
        return lines

    def kill_at(self, when: Callable[[], bool], *arguments: str) -> None:
        """Starts a command, and kills it alone once something is so."""
        process = self.cli.start(*self.words(*arguments))
        wait_until(lambda: when() or process.poll() is not None)
        process.kill()
        process.communicate()

    def num_started(self) -> int:
        """How many trials have their parameters."""
        return len({line.trial for line in self.lines()})

    def num_ended(self) -> int:
        """How many trials have ended."""
        return sum(line.has_ended for line in self.lines())


@pytest.fixture
def sweeping(cli: Any) -> Sweeping:
    return Sweeping(cli)


@needs_optuna
def test_grid_tries_every_point_once_and_names_the_best(sweeping: Sweeping) -> None:
    done = sweeping.run(*GRID)
    assert done.returncode == 0, done.stderr
    trials = sweeping.trials()
    assert [one["parameters"]["quality"] for one in trials] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [one["status"] for one in trials] == ["finished"] * 5
    assert trials[-1]["value"] == pytest.approx(1 - 1 / 6)
    last = done.stdout.splitlines()[-1]
    assert last.startswith("next") and "-s quality=1.0" in last and str(sweeping.file) in last
    assert "best        s-005 · accuracy 83.3 % · quality=1" in done.stdout


@needs_optuna
@pytest.mark.parametrize(("words", "is_said"), [((), False), (("--trials", "9"), True)])
def test_sweep_ends_after_all_combinations(
    sweeping: Sweeping, words: tuple[str, ...], is_said: bool
) -> None:
    request = ("-s", "size=1..2", "-s", "quality=0.1,0.5", "--name", "s")
    done = sweeping.run(*request, *words)
    assert done.returncode == 0, done.stderr
    assert "search      4 trials · grid · all combinations" in done.stdout
    assert ("there are only 4 combinations, so not 9 trials" in done.stderr) == is_said
    tried = [tuple(one["parameters"].values()) for one in sweeping.trials()]
    assert tried == [(1, 0.1), (1, 0.5), (2, 0.1), (2, 0.5)]


@needs_optuna
@pytest.mark.parametrize(
    "words", [("quality=0.1,0.5,1", "--trials", "2"), ("quality=0.1..1", "--trials", "2"),
              ("quality=0.1,0.5", "--trials", "2", "--sampler", "tpe")],
)  # fmt: skip
def test_default_sampler_is_tpe_without_trials_for_all(
    sweeping: Sweeping, words: tuple[str, ...]
) -> None:
    assert sweeping.run("-s", *words, "--name", "s").returncode == 0
    header = json.loads((sweeping.folder / "sweep.json").read_text())
    assert (header["sampler"], header["num_trials"]) == ("tpe", 2)


@needs_optuna
def test_each_trial_is_a_run_that_knows_its_sweep(sweeping: Sweeping) -> None:
    assert sweeping.run("-s", "size=1..3", "--sampler", "grid", "--name", "s").returncode == 0
    header = json.loads((sweeping.cli.runs / "s-002" / "run.json").read_text())
    assert header["sweep"] == {"id": "s", "trial": 2}
    done = sweeping.cli.run("runs", "--where", "sweep=s", "--where", "trial>1", "--json")
    assert [run["header"]["id"] for run in json.loads(done.stdout)] == ["s-002", "s-003"]


@needs_optuna
def test_sweep_reads_a_configuration_file(sweeping: Sweeping) -> None:
    text = "sampler = 'grid'\nname = 's'\ntrack = ['none']\n[set]\nsize = '1,2'\nquality = 0.5\n"
    (sweeping.cli.folder / "mine.toml").write_text(text)
    done = sweeping.run("--config", "mine.toml", "-s", "size=3,4")
    assert done.returncode == 0, done.stderr
    parameters = [one["parameters"] for one in sweeping.trials()]
    assert parameters == [{"size": 3}, {"size": 4}]
    header = json.loads((sweeping.cli.runs / "s-002" / "run.json").read_text())
    assert header["spec"]["parameters"] == {"quality": 0.5, "size": 4}
    assert header["config"]["values"]["set.quality"] == "0.5"
    assert json.loads((sweeping.folder / "sweep.json").read_text())["training"]["track"] == ["none"]


@needs_optuna
def test_trials_go_on_when_one_fails(sweeping: Sweeping) -> None:
    done = sweeping.run("-s", "mode=fail,finish", "--sampler", "grid", "--name", "s")
    assert done.returncode == 0, done.stderr
    assert [one["status"] for one in sweeping.trials()] == ["failed", "finished"]
    assert sweeping.trials()[0]["finding"]["rule"] == "experiment-raised"


@needs_optuna
def test_sweep_ends_when_the_first_three_fail_alike(sweeping: Sweeping) -> None:
    done = sweeping.run("-s", "mode=fail", "-s", "size=1..9", "--sampler", "grid", "--name", "s")
    assert done.returncode == 1
    assert "the first 3 trials of s failed the same way" in done.stderr
    assert "flatout explain sweep-trials-fail" in done.stderr
    assert sweeping.num_started() == 3


@needs_optuna
def test_sweep_without_a_result_says_so(sweeping: Sweeping) -> None:
    done = sweeping.run("-s", "mode=fail", "-s", "size=1,2", "--sampler", "grid", "--name", "s")
    assert done.returncode == 1 and "no trial of s has finished" in done.stderr


@needs_optuna
@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_killed_sweep_has_the_same_trials_when_resumed(
    sweeping: Sweeping, sampler: str, tmp_path: Path
) -> None:
    request = (
        "-s", "quality=0.1..1:log", "-s", "size=1..100", "-s", "pause=0.05",
        "--sampler", sampler, "--trials", "4", "--seed", "7",
    )  # fmt: skip
    assert sweeping.run(*request, "--name", "whole").returncode == 0
    sweeping.kill_at(lambda: sweeping.num_ended() == 1, *request, "--name", "s")
    # As a kill in the middle of a write leaves it.
    with open(sweeping.folder / "trials.jsonl", "ab") as file:
        file.write(b'{"kind": "asked", "at": 17')
    sweeping.kill_at(lambda: sweeping.num_started() == 3, "--resume", "s")
    done = sweeping.run("--resume", "s")
    assert done.returncode == 0, done.stderr
    assert [facts(line) for line in sweeping.lines()] == [
        facts(line) for line in sweeping.lines("whole")
    ]


def facts(line: SweepTrial) -> dict[str, Any]:
    """All of a line but its times and the name of its sweep."""
    known = msgspec.structs.asdict(line)
    return {name: known[name] for name in known if name not in ("at", "duration_s", "run")}


@needs_optuna
def test_worker_that_is_killed_is_replaced(sweeping: Sweeping) -> None:
    request = ("-s", "size=1,2", *sweeping.holding(), "--sampler", "grid", "--name", "s")
    process = sweeping.cli.start(*sweeping.words(*request))
    events = sweeping.cli.runs / "s-001" / "events.jsonl"
    found: list[Started] = []

    def has_begun() -> bool:
        lines = atomic_files.read_lines(events, Event) if events.exists() else []
        found[:] = [line for line in lines if isinstance(line, Started)]
        return bool(found)

    wait_until(has_begun)
    os.kill(found[0].pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    sweeping.hold.unlink()
    _, stderr = process.communicate(timeout=180)
    assert process.returncode == 0, stderr
    assert [one["status"] for one in sweeping.trials()] == ["finished", "finished"]
    has_begun()
    assert len(found) == 2


@needs_optuna
@pytest.mark.parametrize("parallel", [1, 2])
def test_ctrl_c_stops_a_sweep_that_can_be_resumed(sweeping: Sweeping, parallel: int) -> None:
    if sys.platform == "win32":
        pytest.skip("a process without a console gets no Ctrl-C")
    request = ("-s", "size=1,2,3,4", *sweeping.holding(), "--sampler", "grid", "--name", "s")
    process = sweeping.cli.start(*sweeping.words(*request, "--parallel", str(parallel)))
    wait_until(lambda: (sweeping.cli.runs / f"s-00{parallel}" / "metrics.jsonl").exists())
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "resume it: flatout sweep --resume s\n" in stderr
    assert [one["status"] for one in sweeping.trials()] == ["interrupted"] * parallel
    process = sweeping.cli.start(*sweeping.words("--resume", "s"))
    # As many at a time as before: those that are new wait.
    runs = [RunFolder(sweeping.cli.runs / f"s-00{number}") for number in (1, 2, 3, 4)]
    wait_until(lambda: sum(run.is_in_use() for run in runs) == parallel)
    sweeping.hold.unlink()
    assert process.wait(180) == 0
    assert [one["status"] for one in sweeping.trials()] == ["finished"] * 4


@needs_optuna
def test_sweep_that_becomes_parallel_on_a_resume_does_not_search(sweeping: Sweeping) -> None:
    request = ("-s", "size=1,2", "--sampler", "grid", "--name", "s")
    tunes = []
    for words in (
        request,
        ("--resume", "s", "--parallel", "1"),
        ("--resume", "s", "--parallel", "2"),
    ):
        assert sweeping.run(*words).returncode == 0
        header = json.loads((sweeping.folder / "sweep.json").read_bytes())
        tunes.append(header["training"].get("tune", "off"))
    assert tunes == ["auto", "auto", "off"]


def killed_in_the_first_trial(sweeping: Sweeping, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """The run of that trial, which no process has any more; the sweep can be resumed here."""
    request = ("-s", "size=1,2", "-s", "pause=0.2", "--sampler", "grid", "--name", "s")
    sweeping.kill_at(lambda: (sweeping.cli.runs / "s-001" / "metrics.jsonl").exists(), *request)
    monkeypatch.setenv("FLATOUT_STATE", str(sweeping.cli.state))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    folder = RunFolder(sweeping.cli.runs / "s-001")
    wait_until(lambda: not folder.is_in_use())
    return folder


@needs_optuna
def test_run_that_an_orphan_takes_late_is_waited_for(
    sweeping: Sweeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A worker whose command line was killed, and which was still loading torch when the run was
    # looked at.
    folder = killed_in_the_first_trial(sweeping, monkeypatch)
    orphans: list[threading.Thread] = []
    was_asked = threading.Event()

    def end_when_asked(lock: FileLock) -> None:
        try:
            wait_until(folder.stop.exists)
            was_asked.set()
        finally:
            lock.release()

    def begin_late(training: TrainRequest, interrupts: Interrupts) -> Supervisor:
        if not orphans:
            lock = folder.lock()
            assert lock.acquire()
            orphans.append(threading.Thread(target=end_when_asked, args=(lock,), daemon=True))
            orphans[0].start()
        return begin(training, interrupts, is_attached=True)

    *_, swept = carry_out(SweepRequest(resume="s"), begin_late, Interrupts())
    orphans[0].join()
    assert was_asked.is_set()
    assert [one.status for one in swept.trials] == ["finished", "finished"]


@needs_optuna
def test_run_that_an_orphan_keeps_is_waited_for_once(
    sweeping: Sweeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = killed_in_the_first_trial(sweeping, monkeypatch)
    monkeypatch.setattr(carrying_out, "_STOP_LIMIT_S", 0.1)
    kept = folder.lock()
    num_begun = 0

    def begin_late(training: TrainRequest, interrupts: Interrupts) -> Supervisor:
        nonlocal num_begun
        num_begun += 1
        assert num_begun > 1 or kept.acquire()
        return begin(training, interrupts, is_attached=True)

    with pytest.raises(UsageError) as caught:
        list(carry_out(SweepRequest(resume="s"), begin_late, Interrupts()))
    kept.release()
    assert caught.value.rule == "run-in-use" and num_begun == 1


@needs_optuna
def test_bad_trials_are_pruned(sweeping: Sweeping) -> None:
    done = sweeping.run(
        "-s", "quality=1,0.5,0.1", *sweeping.holding(), "-s", "hold_below=0.2",
        "--sampler", "grid", "--pruner", "halving", "--name", "s",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    trials = sweeping.trials()
    # The second is compared with none: the first was over before there was anything to compare.
    assert [one["status"] for one in trials] == ["finished", "finished", "pruned"]
    (pruned,) = [line for line in sweeping.lines() if line.trial == 3 and line.has_ended]
    assert len(pruned.reports) == 1
    events = (sweeping.cli.runs / "s-003" / "events.jsonl").read_text()
    assert '"stopped"' in events


@needs_optuna
def test_verdict_on_a_trial_is_the_same_when_it_is_read_later(sweeping: Sweeping) -> None:
    qualities = "quality=1,0.9,0.8,0.7,0.6,0.1"
    assert sweeping.run("-s", qualities, "--sampler", "grid", "--name", "s").returncode == 0
    header, trials = sweeping.folder / "sweep.json", sweeping.folder / "trials.jsonl"
    facts_of = json.loads(header.read_text())
    header.write_text(json.dumps(facts_of | {"pruner": "median"}))
    # As if it had been killed before it has read any validation of the last trial.
    lines = trials.read_bytes().splitlines(keepends=True)
    trials.write_bytes(b"".join(lines[:-1]))
    assert sweeping.run("--resume", "s").returncode == 0
    last = sweeping.lines()[-1]
    assert (last.trial, last.status, len(last.reports)) == (6, "pruned", 1)


@needs_optuna
def test_trials_run_in_parallel(sweeping: Sweeping) -> None:
    request = ("-s", "size=1..4", "-s", "pause=0.1", "--parallel", "3", "--sampler", "grid")
    assert sweeping.run(*request, "--name", "s").returncode == 0
    assert [line.has_ended for line in sweeping.lines()[:3]] == [False] * 3
    assert sweeping.num_ended() == 4


@needs_optuna
def test_resumed_sweep_may_have_more_trials(sweeping: Sweeping) -> None:
    request = ("-s", "quality=0..1", "--trials", "1", "--sampler", "random", "--name", "s")
    assert sweeping.run(*request).returncode == 0
    assert sweeping.run("--resume", "s", "--trials", "2").returncode == 0
    assert len(sweeping.trials()) == 2


@needs_optuna
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--metric", "acuracy"], "did you mean `accuracy`?"),
        (["--use", "precision=fp99"], "precision"),
    ],
)
def test_nothing_is_left_of_a_sweep_that_is_refused(
    sweeping: Sweeping, words: list[str], said: str
) -> None:
    done = sweeping.run(*GRID, *words)
    assert done.returncode == 2 and said in done.stderr
    assert not sweeping.folder.exists()
    assert not list(sweeping.cli.runs.glob("s-*"))


@needs_optuna
def test_two_sweeps_of_one_name_are_refused(sweeping: Sweeping) -> None:
    request = ("-s", "size=1,2", "--sampler", "grid", "--name", "s")
    assert sweeping.run(*request).returncode == 0
    done = sweeping.run(*request)
    assert done.returncode == 2 and "flatout explain sweep-exists" in done.stderr
    done = sweeping.run("--resume", "t")
    assert done.returncode == 2 and "flatout explain unknown-sweep" in done.stderr


@needs_optuna
def test_damaged_or_foreign_files_are_named(sweeping: Sweeping) -> None:
    assert sweeping.run("-s", "size=1,2", "--sampler", "grid", "--name", "s").returncode == 0
    header, trials = sweeping.folder / "sweep.json", sweeping.folder / "trials.jsonl"
    whole = header.read_text()
    lines = trials.read_bytes()
    for damaged in (b'{"kind": "nonsense"}\n' + lines, lines.split(b"\n", 2)[2]):
        trials.write_bytes(damaged)
        done = sweeping.run("--resume", "s")
        assert done.returncode == 1 and "flatout explain sweep-damaged" in done.stderr
    header.write_text(whole.replace('"format": 1', '"format": 2'))
    done = sweeping.run("--resume", "s")
    assert done.returncode == 2 and "flatout explain sweep-of-another-version" in done.stderr
    header.write_text(whole[: len(whole) // 2])
    done = sweeping.cli.run("sweep", "show", "s")
    assert done.returncode == 1 and "flatout explain sweep-damaged" in done.stderr


@needs_optuna
def test_sweep_is_carried_out_once_and_with_the_same_code(sweeping: Sweeping) -> None:
    assert sweeping.run("-s", "size=1,2", "--sampler", "grid", "--name", "s").returncode == 0
    lock = atomic_files.FileLock(sweeping.folder / "lock")
    assert lock.acquire()
    done = sweeping.run("--resume", "s")
    lock.release()
    assert done.returncode == 2 and "flatout explain sweep-in-use" in done.stderr
    sweeping.file.write_text(EXPERIMENT + "# changed\n")
    done = sweeping.run("--resume", "s")
    assert done.returncode == 2 and "flatout explain experiment-changed" in done.stderr


@needs_optuna
def test_sweep_ends_when_its_file_changes_while_it_runs(sweeping: Sweeping) -> None:
    request = ("-s", "size=1..4", "-s", "pause=0.1", "--sampler", "grid", "--name", "s")
    process = sweeping.cli.start(*sweeping.words(*request))
    wait_until(lambda: sweeping.num_ended() > 0)
    sweeping.file.write_text(EXPERIMENT + "# changed\n")
    _, stderr = process.communicate(timeout=180)
    assert process.returncode == 2 and "flatout explain experiment-changed" in stderr
    assert sweeping.num_ended() < 4
    sweeping.file.write_text(EXPERIMENT)
    assert sweeping.run("--resume", "s").returncode == 0
    assert [one["status"] for one in sweeping.trials()] == ["finished"] * 4


@needs_optuna
def test_run_of_another_sweep_is_left_alone(sweeping: Sweeping) -> None:
    done = sweeping.cli.run(*sweeping.cli.train("--name", "s-001"))
    assert done.returncode == 0
    done = sweeping.run("-s", "size=1,2", "--sampler", "grid", "--name", "s")
    assert done.returncode == 2 and "flatout explain run-exists" in done.stderr
    assert (sweeping.cli.runs / "s-001").exists()


@needs_optuna
def test_sweep_from_python(sweeping: Sweeping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_STATE", str(sweeping.cli.state))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    swept = flatout.sweep(
        sweeping.file, {"quality": [0.5, 1.0], "size": 3}, sampler="grid", name="s",
        python=sweeping.cli.python, is_quiet=True,
    )  # fmt: skip
    assert swept.best == 2 and swept.header.metric == "accuracy"
    assert "-s size=3 -s quality=1.0" in (swept.command or "")
    assert f"--python {sweeping.cli.python}" in (swept.command or "")
    assert flatout.sweep(resume="s", is_quiet=True) == swept
    is_drawn = (Path(swept.folder) / "plots" / "parallel.png").exists()
    assert is_drawn == (importlib.util.find_spec("matplotlib") is not None)


@pytest.mark.parametrize("option", [{"epochs": 3}, {"use": {"num_threads": 1}}, {"tune": "auto"}])
def test_resumed_sweep_refuses_other_options_from_python(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as refused:
        flatout.sweep(resume="s", **option)
    assert refused.value.rule == "cannot-change-on-resume"


def test_sweep_when_the_package_is_missing(sweeping: Sweeping) -> None:
    sweeping.cli.missing += ("optuna",)
    done = sweeping.run(*GRID)
    assert done.returncode == 2 and "pip install 'flatout[sweep]'" in done.stderr
    assert not sweeping.folder.exists()


@pytest.mark.parametrize(
    ("metric", "direction"),
    [("accuracy", "maximize"), ("loss", "minimize"), ("rmse", "minimize"), ("f1", "maximize")],
)
def test_direction_is_that_of_the_name(metric: str, direction: str) -> None:
    assert direction_of(metric, None) == direction
    assert direction_of(metric, "minimize") == "minimize"
