"""Measures the limits of this machine: children that each measure everything, one after another."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import msgspec

import flatout
from flatout.bench.disk_rows import disk_rows, measured_folders
from flatout.bench.effort import Effort
from flatout.bench.peaks import with_peak
from flatout.errors import FlatoutError, RunFailed, UsageError
from flatout.schema.bench import BenchFile, BenchRow, DeviceState
from flatout.schema.finding import Finding
from flatout.schema.limits_protocol import (
    PINNED,
    AllReduceRequest,
    AnyRoofReply,
    Measured,
    Measuring,
    Ready,
    RoofRequest,
)
from flatout.schema.machine import Gpu, Machine
from flatout.schema.placement import visible_gpu
from flatout.schema.predict_protocol import ProcessFailed
from flatout.schema.tuning import Load
from flatout.system.clock import elapsed_s, sleep_s
from flatout.system.command import run
from flatout.system.device_state import DeviceWatch, device_state
from flatout.system.json_process import JsonProcess, ProcessEnded
from flatout.system.load import LoadWatch
from flatout.system.process_env import (
    is_bus_order,
    loopback_variables,
    visible_gpus,
    worker_environment,
)
from flatout.system.worker_process import ending_text

_ROOFS, _ALL_REDUCE = "flatout.engine.bench.limits_worker", "flatout.engine.bench.all_reduce"
# Long enough for the system's counters, which count hundredths of a second.
_LOOK_S = 0.3
_START_TIMEOUT_S = 120.0
_NUM_GLOO = 2
# Bandwidth and latency.
_NUM_REDUCED = 2


class Doing(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured now; done: the share of the whole that is behind us."""

    what: str
    done: float


class _Rows:
    """Rows, with the samples of all processes."""

    def __init__(self) -> None:
        self._rows: dict[str, BenchRow] = {}
        # Of matrices, as the first process has chosen them, for those that follow.
        self.sizes: dict[str, int] = {}

    def add(self, row: BenchRow) -> None:
        """Adds a row, or its samples to those of the row with its id."""
        known = self._rows.get(row.id)
        if known is None or (known.unread and row.samples):
            self._rows[row.id] = row
            if "size" in row.conditions:
                self.sizes[row.id] = int(row.conditions["size"])
        elif row.samples:
            samples = known.samples + row.samples
            self._rows[row.id] = msgspec.structs.replace(known, samples=samples)

    def all(self) -> tuple[BenchRow, ...]:
        """All rows, in the order in which they were first added."""
        return tuple(self._rows.values())


def measure_limits(
    python: str, machine: Machine, device: str, effort: Effort
) -> Iterator[Doing | BenchFile]:
    """Measures; the last value is the file.

    Args:
        python: an interpreter with torch and this flatout.
        machine: its facts.
        device: `cpu` or `cuda:N`.
        effort: how much.

    Raises:
        UsageError: device-not-here.
        RunFailed: bench-worker-died.
    """
    rows = _Rows()
    uuid = uuid_of(machine, device)
    began = device_state(uuid, other_cpus_now())
    watch = LoadWatch()
    ready = None
    with DeviceWatch(uuid) as states:
        for value in _all_rows(python, machine, device, effort, rows.sizes):
            if isinstance(value, Doing):
                yield value
            elif isinstance(value, Ready):
                ready = value
            else:
                rows.add(value)
        load = watch.load()
        ended = states.state(load.other_cpus if load else None)
    assert ready is not None
    name = ready.name or machine.cpu.name or ""
    settings = {"device": device, "name": name}
    yield BenchFile(
        kind="limits",
        flatout=flatout.__version__,
        # Whose home it is in is nobody's business.
        machine=msgspec.structs.replace(machine, python=None),
        versions={"torch": ready.torch, "python": machine.host.python or "unknown"},
        settings={**settings, **effort.settings},
        began=began,
        ended=ended,
        rows=rows.all(),
        warnings=tuple(warnings_of(began, ended, machine, device)),
    )


