"""Whether `flatout bench limits` agrees with independent programs on this CPU and disk.

    python3 benchmarks/limits_check.py [--rounds 15] [--folder FOLDER]

Blocks of flatout's own measurement and of the independent one take turns within a fraction of a
second, so that other programs disturb both: loops of matrix products written by hand (torch, and
NumPy with its own BLAS), a STREAM copy and triad in C compiled here (gcc, OpenMP), and fio on the
disk. The ratio of a pair says more than each of them; the result is the median ratio.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import numpy
import torch
from support.dated import Measurement, machine_text, measurement, read_machine, write_result

from flatout.bench.statistics import median_interval
from flatout.engine.bench.blocks import Roof, calls_per_block, measured
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
# Measures one block, or one file.
Side = Callable[[], float]

STREAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* STREAM_BYTES per array, BLOCKS timings of each kernel, one pass each. */
int main(int argc, char **argv) {
    size_t n = strtoull(argv[1], 0, 10) / sizeof(float);
    int blocks = atoi(argv[2]);
    float *a = malloc(4 * n), *b = malloc(4 * n), *c = malloc(4 * n);
    float scale = 3.0f;
    #pragma omp parallel for
    for (size_t i = 0; i < n; i++) { a[i] = 0; b[i] = 1; c[i] = 2; }
    for (int kind = 0; kind < 2; kind++) {
        printf(kind ? ", \"triad\": [" : "{\"copy\": [");
        for (int block = 0; block < blocks; block++) {
            double began = now();
            if (kind == 0) {
                #pragma omp parallel for
                for (size_t i = 0; i < n; i++) a[i] = b[i];
            } else {
                #pragma omp parallel for
                for (size_t i = 0; i < n; i++) a[i] = b[i] + scale * c[i];
            }
            double took = now() - began;
            printf("%s%.6g", block ? ", " : "", (kind ? 3.0 : 2.0) * 4 * n / took);
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

    def block() -> float:
        num, began_s = 0, time.perf_counter()
        while time.perf_counter() - began_s < BLOCK_S:
            multiply()
            num += 1
        return 2 * SIZE**3 * num / (time.perf_counter() - began_s)

    return block


def torch_by_hand(dtype: torch.dtype) -> Side:
    """A loop of torch's products."""
    a_NN, b_NN = (torch.randn(SIZE, SIZE).to(dtype) for _ in range(2))
    out_NN = torch.empty_like(a_NN)
    return by_hand(lambda: torch.matmul(a_NN, b_NN, out=out_NN))


def numpy_by_hand(dtype: str) -> Side:
    """A loop of NumPy's products."""
    a_NN, b_NN = (numpy.random.rand(SIZE, SIZE).astype(dtype) for _ in range(2))
    out_NN = numpy.empty_like(a_NN)
    return by_hand(lambda: numpy.matmul(a_NN, b_NN, out=out_NN))


def own_roof(roof: Roof) -> Side:
    """A block as flatout measures it."""
    assert isinstance(roof, Roof)
    return lambda: measured([roof], 1, BLOCK_S)[0].samples[0]


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

    def block() -> float:
        argv = [str(program), str(num_bytes), str(num_passes + 1)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
        return statistics.harmonic_mean(json.loads(done.stdout)[kind][1:])

    return block


def fio(folder: Path, kind: str) -> Side:
    """Bytes per second of one file with fio."""
    file = folder / "fio"
    num_bytes = WRITE_BYTES * (NUM_WRITES + (kind == "write"))

    def once() -> float:
        argv = ["fio", f"--name={kind}", f"--rw={kind}", "--output-format=json",
                f"--filename={file}", f"--size={num_bytes}", f"--bs={WRITE_BYTES}",
                "--ioengine=psync", "--invalidate=1", "--refill_buffers"]  # fmt: skip
        argv += [f"--fsync={NUM_WRITES}"] if kind == "write" else []
        done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
        job = json.loads(done.stdout)["jobs"][0]
        if kind == "write":
            file.unlink()
            assert job["sync"]["total_ios"] == 1, "fio has not called fsync"
        return num_bytes / (job["job_runtime"] / 1e3)

    return once


def own_disk(folder: Path, kind: str) -> Side:
    """Bytes per second of one file as flatout measures it."""
    num_bytes = WRITE_BYTES * NUM_WRITES
    return lambda: disk_speed.measure(str(folder), num_bytes, 1, 1)[kind][0]


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
    samples: dict[tuple[str, str], list[tuple[float, float]]] = {}
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
    print(f"{machine_text(machine)} · other programs: {load.text if load else 'unknown'}\n")
    print(f"{'quantity':<14}{'against':<15}{'flatout':>10}{'other':>10}  ratio, 95 % interval")
    measurements: list[Measurement] = []
    num_apart = 0
    for (name, program), values in samples.items():
        ratio = median_interval([own / other for own, other in values])
        is_apart = ratio.low > 1 + ALLOWED or ratio.high < 1 - ALLOWED
        num_apart += is_apart
        owns, others = zip(*values, strict=True)
        middles = (statistics.median(owns), statistics.median(others))
        print(
            f"{name:<14}{program:<15}{middles[0]:>10.3g}{middles[1]:>10.3g}"
            f"  {ratio.middle:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]{' !' if is_apart else ''}"
        )
        unit = "flop/s" if "matmul" in name else "B/s"
        conditions = {"ratio": [ratio.middle, ratio.low, ratio.high]}
        measurements.append(measurement(f"{name} flatout", unit, owns, conditions))
        measurements.append(measurement(f"{name} {program}", unit, others, conditions))
    print(f"\n{num_apart} of {len(samples)} certainly differ by more than 10 %.")
    details = {"rounds": options.rounds, "other_cpus": load.other_cpus if load else None}
    print(write_result("limits-check", machine, measurements, details, RESULTS))
    return int(num_apart > 0)


if __name__ == "__main__":
    sys.exit(main())
