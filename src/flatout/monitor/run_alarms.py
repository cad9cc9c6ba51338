"""Alarms about runs: what their lines, their processes and the machine say together.

Each is silent unless it has seen its cause for about 20 s: an epoch's end, a validation, a
checkpoint, a compilation or a busy neighbor looks the same for a moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, stdev

from flatout.monitor.gpu_alarms import EVENT_S, MachineHistory
from flatout.monitor.memory_alarms import memory_findings
from flatout.monitor.rank_alarms import straggling_rank
from flatout.monitor.run_state import RunState
from flatout.schema.change import Change
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine_sample import GpuSample
from flatout.schema.run_lines import Progress
from flatout.schema.suggested_command import resume_command, show_command
from flatout.schema.units import counted_text, percent_text, rate_text, seconds_text

_WINDOW_S = 20.0
# Loader processes start, and caches fill.
_START_S = 10.0
_STARVED = 0.5
_GPU_IS_BUSY = 0.7
_IDLE = 0.02
_NO_STEPS = 0.3
# Lines come every 10 s in a long run.
_RECENT_S = 15.0

_HUNG_S = 20.0
_STOPPED_S = 10.0
_HUNG_GAPS = 3.0
_AT_WORK = 0.02
# Of a worker that computes, or that is on another machine, silence says less.
_SILENT_S = 1800.0
_DEAD_S = 3.0

_FLAT_STEPS, _FLAT_EPOCH_STEPS = 500, 300
_FLAT_LINES = 20
_FLAT_EPOCHS = 3
_FLAT = 0.01
_FALLEN = 0.02

# Parts of a run's time in which no steps are made.
_NOT_STEPS = ("validation", "checkpoint")


def run_findings(state: RunState, machine: MachineHistory, *, can_spill: bool) -> Iterator[Finding]:
    """What is wrong with a run now, and not in its own events."""
    if not state.is_training:
        return
    gpus = gpus_of(state, machine)
    starved = _starved(state, gpus)
    found = (
        _hung(state, machine, gpus),
        starved,
        _idle(state, gpus) if starved is None else None,
        straggling_rank(state),
        _flat(state),
    )
    yield from (finding for finding in found if finding is not None)
    yield from memory_findings(state, machine, gpus, can_spill=can_spill)


def reported_errors(state: RunState) -> Iterator[Finding]:
    """The errors that a run has reported itself, or could not report because it was killed."""
    for at, finding in state.bad_news.values():
        if state.sample.at - at <= EVENT_S:
            yield finding
    ended = _died(state)
    if ended is not None:
        yield ended


def gpus_of(state: RunState, machine: MachineHistory) -> dict[int, list[GpuSample]]:
    """Readings of the last 20 s of the GPUs that a run may use; none where it uses none."""
    if not state.uses_gpu or not machine.samples:
        return {}
    newest = newest_gpus_of(state, machine)
    readings = {gpu.index: machine.gpu(gpu, _WINDOW_S) for gpu in newest}
    return {index: found for index, found in readings.items() if found}


def newest_gpus_of(state: RunState, machine: MachineHistory) -> tuple[GpuSample, ...]:
    """The newest readings of the GPUs that a run may use: all where its processes are not listed;
    none where it trains on the CPU.
    """
    if state.is_on_cpu or not machine.samples:
        return ()
    pid = state.sample.worker.pid if state.sample.worker else None
    newest = machine.samples[-1].gpus
    own = tuple(
        gpu
        for gpu in newest
        if any(process.is_own or process.pid == pid for process in gpu.processes or ())
    )
    return own or newest


def _utilization(gpus: Mapping[int, list[GpuSample]]) -> float | None:
    """The highest mean of these GPUs; None where one of them does not report it."""
    means = []
    for readings in gpus.values():
        values = [one.utilization for one in readings if one.utilization is not None]
        if len(values) < len(readings):
            return None
        means.append(mean(values))
    return max(means, default=None)


def _last_lines(state: RunState, seconds: float, fewest: int) -> list[Progress]:
    """The newest lines of progress, at least so many seconds and so many of them; else none."""
    taken: list[Progress] = []
    for line in reversed(state.progress):
        taken.append(line)
        if len(taken) >= fewest and taken[0].at - line.at >= seconds:
            return taken[::-1]
    return []


def shares_between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """The share of each part of the time between two splits."""
    parts = {name: after[name] - before.get(name, 0.0) for name in after}
    total = sum(parts.values())
    return {name: seconds / total for name, seconds in parts.items()} if total > 0 else {}


def _starved(state: RunState, gpus: Mapping[int, list[GpuSample]]) -> Finding | None:
    lines = _last_lines(state, _WINDOW_S, 5)
    first_at = state.first_progress_at
    if not lines or first_at is None or lines[0].at < first_at + _START_S:
        return None
    # In each quarter: the end of an epoch, where loaders start again, is no shortage.
    size = (len(lines) - 1) / 4
    marks = [lines[round(part * size)] for part in range(5)]
    shares = []
    for before, after in zip(marks, marks[1:], strict=False):
        parts = {name: share for name, share in _part_seconds(before, after).items()
                 if name not in _NOT_STEPS}  # fmt: skip
        total = sum(parts.values())
        if total <= 0 or parts.get("data", 0.0) / total < _STARVED:
            return None
        shares.append(parts["data"] / total)
    used = _utilization(gpus)
    if used is not None and used >= _GPU_IS_BUSY:
        return None
    passed = seconds_text(lines[-1].at - lines[0].at)
    evidence = [f"{percent_text(mean(shares), 0)} of the last {passed} were spent waiting for data"]
    if used is not None:
        evidence.append(f"the GPU computed {percent_text(used, 0)} of the time")
    rate = lines[-1].samples_per_s
    if rate is not None:
        unit = state.started.unit if state.started else "samples"
        evidence.append(f"speed {rate_text(rate, unit)}")
    return Finding(
        rule="data-starvation",
        severity="warning",
        problem="training waits for its data most of the time.",
        because="the data is read and prepared slower than the model trains on it",
        evidence=tuple(evidence),
        fixes=(
            Fix(text="use more loader processes: --use loader_workers=N"),
            Fix(text="convert the data once, so that it need not be decoded: flatout ingest"),
            Fix(text="do less work for each sample, or move the data to a faster disk"),
        ),
    )


def _part_seconds(before: Progress, after: Progress) -> dict[str, float]:
    return {name: after.split_s[name] - before.split_s.get(name, 0.0) for name in after.split_s}


def _idle(state: RunState, gpus: Mapping[int, list[GpuSample]]) -> Finding | None:
    lines = _last_lines(state, _WINDOW_S, 3)
    used = _utilization(gpus)
    if not lines or used is None or used > _IDLE:
        return None
    if state.sample.at - lines[-1].at > _RECENT_S:
        return None
    shares = shares_between(lines[0].split_s, lines[-1].split_s)
    if sum(shares.get(name, 0.0) for name in _NOT_STEPS) > _NO_STEPS:
        return None
    longest = max(shares, key=lambda name: shares[name], default=None)
    evidence = [f"the GPU computed {percent_text(used, 0)} of the last {_WINDOW_S:.0f} s"]
    if longest is not None:
        evidence.append(f"most time went into: {longest} ({percent_text(shares[longest], 0)})")
    steps = lines[-1].step - lines[0].step
    passed = seconds_text(lines[-1].at - lines[0].at)
    evidence.append(f"{counted_text(steps, 'update')} in {passed}")
    return Finding(
        rule="gpu-idle-in-training",
        severity="warning",
        problem="the GPU is idle although training runs.",
        because="the work of each update is done by the CPU: Python code, or operations on the CPU",
        evidence=tuple(evidence),
        certainty="likely",
        fixes=(
            Fix(text="see where the time of a step goes: flatout profile EXPERIMENT"),
            Fix(text="keep tensors on the GPU, and Python loops out of the step"),
        ),
    )


def _hung(
    state: RunState, machine: MachineHistory, gpus: Mapping[int, list[GpuSample]]
) -> Finding | None:
    at = state.sample.at
    silent_s = at - state.last_line_at
    worker = state.sample.worker
    limit_s = max(_HUNG_S, _HUNG_GAPS * state.longest_gap_s)
    evidence = [f"no line for {seconds_text(silent_s)}; before, the longest pause was "
                f"{seconds_text(state.longest_gap_s)}"]  # fmt: skip
    if worker is not None and _is_stopped_for(state, _STOPPED_S):
        evidence = [f"process {worker.pid} is stopped", *evidence]
        because = "its process was stopped by SIGSTOP, Ctrl-Z or a debugger"
        fix = Fix(text=f"continue it: kill -CONT {worker.pid}")
        return _hung_finding(state, because, evidence, fix)
    if silent_s < limit_s:
        return None
    show = Fix(text=f"read {state.sample.log}, and what it waits for: py-spy dump --pid "
                    f"{worker.pid}" if worker is not None
               else f"read {state.sample.log} on the machine where it trains")  # fmt: skip
    used = _utilization(gpus)
    share = _cpu_share(state, _HUNG_S)
    if worker is not None and share is not None and share < _AT_WORK and (used or 0.0) < _AT_WORK:
        evidence.append(f"its processes used {percent_text(share)} of a CPU meanwhile")
        because = "it waits for a disk, a network, a lock or another process that does not respond"
        return _hung_finding(state, because, evidence, show)
    if silent_s >= max(_SILENT_S, _HUNG_GAPS * state.longest_gap_s):
        because = "it may compute without an end, or wait for another rank"
        return _hung_finding(state, because, evidence, show)
    return None


def _is_stopped_for(state: RunState, seconds: float) -> bool:
    if not state.workers or not state.workers[-1][1].is_stopped:
        return False
    at = state.workers[-1][0]
    for then, worker in reversed(state.workers):
        if not worker.is_stopped:
            return False
        if at - then >= seconds:
            return True
    return False


def _cpu_share(state: RunState, seconds: float) -> float | None:
    """CPUs that the worker's processes have used over the last seconds; None if unknown."""
    if not state.workers:
        return None
    at, newest = state.workers[-1]
    for then, worker in reversed(state.workers):
        if worker.pid != newest.pid:
            return None
        if at - then >= seconds:
            # A child that has ended takes its time along, where no parent counts it.
            return max(0.0, newest.cpu_s - worker.cpu_s) / (at - then)
    return None