def _all_rows(
    python: str, machine: Machine, device: str, effort: Effort, sizes: Mapping[str, int]
) -> Iterator[Doing | Ready | BenchRow]:
    """Everything that is measured.

    sizes: of matrices; those that earlier rows have chosen.
    """
    num_steps = effort.num_processes + 3
    ready: Ready | None = None
    for number in range(effort.num_processes):
        request = RoofRequest(
            device=device,
            num_blocks=effort.num_blocks,
            block_s=effort.block_s,
            call_s=effort.call_s,
            sizes=dict(sizes),
            is_last=number + 1 == effort.num_processes,
        )
        where = f"process {number + 1} of {effort.num_processes}: "
        yield Doing(what=f"{where}starting torch", done=number / num_steps)
        for reply in _roof_replies(python, request):
            if isinstance(reply, Ready):
                ready = reply
                yield ready
            elif isinstance(reply, Measuring):
                yield Doing(what=where + reply.what, done=number / num_steps)
            else:
                assert ready is not None
                yield _described(reply.row, device, ready, machine)
    assert ready is not None
    yield Doing(what="all-reduce", done=effort.num_processes / num_steps)
    yield from _all_reduce_rows(python, device, ready, effort)
    folders = measured_folders()
    for number, folder in enumerate(folders):
        done = (effort.num_processes + 1 + number / len(folders)) / num_steps
        yield Doing(what=f"disk: {folder.path}", done=done)
        yield from disk_rows(folder, effort)
    yield Doing(what="starting Python", done=(num_steps - 1) / num_steps)
    yield from _start_rows(python, effort)


def load_of(limits: BenchFile) -> Load | None:
    """The load of others: the larger one of before and during the measurement."""
    loads = [
        state.other_cpus for state in (limits.began, limits.ended) if state.other_cpus is not None
    ]
    num_cpus = limits.machine.cpu.num_threads
    return Load(other_cpus=max(loads), num_cpus=num_cpus) if loads and num_cpus else None


def is_busy(limits: BenchFile) -> bool:
    """Whether other programs have made these limits lower than they are."""
    load = load_of(limits)
    return load is not None and load.is_busy


def warnings_of(
    began: DeviceState, ended: DeviceState, machine: Machine, device: str
) -> Iterator[str]:
    """What makes the numbers doubtful."""
    num_cpus = machine.cpu.num_threads
    loads = [one.other_cpus for one in (began, ended) if one.other_cpus is not None]
    if loads and num_cpus:
        load = Load(other_cpus=max(loads), num_cpus=num_cpus)
        if load.is_busy:
            yield f"other programs kept {load.text} busy: without them it is faster"
    throttles = dict.fromkeys((*began.throttles, *ended.throttles))
    if throttles:
        yield f"the GPU was throttled: {', '.join(throttles)}"
    if began.is_on_battery or ended.is_on_battery:
        yield "this computer ran on its battery"
    gpu = gpu_of(machine, device)
    if gpu is not None and gpu.num_processes:
        yield "other programs were using the GPU"


def other_cpus_now() -> float | None:
    """CPUs that other programs keep busy at the moment; None if unreadable."""
    watch = LoadWatch()
    sleep_s(_LOOK_S)
    load = watch.load()
    return load.other_cpus if load else None


def gpu_of(machine: Machine, device: str) -> Gpu | None:
    """The GPU of this machine that CUDA calls so; None for the CPU, or if unknown."""
    if not device.startswith("cuda"):
        return None
    number = int(device.partition(":")[2] or 0)
    return visible_gpu(machine, number, visible_gpus(), is_bus_order=is_bus_order())


def uuid_of(machine: Machine, device: str) -> str | None:
    """The UUID of a GPU; None for the CPU, or if unknown."""
    gpu = gpu_of(machine, device)
    return gpu.uuid if gpu is not None else None


def _roof_replies(python: str, request: RoofRequest) -> Iterator[Ready | Measuring | Measured]:
    is_pinning = False
    with JsonProcess(python, _ROOFS) as process:
        try:
            for reply in process.ask(request, AnyRoofReply):
                if isinstance(reply, ProcessFailed):
                    raise error_from(reply.finding, reply.exit_code, reply.printed)
                is_pinning = isinstance(reply, Measuring) and reply.what == PINNED
                yield reply
        except ProcessEnded as ended:
            if is_pinning:
                # The kernel may kill a process that pins much; everything else has been measured.
                reason = f"the measuring process {ending_text(ended.exit_code)} while it pinned"
                yield Measured(row=BenchRow(
                    id="limits/pinned", label="pinned memory, at most", unit="B", unread=reason,
                ))  # fmt: skip
                return
            raise RunFailed(
                "bench-worker-died",
                "the measuring process exited unexpectedly.",
                because=f"it {ending_text(ended.exit_code)}",
                fix="close programs that need memory, or measure less: --quick",
                printed=process.printed(),
            ) from ended


