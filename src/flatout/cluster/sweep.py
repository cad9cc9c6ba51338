"""`flatout.sweep`: a sweep from Python and notebooks. Its trials are processes of their own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from flatout.cluster import api
from flatout.errors import FlatoutError, RunFailed
from flatout.monitor import plots, sweep_plots
from flatout.schema.experiment_spec import Value
from flatout.schema.suggested_command import typed_value
from flatout.schema.sweep import Direction, Pruner, Sampler, Sweep, SweepRequest, default_tuning
from flatout.schema.train_request import TrainRequest
from flatout.schema.tuning import Mode
from flatout.schema.units import counted_text
from flatout.system.signals import Interrupts


def sweep(
    experiment: str | Path | None = None,
    parameters: Mapping[str, Value | Sequence[Value]] | None = None,
    *,
    trials: int | None = None,
    sampler: Sampler | None = None,
    pruner: Pruner = "none",
    metric: str | None = None,
    direction: Direction | None = None,
    parallel: int | None = None,
    use: Mapping[str, Value] | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    tune: Mode | None = None,
    on: str | None = None,
    track: str | Sequence[str] = (),
    python: str | None = None,
    name: str | None = None,
    resume: str | None = None,
    is_quiet: bool = False,
) -> Sweep:
    """Trains an experiment many times with different parameters, and finds the best.

    In a script that another process may import, call it under `if __name__ == "__main__":`.

    Args:
        experiment: a built-in's name, or a file with a function `experiment`.
        parameters: by name a range as text (`"1e-4..1e-2:log"`, `"1..8"`, `"0..1:step=0.25"`), a
            list of values, or a value that is the same in all trials.
        trials: how many; by default 20, or the whole grid.
        sampler: `tpe` learns from the trials before, `random` does not, `grid` tries all; default:
            `grid` if the trials are enough for every combination, else `tpe`.
        pruner: stops trials that look bad: `none`, `median`, `halving` or `hyperband`.
        metric: what to compare; by default the experiment's `best`.
        direction: `minimize` or `maximize`; by default that of the metric's name.
        parallel: how many trials at a time; by default one, and on a resume as many as before.
        use: recipe fields by name, with the values to fix.
        epochs, steps: how long each trial trains, instead of the experiment's own length.
        seed: of the sampler, weights and order.
        tune: `auto`, `off` or `full`: whether trials search for a recipe; by default `auto`, and
            `off` with several at a time.
        on: how many ranks train a trial, and who starts them, such as `local:2`.
        track: trackers that each trial is sent to, such as `mlflow`; see `flatout docs trackers`.
        python: interpreter to train with; by default this one.
        name: of the sweep; by default EXPERIMENT-sweep-0001 and so on.
        resume: a sweep to continue, instead of all others but `trials` and `parallel`.
        is_quiet: prints nothing.

    Returns:
        The sweep: `trials`, the number of the `best`, the `command` that trains it again. Its
        pictures are in `plots` of its `folder`, if matplotlib is installed.

    Raises:
        UsageError: the request is invalid.
        RunFailed: the first trials have failed alike, or the sweep was interrupted.
    """
    if resume is None:
        python, tune = python or sys.executable, tune or default_tuning(parallel)
    training = TrainRequest(
        experiment=None if experiment is None else str(experiment),
        settings=tuple(f"{key}={_typed(value)}" for key, value in (parameters or {}).items()),
        uses=tuple(f"{key}={typed_value(value)}" for key, value in (use or {}).items()),
        epochs=epochs, steps=steps, seed=seed, on=on, python=python, tune=tune or "off",
        track=(track,) if isinstance(track, str) else tuple(track),
    )  # fmt: skip
    request = SweepRequest(
        training=training, num_trials=trials, sampler=sampler, pruner=pruner, metric=metric,
        direction=direction, parallel=parallel, name=name, resume=resume,
    )  # fmt: skip
    return _carried_out(request, is_quiet=is_quiet)


def _typed(value: Value | Sequence[Value]) -> str:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return typed_value(value)
    return ",".join(map(typed_value, value))


def _carried_out(request: SweepRequest, *, is_quiet: bool) -> Sweep:
    now: Sweep | None = None
    num_left = -1
    with Interrupts() as interrupts:
        for now in api.sweep(request, interrupts):
            if not is_quiet and now.num_left != num_left:
                num_left = now.num_left
                best = f"; best so far: trial {now.best}" if now.best is not None else ""
                print(f"{now.id}: {counted_text(num_left, 'trial')} left{best}", flush=True)
    assert now is not None, "a sweep yields at least its end"
    if interrupts.count:
        raise RunFailed(
            "sweep-interrupted",
            f"sweep {now.id} was interrupted.",
            because="Ctrl-C was pressed; what has been trained is kept",
            fix=f'flatout.sweep(resume="{now.id}")',
        )
    if plots.can_draw():
        # The sweep is complete without them; `flatout sweep show --plots` says what is wrong.
        with contextlib.suppress(FlatoutError):
            sweep_plots.draw_sweep(now)
    return now
