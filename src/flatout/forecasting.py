"""The verb that says what a training would take on many workers, from a run that was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.errors import UsageError
from flatout.nouns.run import Run
from flatout.nouns.scaling import (
    Forecasts,
    MeasuredStep,
    PredictRequest,
    Rates,
    forecasts,
    measured_step,
    parse_energy_price,
    parse_link,
    parse_power,
    parse_price,
    parse_workers,
)
from flatout.system import runs
from flatout.system.reading import list_runs, power_of, split_of


def predict(request: PredictRequest) -> Forecasts:
    """Throughput, energy and cost on that many workers, by the model in nouns/scaling.py.

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


def _measured(text: str | None, known: Sequence[Run]) -> tuple[Run, MeasuredStep]:
    """The newest of the known runs that is meant and tells it, and its step; newest come first."""
    named = _runs_of(text, known)
    if not named and text is not None:
        named = [runs.read_run(runs.find_run(text))]
    for run in named:
        step = _step_of(run)
        if step is not None:
            return run, step
    name = text or "digits"
    raise UsageError(
        "no-measured-step",
        f"no run of {name} tells how long a step takes on one worker."
        if text
        else "no run tells how long a step takes on one worker.",
        because="a run must have made some steps, on one rank, over data of known length, "
        "and not in CUDA graphs",
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
    run: Run, measured: MeasuredStep, known: Sequence[Run]
) -> tuple[MeasuredStep, ...]:
    """The same step as other runs have made it in smaller micro-batches, the newest of each."""
    found: dict[int, MeasuredStep] = {}
    wanted = _but_for_micro_batches(run)
    for other in known:
        if other.adaptations or _but_for_micro_batches(other) != wanted:
            continue
        step = _step_of(other)
        if step is not None and step.micro_batch_size < measured.micro_batch_size:
            found.setdefault(step.micro_batch_size, step)
    return tuple(found[size] for size in sorted(found, reverse=True))


def _but_for_micro_batches(run: Run) -> object:
    """What two runs must have in common for a step of theirs to differ by micro-batches alone."""
    spec, started = run.header.spec, run.started
    recipe = msgspec.structs.asdict(run.recipe) if run.recipe else {}
    values = {name: one.value for name, one in recipe.items() if name != "micro_batch_size"}
    what = (spec.name, spec.file, spec.sha256, spec.parameters)
    return what, values, started and (started.versions, started.num_samples)


def _step_of(run: Run) -> MeasuredStep | None:
    """A run's step; None where its data has no length, or nothing tells a single rank's parts."""
    started = run.started
    if started is None or not started.num_samples or not started.steps_per_epoch:
        return None
    split_s = split_of(run)
    # A rank of several has only its share of the batch, and waits for the others.
    if started.num_ranks > 1:
        return None
    # Of a CUDA graph nobody knows what is the optimizer's part, which ranks do not share.
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
