"""How much CPU time `flatout top`, and the recorder of a run's samples, take.

    python benchmarks/top_cost.py [--seconds 60]

Each runs at its usual interval: `top` once a second on a terminal (80x24 and 200x60), the recorder
every two seconds. NVML is a library with two GPUs compiled for it (tests/support/fake_nvml.c), so
that the process that reads it works as with a driver, whose own cost is not in the numbers; `demo`
and a machine without GPUs are measured, too. Counted is the processor time of the process and its
children in windows of ten seconds, after the first ten; what other programs do hardly matters.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from disturbance import Disturbance
from support import dated
from support.fake_nvml import compile_nvml

RESULTS = Path(__file__).with_name("results")
SRC = Path(__file__).resolve().parents[1] / "src"
WINDOW_S = 10.0
# Of one CPU.
TOP_GOAL, RECORDER_GOAL = 0.02, 0.01


def main() -> int:
    """Measures, prints a table, writes the result; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = dated.read_machine()
    print(f"machine   {dated.machine_text(machine)}")
    measurements, is_reached = [], True
    with tempfile.TemporaryDirectory() as folder:
        library = str(compile_nvml(Path(folder) / "nvml"))
        for name, size, words, has_gpus in (
            ("top 80x24, two GPUs", (80, 24), ["-m", "flatout", "top"], True),
            ("top 200x60, two GPUs", (200, 60), ["-m", "flatout", "top"], True),
            ("top 80x24, no GPU", (80, 24), ["-m", "flatout", "top"], False),
            ("top 80x24, demo", (80, 24), ["-m", "flatout", "top", "--demo"], False),
            ("recorder, two GPUs", None, ["-m", "flatout.monitor.recorder", folder], True),
        ):
            environment = {**os.environ, "PYTHONPATH": str(SRC), "FLATOUT_STATE": folder}
            environment |= {"LD_LIBRARY_PATH": library} if has_gpus else {}
            with Disturbance() as disturbance:
                shares = tuple(cpu_shares(words, environment, size, options.seconds))
            goal = RECORDER_GOAL if size is None else TOP_GOAL
            one = dated.measurement(
                name, "share", shares,
                {"goal": goal, "window_s": WINDOW_S, "other_cpus": round(disturbance.share, 3)},
            )  # fmt: skip
            measurements.append(one)
            is_reached &= one.value < goal
            print(f"{name:24}{100 * one.value:6.2f} % of a CPU "
                  f"({100 * min(shares):.2f} to {100 * max(shares):.2f}), "
                  f"goal < {100 * goal:.0f} %", flush=True)  # fmt: skip
    path = dated.write_result("top-cost", machine, measurements, {}, options.out)
    print(f"written   {path}")
    return 0 if is_reached else 1


def cpu_shares(
    words: list[str], environment: dict[str, str], size: tuple[int, int] | None, seconds: float
) -> Iterator[float]:
    """The processor time of a program in each window, as a share of one CPU."""
    with started([sys.executable, "-P", *words], environment, size) as process:
        time.sleep(WINDOW_S)
        before, at = used_s(process), time.monotonic()
        for _ in range(max(1, round(seconds / WINDOW_S))):
            time.sleep(WINDOW_S)
            now, now_at = used_s(process), time.monotonic()
            yield (now - before) / (now_at - at)
            before, at = now, now_at


def used_s(process: psutil.Process) -> float:
    """Processor time of a process and its children that run."""
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


@contextmanager
def started(
    words: list[str], environment: dict[str, str], size: tuple[int, int] | None
) -> Iterator[psutil.Process]:
    """A program, on a terminal of that size or with pipes; its output is read and dropped."""
    if size is None:
        ours = theirs = None
    else:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        environment = {**environment, "TERM": "xterm-256color"}
        threading.Thread(target=drain, args=(ours,), daemon=True).start()
    pipe = subprocess.PIPE if theirs is None else theirs
    child = subprocess.Popen(
        words, env=environment, stdin=pipe, stdout=subprocess.DEVNULL if theirs is None else theirs,
        stderr=theirs, start_new_session=True,
    )  # fmt: skip
    try:
        yield psutil.Process(child.pid)
        if child.poll() is not None:
            raise RuntimeError(f"{words} has ended with exit code {child.returncode}")
    finally:
        child.kill()
        child.wait()
        for descriptor in (ours, theirs):
            if descriptor is not None:
                os.close(descriptor)


def drain(terminal: int) -> None:
    """Reads what is shown, as a terminal would."""
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main())
