"""A run that is killed, resumed, and compared with one that was not killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil
import safetensors

from flatout.schema.run_lines import EpochEnded, Event, Metric, Started, Validated
from flatout.system import atomic_files
from flatout.system.store.run_folder import RunFolder, read_run

EXPERIMENT = Path(__file__).with_name("hard_to_resume.py")
DATA = ("tensors", "samples", "stream")
LIMIT_S = 180.0
# `python -m flatout` as if matplotlib were not there: to draw each run at its end would take long.
WITHOUT_PICTURES = (
    "import sys; sys.modules['matplotlib'] = None; from flatout.__main__ import main; main()"
)
# 24 samples in 10 + 10 + 4: nearly every moment is inside an accumulation.
RECIPE = {
    "checkpoint_every": "20", "micro_batch_size": "10", "num_threads": "1", "deterministic": "true",
}  # fmt: skip

Target = Literal["worker", "command line", "loader worker", "tree"]
# A kill that proves nothing: before there was a run, when all was done, or between two writes.
Miss = Literal["too early", "too late", "after the write"]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """When to kill.

    share: of the time from the start to the end of the run.
    is_in_start: the run counts as started when its target exists, else at the first update.
    is_in_write: wait for the next checkpoint that is being written.
    """

    share: float
    is_in_start: bool
    is_in_write: bool


@dataclass(frozen=True, kw_only=True)
class Killed:
    """The result of a kill.

    problem: None if everything was identical. step: of the last line before the kill.
    checkpoint_step: of the last complete checkpoint then, None if there was none. wait_s: how long
    surviving processes still held the run. num_resumes: how often `--resume` was needed.
    """

    problem: str | None
    is_in_write: bool = False
    step: int = 0
    checkpoint_step: int | None = None
    wait_s: float = 0.0
    num_resumes: int = 0


@dataclass
class Runs:
    """A state folder; its runs that are not killed, and their durations, by their data."""

    state: Path
    device: str
    references: dict[str, RunFolder] = field(default_factory=dict)
    whole_s: dict[str, float] = field(default_factory=dict)
    training_s: dict[str, float] = field(default_factory=dict)

    def folder(self, name: str) -> RunFolder:
        """The folder of the run with that name."""
        return RunFolder(self.state / "runs" / name)

    def begin(self, name: str, data: str) -> subprocess.Popen[bytes]:
        """Starts `flatout train` on a new run."""
        recipe = RECIPE | ({"loader_workers": "2"} if data == "samples" else {})
        uses = [f"--use={key}={value}" for key, value in recipe.items()]
        arguments = [str(EXPERIMENT), f"-sdata={data}", f"--name={name}"]
        return self.start(name, [*arguments, f"--device={self.device}", *uses])

    def start(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        """Starts `flatout train`; its output goes to a file next to the runs."""
        self.state.mkdir(parents=True, exist_ok=True)
        with open(self.state / f"{name}.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", WITHOUT_PICTURES, "train", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "FLATOUT_STATE": str(self.state), "PYTHONUTF8": "1"},
            )

    def output(self, name: str) -> str:
        """The output of the command lines of that run."""
        return (self.state / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def make_reference(self, data: str) -> float:
        """Trains without a kill; returns the seconds it took."""
        name = f"reference-{data}"
        began_s = time.perf_counter()
        process = self.begin(name, data)
        while process.poll() is None and not has_begun(self.folder(name)):
            time.sleep(0.02)
        trained_s = time.perf_counter()
        if process.wait(LIMIT_S):
            raise SystemExit(f"the run to compare with failed:\n{self.output(name)}")
        self.references[data] = self.folder(name)
        self.whole_s[data] = time.perf_counter() - began_s
        self.training_s[data] = time.perf_counter() - trained_s
        return self.whole_s[data]


def kill_and_resume(
    runs: Runs, name: str, target: Target, data: str, moment: Moment
) -> Killed | Miss:
    """Starts a run, kills it, resumes it until it is done, compares it."""
    folder = runs.folder(name)
    process = runs.begin(name, data)
    try:
        length_s = (runs.whole_s if moment.is_in_start else runs.training_s)[data]
        is_in_write = _kill(process, folder, target, moment, moment.share * length_s)
        if is_in_write is None:
            return "too late"
        if moment.is_in_write and not is_in_write:
            return "after the write"
        process.wait(LIMIT_S)
        if not folder.header.exists():
            # Killed before there was a run: nothing is there to be lost, nor to be resumed.
            return "too early"
        wait_s = wait_until_left(folder)
        history, run = _whole_lines(folder.events), read_run(folder)
        num_resumes, code = resume_until_done(runs, name)
        if num_resumes == 0:
            # The kill came when all was done.
            return "too late"
    except subprocess.TimeoutExpired:
        return Killed(problem=f"hung: {runs.output(name)[-2000:]}")
    finally:
        end(victims_of(process.pid, "tree") + workers_of(folder))
    problem = difference(folder, runs.references[data], history)
    if code or "Traceback" in runs.output(name):
        problem = f"ended with {code}: {runs.output(name)[-2000:]}"
    return Killed(
        problem=problem,
        is_in_write=is_in_write,
        step=run.step,
        checkpoint_step=run.checkpoint_step,
        wait_s=wait_s,
        num_resumes=num_resumes,
    )


def wait_until_left(folder: RunFolder) -> float:
    """Waits until no process works on a run; returns the seconds it took."""
    began_s = time.perf_counter()
    while workers_of(folder) or folder.lock().is_taken():
        if time.perf_counter() - began_s > LIMIT_S:
            raise subprocess.TimeoutExpired("the remaining processes of the run", LIMIT_S)
        time.sleep(0.1)
    return time.perf_counter() - began_s


def resume_until_done(runs: Runs, name: str) -> tuple[int, int]:
    """Returns how often the run had to be resumed, and the last exit code."""
    num_resumes, code = 0, 0
    while code == 0 and read_run(runs.folder(name)).status != "finished":
        num_resumes += 1
        process = runs.start(name, ["--resume", name])
        try:
            code = process.wait(LIMIT_S)
        finally:
            end(victims_of(process.pid, "tree"))
    return num_resumes, code


def _kill(
    process: subprocess.Popen[bytes],
    folder: RunFolder,
    target: Target,
    moment: Moment,
    after_s: float,
) -> bool | None:
    """Kills at the moment; returns whether a checkpoint was being written, None if too late."""
    while not (moment.is_in_start or has_begun(folder)) or not victims_of(process.pid, target):
        if process.poll() is not None:
            return None
        time.sleep(0.02)
    try:
        process.wait(after_s)
        return None
    except subprocess.TimeoutExpired:
        pass
    victims = victims_of(process.pid, target)
    while not victims or (moment.is_in_write and not parts_of(folder)):
        if process.poll() is not None:
            return None
        # A loader's workers end with each epoch; the next ones will do.
        victims = [v for v in victims if v.is_running()] or victims_of(process.pid, target)
    end(victims)
    # A worker's file stays half-written; other targets do not stop the write, so: look immediately.
    if target in ("worker", "tree"):
        psutil.wait_procs(victims, timeout=LIMIT_S)
    return bool(parts_of(folder))


def victims_of(pid: int, target: Target) -> list[psutil.Process]:
    """The target processes of a command line; none if they have not started yet."""
    try:
        line = psutil.Process(pid)
        if target == "command line":
            return [line]
        if target == "tree":
            return [line, *line.children(recursive=True)]
        worker = next((p for p in line.children() if _is_worker(p)), None)
        if worker is None or target == "worker":
            return [worker] if worker else []
        # The leaves: a server that forks the loaders, where there is one, is none of them.
        below = [p for p in worker.children(recursive=True) if not p.children()]
        return [p for p in below if "resource_tracker" not in " ".join(p.cmdline())][:1]
    except psutil.NoSuchProcess:
        return []


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "flatout.engine.training.worker" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def workers_of(folder: RunFolder) -> list[psutil.Process]:
    """Workers on that run, including those whose command line has died."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if str(folder.path) in (process.info["cmdline"] or []):
            found.append(process)
    return found


