"""Whether `flatout bench limits` agrees with independent programs on this CPU and disk.

    python3 benchmarks/limits_check.py [--rounds 15] [--folder FOLDER]

Blocks of flatout's own measurement and of the independent one take turns within a fraction of a
second, so that other programs disturb both: loops of matrix products written by hand (torch, and
NumPy with its own BLAS), a STREAM copy and triad in C compiled here (gcc, OpenMP), and fio on the
disk. The ratio of a pair says more than each of them; the result is the median ratio.

What is computed is timed by two clocks: by the wall, and in seconds of CPU time per thread, which
leaves out what other programs take. On a quiet machine both agree; on a busy one, CPU time decides.
Waiting threads sleep here, or their waiting would count as work; those of NumPy's BLAS do not, so
NumPy has the wall clock only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_WAIT_POLICY"] = "passive"
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import numpy
import torch
from support.dated import Measurement, machine_text, measurement, read_machine, write_result

from flatout.bench.statistics import median_interval
from flatout.engine.bench.blocks import Roof, calls_per_block
from flatout.engine.bench.memory_roofs import memory_roofs
from flatout.engine.bench.products import product_roof
from flatout.system import disk_speed
from flatout.system.load import LoadWatch

RESULTS = Path(__file__).with_name("results")
BLOCK_S, SIZE = 0.1, 1024
# One more write than there are between two calls of fsync: fio makes none after the last one.
WRITE_BYTES, NUM_WRITES = 8 * 2**20, 32
ALLOWED = 0.10
CPU = torch.device("cpu")
NUM_THREADS = torch.get_num_threads()


class Rate(NamedTuple):
    """Work per second, and per second of CPU time of each thread; None if nothing is computed."""

    wall: float
    cpu: float | None = None


# Measures one block, or one file.
Side = Callable[[], Rate]

STREAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* STREAM_BYTES per array, BLOCKS timings of each kernel, one pass each: wall and CPU seconds. */
int main(int argc, char **argv) {
    size_t n = strtoull(argv[1], 0, 10) / sizeof(float);
    int blocks = atoi(argv[2]);
    /* Not malloc: 16 bytes behind a page, every vector would be in two lines of the cache. */
    float *a = aligned_alloc(64, 4 * n), *b = aligned_alloc(64, 4 * n);
    float *c = aligned_alloc(64, 4 * n);
    float scale = 3.0f;
    #pragma omp parallel for
    for (size_t i = 0; i < n; i++) { a[i] = 0; b[i] = 1; c[i] = 2; }
    for (int kind = 0; kind < 2; kind++) {
        printf(kind ? ", \"triad\": [" : "{\"copy\": [");
        for (int block = 0; block < blocks; block++) {
            double began = now(CLOCK_MONOTONIC), cpu_began = now(CLOCK_PROCESS_CPUTIME_ID);
            if (kind == 0) {
                #pragma omp parallel for
                for (size_t i = 0; i < n; i++) a[i] = b[i];
            } else {
                #pragma omp parallel for
                for (size_t i = 0; i < n; i++) a[i] = b[i] + scale * c[i];
            }
            double took = now(CLOCK_MONOTONIC) - began;
            double cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu_began;
            printf("%s[%.6g, %.6g]", block ? ", " : "", took, cpu);
        }
        printf("]");
    }
    printf("}\n");
    return a[n / 2] < 0;
}
"""


def by_hand(multiply: Callable[[], Any]) -> Side:
    """FLOP/s of a loop that lasts a block."""
    for _ in range(3):
        multiply()

    def block() -> Rate:
        num, began_s, cpu_began_s = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began_s < BLOCK_S:
            multiply()
            num += 1
        cpu_s = time.process_time() - cpu_began_s
        return rate(2 * SIZE**3 * num, time.perf_counter() - began_s, cpu_s)

    return block


def rate(work: float, wall_s: float, cpu_s: float) -> Rate:
    """Of work that all threads have shared."""
    return Rate(work / wall_s, work * NUM_THREADS / max(cpu_s, 1e-9))


def torch_by_hand(dtype: torch.dtype) -> Side:
    """A loop of torch's products."""
    a_NN, b_NN = (torch.randn(SIZE, SIZE).to(dtype) for _ in range(2))
    out_NN = torch.empty_like(a_NN)
    return by_hand(lambda: torch.matmul(a_NN, b_NN, out=out_NN))


def numpy_by_hand(dtype: str) -> Side:
    """A loop of NumPy's products."""
    a_NN, b_NN = (numpy.random.rand(SIZE, SIZE).astype(dtype) for _ in range(2))
    out_NN = numpy.empty_like(a_NN)
    block = by_hand(lambda: numpy.matmul(a_NN, b_NN, out=out_NN))
    return lambda: block()._replace(cpu=None)


def own_roof(roof: Roof) -> Side:
    """A block as flatout measures it."""
    assert isinstance(roof, Roof) and roof.work is not None
    num = calls_per_block(roof.run, BLOCK_S)
    work = num * roof.work

    def block() -> Rate:
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        roof.run(num)
        return rate(work, time.perf_counter() - began_s, time.process_time() - cpu_began_s)

    return block


def compiled_stream(folder: Path) -> Path | None:
    """STREAM, compiled; None without a compiler."""
    gcc = shutil.which("gcc")
    if gcc is None:
        return None
    source, program = folder / "stream.c", folder / "stream"
    source.write_text(STREAM)
    flags = ["-O3", "-march=native", "-fopenmp"]
    subprocess.run([gcc, *flags, "-o", str(program), str(source)], check=True)
    return program


