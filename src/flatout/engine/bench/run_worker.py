"""The process that trains a workload: `python -m flatout.engine.bench.run_worker`."""

from __future__ import annotations

import dataclasses
import traceback
from statistics import median
from typing import Any

import torch
from torch import nn

from flatout.engine.bench.energy import StepEnergy
from flatout.engine.bench.limits_worker import failed
from flatout.engine.bench.meta_counts import counted_flops, counted_launches
from flatout.engine.bench.run_recipe import chosen_recipe
from flatout.engine.bench.waiting import wait_for
from flatout.engine.bench.workloads import WorkloadExperiment, part_of, workload_experiment
from flatout.engine.experiment import Experiment
from flatout.engine.feed.select_feed import built_data
from flatout.engine.runtime.device import chosen_device, use_device
from flatout.engine.runtime.error_map import to_flatout_error
from flatout.engine.runtime.step_timer import StepTimer, peak_memory_bytes
from flatout.engine.tensors.nested import placer, tensors_in
from flatout.engine.tuner.ab_timing import RecipeLoop, TimedLoop
from flatout.engine.tuner.baseline_loop import BaselineLoop
from flatout.engine.tuner.candidate_builder import CandidateBuilder, TuningTask
from flatout.schema.predict_protocol import Reply
from flatout.schema.recipe import Recipe
from flatout.schema.run_protocol import (
    RecipeRequest,
    RunRequest,
    WorkloadMeasured,
    WorkloadRequest,
)
from flatout.system.clock import elapsed_s, now_s
from flatout.system.exit_code import end
from flatout.system.json_process import JsonStdio

# Of the validation data, as many as this tell what has been learned.
_MOST_EVALUATED = 512
_MOST_UPDATES = 1024
_NUM_HOST_TIMES = 5
# A queue of CUDA holds 1,024 launches; where it is full, the host waits for the GPU.
_MOST_QUEUED = 1000
_NUM_WARM_UPS = 3


def main() -> int:
    """Handles one request; gives the exit code."""
    stdio = JsonStdio()
    try:
        request = stdio.read(RunRequest)
        stdio.exit_when_closed()
        stdio.answers.write(reply_to(request))
    except BrokenPipeError:
        return 1
    except Exception as error:  # noqa: BLE001 - every exception is reported
        traceback.print_exc()
        failure = failed(to_flatout_error(error) or error)
        stdio.answers.write(failure)
        return failure.exit_code
    return 0


def reply_to(request: RecipeRequest | WorkloadRequest) -> Reply:
    """Chooses a recipe, or measures."""
    use_device(chosen_device(request.device))
    workload = workload_experiment(request.size)
    if isinstance(request, RecipeRequest):
        return chosen_recipe(workload.experiment, request)
    return measured(workload, request)


def measured(workload: WorkloadExperiment, request: WorkloadRequest) -> WorkloadMeasured:
    """Makes the updates of time_to_steps, looks at what was learned, then measures blocks."""
    task = TuningTask(
        experiment=workload.experiment, device_name=request.device, fixed=request.fixed
    )
    builder = CandidateBuilder(task)
    timer = StepTimer(builder.device)
    loop, recipe = _loop(builder, request.changes, timer)
    model = _model_of(loop)
    samples_per_step, step_s = _first_steps(loop, request.size.num_steps)
    time_to_steps_s = now_s() - request.started_at
    loss, accuracy = evaluated(workload.experiment, model, builder.device)
    num_updates = _updates_per_block(loop, recipe, step_s, request.block_s)
    before, energy = timer.split_s(), StepEnergy(builder.device)
    blocks = [loop.timed(num_updates) for _ in range(request.num_blocks)]
    num_samples = sum(block.num_samples for block in blocks)
    while energy.is_early():
        num_samples += loop.timed(num_updates).num_samples
    energy_j, no_energy = energy.used()
    after, peak_bytes = timer.split_s(), peak_memory_bytes(builder.device)
    spent = {part: seconds - before.get(part, 0.0) for part, seconds in after.items()}
    flops, not_counted = counted_flops(workload.experiment, builder.train_data)
    steady_s = median([block.took_s / num_updates for block in blocks])
    num_launches = counted_launches(workload.experiment, builder.train_data, recipe)
    host_share, no_host_share = _host_share(loop, recipe, steady_s, num_launches)
    name, uuid = _gpu(builder.device)
    loop.runner.close()
    return WorkloadMeasured(
        torch=str(torch.__version__),
        num_threads=recipe.num_threads.value,
        name=name,
        uuid=uuid,
        data=workload.data,
        dtype=recipe.precision.value,
        num_parameters=sum(weight.numel() for weight in model.parameters()),
        samples_per_step=samples_per_step,
        mean_samples=tuple(block.num_samples / num_updates for block in blocks),
        tokens_per_sample=_tokens_per_sample(workload.experiment, builder.train_data),
        flops_per_step=flops,
        not_counted=not_counted,
        step_s=tuple(block.took_s / num_updates for block in blocks),
        time_to_steps_s=time_to_steps_s,
        peak_bytes=peak_bytes,
        energy_j=energy_j / num_samples if energy_j is not None else None,
        no_energy=no_energy,
        data_share=spent.get("data", 0.0) / (sum(spent.values()) or 1.0),
        host_share=host_share,
        no_host_share=no_host_share,
        loss=loss,
        accuracy=accuracy,
    )