def has_begun(folder: RunFolder) -> bool:
    """Whether the first update of the run has started."""
    return any(isinstance(line, Started) for line in atomic_files.read_lines(folder.events, Event))


def parts_of(folder: RunFolder) -> list[Path]:
    """Files of a checkpoint that are being written now."""
    try:
        return list(folder.checkpoints.glob("*/*.part"))
    except FileNotFoundError:
        # An old checkpoint was removed while this looked at it.
        return []


def end(processes: list[psutil.Process]) -> None:
    """Kills the processes that are still alive."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def difference(folder: RunFolder, reference: RunFolder, history: bytes) -> str | None:
    """The difference between a resumed run and one that was not killed, or None."""
    if not folder.events.read_bytes().startswith(history):
        return "events.jsonl does not begin with what it held at the kill"
    lines = atomic_files.read_lines(folder.metrics, Metric)
    steps = [line.step for line in lines]
    if steps != sorted(steps):
        return "steps go back in metrics.jsonl"
    if _results(lines) != _results(atomic_files.read_lines(reference.metrics, Metric)):
        return "losses or metrics differ"
    if _tensors(folder.weights) != _tensors(reference.weights):
        return "the weights differ"
    return "the last checkpoint differs" if _last(folder) != _last(reference) else None


def _last(folder: RunFolder) -> tuple[int, Any, Any]:
    """The last checkpoint: its step, its tensors, and everything else except timings."""
    step = folder.checkpoint_steps()[-1]
    place = folder.checkpoints / f"{step:06d}"
    [tensors] = place.glob("rank0-*.safetensors")
    state = json.loads((place / "rank0.json").read_bytes())["state"]["dict"]
    rest = [[name, tree] for name, tree in state if name not in ("split_s", "metrics_bytes")]
    return step, _tensors(tensors), rest


def _tensors(path: Path) -> dict[str, dict[str, Any]]:
    """Shape, type and bytes of each tensor in a file; its metadata has no fixed order."""
    return dict(safetensors.deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]


def _results(lines: list[Metric]) -> list[Metric]:
    return [
        msgspec.structs.replace(line, at=0.0)
        for line in lines
        if isinstance(line, EpochEnded | Validated)
    ]


def _whole_lines(path: Path) -> bytes:
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1]
