"""`flatout bench limits` and what other commands ask of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec

from flatout.bench.effort import FULL, QUICK
from flatout.bench.limits import Doing, gpu_of, is_busy, measure_limits
from flatout.bench.run_rows import BUSY_LIMITS, NO_LIMITS
from flatout.bench.statistics import median_interval, spanning
from flatout.compat.torch_needed import require_torch
from flatout.errors import UsageError
from flatout.schema.bench import BenchFile, BenchRow
from flatout.schema.machine import Machine
from flatout.schema.tuning import Interval
from flatout.system import atomic_files
from flatout.system.host_system import LocalSystem
from flatout.system.probes.machine import probe
from flatout.system.process_env import visible_gpus
from flatout.system.store import limits_store
from flatout.system.store.interpreters import resolve_with_flatout

_DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")


class LimitsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of `flatout bench limits` as data.

    is_again: measure, although there is a stored result. out: a file for the result.
    """

    device: str = "auto"
    is_quick: bool = False
    is_again: bool = False
    out: str | None = None
    python: str | None = None
    env: str | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The result. is_new: measured just now. kept: why the stored result was not replaced."""

    file: BenchFile
    is_new: bool
    path: str
    kept: str | None = None


def limits(request: LimitsRequest) -> Iterator[Doing | Limits]:
    """Finds or measures the limits of this machine; the last value is the result.

    Raises:
        UsageError: bad-device, device-not-here, torch-not-installed, and for the interpreter.
        RunFailed: bench-worker-died.
    """
    _check_device(request.device)
    python, version = resolve_with_flatout(request.python, request.env)
    machine = probe(LocalSystem(), python)
    require_torch(machine, version)
    device = resolved_device(machine, request.device)
    key = _key(machine, device)
    stored = limits_store.recall_limits(key)
    path = str(limits_store.limits_path(key))
    if stored is not None and not _must_measure(stored, request):
        result = Limits(file=stored, is_new=False, path=path)
    else:
        effort = QUICK if request.is_quick else FULL
        new = None
        for value in measure_limits(python, machine, device, effort):
            if isinstance(value, Doing):
                yield value
            else:
                new = value
        assert new is not None
        kept = why_kept(stored, new)
        if kept is None:
            limits_store.keep_limits(key, new)
        result = Limits(file=new, is_new=True, path=path, kept=kept)
    if request.out is not None:
        atomic_files.write_json(Path(request.out).expanduser(), result.file)
    yield result


def known_limits(machine: Machine, device: str) -> BenchFile | None:
    """The stored limits of a machine's device under its torch; None if none were measured.

    Args:
        machine: with the frameworks of the interpreter that trains.
        device: `auto`, `cpu` or `cuda:N`.
    """
    return limits_store.recall_limits(_key(machine, resolved_device(machine, device)))


def known_limit(limits: BenchFile, id: str) -> float | None:
    """The median of a row, such as `limits/matmul/bf16`; None if it was not measured."""
    row = next((row for row in limits.rows if row.id == id), None)
    return median(row.samples) if row is not None and row.samples else None


def usable_limits(machine: Machine, device: str) -> BenchFile | str:
    """The stored limits that a speed can be a share of, or why there are none."""
    found = known_limits(machine, device)
    if found is None:
        return NO_LIMITS
    # Too low: a step on a quiet machine would be beyond them.
    if resolved_device(machine, device) == "cpu" and is_busy(found):
        return BUSY_LIMITS
    return found


def interval_of(row: BenchRow, *, is_busy: bool, num_processes: int) -> Interval | None:
    """The median with its 95 % interval; None for what was not measured, or only once.

    is_busy: beside other programs samples depend on each other, and all may be too low, so the
    interval covers all of them.
    num_processes: those that measured; 0 if unknown.
    """
    if len(row.samples) < 2 or min(row.samples) <= 0:
        return None
    interval = median_interval(row.samples, num_processes)
    return spanning(interval, row.samples) if is_busy else interval


def why_kept(stored: BenchFile | None, new: BenchFile) -> str | None:
    """Why the stored limits stay although there are new ones; None if they are replaced."""
    if stored is None:
        return None
    if is_busy(new):
        return "the stored limits stay: these were measured while other programs ran"
    if _is_quick(new) and not _is_quick(stored) and not is_busy(stored):
        return "the stored limits stay: they were measured without --quick"
    return None


def resolved_device(machine: Machine, text: str) -> str:
    """`cpu` or `cuda:N` from what a user typed."""
    if text == "auto":
        torch = machine.framework("torch")
        is_cuda = torch is not None and torch.build != "cpu" and bool(machine.gpus)
        return "cuda:0" if is_cuda else "cpu"
    return "cuda:0" if text == "cuda" else text


def _check_device(text: str) -> None:
    if _DEVICE.fullmatch(text) is None:
        raise UsageError(
            "bad-device",
            f"`--device {text}` is not a device.",
            fix="use auto, cpu, cuda or cuda:1",
        )


def _must_measure(stored: BenchFile, request: LimitsRequest) -> bool:
    return request.is_again or (_is_quick(stored) and not request.is_quick)


def _is_quick(limits: BenchFile) -> bool:
    return limits.settings.get("effort") == QUICK.name


def _key(machine: Machine, device: str) -> str:
    """Everything on which the limits depend: another driver or torch is measured again."""
    torch = machine.framework("torch")
    host, cpu = machine.host, machine.cpu
    gpu = gpu_of(machine, device)
    return limits_store.limits_key(
        host.os, str(host.wsl), host.container, cpu.name, str(cpu.num_threads), device,
        gpu.name if gpu else None, gpu.uuid if gpu else None, machine.driver, visible_gpus(),
        torch.version if torch else None,
    )  # fmt: skip