def _loop(
    builder: CandidateBuilder, changes: dict[str, Any] | None, timer: StepTimer
) -> tuple[TimedLoop, Recipe]:
    """The loop and its recipe.

    Nothing else runs between its blocks, so there are no batches that were read meanwhile and must
    be used up: they would be untimed updates in the energy, the losses and the first steps.
    """
    if changes is None:
        loop, recipe = builder.plain(timer=timer), builder.plain_recipe()
    else:
        session = builder.session(changes)
        loop, recipe = builder.contestant(session, timer), session.recipe
    return dataclasses.replace(loop, num_ahead=0), recipe


def _model_of(loop: TimedLoop) -> nn.Module:
    assert isinstance(loop.runner, BaselineLoop | RecipeLoop)
    return loop.runner.model


def _first_steps(loop: TimedLoop, num_steps: int) -> tuple[int, float]:
    """Makes the updates of time_to_steps; gives the samples of one, and about what one takes."""
    first = loop.timed(1)
    if num_steps == 1:
        return first.num_samples, first.took_s
    return first.num_samples, loop.timed(num_steps - 1).took_s / (num_steps - 1)


def _updates_per_block(loop: TimedLoop, recipe: Recipe, step_s: float, block_s: float) -> int:
    """Updates that take at least block_s, after some to warm up.

    step_s is of the first steps, with captures and compile time: it only says whether warming up
    takes long.
    """
    num_updates = max(1, recipe.steps_per_launch.value)
    if num_updates * step_s < block_s:
        loop.timed(max(_NUM_WARM_UPS, num_updates))
    while num_updates < _MOST_UPDATES and loop.timed(num_updates).took_s < block_s:
        num_updates *= 2
    return num_updates


@torch.no_grad()
def evaluated(
    experiment: Experiment, model: nn.Module, device: torch.device
) -> tuple[float, float | None]:
    """Loss and accuracy on some of the validation data, in fp32; None if it has no accuracy."""
    assert experiment.validation_data is not None, "every workload has some"
    data = part_of(built_data(experiment, experiment.validation_data), 0, _MOST_EVALUATED)
    was_training = model.training
    model.eval()
    try:
        numbers = _numbers(experiment, model, data, device)
    finally:
        model.train(was_training)
    return numbers["loss"], numbers.get("accuracy")


def _numbers(
    experiment: Experiment, model: nn.Module, data: Any, device: torch.device
) -> dict[str, float]:
    """The means over all samples, in batches of the training's size."""
    assert experiment.loss is not None
    place = placer(device, False)
    num_samples = len(next(tensors_in(data)))
    sums: dict[str, float] = {}
    for start in range(0, num_samples, experiment.batch_size):
        count = min(experiment.batch_size, num_samples - start)
        batch = part_of(data, start, count)
        batch = place(batch) if place is not None else batch
        values: dict[str, Any] = {"loss": experiment.loss(model, batch)}
        if experiment.metrics is not None:
            values |= experiment.metrics(model, batch)
        for name in ("loss", "accuracy"):
            if name in values:
                sums[name] = sums.get(name, 0.0) + float(values[name]) * count
    return {name: total / num_samples for name, total in sums.items()}


def _tokens_per_sample(experiment: Experiment, train_data: Any) -> int | None:
    """Tokens that are predicted of a sample of text: all but the first."""
    first = next(tensors_in(train_data))
    is_text = isinstance(train_data, torch.Tensor) and first.dim() == 2
    return first.shape[1] - 1 if is_text and experiment.unit != "images" else None


def _host_share(
    loop: TimedLoop, recipe: Recipe, step_s: float, num_launches: int | None
) -> tuple[float | None, str | None]:
    """The time of the host for a step over step_s; None with the reason.

    Measured from an idle GPU, one launch at a time, so that the host never waits for the GPU.
    """
    reason = _no_host_share(loop, recipe, num_launches)
    if reason is not None:
        return None, reason
    num_updates = max(1, recipe.steps_per_launch.value)
    times_s = []
    with loop.settings():
        for _ in range(_NUM_HOST_TIMES):
            wait_for(loop.device)
            began_s = elapsed_s()
            loop.runner.run(num_updates)
            times_s.append(elapsed_s() - began_s)
        wait_for(loop.device)
    return min(median(times_s) / num_updates / step_s, 1.0), None


def _no_host_share(loop: TimedLoop, recipe: Recipe, num_launches: int | None) -> str | None:
    """Why the host cannot be timed apart from the GPU."""
    if loop.device.type != "cuda":
        return "on a CPU, the host is the device"
    is_plain = isinstance(loop.runner, BaselineLoop)
    is_loader = recipe.data_path.value in ("loader", "cached")
    if is_plain or (is_loader and not recipe.loader_pin_memory.value):
        return "the host waits for copies from pageable memory"
    if recipe.capture.value != "off":
        return None
    if num_launches is None:
        return "the launches of a step could not be counted"
    if num_launches > _MOST_QUEUED:
        return f"about {num_launches} launches in a step: the host waits for a full queue"
    return None


def _gpu(device: torch.device) -> tuple[str | None, str | None]:
    if device.type != "cuda":
        return None, None
    properties = torch.cuda.get_device_properties(device)
    return properties.name, f"GPU-{properties.uuid}"


if __name__ == "__main__":
    end(main())