def _hung_finding(state: RunState, because: str, evidence: Sequence[str], fix: Fix) -> Finding:
    return Finding(
        rule="run-hung",
        severity="error",
        problem="training hangs: it makes no progress, and has not ended.",
        because=because,
        evidence=tuple(evidence),
        certainty="likely",
        fixes=(fix, Fix(text="end it, and resume from its last checkpoint: "
                             f"{_resume(state)}")),
    )  # fmt: skip


def _died(state: RunState) -> Finding | None:
    since = state.free_since
    if since is None or state.started is None or state.ending is not None:
        return None
    if state.sample.at - since < _DEAD_S:
        return None
    return Finding(
        rule="worker-died",
        severity="error",
        problem="training exited unexpectedly; no error was recorded.",
        because="its process was killed, by a user, by the kernel because memory ran out, or by a "
        "crash",
        evidence=(f"process {state.started.pid} has released the run's lock, and its last event "
                  "is no end",),
        fixes=(Fix(text=f"read {state.sample.log}"),
               Fix(text=f"resume from the last checkpoint: {_resume(state)}")),
    )  # fmt: skip


def _resume(state: RunState) -> str:
    """The command that continues a run as it was started last."""
    last = state.started
    change = Change()
    if last is not None:
        change = Change(on=last.on, python=last.python, leave_free_bytes=last.leave_free_bytes)
    return resume_command(state.sample.typed, change)