def error_from(finding: Finding, exit_code: int, printed: str) -> FlatoutError:
    """The error that a child reported, to be raised here."""
    fix = finding.fixes[0].text if finding.fixes else f"flatout explain {finding.rule}"
    if exit_code == UsageError.exit_code:
        return UsageError(finding.rule, finding.problem, because=finding.because, fix=fix)
    return RunFailed(
        finding.rule, finding.problem, because=finding.because, fix=fix, printed=printed
    )


def _described(row: BenchRow, device: str, ready: Ready, machine: Machine) -> BenchRow:
    """The row with the device, and the maker's peak beside it."""
    conditions = {"device": device}
    if device == "cpu":
        matters = [one for one in machine.cpu.features if one.startswith(("amx", "avx512_"))]
        conditions["threads"] = str(ready.num_threads)
        conditions["instructions"] = " ".join([ready.instructions or "unknown", *matters])
    row = msgspec.structs.replace(row, conditions={**conditions, **row.conditions})
    return with_peak(row, ready.name)


def _all_reduce_rows(python: str, device: str, ready: Ready, effort: Effort) -> Iterator[BenchRow]:
    yield from _reduced(python, "gloo", _NUM_GLOO, effort)
    if device == "cpu" or ready.num_gpus < 2:
        reason = "no GPU is measured" if device == "cpu" else "there is one GPU"
        yield from _unread_all_reduce("nccl", reason)
    else:
        yield from _reduced(python, "nccl", ready.num_gpus, effort)


def _reduced(python: str, backend: str, world_size: int, effort: Effort) -> Iterator[BenchRow]:
    """Starts the ranks; what rank 0 measured, or why nothing was."""
    environment = {**worker_environment(), **loopback_variables()}
    # Only NCCL's transfers go past the CPU and its load.
    device = "cuda" if backend == "nccl" else "cpu"
    rows: list[BenchRow] = []
    reason = None
    with tempfile.TemporaryDirectory() as folder, ExitStack() as processes:
        try:
            ranks = [
                processes.enter_context(JsonProcess(python, _ALL_REDUCE, environment=environment))
                for _ in range(world_size)
            ]
            for rank, process in enumerate(ranks):
                request = AllReduceRequest(
                    backend=backend,
                    rank=rank,
                    world_size=world_size,
                    path=str(Path(folder, "store")),
                    num_blocks=effort.num_reduced,
                    block_s=effort.block_s,
                )
                process.send(request)
            until_s = elapsed_s() + _START_TIMEOUT_S
            while len(rows) < _NUM_REDUCED and reason is None:
                reply = ranks[0].receive(Measured | ProcessFailed, until_s=until_s)
                if isinstance(reply, Measured):
                    conditions = {"device": device, **reply.row.conditions}
                    rows.append(msgspec.structs.replace(reply.row, conditions=conditions))
                else:
                    reason = reply.finding.problem
        except (ProcessEnded, TimeoutError, OSError) as error:
            reason = str(error) or f"no answer within {_START_TIMEOUT_S:g} s"
    yield from rows if reason is None else _unread_all_reduce(backend, reason)


def _unread_all_reduce(backend: str, reason: str) -> Iterator[BenchRow]:
    yield BenchRow(
        id=f"limits/all-reduce/{backend}/bandwidth", label=f"all-reduce {backend}, bandwidth",
        unit="B/s", unread=reason,
    )  # fmt: skip
    yield BenchRow(
        id=f"limits/all-reduce/{backend}/latency", label=f"all-reduce {backend}, latency",
        unit="s", unread=reason, is_higher_better=False,
    )  # fmt: skip


def _start_rows(python: str, effort: Effort) -> Iterator[BenchRow]:
    for name, label, code in (
        ("python", "Python start", "pass"),
        ("torch", "Python start with torch", "import torch"),
    ):
        samples, unread = [], None
        for _ in range(effort.num_starts):
            began_s = elapsed_s()
            # -P: a file `torch.py` in the current folder must not be taken for torch.
            done = run([python, "-P", "-c", code], _START_TIMEOUT_S)
            samples.append(elapsed_s() - began_s)
            if done.exit_code != 0:
                samples, unread = [], done.reason or done.stderr.strip()[-200:] or "it failed"
                break
        yield BenchRow(
            id=f"limits/process/{name}", label=label, unit="s", samples=tuple(samples),
            is_higher_better=False, unread=unread,
        )  # fmt: skip
