"""Real trainings with planted faults, and a monitor that watches them; see `alarms.py`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.dated import Measurement, measurement
from support.small_disk import can_be_mounted, small_disk

from flatout.schema.run_lines import Event, Metric, Started, Warned
from flatout.system import atomic_files
from flatout.system.store.jsonl_scan import last_line
from flatout.system.store.run_folder import RunFolder

EXPERIMENT = Path(__file__).with_name("faulty_training.py")
SRC = Path(__file__).resolve().parents[1] / "src"
# By the training itself after so many seconds.
_PLANTED = ("data-starvation", "nonfinite-loss", "loss-flat", "memory-leak", "rank-straggling")
# What a recorder cannot log: the run logs it itself, or is dead or stopped.
_NOT_IN_RUN = ("nonfinite-loss", "worker-died", "run-hung")
_LIMIT_S = 90.0
_POLL_S = 0.2


@dataclass(frozen=True)
class Watched:
    """A state folder with a monitor. alarms: the file to which its command appends them."""

    state: Path
    alarms: Path
    environment: dict[str, str]

    def raised(self) -> list[dict[str, Any]]:
        """The alarms that were raised so far."""
        if not self.alarms.exists():
            return []
        lines = [json.loads(line) for line in self.alarms.read_text().splitlines()]
        return [line for line in lines if line["state"] == "raised"]

    def wait_for(self, rule: str, limit_s: float = _LIMIT_S) -> float | None:
        """When an alarm was raised; None if it was not."""
        until_s = time.monotonic() + limit_s
        while time.monotonic() < until_s:
            for alarm in self.raised():
                if alarm["finding"]["rule"] == rule:
                    return float(alarm["at"])
            time.sleep(_POLL_S)
        return None


@contextlib.contextmanager
def monitored(folder: Path, data: Path | None = None) -> Iterator[Watched]:
    """A monitor of a state folder of its own."""
    state, alarms = folder / "state", folder / "alarms.jsonl"
    environment = {
        **os.environ, "FLATOUT_STATE": str(state), "PYTHONPATH": str(SRC),
        "FLATOUT_DATA": str(data or folder / "data"),
    }  # fmt: skip
    append = f"import sys; open(r'{alarms}', 'a').write(sys.stdin.read() + chr(10))"
    command = [
        sys.executable, "-m", "flatout", "monitor", "-i", "1",
        "--command", f'"{sys.executable}" -c "{append}"',
    ]  # fmt: skip
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield Watched(state=state, alarms=alarms, environment=environment)
    finally:
        process.terminate()
        code = process.wait(60)
        if code != 0:
            raise RuntimeError(f"the monitor ended with {code}")


@contextlib.contextmanager
def training(watched: Watched, *arguments: str) -> Iterator[RunFolder]:
    """A training that has made steps; ended afterwards."""
    command = [
        sys.executable, "-m", "flatout", "train", str(EXPERIMENT), "--name", "a-0001",
        "--tune", "off", *arguments,
    ]  # fmt: skip
    folder = RunFolder(watched.state / "runs" / "a-0001")
    with open(watched.state.parent / "train.log", "wb") as log:
        process = subprocess.Popen(command, env=watched.environment, stdout=log, stderr=log)
        try:
            until_s = time.monotonic() + 120
            while not folder.metrics.exists() or not folder.metrics.stat().st_size:
                if process.poll() is not None or time.monotonic() > until_s:
                    text = (watched.state.parent / "train.log").read_text()
                    raise RuntimeError(f"the training did not start: {text}")
                time.sleep(_POLL_S)
            yield folder
        finally:
            if process.poll() is None:
                folder.request_stop()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def worker_pid(folder: RunFolder) -> int:
    """The process of the first rank."""
    events = atomic_files.read_lines(folder.events, Event)
    return next(line.pid for line in events if isinstance(line, Started))


def warned_rules(folder: RunFolder) -> set[str]:
    """What the run itself was warned of."""
    events = atomic_files.read_lines(folder.events, Event)
    return {line.finding.rule for line in events if isinstance(line, Warned)}


def _by_training(rule: str, folder: Path) -> tuple[float, float | None, bool, list[str]]:
    """Plants a fault in the training itself: when, when raised, whether the run has it, others."""
    mark = folder / "mark"
    more = ["--on", "local:2"] if rule == "rank-straggling" else []
    # After the first epochs, in which a leak could be a cache.
    settings = {"fault": rule, "mark": mark, "after": 20.0}
    words = [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]
    # Each sample must be asked for: no copy of them in memory.
    recipe = ["--use", "data_path=loader", "--use", "loader_workers=0"]
    with monitored(folder) as watched, training(watched, *words, *more, *recipe) as run:
        raised_at = watched.wait_for(rule)
        is_in_run = rule in _NOT_IN_RUN or _appears(lambda: rule in warned_rules(run))
        others = [one["finding"]["rule"] for one in watched.raised()]
    planted_at = float(mark.read_text())
    return planted_at, raised_at, is_in_run, [one for one in others if one != rule]


def _appears(is_so: Callable[[], bool], limit_s: float = 20.0) -> bool:
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        if is_so():
            return True
        time.sleep(_POLL_S)
    return False


def _by_signal(rule: str, folder: Path) -> tuple[float, float | None, bool, list[str]]:
    """Kills or stops the worker."""
    with monitored(folder) as watched, training(watched) as run:
        time.sleep(15)
        pid = worker_pid(run)
        planted_at = time.time()
        os.kill(pid, signal.SIGKILL if rule == "worker-died" else signal.SIGSTOP)
        raised_at = watched.wait_for(rule)
        if rule == "run-hung":
            os.kill(pid, signal.SIGCONT)
        others = [one["finding"]["rule"] for one in watched.raised()]
    return planted_at, raised_at, True, [one for one in others if one != rule]


def _by_disk(folder: Path) -> tuple[float, float | None, bool, list[str]]:
    """Fills a small disk, on which the data would be."""
    with small_disk(folder / "disk", "160m") as disk, monitored(folder, disk) as watched:
        time.sleep(10)
        is_over = threading.Event()

        def fill() -> None:
            with open(disk / "log", "wb", buffering=0) as file:
                while not is_over.wait(0.2):
                    file.write(b"\0" * 400_000)

        thread = threading.Thread(target=fill)
        planted_at = time.time()
        thread.start()
        raised_at = watched.wait_for("disk-filling", 60)
        is_over.set()
        thread.join()
        others = [one["finding"]["rule"] for one in watched.raised()]
    return planted_at, raised_at, True, [one for one in others if one != "disk-filling"]


def real_faults(only: Sequence[str] = ()) -> tuple[list[Measurement], list[str]]:
    """Plants all that can be planted on a CPU; gives how long each took, and what went wrong.

    only: these, if any are named.
    """
    plants: dict[str, Callable[[Path], tuple[float, float | None, bool, list[str]]]] = {}
    for rule in _PLANTED:
        plants[rule] = lambda folder, rule=rule: _by_training(rule, folder)
    for rule in ("worker-died", "run-hung"):
        plants[rule] = lambda folder, rule=rule: _by_signal(rule, folder)
    if can_be_mounted():
        plants["disk-filling"] = _by_disk
    measured, broken = [], []
    for rule, plant in plants.items():
        if only and rule not in only:
            continue
        folder = Path(tempfile.mkdtemp(prefix="alarms-"))
        try:
            planted_at, raised_at, is_in_run, others = plant(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if raised_at is None:
            broken.append(f"real {rule}: not found")
            print(f"real {rule:24} NOT FOUND, others: {others}", flush=True)
            continue
        delay_s = raised_at - planted_at
        print(f"real {rule:24} {delay_s:5.1f} s, in the run: {is_in_run}, others: {others}",
              flush=True)  # fmt: skip
        measured.append(
            measurement(f"{rule} until raised", "s", (delay_s,), {"clock": "real, CPU"})
        )
        broken += [f"real {rule}: also raised {one}" for one in others]
        if delay_s > 30:
            broken.append(f"real {rule}: found after {delay_s:.1f} s")
        if not is_in_run:
            broken.append(f"real {rule}: the run was not warned")
    return measured, broken


def real_healthy(minutes: float, *, has_neighbors: bool = True) -> tuple[dict[str, Any], list[str]]:
    """A training without a fault, and the alarms that were raised about it or the machine.

    has_neighbors: for the second half, programs run that want every CPU. Without them, the training
    has a single thread, since others may need the machine, and reads its samples itself: the step
    is so short that the way of a batch from a loader process takes more than half of the time.
    """
    folder = Path(tempfile.mkdtemp(prefix="alarms-"))
    recipe = () if has_neighbors else ("--use", "num_threads=1", "--use", "loader_workers=0")
    try:
        with monitored(folder) as watched, training(watched, *recipe) as run:
            began_s = time.monotonic()
            time.sleep(minutes * 30)
            neighbors = [
                subprocess.Popen([sys.executable, "-c", "while True: pass"])
                for _ in range(has_neighbors * (os.cpu_count() or 1))
            ]
            time.sleep(minutes * 30)
            for neighbor in neighbors:
                neighbor.kill()
                neighbor.wait()
            took_s = time.monotonic() - began_s
            # A training that had ended would raise nothing.
            is_running, newest = run.is_in_use(), last_line(run.metrics, Metric, b'"progress"')
            found = [one["finding"]["rule"] for one in watched.raised()]
            found += sorted(warned_rules(run) - {"busy-cpus"})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"real healthy training, {minutes:g} min: alarms: {found}", flush=True)
    broken = [f"real healthy: {rule}" for rule in found]
    if not is_running:
        broken.append("real healthy: the training has ended")
    details = {
        "minutes": round(took_s / 60, 2),
        "num_steps": getattr(newest, "step", None),
        "recipe": [word for word in recipe if word != "--use"],
        "num_neighbors": len(neighbors),
        "load_average": list(os.getloadavg()),
        "alarms": found,
    }
    return details, broken
