"""Advice about a script: that about experiments, and what a DataLoader's settings say."""

from __future__ import annotations

from flatout.monitor.advice import advice_for
from flatout.monitor.speedups import speedup_of
from flatout.schema.step_profile import Advice, StepProfile
from flatout.schema.units import counted_text, percent_text, seconds_text

_LEAST_SHARE = 0.04
# Workers share the processors with the step itself.
_MOST_WORKERS = 8


def script_advice(report: StepProfile) -> tuple[Advice, ...]:
    """The changes that would bring most, best first."""
    workers = _workers(report)
    return advice_for(report, () if workers is None else (workers,))


def _workers(report: StepProfile) -> Advice | None:
    """Processes that read the next batches while a step computes."""
    data_s, step_s = report.seconds("data"), report.mean_step_s
    cpus = report.settings.get("CPUs", "")
    if report.settings.get("loader workers") != "0" or data_s < _LEAST_SHARE * step_s:
        return None
    count = min(_MOST_WORKERS, int(cpus) // 2) if cpus.isdecimal() else 0
    if count < 1:
        return None
    rest_s = step_s - data_s
    left_s = max(0.0, data_s / count - rest_s)
    return Advice(
        id="loader-starved",
        problem="The step waits for data.",
        because=f"the DataLoader has no workers: a step waits {seconds_text(data_s)} for its "
        f"batch, {percent_text(data_s / step_s, 0)} of it",
        fix=f"DataLoader(..., num_workers={count}, persistent_workers=True)",
        speedup=speedup_of(step_s, data_s - left_s, doubt=0.5),
        basis=f"if {counted_text(count, 'process', 'processes')} read while the step computes",
        lines=tuple(line for line in report.lines if line.part == "data")[:3],
    )