def _flat(state: RunState) -> Finding | None:
    losses = state.losses
    if state.has_fallen or len(losses) < _FLAT_LINES or state.first_loss is None:
        return None
    third = len(losses) // 3
    first = [loss for _, _, loss in losses[:third]]
    last = [loss for _, _, loss in losses[-third:]]
    noise = stdev(last)
    fall = max(_FALLEN * abs(state.first_loss), 3 * noise)
    if state.first_loss - mean(last) > fall or mean(first) - mean(last) > max(
        _FALLEN * abs(mean(first)), 3 * noise / third**0.5
    ):
        state.has_fallen = True
        state.losses, state.epoch_losses = [], []
        return None
    num_steps, seconds = losses[-1][1] - losses[0][1], losses[-1][0] - losses[0][0]
    # Losses that work against each other, as in a GAN, may hold their balance.
    has_several = bool(state.progress) and len(state.progress[-1].losses) > 1
    if num_steps < _FLAT_EPOCH_STEPS or seconds < _WINDOW_S or has_several:
        return None
    level, change = abs(mean(first)), abs(mean(last) - mean(first))
    error = max(noise, stdev(first)) * (2 / third) ** 0.5
    # Epochs are of the same samples each, so that their means have little noise.
    epochs = state.epoch_losses[1:]
    are_flat = len(epochs) >= _FLAT_EPOCHS and max(epochs) - min(epochs) <= _FLAT * level
    is_known = num_steps >= _FLAT_STEPS and 2 * error <= _FLAT * level
    if change > max(_FLAT * level, 3 * error if are_flat else 0.0) or not (are_flat or is_known):
        return None
    rate = state.progress[-1].learning_rate if state.progress else None
    evidence = [f"mean loss {mean(first):.4g}, and {mean(last):.4g} after "
                f"{counted_text(num_steps, 'more update')}"]  # fmt: skip
    if rate is not None:
        evidence.append(f"learning rate {rate:g}")
    return Finding(
        rule="loss-flat",
        severity="warning",
        problem=f"the loss has not changed in {counted_text(num_steps, 'update')}.",
        because="the learning rate is 0" if rate == 0 else "the weights do not change, the "
        "gradients do not reach them, or the labels do not belong to the inputs",
        evidence=tuple(evidence),
        certainty="decided" if rate == 0 else "possible",
        fixes=(
            Fix(text="check the learning rate, and that the loss depends on the weights: no "
                     "detach() or no_grad() in between, and requires_grad is set"),
            Fix(text=f"see its metrics: {show_command(state.sample.typed)}"),
        ),
    )  # fmt: skip
