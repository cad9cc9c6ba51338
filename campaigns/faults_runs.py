"""Runs with an injected fault, and their results compared with an undisturbed run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import psutil
import safetensors.torch
from support.small_disk import fill
from torch import Tensor

from flatout.schema.placement import RANKS_LIMIT_NAME
from flatout.schema.run_lines import Event, Failed, Finished, Metric, Progress, Started, Stopped
from flatout.system import atomic_files
from flatout.system.store.jsonl_scan import last_line
from flatout.system.store.run_folder import RunFolder, read_run

EXPERIMENT = Path(__file__).resolve().parents[1] / "tests" / "support" / "counted.py"
# Where the fault hits: in the middle of the run, and of an epoch.
AT_STEP = 330
# A checkpoint every second or so, wherever the fault lands.
RECIPE = {"checkpoint_every": 50, "num_threads": 1}
LIMIT_S = 420.0
# How long a rank is stopped that continues, and the timeout for one that does not.
STILL_S = 15.0
STILL_LIMIT_S = 30.0
_CLOSE = 1e-9


class Unexpected(Exception):
    """A fault did not have the intended effect."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The result of a fault.

    reported: what flatout reported, and with how many ranks it resumed at which step. lost_s: lost
    training time; for a refused command, the time until it was refused. num_redone: repeated
    updates. num_lost, num_doubled: samples that are missing from an epoch, or in it too often.
    exact: how the weights compare. problem: what went wrong.
    """

    fault: str
    reported: str
    lost_s: float
    num_redone: int = 0
    num_lost: int = 0
    num_doubled: int = 0
    exact: str = "-"
    problem: str | None = None


RunsT = TypeVar("RunsT", bound="Runs")


@dataclass(kw_only=True)
class Runs:
    """Trainings of one place: a state folder, and how a command line is started there.

    on: the value of `--on`. working: the working folder. logs: output of the command lines.
    variables: added to those of this process. references: undisturbed runs, by their settings.
    """

    state: Path
    on: str
    logs: Path
    epochs: int = 10
    references: dict[str, RunFolder] = field(default_factory=dict)
    working: Path = field(default_factory=Path.cwd)
    variables: dict[str, str] = field(default_factory=dict)

    def folder(self, name: str) -> RunFolder:
        """The folder of the run with that name."""
        return RunFolder(self.state / "runs" / name)

    def begin(self, name: str, settings: str = "", on: str | None = None) -> Training:
        """Starts a new run with these settings: "dropout=0.1 short_at=300"."""
        words = [f"-s{pair}" for pair in f"epochs={self.epochs} {settings}".split()]
        uses = [f"--use={field}={value}" for field, value in RECIPE.items()]
        return self.start(name, str(EXPERIMENT), *words, *uses, f"--name={name}", on=on)

    def resume(self, name: str, on: str | None = None) -> Training:
        """Resumes a run."""
        return self.start(name, "--resume", name, on=on)

    def start(self, name: str, *words: str, on: str | None = None) -> Training:
        """Starts `flatout train`; its output goes to a file next to the runs."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with open(self.logs / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "flatout", "train", *words, "--on", on or self.on],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.working,
                env={
                    **os.environ, **self.variables,
                    "FLATOUT_STATE": str(self.state), "PYTHONUTF8": "1",
                },
            )  # fmt: skip
        return Training(self.folder(name), process, self.logs / f"{name}.log")

    def make_ready(self) -> None:
        """Cleans up after the previous fault; most leave nothing behind."""

    def reference(self, settings: str = "") -> RunFolder:
        """An undisturbed run with these settings."""
        if settings not in self.references:
            name = f"reference-{len(self.references)}"
            # One that was refused has left no run.
            training = self.begin(name, settings)
            training.end()
            _require_whole(training.folder, self.epochs)
            self.references[settings] = training.folder
        return self.references[settings]


class Training:
    """A command line that trains."""

    def __init__(self, folder: RunFolder, process: subprocess.Popen[bytes], log: Path) -> None:
        self.folder = folder
        self.process = process
        self._log = log

    def wait_for_step(self, step: int) -> None:
        """Waits until the training reaches a step."""
        self.wait_until(lambda: self.step() >= step)

    def step(self) -> int:
        """The last step reported."""
        line = last_line(self.folder.metrics, Metric, b'"progress"')
        return line.step if isinstance(line, Progress) else 0

    def events(self) -> list[Event]:
        """The run's history."""
        lines: list[Event] = atomic_files.read_lines(self.folder.events, Event)
        return lines

    def wait_until(self, is_so: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Waits for a condition while the command runs."""
        until_s = time.monotonic() + limit_s
        while not is_so():
            if self.process.poll() is not None:
                raise Unexpected(f"ended with {self.process.returncode}: {self.output()[-1500:]}")
            if time.monotonic() > until_s:
                raise Unexpected(f"timed out after {limit_s:.0f} s: {self.output()[-1500:]}")
            time.sleep(0.02)

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Waits until the command ends; returns its exit code."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Unexpected(f"not ended after {limit_s:.0f} s: {self.output()[-1500:]}") from None

    def end(self) -> None:
        """Waits for a successful end."""
        code = self.wait()
        if code or "Traceback" in self.output():
            raise Unexpected(f"ended with {code}: {self.output()[-1500:]}")

    def stop(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        self.wait()

    def output(self) -> str:
        """The output of the command, and of the one before it."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def ranks(self) -> dict[int, psutil.Process]:
        """The ranks on this machine, by number."""
        found = {}
        for process in self.processes():
            try:
                if "--ranked" in process.cmdline():
                    found[int(process.environ()["RANK"])] = process
            except psutil.Error:
                continue
        return found

    def processes(self) -> list[psutil.Process]:
        """All processes on this machine that work on the run, whatever started them."""
        return [
            one
            for one in psutil.process_iter(["cmdline"])
            if str(self.folder.path) in (one.info["cmdline"] or [])
        ]

    def kill(self) -> None:
        """Kills all of them immediately."""
        for process in self.processes():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True, kw_only=True)
