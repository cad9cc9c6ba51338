"""Host memory, not GPU memory, was too small for an allocation.

**Checks.** Allocations that fail on the CPU: Python, NumPy, torch, TensorFlow, C++, `fork`, and
servers that compare a model's size with memory.

**Why it matters.** Unlike with the OOM killer, the failing call raises an error. The limit may be
physical memory, a cgroup, `ulimit -v`, or Windows' commit limit.

**Example.** `DefaultCPUAllocator: can't allocate memory: you tried to allocate 25769803776 bytes.
Error code 12 (Cannot allocate memory)`

**Fix.** Load data lazily, use fewer workers or a smaller data type, or provide more memory; by
hand.

**Source.** pytorch/pytorch:c10/core/impl/alloc_cpu.cpp; numpy/numpy:numpy/_core/_exceptions.py.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("cpu-allocation-failed",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="host-memory-exhausted",
        severity="error",
        problem=("Host memory, not GPU memory, was too small for an allocation."),
        because="an allocation in host memory failed",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=(
                    "load data lazily, use fewer loader workers or a smaller data type,"
                    " or give the machine, the container or the job more memory"
                ),
                commands=(
                    "free -h",
                    "ulimit -v",
                ),
                where="here",
            ),
        ),
        confirm=(
            "free -h",
            "cat /sys/fs/cgroup/memory.max",
        ),
    )


RULE = Rule(
    check=check,
    prior=50,
    signatures=(
        signature(
            "cpu-allocation-failed",
            "DefaultCPUAllocator",
            "ArrayMemoryError",
            "Unable to allocate",
            "MemoryError",
            "std::bad_alloc",
            "Cannot allocate memory",
            "WinError 8",
            "more system memory",
            "OOM when allocating tensor",
            "not enough memory",
            pattern=r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|"
            r"Unable to allocate [\d.]+ [KMGTP]iB for an array|"
            r"^(?:\S{0,40}\.)?_?(?:Array)?MemoryError\b|bad_alloc(?!.{0,20}(?:CUDA|"
            r"out_of_memory))|(?:Errno 12|fork|OSError|mmap|"
            r"os error 12).{0,40}Cannot allocate memory|WinError 8\]|"
            r"requires more system memory|"
            r"OOM when allocating tensor.{0,400}(?:device:CPU|allocator (?:cpu|"
            r"mklcpu))|alloc_cpu\.cpp.{0,60}not enough memory",
        ),
    ),
)
