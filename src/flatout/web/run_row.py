"""A run as a row of a list."""

from __future__ import annotations

from typing import Any

from flatout.runs.model.listed import ListedRun
from flatout.schema.run import DamagedRun


def run_row(row: ListedRun) -> dict[str, Any]:
    """What a list shows of a run; the same keys for one that cannot be read."""
    run = row.run
    known: dict[str, Any] = {
        "id": run.id, "status": run.status, "experiment": None, "step": None, "num_steps": None,
        "epochs": None, "num_epochs": None, "metric": None, "duration_s": row.duration_s,
        "created_at": None, "changed": {}, "problem": None, "fix": None,
        "share_read": row.share_read,
    }  # fmt: skip
    if isinstance(run, DamagedRun):
        return {**known, "problem": run.because, "fix": run.fix}
    started = run.started
    per_epoch = started.steps_per_epoch if started is not None else None
    return {
        **known,
        "experiment": run.header.spec.name,
        "step": run.step,
        "num_steps": started.num_steps if started is not None else None,
        "epochs": run.step / per_epoch if per_epoch else None,
        "num_epochs": started.num_epochs if started is not None else None,
        "metric": main_metric(row.metrics),
        "created_at": run.header.created_at,
        "changed": {name: row.parameters[name] for name in row.changed},
        "problem": run.failure.problem if run.failure is not None else None,
    }


def main_metric(metrics: dict[str, float | None]) -> dict[str, Any] | None:
    """The metric that says most: the first that is not a loss."""
    names = sorted(metrics, key=lambda name: name.endswith("loss"))
    return {"name": names[0], "value": metrics[names[0]]} if names else None
