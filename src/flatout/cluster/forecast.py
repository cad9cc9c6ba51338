"""Estimates training time on many workers from a measured run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.cluster.model.scaling_model import (
    Forecasts,
    PredictRequest,
    Rates,
    WorkerStep,
    forecasts,
    measured_step,
    parse_energy_price,
    parse_link,
    parse_power,
    parse_price,
    parse_workers,
)
from flatout.errors import UsageError
from flatout.schema.run import Run
from flatout.system.store import run_folder
from flatout.system.store.run_reader import list_runs, power_of, split_of


def predict(request: PredictRequest) -> Forecasts:
    """Throughput, energy and cost on that many workers, by the model in `model/scaling_model.py`.

    Raises:
        UsageError: bad-forecast, no-measured-step, unknown-run.
    """
    workers = parse_workers(request.workers)
    link = parse_link(request.link, request.latency_us)
    given = Rates(
        price_per_hour=parse_price(request.price),
        power_w=parse_power(request.power),
        price_per_kwh=parse_energy_price(request.energy_price),
    )
    known = [run for run in reversed(list_runs()) if isinstance(run, Run)]
    run, measured = _measured(request.run, known)
    smaller = _in_smaller_batches(run, measured, known) if request.scaling == "strong" else ()
    power_w = power_of(run) if given.power_w is None else None
    rates = given if power_w is None else msgspec.structs.replace(given, power_w=power_w)
    return Forecasts(
        run=run.id,
        unit=run.started.unit if run.started else "samples",
        experiment=run.header.spec.file or run.header.spec.name,
        measured=measured,
        smaller=smaller,
        link=link,
        scaling=request.scaling,
        rates=rates,
        is_power_measured=power_w is not None,
        rows=forecasts([measured, *smaller], workers, link, request.scaling, rates),
    )


def _measured(text: str | None, known: Sequence[Run]) -> tuple[Run, WorkerStep]:
    """The newest matching run with a measured step, and that step; runs are newest first."""
    named = _runs_of(text, known)
    if not named and text is not None:
        named = [run_folder.read_run(run_folder.find_run(text))]
    for run in named:
        step = _step_of(run)
        if step is not None:
            return run, step
    name = text or "digits"
    raise UsageError(
        "no-measured-step",
        f"no run of {name} has a step time measured on one worker."
        if text
        else "no run has a step time measured on one worker.",
        because="it takes a run with some steps on one rank, data of known length, and no CUDA "
        "graphs",
        fix=f"measure it: flatout train {name} --epochs 1",
    )


def _runs_of(text: str | None, known: Sequence[Run]) -> list[Run]:
    """The runs of an experiment by its name or file, or all of them."""
    file = str(Path(text).expanduser().absolute()) if text else None
    return [
        run
        for run in known
        if text is None or text == run.header.spec.name or file == run.header.spec.file
    ]


def _in_smaller_batches(
    run: Run, measured: WorkerStep, known: Sequence[Run]
) -> tuple[WorkerStep, ...]:
    """The same step as other runs have made it in smaller micro-batches, the newest of each."""
    steps: dict[int, WorkerStep] = {}
    expected = _but_for_micro_batches(run)
    for other in known:
        if other.adaptations or _but_for_micro_batches(other) != expected:
            continue
        step = _step_of(other)
        if step is not None and step.micro_batch_size < measured.micro_batch_size:
            steps.setdefault(step.micro_batch_size, step)
    return tuple(steps[size] for size in sorted(steps, reverse=True))


def _but_for_micro_batches(run: Run) -> object:
    """The facts that must be equal for two runs whose steps differ by their micro-batches alone."""
    spec, started = run.header.spec, run.started
    recipe = msgspec.structs.asdict(run.recipe) if run.recipe else {}
    values = {name: choice.value for name, choice in recipe.items() if name != "micro_batch_size"}
    what = (spec.name, spec.file, spec.sha256, spec.parameters)
    return what, values, started and (started.versions, started.num_samples)


def _step_of(run: Run) -> WorkerStep | None:
    """A run's step; None if its data has no length, or a single rank's parts are unknown."""
    started = run.started
    if started is None or not started.num_samples or not started.steps_per_epoch:
        return None
    split_s = split_of(run)
    # A rank of several has only its share of the batch, and waits for the others.
    if started.num_ranks > 1:
        return None
    # In a CUDA graph the optimizer's time, which ranks do not share, is unknown.
    if not run.step or run.recipe is None or not split_s or split_s.get("step"):
        return None
    num_sent = started.num_parameters if started.num_trained is None else started.num_trained
    return measured_step(
        split_s,
        run.step,
        started.num_samples,
        started.steps_per_epoch,
        num_sent,
        run.recipe.micro_batch_size.value,
    )
