"""How long the doctor takes, compared with similar tools, and what a long text costs.

    python3 benchmarks/doctor_times.py [--rounds 7] [--megabytes 200] [--rivals FOLDER]

Whole processes are timed, from start to end, in turns: each round runs every command once, in a new
random order. The rivals are installed from the package index into environments of their own, in
FOLDER (default: a temporary one, which is removed); without a network they are left out, and
named.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.dated import Measurement, measurement, read_machine, write_result
from support.log_noise import noise_line

RESULTS = Path(__file__).with_name("results")
SEED = 20261121
# Each with its package and the command that is timed.
RIVALS = {
    "env-doctor": ("env-doctor", ("env-doctor", "check")),
    "cuda-doctor": ("cuda-doctor", ("cuda-doctor", "diagnose")),
}
TIMEOUT_S = 120.0
MOST_TEXT_S = 20.0
MOST_TEXT_BYTES = 300 * 2**20
_CAUSE = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"


def own_commands(log: Path) -> dict[str, list[str]]:
    """flatout's commands, by their names in the table."""
    flatout = [sys.executable, "-m", "flatout"]
    return {
        "flatout --help": [*flatout, "--help"],
        "flatout explain FILE": [*flatout, "explain", str(log)],
        "flatout doctor": [*flatout, "doctor", "--fail-on", "error"],
        "torch.utils.collect_env": [sys.executable, "-m", "torch.utils.collect_env"],
    }


def rival_commands(folder: Path) -> dict[str, list[str]]:
    """The commands of those rivals that could be installed."""
    found = {}
    for name, (package, command) in RIVALS.items():
        place = folder / name
        if not place.exists():
            subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
            bin_folder = place / ("Scripts" if sys.platform == "win32" else "bin")
            done = subprocess.run(
                [str(bin_folder / "python"), "-m", "pip", "install", "--quiet", package],
                capture_output=True,
                text=True,
            )
            if done.returncode != 0:
                print(f"{name}: not installed: {done.stderr.strip()[-200:]}", file=sys.stderr)
                continue
        bin_folder = place / ("Scripts" if sys.platform == "win32" else "bin")
        found[name] = [str(bin_folder / command[0]), *command[1:]]
    return found


def timed(argv: Sequence[str]) -> tuple[float, float]:
    """Wall seconds of a whole process, and CPU seconds of it and its children.

    Its findings are not judged. CPU time is comparable on a busy machine, too.
    """
    began, before = time.perf_counter(), os.times()
    subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, timeout=TIMEOUT_S)  # fmt: skip
    after = os.times()
    used = after.children_user + after.children_system
    used -= before.children_user + before.children_system
    return time.perf_counter() - began, used


def peak_of(argv: Sequence[str]) -> tuple[float, float, int]:
    """Wall seconds, CPU seconds and peak bytes of memory of a process."""
    import psutil

    began, cpu_s = time.perf_counter(), 0.0
    process = psutil.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        try:
            reported = process.memory_info()
            peak = max(peak, getattr(reported, "peak_wset", reported.rss))
            times = process.cpu_times()
            cpu_s = times.user + times.system
        except psutil.Error:
            break
        time.sleep(0.02)
    return time.perf_counter() - began, cpu_s, peak


def write_text(path: Path, num_bytes: int) -> None:
    """Writes a log of that size, of ordinary output, with a cause near its end."""
    draw = random.Random(SEED)
    lines = [noise_line(draw) for _ in range(20_000)]
    block = "\n".join(lines).encode() + b"\n"
    with open(path, "wb") as file:
        for _ in range(num_bytes // len(block) + 1):
            file.write(block)
        file.write(_CAUSE.encode())


def explain_long(folder: Path, megabytes: int) -> list[Measurement]:
    """Time and peak memory of `flatout explain` on a long text."""
    path = folder / "long.log"
    write_text(path, megabytes * 2**20)
    wall_s, cpu_s, peak = peak_of([sys.executable, "-m", "flatout", "explain", str(path)])
    conditions = {"megabytes": megabytes}
    return [
        measurement("explain of a long text", "s", (wall_s,), {**conditions, "time": "wall"}),
        measurement("explain of a long text", "s", (cpu_s,), {**conditions, "time": "cpu"}),
        measurement("peak memory of it", "B", (float(peak),), conditions),
    ]


def rounds(commands: dict[str, list[str]], num_rounds: int) -> list[Measurement]:
    """Seconds of each command, in turns, after one round that is not counted."""
    draw = random.Random(SEED)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for number in range(num_rounds + 1):
        for name in draw.sample(sorted(commands), len(commands)):
            found = timed(commands[name])
            if number:
                samples[name].append(found)
    return [
        measurement(name, "s", tuple(pair[kind] for pair in pairs), {"time": ("wall", "cpu")[kind]})
        for name, pairs in samples.items()
        for kind in (0, 1)
    ]


def main(arguments: Sequence[str]) -> int:
    """Prints and writes the times; 1 if the long text cost too much."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rivals", type=Path, help="folder for the environments of rivals")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        log = folder / "small.log"
        log.write_text("epoch 1\n" * 200 + _CAUSE, encoding="utf-8")
        rivals = rival_commands(asked.rivals or folder)
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        found = rounds({**own_commands(log), **rivals}, asked.rounds)
        long = explain_long(folder, asked.megabytes)
    for one in found:
        low, high = one.spread or (one.value, one.value)
        spread = f"({low:.2f} to {high:.2f})"
        print(f"{one.name:<26}{one.conditions['time']:<5}{one.value:8.2f} s  {spread}")
    wall_s, cpu_s, peak = (one.value for one in long)
    long_text = f"{wall_s:8.2f} s  {cpu_s:.2f} s of CPU time, {peak / 2**20:.0f} MiB at peak"
    print(f"explain, {asked.megabytes} MB{'':<12}{long_text}")
    details = {"load_before": load, "left_out": sorted(set(RIVALS) - set(rivals))}
    print(write_result("doctor-times", read_machine(), [*found, *long], details, asked.out))
    is_small = asked.megabytes <= 200
    # One thread does it: on a quiet machine both times are the same.
    return int(is_small and (cpu_s > MOST_TEXT_S or peak > MOST_TEXT_BYTES))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
