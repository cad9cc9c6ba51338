"""Runs side by side: what differs in how they were made, and what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from flatout.schema.machine import Machine
from flatout.schema.run import Run


class ComparisonRow(msgspec.Struct, frozen=True, kw_only=True):
    """One value in each of the runs; None if a run does not have it."""

    section: str
    name: str
    values: tuple[Any, ...]

    @property
    def is_same(self) -> bool:
        """Whether all runs agree."""
        return all(value == self.values[0] for value in self.values)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """runs: ids, in the order of the values. rows: what differs, then results and times."""

    runs: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]


# What came out is shown even where it is equal; of the rest only what differs.
_ALWAYS = ("result", "time")


def compare_runs(
    runs: Sequence[Run], parameters: Sequence[Mapping[str, Any]] | None = None
) -> Comparison:
    """The differences between runs in settings and results, by section.

    parameters: of each run, the defaults among them; None takes those that were set.
    """
    sections = {
        "experiment": [_experiment(run) for run in runs],
        "parameters": parameters or [run.header.spec.parameters for run in runs],
        "recipe": [_recipe(run) for run in runs],
        "machine": [_machine(run.header.machine, run) for run in runs],
        "versions": [run.started.versions if run.started else {} for run in runs],
        "result": [_result(run) for run in runs],
        "time": [_time(run) for run in runs],
    }
    rows = [
        ComparisonRow(
            section=section, name=name, values=tuple(column.get(name) for column in columns)
        )
        for section, columns in sections.items()
        for name in dict.fromkeys(name for column in columns for name in column)
    ]
    return Comparison(
        runs=tuple(run.id for run in runs),
        rows=tuple(row for row in rows if row.section in _ALWAYS or not row.is_same),
    )


def _experiment(run: Run) -> dict[str, Any]:
    spec = run.header.spec
    return {
        "name": spec.name, "file": spec.file, "sha256": spec.sha256, "seed": spec.seed,
        "init": spec.init, "flatout": run.header.flatout_version,
    }  # fmt: skip


def _recipe(run: Run) -> dict[str, Any]:
    if run.recipe is None:
        return {}
    fields = msgspec.structs.asdict(run.recipe)
    return {name: choice.value for name, choice in fields.items()}


def _machine(machine: Machine | None, run: Run) -> dict[str, Any]:
    facts: dict[str, Any] = {"python": run.header.python}
    if machine is not None:
        facts |= {
            "cpu": machine.cpu.name,
            "cpu_threads": machine.cpu.num_threads,
            "gpus": ", ".join(gpu.name or "unknown" for gpu in machine.gpus) or None,
            "driver": machine.driver,
            "os": machine.host.os,
            "release": machine.host.release,
        }
    return facts


def _result(run: Run) -> dict[str, Any]:
    best, started = run.best_validation, run.started
    return {
        "status": run.status,
        "step": run.step,
        # As trained: it may have been extended, or have ended early.
        **({"epochs": run.step / started.steps_per_epoch}
           if started and started.steps_per_epoch else {}),
        **({f"best_{name}": value for name, value in best.metrics.items()} if best else {}),
        **({f"last_{name}": value for name, value in run.validations[-1].metrics.items()}
           if run.validations else {}),
    }  # fmt: skip


def _time(run: Run) -> dict[str, Any]:
    if run.finished is None:
        return {}
    done = run.finished
    split = {f"{name}_s": seconds for name, seconds in done.split_s.items() if seconds > 0}
    steps_s = done.train_s - done.split_s.get("validation", 0.0)
    rate = done.num_samples_seen / steps_s if steps_s > 0 else None
    return {
        "train_s": done.train_s, "samples_per_s": rate, **split,
        "peak_memory_bytes": done.peak_memory_bytes,
        **({"peak_allocated_bytes": done.peak_allocated_bytes}
           if done.peak_allocated_bytes is not None else {}),
    }  # fmt: skip
