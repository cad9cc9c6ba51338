"""A process of compare_trials.py: times blocks of matrix products on one thread.

    python benchmarks/compare_trials_child.py FACTOR BLOCKS

It imports no more than it needs, because hundreds of them are started.
"""

from __future__ import annotations

import json
import sys
import time

import numpy

BLOCK_S, SIZE = 0.02, 128

Samples = list[float]


def measured_blocks(factor: float, num_blocks: int) -> dict[str, Samples]:
    """Seconds per product that is counted, of each block: by the wall clock and of CPU time."""
    a, b = (numpy.random.rand(SIZE, SIZE).astype("float32") for _ in range(2))
    out = numpy.empty_like(a)
    number = 1
    while True:
        began = time.thread_time()
        _multiply(a, b, out, number)
        if time.thread_time() - began >= BLOCK_S / 2:
            break
        number *= 2
    found: dict[str, Samples] = {"wall": [], "cpu": []}
    # A whole number of products: 105 for each 100.
    number = max(20, round(number / 20) * 20)
    for _ in range(num_blocks):
        began, cpu_began = time.perf_counter(), time.thread_time()
        _multiply(a, b, out, round(number * factor))
        found["cpu"].append((time.thread_time() - cpu_began) / number)
        found["wall"].append((time.perf_counter() - began) / number)
    return found


def _multiply(a: numpy.ndarray, b: numpy.ndarray, out: numpy.ndarray, number: int) -> None:
    for _ in range(number):
        numpy.matmul(a, b, out=out)


if __name__ == "__main__":
    print(json.dumps(measured_blocks(float(sys.argv[1]), int(sys.argv[2]))))