class Blow:
    """When a fault was injected, and the step of the training at that time."""

    at: float
    step: int


def limited(runs: RunsT) -> RunsT:
    """The same, with a short timeout for ranks."""
    return replace(runs, variables={RANKS_LIMIT_NAME: f"{STILL_LIMIT_S:.0f}"})


def _require_whole(folder: RunFolder, epochs: int) -> None:
    seen = safetensors.torch.load_file(folder.weights)["num_seen"]
    if not bool((seen == epochs).all()):
        raise Unexpected(f"an undisturbed run counted {seen.unique().tolist()}")


def strike(training: Training, step: int, act: Callable[[], object]) -> Blow:
    """Injects a fault when the training reaches a step."""
    training.wait_for_step(step)
    blow = Blow(at=time.time(), step=training.step())
    act()
    return blow


def judged(fault: str, training: Training, reference: RunFolder, blow: Blow) -> Row:
    """The result of a fault, once the training has finished."""
    folder = training.folder
    status = read_run(folder).status
    if status != "finished":
        return Row(fault=fault, reported=story(training), lost_s=time.time() - blow.at,
                   problem=f"the run is {status}: {training.output()[-600:]}")  # fmt: skip
    lost_s, num_redone = cost(training, blow)
    weights = safetensors.torch.load_file(folder.weights)
    others = safetensors.torch.load_file(reference.weights)
    num_lost, num_doubled = miscounted(weights["num_seen"], others["num_seen"])
    finished, other = read_run(folder).finished, read_run(reference).finished
    assert finished is not None and other is not None
    farthest = max(float((weights[name] - one).abs().max()) for name, one in others.items())
    is_same = all(weights[name].equal(one) for name, one in others.items())
    problem = None
    if finished.num_samples_seen != other.num_samples_seen:
        problem = f"{finished.num_samples_seen} samples seen, not {other.num_samples_seen}"
    elif num_lost or num_doubled:
        problem = f"{num_lost} samples lost, {num_doubled} duplicated"
    elif farthest > _CLOSE:
        problem = f"the weights are {farthest:.0e} apart"
    return Row(
        fault=fault,
        reported=story(training),
        lost_s=lost_s,
        num_redone=num_redone,
        num_lost=num_lost,
        num_doubled=num_doubled,
        exact="bit for bit" if is_same else f"to {farthest:.0e}",
        problem=problem,
    )


def wait_until_left(folder: RunFolder) -> None:
    """Waits until no process works in the run's folder."""
    until_s = time.monotonic() + LIMIT_S
    while folder.lock().is_taken():
        if time.monotonic() > until_s:
            raise Unexpected(f"a process still works in {folder.path}")
        time.sleep(0.05)


def taken_up(fault: str, again: Training, reference: RunFolder, blow: Blow) -> Row:
    """The result of a fault that ended the training, after the run was resumed by hand."""
    again.end()
    row = judged(fault, again, reference, blow)
    return replace(row, reported=f"{row.reported} (--resume)")


def filled_up(runs: Runs, training: Training, other: Path, reference: RunFolder) -> Row:
    """Another file fills the disk of the run, and is removed once the training has ended."""
    try:
        blow = strike(training, AT_STEP, lambda: fill(other))
        code = training.wait()
    finally:
        other.unlink(missing_ok=True)
    if code != 1 or "disk-full" not in training.output():
        raise Unexpected(f"ended with {code}: {training.output()[-1500:]}")
    row = taken_up("disk full", runs.resume(training.folder.path.name), reference, blow)
    return replace(row, reported=f"disk-full, {row.reported.removeprefix('disk-full, ')}")


def cost(training: Training, blow: Blow) -> tuple[float, int]:
    """Seconds of lost training time, and the number of repeated updates.

    Repeated updates are no longer in the metrics, so the pause starts at the checkpoint.
    """
    at = [line.at for line in atomic_files.read_lines(training.folder.metrics, Metric)]
    pauses = [after - before for before, after in pairwise(at) if after > blow.at]
    starts = [one for one in training.events() if isinstance(one, Started) and one.at > blow.at]
    num_redone = max((blow.step - one.step for one in starts), default=0)
    return max(pauses, default=0.0), max(0, num_redone)


def miscounted(seen: Tensor, right: Tensor) -> tuple[int, int]:
    """How many samples are missing from updates, and how many are in them too often."""
    more = seen - right
    return int((-more).clamp(min=0).sum()), int(more.clamp(min=0).sum())


def story(training: Training) -> str:
    """The run's history after its first start, in a few words."""
    parts: list[str] = []
    has_started = False
    for line in training.events():
        if isinstance(line, Failed):
            parts.append(line.finding.rule)
        elif isinstance(line, Stopped):
            parts.append("stopped")
        elif isinstance(line, Started) and not has_started:
            has_started = True
        elif isinstance(line, Started):
            ranks = f"{line.num_ranks} rank" + "s" * (line.num_ranks > 1)
            parts.append(f"{ranks} from {line.step}")
        elif not isinstance(line, Finished) and (rule := _worth_telling(line)):
            parts.append(rule)
    return ", ".join(parts) or "continued"


def _worth_telling(line: Event) -> str | None:
    """Whether a rank was late, or used less memory."""
    finding = getattr(line, "finding", None)
    if finding is not None and finding.rule == "rank-late":
        return "waited and reported it"
    return "smaller micro-batches" if getattr(line, "adaptation", None) is not None else None
