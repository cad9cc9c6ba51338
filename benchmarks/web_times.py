"""How quickly `flatout web` answers where there is much to show, and how much memory it takes.

    python benchmarks/web_times.py [--runs 1000] [--lines 5000000] [--days 30] [--rounds 7]

A state folder is filled with finished runs, one with very long metrics, and samples of the machine
at the interval of `flatout monitor`. The server is the command itself, in a process of its own; its
pages are requested one after the other: first right after it has printed its address (start: how
long that takes), then while the long metrics are indexed, then again and again. A request is timed
until its last byte.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.dated import Measurement, measurement, read_machine, write_result
from support.web_runs import big_metrics, new_run, started, whole_run

from flatout.schema.machine_sample import GpuSample, HostSample, MachineSample
from flatout.system.store.daily_files import monitor_folder

RESULTS = Path(__file__).with_name("results")
SRC = Path(__file__).resolve().parents[1] / "src"
PAGE_GOAL_S, CHART_GOAL_S, MEMORY_GOAL_BYTES = 0.3, 0.5, 300 * 10**6
SAMPLE_EVERY_S = 2
TIMEOUT_S = 120.0
PAGES = ("home", "runs", "runs?sort=-accuracy", "runs/digits-0001", "live?hours=24")
LONG = "chart.json?run=long-0001&panel=loss"
CHARTS = ("runs/long-0001", LONG, f"{LONG}&from=1000&to=2000",
          "live/charts.json?hours=720&panel=utilization")  # fmt: skip


def fill(num_runs: int, num_lines: int, num_days: int) -> None:
    """Writes the runs and the samples into the state folder."""
    for number in range(1, num_runs):
        whole_run(f"digits-{number:04d}", 0.5 + 0.4 * number / num_runs)
    big_metrics(new_run("long-0001", [started()]), num_lines)
    sample = MachineSample(
        at=0.0, source="nvml",
        host=HostSample(utilization=0.25, memory_bytes=16 << 30, available_bytes=12 << 30),
        gpus=(GpuSample(index=0, name="A GPU", utilization=0.5, power_w=200.0),),
    )  # fmt: skip
    line = msgspec.json.encode(sample).decode() + "\n"
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    monitor_folder().mkdir(parents=True)
    for number in range(1, num_days + 1):
        day = today - timedelta(days=number)
        with open(monitor_folder() / f"{day.date()}.jsonl", "w", encoding="utf-8") as file:
            for second in range(0, 86_400, SAMPLE_EVERY_S):
                file.write(line.replace('"at":0.0', f'"at":{day.timestamp() + second}', 1))


@contextmanager
def server(state: Path) -> Iterator[tuple[str, float, list[int]]]:
    """The address of a server, after how long it had it, and the most memory that it has had."""
    argv = [sys.executable, "-P", "-m", "flatout", "web", "--read-only", "--port", "0", "--json"]
    environment = {**os.environ, "FLATOUT_STATE": str(state), "PYTHONPATH": str(SRC)}
    began = time.perf_counter()
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text, peak = "", [0]
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            if not line:
                raise SystemExit("flatout web has ended")
            text += line
        start_s = time.perf_counter() - began
        threading.Thread(target=watch_memory, args=(process.pid, peak), daemon=True).start()
        try:
            yield json.loads(text)["url"], start_s, peak
        finally:
            process.terminate()


def watch_memory(pid: int, peak: list[int]) -> None:
    """Keeps the most memory that a process has, until it ends."""
    try:
        process = psutil.Process(pid)
        while True:
            peak[0] = max(peak[0], process.memory_info().rss)
            time.sleep(0.02)
    except psutil.Error:
        return


def timed(address: str) -> tuple[float, bytes]:
    """Seconds of a request, and its answer."""
    began = time.perf_counter()
    with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
        content = answer.read()
    return time.perf_counter() - began, content


def measure(address: str, num_rounds: int) -> tuple[list[Measurement], bool]:
    """The times, and whether each median is within its goal."""
    found: list[Measurement] = []
    is_reached = True

    def keep(path: str, when: str, samples: Sequence[float], goal_s: float) -> None:
        nonlocal is_reached
        one = measurement(path, "s", tuple(samples), {"when": when, "goal_s": goal_s})
        found.append(one)
        is_reached = is_reached and one.value <= goal_s
        most = 1000 * max(samples)
        print(f"{path:<54}{when:<14}{1000 * one.value:7.0f} ms  (at most {most:.0f})")

    for path in PAGES:
        keep(path, "first", (timed(f"{address}{path}")[0],), PAGE_GOAL_S)
    for path in (LONG, CHARTS[-1]):
        samples, share = [], 0.0
        while share < 1:
            seconds, content = timed(f"{address}{path}")
            samples.append(seconds)
            document: dict[str, Any] = json.loads(content)
            charts = document["charts"]
            # The samples are indexed in the background.
            share = document.get("share_read", charts[0]["share_read"] if charts else 0.0)
        keep(path, "being indexed", samples, CHART_GOAL_S)
    for path in (*PAGES, *CHARTS):
        goal_s = PAGE_GOAL_S if path in PAGES else CHART_GOAL_S
        keep(path, "again", [timed(f"{address}{path}")[0] for _ in range(num_rounds)], goal_s)
    return found, is_reached


def main(arguments: Sequence[str]) -> int:
    """Prints and writes the times; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--lines", type=int, default=5_000_000, help="of the long run's metrics")
    parser.add_argument("--days", type=int, default=30, help="of samples of the machine")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args(arguments)
    machine = read_machine()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FLATOUT_STATE"] = folder
        fill(asked.runs, asked.lines, asked.days)
        with server(Path(folder)) as (address, start_s, peak):
            found, is_reached = measure(address, asked.rounds)
    sizes = {"runs": asked.runs, "lines": asked.lines, "days": asked.days}
    found.append(measurement("start", "s", (start_s,), sizes))
    print(f"{'start':<68}{1000 * start_s:7.0f} ms")
    found.append(measurement("peak memory", "B", (float(peak[0]),), sizes))
    print(f"{'peak memory':<68}{peak[0] / 10**6:7.0f} MB")
    print(write_result("web-times", machine, found, {"sizes": sizes}, asked.out))
    return int(not is_reached or peak[0] > MEMORY_GOAL_BYTES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