def stream_in_c(program: Path, kind: str, num_bytes: int, num_passes: int) -> Side:
    """The mean over as many passes as a block of flatout's has, without the first."""

    num_arrays = {"copy": 2, "triad": 3}[kind]

    def block() -> Rate:
        argv = [str(program), str(num_bytes), str(num_passes + 1)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
        walls, cpus = zip(*json.loads(done.stdout)[kind][1:], strict=True)
        return rate(num_arrays * num_bytes * num_passes, sum(walls), sum(cpus))

    return block


def fio(folder: Path, kind: str) -> Side:
    """Bytes per second of one file with fio."""
    file = folder / "fio"
    num_bytes = WRITE_BYTES * (NUM_WRITES + (kind == "write"))

    def once() -> Rate:
        argv = ["fio", f"--name={kind}", f"--rw={kind}", "--output-format=json",
                f"--filename={file}", f"--size={num_bytes}", f"--bs={WRITE_BYTES}",
                "--ioengine=psync", "--invalidate=1", "--fallocate=none"]  # fmt: skip
        argv += [f"--fsync={NUM_WRITES}"] if kind == "write" else []
        done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
        job = json.loads(done.stdout)["jobs"][0]
        if kind == "write":
            file.unlink()
            assert job["sync"]["total_ios"] == 1, "fio has not called fsync"
        return Rate(num_bytes / (job["job_runtime"] / 1e3))

    return once


def own_disk(folder: Path, kind: str) -> Side:
    """Bytes per second of one file as flatout measures it."""
    num_bytes = WRITE_BYTES * NUM_WRITES
    return lambda: Rate(disk_speed.measure(str(folder), num_bytes, 1, 1)[kind][0])


def pairs(folder: Path) -> dict[tuple[str, str], tuple[Side, Side]]:
    """By quantity and program: flatout's side and the independent one."""
    found: dict[tuple[str, str], tuple[Side, Side]] = {}
    for kind, dtype in (("fp64", "float64"), ("fp32", "float32"), ("bf16", "bfloat16")):
        id = f"limits/matmul/{kind}"
        own = own_roof(product_roof(kind, CPU, BLOCK_S, {id: SIZE}))
        found[f"matmul/{kind}", "torch by hand"] = (own, torch_by_hand(getattr(torch, dtype)))
        if kind != "bf16":
            found[f"matmul/{kind}", "NumPy by hand"] = (own, numpy_by_hand(dtype))
    program = compiled_stream(folder)
    if program is not None:
        for roof in memory_roofs(CPU):
            kind = roof.id.rpartition("/")[2]
            num_bytes = int(roof.conditions["array_bytes"])
            other = stream_in_c(program, kind, num_bytes, calls_per_block(roof.run, BLOCK_S))
            found[f"memory/{kind}", "STREAM in C"] = (own_roof(roof), other)
    if shutil.which("fio"):
        for kind in ("write", "read"):
            found[f"disk/{kind}", "fio"] = (own_disk(folder, kind), fio(folder, kind))
    return found


def main() -> int:
    """Measures, prints the ratios, and writes the result; 1 if a ratio is certainly off by more."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, default=Path.home())
    options = parser.parse_args()
    machine, watch = read_machine(), LoadWatch()
    samples: dict[tuple[str, str], list[tuple[Rate, Rate]]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for key, (own, other) in pairs(Path(folder)).items():
            for number in range(options.rounds):
                # Each is first as often as the other.
                if number % 2:
                    second = other()
                    samples.setdefault(key, []).append((own(), second))
                else:
                    first = own()
                    samples.setdefault(key, []).append((first, other()))
    load = watch.load()
    is_busy = load is not None and load.is_busy
    print(f"{machine_text(machine)} · other programs: {load.text if load else 'unknown'}")
    print("by CPU time" if is_busy else "by the wall clock", end="\n\n")
    print(f"{'quantity':<14}{'against':<15}{'flatout':>10}{'other':>10}  ratio, 95 % interval")
    measurements: list[Measurement] = []
    num_apart = 0
    for (name, program), pairs_of in samples.items():
        is_cpu = is_busy and pairs_of[0][1].cpu is not None
        num_apart += report(name, program, pairs_of, is_cpu, measurements)
    print(f"\n{num_apart} of {len(samples)} certainly differ by more than 10 %.")
    details = {"rounds": options.rounds, "other_cpus": load.other_cpus if load else None}
    print(write_result("limits-check", machine, measurements, details, RESULTS))
    return int(num_apart > 0)


def report(
    name: str,
    program: str,
    pairs_of: list[tuple[Rate, Rate]],
    is_cpu: bool,
    measurements: list[Measurement],
) -> bool:
    """Prints a line and adds the measurements; whether the two sides are certainly apart."""
    ratios = {}
    for clock in ("wall", "cpu") if pairs_of[0][1].cpu is not None else ("wall",):
        owns, others = ([getattr(one[side], clock) for one in pairs_of] for side in (0, 1))
        ratio = median_interval([own / other for own, other in zip(owns, others, strict=True)])
        ratios[clock] = ratio
        unit = "flop/s" if "matmul" in name else "B/s"
        conditions = {"clock": clock, "ratio": [ratio.middle, ratio.low, ratio.high]}
        measurements.append(measurement(f"{name} flatout", unit, owns, conditions))
        measurements.append(measurement(f"{name} {program}", unit, others, conditions))
        if clock == ("cpu" if is_cpu else "wall"):
            middles = statistics.median(owns), statistics.median(others)
    ratio = ratios["cpu" if is_cpu else "wall"]
    is_apart = ratio.low > 1 + ALLOWED or ratio.high < 1 - ALLOWED
    print(
        f"{name:<14}{program:<15}{middles[0]:>10.3g}{middles[1]:>10.3g}"
        f"  {ratio.middle:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]{' !' if is_apart else ''}"
    )
    return is_apart


if __name__ == "__main__":
    sys.exit(main())
